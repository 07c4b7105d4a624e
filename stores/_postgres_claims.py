"""Claims in PostgreSQL: what others are claiming at this moment is left to them, and something else taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from attrs import define, evolve, field

from ._fair import choose
from ._postgres_fair import Index
from ._postgres_session import POSTGRES, Session
from ._records import Claim, Claimed, ClaimRequest, Micros
from ._shares import without_full
from ._sql_claims import load, owners
from ._sql_fair import sources
from ._sql_rows import STATUS_CODES
from ._sql_steps import Row

ROUNDS = 5
"""How often a claim looks again where others took what it had found."""

MACHINES = "unnest(CAST(? AS TEXT[]), CAST(? AS BIGINT[])) AS m (machine, newest)"
OWNED = """SELECT machine, count(*) FROM standing
    WHERE owner = ANY (CAST(? AS TEXT[])) AND machine = ANY (CAST(? AS TEXT[])) GROUP BY machine"""
# OFFSET 0 keeps the planner from looking for what runs or is due, which may be very much, before it asks what
# of it has crashed.
SUSPECTS = f"""SELECT s.id FROM {MACHINES} CROSS JOIN LATERAL (
        SELECT * FROM standing WHERE machine = m.machine AND crashes >= ? AND crashes > 0 OFFSET 0) s
    WHERE s.version <= m.newest AND (s.status = 0 OR s.status = 1 AND s.wake <= ?)
    AND (s.owner IS NULL OR s.owner = ANY (CAST(? AS TEXT[]))) AND s.id <> ALL (CAST(? AS BIGINT[]))
    ORDER BY s.crashes, s.id LIMIT 2"""
ONLY = f"""SELECT s.id, s.crashes FROM thread t JOIN standing s ON s.id = t.id
    JOIN {MACHINES} ON s.machine = m.machine AND s.version <= m.newest
    WHERE t.workspace = ? AND t.thread_id = ? AND s.status <> 3
    AND (s.owner IS NULL OR s.owner = ANY (CAST(? AS TEXT[])))"""
WAITS = """status = 1 AND wake IS NOT NULL AND machine = m.machine AND version <= m.newest
    AND wake >= ? AND NOT (wake <= ? AND crashes >= ?) ORDER BY wake LIMIT 1"""
NEXT_WAKE = f"""SELECT min(w.wake) FROM {MACHINES} CROSS JOIN LATERAL (
    (SELECT wake FROM standing WHERE owner IS NULL AND {WAITS})
    UNION ALL
    SELECT l.wake FROM unnest(CAST(? AS TEXT[])) AS d (owner) CROSS JOIN LATERAL (
        SELECT wake FROM standing WHERE owner = d.owner AND {WAITS}) l) w"""
LOCK = """SELECT id, machine, version, owner, status, crashes, wake FROM standing
    WHERE id = ANY (CAST(? AS BIGINT[])) AND status <> 3
    AND (owner IS NULL OR owner = ANY (CAST(? AS TEXT[]))) FOR UPDATE SKIP LOCKED"""
TAKE = """UPDATE standing SET owner = ?, status = 0, epoch = epoch + 1, crashes = p.crashes
    FROM unnest(CAST(? AS BIGINT[]), CAST(? AS BIGINT[])) AS p (id, crashes) WHERE standing.id = p.id"""


@define
class Search:
    """One claim, while it is made."""

    session: Session
    request: ClaimRequest
    turn: Mapping[str, str]
    now: Micros
    orderly: Mapping[str, bool] = field(init=False)
    """Owners that are dead, each with whether it ended in good order."""
    room: dict[str, int] = field(init=False)
    """How many more threads of machines may be owned, where that is limited."""
    rows: dict[int, Row] = field(factory=dict[int, Row], init=False)
    """What is claimed, as it was."""
    seen: set[int] = field(factory=set[int], init=False)
    """What was chosen before, whether it could be had or not."""
    turned: dict[str, str] = field(factory=dict[str, str], init=False)
    suspects: bool = field(default=False, init=False)
    late: bool = field(default=False, init=False)

    async def run(self) -> None:
        request = self.request
        self.orderly, living = await self.session.take(owners(request, self.now))
        self.room = await self._room(living)
        for _ in range(ROUNDS):
            chosen = await self._look()
            lost = set(chosen) - await self._lock(chosen)
            if not lost:
                return

    async def _room(self, living: Sequence[str]) -> dict[str, int]:
        at_once = self.request.at_once
        if not at_once:
            return {}
        owned = await self.session.fetch(OWNED, (living, list(at_once)))
        counts = {str(machine): int(count) for machine, count in owned}
        return {machine: most - counts.get(machine, 0) for machine, most in at_once.items()}

    async def _look(self) -> Sequence[int]:
        """Find what can be claimed beside what was chosen before."""
        if self.request.only is not None:
            return await self._only()
        fitting = without_full(self.request, self.room)
        found = await self.session.fetch(
            SUSPECTS,
            (*_fits(fitting), self.request.suspect_from, self.now, list(self.orderly), list(self.seen)),
        )
        if self.request.suspects:
            left = self.request.limit - len(self.rows)
            self.suspects = len(found) > 1
            return [row[0] for row in found[: min(1, left)]]
        self.suspects = bool(found)
        return await self._shared_out()

    async def _only(self) -> Sequence[int]:
        request = without_full(self.request, self.room)
        assert request.only is not None
        name = (request.only.workspace, request.only.thread_id)
        found = await self.session.fetch(ONLY, (*_fits(request), *name, list(self.orderly)))
        fitting = [row[0] for row in found if (row[1] >= request.suspect_from) == request.suspects]
        self.suspects = bool(found) and not fitting and not request.suspects
        return [number for number in fitting if number not in self.seen][: request.limit]

    async def _shared_out(self) -> Sequence[int]:
        before = self.request.late_before
        had = sum(before is not None and row[4] == 1 and row[6] < before for row in self.rows.values())
        request = evolve(
            self.request,
            limit=self.request.limit - len(self.rows),
            late_limit=self.request.late_limit - had,
        )
        index = Index(self.session, request, self.seen)
        ways = sources(tuple(self.orderly), request, self.now)
        choice = await index.choose(choose(request, ways, self.room, {**self.turn, **self.turned}))
        self.late = choice.late_left
        self.turned = choice.turn
        return choice.numbers

    async def _lock(self, numbers: Sequence[int]) -> set[int]:
        """Lock those of them that can still be claimed and that nobody else is changing."""
        self.seen.update(numbers)
        if not numbers:
            return set()
        locked = await self.session.fetch(LOCK, (list(numbers), list(self.orderly)))
        got = {row[0]: row for row in locked if self._can_be_claimed(row)}
        self.rows |= {number: got[number] for number in numbers if number in got}
        for machine, count in Counter(row[1] for row in got.values()).items():
            if machine in self.room:
                self.room[machine] -= count
        return set(got)

    def _can_be_claimed(self, row: Row) -> bool:
        _, machine, version, _, status, crashes, wake = row
        request = self.request
        due = status == STATUS_CODES["running"] or (status == 1 and wake is not None and wake <= self.now)
        return (
            version <= request.machines.get(machine, -1)
            and (crashes >= request.suspect_from) == request.suspects
            and (due or request.only is not None)
        )


async def claim(session: Session, request: ClaimRequest, turn: dict[str, str], now: Micros) -> Claimed:
    """Claim what the request asks for, in an open transaction; ``turn`` is brought up to date."""
    search = Search(session, request, turn, now)
    await search.run()
    claims = await _take(search) if search.rows else ()
    turn.update(search.turned)
    return Claimed(
        claims=claims,
        now=now,
        next_wake=await _next_wake(search) if request.only is None else None,
        suspects=search.suspects,
        late=search.late,
    )


async def _take(search: Search) -> tuple[Claim, ...]:
    taken_from: dict[int, str | None] = {}
    crashes: list[int] = []
    for number, row in search.rows.items():
        owner, status = row[3], row[4]
        crashed = owner is not None and status == STATUS_CODES["running"] and not search.orderly[owner]
        taken_from[number] = owner
        crashes.append(row[5] + int(crashed))
    numbers = list(search.rows)
    await search.session.fetch(TAKE, (search.request.worker, numbers, crashes))
    claims = await search.session.take(load(numbers, numbers, taken_from, POSTGRES))
    return tuple(claims.values())


async def _next_wake(search: Search) -> Micros | None:
    request = search.request
    fitting = without_full(request, search.room)
    first = request.late_before if request.late_before is not None else -(2**63)
    bounds = (first, search.now, request.suspect_from)
    values = (*_fits(fitting), *bounds, list(search.orderly), *bounds)
    [(wake,)] = await search.session.fetch(NEXT_WAKE, values)
    return None if wake is None else int(wake)


def _fits(request: ClaimRequest) -> tuple[Iterable[str], Iterable[int]]:
    return list(request.machines), list(request.machines.values())
