"""Stores with one fault each in what workers share out, and the check of the contract that must notice it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from attrs import evolve

from perdure.stores import (
    Claimed,
    ClaimRequest,
    Commit,
    DefinitionRow,
    InboxRow,
    MemoryStore,
    Micros,
    Share,
    Shared,
    Signal,
    Start,
    Started,
    ThreadRow,
    WorkerRow,
)
from perdure.stores.contract import CHECKS, Clock, ContractBroken, Kit

CHECK = {check.name: check for check in CHECKS}
MINUTE = 60_000_000


class ServesTheOldestFirst(MemoryStore):
    def _share_out(self, ready: Iterable[ThreadRow], request: ClaimRequest, room: dict[str, int]) -> Any:
        chosen: list[ThreadRow] = []
        late = 0
        for row in sorted(ready, key=self._rank):
            wake = row.standing.wake
            is_late = None not in (request.late_before, wake) and (wake or 0) < (request.late_before or 0)
            if len(chosen) == request.limit or room.get(row.machine, 1) < 1 or late >= request.late_limit > 0:
                break
            late += is_late
            room[row.machine] = room.get(row.machine, 10**6) - 1
            chosen.append(row)
        return chosen


class DividesOnce(MemoryStore):
    """What one workspace leaves of its part is left."""

    def _share_out(self, ready: Iterable[ThreadRow], request: ClaimRequest, room: dict[str, int]) -> Any:
        rows = list(ready)
        groups = {(row.machine, row.address.workspace) for row in rows}
        chosen: list[ThreadRow] = []
        for group in sorted(groups):
            own = [row for row in rows if (row.machine, row.address.workspace) == group]
            chosen += own[: max(request.limit // len(groups), 1)]
        return chosen[: request.limit]


class ForgetsTheTurn(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        self._turn = ("", "")
        return await super().claim(request)


class IgnoresPriority(MemoryStore):
    def _rank(self, row: ThreadRow) -> Micros:
        return super()._rank(evolve(row, priority=0))


class LetsPriorityBeatAge(MemoryStore):
    def _rank(self, row: ThreadRow) -> Micros:
        return super()._rank(evolve(row, priority=1000 * row.priority))


class CountsAgeFromTheStart(MemoryStore):
    def _apply(self, commit: Commit) -> None:
        since = self._tables.since[commit.address]
        super()._apply(commit)
        self._tables.since[commit.address] = since


class IgnoresAtOnce(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        return await super().claim(evolve(request, at_once={}))


class IgnoresAtOnceByName(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        return await super().claim(evolve(request, at_once={}) if request.only else request)


class IgnoresAtOnceForSuspects(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        return await super().claim(evolve(request, at_once={}) if request.suspects else request)


class HoldsEachWorkerToAtOnce(MemoryStore):
    """Each worker for itself."""

    def _owned(self, machine: str, request: ClaimRequest, now: Micros) -> int:
        rows = self._tables.threads.values()
        return sum(row.machine == machine and row.owner == request.worker for row in rows)


class CountsWhatTheDeadOwn(MemoryStore):
    def _owned(self, machine: str, request: ClaimRequest, now: Micros) -> int:
        rows = self._tables.threads.values()
        return sum(row.machine == machine and row.owner is not None for row in rows)


class WakesForNothing(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        claimed = await super().claim(request)
        more = await super().claim(evolve(request, at_once={}, late_before=None, limit=0))
        return evolve(claimed, next_wake=more.next_wake)


class IgnoresWhatIsLate(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        return await super().claim(evolve(request, late_before=None))


class TakesAllForLate(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        before = request.late_before
        return await super().claim(evolve(request, late_before=None if before is None else before + 10**9))


class SaysNothingOfLateOnes(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        return evolve(await super().claim(request), late=False)


class AddsSlotsUp(MemoryStore):
    async def share(self, request: Share, /) -> Shared:
        held = self._tables.slots.get(request.limit, {}).get(request.worker, 0)
        return await super().share(evolve(request, held=request.held + held))


class SharesNoSlots(MemoryStore):
    async def share(self, request: Share, /) -> Shared:
        self._tables.slots.clear()
        return await super().share(request)


class KeepsSlotsOfTheDead(MemoryStore):
    def _is_gone(self, owner: str, now: Micros) -> bool:
        return False


class FreesSlotsTooEarly(MemoryStore):
    def _is_gone(self, owner: str, now: Micros) -> bool:
        return super()._is_gone(owner, now + 1)


class LetsOneMoreStart(MemoryStore):
    async def share(self, request: Share, /) -> Shared:
        more = None if request.per_minute is None else request.per_minute + 1
        return await super().share(evolve(request, per_minute=more))


class PacesEachWorker(MemoryStore):
    async def share(self, request: Share, /) -> Shared:
        own = evolve(request, limit=f"{request.limit} of {request.worker}", at_once=None)
        return await super().share(own)


class RefillsByTheMinute(MemoryStore):
    """So many in each minute of the clock: twice as many may come around its turn."""

    async def share(self, request: Share, /) -> Shared:
        if request.per_minute is None:
            return await super().share(request)
        minute = self._clock() // MINUTE
        used = self._tables.slots.setdefault(request.limit, {})
        starts = min(request.starts, request.per_minute - used.get(str(minute), 0))
        used[str(minute)] = used.get(str(minute), 0) + starts
        return Shared(
            held=0, starts=starts, again=None if starts == request.starts else (minute + 1) * MINUTE
        )


class NamesNoMoment(MemoryStore):
    async def share(self, request: Share, /) -> Shared:
        return evolve(await super().share(request), again=None)


class ChargesTwice(MemoryStore):
    async def share(self, request: Share, /) -> Shared:
        shared = await super().share(request)
        if shared.starts and request.per_minute:
            self._tables.paces[request.limit] += MINUTE // request.per_minute
        return shared


class TakesAnyWish(MemoryStore):
    async def share(self, request: Share, /) -> Shared:
        sane = evolve(request, held=max(request.held, 0), starts=max(request.starts, 0))
        return await super().share(sane)


class OverwritesDefinitions(MemoryStore):
    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        for row in definitions:
            self._tables.definitions.pop((row.machine, row.version, row.hash), None)
        return await super().beat(worker, definitions)


class KeepsOneDefinitionAVersion(MemoryStore):
    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        known = {(row.machine, row.version) for row in self._tables.definitions.values()}
        new = [row for row in definitions if (row.machine, row.version) not in known]
        return await super().beat(worker, new)


class KeepsTheFirstHint(MemoryStore):
    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        known = self._tables.workers.get(worker.id)
        return await super().beat(worker if known is None else evolve(worker, hint=known.hint), definitions)


class DeliversBehindTheStart(MemoryStore):
    async def start(self, start: Start, /) -> Started:
        begun = await super().start(evolve(start, signals=()))
        delivered = [await self.deliver(signal) for signal in start.signals]
        thread = self._tables.threads[start.address]
        inbox = tuple(self._tables.pending(start.address)) if begun.created and start.owner else ()
        return evolve(begun, thread=thread, inbox=inbox, delivered=tuple(delivered))


class DropsSignalsForWhoIsThere(MemoryStore):
    async def start(self, start: Start, /) -> Started:
        there = start.address in self._tables.threads
        return await super().start(evolve(start, signals=()) if there else start)


class ForgetsTheVersion(MemoryStore):
    def _accept(self, signal: Signal) -> InboxRow:
        return super()._accept(evolve(signal, version=0))


class GivesSignalsToWhoeverIsThere(MemoryStore):
    async def start(self, start: Start, /) -> Started:
        there = self._tables.threads.get(start.address)
        return await super().start(start if there is None else evolve(start, started=there.started))


class LeavesNewsToOlderCode(MemoryStore):
    def _accept(self, signal: Signal) -> InboxRow:
        before = self._tables.threads.get(signal.address)
        row = super()._accept(signal)
        if before is not None:
            thread = self._tables.threads[signal.address]
            standing = evolve(thread.standing, version=before.standing.version)
            self._tables.threads[signal.address] = evolve(thread, standing=standing)
        return row


class ForgetsWhoCanReadIt(MemoryStore):
    """A commit says anew which version the thread is of."""

    def _apply(self, commit: Commit) -> None:
        super()._apply(commit)
        thread = self._tables.threads[commit.address]
        standing = evolve(thread.standing, version=commit.standing.version)
        self._tables.threads[commit.address] = evolve(thread, standing=standing)


class StartsBelowItsInbox(MemoryStore):
    def _create(self, start: Start) -> None:
        super()._create(start)
        thread = self._tables.threads[start.address]
        standing = evolve(thread.standing, version=start.standing.version)
        self._tables.threads[start.address] = evolve(thread, standing=standing)


class BringsNoSignals(MemoryStore):
    async def start(self, start: Start, /) -> Started:
        return evolve(await super().start(start), inbox=())


class DoesNotWakeByAStart(MemoryStore):
    async def start(self, start: Start, /) -> Started:
        started = await super().start(start)
        standing = evolve(started.thread.standing, wake=start.standing.wake)
        self._tables.threads[start.address] = evolve(started.thread, standing=standing)
        return evolve(started, thread=self._tables.threads[start.address])


class TakesAnyPriority(MemoryStore):
    async def start(self, start: Start, /) -> Started:
        return await super().start(evolve(start, priority=max(-10, min(start.priority, 10))))


Make = Callable[[Clock], MemoryStore]

MUTANTS: list[tuple[Make, str]] = [
    (ServesTheOldestFirst, "parts_are_equal"),
    (ServesTheOldestFirst, "turns_of_what_is_due"),
    (ServesTheOldestFirst, "late_in_turns"),
    (DividesOnce, "parts_left_over"),
    (ForgetsTheTurn, "all_have_their_turn"),
    (ForgetsTheTurn, "at_once_in_turns"),
    (IgnoresPriority, "priority"),
    (LetsPriorityBeatAge, "priority"),
    (CountsAgeFromTheStart, "age_is_counted_from_the_release"),
    (IgnoresAtOnce, "at_once"),
    (IgnoresAtOnceByName, "at_once"),
    (IgnoresAtOnceForSuspects, "at_once"),
    (HoldsEachWorkerToAtOnce, "at_once"),
    (CountsWhatTheDeadOwn, "at_once"),
    (WakesForNothing, "at_once"),
    (WakesForNothing, "late"),
    (IgnoresWhatIsLate, "late"),
    (TakesAllForLate, "late"),
    (SaysNothingOfLateOnes, "late"),
    (AddsSlotsUp, "slots"),
    (SharesNoSlots, "slots"),
    (KeepsSlotsOfTheDead, "slots_of_the_dead"),
    (FreesSlotsTooEarly, "slots_of_the_dead"),
    (LetsOneMoreStart, "starts_in_any_minute"),
    (PacesEachWorker, "starts"),
    (PacesEachWorker, "starts_in_any_minute"),
    (RefillsByTheMinute, "starts_in_any_minute"),
    (NamesNoMoment, "starts"),
    (ChargesTwice, "starts_do_not_dry_up"),
    (TakesAnyWish, "wishes_that_mean_nothing"),
    (OverwritesDefinitions, "definitions"),
    (KeepsOneDefinitionAVersion, "definitions"),
    (KeepsTheFirstHint, "hints"),
    (DeliversBehindTheStart, "signals_with_a_start_that_are_refused"),
    (DropsSignalsForWhoIsThere, "signals_with_a_start_wake"),
    (ForgetsTheVersion, "signals_with_a_start"),
    (BringsNoSignals, "signals_with_a_start"),
    (GivesSignalsToWhoeverIsThere, "signals_with_a_start_that_are_refused"),
    (LeavesNewsToOlderCode, "signals_for_newer_code"),
    (ForgetsWhoCanReadIt, "signals_for_newer_code"),
    (StartsBelowItsInbox, "signals_for_newer_code"),
    (DoesNotWakeByAStart, "signals_with_a_start_wake"),
    (TakesAnyPriority, "limits_of_signals_with_a_start"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
async def test_a_store_that_shares_badly_is_caught(mutant: Make, check: str) -> None:
    clock = Clock()
    store = mutant(clock)
    with pytest.raises(ContractBroken):
        await CHECK[check].run(Kit(open=lambda: store, clock=clock))
