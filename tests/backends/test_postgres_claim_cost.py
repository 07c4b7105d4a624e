"""What a claim costs PostgreSQL does not grow with what is stored: counted in pages, not in time."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import pytest

from perdure.stores import ClaimRequest, open_store
from perdure.stores._contract_make import MACHINE, T0, request_of
from perdure.stores._postgres_claims import claim
from perdure.stores._postgres_session import Session, translate
from perdure.stores._sql_steps import Row

pytestmark = pytest.mark.anyio

# One has another priority than all others, so that whatever looks for it without its index sees them all.
FILL = """INSERT INTO standing (id, incarnation, machine, state, seq, version, definition, status, base, n,
        epoch, owner, crashes, inbox, wake, items, schema, workspace, priority, since)
    SELECT i, '', g.machine, 's', 0, 1, 'd', g.status, 0, 1, 0, g.owner, 0, 0, g.at + i, 0, 2,
        g.workspace || (i % g.workspaces), CASE WHEN i = 7 THEN 3 ELSE 0 END, g.at + i
    FROM generate_series(CAST(? AS BIGINT), CAST(? AS BIGINT)) AS i,
        (SELECT CAST(? AS TEXT) AS machine, CAST(? AS BIGINT) AS status, CAST(? AS TEXT) AS owner,
            CAST(? AS BIGINT) AS at, CAST(? AS TEXT) AS workspace, CAST(? AS BIGINT) AS workspaces) AS g"""

KINDS: dict[str, tuple[int, str | None, int]] = {
    "runs": (0, None, T0 - 10**9),
    "waits": (1, None, T0 + 10**9),
    "due": (1, None, T0 - 10**9),
    "left": (0, "dead", T0 - 10**9),
}
"""Status, owner, and about when it is to wake."""
LIMITS: Sequence[dict[str, object]] = (
    {},
    {"at_once": {MACHINE: 5}},
    {"late_before": T0 - 1, "late_limit": 3},
    {"late_before": T0 - 10**10, "late_limit": 3},  # none is
)


class Counting(Session):
    """Counts the pages that its statements look at. What writes is not counted: it is told by number what to
    write."""

    pages: int = 0

    async def fetch(self, statement: str, values: Row) -> Sequence[Row]:
        if statement.startswith(("SELECT", "WITH", "(")):
            explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {translate(statement, self.quoted)}"
            [plan] = json.loads(await self.connection.fetchval(explained, *values))
            self.pages += plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        return await super().fetch(statement, values)


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Counting, None]:
    """A new store, in which thread 1 runs, in a workspace of its own."""
    async with open_store(url):
        pass
    server, _, schema = url.partition("?schema=")
    async with asyncpg.create_pool(server, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        session = Counting(connection, schema, "")
        await session.fetch(FILL, (1, 1, MACHINE, *KINDS["runs"], "small", 1))
        yield session
        await session.run(f"DROP SCHEMA {schema} CASCADE")


async def fill(session: Counting, kind: str, numbers: range, workspaces: int) -> None:
    """So many threads of one kind."""
    await session.fetch(FILL, (numbers[0], numbers[-1], MACHINE, *KINDS[kind], "big", workspaces))


async def costs(session: Counting, requests: Sequence[ClaimRequest]) -> list[tuple[int, set[int]]]:
    """Of each claim: pages, and which threads it took. It is taken back."""
    found: list[tuple[int, set[int]]] = []
    for request in requests:
        session.pages = 0
        await session.run("BEGIN")
        await claim(session, request, {}, T0)
        pages = session.pages
        taken = await session.fetch("SELECT id FROM standing WHERE owner = ?", (request.worker,))
        await session.run("ROLLBACK")
        found.append((pages, {row[0] for row in taken}))
    return found


async def grown(
    url: str, kind: str, requests: Sequence[ClaimRequest], sizes: tuple[int, int], workspaces: tuple[int, int]
) -> AsyncGenerator[tuple[int, set[int], int, set[int]], None]:
    """Pages and threads of claims among few, and then among many: as long as the planner has not looked at
    them, and when it has."""
    async with opened(url) as session:
        await fill(session, kind, range(2, sizes[0]), workspaces[0])
        few = await costs(session, requests)
        await fill(session, kind, range(sizes[0], sizes[1]), workspaces[1])
        many = await costs(session, requests)
        await session.run(f"ANALYZE {session.quoted}.standing")
        many += await costs(session, requests)
    for (pages, taken), (more_pages, more_taken) in zip(few * 2, many, strict=True):
        yield pages, taken, more_pages, more_taken


@pytest.mark.parametrize("kind", KINDS)
async def test_a_claim_does_not_grow_with_one_workspace(postgres_schema: str, kind: str) -> None:
    requests = [request_of("w1", limit=10, **limits) for limits in LIMITS]
    async for pages, taken, more_pages, more_taken in grown(
        postgres_schema, kind, requests, (500, 20_000), (1, 1)
    ):
        assert len(taken) == len(more_taken)
        assert 1 in taken & more_taken  # the other workspace's one
        assert more_pages < 1.3 * pages
        assert more_pages < 1_000


@pytest.mark.parametrize("kind", KINDS)
async def test_a_claim_does_not_grow_with_the_workspaces(postgres_schema: str, kind: str) -> None:
    requests = [request_of("w1", limit=10)]
    async for pages, taken, more_pages, more_taken in grown(
        postgres_schema, kind, requests, (1_000, 10_000), (100, 1_000)
    ):
        assert len(taken) == len(more_taken) == (1 if kind == "waits" else 10)
        assert more_pages < 1.3 * pages
        assert more_pages < 5_000
