"""A PostgreSQL server that dies, cuts connections off or turns read-only: nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta

import anyio
import anyio.lowlevel
import anyio.to_thread
import asyncpg
import pytest
from attrs import define, field
from servers.pgbouncer import pgbouncer
from servers.postgres import Postgres, postgres

from perdure import Fire, Machine, Runtime, State, Step, record
from perdure.runtime import Observation
from perdure.stores import Inbox, Log, OutcomeUnknown, StoreUnavailable, Threads
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import address_of, commit_of, signal_of, start_of, worker_of
from perdure.stores._postgres import PostgresStore
from perdure.stores._postgres_link import Link
from perdure.stores._postgres_place import find_place
from perdure.stores._postgres_session import Session

pytestmark = pytest.mark.anyio

THREADS, TRANSITIONS = 100, 5
FAULTS_AT = (60, 180, 320)
"""After so many transitions something happens to the server."""


@record
class Count:
    number: int = 0


class Counting(Machine[Count], version=1):
    """A few transitions."""

    counting = State(initial=True)
    done = State(final=True)
    again = counting.to(counting)
    finished = counting.to(done)

    @counting.handler
    async def count(self, data: Count, step: Step) -> Fire:
        fire = self.finished if data.number == TRANSITIONS - 1 else self.again
        return fire(number=data.number + 1)


@define
class Faults:
    """Lets something happen to the server while transitions go on."""

    happen: Callable[[], Awaitable[None]]
    landed: int = 0
    moments: dict[int, anyio.Event] = field(factory=lambda: {at: anyio.Event() for at in FAULTS_AT})

    def observe(self, seen: Observation, /) -> None:
        if seen.event is not None:
            self.landed += 1
            if self.landed in self.moments:
                self.moments[self.landed].set()

    async def run(self) -> None:
        for moment in self.moments.values():
            await moment.wait()
            await self.happen()


@pytest.fixture
def server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


async def run_through(url: str, happen: Callable[[], Awaitable[None]]) -> None:
    """Run threads to their ends while it happens, and look at every row that they left."""
    faults = Faults(happen)
    async with Runtime(machines=[Counting], store=url, artifacts="memory:", observers=[faults]) as runtime:

        async def one(number: int) -> None:
            thread = await runtime.start(Counting, Count(), thread_id=f"t{number}")
            assert (await thread.result()).data == Count(number=TRANSITIONS)

        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(faults.run)
                for number in range(THREADS):
                    tasks.start_soon(one, number)
    async with PostgresStore(url, read_only=True) as store:
        threads = await rows(store, Threads())
        assert len(threads) == THREADS
        for thread in threads:
            log = await rows(store, Log(address=thread.address))
            assert [row.n for row in log] == list(range(thread.n))
            assert [row.seq for row in log if row.kind == "transition"] == list(range(1, TRANSITIONS + 1))


async def test_a_server_that_is_killed_and_comes_back_loses_and_repeats_nothing(server: Postgres) -> None:
    async def die() -> None:
        await anyio.to_thread.run_sync(server.kill)
        await anyio.to_thread.run_sync(server.start)

    await run_through(server.url, die)


@pytest.mark.long
async def test_a_server_behind_a_pooler_may_die_too(server: Postgres) -> None:
    async def die() -> None:
        await anyio.to_thread.run_sync(server.kill)
        await anyio.to_thread.run_sync(server.start)

    with pgbouncer(server.port) as url:
        await run_through(url, die)


async def test_connections_that_the_server_ends_are_made_anew(postgres_schema: str) -> None:
    name = postgres_schema.rpartition("=")[2]

    async def end_connections() -> None:
        other = await asyncpg.connect(postgres_schema.partition("?")[0])
        while not await other.fetchval(  # while some are being made anew there may be none
            """SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE application_name = $1""",
            name,
        ):
            pass
        await other.close()

    await run_through(f"{postgres_schema}&application_name={name}", end_connections)


async def test_a_connection_that_the_server_ends_during_commit_is_nobodys_trouble(
    postgres_schema: str,
) -> None:
    """langgraph#7304: a trigger that waits for the commit ends the connection there, every so often."""
    async with PostgresStore(postgres_schema):
        pass
    schema = postgres_schema.rpartition("=")[2]
    admin = await asyncpg.connect(postgres_schema.partition("?")[0], server_settings={"search_path": schema})
    await admin.execute(
        """CREATE SEQUENCE rows_that_were_to_be;
        CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('SCHEMA.rows_that_were_to_be') % 60 = 0 THEN
                PERFORM pg_terminate_backend(pg_backend_pid());
            END IF;
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON log DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION die()""".replace("SCHEMA", schema)
    )

    async def nothing() -> None:
        pass

    await run_through(postgres_schema, nothing)
    assert await admin.fetchval("SELECT last_value FROM rows_that_were_to_be") >= THREADS * (TRANSITIONS + 1)
    await admin.close()


