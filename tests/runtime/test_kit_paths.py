"""Paths through the table, and what the plug-in costs."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import find, given

from perdure.machines import Fire, Machine, Retry, Row, State, Step, anywhere, definition, record
from perdure.runtime.testing import paths


@record
class Nothing:
    """No data."""


class Loop(Machine[Nothing, None], version=1):
    """Goes round until it is stopped."""

    working = State(initial=True, retry=Retry(attempts=2))
    resting = State()
    done = State(final=True)

    worked = working.to(resting)
    finished = working.to(done)
    failed = working.to(resting).on_failure()
    again = resting.to(working).after(timedelta(hours=1))
    wake = resting.to(working).on_signal()
    stopped = anywhere.to(done).on_cancel()

    @working.handler
    async def work(self, data: Nothing, step: Step[None]) -> Fire:
        return self.worked()


@given(paths(Loop, max_length=6))
def test_each_row_follows_the_one_before_it(path: list[Row]) -> None:
    state = "working"
    for row in path:
        assert row.source == state
        assert row in definition(Loop).states[state].rows[row.event]
        state = row.dest
    assert state == "done" or len(path) == 6


@pytest.mark.parametrize("event", ["worked", "finished", "failed", "again", "wake", "stopped"])
def test_every_kind_of_event_is_on_some_path(event: str) -> None:
    assert find(paths(Loop), lambda path: any(row.event == event for row in path))


def python(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)


def test_without_hypothesis_it_says_what_to_install() -> None:
    said = python(
        """
import sys
sys.modules["hypothesis"] = None
from perdure.machines import Machine
from perdure.runtime.testing import paths
try:
    paths(Machine)
except ModuleNotFoundError as error:
    print(error)
"""
    )
    assert said.stdout.strip().endswith("hypothesis is not installed: pip install hypothesis"), said.stderr


def test_the_plug_in_loads_next_to_nothing() -> None:
    said = python(
        "import pytest, sys; before = set(sys.modules); import perdure.runtime._testing_plugin;"
        "print(sorted(set(sys.modules) - before))"
    )
    assert eval(said.stdout) == ["perdure", "perdure.runtime", "perdure.runtime._testing_plugin"]


TEST = """
from perdure.runtime.testing import World

def test_it(world):
    assert isinstance(world, World)
    assert world.arrivals == []
"""


def test_its_fixture_is_there_wherever_perdure_is_installed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in said.stdout, said.stdout
