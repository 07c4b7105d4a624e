"""Which threads are claimed where there are more than a claim takes: each workspace has its part."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, takewhile, zip_longest

from attrs import define, evolve, field, frozen

from ._records import ClaimRequest, Micros

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
        return f"""SELECT id, machine, workspace, {self.order} - priority * {POINT}, wake
            FROM standing INDEXED BY {index} WHERE {self.scope}"""

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
    wake: Micros | None


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
    numbers: list[int] = field(factory=list[int])
    late: int = 0
    late_left: bool = False
    """Late ones were left aside."""

    @property
    def full(self) -> bool:
        return len(self.numbers) >= self.request.limit

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
    return before is not None and candidate.wake is not None and candidate.wake < before


def choose(
    db: sqlite3.Connection,
    request: ClaimRequest,
    ways: Sequence[Source],
    room: Mapping[str, int],
    turn: dict[str, str],
    now: Micros,
) -> Choice:
    """The threads to claim. ``turn`` remembers of each way and machine at which workspace the next claim goes
    on."""
    choice = Choice(request, dict(room))
    if request.limit < 1:
        return choice
    machines = [name for name in request.machines if room.get(name, 1) > 0]
    by_way = {
        (machine, way): way.rows(db, request, machine, now, request.limit + 1)
        for machine in machines
        for way in ways
    }
    few = list(chain.from_iterable(by_way.values()))
    if len(few) <= request.limit:
        for candidate in sorted(few, key=lambda c: c.rank):
            choice.take(candidate)
        return choice
    _share_out(db, choice, [found for found, rows in by_way.items() if rows], turn, now)
    taken = set(choice.numbers)
    for candidate in few:  # where the groups that were looked at did not fill the claim
        if candidate.number not in taken:
            choice.take(candidate)
    return choice


def _share_out(
    db: sqlite3.Connection,
    choice: Choice,
    ways: Sequence[tuple[str, Source]],
    turn: dict[str, str],
    now: Micros,
) -> None:
    request = choice.request
    found = [_groups(db, request, way, machine, turn, now) for machine, way in ways]
    together = [group for row in zip_longest(*found) for group in row if group is not None]
    groups = list(dict.fromkeys(together))[: request.limit]
    part = -(-request.limit // max(1, len(groups)))
    queues: dict[Group, list[Candidate]] = {}
    for limit in (part, request.limit):
        taken = set(choice.numbers)
        for group in groups:
            if limit > part and len(queues[group]) < part:
                continue  # it had fewer than its part
            some = [
                candidate
                for machine, way in ways
                if machine == group[0]
                for candidate in way.of_group(db, request, group, now, limit)
            ]
            queues[group] = sorted((c for c in some if c.number not in taken), key=lambda c: c.rank)
        _in_turns(choice, queues)
        if choice.full:
            break
    served = set(groups)
    for places, (machine, way) in zip(found, ways, strict=True):
        last = [workspace for _, workspace in places if (machine, workspace) in served]
        if last:
            turn[f"{machine}/{way.name}"] = last[-1]


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


def _in_turns(choice: Choice, queues: Mapping[Group, list[Candidate]]) -> None:
    """One of each group, again and again, until the claim is full."""
    heads = {group: iter(queue) for group, queue in queues.items() if queue}
    while heads and not choice.full:
        for group in list(heads):
            for candidate in heads[group]:
                if choice.take(candidate):
                    break
            else:
                del heads[group]
            if choice.full:
                return