async def beat_on(store: PostgresStore) -> None:
    """Until it is refused: the server's processes hear of a change one after the other."""
    while True:
        await store.beat(worker_of("w1"))


async def test_a_server_that_turns_read_only_takes_no_writes_until_it_does_again(server: Postgres) -> None:
    async def set_read_only(state: str) -> None:
        admin = await asyncpg.connect(server.url)
        await admin.execute("SET default_transaction_read_only = off")
        await admin.execute(f"ALTER SYSTEM SET default_transaction_read_only = {state}")
        await admin.execute("SELECT pg_reload_conf()")
        await admin.close()

    async with PostgresStore(server.url) as store:
        await store.beat(worker_of("w1"))
        thread = (await store.start(start_of("t1", owner="w1"))).thread
        commit = commit_of(thread)
        await set_read_only("on")
        with pytest.raises(StoreUnavailable, match="takes no writes now"):
            await beat_on(store)
        with pytest.raises(StoreUnavailable, match="takes no writes now"):
            await store.commit(commit)
        assert len(await rows(store, Log(address=address_of("t1")))) == 1
        await set_read_only("off")
        with anyio.fail_after(60):
            while True:
                try:
                    await store.commit(commit)
                except StoreUnavailable:
                    continue
                break
        assert len(await rows(store, Log(address=address_of("t1")))) == 2


