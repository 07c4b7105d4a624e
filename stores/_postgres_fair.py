"""What PostgreSQL answers to who shares threads out: each question is one statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from attrs import frozen

from ._fair import LOOKED_AT, POINT, Asking, Candidate, Choice, Group, Parts, Places, Some
from ._limits import MAX_PRIORITY
from ._postgres_session import Session
from ._records import ClaimRequest
from ._sql_fair import Source, Way
from ._sql_steps import Row

PRIORITIES = f"generate_series({-MAX_PRIORITY}, {MAX_PRIORITY}) AS p (priority)"
PRIORITY = "priority BETWEEN p.priority AND p.priority"

# Every order is that of the one index that is meant, since the planner takes another where it believes that
# there is enough of everything to be found by chance: priorities are a range, for a column that equals
# something is left out of an order.
FITS = """machine = g.machine AND version <= g.newest AND crashes < ? AND {fits}
    AND id <> ALL (CAST(? AS BIGINT[]))"""

SOME = f"""SELECT {{number}}, g.i, c.* FROM unnest(CAST(? AS TEXT[]), CAST(? AS BIGINT[])) WITH ORDINALITY
    AS g (machine, newest, i) CROSS JOIN LATERAL ({{select}} AND {FITS}
    ORDER BY {{order}} LIMIT ?) c"""

PART = f"""SELECT g.i, c.* FROM unnest(CAST(? AS BIGINT[]), CAST(? AS TEXT[]), CAST(? AS BIGINT[]),
    CAST(? AS TEXT[])) AS g (i, machine, newest, workspace) CROSS JOIN {PRIORITIES}
    CROSS JOIN LATERAL ({{select}} AND workspace = g.workspace AND {PRIORITY} AND {FITS}
        ORDER BY priority, {{order}} LIMIT ?) c"""

# Steps from one workspace to the next through the index, and looks into each for a thread of any priority.
PLACES = f"""WITH RECURSIVE names (workspace, k) AS (
        (SELECT workspace, CAST(1 AS BIGINT) FROM standing
            WHERE {{scope}} AND machine = ? AND workspace > ? ORDER BY workspace LIMIT 1)
        UNION ALL
        SELECT (SELECT workspace FROM standing
            WHERE {{scope}} AND machine = ? AND workspace > n.workspace ORDER BY workspace LIMIT 1), n.k + 1
        FROM names n WHERE n.workspace IS NOT NULL AND n.k < ?)
    SELECT n.workspace, EXISTS (SELECT 1 FROM {PRIORITIES} CROSS JOIN LATERAL (
            {{select}} AND workspace = n.workspace AND {PRIORITY} AND {FITS}
            ORDER BY priority, {{order}} LIMIT 1) c)
    FROM names n CROSS JOIN (SELECT CAST(? AS TEXT) AS machine, CAST(? AS BIGINT) AS newest) g
    WHERE n.workspace IS NOT NULL ORDER BY n.k"""


@frozen
class Index:
    """The threads, as one request sees them."""

    session: Session
    request: ClaimRequest
    without: Collection[int]
    """Threads that are left out."""

    async def choose(self, asking: Asking) -> Choice:
        """Answer each question, and give what the asker comes to."""
        try:
            question = next(asking)
            while True:
                question = asking.send(await self._answer(question))
        except StopIteration as done:
            choice: Choice = done.value
            return choice

    async def _answer(self, question: Some | Places | Parts) -> object:
        match question:
            case Some(ways, limit):
                return await self._some(ways, limit)
            case Places(way, behind, limit):
                return await self._places(way, behind, limit)
            case Parts(groups, ways, limit):
                return await self._parts(groups, ways, limit)

    async def _some(self, ways: Sequence[Way], limit: int) -> list[list[Candidate]]:
        statements: list[str] = []
        values: list[Any] = []
        machines = list(dict.fromkeys(machine for machine, _ in ways))
        by_source = _by_source(ways)
        for number, source in enumerate(by_source):
            select, fits = _select(source), _fits(source)
            statements.append(SOME.format(number=number, select=select, fits=fits, order=source.first_order))
            newest = [self.request.machines[machine] for machine in machines]
            values += [machines, newest, *source.values, *self._fitting(source), source.at_most(limit)]
        found: defaultdict[Way, list[Candidate]] = defaultdict(list)
        listed = list(by_source)
        for number, i, *row in await self._fetch(statements, values):
            found[machines[i - 1], listed[number]].append(Candidate(*row))
        return [found[way] for way in ways]

    async def _parts(self, groups: Sequence[Group], ways: Sequence[Way], limit: int) -> list[list[Candidate]]:
        statements: list[str] = []
        values: list[Any] = []
        for source, machines in _by_source(ways).items():
            some = [(i, *group) for i, group in enumerate(groups) if group[0] in machines]
            select, fits = _select(source), _fits(source)
            statements.append(PART.format(select=select, fits=fits, order=source.order))
            newest = [self.request.machines[machine] for _, machine, _ in some]
            values += [[i for i, _, _ in some], [machine for _, machine, _ in some], newest]
            values += [[workspace for _, _, workspace in some], *source.values]
            values += [*self._fitting(source), source.at_most(limit)]
        found: defaultdict[int, list[Candidate]] = defaultdict(list)
        for i, *row in await self._fetch(statements, values):
            found[i].append(Candidate(*row))
        return [found[i] for i in range(len(groups))]

    async def _places(self, way: Way, behind: str, limit: int) -> tuple[list[str], str]:
        looked = LOOKED_AT * limit
        rows = await self._workspaces(way, behind, looked)
        if len(rows) < looked:
            again = await self._workspaces(way, "", looked - len(rows))
            rows = [*rows, *(row for row in again if row[0] <= behind)]
        found: list[str] = []
        name = behind
        for name, claimable in rows:
            if claimable:
                found.append(name)
                if len(found) == limit:
                    break
        return found, name

    async def _workspaces(self, way: Way, behind: str, most: int) -> Sequence[Row]:
        machine, source = way
        select, fits = _select(source), _fits(source)
        statement = PLACES.format(scope=source.scope, select=select, fits=fits, order=source.order)
        first = (*source.values, machine, behind)
        more = (*source.values, machine, most)
        return await self.session.fetch(
            statement,
            (*first, *more, *source.values, *self._fitting(source), machine, self.request.machines[machine]),
        )

    async def _fetch(self, statements: Sequence[str], values: Sequence[Any]) -> Sequence[Row]:
        return await self.session.fetch("\nUNION ALL\n".join(f"({text})" for text in statements), values)

    def _fitting(self, source: Source) -> Sequence[object]:
        return self.request.suspect_from, *source.bounds, list(self.without)


def _by_source(ways: Sequence[Way]) -> dict[Source, list[str]]:
    """The machines of each source."""
    found: dict[Source, list[str]] = {}
    for machine, source in ways:
        found.setdefault(source, []).append(machine)
    return found


def _select(source: Source) -> str:
    return f"""SELECT id, machine, workspace, {source.order} - priority * {POINT},
        CASE WHEN status = 1 THEN wake END FROM standing WHERE {source.scope}"""


def _fits(source: Source) -> str:
    return source.fits.replace("?", "CAST(? AS BIGINT)")
