"""A worker on another machine is woken through PostgreSQL: at once, and by its poll where that is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import asyncpg
import pytest

from perdure import Accept, Machine, Runtime, State, record
from perdure.runtime._env import Env
from perdure.runtime._liveness import Mark
from perdure.stores import Nudging, StoreUnavailable
from perdure.stores._postgres import PostgresStore
from perdure.stores._postgres_nudges import channel_of

pytestmark = pytest.mark.anyio

NEVER = timedelta(hours=1)
"""A poll that no test waits for: what happens, happens because of a nudge."""
SOON = 20.0


@record
class Talk:
    lines: tuple[str, ...] = ()


@record
class Word:
    text: str


class Desk(Machine[Talk], version=1):
    """Takes words."""

    opened = State(initial=True)
    closed = State(final=True)
    say = opened.to(opened).on_signal(Word)
    close = opened.to(closed).on_signal()

    @say.received
    def said(self, data: Talk, word: Word) -> Accept:
        return self.say(lines=(*data.lines, word.text))


def elsewhere(url: str, poll: timedelta = NEVER) -> Runtime[Any]:
    """What runs on another machine: no datagram from here reaches it."""
    env = Env(mark=lambda worker: Mark("elsewhere", ""))
    return Runtime(machines=[Desk], store=url, artifacts="memory:", env=env, poll=poll)


async def listeners(url: str, *, end: bool = False) -> int:
    """How many listen: what still runs LISTEN hears nothing yet."""
    name = channel_of(url.rpartition("=")[2])
    admin = await asyncpg.connect(url.partition("?")[0])
    counted = "count(*) FILTER (WHERE pg_terminate_backend(pid))" if end else "count(*)"
    count: int = await admin.fetchval(
        f"SELECT {counted} FROM pg_stat_activity WHERE state = 'idle' AND query LIKE $1", f"LISTEN%{name}%"
    )
    await admin.close()
    return count


@asynccontextmanager
async def heard_by(url: str, count: int) -> AsyncGenerator[None, None]:
    with anyio.fail_after(SOON):
        while await listeners(url) < count:
            """Until so many workers listen."""
        yield


async def test_a_start_and_signals_from_another_machine_are_taken_up_without_a_poll(
    postgres_schema: str,
) -> None:
    here = Runtime(machines=[Desk], store=postgres_schema, artifacts="memory:")
    async with elsewhere(postgres_schema), heard_by(postgres_schema, 1), here.client() as client:
        thread = await client.start(Desk, Talk(), thread_id="t")
        await thread.signal(Desk.say, Word(text="one"), id="1")
        await thread.signal(Desk.say, Word(text="two"), id="2")
        await thread.signal(Desk.close, id="3")
        assert (await thread.result()).data.lines == ("one", "two")


async def test_a_listening_connection_that_is_lost_is_made_anew(postgres_schema: str) -> None:
    async with elsewhere(postgres_schema), heard_by(postgres_schema, 1):
        assert await listeners(postgres_schema, end=True) == 1
        while not await listeners(postgres_schema):
            """Until it has another one."""
        async with Runtime(machines=[Desk], store=postgres_schema, artifacts="memory:").client() as client:
            thread = await client.start(Desk, Talk(), thread_id="t")
            await thread.signal(Desk.close, id="1")
            assert (await thread.result()).state == "closed"


async def test_where_nothing_can_be_heard_workers_poll(
    postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler shows each client a process number that is none of the server's."""
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda connection: 0)
    async with elsewhere(postgres_schema, timedelta(milliseconds=50)):
        async with Runtime(machines=[Desk], store=postgres_schema, artifacts="memory:").client() as client:
            thread = await client.start(Desk, Talk(), thread_id="t")
            await thread.signal(Desk.close, id="1")
            with anyio.fail_after(SOON):
                assert (await thread.result()).state == "closed"
        assert not await listeners(postgres_schema)


async def test_what_is_said_is_heard_by_all_of_one_schema_and_by_no_other(postgres_schema: str) -> None:
    said = "\"\\'" + "x" * 6997
    heard: list[str] = []
    other: list[str] = []
    enough = anyio.Event()

    def hear(said: str) -> None:
        heard.append(said)
        enough.set()

    store, beside = PostgresStore(postgres_schema), PostgresStore(f"{postgres_schema}_beside")
    with pytest.raises(StoreUnavailable, match="is not open"):
        await store.nudge("early")
    assert isinstance(store, Nudging)
    async with store, beside, anyio.create_task_group() as tasks:
        tasks.start_soon(store.listen, hear)
        tasks.start_soon(beside.listen, other.append)
        async with heard_by(postgres_schema, 1), heard_by(f"{postgres_schema}_beside", 1):
            await beside.nudge(said)
            await store.nudge(said)
            await enough.wait()
        tasks.cancel_scope.cancel()
    assert heard == [said]
    assert other == [said]
