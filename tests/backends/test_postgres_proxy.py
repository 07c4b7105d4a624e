"""PostgreSQL behind a network that fails: at any byte, in either direction, in every way."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

import anyio
import pytest
from servers.proxy import Fault, Proxy, proxy

from perdure.stores import Log, OutcomeUnknown, StoreUnavailable, Threads
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import commit_of, signal_of, start_of
from perdure.stores._postgres import PostgresStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def between(postgres_server: str) -> AsyncGenerator[Proxy, None]:
    """A proxy before the server."""
    at = urlsplit(postgres_server)
    assert at.hostname is not None
    assert at.port is not None
    async with proxy(at.hostname, at.port) as made:
        yield made


def through(between: Proxy, url: str) -> str:
    """The URL of a store behind the proxy."""
    at = urlsplit(url)
    return at._replace(netloc=f"{at.username}@127.0.0.1:{between.port}").geturl()


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET])
async def test_a_connection_that_is_lost_before_anything_was_written_is_nobodys_trouble(
    fault: Fault, between: Proxy, postgres_schema: str
) -> None:
    async with PostgresStore(through(between, postgres_schema)) as store:
        await store.start(start_of("t1"))
        between.fail_at_answer_to(b"t1", fault)
        assert (await store.deliver(signal_of("s1", thread_id="t1"))).new
        assert between.struck.is_set()
        between.fail_after(0, fault, answers=True)
        assert len(await rows(store, Threads())) == 1
        assert between.struck.is_set()


async def test_a_commit_whose_answer_is_lost_is_unknown_and_lands_once(
    between: Proxy, postgres_schema: str
) -> None:
    async with PostgresStore(through(between, postgres_schema)) as store:
        thread = (await store.start(start_of("t1"))).thread
        commit = commit_of(thread)
        between.fail_at_answer_to(commit.log.head, Fault.CUT)
        with pytest.raises(OutcomeUnknown):
            await store.commit(commit)
        await store.commit(commit)
        assert [row.n for row in await rows(store, Log(address=thread.address))] == [0, 1]


@pytest.mark.parametrize("prepared", [False, True])
async def test_a_network_that_falls_silent_in_a_transaction_leaves_nothing_locked(
    prepared: bool, between: Proxy, postgres_schema: str
) -> None:
    """The server has sent its answer and hears nothing more: for hours, if it were left to TCP."""
    away = f"{through(between, postgres_schema)}&timeout=2&connections=1"
    async with PostgresStore(postgres_schema) as other, PostgresStore(away) as store:
        await other.start(start_of("t1"))
        if prepared:
            await store.deliver(signal_of("s0", thread_id="t2"))
        between.fail_at_answer_to(b"t1" if prepared else b"FOR UPDATE", Fault.SILENCE)
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await store.deliver(signal_of("s1", thread_id="t1"))
        assert between.struck.is_set()
        with anyio.fail_after(5 if prepared else 30):
            assert (await other.deliver(signal_of("s2", thread_id="t1"))).new
