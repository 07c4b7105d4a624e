"""Whoever writes is cancelled, at each await on the way: all of it is there or nothing, and others go on."""

from __future__ import annotations

import asyncio
import threading
import types
from asyncio import sleep
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from harness.engine import CALLS, Engine, Note, Sim, World, kept, looked, simulated
from harness.loop import SimLoop

from perdure.machines import Accept, Fire, Machine, State, Step
from perdure.runtime._verify import verify
from perdure.stores import Expire, Release, SQLiteStore, Store, ThreadRow, Threads
from perdure.stores._contract_atomic import PARTS, _look, _stage
from perdure.stores._contract_kit import Snapshot
from perdure.stores._contract_make import (
    T0,
    artifact_of,
    commit_of,
    remember_of,
    request_of,
    signal_of,
    start_of,
    thread_at,
    worker_of,
)


@types.coroutine
def cancelling(call: Coroutine[Any, Any, Any], at: int) -> Generator[Any, Any, Any]:
    """Await the call, cancelled where it waits for the ``at``-th time."""
    task = asyncio.current_task()
    assert task is not None
    waits = 0
    error: BaseException | None = None
    while True:
        try:
            waiting = call.send(None) if error is None else call.throw(error)
        except StopIteration as over:
            return over.value
        waits += 1
        if waits == at:
            task.cancel()
        try:
            error = None
            yield waiting
        except BaseException as raised:
            error = raised


async def cancelled(call: Coroutine[Any, Any, Any], at: int) -> bool:
    """Cancel the call at its ``at``-th await; False where it is over before that."""

    async def run() -> None:
        await cancelling(call, at)

    [outcome] = await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
    if outcome is not None and not isinstance(outcome, asyncio.CancelledError):
        raise outcome
    return outcome is not None


# --- the engine, in simulated time ---------------------------------------------------------------------


class Two(Machine[Note, World], version=1, calls=CALLS):
    """A kept read, an effect, and a signal."""

    working = State(initial=True)
    waiting = State()
    done = State(final=True)
    worked = working.to(waiting)
    told = waiting.to(done).on_signal(str)

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        text = await step.call(kept, "a")
        return self.worked(text=await step.call(looked, text), lines=["worked"])

    @told.received
    def hear(self, data: Note, what: str) -> Accept:
        return self.told(more=what)


async def play(engine: Engine) -> None:
    thread = await engine.runtime.start(Two, Note(), thread_id="t", workspace="w")
    await thread.signal(Two.told, "yes", id="s1")


async def judge(sim: Sim) -> None:
    """Everything is there, once."""
    row = await sim.row()
    assert (row.standing.status, row.standing.state) == ("ended", "done")
    assert len(sim.world.arrivals) == 1
    data = await sim.thread(Two).data()
    assert (data.more, data.lines) == ("yes", ("worked",))
    assert (await verify(sim.store, row)).broken is None


async def slowly(*_: object) -> None:
    await sleep(0.01)


async def played(sim: Sim, at: int) -> bool:
    """A caller is cancelled at its ``at``-th await, and the next one does the same; False where there are
    fewer."""
    engine = await sim.engine()
    engine.store.at = slowly
    hit = await engine.inside(lambda: cancelled(play(engine), at))
    engine.store.at = None
    await engine.inside(lambda: play(engine))
    await sim.until("ended")
    await engine.end()
    return hit


@simulated
async def test_whoever_starts_and_signals_is_cancelled_at_each_await(loop: SimLoop) -> None:
    at = 1
    while await played(sim := Sim(loop, Two), at):
        await judge(sim)
        at += 1
    assert at > 6


@simulated
@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_run_is_cancelled_in_each_of_its_writes(loop: SimLoop, side: str) -> None:
    """The worker is left while a write hangs, so that in the end its tasks are cancelled where they wait."""
    at = 1
    while await left_in_a_write(sim := Sim(loop, Two, grace=timedelta(0)), at, side):
        began = loop.elapsed
        await played(sim, 10_000)
        assert loop.elapsed - began < 15  # the effect's deadline and settle, at the most
        await judge(sim)
        at += 1
    assert at > 8


