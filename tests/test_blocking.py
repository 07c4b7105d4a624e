"""The check of loop_check.py, checked: it catches what library code does, and nothing else."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType

import anyio
import anyio.to_thread
import pytest
from blockbuster import BlockingError
from loop_check import Blocked

import perdure

pytestmark = pytest.mark.anyio


def _sleep() -> None:
    time.sleep(0)


def _open() -> None:
    Path(__file__).read_bytes()


def _query() -> None:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("SELECT 1")
    finally:
        connection.close()


def _lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    assert not lock.acquire(timeout=0.001)


BLOCKING = [_sleep, _open, _query, _lock]


def from_library(function: Callable[[], None]) -> Callable[[], None]:
    """The same function as if it stood in a module of perdure."""
    assert isinstance(function, FunctionType)
    path = str(Path(perdure.__path__[0]) / "stores" / "_invented.py")
    return FunctionType(function.__code__.replace(co_filename=path), function.__globals__)


@pytest.fixture
def caught(blocked: Blocked) -> Iterator[list[str]]:
    """What the check found in this test, and does not hold against it."""
    yield blocked.found
    blocked.found.clear()


@pytest.mark.parametrize("function", BLOCKING)
async def test_a_blocking_call_of_the_library_is_caught(
    function: Callable[[], None], caught: list[str]
) -> None:
    with pytest.raises(BlockingError):
        from_library(function)()
    assert [found for found in caught if "stores/_invented.py" in found]


async def test_it_is_caught_though_the_error_is_swallowed(caught: list[str]) -> None:
    with contextlib.suppress(Exception):
        from_library(_sleep)()
    assert len(caught) == 1


@pytest.mark.parametrize("function", BLOCKING)
async def test_the_same_call_of_a_test_passes(function: Callable[[], None], blocked: Blocked) -> None:
    function()
    assert blocked.found == []


@pytest.mark.parametrize("function", BLOCKING)
async def test_the_library_may_block_a_thread(function: Callable[[], None], blocked: Blocked) -> None:
    await anyio.to_thread.run_sync(from_library(function))
    assert blocked.found == []


@pytest.mark.parametrize("function", BLOCKING)
def test_the_library_may_block_without_a_loop(function: Callable[[], None], blocked: Blocked) -> None:
    from_library(function)()
    assert blocked.found == []


def _call_a_handler() -> None:
    _sleep()


async def test_a_handler_of_the_test_may_block_though_the_library_calls_it(blocked: Blocked) -> None:
    from_library(_call_a_handler)()
    assert blocked.found == []


async def _use_the_loop() -> None:
    asyncio.get_running_loop().call_soon(time.sleep, 0)
    await anyio.run_process(["true"])


def _command() -> None:
    anyio.run(_use_the_loop)


def test_the_loop_that_a_command_runs_is_not_the_library_calling(blocked: Blocked) -> None:
    from_library(_command)()
    assert blocked.found == []


def test_a_test_fails_by_it(tmp_path: Path) -> None:
    for name in ("conftest.py", "loop_check.py"):
        shutil.copy(Path(__file__).parent / name, tmp_path)
    (tmp_path / "test_swallows.py").write_text(
        "import contextlib\nimport perdure, pytest, time\n\n"
        "source = 'with contextlib.suppress(Exception): time.sleep(0)'\n"
        "blocking = compile(source, perdure.__path__[0] + '/x.py', 'exec')\n\n"
        "@pytest.mark.anyio\nasync def test_swallows():\n    exec(blocking)\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir=.", "."]
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    ran = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    assert "time.sleep on the event loop" in ran.stdout
    assert "1 passed, 1 error" in ran.stdout
