"""The heartbeat beside the event loop, and the watch over that loop."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.engine import Sim, again, job, simulated
from harness.loop import SimLoop

from perdure import Call, Fire, Machine, Runtime, State, Step, effect, read, record
from perdure.runtime._clock import StoreClock
from perdure.runtime._heartbeat import BeatingThread, Heartbeat
from perdure.runtime._stall import TICK, LoopWatch
from perdure.stores import MemoryStore, StoreUnavailable, ThreadRow, Threads, WorkerRow, system_clock

LEASE = timedelta(milliseconds=700)
QUICK = timedelta(milliseconds=50)


@record
class Empty:
    """Nothing."""


@define
class Far:
    """What the machine meets, and the test's hold on it."""

    path: Path
    blocked: int = 0
    issued: list[str] = field(factory=list[str])

    def block(self, span: timedelta) -> None:
        """Return once the thread's owner has been seen alive for so long."""
        self.blocked += 1
        owner = "SELECT w.beat FROM worker w JOIN standing s ON s.owner = w.id"
        until, patience = None, time.monotonic() + 30
        with sqlite3.connect(self.path) as db:
            while time.monotonic() < patience:
                ((beat,),) = db.execute(owner).fetchall()
                until = until or beat + span / timedelta(microseconds=1)
                if beat >= until:
                    return
                time.sleep(0.02)
        raise AssertionError("no heartbeat came while the loop was blocked")


@read
async def block(call: Call[Far]) -> None:
    call.deps.block(3 * LEASE)


@effect
async def act(call: Call[Far]) -> None:
    call.deps.issued.append(call.key)


class Blocking(Machine[Empty, Far], version=1, calls=[block, act]):
    """Blocks the event loop for three leases, then acts."""

    working = State(initial=True)
    done = State(final=True)
    worked = working.to(done)

    @working.handler
    async def work(self, data: Empty, step: Step[Far]) -> Fire:
        await step.call(block)
        await step.call(act)
        return self.worked()


def worker_of(far: Far) -> Runtime[Far]:
    store = f"sqlite:///{far.path}"
    return Runtime(machines=[Blocking], deps=far, store=store, artifacts="memory:", lease=LEASE, poll=QUICK)


async def only_row(runtime: Runtime[Far]) -> ThreadRow:
    [row] = [row async for row in runtime.threads(Threads())]
    return row


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Far]:
    """A second worker on the same store, on a loop in a thread of its own."""
    far = Far(tmp_path / "perdure.db")
    up, leave = threading.Event(), threading.Event()

    async def run() -> None:
        async with worker_of(far):
            up.set()
            await asyncio.to_thread(leave.wait)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert up.wait(30)
    yield far
    leave.set()
    thread.join(30)


