"""Which threads are claimed where there are more than a claim takes: each workspace has its part."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, takewhile, zip_longest

from attrs import define, evolve, field, frozen

from ._records import ClaimRequest, Micros
from ._shares import without_full

POINT: Micros = 60_000_000
"""How much waiting a point of priority counts for."""
LOOKED_AT = 4
"""How many workspaces are looked at for each thread that may be claimed, of those that have waiting threads,
whether one of these is due or not: what is behind them has its turn in the next claim."""

Group = tuple[str, str]
"""Machine and workspace."""


@frozen(kw_only=True)
class Source:
    """One way in which threads of a machine can be claimed, over an index that leads on from its ``scope`` by
    machine, workspace and priority to ``order``."""

    name: str
    index: str
    first: str
    """An index that finds some of a machine's threads, whichever they are, by one step."""
    scope: str
    values: tuple[object, ...]
    fits: str
    """What else holds of a thread that can be claimed. Its values: the clock."""
    order: str
    most: int | None = None
    """So many are of use in one claim."""

    def rows(
        self, db: sqlite3.Connection, request: ClaimRequest, machine: str, now: Micros, limit: int
    ) -> list[Candidate]:
        """Some of a machine's threads, whichever come first."""
        statement = f"{self._select(self.first)} AND machine = ? AND {self._fits} LIMIT ?"
        values = (*self.values, machine, *self._fitting(request, machine, now), self._at_most(limit))
        return [Candidate(*row) for row in db.execute(statement, values)]

    def workspaces(self, db: sqlite3.Connection, machine: str, behind: str) -> Iterator[str]:
        """Workspaces in order, from behind one, each found by one step through the index."""
        statement = f"""SELECT workspace FROM standing INDEXED BY {self.index}
            WHERE {self.scope} AND machine = ? AND workspace > ? ORDER BY workspace LIMIT 1"""
        while True:
            row = db.execute(statement, (*self.values, machine, behind)).fetchone()
            if row is None:
                return
            behind = row[0]
            yield behind

    def of_group(
        self, db: sqlite3.Connection, request: ClaimRequest, group: Group, now: Micros, limit: int
    ) -> list[Candidate]:
        """Of each priority the threads that could be claimed longest."""
        machine, workspace = group
        found: list[Candidate] = []
        for priority in self._priorities(db, group):
            statement = f"""{self._select(self.index)} AND machine = ? AND workspace = ? AND priority = ?
                AND {self._fits} ORDER BY {self.order} LIMIT ?"""
            fitting = self._fitting(request, machine, now)
            values = (*self.values, machine, workspace, priority, *fitting, self._at_most(limit))
            found += [Candidate(*row) for row in db.execute(statement, values)]
        return found

    def _priorities(self, db: sqlite3.Connection, group: Group) -> Iterator[int]:
        statement = f"""SELECT priority FROM standing INDEXED BY {self.index}
            WHERE {self.scope} AND machine = ? AND workspace = ? AND priority > ? ORDER BY priority LIMIT 1"""
        below = -(2**31)
        while (row := db.execute(statement, (*self.values, *group, below)).fetchone()) is not None:
            below = row[0]
            yield below

    def _at_most(self, limit: int) -> int:
        return limit if self.most is None else min(limit, self.most)

    def _select(self, index: str) -> str:
        return f"""SELECT id, machine, workspace, {self.order} - priority * {POINT},
            iif(status = 1, wake, NULL) FROM standing INDEXED BY {index} WHERE {self.scope}"""

    @property
    def _fits(self) -> str:
        return f"version <= ? AND crashes < ? AND {self.fits}"

    def _fitting(self, request: ClaimRequest, machine: str, now: Micros) -> Sequence[object]:
        return request.machines[machine], request.suspect_from, now


@frozen
class Candidate:
    """A thread that can be claimed."""

    number: int
    machine: str
    workspace: str
    rank: Micros
    due: Micros | None
    """When it was to wake, where it waits."""


