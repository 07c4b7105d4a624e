"""What a worker claims, and when: by rounds, for as long as it has room."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Protocol

import anyio
from anyio import to_thread
from attrs import frozen

from perdure.machines import Definition
from perdure.stores import (
    Address,
    Claim,
    Claimed,
    ClaimRequest,
    Micros,
    Store,
    StoreError,
    Threads,
    WorkerRow,
    Workers,
)

from ._clock import StoreClock
from ._context import micros
from ._env import Env
from ._look import rows_of
from ._observe import logger
from ._reliable import released
from ._run import CRASHES, Run

CLAIM_BATCH = 200
ALONE_FROM = CRASHES - 2
"""Crashes, as counted before a claim, from which on that claim's run is alone: the next crash, which may be
the last that is allowed, is then its own."""
LOOKS_A_LEASE = 10
"""How often within one lease a worker looks for others whose process has ended."""
LATE_SHARE = 10
"""Of what is long due, a tenth of a worker's room is claimed each tenth of a poll."""
STORE_PAUSE = 1.0
"""Seconds before a store that is out of reach is asked again."""


@frozen(kw_only=True)
class WorkerOptions:
    """How a worker behaves."""

    concurrency: int = 1000
    """Threads that run at once."""
    lease: timedelta = timedelta(seconds=15)
    """How long after its last heartbeat a worker counts as alive."""
    poll: timedelta = timedelta(milliseconds=500)
    """How often the store is asked for what other processes made runnable."""
    grace: timedelta = timedelta(seconds=10)
    """How long running steps may go on once the runtime is left."""
    stall_limit: timedelta = timedelta(seconds=30)
    """How long the event loop may be blocked before this worker's threads are left to others."""


class Holder(Protocol):
    """What claiming needs of the worker that runs what it finds."""

    @property
    def store(self) -> Store: ...
    @property
    def env(self) -> Env: ...
    @property
    def worker(self) -> str: ...
    @property
    def clock(self) -> StoreClock: ...
    @property
    def runs(self) -> Mapping[Address, Run]: ...
    @property
    def draining(self) -> bool: ...
    def lease_holds(self) -> bool: ...
    def expecting(self) -> AbstractContextManager[None]: ...
    def take(self, claim: Claim) -> Run: ...


