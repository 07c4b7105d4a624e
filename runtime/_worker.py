"""A worker: claims what its machines have in the store, runs it, and shows that it lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import anyio
from anyio import to_thread
from attrs import define, evolve, field

from perdure.artifacts import ArtifactBackend
from perdure.machines import Definition
from perdure.stores import (
    Address,
    Claim,
    Claimed,
    InboxRow,
    Nudging,
    StaleClaim,
    Store,
    StoreError,
    WorkerRow,
    Workers,
)

from ._claiming import Claiming, WorkerOptions
from ._clock import StoreClock
from ._context import Parking, micros
from ._env import Env
from ._heartbeat import BeatingThread, Heartbeat
from ._inbox import LookingIn
from ._journal import describe_error
from ._observe import Observers, logger
from ._permits import Permits, limits_of
from ._progress import Progress
from ._reliable import page_of, until_known
from ._run import Change, Left, Run
from ._schemas import row_of
from ._spill import bare
from ._stall import LoopWatch
from ._supervise import Supervisor, cancel
from ._turns import Turns
from ._wakeup import Bell, Ear, hear_nudge, open_ear

SOME = 3
"""Handlers that are named where it is not known which one blocks the loop."""
ABORT_GRACE = 5.0
"""Seconds that aborted calls get to end, after a drain's grace."""


