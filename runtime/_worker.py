"""A worker: claims what its machines have in the store, runs it, and shows that it lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Generator, Mapping
from datetime import timedelta
from typing import Any

import anyio
from anyio import to_thread
from attrs import evolve, frozen

from perdure.artifacts import ArtifactBackend
from perdure.machines import Definition
from perdure.stores import (
    Address,
    Claim,
    Claimed,
    ClaimRequest,
    Inbox,
    InboxRow,
    Micros,
    StaleClaim,
    Store,
    StoreError,
    ThreadRow,
    Threads,
    WorkerRow,
    Workers,
)

from ._context import Parking, micros
from ._env import Env
from ._journal import describe_error
from ._look import rows_of
from ._observe import Observers, logger
from ._progress import Progress
from ._reliable import page_of, released, until_known
from ._run import CRASHES, Change, Run
from ._turns import Turns

CLAIM_BATCH = 200
ALONE_FROM = CRASHES - 2
"""Crashes, as counted before a claim, from which on that claim's run is alone: the next crash, which may be
the last that is allowed, is then its own."""
ABORT_GRACE = 5.0
"""Seconds that aborted calls get to end, after a drain's grace."""
LOOKS_A_LEASE = 10
"""How often within one lease a worker looks for others whose process has ended."""
FAR = 10**15
"""Microseconds by which no two clocks differ."""
CLOSE_ENOUGH = 200_000
"""Microseconds within which a worker knows the store's clock before it begins, unless the store is slow."""
FIRST_BEATS = 3
"""Heartbeats that it takes for that at the most."""
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


@frozen
class Ahead:
    """By how much the store's clock may be ahead of this process's, as its answers bound it."""

    least: Micros = -FAR
    most: Micros = FAR

    @property
    def width(self) -> Micros:
        return self.most - self.least

    @property
    def middle(self) -> Micros:
        return (self.least + self.most) // 2

    def narrowed(self, least: Micros, most: Micros) -> Ahead:
        """With another answer: one that took long bounds little, and spoils nothing. Where the two disagree,
        a clock was set, and the newer one holds."""
        both = Ahead(max(self.least, least), min(self.most, most))
        return both if both.least <= both.most else Ahead(least, most)


