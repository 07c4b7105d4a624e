"""The approval desk: reminded, expired, and served and told by processes of their own."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import attrs
import pytest

from examples._customers import load_customers
from examples.approval_desk import Approval, ApprovalDesk, Brief, Deps, Rejection, runtime
from perdure import Runtime
from perdure.runtime.testing import Receiver, World, assert_arrivals, crash_sweep, simulated

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
BRIEF = Brief(customer_id="cust_01")
HOUR = timedelta(hours=1)
PERDURE = (sys.executable, "-c", "from perdure.runtime._cli import main; main()")
PATIENCE = 60.0


@attrs.frozen
class Board:
    """The world's receiver as the desk sees it; it remembers keys."""

    receiver: Receiver

    async def put_up(self, key: str, about: str, text: str) -> int:
        return int((await self.receiver.send(key, about, text)).rpartition("-")[2])

    async def find(self, key: str) -> int | None:
        found = await self.receiver.find(key)
        return None if found is None else int(found.rpartition("-")[2])


def deps(world: World) -> Deps:
    return Deps(customers=load_customers(), board=Board(world.receiver("board", honours_keys=True)))


def desk(world: World) -> Runtime[Deps]:
    return Runtime(machines=[ApprovalDesk], deps=deps(world), store="memory://", artifacts="memory:")


async def test_it_survives_every_crash(world: World) -> None:
    signals = [(ApprovalDesk.approve, Approval(by="ada"))]
    sweep = await crash_sweep(ApprovalDesk, BRIEF, deps=deps(world), signals=signals)
    sweep.check()
    assert_arrivals(world, "board", 1)


async def test_a_person_is_reminded_once_and_the_day_goes_on(world: World) -> None:
    async with simulated(desk(world)) as sim:
        thread = await sim.start(ApprovalDesk, BRIEF, thread_id="t")
        await sim.advance(7 * HOUR)
        assert (await thread.state(), len(world.arrivals)) == ("review.fresh", 0)
        await sim.advance(2 * HOUR)
        assert (await thread.state(), len(world.arrivals)) == ("review.reminded", 1)
        await sim.advance(14 * HOUR)
        assert await thread.state() == "review.reminded"
        await sim.advance(2 * HOUR)
        ended = await thread.result()
    assert (ended.state, ended.data.notice, len(world.arrivals)) == ("expired", None, 1)


@pytest.mark.parametrize("reminded", [False, True])
async def test_an_approval_is_taken_before_and_after_the_reminder(world: World, reminded: bool) -> None:
    async with simulated(desk(world)) as sim:
        thread = await sim.start(ApprovalDesk, BRIEF, thread_id="t")
        await sim.advance(9 * HOUR if reminded else HOUR)
        await thread.signal(ApprovalDesk.approve, Approval(by="ada"), id="a1")
        ended = await thread.result()
    assert (ended.state, ended.data.approved_by) == ("done", "ada")
    assert_arrivals(world, "board", 2 if reminded else 1)


async def test_a_rejection_says_why(world: World) -> None:
    async with simulated(desk(world)) as sim:
        thread = await sim.start(ApprovalDesk, BRIEF, thread_id="t")
        await thread.signal(ApprovalDesk.reject, Rejection(by="ben", why="too long"), id="r1")
        ended = await thread.result()
    assert (ended.state, ended.data.rejected, world.arrivals) == ("rejected", "ben: too long", [])


# --- as processes


def perdure(folder: Path, *arguments: str) -> str:
    ran = subprocess.run(
        [*PERDURE, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}


@contextmanager
def serving(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "from perdure.runtime._cli import main; main()", "serve"]
    with subprocess.Popen(
        [*command, "examples.approval_desk:runtime"], cwd=folder, env=environment()
    ) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def until_in(folder: Path, state: str) -> None:
    until = time.monotonic() + PATIENCE
    with closing(sqlite3.connect(folder / "perdure.db")) as store:
        while store.execute("SELECT state FROM standing").fetchall() != [(state,)]:
            assert time.monotonic() < until
            time.sleep(0.02)


def test_it_is_served_killed_and_told_by_other_processes(tmp_path: Path) -> None:
    start = ["start", "examples.approval_desk:runtime", "ApprovalDesk", "--thread", "t"]
    perdure(tmp_path, *start, "--data", '{"customer_id": "cust_01"}')
    with serving(tmp_path) as worker:
        until_in(tmp_path, "review.fresh")
        worker.kill()
    perdure(tmp_path, "signal", "t", "approve", "--data", '{"by": "ada"}', "--id", "a1")
    with serving(tmp_path) as worker:
        until_in(tmp_path, "done")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
    with closing(sqlite3.connect(tmp_path / "board.db")) as board:
        assert board.execute("SELECT count(*) FROM notices").fetchone() == (1,)


def test_an_approval_may_come_with_the_start(tmp_path: Path) -> None:
    start = ["start", "examples.approval_desk:runtime", "ApprovalDesk", "--thread", "t"]
    brief, approval = '{"customer_id": "cust_01"}', '{"by": "ada"}'
    perdure(tmp_path, *start, "--data", brief, "--signal", "approve", "--payload", approval, "--id", "a1")
    with serving(tmp_path):
        until_in(tmp_path, "done")


def test_the_runtime_is_there_for_the_command_line() -> None:
    assert isinstance(runtime, Runtime)
    assert list(runtime.definitions) == ["ApprovalDesk"]