@define(eq=False)
class Watch:
    """Somebody waits for a thread."""

    changed: asyncio.Event = field(factory=asyncio.Event)
    left: Left | None = None
    """How a run of this process left the thread, once one has brought it to its end or parked it."""


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
        *,
        beside: Callable[[], Store] | None = None,
        on_stall: Callable[[str], None] | None = None,
    ) -> None:
        self.store = store
        self.artifacts = artifacts
        self.clock = StoreClock(env.now)
        # What one worker records, others compare with: it goes by the store's clock.
        self.env = evolve(env, now=self.clock.now, unsure=lambda: self.clock.width // 2)
        self.deps = deps
        self.worker = env.token(12).hex()
        self.observers = observers
        self.memory_turns = Turns()
        self.runs: dict[Address, Run] = {}
        self.draining = False
        self.claiming = Claiming(self, definitions, options)
        self.permits = Permits(
            store, self.worker, limits_of(definitions), self, lease=options.lease, poll=options.poll
        )
        self.supervisor = Supervisor(self.worker)
        self._looking = LookingIn(store, self.worker, self.runs, options.poll.total_seconds())
        self.bell = Bell(store, self.env)
        self._ear: Ear | None = None
        limit = options.stall_limit.total_seconds()
        self.watch = LoopWatch(self.worker, limit, self._describe, on_stall)
        self._beside = beside
        """Opens the store a second time, where it can be."""
        self._watched = beside is not None or on_stall is not None
        self._definitions = definitions
        self.options = options
        self._tasks: dict[asyncio.Task[Any], Run] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.released = 0
        """Threads that were given up for others to go on with."""
        self._starts = 0
        """Threads that clients in this process are starting."""
        self._started = asyncio.Event()
        self._started.set()
        self._watchers: dict[Address, set[Watch]] = {}

    # --- the process ------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Show that the process lives, then go on with whatever is runnable."""
        self._mark = await to_thread.run_sync(self.env.mark, self.worker)
        self._ear = await to_thread.run_sync(open_ear, self._mark.path)
        if self._ear is not None:
            self._ear.listen(self._heard)
        now = self.env.now()
        row = WorkerRow(
            id=self.worker,
            host=self._mark.host,
            pid=os.getpid(),
            lock=self._mark.path,
            lease=micros(self.options.lease),
            started=now,
            beat=now,
            hint="" if self._ear is None else self._ear.hint,
        )
        self.heartbeat = Heartbeat(
            self.store,
            self.clock,
            row,
            self.options.lease,
            time=asyncio.get_running_loop().time,
            stalled=self.watch.stalled,
        )
        await self.heartbeat.begin([row_of(plan, now) for plan in self._definitions.values()])
        self.supervise("claiming", self.claiming.keep)
        self.supervise("heartbeat", self._beat)
        if self.permits.wanted:
            self.supervise("limits", self.permits.keep)
        self.supervise("looking in", self._looking.keep)
        if isinstance(store := bare(self.store), Nudging):
            self.supervise("listening", partial(store.listen, self._nudged))
        if self._watched:
            self.watch.begin()
            self.supervise("ticking", self.watch.tick)

    async def _beat(self) -> None:
        if self._beside is None:
            await self.heartbeat.keep()
        else:
            await BeatingThread(self.heartbeat, self._beside).keep()

    def _describe(self, task: asyncio.Task[Any] | None) -> str:
        """What a task of the loop does, in words for whoever has to mend it."""
        run = None if task is None else self._tasks.get(task)
        if run is not None:
            where = f"thread {run.address.thread_id!r}, state {run.standing.state!r}"
            return f"machine {run.definition.name!r}, {where}"
        name = "code outside of any task" if task is None else task.get_name()
        if not name.startswith("Task-"):
            return name
        busy = [run for run in list(self.runs.values()) if run.works is not None]
        at_work = ", ".join(f"{run.definition.name} {run.address.thread_id!r}" for run in busy[:SOME])
        return f"{name}; handlers at work: {at_work or 'none'}"

    @property
    def machines(self) -> Sequence[str]:
        """Names of what it can run."""
        return list(self._definitions)

    @property
    def running(self) -> int:
        """How many threads it runs now."""
        return len(self.runs)

    async def look_for_due(self) -> Claimed:
        """Ask the store what is due, and claim nothing."""
        return await self.claiming.look_for_due()

    def supervise(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run an inner loop for as long as this worker lives; see ``Supervisor.supervise``."""
        self.supervisor.supervise(name, work)

    async def end(self) -> None:
        """Drain: no new claims, running steps go on until the grace ends, then calls are aborted."""
        self.draining = True
        self.supervisor.drain()
        self.claiming.wake()
        for run in self.runs.values():
            run.drain()
        with anyio.move_on_after(self.options.grace.total_seconds()):
            await self.supervisor.ended("claiming")  # what a claim on its way brings is given up again
            await self._started.wait()  # and so is what a start brings
            await self._idle.wait()
        for run in self.runs.values():
            run.abandon()
        with anyio.move_on_after(ABORT_GRACE):
            await self._idle.wait()
        await cancel(self._tasks)
        await self.supervisor.end()
        with anyio.move_on_after(ABORT_GRACE):
            await until_known(self.claiming.let_go_of_unknown)
            await self.bell.ring(None, but=self.worker)  # others go on with what was given up
            await self.heartbeat.end()
        self.watch.end()
        if self._ear is not None:
            self._ear.leave()
            await to_thread.run_sync(self._ear.remove)
        await to_thread.run_sync(self._mark.remove)

    # --- running ------------------------------------------------------------------------------------

    def take(self, claim: Claim, progress: Progress | None = None) -> Run:
        """Go on with a claimed thread."""
        definition = self._definitions[claim.thread.machine]
        run = Run(self, definition, claim)
        if progress is not None:
            run.begin(progress)
        if self.draining:
            run.drain()
        self.runs[run.address] = run
        self._looking.came(run.address)
        self._idle.clear()
        task = asyncio.get_running_loop().create_task(self._drive(run))
        self._tasks[task] = run
        task.add_done_callback(self._tasks.pop)
        return run

    async def _drive(self, run: Run) -> None:
        try:
            change = await run.go_on()
            if change == "lost":
                logger.warning("thread %r: the claim was lost", run.address.thread_id)
                self.be_unsure()
            elif change == "drained":
                await self.bell.ring(None, but=self.worker)  # others go on with it
        except Exception as error:
            await self._set_aside(run, error)
        finally:
            run.ledger.close()
            if self.runs.get(run.address) is run:
                del self.runs[run.address]
            if not self.runs:
                self._idle.set()
            self.claiming.left(run)

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
        return self.heartbeat.lease_holds()

    @property
    def lapses(self) -> int:
        return self.heartbeat.lapses

    @property
    def has_others(self) -> bool:
        return self.claiming.has_others

    async def renew_lease(self) -> None:
        await self.heartbeat.renew()

    async def worker_row(self, worker: str) -> WorkerRow | None:
        known = self.claiming.known(worker)
        if known is not None:
            return known
        page = await page_of(self.store, Workers(id=worker), limit=1)
        return page.rows[0] if page.rows else None

    def changed(self, run: Run, change: Change) -> None:
        self.claiming.moved(run)
        self.released += change == "drained"
        if change in ("waiting", "parked", "ended"):
            for watch in self._watchers.get(run.address, ()):
                watch.left = run.left
                watch.changed.set()

    # --- what clients in this process ask -----------------------------------------------------------

    @property
    def takes_new(self) -> bool:
        """Whether a thread started here may be run here at once."""
        alone = self.claiming.alone
        return not self.draining and not alone and len(self.runs) < self.options.concurrency

    def expecting(self) -> AbstractContextManager[None]:
        """See ``LookingIn.expecting``."""
        return self._looking.expecting()

    def be_unsure(self) -> None:
        """See ``Claiming.be_unsure``."""
        self.claiming.be_unsure()

    @contextlib.contextmanager
    def starting(self) -> Generator[None]:
        """A start that claims its thread for this worker is under way."""
        self._starts += 1
        self._started.clear()
        try:
            with self._looking.expecting():
                yield
        finally:
            self._starts -= 1
            if not self._starts:
                self._started.set()

    def offer(self, address: Address, row: InboxRow) -> bool:
        """A signal was accepted by this process: its thread is told, or claimed. False where this worker
        neither runs it nor has room for it."""
        run = self.runs.get(address)
        if run is None:
            self._looking.hear(address)
        else:
            run.offer(row)
        self.claiming.wake()
        return run is not None or self.takes_new

    def _heard(self, address: Address | None) -> None:
        """Another process says that something has come."""
        if address is not None:
            self._looking.hear(address)
        self.claiming.wake()

    def _nudged(self, said: str) -> None:
        hear_nudge(said, self.worker, self._heard)

    def fenced(self, address: Address) -> None:
        """A thread was taken from whoever had it: a run of it here ends at once."""
        run = self.runs.get(address)
        if run is not None:
            run.lose()
        for watch in self._watchers.get(address, ()):
            watch.changed.set()

    def wake(self) -> None:
        """Something may be runnable."""
        self.claiming.wake()

    @contextlib.contextmanager
    def watching(self, address: Address) -> Generator[Watch]:
        """Hear when the thread waits, parks or ends in this process; nothing is kept afterwards."""
        watch = Watch()
        self._watchers.setdefault(address, set()).add(watch)
        try:
            yield watch
        finally:
            self._watchers[address].discard(watch)
            if not self._watchers[address]:
                del self._watchers[address]