class Worker:
    """Implements the host that runs need."""

    def __init__(
        self,
        store: Store,
        artifacts: ArtifactBackend,
        env: Env,
        deps: Any,
        definitions: Mapping[str, Definition],
        options: WorkerOptions,
        observers: Observers,
    ) -> None:
        self.store = store
        self.artifacts = artifacts
        self.env = evolve(env, now=self.now, unsure=lambda: self._ahead.width // 2)
        self.deps = deps
        self.worker = env.token(12).hex()
        self.observers = observers
        self.memory_turns = Turns()
        self._clock = env.now
        self._ahead = Ahead()
        """How far the store's clock is ahead of this process's."""
        self._definitions = definitions
        self._options = options
        self._runs: dict[Address, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: set[asyncio.Task[None]] = set()
        self._nudge = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._starts = 0
        """Threads that clients in this process are starting."""
        self._started = asyncio.Event()
        self._started.set()
        self._draining = False
        self._lease_until = 0.0
        self._next_wake: Micros | None = None
        self._suspects = False
        self._suspect: Run | None = None
        self._rows: dict[str, WorkerRow] = {}
        self._dead: tuple[str, ...] = ()
        self._look_again = 0.0
        self._unsure_until: float | None = None
        """Until when the store may come to hold a claim of this worker's that it does not know of."""
        self._watchers: dict[Address, set[asyncio.Event]] = {}
        self._at_work: dict[Address, object] = {}
        """What ran handlers at the last look."""
        self._look_in_at = 0.0

    # --- the process ------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Show that the process lives, then go on with whatever is runnable."""
        self._mark = await to_thread.run_sync(self.env.mark, self.worker)
        now = self.env.now()
        self._row = WorkerRow(
            id=self.worker,
            host=self._mark.host,
            pid=os.getpid(),
            lock=self._mark.path,
            lease=micros(self._options.lease),
            started=now,
            beat=now,
        )
        for _ in range(FIRST_BEATS):
            await self._beat()
            if self._ahead.width <= CLOSE_ENOUGH:
                break
        loop = asyncio.get_running_loop()
        self._claiming = loop.create_task(self._claim_on())
        self._loops.update((self._claiming, loop.create_task(self._beat_on())))

    async def end(self) -> None:
        """Drain: no new claims, running steps go on until the grace ends, then calls are aborted."""
        self._draining = True
        self._nudge.set()
        for run in self._runs.values():
            run.drain()
        with anyio.move_on_after(self._options.grace.total_seconds()):
            await asyncio.wait([self._claiming])  # what a claim on its way brings is given up again
            await self._started.wait()  # and so is what a start brings
            await self._idle.wait()
        for run in self._runs.values():
            run.abandon()
        with anyio.move_on_after(ABORT_GRACE):
            await self._idle.wait()
        await _cancel([*self._tasks, *self._loops])
        with anyio.move_on_after(ABORT_GRACE):
            await until_known(self._let_go_of_unknown)
            row = evolve(self._row, ended=self.env.now())
            await until_known(lambda: self.store.beat(row))
        await to_thread.run_sync(self._mark.remove)

    def now(self) -> Micros:
        """The store's clock, as well as it is known here: what one worker records, others compare with."""
        return self._clock() + self._ahead.middle

    async def _beat(self) -> None:
        before, sent = asyncio.get_running_loop().time(), self._clock()
        at = await self.store.beat(self._row)
        self._ahead = self._ahead.narrowed(at - self._clock(), at - sent)
        self._lease_until = before + self._options.lease.total_seconds()

    async def _beat_on(self) -> None:
        while True:
            await anyio.sleep(self._options.lease.total_seconds() / 3)
            try:
                await self._beat()
            except StoreError as error:
                logger.warning("worker %s: heartbeat failed: %s", self.worker, error)
            except Exception:  # without heartbeats others take its threads over
                logger.exception("worker %s: heartbeat failed", self.worker)

    # --- claiming ---------------------------------------------------------------------------------

    async def _claim_on(self) -> None:
        while not self._draining:
            self._nudge.clear()
            try:
                if self._unsure_until is not None:
                    asked = asyncio.get_running_loop().time()
                    await self._let_go_of_unknown()
                    if asked >= self._unsure_until:
                        self._unsure_until = None
                busy = await self._claim()
                await self._look_in()
            except StoreError as error:
                logger.warning("worker %s: cannot claim: %s", self.worker, error)
                self.be_unsure()
                await anyio.sleep(STORE_PAUSE)
                continue
            except Exception:  # a worker that claims nothing any more would look alive
                logger.exception("worker %s: claiming failed, and is tried again", self.worker)
                self.be_unsure()
                await anyio.sleep(STORE_PAUSE)
                continue
            if not busy:
                with anyio.move_on_after(self._pause()):
                    await self._nudge.wait()

    async def _look_in(self) -> None:
        """Once a poll: of handlers that ran at the last look already, whether others have sent something
        that stops them, or taken their thread."""
        now = asyncio.get_running_loop().time()
        if now < self._look_in_at:
            return
        self._look_in_at = now + self._options.poll.total_seconds()
        works = {run.address: run.works for run in self._runs.values() if run.works is not None}
        long = [self._runs[address] for address, work in works.items() if self._at_work.get(address) is work]
        self._at_work = dict(works)
        if not long:
            return
        query = Threads(owner=self.worker, status="running")
        rows: dict[Address, ThreadRow] = {row.address: row async for row in rows_of(self.store, query)}
        for run in long:
            row = rows.get(run.address)
            if row is None or row.epoch != run.ledger.epoch:
                run.lose()
            elif row.inbox > run.ledger.inbox_seen:
                seen = Inbox(address=run.address, pending=True, after=run.ledger.inbox_seen)
                for message in (await self.store.page(seen)).rows:
                    run.offer(message)

    def be_unsure(self) -> None:
        """A claim was dropped, or its reply was lost and it may still land: nobody else would run it."""
        self._unsure_until = asyncio.get_running_loop().time() + self._options.lease.total_seconds()
        self._nudge.set()

    async def _let_go_of_unknown(self) -> None:
        """Give up what this worker owns and does not run. A start whose reply is on its way here is then
        fenced off, and claimed again."""
        query = Threads(owner=self.worker, status="running")
        async for row in rows_of(self.store, query):
            run = self._runs.get(row.address)
            if run is None or run.ledger.epoch != row.epoch:
                await self.store.release([released(row)])

    def _pause(self) -> float:
        pause = self._options.poll.total_seconds()
        if self._next_wake is not None:
            pause = min(pause, max((self._next_wake - self.env.now()) / 1e6, 0))
        return pause

    async def _claim(self) -> bool:
        """One round; True where there may be more at once."""
        room = min(self._options.concurrency - len(self._runs), CLAIM_BATCH)
        alone = self._suspect is not None and not self._progressed(self._suspect)
        if alone or room <= 0 or not self.lease_holds():
            self._next_wake = None  # nothing can be claimed until a run ends or moves, which gives a nudge
            return False
        self._suspect = None
        if self._suspects and self._runs:
            return await self._look_for_suspects()
        claimed = await self._ask(await self._request(room, suspects=self._suspects))
        self._next_wake = claimed.next_wake
        for claim in claimed.claims:
            run = self.take(claim)
            run.looked_at = claimed.now
            if self._suspects:
                self._suspect = run
        self._suspects = claimed.suspects if not self._suspects else bool(claimed.claims)
        return len(claimed.claims) == room or (self._suspects and not self._runs)

    async def _ask(self, request: ClaimRequest) -> Claimed:
        sent = self._clock()
        claimed = await self.store.claim(request)
        # What the store takes for due is due here as well: else it would be given up and claimed in turns.
        self._ahead = self._ahead.narrowed(claimed.now - self._clock(), claimed.now - sent)
        return claimed

    async def _look_for_suspects(self) -> bool:
        """While suspects wait for this worker to have nothing else to do, nothing is claimed, for as long as
        there are any: another worker may have taken them."""
        claimed = await self._ask(await self._request(0, suspects=False))
        self._next_wake = None
        self._suspects = claimed.suspects
        return not claimed.suspects

    async def _request(self, limit: int, *, suspects: bool) -> ClaimRequest:
        return ClaimRequest(
            worker=self.worker,
            machines={d.name: d.version for d in self._definitions.values()},
            limit=limit,
            dead=await self._dead_workers(),
            suspect_from=ALONE_FROM,
            suspects=suspects,
        )

    def _progressed(self, run: Run) -> bool:
        return run.ledger.n > run.claim.thread.n or run.address not in self._runs

    async def _dead_workers(self) -> tuple[str, ...]:
        """Workers of this machine whose process is known to be gone, whatever their lease says."""
        now = asyncio.get_running_loop().time()
        if now < self._look_again:
            return self._dead
        self._look_again = now + self._options.lease.total_seconds() / LOOKS_A_LEASE
        page = await self.store.page(Workers(), limit=100)
        self._rows = {row.id: row for row in page.rows}
        others = [row for row in page.rows if row.id != self.worker and row.ended is None]
        if others:  # it looks at files
            ended = await to_thread.run_sync(lambda: [row.id for row in others if self.env.ended(row)])
            self._dead = tuple(ended)
        else:
            self._dead = ()
        return self._dead

    def take(self, claim: Claim, progress: Progress | None = None) -> Run:
        """Go on with a claimed thread."""
        definition = self._definitions[claim.thread.machine]
        run = Run(self, definition, claim)
        if progress is not None:
            run.begin(progress)
        if self._draining:
            run.drain()
        self._runs[run.address] = run
        self._idle.clear()
        task = asyncio.get_running_loop().create_task(self._drive(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    async def _drive(self, run: Run) -> None:
        try:
            change = await run.go_on()
            if change == "lost":
                logger.warning("thread %r: the claim was lost", run.address.thread_id)
                self.be_unsure()
        except Exception as error:
            await self._set_aside(run, error)
        finally:
            run.ledger.close()
            if self._runs.get(run.address) is run:
                del self._runs[run.address]
            if not self._runs:
                self._idle.set()
            if self._suspects or self._suspect is run or run.standing.wake is not None or self._draining:
                self._nudge.set()
            if len(self._runs) == self._options.concurrency - 1:
                self._nudge.set()

    async def _set_aside(self, run: Run, error: Exception) -> None:
        """An error of the engine's own: the thread is parked rather than run again and again."""
        logger.exception("thread %r: the runtime itself failed", run.address.thread_id, exc_info=error)
        said = describe_error(error)
        try:
            with contextlib.suppress(StaleClaim, StoreError):
                await run.park(
                    Parking("failed", f"the runtime itself failed: {said['type']}: {said['message']}")
                )
        except Exception:  # its record is damaged so that nothing can follow on it
            logger.exception("thread %r: it cannot be parked either", run.address.thread_id)

    # --- what runs ask of their host ----------------------------------------------------------------

    def lease_holds(self) -> bool:
        return asyncio.get_running_loop().time() < self._lease_until

    async def renew_lease(self) -> None:
        """Show at once that the process lives, where its heartbeat came too late."""
        try:
            await self._beat()
        except StoreError as error:
            logger.warning("worker %s: heartbeat failed: %s", self.worker, error)

    async def worker_row(self, worker: str) -> WorkerRow | None:
        known = self._rows.get(worker)
        if known is not None:
            return known
        page = await page_of(self.store, Workers(id=worker), limit=1)
        return page.rows[0] if page.rows else None

    def changed(self, run: Run, change: Change) -> None:
        if run is self._suspect and self._progressed(run):
            self._nudge.set()
        wake = run.standing.wake
        if wake is not None and (self._next_wake is None or wake < self._next_wake):
            self._next_wake = wake
            self._nudge.set()
        if change in ("waiting", "parked", "ended"):
            for watcher in self._watchers.get(run.address, ()):
                watcher.set()

    # --- what clients in this process ask -----------------------------------------------------------

    @property
    def takes_new(self) -> bool:
        """Whether a thread started here may be run here at once."""
        alone = self._suspects or self._suspect is not None
        return not self._draining and not alone and len(self._runs) < self._options.concurrency

    @contextlib.contextmanager
    def starting(self) -> Generator[None]:
        """A start that claims its thread for this worker is under way."""
        self._starts += 1
        self._started.clear()
        try:
            yield
        finally:
            self._starts -= 1
            if not self._starts:
                self._started.set()

    def offer(self, address: Address, row: InboxRow) -> None:
        """A signal was accepted by this process: its thread is told, or claimed."""
        run = self._runs.get(address)
        if run is not None:
            run.offer(row)
        self._nudge.set()

    def fenced(self, address: Address) -> None:
        """A thread was taken from whoever had it: a run of it here ends at once."""
        run = self._runs.get(address)
        if run is not None:
            run.lose()
        for watcher in self._watchers.get(address, ()):
            watcher.set()

    def wake(self) -> None:
        """Something may be runnable."""
        self._nudge.set()

    @contextlib.contextmanager
    def watching(self, address: Address) -> Generator[asyncio.Event]:
        """An event that is set when the thread waits, parks or ends in this process; nothing is kept
        afterwards."""
        event = asyncio.Event()
        self._watchers.setdefault(address, set()).add(event)
        try:
            yield event
        finally:
            self._watchers[address].discard(event)
            if not self._watchers[address]:
                del self._watchers[address]


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
