"""What a run knows of its thread's inbox, and how it learns what other processes put there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from perdure.machines import Unreadable
from perdure.stores import Address, Claim, Inbox, InboxRow, Micros, Store, StoreError, ThreadRow, Threads

from ._env import Env
from ._ledger import Ledger
from ._look import rows_of
from ._reliable import page_of
from ._reserved import TERMINATE

if TYPE_CHECKING:
    from ._run import Run

INBOX_PAGE = 100


class RunInbox:
    """The pending messages of one claimed thread, as far as its run knows them."""

    def __init__(self, store: Store, env: Env, claim: Claim, ledger: Ledger) -> None:
        self._store = store
        self._env = env
        self._claim = claim
        self._ledger = ledger
        self.pending: list[InboxRow] = list(claim.inbox)
        self.stale = len(claim.inbox) >= INBOX_PAGE
        """There may be more than is known here."""
        self.looked_at: Micros = 0
        """When it was read last: every signal that came before is known."""
        self.offered = asyncio.Event()
        self.told = False
        """Something came since the last read: where it came behind the look that lets the thread go, the
        store makes the thread due, and this worker is to claim it again."""
        self._see(claim.inbox)
        if not self.stale:
            self._see_all_before_the_claim()

    @property
    def something(self) -> bool:
        """Something is pending, or may be."""
        return bool(self.pending) or self.stale

    @property
    def terminated(self) -> bool:
        """Somebody terminates the thread: whoever has it ends it."""
        return bool(self.pending) and any(row.event == TERMINATE for row in self.pending)

    def seen_by(self, version: int) -> int:
        """Number of the last entry that code of this version has examined: what is for newer code makes the
        thread due, which a worker with that code then claims."""
        newer = [row.number for row in self.pending if row.version > version]
        return min(newer) - 1 if newer else self._ledger.inbox_seen

    def replace(self, rows: Sequence[InboxRow]) -> None:
        """The claim's rows have their bodies now."""
        read = {row.number: row for row in rows}
        self.pending = [read.get(row.number, row) for row in self.pending]

    def offer(self, row: InboxRow) -> None:
        """A message was accepted."""
        if row.number == self._ledger.inbox_seen + 1:
            self.pending.append(row)
            self._ledger.inbox_seen = row.number
        elif row.number > self._ledger.inbox_seen:
            self.stale = True
        self.told = True
        self.offered.set()

    def must_be_read(self) -> None:
        """There is something that could not be read just now."""
        self.stale = True
        self.offered.set()

    async def refresh(self) -> None:
        """Read what is not known here."""
        while self.stale:
            query = Inbox(address=self._claim.thread.address, pending=True, after=self._ledger.inbox_seen)
            self.stale, self.told, more = False, False, True
            now = self._env.now()
            try:
                page = await page_of(self._store, query, limit=INBOX_PAGE)
                more = page.next is not None
            finally:  # and what was offered meanwhile, and is not the next one, leaves it stale
                self.stale = self.stale or more
            # What was offered while the page was on its way, and was the next one, is there already.
            self.pending += [row for row in page.rows if row.number > self._ledger.inbox_seen]
            self._see(page.rows)
            if not more:
                self.looked_at = now
                self._see_all_before_the_claim()

    def _see(self, rows: Iterable[InboxRow]) -> None:
        for row in rows:
            self._ledger.inbox_seen = max(self._ledger.inbox_seen, row.number)

    def _see_all_before_the_claim(self) -> None:
        """What came before and is not pending was taken in: it must not make the thread due again."""
        self._ledger.inbox_seen = max(self._ledger.inbox_seen, self._claim.thread.inbox)


class LookingIn:
    """Looks, for a worker's runs, whether others have sent something that stops a handler, or taken the
    thread: at once where a hint names it, else of what ran at the last poll already."""

    def __init__(self, store: Store, worker: str, runs: Mapping[Address, Run], poll: float) -> None:
        self._store = store
        self._worker = worker
        self._runs = runs
        self._poll = poll
        self._hinted: set[Address] = set()
        self._told = asyncio.Event()
        self._claims = 0
        """Claims that are under way."""
        self._early: set[Address] = set()
        """What was heard during them of threads that do not run here: a claim may bring them, without what
        came behind its look."""
        self._at_work: dict[Address, object] = {}
        """What ran handlers at the last poll."""

    @contextmanager
    def expecting(self) -> Generator[None]:
        """A claim is under way, until the runs of what it brings are there."""
        self._claims += 1
        try:
            yield
        finally:
            self._claims -= 1
            if not self._claims:
                self._early.clear()

    def came(self, address: Address) -> None:
        """A claim has brought this thread."""
        if address in self._early:
            self.hear(address)

    def hear(self, address: Address) -> None:
        """Something may have come for this thread."""
        run = self._runs.get(address)
        if run is not None:
            run.inbox.told = True
            self._hinted.add(address)
            self._told.set()
        elif self._claims:
            self._early.add(address)

    async def keep(self) -> None:
        """Look for as long as the worker lives, also while it drains."""
        now: Callable[[], float] = asyncio.get_running_loop().time
        polled = now()
        while True:
            with anyio.move_on_after(polled + self._poll - now()):
                await self._told.wait()
            self._told.clear()
            try:
                await self._look_at_hinted()
                if now() >= polled + self._poll:
                    polled = now()
                    await self._look_at_long()
            except StoreError:  # whoever claims says so; the next poll looks again
                await anyio.sleep(self._poll)

    async def _look_at_hinted(self) -> None:
        while self._hinted:
            address = self._hinted.pop()
            if address in self._runs:
                row = await self._read(address)
                if (run := self._runs.get(address)) is not None:
                    await self._compare(run, row)

    async def _look_at_long(self) -> None:
        """A step that is over sooner than two polls costs no query."""
        works = {run.address: run.works for run in self._runs.values() if run.works is not None}
        long = [self._runs[address] for address, work in works.items() if self._at_work.get(address) is work]
        self._at_work = dict(works)
        if not long:
            return
        query = Threads(owner=self._worker, status="running")
        rows: dict[Address, ThreadRow] = {row.address: row async for row in rows_of(self._store, query)}
        for run in long:
            # A store's list of what is owned may be behind; the thread's own row never is.
            row = rows.get(run.address) or await self._read(run.address)
            await self._compare(run, row if row is not None and row.owner == self._worker else None)

    async def _read(self, address: Address) -> ThreadRow | None:
        query = Threads(workspace=address.workspace, thread_id=address.thread_id)
        page = await self._store.page(query, limit=1)
        return page.rows[0] if page.rows else None

    async def _compare(self, run: Run, row: ThreadRow | None) -> None:
        if row is None or row.epoch != run.ledger.epoch:
            run.lose()
        elif row.inbox > run.ledger.inbox_seen:
            seen = Inbox(address=run.address, pending=True, after=run.ledger.inbox_seen)
            try:
                page = await self._store.page(seen)
            except Unreadable:  # the run meets the same once it takes events, and parks
                run.inbox.must_be_read()
                return
            for message in page.rows:
                run.offer(message)
