"""What every peer runs: threads of ten steps, each of which changes about 1 KB.

A peer's script runs in that peer's environment, so nothing here needs more than the standard library.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

STEPS = 10
BODY = 1000


def body(number: int) -> str:
    """What step ``number`` of a thread, counted from 0, leaves."""
    return chr(ord("a") + number) * BODY


async def drive(
    one: Callable[[int], Awaitable[None]],
    threads: int,
    concurrency: int,
    cpu: Callable[[], float] = time.process_time,
) -> dict[str, Any]:
    """Run ``one`` for each thread, ``concurrency`` at a time; ``cpu`` gives the seconds used so far."""
    took: list[float] = []
    slots = asyncio.Semaphore(concurrency)

    async def timed(number: int) -> None:
        async with slots:
            began = time.perf_counter()
            await one(number)
            took.append(time.perf_counter() - began)

    began, used = time.perf_counter(), cpu()
    await asyncio.gather(*(timed(number) for number in range(threads)))
    seconds, used = time.perf_counter() - began, cpu() - used
    took.sort()
    return {
        "seconds": seconds,
        "cpu": used,
        "p50": took[len(took) // 2],
        "p99": took[min(len(took) - 1, len(took) * 99 // 100)],
    }


def checked(number: int, steps: int) -> None:
    """Refuse a thread that ended early."""
    if steps != STEPS:
        raise SystemExit(f"thread-{number} ended after {steps} steps of {STEPS}")


def on_disk(folder: Path) -> int:
    """Bytes of every file in ``folder``, as many as are allocated or written, whichever is less."""
    return sum(
        min(each.stat().st_size, each.stat().st_blocks * 512) for each in folder.rglob("*") if each.is_file()
    )


def durable_server(settings: dict[str, str]) -> str:
    """A PostgreSQL connection's settings in words; one that is answered before the disk has it is refused."""
    if any(settings[name] != "on" for name in ("fsync", "full_page_writes", "synchronous_commit")):
        raise SystemExit(f"PostgreSQL is not durable: {settings}")
    return "PostgreSQL, fsync, synchronous_commit"


def durable(journal: str, synchronous: int) -> str:
    """The settings of an SQLite connection in words; less than a WAL synced at each commit is refused."""
    if (journal, synchronous) != ("wal", 2):
        raise SystemExit(f"journal_mode is {journal} and synchronous is {synchronous}: not wal and 2 (FULL)")
    return "SQLite, journal_mode=WAL, synchronous=FULL"


def arguments() -> tuple[Path, int, int]:
    """The folder to write into, threads and concurrency."""
    return Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def database() -> str | None:
    """The URL of an empty PostgreSQL database, for a peer that is to write there and not into the folder."""
    return sys.argv[4] if len(sys.argv) > 4 else None


def finish(result: dict[str, Any], steps: int, settings: str) -> None:
    """Print the result as the one line that the comparison reads."""
    print(json.dumps({**result, "steps": steps, "settings": settings}), flush=True)