def sources(dead: Sequence[str], request: ClaimRequest) -> list[Source]:
    """What the dead left behind, what runs and is nobody's, and what waits and is due, late ones apart."""
    left = [
        Source(
            name="left",
            index="standing_owned",
            first="standing_owned",
            scope="owner = ?",
            values=(owner,),
            fits="(status = 0 OR status = 1 AND wake <= ?)",
            order="since",
        )
        for owner in dead
    ]
    free = "owner IS NULL AND status ="
    runnable = Source(
        name="runnable",
        index="standing_runnable",
        first="standing_runnable",
        scope=f"{free} 0",
        values=(),
        fits="? IS NOT NULL",
        order="since",
    )
    due = Source(
        name="due",
        index="standing_shared",
        first="standing_due",
        scope=f"{free} 1 AND wake IS NOT NULL",
        values=(),
        fits="wake <= ?",
        order="wake",
    )
    if request.late_before is None:
        return [*left, runnable, due]
    before = int(request.late_before)
    return [
        *left,
        runnable,
        evolve(due, fits=f"wake <= ? AND wake >= {before}"),
        evolve(due, name="late", fits=f"wake <= ? AND wake < {before}", most=request.late_limit + 1),
    ]


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
    db: sqlite3.Connection,
    request: ClaimRequest,
    ways: Sequence[Source],
    room: Mapping[str, int],
    turn: Mapping[str, str],
    now: Micros,
) -> Choice:
    """The threads to claim. ``turn`` says of each way and machine where the last claim left off."""
    choice = Choice(request, dict(room), dict(turn))
    if request.limit < 1:
        return choice
    machines = without_full(request, room).machines
    by_way = {
        (machine, way): way.rows(db, request, machine, now, request.limit + 1)
        for machine in machines
        for way in ways
    }
    few = list(chain.from_iterable(by_way.values()))
    if choice.takes_all(few):
        for candidate in few:
            choice.take(candidate)
        return choice
    _share_out(db, choice, [found for found, rows in by_way.items() if rows], now)
    taken = set(choice.numbers)
    for candidate in few:  # where the groups that were looked at did not fill the claim
        if candidate.number not in taken:
            choice.take(candidate)
    return choice


def _share_out(
    db: sqlite3.Connection,
    choice: Choice,
    ways: Sequence[tuple[str, Source]],
    now: Micros,
) -> None:
    request, turn = choice.request, choice.turn
    found = [_groups(db, request, way, machine, turn, now) for machine, way in ways]
    together = [group for row in zip_longest(*found) for group in row if group is not None]
    groups = list(dict.fromkeys(together))[: request.limit]
    taken = _deal(db, choice, groups, ways, now)
    for places, (machine, way) in zip(found, ways, strict=True):
        served = [workspace for _, workspace in places if (machine, workspace) in taken]
        if served:
            turn[f"{machine}/{way.name}"] = served[-1]


def _deal(
    db: sqlite3.Connection,
    choice: Choice,
    groups: Sequence[Group],
    ways: Sequence[tuple[str, Source]],
    now: Micros,
) -> set[Group]:
    """Take of the groups in turns, and tell which ones something was taken of."""
    served: set[Group] = set()
    part, ample = -(-choice.request.limit // max(1, len(groups))), list(groups)
    while ample and not choice.full:
        queues: dict[Group, list[Candidate]] = {}
        for group in ample:
            some = [
                candidate
                for machine, way in ways
                if machine == group[0]
                for candidate in way.of_group(db, choice.request, group, now, part)
            ]
            queues[group] = sorted(some, key=lambda c: c.rank)
        served |= _in_turns(choice, queues)
        # Where others had less than their part, those that may have more get it.
        ample = [group for group in ample if len(queues[group]) >= part]
        if part >= choice.request.limit:
            break
        part *= 2
    return served


def _groups(
    db: sqlite3.Connection,
    request: ClaimRequest,
    way: Source,
    machine: str,
    turn: dict[str, str],
    now: Micros,
) -> list[Group]:
    """Workspaces with threads to be claimed in one way: from behind the one that was served last, then from
    the first on."""
    behind = turn.get(f"{machine}/{way.name}", "")
    names = chain(
        way.workspaces(db, machine, behind),
        takewhile(lambda name: name <= behind, way.workspaces(db, machine, "")),
    )
    found: list[Group] = []
    name = behind
    for name in islice(names, LOOKED_AT * request.limit):
        if way.of_group(db, request, (machine, name), now, 1):
            found.append((machine, name))
            if len(found) == request.limit:
                break
    if not found:
        turn[f"{machine}/{way.name}"] = name
    return found


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
