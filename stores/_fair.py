"""Which threads are claimed where there are more than a claim takes: each workspace has its part.

The policy alone: what it has to know of the threads it asks for, and each store answers as it best can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Protocol

from attrs import define, field, frozen

from ._records import ClaimRequest, Micros
from ._shares import without_full

POINT: Micros = 60_000_000
"""How much waiting a point of priority counts for."""
LOOKED_AT = 4
"""How many workspaces are looked at for each thread that may be claimed, of those that have waiting threads,
whether one of these is due or not: what is behind them has its turn in the next claim."""

Group = tuple[str, str]
"""Machine and workspace."""


class Source(Protocol):
    """One way in which threads of a machine can be claimed; what else it is, its store knows."""

    @property
    def name(self) -> str: ...


Way = tuple[str, Any]
"""A machine, and the source of how its threads can be claimed."""


@frozen
class Candidate:
    """A thread that can be claimed."""

    number: int
    machine: str
    workspace: str
    rank: Micros
    due: Micros | None
    """When it was to wake, where it waits."""


@frozen
class Some:
    """Asks for some threads of each way, whichever come first: lists of ``Candidate``, in the ways' order."""

    ways: Sequence[Way]
    limit: int


@frozen
class Places:
    """Asks for workspaces in which a way finds something, from behind one on and then from the first on: at
    most ``limit``, of ``LOOKED_AT`` times as many that have threads of this kind. The answer is their names,
    and the last name that was looked at."""

    way: Way
    behind: str
    limit: int


@frozen
class Parts:
    """Asks for the threads of each group that could be claimed longest, by any of the ways, so many of each
    priority: lists of ``Candidate``, in the order of groups."""

    groups: Sequence[Group]
    ways: Sequence[Way]
    limit: int


Asking = Generator[Some | Places | Parts, Any, Any]


@define
class Choice:
    """The threads of one claim, within what it may take."""

    request: ClaimRequest
    room: dict[str, int]
    """How many more threads of machines may be owned, where that is limited."""
    turn: dict[str, str]
    """At which workspace, of each way and machine, the next claim goes on."""
    numbers: list[int] = field(factory=list[int])
    late: int = 0
    late_left: bool = False
    """Late ones were left aside."""

    @property
    def full(self) -> bool:
        return len(self.numbers) >= self.request.limit

    def takes_all(self, candidates: Sequence[Candidate]) -> bool:
        """None of them would be left aside for another one."""
        late = sum(is_late(candidate, self.request) for candidate in candidates)
        by_machine = Counter(candidate.machine for candidate in candidates)
        return (
            len(candidates) <= self.request.limit
            and late <= self.request.late_limit
            and all(by_machine[name] <= room for name, room in self.room.items())
        )

    def take(self, candidate: Candidate) -> bool:
        """Choose it, if it may be chosen."""
        room = self.room.get(candidate.machine)
        if self.full or (room is not None and room < 1):
            return False
        if is_late(candidate, self.request):
            if self.late >= self.request.late_limit:
                self.late_left = True
                return False
            self.late += 1
        if room is not None:
            self.room[candidate.machine] = room - 1
        self.numbers.append(candidate.number)
        return True


def is_late(candidate: Candidate, request: ClaimRequest) -> bool:
    before = request.late_before
    return before is not None and candidate.due is not None and candidate.due < before


def choose(
    request: ClaimRequest, ways: Sequence[Source], room: Mapping[str, int], turn: Mapping[str, str]
) -> Asking:
    """The ``Choice`` of a claim. ``turn`` says of each way and machine where the last claim left off."""
    choice = Choice(request, dict(room), dict(turn))
    if request.limit < 1:
        return choice
    every = [(machine, way) for machine in without_full(request, room).machines for way in ways]
    found: list[list[Candidate]] = yield Some(every, request.limit + 1)
    few = list(chain.from_iterable(found))
    if choice.takes_all(few):
        for candidate in few:
            choice.take(candidate)
        return choice
    yield from _share_out(choice, [way for way, rows in zip(every, found, strict=True) if rows])
    taken = set(choice.numbers)
    for candidate in few:  # where the groups that were looked at did not fill the claim
        if candidate.number not in taken:
            choice.take(candidate)
    return choice


def _share_out(choice: Choice, ways: Sequence[Way]) -> Asking:
    request, turn = choice.request, choice.turn
    found: list[list[Group]] = []
    for way in ways:
        found.append((yield from _groups(choice, way)))
    together = [group for row in zip_longest(*found) for group in row if group is not None]
    groups = list(dict.fromkeys(together))[: request.limit]
    taken = yield from _deal(choice, groups, ways)
    for places, way in zip(found, ways, strict=True):
        served = [workspace for machine, workspace in places if (machine, workspace) in taken]
        if served:
            turn[_name(way)] = served[-1]


def _deal(choice: Choice, groups: Sequence[Group], ways: Sequence[Way]) -> Asking:
    """Take of the groups in turns, and tell which ones something was taken of."""
    served: set[Group] = set()
    part = -(-choice.request.limit // max(1, len(groups)))
    ample: list[Group] = list(groups)
    while ample and not choice.full:
        parts: list[list[Candidate]] = yield Parts(ample, ways, part)
        queues = {group: sorted(some, key=lambda c: c.rank) for group, some in zip(ample, parts, strict=True)}
        served |= _in_turns(choice, queues)
        # Where others had less than their part, those that may have more get it.
        ample = [group for group in ample if len(queues[group]) >= part]
        if part >= choice.request.limit:
            break
        part *= 2
    return served


def _groups(choice: Choice, way: Way) -> Asking:
    """Groups with threads to be claimed in one way: from behind the one that was served last on."""
    places: tuple[list[str], str] = yield Places(way, choice.turn.get(_name(way), ""), choice.request.limit)
    found, last = places
    if not found:
        choice.turn[_name(way)] = last
    return [(way[0], workspace) for workspace in found]


def _name(way: Way) -> str:
    return f"{way[0]}/{way[1].name}"


def _in_turns(choice: Choice, queues: Mapping[Group, list[Candidate]]) -> set[Group]:
    """One of each group, again and again, until the claim is full; the groups that something was taken of."""
    served: set[Group] = set()
    seen = set(choice.numbers)
    heads = {group: iter(queue) for group, queue in queues.items()}
    while heads and not choice.full:
        for group in list(heads):
            fresh = (candidate for candidate in heads[group] if candidate.number not in seen)
            if any(choice.take(candidate) for candidate in fresh):
                served.add(group)
            else:
                del heads[group]
    return served