class LateOnes:
    """Spreads what was due more than a lease ago: after an outage that may be all there is, and what comes
    now is not to wait behind it."""

    def __init__(self, options: WorkerOptions) -> None:
        self._most = max(options.concurrency // LATE_SHARE, 1)
        self._pause = options.poll.total_seconds() / LATE_SHARE
        self._again: float | None = None

    def limit(self) -> int:
        """How many a round may claim now."""
        return 0 if self.left() else self._most

    def left(self) -> float:
        """Seconds until another round may claim some; 0: now."""
        if self._again is None:
            return 0.0
        return max(self._again - asyncio.get_running_loop().time(), 0.0)

    def claimed(self, request: ClaimRequest, claimed: Claimed) -> None:
        """What became of a round: where some were left aside, another follows."""
        if request.late_limit:
            self._again = asyncio.get_running_loop().time() + self._pause if claimed.late else None


class Claiming:
    """Asks the store for work, and gives up what this worker owns without knowing."""

    def __init__(self, holder: Holder, definitions: Mapping[str, Definition], options: WorkerOptions) -> None:
        self._holder = holder
        self._store = holder.store
        self._env = holder.env
        self._definitions = definitions
        self._options = options
        self._nudge = asyncio.Event()
        self._late = LateOnes(options)
        self._next_wake: Micros | None = None
        self._suspects = False
        self._suspect: Run | None = None
        self._rows: dict[str, WorkerRow] = {}
        self._dead: tuple[str, ...] = ()
        self._look_again = 0.0
        self._unsure_until: float | None = None
        """Until when the store may come to hold a claim of this worker's that it does not know of."""

    # --- what the worker tells it -------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """Whether a suspect runs, or waits for this worker to have nothing else to do."""
        return self._suspects or self._suspect is not None

    @property
    def has_others(self) -> bool:
        """Whether other workers seem to live."""
        now = self._env.now()
        rows = (row for row in self._rows.values() if row.id != self._holder.worker)
        return any(row.ended is None and row.beat + row.lease >= now for row in rows)

    def wake(self) -> None:
        """Something may be runnable."""
        self._nudge.set()

    def moved(self, run: Run) -> None:
        """A run has recorded something, or waits from now on."""
        if run is self._suspect and self._progressed(run):
            self._nudge.set()
        wake = run.standing.wake
        if wake is not None and (self._next_wake is None or wake < self._next_wake):
            self._next_wake = wake
            self._nudge.set()

    def left(self, run: Run) -> None:
        """A run is over."""
        suspect = self._suspects or self._suspect is run
        due = run.standing.wake is not None or run.inbox.told
        place = run.definition.at_once is not None
        if place or suspect or due or self._holder.draining:
            self._nudge.set()
        if len(self._holder.runs) == self._options.concurrency - 1:
            self._nudge.set()

    def known(self, worker: str) -> WorkerRow | None:
        """Another worker's row, as it was seen last."""
        return self._rows.get(worker)

    # --- the loop -----------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Claim until the worker drains."""
        while not self._holder.draining:
            self._nudge.clear()
            try:
                if self._unsure_until is not None:
                    asked = asyncio.get_running_loop().time()
                    await self.let_go_of_unknown()
                    if asked >= self._unsure_until:
                        self._unsure_until = None
                busy = await self._claim()
            except StoreError as error:
                logger.warning("worker %s: cannot claim: %s", self._holder.worker, error)
                self.be_unsure()
                await anyio.sleep(STORE_PAUSE)
                continue
            except Exception:
                self.be_unsure()
                raise
            if not busy:
                with anyio.move_on_after(self._pause()):
                    await self._nudge.wait()

    def be_unsure(self) -> None:
        """A claim was dropped, or its reply was lost and it may still land: nobody else would run it."""
        self._unsure_until = asyncio.get_running_loop().time() + self._options.lease.total_seconds()
        self._nudge.set()

    async def let_go_of_unknown(self) -> None:
        """Give up what this worker owns and does not run. A start whose reply is on its way here is then
        fenced off, and claimed again."""
        query = Threads(owner=self._holder.worker, status="running")
        async for row in rows_of(self._store, query):
            run = self._holder.runs.get(row.address)
            if run is None or run.ledger.epoch != row.epoch:
                await self._store.release([released(row)])

    def _pause(self) -> float:
        pause = self._options.poll.total_seconds()
        if self._next_wake is not None:
            pause = min(pause, max((self._next_wake - self._env.now()) / 1e6, 0))
        left = self._late.left()
        return min(pause, left) if left else pause

    async def _claim(self) -> bool:
        """One round; True where there may be more at once."""
        room = min(self._options.concurrency - len(self._holder.runs), CLAIM_BATCH)
        alone = self._suspect is not None and not self._progressed(self._suspect)
        if alone or room <= 0 or not self._holder.lease_holds():
            self._next_wake = None  # nothing can be claimed until a run ends or moves, which gives a nudge
            return False
        self._suspect = None
        if self._suspects and self._holder.runs:
            return await self._look_for_suspects()
        request = await self._request(room, suspects=self._suspects)
        with self._holder.expecting():
            claimed = await self._ask(request)
            self._late.claimed(request, claimed)
            self._next_wake = claimed.next_wake
            for claim in claimed.claims:
                run = self._holder.take(claim)
                run.inbox.looked_at = claimed.now
                if self._suspects:
                    self._suspect = run
        self._suspects = claimed.suspects if not self._suspects else bool(claimed.claims)
        return len(claimed.claims) == room or (self._suspects and not self._holder.runs)

    async def _ask(self, request: ClaimRequest) -> Claimed:
        sent = self._holder.clock.here()
        claimed = await self._store.claim(request)
        # What the store takes for due is due here as well: else it would be given up and claimed in turns.
        self._holder.clock.heard(claimed.now, sent=sent)
        return claimed

    async def look_for_due(self) -> Claimed:
        """Ask what is due, and claim nothing."""
        return await self._ask(await self._request(0, suspects=False))

    async def _look_for_suspects(self) -> bool:
        """While suspects wait for this worker to have nothing else to do, nothing is claimed, for as long as
        there are any: another worker may have taken them."""
        claimed = await self.look_for_due()
        self._next_wake = None
        self._suspects = claimed.suspects
        return not claimed.suspects

    async def _request(self, limit: int, *, suspects: bool) -> ClaimRequest:
        return ClaimRequest(
            worker=self._holder.worker,
            machines={d.name: d.version for d in self._definitions.values()},
            limit=limit,
            dead=await self._dead_workers(),
            suspect_from=ALONE_FROM,
            suspects=suspects,
            at_once={d.name: d.at_once for d in self._definitions.values() if d.at_once is not None},
            late_before=self._env.now() - micros(self._options.lease),
            late_limit=self._late.limit(),
        )

    def _progressed(self, run: Run) -> bool:
        return run.ledger.n > run.claim.thread.n or run.address not in self._holder.runs

    async def _dead_workers(self) -> tuple[str, ...]:
        """Workers of this machine whose process is known to be gone, whatever their lease says."""
        now = asyncio.get_running_loop().time()
        if now < self._look_again:
            return self._dead
        self._look_again = now + self._options.lease.total_seconds() / LOOKS_A_LEASE
        page = await self._store.page(Workers(), limit=100)
        self._rows = {row.id: row for row in page.rows}
        others = [row for row in page.rows if row.id != self._holder.worker and row.ended is None]
        if others:  # it looks at files
            ended = await to_thread.run_sync(lambda: [row.id for row in others if self._env.ended(row)])
            self._dead = tuple(ended)
        else:
            self._dead = ()
        return self._dead