@pytest.mark.anyio
async def test_a_handler_that_blocks_for_three_leases_keeps_its_thread_beside_a_worker_that_polls(
    peer: Far, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure")
    far = Far(tmp_path / "perdure.db")
    async with worker_of(far) as runtime:
        thread = await runtime.start(Blocking, Empty(), thread_id="t")
        await thread.result()
        row = await only_row(runtime)
    assert (row.epoch, row.crashes, far.blocked, peer.blocked) == (1, 0, 1, 0)
    assert (len(far.issued), peer.issued) == (1, [])
    begun = next(line for line in caplog.messages if "the event loop" in line)
    assert "is blocked by machine 'Blocking', thread 't', state 'working'" in begun
    assert f"{__file__}:" in begun


# --- the thread


def heartbeat(store: MemoryStore, *, stalled: bool = False) -> Heartbeat:
    row = WorkerRow(id="me", host="h", pid=1, lock="", lease=30_000, started=0, beat=0)
    lease = timedelta(milliseconds=30)
    clock = StoreClock(system_clock)
    return Heartbeat(store, clock, row, lease, time=time.monotonic, stalled=lambda: stalled)


class Counted(MemoryStore):
    """Counts beats, and can be told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.beats = 0
        self.fails: list[BaseException] = []

    async def beat(self, worker: WorkerRow, /, *more: Any) -> int:
        if self.fails:
            raise self.fails.pop(0)
        self.beats += 1
        return await super().beat(worker, *more)


async def until(true: Any) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - another thread makes it so
            await asyncio.sleep(0.005)


@pytest.mark.anyio
async def test_a_connection_that_fails_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime._heartbeat.REOPEN_PAUSE", 0.01)
    store, opened = Counted(), 0

    def beside() -> Counted:
        nonlocal opened
        opened += 1
        if opened == 1:
            raise OSError("no such disk")
        return store

    keeping = asyncio.create_task(BeatingThread(heartbeat(store), beside).keep())
    store.fails = [StoreUnavailable("gone for a moment")]
    await until(lambda: store.beats >= 2)
    keeping.cancel()
    await asyncio.wait([keeping])
    assert (keeping.cancelled(), opened, store.fails) == (True, 2, [])
    await until(lambda: not [each for each in threading.enumerate() if each.name == "perdure heartbeat"])


@pytest.mark.anyio
async def test_what_ends_the_thread_is_raised_so_that_it_is_started_again() -> None:
    store = Counted()
    store.fails = [ZeroDivisionError("of the driver")]
    with pytest.raises(RuntimeError, match="ZeroDivisionError: of the driver"):
        await BeatingThread(heartbeat(store), lambda: store).keep()


@pytest.mark.anyio
async def test_no_heartbeat_is_sent_while_the_loop_stalls() -> None:
    store = Counted()
    keeping = asyncio.create_task(BeatingThread(heartbeat(store, stalled=True), lambda: store).keep())
    await asyncio.sleep(0.1)
    keeping.cancel()
    await asyncio.wait([keeping])
    assert store.beats == 0


# --- the watch


@define
class Watched:
    """A watch whose looks the test makes."""

    stalls: list[str] = field(factory=list[str])
    watch: LoopWatch = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.watch = LoopWatch("me", 30.0, lambda task: "machine 'Job'", self.stalls.append)

    def blocked_for(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.watch.look(TICK)

    async def turn(self) -> None:
        ticking = asyncio.create_task(self.watch.tick())
        await asyncio.sleep(0)
        ticking.cancel()
        self.watch.look(TICK)


@pytest.mark.anyio
async def test_it_is_said_once_when_the_loop_is_blocked_and_again_when_it_turns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "perdure")
    watched = Watched()
    watched.blocked_for(1.0)
    assert (caplog.messages, watched.watch.blocked) == ([], 0)
    watched.blocked_for(9.0)
    assert ["is blocked by machine 'Job'" in line for line in caplog.messages] == [True]
    assert (watched.watch.blocked, watched.watch.stalled()) == (10.0, False)
    await watched.turn()
    assert "turns again after 10.0 s; it was blocked by machine 'Job'" in caplog.messages[-1]
    assert (watched.watch.blocked, len(caplog.messages), watched.stalls) == (0, 2, [])


@pytest.mark.anyio
async def test_past_its_limit_it_has_stalled_once_until_it_turns() -> None:
    watched = Watched()
    watched.blocked_for(30.0)
    assert (watched.watch.stalled(), watched.stalls) == (False, [])
    watched.blocked_for(5.0)
    assert (watched.watch.stalled(), len(watched.stalls)) == (True, 1)
    await watched.turn()
    assert not watched.watch.stalled()
    watched.blocked_for(31.0)
    assert len(watched.stalls) == 2


def test_a_process_that_was_suspended_has_not_stalled() -> None:
    watched = Watched()
    watched.watch.look(3600.0)
    assert (watched.watch.blocked, watched.watch.stalled()) == (0, False)


# --- on the loop


@simulated
async def test_a_store_object_is_beaten_for_on_the_loop(loop: SimLoop) -> None:
    machine = job(lambda m, d, s: s.call(again, "a"))
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await asyncio.sleep(60)
    assert engine.runtime._running._worker is not None
    assert engine.runtime._running._worker.heartbeat.age < 6
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("perdure")]
