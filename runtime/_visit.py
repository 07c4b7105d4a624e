"""One visit of a state with handlers: attempts, branches, failures, and the commit that ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from attrs import define, field

from perdure.machines import BadUpdate, Effect, Failure, Fire, HandlerPlan, NotStorable
from perdure.stores import MemoryMoved, StaleClaim, TooLarge

from ._attempt import Attempt
from ._book import family
from ._context import Parking, Visit, micros
from ._effects import settle_doubts, settle_unasked
from ._ends import Drained, End, Fired, Lost, Moved, MustPark, Preempted, Raised
from ._errors import CallMisuse, GuardRefused, PerdureError
from ._journal import Entry, describe_error, raw, said_of
from ._progress import Progress, decode_updates, encode_updates
from ._step import StepOfAttempt
from ._step_memory import PendingWrite
from ._transition import Transition, accepts, commit_transition, merged_memory

CONFLICTS_A_VISIT = 5
"""How often a visit runs again because memory changed under it, before the thread parks."""

Left = Literal["moved", "again", "drained"]
"""How a visit was left: a transition was committed; to be looked at again; the worker leaves."""


@define(eq=False)
class BranchEnd:
    """What one handler wants of the transition."""

    lane: str
    fire: Fire
    memory: dict[tuple[str, str], PendingWrite] = field(factory=dict[tuple[str, str], PendingWrite])
    stored_memory: list[tuple[str, str, str, int]] = field(factory=list[tuple[str, str, str, int]])
    artifacts: set[str] = field(factory=set[str])
    reads: list[Entry] = field(factory=list[Entry])


class VisitRunner:
    """Runs the handlers of one visit until it is left."""

    def __init__(self, visit: Visit, progress: Progress) -> None:
        self.visit = visit
        self.progress = progress
        self.attempts: list[Attempt] = []

    def abandon(self) -> None:
        """The drain's grace is over."""
        for attempt in self.attempts:
            attempt.abandon()

    def lose(self) -> None:
        """The claim is gone: calls are aborted too, since nobody would hear of what comes of them."""
        for attempt in self.attempts:
            attempt.stop(Lost())
            attempt.abandon()

    def preempt(self) -> None:
        """An event that may interrupt the state has come."""
        for attempt in self.attempts:
            attempt.stop(Preempted())

    async def run(self) -> Left:
        visit = self.visit
        if self.visit.book.effects:
            await self._refuse_strays()
        for handler in self._due():
            self.attempts.append(Attempt(visit, handler, visit.book.failed.get(handler.lane, 0) + 1))
        try:
            if len(self.attempts) == 1:
                ends = [await self._run_one(self.attempts[0])]
            else:
                ends = await asyncio.gather(*map(self._run_one, self.attempts))
            for end in ends:
                if not isinstance(end, (Fired, Raised)):
                    return await self._stopped(ends)
            return await self._conclude(ends)
        finally:
            for attempt in self.attempts:
                attempt.let_go()

    async def _stopped(self, ends: Sequence[End]) -> Left:
        """Some attempt was ended by something else than its handler."""
        visit = self.visit
        if any(isinstance(end, Lost) for end in ends):
            raise StaleClaim(f"{visit.where}: the claim was lost")
        for attempt, end in zip(self.attempts, ends, strict=True):
            if isinstance(end, MustPark):
                if end.parking.reason == "diverged":
                    await self._ask_about_doubts()
                    raise attempt.divergence([call for call in attempt.calls if call.waits])
                raise end.parking
        moved = next((end for end in ends if isinstance(end, Moved)), None)
        if moved is not None:
            return await self._run_again(moved.error)
        if any(isinstance(end, Drained) for end in ends):
            await visit.ledger.flush()
            return "drained"
        return "again"  # preempted

    def _due(self) -> Sequence[HandlerPlan]:
        """The handlers to run now."""
        visit, retry_at = self.visit, self.visit.book.retry_at
        if not retry_at:
            return visit.unfinished()
        now = visit.env.now()
        return [handler for handler in visit.unfinished() if retry_at.get(handler.lane, 0) <= now]

    async def _run_one(self, attempt: Attempt) -> End:
        lane, live = attempt.handler.lane, self.progress.live
        shown = self.visit.definition.data.shown(live)
        end = await attempt.run(StepOfAttempt(attempt, lane, self.progress), shown)
        branches = len(self.visit.state.handlers) > 1
        if isinstance(end, Fired) and (branches or shown is not live):
            try:
                who = f"branch {lane!r}" if branches else f"the handler of {self.visit.state.name!r}"
                self.visit.definition.data.check_unchanged(live, shown, who)
                if branches:
                    self.visit.note_behind(self._branch_entry(lane, end.fire, attempt))
            except (BadUpdate, NotStorable) as error:
                return Raised(error)
        return end

    def _branch_entry(self, lane: str, fire: Fire, attempt: Attempt) -> Entry:
        visit = self.visit
        memory = [
            [
                w.namespace.name,
                w.key,
                w.namespace.codec.encode(
                    w.value, f"{visit.where}: memory {w.namespace.name}/{w.key}"
                ).decode(),
                w.expected,
            ]
            for w in attempt.memory_writes.values()
        ]
        updates = encode_updates(visit.definition, fire.updates, f"{visit.where}: update")
        return {
            "k": "branch",
            "lane": lane,
            "event": fire.event,
            "updates": raw(updates),
            "memory": memory,
            "artifacts": sorted(attempt.artifact_ids),
            "at": visit.env.now(),
        }

    async def _refuse_strays(self) -> None:
        """Effects in the lanes of handlers that the state no longer has: no call would ever match them, and
        what asks for the same in another lane would do it a second time."""
        visit, lanes = self.visit, {handler.lane for handler in self.visit.state.handlers}
        held = [
            record
            for record in visit.book.effects.values()
            if family(record.lane) not in lanes and record.outcome != "free" and not record.set_aside
        ]
        if held:
            await self._ask_about_doubts()
            named = ", ".join(f"{e.call} [{e.outcome}] in lane {e.lane!r}" for e in held)
            thread_id = visit.row.address.thread_id
            raise Parking(
                "diverged",
                f"{visit.where}: the record of this visit holds {named}, and the state has no such handler. "
                f"Put it back, or `perdure resolve {thread_id} --ignore --runtime MODULE:NAME`",
                {
                    "asked": [],
                    "held": [{"id": e.id, "call": e.call, "args": e.arguments.decode()} for e in held],
                },
            )

    async def _ask_about_doubts(self) -> None:
        """Before a divergence parks: what can be looked up is; nothing that nobody asks for is issued."""
        for record in list(self.visit.book.doubts()):
            declared = self.visit.definition.calls.get(record.call)
            if isinstance(declared, Effect) and declared.lookup_fn is not None:
                with contextlib.suppress(Parking):
                    await settle_unasked(self.visit, record)

    # --- the end ----------------------------------------------------------------------------------

    async def _conclude(self, ends: Sequence[End]) -> Left:
        failed: list[tuple[Attempt, BaseException]] = []
        fired: dict[str, BranchEnd] = {}
        for attempt, end in zip(self.attempts, ends, strict=True):
            lane = attempt.handler.lane
            if isinstance(end, Raised):
                failed.append((attempt, end.error))
            elif isinstance(end, Fired):
                fired[lane] = BranchEnd(
                    lane,
                    end.fire,
                    memory=attempt.memory_writes,
                    artifacts=attempt.artifact_ids,
                    reads=attempt.unrecorded,
                )
        if not failed:
            if len(fired) < len(self.visit.state.handlers) and self._waits_for_a_retry(fired):
                return "again"
            try:
                together = self._in_order(fired)
                if len(together) > 1:
                    check_same_event(self.visit, together)
                    shared = shared_with_a_record(together)
                    if shared:
                        return await self._run_branches_again(shared)
                move = self._transition(together)
                self.progress = await commit_transition(self.visit, self.progress, move)
                return "moved"
            except MemoryMoved as moved:
                return await self._run_again(moved)
            except (BadUpdate, NotStorable, TooLarge, PerdureError) as error:
                failed = [(self._attempt_of(h), error) for h in self.visit.state.handlers]
        return await self._failed(failed)

    def _waits_for_a_retry(self, fired: Mapping[str, BranchEnd]) -> bool:
        return any(h.lane not in fired for h in self.visit.unfinished())

    def _attempt_of(self, handler: HandlerPlan) -> Attempt:
        """A branch's attempt, also of one that finished before a resume: where their ends do not fit
        together, each of them has failed."""
        made = next((a for a in self.attempts if a.handler is handler), None)
        return made or Attempt(self.visit, handler, self.visit.book.failed.get(handler.lane, 0) + 1)

    def _in_order(self, fired: Mapping[str, BranchEnd]) -> list[BranchEnd]:
        return [fired.get(h.lane) or self._finished_before(h.lane) for h in self.visit.state.handlers]

    def _finished_before(self, lane: str) -> BranchEnd:
        end = self.visit.book.ended[lane]
        where = f"{self.visit.where}: branch {lane!r}"
        updates = decode_updates(self.visit.definition, end.updates, where)
        return BranchEnd(
            lane,
            Fire(event=end.event, updates=updates),
            stored_memory=end.memory,
            artifacts=set(end.artifacts),
        )

    def _transition(self, ends: Sequence[BranchEnd]) -> Transition:
        move = Transition(event=ends[0].fire.event)
        written: list[tuple[str, Mapping[tuple[str, str], PendingWrite]]] = []
        for end in ends:
            move.updates.append((end.lane, end.fire.updates))
            move.entries += map(trimmed, end.reads)
            move.stored_memory += end.stored_memory
            move.asked_artifacts |= end.artifacts
            if end.memory:
                written.append((end.lane, end.memory))
        if written:
            move.memory = merged_memory(self.visit, written)
        attempts = [attempt.number for attempt in self.attempts if attempt.number > 1]
        if attempts:
            move.entries.append({"k": "attempt", "attempt": max(attempts), "at": self.visit.env.now()})
        return move

    async def _run_branches_again(self, shared: list[tuple[str, str]]) -> Left:
        """What was recorded of finished branches will not do: they run again, beside each other."""
        entry: Entry = {"k": "branches_again", "memory": shared, "at": self.visit.env.now()}
        await self.visit.ledger.record([entry])
        self.visit.book.apply(entry)
        return "again"

    # --- failures ---------------------------------------------------------------------------------

    async def _failed(self, failed: Sequence[tuple[Attempt, BaseException]]) -> Left:
        visit = self.visit
        final: tuple[Attempt, BaseException] | None = None
        for attempt, error in failed:
            last = attempt.number >= visit.state.retry.attempts or isinstance(error, GuardRefused)
            if last:
                final = attempt, error
            visit.note(self._failure_entry(attempt, error, last=last))
        if final is not None:
            await self._give_up(*final)
            return "moved"
        await visit.ledger.flush()
        return "again"

    def _failure_entry(self, attempt: Attempt, error: BaseException, *, last: bool) -> Entry:
        visit, now = self.visit, self.visit.env.now()
        wait = visit.state.retry.wait_after(attempt.number)
        return {
            "k": "failed",
            "lane": attempt.handler.lane,
            "attempt": attempt.number,
            "error": describe_error(error),
            "dropped": attempt.to_drop(),
            "retry_at": None if last else now + micros(wait),
            "at": now,
        }

    async def _give_up(self, attempt: Attempt, error: BaseException) -> None:
        """No further attempt: the failure event that takes this error, or the thread parks."""
        visit = self.visit
        await settle_doubts(visit)
        said = describe_error(error)
        failure = Failure(error=said["type"], message=said["message"], attempts=attempt.number)
        for plan in visit.state.failures:
            if plan.errors and not isinstance(error, plan.errors):
                continue
            receiver = visit.definition.events[plan.event].receiver
            updates = received(visit, plan.event, receiver, self.progress.data, failure)
            if accepts(visit, self.progress, plan.event, updates):
                move = Transition(event=plan.event, updates=[("main", updates)])
                self.progress = await commit_transition(visit, self.progress, move)
                return
        note = f"{visit.where}: {said_of(said)}, in attempt {attempt.number}"
        hint = f"mend it, then `perdure retry {visit.row.address.thread_id} --runtime MODULE:NAME`"
        raise Parking("failed", f"{note}; {hint}", {"error": said})

    async def _run_again(self, moved: MemoryMoved) -> Left:
        """Memory that the visit rests on has changed: as after an interruption, a bounded number of times."""
        visit = self.visit
        changed = [(row.namespace, row.key, row.version) for row in moved.rows]
        pinned = self._pinned_memory({(ns, key) for ns, key, _ in changed} | set(moved.missing))
        if pinned or visit.book.conflicts >= CONFLICTS_A_VISIT:
            reason = (
                f"an effect rests on {', '.join(pinned)}: use update or a merge rule after an effect"
                if pinned
                else f"it changed under {CONFLICTS_A_VISIT} runs of the visit"
            )
            raise Parking(
                "conflict", f"{visit.where}: {moved}; {reason}", {"changed": [list(c) for c in changed]}
            )
        entry: Entry = {"k": "conflict", "changed": [list(c) for c in changed], "at": visit.env.now()}
        await visit.ledger.record([entry])
        visit.book.apply(entry)
        return "again"

    def _pinned_memory(self, keys: set[tuple[str, str]]) -> list[str]:
        pinned: list[str] = []
        for read in self.visit.book.reads.values():
            if read.signature[1] != "memory.get" or not self.visit.book.pinned(read):
                continue
            namespace, key = msgspec.json.decode(read.signature[2])
            if (namespace, key) in keys and read.value is not None:
                version = msgspec.json.decode(read.value)[0]
                pinned.append(f"{namespace}/{key} version {version}")
        return pinned


