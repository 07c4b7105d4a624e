"""Twenty seconds of the soak; and its judge sees what must not be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.stores import open_store
from soak.crew import TESTS, Stopped
from soak.judge import WOKEN, Judge, read_ledger
from soak.ledger import LATE
from soak.plan import Plan, plan

pytestmark = pytest.mark.anyio

SECONDS, THREADS, PAUSE = 20.0, 100, (0.8, 2.0)


def decided(seed: int) -> Plan:
    return plan(seed, SECONDS, THREADS, PAUSE)


def test_a_seed_repeats_the_plan() -> None:
    assert decided(1) == decided(1)
    assert decided(1).threads != decided(2).threads
    assert decided(1).hits != decided(2).hits


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a soak, and its report."""
    folder = tmp_path_factory.mktemp("soak")
    command = [sys.executable, "-m", "soak", "--seconds", str(SECONDS), "--threads", str(THREADS)]
    command += ["--pause", *map(str, PAUSE), "--folder", str(folder)]
    ran = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder, ran.stdout


def figure(report: str, what: str) -> int:
    return sum(int(line.split()[0]) for line in report.splitlines() if line.split()[1:] == what.split())


def test_workers_come_and_go_and_everything_counts_once(soaked: tuple[Path, str]) -> None:
    _, report = soaked
    assert "\n0 violations" in report
    assert figure(report, "Deadly: parked, poison") == 1
    for what in ("killed", "drained", "stop", "Order: ended, done", "Rounds: ended, done", "keys"):
        assert figure(report, what) > 0, report
    assert figure(report, "signals counted") == figure(report, "signals sent") > 0


async def judged(folder: Path, arrivals: list[dict[str, Any]], stops: list[Stopped]) -> list[str]:
    async with open_store(f"sqlite:///{folder}/perdure.db") as store:
        return (await Judge(decided(1), store, arrivals, stops).run()).wrong


async def test_the_judge_sees_an_arrival_too_many_or_too_few(soaked: tuple[Path, str]) -> None:
    folder, _ = soaked
    arrivals = read_ledger(folder / "ledger.jsonl")
    once = next(each for each in arrivals if each["effect"] == "ship" and each["thread"].startswith("both"))
    assert [once["thread"] in line for line in await judged(folder, [*arrivals, once], [])] == [True]
    without = [each for each in arrivals if each is not once]
    assert [once["thread"] in line for line in await judged(folder, without, [])] == [True]
    other = {**once, "key": "pd_other"}
    assert [once["thread"] in line for line in await judged(folder, [*arrivals, other], [])] == [True]


async def test_only_a_suspension_excuses_a_repeat(soaked: tuple[Path, str]) -> None:
    folder, _ = soaked
    arrivals = read_ledger(folder / "ledger.jsonl")
    once = next(each for each in arrivals if each["effect"] == "ship")
    late = {**once, "pid": 1, "at": once["until"] + 5.0}
    stopped = Stopped(1, once["at"], late["at"] - 0.1)
    assert await judged(folder, [*arrivals, late], [stopped]) == []
    slow = {**late, "at": stopped.until + WOKEN + LATE - 0.1}
    assert await judged(folder, [*arrivals, slow], [stopped]) == []
    assert await judged(folder, [*arrivals, {**slow, "at": slow["at"] + 0.2}], [stopped]) != []
    assert await judged(folder, [*arrivals, late], [Stopped(2, stopped.since, stopped.until)]) != []
    assert await judged(folder, [*arrivals, {**late, "at": once["until"]}], [stopped]) != []
