"""Starts that arrive together share a statement in PostgreSQL, and each answers as if it came alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest
from attrs import evolve

from perdure.stores import Inbox, Items, Log, MemoryStore, Messages, Start, Started, Store, Threads
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import (
    T0,
    address_of,
    commit_of,
    signal_of,
    standing_of,
    start_of,
    thread_at,
)
from perdure.stores._postgres import PostgresStore
from perdure.stores._postgres_session import lock_key

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(postgres_schema: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres_schema, clock=lambda: T0) as store:
        yield store


@pytest.fixture
async def server(postgres_schema: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection beside the store's own, in its schema."""
    url, _, schema = postgres_schema.partition("?schema=")
    connection = await asyncpg.connect(url, server_settings={"search_path": schema})
    yield connection
    await connection.close()


async def start_together(store: Store, starts: list[Start]) -> list[Started]:
    """Start threads in one turn of the loop; the answers in their order."""
    answers: dict[str, Started] = {}

    async def one(start: Start) -> None:
        answers[start.address.thread_id] = await store.start(start)

    async with anyio.create_task_group() as group:
        for start in starts:
            group.start_soon(one, start)
    return [answers[start.address.thread_id] for start in starts]


async def lived(store: Store) -> None:
    """A thread that is there already, one that a signal has come for, and a session with a message."""
    thread = (await store.start(start_of("taken", started=b"before"))).thread
    await store.commit(commit_of(thread, messages=(b"hello",)))
    await store.deliver(signal_of("early", "awaited"))


STARTS = [
    start_of("new"),
    start_of("free", owner=None, priority=3, parent="p"),
    start_of("waiting", owner=None, status="waiting", wake=T0 + 5),
    start_of("with items", items=b"items"),
    start_of("noted", standing=standing_of(state="s", note="n", reason="r", expires=T0 + 9, items=0)),
    start_of("awaited"),
    start_of("taken"),
    start_of("signalled", signals=(signal_of("s1", "signalled"),)),
    start_of("talking", messages=(b"one", b"two"), session="other"),
]


async def test_starts_that_share_a_statement_answer_and_write_as_those_that_come_alone(
    store: PostgresStore,
) -> None:
    async with MemoryStore(lambda: T0) as alone:
        await lived(alone)
        await lived(store)
        wanted = [await alone.start(start) for start in STARTS]
        assert await start_together(store, STARTS) == wanted
        for start in STARTS:
            address = start.address
            assert await thread_at(store, address.thread_id) == await thread_at(alone, address.thread_id)
            assert await rows(store, Log(address=address)) == await rows(alone, Log(address=address))
            assert await rows(store, Items(address=address)) == await rows(alone, Items(address=address))
            talk = Messages(workspace=address.workspace, session=start.session)
            assert await rows(store, talk) == await rows(alone, talk)
            assert await rows(store, Inbox(address=address)) == await rows(alone, Inbox(address=address))


async def test_starts_that_arrive_together_are_one_transaction(
    store: PostgresStore, server: asyncpg.Connection
) -> None:
    await store.start(start_of("taken"))
    await start_together(store, [start_of("taken", started=b"else"), *(start_of(f"t{i}") for i in range(50))])
    [row] = await server.fetch(
        "SELECT count(*), count(DISTINCT s.xmin::text) FROM standing s JOIN thread t ON t.id = s.id"
        " WHERE t.thread_id <> 'taken'"
    )
    assert tuple(row) == (50, 1)


async def test_one_start_that_no_row_can_hold_takes_none_of_the_others_along(store: PostgresStore) -> None:
    spoilt = evolve(start_of("spoilt"), parent="a lone surrogate: \ud800")
    answers: list[object] = []

    async def one(start: Start) -> None:
        try:
            answers.append((await store.start(start)).thread.address.thread_id)
        except ValueError as error:
            answers.append(type(error))

    async with anyio.create_task_group() as group:
        for start in (start_of("before"), spoilt, start_of("behind")):
            group.start_soon(one, start)
    assert len(answers) == 3
    there = {thread.address.thread_id for thread in await rows(store, Threads())}
    assert there == {"before", "behind"}


async def test_the_same_starts_sent_again_change_nothing(store: PostgresStore) -> None:
    starts = [start_of(f"t{i}") for i in range(10)]
    first = await start_together(store, starts)
    assert await start_together(store, starts) == first
    assert all(answer.created for answer in first)


async def test_a_start_waits_for_a_signal_to_its_thread_and_finds_it(
    store: PostgresStore, server: asyncpg.Connection, postgres_schema: str
) -> None:
    """As a signal does that another process is about to write: it has the lock, and no row yet."""
    key = lock_key(postgres_schema.rpartition("=")[2], "thread", "acme", "awaited")
    answers: list[list[Started]] = []

    async def start() -> None:
        answers.append(await start_together(store, [start_of("awaited"), start_of("other")]))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group, server.transaction():
            await server.execute("SELECT pg_advisory_xact_lock($1)", key)
            group.start_soon(start)
            while not await server.fetchval(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            ):
                await anyio.lowlevel.checkpoint()
            number = await server.fetchval(
                "INSERT INTO thread (workspace, thread_id) VALUES ('acme', 'awaited') RETURNING id"
            )
            signal = signal_of("early", "awaited")
            await server.execute(
                "INSERT INTO inbox (thread, number, id, event, payload, digest, at, schema, version)"
                " VALUES ($1, 1, $2, $3, $4, $5, 1, 2, 0)",
                number,
                signal.id,
                signal.event,
                signal.payload,
                signal.digest,
            )
    [[awaited, other]] = answers
    assert awaited.created
    assert [row.id for row in awaited.inbox] == ["early"]
    assert (awaited.thread.inbox, other.thread.inbox) == (1, 0)
    assert [row.n for row in await rows(store, Log(address=address_of("awaited")))] == [0]