def check_same_event(visit: Visit, ends: Sequence[BranchEnd]) -> None:
    """``CallMisuse`` where branches fired different events."""
    if len({end.fire.event for end in ends}) > 1:
        raise CallMisuse(
            f"{visit.where}: its branches fired different events "
            f"({', '.join(f'{end.lane}: {end.fire.event}' for end in ends)}): all must fire the same one"
        )


def shared_with_a_record(ends: Sequence[BranchEnd]) -> list[tuple[str, str]]:
    """Memory keys that several branches write, one of which finished before a resume: whether and how their
    writes merge is in its code and not in its record."""
    recorded = [(ns, key) for end in ends for ns, key, _, _ in end.stored_memory]
    if not recorded:
        return []
    written = recorded + [where for end in ends for where in end.memory]
    return sorted({where for where in recorded if written.count(where) > 1})


def received(visit: Visit, event: str, receiver: Any, data: Any, payload: Any) -> Mapping[str, object]:
    """The updates that a receiver makes of what came in; one that raises parks the thread, as guards do."""
    if receiver is None:
        return {}
    shown = visit.definition.data.shown(data)
    try:
        accept = receiver(shown, payload)
        visit.definition.data.check_unchanged(data, shown, f"the receiver of {event!r}")
    except BaseException as error:  # its own: nothing is awaited here
        said = describe_error(error)
        raise Parking("failed", f"{visit.where}: the receiver of {event!r} raised {said_of(said)}") from error
    if getattr(accept, "event", None) != event:
        raise Parking("failed", f"{visit.where}: the receiver of {event!r} must return self.{event}(...)")
    updates: Mapping[str, object] = accept.updates
    return updates


def trimmed(read: Entry) -> Entry:
    """A read as the transition records it: nothing is served from it any more, so its size will do."""
    kept = {k: v for k, v in read.items() if k != "value"}
    return {**kept, "size": len(bytes(read["value"]))}