async def left_in_a_write(sim: Sim, at: int, side: str) -> bool:
    """Leave a worker when its ``at``-th write from the start on hangs; False where there are fewer."""
    engine = await sim.engine()
    hangs = asyncio.Event()
    writes = 0

    async def hang(where: str, *_: object) -> None:
        nonlocal writes
        writes += where == side
        if where == side and writes == at:
            hangs.set()
            await sleep(60)

    engine.store.at = hang
    playing = asyncio.ensure_future(engine.inside(lambda: play(engine)))
    over = asyncio.ensure_future(sim.until("ended"))
    await asyncio.wait([asyncio.ensure_future(hangs.wait()), over], return_when=asyncio.FIRST_COMPLETED)
    await engine.end()
    for task in (playing, over):
        task.cancel()
    return hangs.is_set()


# --- a real file ------------------------------------------------------------------------------------

Write = Callable[[], Coroutine[Any, Any, Any]]


def commit(store: Store, thread: ThreadRow) -> Write:
    give: dict[str, Any] = {}
    for part in PARTS:
        for name, value in part.give.items():
            give[name] = (*give.get(name, ()), *value) if isinstance(value, tuple) else value
    whole = commit_of(thread, **give)
    return lambda: store.commit(whole)


def release(store: Store, thread: ThreadRow) -> Write:
    given_up = Release(
        address=thread.address,
        incarnation=thread.incarnation,
        epoch=thread.epoch,
        status="running",
        wake=None,
        inbox_seen=0,
    )
    return lambda: store.release([given_up])


WRITES: dict[str, Callable[[Store, ThreadRow], Write]] = {
    "commit": commit,
    "release": release,
    "start": lambda store, _: lambda: store.start(start_of("t9", owner="w1")),
    "claim": lambda store, _: lambda: store.claim(request_of("w2", dead=("w1",))),
    "deliver": lambda store, _: lambda: store.deliver(signal_of("s3")),
    "upload": lambda store, _: lambda: store.upload(artifact_of("a9", None)),
    "remember": lambda store, _: lambda: store.remember(remember_of("note", b"fact", None, id="w")),
    "expire": lambda store, _: lambda: store.expire(Expire(at=T0, limit=10)),
}


@asynccontextmanager
async def staged(file: Path) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(file, clock=lambda: T0) as store:
        await _stage(store)
        yield store


async def others_write_at_once(store: Store, file: Path) -> None:
    """In this process, and from a connection of its own."""
    with anyio.fail_after(2):
        await store.beat(worker_of("w8"))
        async with SQLiteStore(file, clock=lambda: T0) as other:
            await other.beat(worker_of("w9"))


@pytest.mark.anyio
@pytest.mark.parametrize("name", WRITES)
async def test_a_write_to_a_file_lands_whole_or_not_at_all(name: str, tmp_path: Path) -> None:
    async with staged(tmp_path / "undisturbed.db") as store:
        before = await _look(store)
        await WRITES[name](store, await thread_at(store))()
        whole: Snapshot = await _look(store)
    at, hit = 1, True
    while hit:
        async with staged(tmp_path / f"{at}.db") as store:
            write = WRITES[name](store, await thread_at(store))
            hit = await cancelled(write(), at)
            await others_write_at_once(store, tmp_path / f"{at}.db")
            assert await _look(store) in (before, whole)
            await write()
            assert await _look(store) == whole
        at += 1
    assert at > 2


async def opened_or_closed(act: str, at: int, file: Path) -> bool:
    """Cancel the opening or the closing of a file at its ``at``-th await; False where there are fewer."""
    store = SQLiteStore(file, clock=lambda: T0)
    if act == "close":
        await store.__aenter__()
        await _stage(store)
        return await cancelled(store.__aexit__(None, None, None), at)
    hit = await cancelled(store.__aenter__(), at)
    if not hit:
        await store.__aexit__(None, None, None)
    return hit


@pytest.mark.anyio
@pytest.mark.parametrize(("act", "threads"), [("open", 0), ("close", 2)])
async def test_a_file_that_was_being_opened_or_closed_opens_at_once(
    act: str, threads: int, tmp_path: Path
) -> None:
    before, at = set(threading.enumerate()), 1
    while await opened_or_closed(act, at, file := tmp_path / f"{at}.db"):
        with anyio.fail_after(2):
            async with SQLiteStore(file, clock=lambda: T0) as other:
                await other.beat(worker_of("w9"))
                assert len((await other.page(Threads())).rows) == threads
        at += 1
    assert at > 2
    for left in set(threading.enumerate()) - before:
        if not left.name.startswith("AnyIO"):  # any other would keep the process
            await anyio.to_thread.run_sync(left.join, 2)
            assert not left.is_alive(), left
