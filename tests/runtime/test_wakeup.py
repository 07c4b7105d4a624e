"""The wake-up channel: what another process writes is looked at now, and not at the next poll."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio import to_thread
from harness.engine import CALLS, Note, Sim, World, simulated
from harness.loop import SimLoop

from perdure.machines import Accept, Call, Cancellation, Fire, Machine, Retry, State, Step, read, record
from perdure.runtime import Parked, Runtime
from perdure.runtime._env import Env
from perdure.runtime._liveness import Mark, take_mark
from perdure.runtime._wakeup import LONGEST_PATH, RUNG, Bell, hear_nudge, open_ear
from perdure.stores import Address, MemoryStore, StoreUnavailable, Threads, open_store
from perdure.stores._contract_make import worker_of

NEVER = timedelta(hours=1)
"""A poll that no test waits for: what happens, happens because of a hint."""
SOON = 20.0
"""Seconds that a test waits at the most, on a machine that does much else."""


@record
class Talk:
    lines: tuple[str, ...] = ()


@record
class Word:
    text: str


@record
class Gate:
    """What a handler waits for, so that it runs until it is stopped."""

    opened: asyncio.Event
    reached: asyncio.Event


@read
async def long_look(call: Call[Any]) -> str:
    call.deps.reached.set()
    await call.deps.opened.wait()
    return "seen"


class Desk(Machine[Talk, Any], version=1, calls=[long_look]):
    """Works when it is told to, otherwise waits for words."""

    waits = State(initial=True)
    works = State()
    listens = State(interruptible=True)
    done = State(final=True)
    off = State(final=True)
    say = waits.to(waits).on_signal(Word)
    work = waits.to(works).on_signal()
    listen = waits.to(listens).on_signal()
    worked = works.to(done)
    heard = listens.to(done)
    enough = listens.to(off).on_signal()
    call_off = works.to(off).on_cancel()
    close = waits.to(done).on_signal()

    @works.handler
    async def at_work(self, data: Talk, step: Step[Any]) -> Fire:
        return self.worked(lines=(*data.lines, await step.call(long_look)))

    @listens.handler
    async def listening(self, data: Talk, step: Step[Any]) -> Fire:
        return self.heard(lines=(*data.lines, await step.call(long_look)))

    @say.received
    def said(self, data: Talk, word: Word) -> Accept:
        return self.say(lines=(*data.lines, word.text))

    @call_off.received
    def called_off(self, data: Talk, asked: Cancellation) -> Accept:
        return self.call_off(lines=(*data.lines, asked.by))


@read
async def is_open(call: Call[Any]) -> str:
    if not call.deps.opened.is_set():
        raise ValueError("not yet")
    return "yes"


class Hasty(Machine[Talk, Any], version=1, calls=[is_open]):
    """Fails until it is let in."""

    tries = State(initial=True, retry=Retry(attempts=1))
    done = State(final=True)
    tried = tries.to(done)

    @tries.handler
    async def try_it(self, data: Talk, step: Step[Any]) -> Fire:
        return self.tried(lines=(await step.call(is_open),))


class Waiter(Machine[Note, World], version=1, calls=CALLS):
    """Works for nothing, and then waits."""

    begins = State(initial=True)
    waits = State()
    done = State(final=True)
    began = begins.to(waits)
    close = waits.to(done).on_signal()

    @begins.handler
    async def begin(self, data: Note, step: Step[World]) -> Fire:
        return self.began()


def runtime_at(folder: Path, **options: Any) -> Runtime[Any]:
    gate = Gate(opened=asyncio.Event(), reached=asyncio.Event())
    given = {"poll": NEVER, "grace": timedelta(0), "artifacts": "memory:", "deps": gate, **options}
    return Runtime(machines=[Desk, Hasty], store=f"sqlite:///{folder}/w.db", **given)


@asynccontextmanager
async def beside(folder: Path) -> AsyncIterator[Any]:
    """A client that has no worker: to the store it is another process."""
    async with runtime_at(folder).client() as client:
        with anyio.fail_after(SOON):
            yield client


# --- what a hint brings about -----------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_start_and_a_signal_from_elsewhere_are_taken_up_without_a_poll(tmp_path: Path) -> None:
    async with runtime_at(tmp_path), beside(tmp_path) as client:
        thread = await client.start(Desk, Talk(), thread_id="t")
        await thread.signal(Desk.say, Word(text="one"), id="1")
        await thread.signal(Desk.say, Word(text="two"), id="2")
        await thread.signal(Desk.close, id="3")
        assert (await thread.result()).data.lines == ("one", "two")


@pytest.mark.anyio
async def test_a_hundred_signals_at_once_are_all_taken_up(tmp_path: Path) -> None:
    """More than a socket's buffer holds."""
    async with runtime_at(tmp_path), beside(tmp_path) as client:
        threads = [await client.start(Desk, Talk(), thread_id=f"t{n}") for n in range(100)]
        await asyncio.gather(*(thread.signal(Desk.close, id="c") for thread in threads))
        ended = await asyncio.gather(*(thread.result() for thread in threads))
        assert {each.state for each in ended} == {"done"}


