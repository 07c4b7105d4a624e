"""What is told of a worker's health, and that it is told whatever has died or is blocked."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.cli import Perdure

from perdure import Call, Fire, Machine, PerdureError, Runtime, State, Step, Stop, read, record, serve
from perdure.runtime._claiming import Claiming
from perdure.runtime._env import Env
from perdure.runtime._health import Vitals
from perdure.runtime._heartbeat import BeatingThread
from perdure.runtime._inbox import LookingIn
from perdure.runtime._stall import LoopWatch
from perdure.runtime._supervise import Supervisor
from perdure.stores import StoreUnavailable, Threads, system_clock

pytest_plugins = ("harness.desk",)

PATIENCE = 30.0
LOOPS: dict[str, tuple[type[Any], str]] = {
    "claiming": (Claiming, "keep"),
    "heartbeat": (BeatingThread, "keep"),
    "looking in": (LookingIn, "keep"),
    "ticking": (LoopWatch, "tick"),
    "health": (Vitals, "keep"),
}


@record
class Job:
    block: bool = False


class Held:
    """What blocks the loop until the test lets it go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()


@read
async def block(call: Call[Held]) -> None:
    call.deps.let_go.wait(PATIENCE)


class Works(Machine[Job, Held], version=7, calls=[block]):
    """Blocks the event loop where it is told to."""

    working = State(initial=True)
    done = State(final=True)
    worked = working.to(done)

    @working.handler
    async def work(self, data: Job, step: Step[Held]) -> Fire:
        if data.block:
            await step.call(block)
        return self.worked()