async def test_calls_that_are_cancelled_while_they_wait_for_a_connection_leak_none(
    postgres_schema: str,
) -> None:
    async with PostgresStore(f"{postgres_schema}&connections=1") as store:
        for _ in range(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(rows, store, Threads())
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            assert (await store.start(start_of("t1"))).created
            assert [thread.address.thread_id for thread in await rows(store, Threads())] == ["t1"]


async def test_machines_go_on_while_those_who_look_at_them_are_cancelled(postgres_schema: str) -> None:
    """asyncpg#467, #1356: a cancelled acquire leaked its slot, here one of two."""
    url = f"{postgres_schema}&connections=2"
    async with Runtime(machines=[Counting], store=url, artifacts="memory:") as runtime:
        ended: list[int] = []

        async def one(number: int) -> None:
            thread = await runtime.start(Counting, Count(), thread_id=f"t{number}")
            assert (await thread.result()).data == Count(number=TRANSITIONS)
            ended.append(number)

        async def look(number: int) -> None:
            await runtime.thread(Counting, thread_id=f"t{number}").history()

        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for number in range(200):
                    tasks.start_soon(one, number)
                while not ended:
                    await anyio.lowlevel.checkpoint()
                for _ in range(5):
                    async with anyio.create_task_group() as looking:
                        for number in ended[:10]:
                            looking.start_soon(look, number)
                        await anyio.lowlevel.checkpoint()
                        looking.cancel_scope.cancel()
        assert len(ended) == 200


async def test_a_transaction_that_takes_too_long_leaves_nobody_its_connection(
    postgres_schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with PostgresStore(f"{postgres_schema}&connections=1&timeout=1") as store:
        await store.start(start_of("t1"))
        other = await asyncpg.connect(postgres_schema.partition("?")[0])
        held = other.transaction()
        await held.start()
        await other.execute(f"SELECT 1 FROM {postgres_schema.rpartition('=')[2]}.standing FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await store.deliver(signal_of("s1", thread_id="t1"))
        await held.rollback()
        await other.close()
        assert (await store.deliver(signal_of("s1", thread_id="t1"))).new
        assert len(await rows(store, Inbox(address=address_of("t1")))) == 1
    assert [record for record in caplog.records if record.name == "asyncio"] == []  # as of one left open


async def test_a_transaction_of_many_statements_that_takes_too_long_is_ended(postgres_schema: str) -> None:
    async def work(session: Session) -> None:
        while True:
            await session.fetch("SELECT pg_sleep(0.5)", ())

    link = Link(find_place(f"{postgres_schema}&connections=1&timeout=1"))
    await link.open()
    try:
        with anyio.fail_after(60), pytest.raises(StoreUnavailable, match="transaction timeout"):
            await link.transact(work)
        assert await link.read("SELECT 1", ()) == [(1,)]
    finally:
        await link.close()


async def test_connections_to_a_server_that_was_the_primary_are_not_used_again(server: Postgres) -> None:
    """A setting of the role holds for the connections that are made after it, as a host's part does."""
    admin = await asyncpg.connect(server.url)
    async with PostgresStore(server.url) as store:
        await store.beat(worker_of("w1"))
    await admin.execute("ALTER ROLE postgres SET default_transaction_read_only = on")
    async with PostgresStore(server.url) as store:
        await admin.execute("ALTER ROLE postgres SET default_transaction_read_only = off")
        with pytest.raises(StoreUnavailable, match="takes no writes now"):
            await store.beat(worker_of("w1"))
        await store.beat(worker_of("w1"))
    await admin.close()


async def test_a_server_that_answers_no_more_is_given_up_and_taken_up_again(server: Postgres) -> None:
    async with PostgresStore(f"{server.url}?connections=1&timeout=1") as store:
        await store.beat(worker_of("w1"))
        server.freeze()
        try:
            with anyio.fail_after(60), pytest.raises((StoreUnavailable, OutcomeUnknown)):
                await store.beat(worker_of("w1"))
        finally:
            server.thaw()
        with anyio.fail_after(60):
            await beat_again(store)


async def test_to_open_a_store_on_a_server_that_stands_still_is_refused_in_time(server: Postgres) -> None:
    server.freeze()
    try:
        with anyio.fail_after(60), pytest.raises(StoreUnavailable, match="did not answer in time"):
            async with PostgresStore(f"{server.url}?timeout=1"):
                raise AssertionError("it answers")
    finally:
        server.thaw()
    async with PostgresStore(server.url) as store:
        await beat_again(store)


@pytest.mark.long
async def test_whoever_uses_a_server_that_stands_still_can_leave(server: Postgres) -> None:
    """asyncpg#547, #1356: to close a pool took for ever. A store, and a runtime with steps under way."""
    url = f"{server.url}?connections=2&timeout=1"
    runtime = Runtime(
        machines=[Counting], store=f"{url}&schema=other", artifacts="memory:", grace=timedelta(0)
    )
    try:
        with anyio.fail_after(60):
            async with PostgresStore(url) as store, runtime, anyio.create_task_group() as tasks:
                await store.beat(worker_of("w1"))
                for number in range(8):
                    await runtime.start(Counting, Count(), thread_id=f"t{number}")
                server.freeze()
                for number in range(8):
                    tasks.start_soon(store.start, start_of(f"t{number}"))
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
    finally:
        server.thaw()
    with anyio.fail_after(60):
        async with PostgresStore(url) as store:
            await beat_again(store)


async def beat_again(store: PostgresStore) -> None:
    """Until it is taken."""
    while True:
        try:
            await store.beat(worker_of("w1"))
        except (StoreUnavailable, OutcomeUnknown):
            continue
        return