@pytest.mark.anyio
async def test_a_running_handler_is_cancelled_at_once(tmp_path: Path) -> None:
    running = runtime_at(tmp_path)
    async with running, beside(tmp_path) as client:
        thread = await client.start(Desk, Talk(), thread_id="t")
        await thread.signal(Desk.work, id="w")
        await running.deps.reached.wait()
        await thread.cancel(by="ada")
        ended = await thread.result()
        assert (ended.state, ended.data.lines) == ("off", ("ada",))


@pytest.mark.anyio
async def test_a_state_that_may_be_interrupted_is_interrupted_at_once(tmp_path: Path) -> None:
    running = runtime_at(tmp_path)
    async with running, beside(tmp_path) as client:
        thread = await client.start(Desk, Talk(), thread_id="t")
        await thread.signal(Desk.listen, id="l")
        await running.deps.reached.wait()
        await thread.signal(Desk.enough, id="e")
        assert (await thread.result()).state == "off"


@pytest.mark.anyio
async def test_a_handler_stops_when_its_thread_is_terminated_elsewhere(tmp_path: Path) -> None:
    running = runtime_at(tmp_path)
    async with running, beside(tmp_path) as client:
        thread = await client.start(Desk, Talk(), thread_id="t")
        await thread.signal(Desk.work, id="w")
        await running.deps.reached.wait()
        await thread.terminate(by="ada")
        worker = running._running._worker
        assert worker is not None
        await worker._idle.wait()
        assert not running.deps.opened.is_set()


@pytest.mark.anyio
async def test_a_parked_thread_goes_on_when_it_is_retried_elsewhere(tmp_path: Path) -> None:
    running = runtime_at(tmp_path)
    async with running, beside(tmp_path) as client:
        thread = await client.start(Hasty, Talk(), thread_id="t")
        with pytest.raises(Parked):
            await thread.result()
        running.deps.opened.set()
        await thread.retry()
        assert (await thread.result()).state == "done"


@pytest.mark.anyio
async def test_what_a_worker_gives_up_is_taken_up_by_another(tmp_path: Path) -> None:
    leaving, staying = runtime_at(tmp_path), runtime_at(tmp_path)
    staying.deps.opened.set()
    async with beside(tmp_path) as client:
        async with leaving:
            thread = await client.start(Desk, Talk(), thread_id="t")
            await thread.signal(Desk.work, id="w")
            await leaving.deps.reached.wait()
            await staying.__aenter__()
        assert (await thread.result()).state == "done"
        await staying.__aexit__(None, None, None)


# --- what is no hint, and what hears none -------------------------------------------------------------


RUBBISH = (b"", b"\x00", b"[]", b'["w"]', b'["w",7]', b"[" * 5000, b'["w","' + b"t" * 9000, b"\xff\xfe")


@pytest.fixture
def mark() -> Iterator[Mark]:
    taken = take_mark(os.urandom(12).hex())
    yield taken
    taken.remove()