@define
class Served:
    """A runtime that is served in a thread, and asked over its port."""

    path: Path
    stop: Stop = field(factory=Stop)
    held: Held = field(factory=Held)
    told: list[str] = field(factory=list[str])
    status: int | None = None
    thread: threading.Thread | None = None

    @property
    def runtime(self) -> Runtime[Held]:
        return Runtime(
            machines=[Works],
            deps=self.held,
            store=f"sqlite:///{self.path}",
            artifacts="memory:",
            poll=timedelta(milliseconds=50),
        )

    def begin(self) -> None:
        async def run() -> None:
            self.status = await serve(
                self.runtime, health_port=0, stop=self.stop, tell=self.told.append, grace=timedelta(seconds=9)
            )

        self.thread = threading.Thread(target=asyncio.run, args=(run(),))
        self.thread.start()
        self.until(lambda: any(line.startswith("worker") for line in self.told))

    def end(self) -> None:
        self.held.let_go.set()
        self.stop()
        if self.thread is not None:
            self.thread.join(PATIENCE)
            assert not self.thread.is_alive()

    def ask(self, path: str) -> tuple[int, dict[str, Any]]:
        url = next(line for line in self.told if line.startswith("worker")).partition("health at ")[2]
        try:
            with urllib.request.urlopen(f"{url}{path}", timeout=PATIENCE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def until(self, true: Callable[[], bool]) -> None:
        patience = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < patience, self.told
            time.sleep(0.01)

    def start(self, *jobs: Job) -> None:
        async def run() -> None:
            async with self.runtime.client() as client:
                for job in jobs:
                    await client.start(Works, job, thread_id=f"t{id(job)}")

        asyncio.run(run())

    def statuses(self) -> set[str]:
        async def run() -> set[str]:
            async with self.runtime.client() as client:
                return {row.standing.status async for row in client.threads(Threads())}

        return asyncio.run(run())


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("no_proxy", "*")
    served = Served(tmp_path / "perdure.db")
    yield served
    served.end()


def test_served_in_a_thread_it_says_that_signals_do_not_reach_it_and_its_stop_drains(served: Served) -> None:
    served.begin()
    served.start(Job())
    served.until(lambda: served.statuses() == {"ended"})
    assert served.ask("/healthz")[0] == 200
    code, health = served.ask("/readyz")
    assert (code, health["status"], health["reasons"], health["draining"]) == (200, "ok", [], False)
    assert served.ask("/else")[0] == 404
    served.end()
    said, begun, draining, left = served.told
    assert said == "not the main thread: signals are left alone, and only stop() drains"
    assert " runs Works version 7 from " in begun
    assert str(served.path) in begun
    assert draining == "draining (it was told to stop): nothing runs"
    assert "1 thread ended" in left
    assert served.status == 0


def test_a_blocked_loop_is_told_while_it_is_blocked(served: Served) -> None:
    served.begin()
    served.start(Job(block=True))
    served.until(lambda: served.ask("/readyz")[0] == 503)
    code, health = served.ask("/healthz")
    assert (code, health["status"]) == (200, "failing")  # it has not stalled yet, and its heartbeat goes on
    assert "blocked" in health["reasons"][0]
    assert "by machine 'Works', thread" in health["reasons"][0]
    served.held.let_go.set()
    served.until(lambda: served.ask("/readyz")[0] == 200)


def test_a_loop_that_dies_is_started_again_and_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime._supervise.RESTART_PAUSE", 0.01)
    for name, (cls, method) in LOOPS.items():
        monkeypatch.setattr(cls, method, dies_once(name, getattr(cls, method)))
    served.begin()
    served.until(lambda: set(served.ask("/healthz")[1]["restarts"]) == set(LOOPS))
    code, health = served.ask("/healthz")
    assert (code, health["status"], health["restarts"]) == (200, "degraded", dict.fromkeys(LOOPS, 1))
    for name in LOOPS:
        assert [f"the loop of {name} died" in said for said in health["reasons"]].count(True) == 1
        assert any(said.endswith(f"ZeroDivisionError: of {name}") for said in health["reasons"])
    served.start(Job())
    served.until(lambda: served.statuses() == {"ended"})


@pytest.mark.anyio
async def test_while_it_drains_a_loop_that_dies_is_started_again_and_one_that_returns_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.runtime._supervise.RESTART_PAUSE", 0)
    supervisor, begun = Supervisor("me"), 0

    async def dies_and_returns() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise ZeroDivisionError

    supervisor.drain()
    supervisor.supervise("beating", dies_and_returns)
    async with asyncio.timeout(PATIENCE):
        await supervisor.ended("beating")
    assert (begun, supervisor.loops["beating"].restarts) == (2, 1)


def dies_once(name: str, keep: Callable[[Any], Any]) -> Callable[[Any], Any]:
    died: list[str] = []

    async def dying(self: Any) -> None:
        if not died:
            died.append(name)
            raise ZeroDivisionError(f"of {name}")
        await keep(self)

    return dying


def test_a_store_out_of_reach_and_parked_threads_are_told(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.runtime._health.LOOK_EVERY", 0.02)
    broken: list[str] = []
    look = Vitals._look

    async def may_fail(self: Vitals) -> None:
        if broken:
            raise StoreUnavailable("the disk is gone")
        await look(self)

    monkeypatch.setattr(Vitals, "_look", may_fail)
    served.begin()
    broken.append("yes")
    served.until(lambda: served.ask("/readyz")[0] == 503)
    assert served.ask("/readyz")[1]["reasons"] == ["the store is out of reach: the disk is gone"]
    broken.clear()
    served.until(lambda: served.ask("/readyz")[0] == 200)


def test_a_port_that_is_taken_is_refused_before_anything_runs(tmp_path: Path) -> None:
    runtime = Served(tmp_path / "perdure.db").runtime
    refused = pytest.raises(PerdureError, match="cannot be listened on")
    with socket.create_server(("127.0.0.1", 0)) as taken, refused:
        asyncio.run(serve(runtime, health_port=taken.getsockname()[1]))
    assert list(tmp_path.iterdir()) == []


# --- the main thread


class Odd(asyncio.SelectorEventLoop):
    """A loop without signal handlers, as on some platforms."""

    def add_signal_handler(self, *arguments: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        yield listening


def test_a_loop_without_signal_handlers_drains_too_and_the_service_manager_is_told(
    served: Served, manager: socket.socket
) -> None:
    heard: list[bytes] = []

    def tell(line: str) -> None:
        served.told.append(line)
        if line.startswith("worker"):
            asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with asyncio.Runner(loop_factory=Odd) as runner:
        assert runner.run(serve(served.runtime, tell=tell)) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    while True:
        try:
            heard.append(manager.recv(1000))
        except BlockingIOError:
            break
    assert served.told[1] == "draining (SIGTERM): nothing runs"
    assert heard[0].startswith(b"READY=1\nSTATUS=worker ")
    stopping = b"STOPPING=1\nSTATUS=draining: SIGTERM"  # whoever drains long is watched on
    assert heard.count(stopping) == 1
    assert set(heard[1:]) == {b"WATCHDOG=1", stopping}


# --- from the store alone


def test_of_a_store_it_tells_workers_and_parked_threads(served: Served, cli: Perdure) -> None:
    served.begin()
    said = cli("health", "--store", f"sqlite:///{served.path}", "--json")
    told = json.loads(said.out)
    assert (said.status, told["status"], told["reasons"], len(told["workers"])) == (0, "ok", [], 1)
    said = cli("health")  # the desk's own store
    assert said.lines == [
        "degraded",
        "  no worker is alive: start one with `perdure serve`",
        "  1 parked (in doubt): `perdure ls --status parked` lists them",
    ]
    assert said.status == 1


def test_of_a_store_it_tells_what_is_overdue(cli: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("run", "cli_desk:runtime", "Desk", "--thread", "w", "--data", '{"item": "pen"}', "--no-wait")
    in_two_days = Env(now=lambda: system_clock() + 2 * 86_400_000_000)
    monkeypatch.setattr("perdure.runtime._cli_fares.Env", lambda: in_two_days)
    said = cli("health")
    assert (said.status, said.lines[0]) == (1, "failing")
    assert "no worker is alive, and " in said.lines[1]
    overdue = re.search(r"2 threads overdue, 'review' for (\d+) s", said.lines[-1])  # it waits for a day
    assert overdue is not None
    assert 86_400 <= int(overdue[1]) < 2 * 86_400
    assert "`perdure why review --runtime MODULE:NAME` tells" in said.lines[-1]


def test_of_a_process_it_is_0_while_that_lives(served: Served, cli: Perdure) -> None:
    served.begin()
    port = served.told[1].rpartition(":")[2]
    assert cli("health", "--port", port).status == 0
    served.end()
    said = cli("health", "--port", port)
    assert (said.status, said.lines[0]) == (1, "failing")
