"""A guard that does not depend on the machine: counts, compared with ceilings.

python -m benchmarks --check

Counted for each transition: Python functions entered (coroutines gone on with, too) in the loop's thread, of
a hundred threads of ten transitions at once in a memory store, their starts and results included; objects
left to the garbage collector; commits to a SQLite file, and its bytes, which are those that ten threads of a
hundred transitions add to a file with one.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from benchmarks._bytes import STEPS, Part, Whole, file_size
from benchmarks._effects import Sending, commits_per_step
from benchmarks._ours import TRANSITIONS, Page, Ten, measure, run_threads, runtime_of
from benchmarks._reads import Keeping, Reading
from perdure import Machine, Runtime

THREADS = 100
FEW = 10
FILE_THREADS = 10

CEILINGS = {
    "calls a step, plain": 241.0,
    "calls a step, one effect": 665.0,
    "objects left to the collector a step, plain": 0.0,
    "objects left to the collector a step, one effect": 0.0,
    "commits a step, plain": 1.0,
    "commits a step, one effect": 2.0,
    "commits a step, two plain reads": 1.0,
    "commits a step, one kept read": 2.0,
    "bytes a step, a kilobyte changed": 1212.0,
    "bytes a step, one field changed": 218.0,
}
# Calls: what Python 3.11 counts (newer ones count fewer) and 10 % more; set them anew, lower, when the engine
# has come to need fewer, and higher only with a reason in the commit's message. Bytes: what is counted and
# 2 %, since sizes of records vary with the clock's digits. The others are promises, and stay.


def counted(after: list[int]) -> Any:
    """A profiler that adds the functions entered from now on to ``after``."""

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            after[0] += 1

    return profile


async def calls_per_step(runtime: Runtime[None], machine: type[Machine[Page]]) -> float:
    """Functions entered, by this thread."""
    count = [0]
    sys.setprofile(counted(count))
    try:
        await run_threads(runtime, machine, THREADS, THREADS, name="counted")
    finally:
        sys.setprofile(None)
    return count[0] / (THREADS * TRANSITIONS)


async def left_per_step(runtime: Runtime[None], machine: type[Machine[Page]]) -> float:
    """Objects that only the garbage collector frees."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await run_threads(runtime, machine, FEW, FEW, name="left")
        gc.collect()
        return len(gc.garbage) / (FEW * TRANSITIONS)
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()


async def in_memory(machine: type[Machine[Page]]) -> tuple[float, float]:
    """Calls and objects left, once everything has run before."""
    async with runtime_of(machine, "memory://", THREADS) as runtime:
        await run_threads(runtime, machine, FEW, FEW, name="warm-up")
        return await calls_per_step(runtime, machine), await left_per_step(runtime, machine)


def commits(path: Path, machine: type[Machine[Page]]) -> float:
    """Commits a step in a new file."""
    asyncio.run(measure(str(path), FEW, FEW, machine))
    return commits_per_step(str(path))


def bytes_per_step(path: Path, machine: type[Machine[Page]]) -> float:
    """What further threads add to a file, so that what it costs by itself counts for nothing."""
    one = file_size(f"{path}-one.db", machine, 1)
    return (file_size(f"{path}-more.db", machine, 1 + FILE_THREADS) - one) / (FILE_THREADS * STEPS)


IN_MEMORY: dict[str, type[Machine[Page]]] = {"plain": Ten, "one effect": Sending}
IN_FILES = IN_MEMORY | {"two plain reads": Reading, "one kept read": Keeping}


def figures() -> dict[str, float]:
    """All of them, by the names that ceilings have."""
    found: dict[str, float] = {}
    for name, machine in IN_MEMORY.items():
        calls, left = asyncio.run(in_memory(machine))
        found[f"calls a step, {name}"] = calls
        found[f"objects left to the collector a step, {name}"] = left
    with TemporaryDirectory() as folder:
        for name, machine in IN_FILES.items():
            found[f"commits a step, {name}"] = commits(Path(folder, f"{name}.db"), machine)
        found["bytes a step, a kilobyte changed"] = bytes_per_step(Path(folder, "whole"), Whole)
        found["bytes a step, one field changed"] = bytes_per_step(Path(folder, "part"), Part)
    return found


def check() -> int:
    """Print each figure beside its ceiling; the exit status: 1 where one is above it."""
    found = figures()
    above = [name for name, ceiling in CEILINGS.items() if found[name] > ceiling]
    for name, ceiling in CEILINGS.items():
        print(f"{name:50}{found[name]:10,.2f}   at most {ceiling:,.2f}" + "  ABOVE" * (name in above))
    for name in above:
        print(
            f"above its ceiling: {name}: {found[name]:,.2f}, at most {CEILINGS[name]:,.2f}", file=sys.stderr
        )
    return 1 if above else 0