@pytest.mark.anyio
async def test_ten_thousand_datagrams_of_rubbish_change_nothing(mark: Mark) -> None:
    heard: list[Address | None] = []
    something = asyncio.Event()

    def hear(address: Address | None) -> None:
        heard.append(address)
        something.set()

    ear = await to_thread.run_sync(open_ear, mark.path)
    assert ear is not None
    path = Path(mark.path).with_suffix(".sock")
    ear.listen(hear)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.setblocking(False)
            for number in range(10_000):
                try:
                    sending.sendto(RUBBISH[number % len(RUBBISH)], str(path))
                except BlockingIOError:
                    await asyncio.sleep(0)
            while True:
                try:
                    sending.sendto(b'["w","t"]', str(path))
                    break
                except BlockingIOError:
                    await asyncio.sleep(0)
        with anyio.fail_after(SOON):
            await something.wait()
        assert heard == [Address(workspace="w", thread_id="t")]
    finally:
        ear.leave()
        await to_thread.run_sync(ear.remove)
    assert not await anyio.Path(path).exists()


@pytest.mark.anyio
async def test_a_false_hint_costs_a_look_and_no_more(tmp_path: Path) -> None:
    running = runtime_at(tmp_path)
    async with running, beside(tmp_path) as client:
        bell = Bell(client.store, Env())
        for address in (None, Address(workspace="nobody", thread_id="nowhere")):
            await bell.ring(address)
        thread = await client.start(Desk, Talk(), thread_id="t")
        await thread.signal(Desk.work, id="w")
        await running.deps.reached.wait()
        await bell.ring(thread.address, owner=(await thread.row()).owner)
        running.deps.opened.set()
        assert (await thread.result()).state == "done"


@pytest.mark.anyio
async def test_workers_that_hear_nothing_are_no_error(tmp_path: Path) -> None:
    """A dead process's socket, one that is gone, and one whose buffer is full."""
    async with open_store(f"sqlite:///{tmp_path}/w.db") as store:
        bell = Bell(store, Env())
        async with runtime_at(tmp_path) as running:
            worker = running._running._worker
            assert worker is not None
            await bell._know_workers(None)
            full = tmp_path / "full.sock"
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
                deaf.bind(str(full))
                bell._hints |= {"gone": str(tmp_path / "none.sock"), "full": str(full)}
                for _ in range(500):
                    await bell.ring(None, owner="full")
            bell._hints["dead"] = str(full)
            for owner in ("gone", "dead"):
                await bell.ring(None, owner=owner)
                assert bell._hints[owner] == ""
            assert bell._hints[worker.worker]


@pytest.mark.anyio
async def test_a_store_that_does_not_answer_is_no_error(tmp_path: Path) -> None:
    class Away:
        async def page(self, *_: object, **__: object) -> None:
            raise StoreUnavailable("away")

    await Bell(Away(), Env()).ring(None)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_at_most_sixteen_workers_are_told_of_what_any_may_take(tmp_path: Path) -> None:
    async with open_store("memory://") as store:
        bell = Bell(store, Env())
        await bell._know_workers(None)
        ears: list[socket.socket] = []
        for number in range(RUNG + 4):
            ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            ear.setblocking(False)
            ear.bind(str(tmp_path / f"{number}.sock"))
            bell._hints[str(number)] = str(tmp_path / f"{number}.sock")
            ears.append(ear)
        await bell.ring(None, but="0")
        told = [_told(ear) for ear in ears]
        assert (sum(told), told[0]) == (RUNG, False)


def _told(ear: socket.socket) -> bool:
    with ear:
        try:
            return bool(ear.recv(100))
        except BlockingIOError:
            return False


