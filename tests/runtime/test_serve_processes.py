"""``perdure serve`` as processes on one SQLite file: signals, kills, stalls, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.runtime._cli_load import load_runtime
from perdure.stores import ThreadRow, Threads

pytestmark = pytest.mark.anyio

APP = '''
import asyncio
import os
from pathlib import Path

from perdure import Fire, Machine, Retry, Runtime, State, Step, record


@record
class Job:
    do: str = "end"


class Own(BaseException):
    """Of no library."""


RAISED = {"interrupt": KeyboardInterrupt, "exit": SystemExit, "generator": GeneratorExit, "own": Own}


async def raise_exit() -> None:
    raise SystemExit(3)


class Works(Machine[Job, None], version=1):
    """Does what it is told, once."""

    working = State(initial=True, retry=Retry(attempts=1))
    done = State(final=True)
    worked = working.to(done)

    @working.handler
    async def work(self, data: Job, step: Step[None]) -> Fire:
        begun = Path("begun")
        begun.write_text(f"{begun.read_text() if begun.exists() else ''}{step.attempt}")
        if data.do in RAISED:
            raise RAISED[data.do]
        if data.do == "task":
            await asyncio.create_task(raise_exit())
        if data.do == "die":
            os._exit(137)
        while data.do == "spin":
            pass
        while data.do == "wait" and not Path("go").exists():
            await asyncio.sleep(0.01)
        return self.worked()


runtime = Runtime(machines=[Works], store="sqlite:///serve.db", artifacts="memory:")
'''
PATIENCE = 60.0


class Desk:
    """A folder with an application, its store, and the processes that serve it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "serve_app.py").write_text(APP)
        self.runtime: Any = load_runtime("serve_app:runtime")
        self.works: Any = self.runtime.definitions["Works"].machine

    def serve(self, *options: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [*before, sys.executable, "-m", "perdure.runtime._cli", "serve", "serve_app:runtime"]
        process = subprocess.Popen(
            [*command, *options],
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def serving(self, *options: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """A process that has begun to claim."""
        process = self.serve(*options, before=before)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("worker "), (line, process.communicate())
        return process

    async def start(self, *jobs: str) -> None:
        async with self.runtime.client() as client:
            for n, do in enumerate(jobs):
                await client.start(self.works, sys.modules["serve_app"].Job(do=do), thread_id=f"{do}-{n}")

    async def rows(self) -> dict[str, ThreadRow]:
        async with self.runtime.client() as client:
            return {row.address.thread_id: row async for row in client.threads(Threads())}

    async def settled(self, meanwhile: Callable[[], None] = lambda: None) -> dict[str, ThreadRow]:
        """Once every thread has ended or is parked."""
        async with asyncio.timeout(PATIENCE):
            while True:
                meanwhile()
                rows = await self.rows()
                if all(row.standing.status in ("ended", "parked") for row in rows.values()):
                    return rows
                await asyncio.sleep(0.05)

    async def begun(self, times: int) -> None:
        """Once the handler was begun so often, each time as the first attempt."""
        async with asyncio.timeout(PATIENCE):
            while read(self.folder / "begun") != "1" * times:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("serve_app", None)
    desk = Desk(tmp_path)
    yield desk
    for process in desk.processes:
        process.kill()
        process.communicate()
    sys.modules.pop("serve_app", None)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


async def test_a_step_that_runs_at_sigterm_is_done_within_the_grace(desk: Desk) -> None:
    await desk.start("wait")
    process = desk.serving("--grace", "30s")
    await desk.begun(1)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "draining (SIGTERM): 1 running thread may go on for 30 s\n"
    await desk.start("end", "end")  # nothing new is begun
    (desk.folder / "go").touch()
    status, out, err = ended(process)
    assert (status, err) == (0, "")
    assert "1 transition, 1 thread ended, 0 parked, 0 given up" in out
    rows = await desk.rows()
    assert rows["wait-0"].standing.status == "ended"
    assert {rows[name].epoch for name in ("end-0", "end-1")} == {0}


async def test_restart_after_restart_with_too_short_a_grace_uses_no_attempt(desk: Desk) -> None:
    await desk.start("wait")
    for n in range(2):
        process = desk.serving("--grace", "0s")
        await desk.begun(n + 1)
        process.send_signal(signal.SIGTERM if n else signal.SIGINT)
        status, out, err = ended(process)
        assert (status, err) == (0, "")
        assert "0 parked, 1 given up to go on elsewhere" in out
        row = (await desk.rows())["wait-0"]
        assert (row.standing.status, row.owner, row.crashes) == ("running", None, 0)
    (desk.folder / "go").touch()
    desk.serving()
    rows = await desk.settled()
    assert rows["wait-0"].standing.status == "ended"
    await desk.begun(3)


async def test_a_second_signal_leaves_at_once_and_another_goes_on(desk: Desk) -> None:
    await desk.start("wait")
    process = desk.serving("--grace", "1h")
    await desk.begun(1)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("draining")
    process.send_signal(signal.SIGTERM)
    status, _, err = ended(process)
    assert status == 128 + signal.SIGTERM
    assert err == "perdure: SIGTERM again: leaving at once; what ran goes on elsewhere, as after a kill\n"
    (desk.folder / "go").touch()
    desk.serving()
    assert (await desk.settled())["wait-0"].standing.status == "ended"


async def test_what_handlers_raise_is_their_own_failure_whatever_it_is(desk: Desk) -> None:
    await desk.start("interrupt", "exit", "generator", "own", "task", "end")
    process = desk.serving()
    rows = await desk.settled()
    said = {row.address.thread_id: (row.standing.status, row.standing.reason) for row in rows.values()}
    assert said.pop("end-5") == ("ended", None)
    assert set(said.values()) == {("parked", "failed")}
    process.send_signal(signal.SIGTERM)
    status, out, _ = ended(process)
    assert status == 0
    assert "1 thread ended, 5 parked" in out


async def test_a_loop_that_stalls_ends_the_process_and_says_what_blocks_it(desk: Desk) -> None:
    await desk.start("spin")
    process = desk.serving("--stall-limit", "1.5s")
    status, _, err = ended(process)
    assert status == 70
    assert "blocked by machine 'Works', thread 'spin-0', state 'working', at " in err
    assert "the event loop has stalled" in err
    assert "serve_app.py" in err.partition("most recent call first")[2]
    row = (await desk.rows())["spin-0"]
    assert (row.standing.status, row.standing.seq) == ("running", 0)


async def test_a_thread_that_kills_its_workers_is_parked_and_those_beside_it_end(desk: Desk) -> None:
    await desk.start("die", *["end"] * 20)
    workers = [desk.serve() for _ in range(3)]
    died: list[int] = []

    def start_again() -> None:  # as a service manager does
        for n, worker in enumerate(workers):
            if worker.poll() is not None:
                died.append(worker.returncode)
                workers[n] = desk.serve()

    rows = await desk.settled(start_again)
    start_again()  # and those that died since it was called last
    poisoned = rows.pop("die-0")
    assert (poisoned.standing.status, poisoned.standing.reason) == ("parked", "poison")
    assert {row.standing.status for row in rows.values()} == {"ended"}
    assert died == [137] * 3
    async with desk.runtime.client() as client:
        thread = client.thread(desk.works, thread_id="die-0")
        await thread.cancel(by="ada", reason="enough")
        assert (await desk.settled())["die-0"].standing.status in ("parked", "ended")


@pytest.fixture
def inside() -> tuple[str, ...]:
    """What makes a command the first process of a namespace of its own."""
    inside = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no process namespace can be made here")
    return inside


async def test_it_serves_as_the_first_process_of_a_container(desk: Desk, inside: tuple[str, ...]) -> None:
    await desk.start("end")
    process = desk.serving(before=inside)
    await desk.settled()
    children = read(Path(f"/proc/{process.pid}/task/{process.pid}/children")).split()
    os.kill(int(children[0]), signal.SIGTERM)
    status, out, err = ended(process)
    assert (status, err) == (0, "")
    assert "1 thread ended" in out
