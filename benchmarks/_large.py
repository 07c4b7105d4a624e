"""The workload in a store that holds many other threads: those that run are taken from among them at random.

python -m benchmarks._large FOLDER THREADS

All threads of the store are alike: each has a kilobyte of data and waits for a signal. Some, drawn at random,
are sent it, a hundred at a time, and go through the ten transitions of the workload: their rows and their
places in every index lie between those of threads that go on waiting. The signal, its transition and the
claim are part of the time, and ten transitions a thread are counted. The same is done in a store that holds
those threads alone. The store is made once a folder; each run draws threads that have not run.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks._ours import TRANSITIONS, Page, body_of, runtime_of
from perdure import Fire, Machine, State, Step
from perdure.runtime._garbage import spare_collector

CONCURRENCY = 100
RUN = 1000
"""Threads that run, where there are so many."""
AT_ONCE = 1000
"""Starts that may share a transaction."""


class Woken(Machine[Page], version=1):
    """Ten transitions after a signal."""

    waiting = State(initial=True)
    writing = State()
    done = State(final=True)

    go = waiting.to(writing).on_signal()
    again = writing.to(writing)
    finished = writing.to(done)

    @writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        fire = self.finished if data.number == TRANSITIONS - 1 else self.again
        return fire(number=data.number + 1, body=body_of(data.number))


async def fill(path: Path, threads: int) -> None:
    """Start the threads; none of them runs."""
    async with runtime_of(Woken, f"sqlite:///{path}", CONCURRENCY).client() as client:
        for first in range(0, threads, AT_ONCE):
            some = range(first, min(first + AT_ONCE, threads))
            page = Page(body=body_of(25))
            await asyncio.gather(*(client.start(Woken, page, thread_id=f"t{n}") for n in some))


async def run(path: Path, numbers: list[int]) -> float:
    """Wake these threads; seconds until all of them have ended."""
    slots = asyncio.Semaphore(CONCURRENCY)
    async with runtime_of(Woken, f"sqlite:///{path}", CONCURRENCY) as runtime:

        async def one(number: int) -> None:
            async with slots:
                thread = runtime.thread(Woken, thread_id=f"t{number}")
                await thread.signal(Woken.go, id="go")
                await thread.result()

        began = time.perf_counter()
        await asyncio.gather(*map(one, numbers))
        return time.perf_counter() - began


def draw(path: Path, threads: int) -> list[int]:
    """Threads that have not run, in an order that does not depend on the machine."""
    db = sqlite3.connect(path)
    (ran,) = db.execute("SELECT count(*) FROM standing WHERE seq > 0").fetchone()
    db.close()
    numbers = random.Random(5).sample(range(threads), threads)
    return numbers[ran : ran + RUN]


def measure(folder: Path, threads: int) -> dict[str, Any]:
    """Transitions a second, in the large store and in the small one."""
    large = folder / "large.db"
    if not large.exists():
        asyncio.run(fill(large, threads))
    numbers = draw(large, threads)
    small = folder / f"small-{numbers[0]}.db"
    asyncio.run(fill(small, len(numbers)))
    seconds = asyncio.run(run(large, numbers))
    alone = asyncio.run(run(small, list(range(len(numbers)))))
    steps = len(numbers) * TRANSITIONS
    return {
        "transitions_per_second": steps / seconds,
        "small_store_per_second": steps / alone,
        "small_store_ratio": alone / seconds,
    }


def main() -> None:
    spare_collector()  # as `perdure serve` does
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]).absolute(), int(sys.argv[2]))) + "\n")


if __name__ == "__main__":
    main()