def test_where_no_socket_can_be_the_poll_remains(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert open_ear("") is None
    assert open_ear(str(tmp_path / ("x" * LONGEST_PATH))) is None
    assert open_ear(str(tmp_path / "none" / "a.lock")) is None
    tmp_path.chmod(0o755)
    assert open_ear(str(tmp_path / "a.lock")) is None, "others could reach it"


@pytest.mark.anyio
async def test_without_a_socket_a_worker_goes_by_its_poll(tmp_path: Path) -> None:
    running = runtime_at(tmp_path, poll=timedelta(milliseconds=5), env=Env(mark=lambda _: Mark("here", "")))
    async with running, beside(tmp_path) as client:
        thread = await client.start(Desk, Talk(), thread_id="t")
        await thread.signal(Desk.close, id="c")
        assert (await thread.result()).state == "done"


# --- between the last look and the end of a claim -----------------------------------------------------


@simulated
async def test_what_comes_while_a_thread_is_given_up_is_claimed_again_at_once(loop: SimLoop) -> None:
    sim = Sim(loop, Waiter, poll=NEVER)
    engine = await sim.engine()
    worker = engine.runtime._running._worker
    assert worker is not None
    commit = sim.store.commit
    thread = sim.thread(Waiter)

    async def and_then_a_signal(write: Any) -> None:
        """It comes behind the run's last look and before the commit that lets the thread go."""
        if write.log.kind == "transition" and write.standing.status == "waiting":
            await sim.client().thread(Waiter, thread_id="t", workspace="w").signal(Waiter.close, id="c")
            worker._heard(thread.address)
            await asyncio.sleep(1)  # what the hint makes it look for is not there yet
        await commit(write)

    sim.store.commit = and_then_a_signal  # type: ignore[method-assign]
    await engine.start(Waiter)
    async with asyncio.timeout(60):
        assert (await thread.result()).state == "done"


@pytest.mark.parametrize("told_by", ["another process", "a client beside the worker"])
@pytest.mark.parametrize("brings", ["claim", "start"])
@simulated
async def test_what_comes_while_a_claim_is_on_its_way_here_is_taken_in_without_a_poll(
    loop: SimLoop, brings: str, told_by: str
) -> None:
    sim = Sim(loop, Waiter, poll=NEVER)
    engine = await sim.engine()
    worker = engine.runtime._running._worker
    assert worker is not None
    write = getattr(sim.store, brings)
    thread = sim.thread(Waiter)

    async def then_a_signal(asked: Any) -> Any:
        """It comes behind the store's look and before its reply."""
        reply = await write(asked)
        if (await sim.store.page(Threads(workspace="w", thread_id="t", owner=worker.worker))).rows:
            setattr(sim.store, brings, write)
            client = sim.client() if told_by == "another process" else engine.runtime
            await client.thread(Waiter, thread_id="t", workspace="w").signal(Waiter.close, id="c")
            if told_by == "another process":
                worker._heard(thread.address)
        return reply

    setattr(sim.store, brings, then_a_signal)
    async with asyncio.timeout(60):
        if brings == "start":
            await engine.start(Waiter)
        else:
            await sim.client().start(Waiter, Note(), thread_id="t", workspace="w")
            worker._heard(None)
        assert (await thread.result()).state == "done"


@pytest.mark.anyio
async def test_who_is_out_of_reach_is_nudged_through_a_store_that_can_as_long_as_it_lives() -> None:
    nudges: list[str] = []

    class Passing(MemoryStore):
        async def nudge(self, said: str, /) -> None:
            nudges.append(said)

        async def listen(self, heard: Callable[[str], None], /) -> None:
            raise AssertionError("nobody listens here")

    env = Env()
    async with Passing() as store:
        for number in range(RUNG + 4):
            await store.beat(worker_of(f"far{number}"))
        await store.beat(worker_of("dead", lease=-1))
        bell, address = Bell(store, env), Address(workspace="w", thread_id="t")
        await bell.ring(None, but="far0")
        await bell.ring(address, owner="far0")
        await bell.ring(address, owner="dead")
    heard: list[Address | None] = []
    [any_of_them, owner] = nudges
    assert len(set(msgspec.json.decode(any_of_them)[0]) - {"far0", "dead"}) == RUNG
    for worker in ("far0", "far1"):
        hear_nudge(owner, worker, heard.append)
    assert heard == [address]
    for nonsense in ("", "[]", "x", '[["far0"], 1]', "[" * 5000):
        hear_nudge(nonsense, "far0", heard.append)
    assert heard == [address]
