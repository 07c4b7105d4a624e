"""PostgreSQL behind a network that fails: at any byte, in either direction, in every way."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import anyio
import asyncpg
import pytest
from attrs import define
from servers.proxy import Fault, Proxy, proxy

from perdure.stores import ClaimRequest, Inbox, Log, OutcomeUnknown, StoreUnavailable, Threads
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import (
    WORKSPACE,
    address_of,
    after,
    commit_of,
    request_of,
    signal_of,
    start_of,
    thread_at,
    worker_of,
)
from perdure.stores._postgres import PostgresStore

pytestmark = pytest.mark.anyio

T = TypeVar("T")

SAMPLES = {Fault.CUT: 6, Fault.RESET: 4, Fault.SILENCE: 2}
"""So many pieces, and so many bytes, at which one is tried."""


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


@define
class Job:
    """A few threads that are started, moved on, signalled, claimed and looked at, all at once."""

    store: PostgresStore
    direct: PostgresStore
    """The same store, past the proxy: what is really there."""
    names: Sequence[str]

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for name in self.names:
                tasks.start_soon(self._one, name)

    async def _one(self, name: str) -> None:
        address = address_of(name)
        thread = (await self._sure(lambda: self.store.start(start_of(name)), lambda: self._n(name, 1))).thread
        for n in (2, 3):
            commit = commit_of(thread, release=n == 3)
            await self._sure(partial(self.store.commit, commit), partial(self._n, name, n))
            thread = after(thread, commit)
        signal = signal_of("s1", thread_id=name)
        await self._sure(lambda: self.store.deliver(signal), lambda: self._signalled(name))
        request = request_of("w2", only=address, dead=[])
        await self._sure(lambda: self._claim(request), lambda: self._owned(name))
        await self._sure(lambda: rows(self.store, Log(address=address)), lambda: self._n(name, 3))

    async def _sure(self, call: Callable[[], Awaitable[T]], landed: Callable[[], Awaitable[bool]]) -> T:
        """Call until it is answered, and hold each answer against what is there."""
        while True:
            before = await landed()
            try:
                answer = await call()
            except StoreUnavailable:
                assert await landed() == before, "it was said that nothing was written"
            except OutcomeUnknown:
                pass
            else:
                assert await landed(), "it was said that it was written"
                return answer

    async def _claim(self, request: ClaimRequest) -> None:
        assert request.only is not None
        # A claim whose reply was lost may still hold the thread's row: the next one passes it by until then.
        while not await self._owned(request.only.thread_id):
            await self.store.claim(request)

    async def _n(self, name: str, least: int) -> bool:
        page = await self.direct.page(Threads(workspace=WORKSPACE, thread_id=name))
        return bool(page.rows) and page.rows[0].n >= least

    async def _signalled(self, name: str) -> bool:
        return bool((await self.direct.page(Inbox(address=address_of(name)))).rows)

    async def _owned(self, name: str) -> bool:
        return (await thread_at(self.direct, name)).owner == "w2"

    async def check(self) -> None:
        """Nothing was lost, and nothing came twice."""
        for name in self.names:
            thread = await thread_at(self.direct, name)
            assert (thread.n, thread.epoch, thread.owner) == (3, 2, "w2")
            log = await rows(self.direct, Log(address=thread.address))
            assert [(row.n, row.seq) for row in log] == [(0, 0), (1, 1), (2, 2)]
            assert [row.id for row in await rows(self.direct, Inbox(address=thread.address))] == ["s1"]


async def connections(url: str, name: str) -> int:
    """How many of this name the server has."""
    admin = await asyncpg.connect(url.partition("?")[0])
    count: int = await admin.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name
    )
    await admin.close()
    return count


async def opened(stack: AsyncExitStack, url: str) -> PostgresStore:
    while True:
        try:
            return await stack.enter_async_context(PostgresStore(url))
        except (StoreUnavailable, OutcomeUnknown):
            continue


async def run_job(between: Proxy, url: str, direct: PostgresStore, name: str) -> None:
    """Run a job behind the proxy, whatever happens there, and count what is left of its connections."""
    away = f"{through(between, url)}&connections=2&timeout=1&application_name={name}"
    with anyio.fail_after(30):
        async with AsyncExitStack() as stack:
            job = Job(await opened(stack, away), direct, [f"{name}-{each}" for each in range(3)])
            await job.run()
            between.resume()
            await job.check()
            while await connections(url, name) > 2:
                """Until the server has heard of those that were lost."""
        while await connections(url, name):
            """Until it has heard of all."""
        await job.check()


def points_of(between: Proxy, *, answers: bool, samples: int | None) -> Sequence[int]:
    """Bytes of what has passed: where a piece begins, which is in place of an answer, and anywhere in it."""
    begins, every = between.pieces[answers], range(0, between.passed[answers], 29)
    if samples is None:
        return [*begins, *every]
    chosen = random.Random(samples)
    return [*chosen.sample(begins, samples), *chosen.sample(every, samples)]


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("answers", [False, True])
async def test_a_network_that_fails_at_any_byte_loses_and_repeats_nothing(
    fault: Fault, answers: bool, between: Proxy, postgres_schema: str, full_sweep: bool
) -> None:
    async with PostgresStore(postgres_schema) as direct:
        await direct.beat(worker_of("w2"))
        await run_job(between, postgres_schema, direct, "clean")
        points = points_of(between, answers=answers, samples=None if full_sweep else SAMPLES[fault])
        struck = 0
        for point in points:
            between.fail_after(point, fault, answers=answers)
            await run_job(between, postgres_schema, direct, f"at-{point}")
            struck += between.struck.is_set()
            between.behave()
        assert struck > len(points) // 2


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


@pytest.mark.parametrize("fault", Fault)
async def test_a_commit_whose_answer_is_lost_is_unknown_and_lands_once(
    fault: Fault, between: Proxy, postgres_schema: str
) -> None:
    async with PostgresStore(f"{through(between, postgres_schema)}&timeout=1") as store:
        thread = (await store.start(start_of("t1"))).thread
        commit = commit_of(thread)
        between.fail_at_answer_to(commit.log.head, fault)
        with pytest.raises(OutcomeUnknown):
            await store.commit(commit)
        await store.commit(commit)
        assert [row.n for row in await rows(store, Log(address=thread.address))] == [0, 1]


@pytest.mark.parametrize("fault", Fault)
async def test_a_claim_whose_answer_is_lost_is_unknown_and_takes_its_thread_once(
    fault: Fault, between: Proxy, postgres_schema: str
) -> None:
    async with PostgresStore(f"{through(between, postgres_schema)}&timeout=1") as store:
        await store.beat(worker_of("w2"))
        await store.start(start_of("t1", owner=None))
        between.fail_at_answer_to(b"COMMIT\0", fault)
        with pytest.raises(OutcomeUnknown):
            await store.claim(request_of("w2"))
        assert (await thread_at(store)).owner == "w2"
        assert (await thread_at(store)).epoch == 1
        assert not (await store.claim(request_of("w2"))).claims


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
