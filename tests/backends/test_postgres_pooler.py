"""PostgreSQL behind PgBouncer, which hands a connection to another client after each transaction."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import anyio
import pytest
from crash.running import sweep
from servers.pgbouncer import CONNECTIONS, pgbouncer

from perdure.stores import StoreUnavailable, Threads
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import start_of
from perdure.stores._postgres import PostgresStore
from perdure.stores.contract import CHECKS, Check, Clock, Kit

pytestmark = pytest.mark.long


@pytest.fixture(scope="session")
def pooler(postgres_server: str) -> Iterator[str]:
    """The URL of a pooler before the server that the tests of this process share."""
    port = urlsplit(postgres_server).port
    assert port is not None
    with pgbouncer(port) as url:
        yield url


@pytest.fixture
def pooled(pooler: str) -> str:
    """The URL of a store of this test's own, which does not exist yet."""
    return f"{pooler}&schema=test_{uuid.uuid4().hex}"


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_store_contract(check: Check, pooled: str) -> None:
    clock = Clock()
    await check.run(Kit(open=lambda: PostgresStore(pooled, clock=clock), clock=clock))


def test_distinct_points_of_the_example(pooler: str) -> None:
    report = sweep(pooler, "summary", "distinct", "--every", "6")
    assert report["faults"] == []
    assert report["kills"] >= report["runs"] // 2


@pytest.mark.anyio
async def test_more_at_once_than_it_has_connections(pooled: str) -> None:
    many = 50 * CONNECTIONS
    async with PostgresStore(pooled) as store, PostgresStore(pooled) as beside:
        async with anyio.create_task_group() as tasks:
            for number in range(many):
                tasks.start_soon((store, beside)[number % 2].start, start_of(f"t{number}"))
                tasks.start_soon(rows, beside, Threads())
        assert len(await rows(store, Threads())) == many


@pytest.mark.anyio
async def test_with_prepared_statements_it_says_what_to_write(pooled: str) -> None:
    url = pooled.replace("statement_cache_size=0", "statement_cache_size=100")
    with pytest.raises(StoreUnavailable, match=r"write \?statement_cache_size=0 behind its URL"):
        await work_side_by_side(url)


async def work_side_by_side(url: str) -> None:
    """Until two stores have each had connections that the other prepared statements on."""
    async with PostgresStore(url) as store, PostgresStore(url) as beside:
        for number in range(100):
            both = (store, beside) * CONNECTIONS
            await asyncio.gather(*(each.start(start_of(f"t{number}")) for each in both))
