"""One claimed thread, from its claim to the commit that gives the claim up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, Protocol

import anyio
from attrs import evolve, frozen

from perdure.artifacts import ArtifactBackend
from perdure.machines import Definition, Unreadable
from perdure.stores import (
    Address,
    Claim,
    InboxRow,
    Micros,
    Release,
    StaleClaim,
    Standing,
    Status,
    Store,
    WorkerRow,
)

from ._cancel import doubts_in, end_in_place
from ._context import LeaseLost, Parking, Visit
from ._effects import settle_doubts, unlisted
from ._env import Env
from ._inbox import RunInbox
from ._incoming import chosen, first_accepted, spent
from ._journal import Entry
from ._ledger import Conclusion, Ledger
from ._observe import Observers, observation_of
from ._permits import Permits
from ._progress import Progress, load
from ._reliable import until_known
from ._reserved import CANCEL, TERMINATE
from ._spill import whole
from ._spilled import has_spilled
from ._transition import Transition, commit_transition, drop_artifacts
from ._turns import Turns
from ._visit import VisitRunner

INBOX_POLL = 0.5
"""Seconds between looks at the inbox of an interruptible state, for signals that other processes accepted."""
CRASHES = 3
"""Workers that died on a thread without its recording anything, after which it is parked."""

Change = Literal["transition", "waiting", "parked", "ended", "lost", "drained"]


@frozen(kw_only=True)
class Left:
    """How a run left a thread that is over, as its last commit wrote it."""

    machine: str
    standing: Standing
    data: Any


class Host(Protocol):
    """What a run needs of the worker that it runs in."""

    store: Store
    artifacts: ArtifactBackend
    env: Env
    deps: Any
    worker: str
    observers: Observers
    memory_turns: Turns
    permits: Permits

    def lease_holds(self) -> bool: ...
    async def renew_lease(self) -> None: ...
    def worker_row(self, worker: str) -> Awaitable[WorkerRow | None]: ...
    def changed(self, run: Run, change: Change) -> None: ...


class Run:
    """Goes on with one thread for as long as there is something to do."""

    def __init__(self, host: Host, definition: Definition, claim: Claim) -> None:
        self.host = host
        self.definition = definition
        self.claim = claim
        self.ledger = Ledger(host.store, host.env, claim.thread, host.worker, host.observers, definition)
        self.draining = False
        self.inbox = RunInbox(host.store, host.env, claim, self.ledger)
        self._progress: Progress | None = None
        self._runner: VisitRunner | None = None
        self._ended_seen: dict[str, Micros] = {}

    @property
    def address(self) -> Address:
        return self.claim.thread.address

    @property
    def standing(self) -> Standing:
        return self.ledger.standing

    # --- from outside -----------------------------------------------------------------------------

    def offer(self, row: InboxRow) -> None:
        """A message for this thread was accepted."""
        self.inbox.offer(row)
        if self._runner is not None and self._must_stop(self._runner, row):
            self._runner.preempt()

    def _must_stop(self, runner: VisitRunner, row: InboxRow) -> bool:
        """Whether a message ends the handler's work, whatever the state is like otherwise."""
        if row.event == TERMINATE:
            runner.abandon()
            return False
        if row.event != CANCEL:
            return False
        try:
            return first_accepted(runner.visit, runner.progress, [row], every=False) is not None
        except (Parking, Unreadable):
            return True  # the loop meets the same again, and parks

    @property
    def left(self) -> Left | None:
        """How it left the thread; None: it did not bring it to an end or a park, or never read its data."""
        if self.standing.status not in ("parked", "ended") or self._progress is None:
            return None
        data = self.definition.data.shown(self._progress.data)
        return Left(machine=self.claim.thread.machine, standing=self.standing, data=data)

    @property
    def works(self) -> VisitRunner | None:
        """What runs handlers now, if anything does."""
        return self._runner

    def lose(self) -> None:
        """Somebody else has the thread: nothing of this run is written any more, and its calls end."""
        self.ledger.lost = True
        if self._runner is not None:
            self._runner.lose()

    def drain(self) -> None:
        """Stop at the next checkpoint."""
        self.draining = True

    def abandon(self) -> None:
        """Stop now: calls are aborted, their effects stay in doubt."""
        self.draining = True
        if self._runner is not None:
            self._runner.abandon()

    # --- the loop ---------------------------------------------------------------------------------

    async def go_on(self) -> Change:
        """Run until the thread waits, parks, ends, or is lost to another claim."""
        try:
            return await self._go_on()
        except (StaleClaim, LeaseLost):
            return "lost"

    async def _go_on(self) -> Change:
        try:
            if self.inbox.terminated:
                return await self._end("terminated")
            self._refuse_poison()
            if has_spilled(self.claim):
                await self._read_bodies()
            if self._progress is None:
                self._progress = await load(self.host.store, self.definition, self.claim)
            self.ledger.checkpoint_version = self._progress.version
            self._refuse_removed(self._progress)
            self._note_resumption(self._progress)
            while True:
                left = await self._visit(self._progress)
                if left is not None:
                    return left
        except Parking as parking:
            return await self.park(parking)
        except Unreadable as error:
            return await self.park(Parking("unreadable", str(error)))

    async def _read_bodies(self) -> None:
        """What a claim leaves outside of the store is read by the run, and only its own thread parks where
        that is gone."""
        self.claim = await until_known(lambda: whole(self.host.store, self.claim))
        self.inbox.replace(self.claim.inbox)

    def begin(self, progress: Progress) -> None:
        """A thread that this process has just created need not be read back."""
        self._progress = progress

    async def _visit(self, progress: Progress) -> Change | None:
        visit = self._visit_of(progress)
        if visit.state.final:
            return "ended"
        if self._may_take_events(visit, progress):
            if await self._take_event(visit, progress):
                return self._after_transition()
            if self.inbox.terminated:
                return await self._end("terminated")
        if visit.state.waiting or (visit.book.retry_at and self._retries_later(visit)):
            return await self._wait(visit, progress)
        if self.draining:
            return await self._release_running()
        if visit.state.budgets and await self._spend(visit, progress):
            return self._after_transition()
        return await self._run_handlers(visit, progress)

    async def _run_handlers(self, visit: Visit, progress: Progress) -> Change | None:
        runner = self._runner = VisitRunner(visit, progress)
        watcher: asyncio.Task[None] | None = None
        if visit.state.interruptible:
            watcher = asyncio.get_running_loop().create_task(self._watch(visit, progress, runner))
        try:
            left = await runner.run()
        finally:
            self._runner = None
            if watcher is not None:
                watcher.cancel()
                await asyncio.wait([watcher])
        if left == "moved":
            self._progress = runner.progress
            return self._after_transition()
        if left == "drained" and not self.inbox.terminated:
            return await self._release_running()
        return None

    async def _watch(self, visit: Visit, progress: Progress, runner: VisitRunner) -> None:
        """Preempt an interruptible state when a timeout or a signal that it accepts has come."""
        while True:
            self.inbox.offered.clear()
            try:
                await self.inbox.refresh()
                if self.inbox.terminated:
                    runner.abandon()
                    return
                now = self.host.env.now()
                if chosen(visit, progress, self.inbox.pending, now, every=True) is not None:
                    break
            except (Parking, Unreadable):
                break  # the loop meets the same again, and parks
            due = min((d for d in progress.clocks.due.values() if d > now), default=None)
            left = INBOX_POLL if due is None else (due - now) / 1e6
            with anyio.move_on_after(min(INBOX_POLL, left)):
                await self.inbox.offered.wait()
            self.inbox.stale = True
        runner.preempt()

    def _after_transition(self) -> Change | None:
        standing = self.standing
        if standing.status == "running":
            self.host.changed(self, "transition")
            return None
        change: Change = "ended" if standing.status == "ended" else "waiting"
        self.host.changed(self, change)
        return change

    def _visit_of(self, progress: Progress) -> Visit:
        host = self.host
        self.ledger.effects = progress.book.effects
        state = self.definition.state_of(self.standing.state)
        assert state is not None  # or it could not be loaded
        row = self.claim.thread
        return Visit(
            store=host.store,
            artifacts=host.artifacts,
            ledger=self.ledger,
            book=progress.book,
            env=host.env,
            definition=self.definition,
            state=state,
            row=row,
            deps=host.deps,
            lease_holds=host.lease_holds,
            renew_lease=host.renew_lease,
            worker_of=host.worker_row,
            report=self._report,
            has_pending=lambda: self.inbox.something,
            memory_turns=host.memory_turns,
            permits=host.permits,
            ended_seen=self._ended_seen,
        )

    def _report(self, progress: Mapping[str, object]) -> None:
        row, standing = self.claim.thread, self.standing
        seen = observation_of("record", row, standing, None, (), {})
        self.host.observers.tell(evolve(seen, kind="report", progress=dict(progress)))

    # --- resuming ---------------------------------------------------------------------------------

    def _refuse_poison(self) -> None:
        crashes = self.claim.thread.crashes
        if crashes >= CRASHES:
            thread_id = self.address.thread_id
            raise Parking(
                "poison",
                f"thread {thread_id!r}: {crashes} workers died in state {self.standing.state!r} without "
                f"its recording anything; mend it, then `perdure retry {thread_id} --runtime MODULE:NAME`",
            )

    def _refuse_removed(self, progress: Progress) -> None:
        for record in progress.book.doubts():
            if record.call in self.definition.removed_calls:
                raise unlisted(self.definition, self.address.thread_id, record)

    def _note_resumption(self, progress: Progress) -> None:
        state = self.definition.state_of(self.standing.state)
        taken = self.claim.taken_from
        if state is None or not state.handlers or (taken is None and not progress.book.effects):
            return
        entry: Entry = {"k": "resumed", "worker": self.host.worker, "at": self.host.env.now()}
        if taken is not None:
            entry["from"] = taken
        self.ledger.note(entry)

    # --- waiting ----------------------------------------------------------------------------------

    def _may_take_events(self, visit: Visit, progress: Progress) -> bool:
        """Whether it is worth looking: signals are, where the state takes them now; a cancel always is."""
        return self._takes_all(visit) or self.inbox.something or bool(progress.clocks.due)

    def _takes_all(self, visit: Visit) -> bool:
        return visit.state.waiting or visit.state.interruptible or bool(visit.book.failed)

    def _retries_later(self, visit: Visit) -> bool:
        now, lanes = self.host.env.now(), [h.lane for h in visit.unfinished()]
        return bool(lanes) and all(visit.book.retry_at.get(lane, 0) > now for lane in lanes)

    async def _wait(self, visit: Visit, progress: Progress) -> Change | None:
        await self.ledger.flush()
        await self.inbox.refresh()
        # One moment, and no await until the release is on its way: what came later and nobody has looked at
        # must wake the thread again.
        now = self.host.env.now()
        if self.inbox.terminated or chosen(visit, progress, self.inbox.pending, now, every=True) is not None:
            return None
        wake = self._next_due(visit, progress, now)
        self.ledger.standing = evolve(self.standing, status="waiting", wake=wake)
        await self._release("waiting", wake)
        self.host.changed(self, "waiting")
        return "waiting"

    def _next_due(self, visit: Visit, progress: Progress, now: Micros) -> Micros | None:
        times = [due for due in progress.clocks.due.values() if due > now]
        retry_at = visit.book.retry_at
        times += [retry_at[h.lane] for h in visit.unfinished() if h.lane in retry_at]
        return min(times, default=None)

    async def _release_running(self) -> Change:
        await self.ledger.flush()
        await self._release("running", None)
        self.host.changed(self, "drained")
        return "drained"

    async def _release(self, status: Status, wake: Micros | None) -> None:
        release = Release(
            address=self.address,
            incarnation=self.claim.thread.incarnation,
            epoch=self.ledger.epoch,
            status=status,
            wake=wake,
            inbox_seen=self.inbox.seen_by(self.definition.version),
        )
        await until_known(lambda: self.host.store.release([release]))

    # --- events from outside ----------------------------------------------------------------------

    async def _take_event(self, visit: Visit, progress: Progress) -> bool:
        await self.inbox.refresh()
        now, every = self.host.env.now(), self._takes_all(visit)
        event = chosen(visit, progress, self.inbox.pending, now, every=every)
        if event is not None and event.signal is None and self.inbox.looked_at < event.at:
            self.inbox.stale = True  # what came before the timer was due goes first, whoever accepted it
            await self.inbox.refresh()
            event = chosen(visit, progress, self.inbox.pending, now, every=every)
        if event is None or self.inbox.terminated:
            return False
        await settle_doubts(visit)
        row = event.signal
        if not event.event:
            await drop_artifacts(visit, set())
            await self._end("cancelled")
            return True
        move = Transition(
            event=event.event,
            updates=[("main", event.updates)],
            entries=[event.entry(now)],
            consumed=() if row is None else (row.number,),
        )
        if row is not None:
            self.inbox.pending.remove(row)
        self._progress = await commit_transition(visit, progress, move)
        return True

    async def _spend(self, visit: Visit, progress: Progress) -> bool:
        """Take a budget event in the handler's stead, where a limit is reached."""
        taken = spent(visit, progress)
        if taken is None:
            return False
        await settle_doubts(visit)
        event, updates, entry = taken
        move = Transition(event=event, updates=[("main", updates)], entries=[entry])
        self._progress = await commit_transition(visit, progress, move)
        return True

    # --- ended from outside -----------------------------------------------------------------------

    async def _end(self, reason: Literal["cancelled", "terminated"]) -> Change:
        """End the thread where it stands."""
        asked = CANCEL if reason == "cancelled" else TERMINATE
        message = next(row for row in self.inbox.pending if row.event == asked)
        progress = self._progress
        if progress is None:
            doubts = doubts_in(self.claim)
        else:
            doubts = [(record.call, record.key) for record in progress.book.doubts()]
        await end_in_place(self.ledger, message, reason, doubts, self.host.env.now())
        if reason == "terminated":
            self.host.changed(self, "ended")
        return "ended"

    # --- parking ----------------------------------------------------------------------------------

    async def park(self, parking: Parking) -> Change:
        """Park the thread with a named reason; its record stays as it is."""
        now = self.host.env.now()
        entry: Entry = {"k": "park", "reason": parking.reason, "note": parking.note[:2000], "at": now}
        if parking.detail:
            entry["detail"] = parking.detail
        standing = evolve(
            self.standing, status="parked", reason=parking.reason, note=parking.note[:2000], wake=None
        )
        await self.ledger.conclude(
            Conclusion(kind="park", standing=standing, release=True, at=now, entries=[entry])
        )
        self.host.changed(self, "parked")
        return "parked"
