"""The workload on perdure: threads of ten transitions, each changing about 1 KB, everything durable.

python -m benchmarks._ours PATH THREADS CONCURRENCY
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from perdure import Fire, Machine, Runtime, State, Step, record
from perdure.runtime._garbage import spare_collector

TRANSITIONS = 10
BODY = 1000


@record
class Page:
    """About a kilobyte, all of which changes in each transition."""

    number: int = 0
    body: str = ""


def body_of(number: int) -> str:
    """A thousand letters, others than of the number before."""
    return chr(ord("a") + number % 26) * BODY


class Writes(Machine[Page], abstract=True):
    """Goes on writing pages until one is the last."""

    writing = State(initial=True)
    done = State(final=True)

    again = writing.to(writing)
    finished = writing.to(done)

    def page(self, number: int, body: str, *, last: int = TRANSITIONS) -> Fire:
        """The transition that writes this page."""
        fire = self.finished if number == last else self.again
        return fire(number=number, body=body)


class Ten(Writes, version=1):
    """Ten transitions."""

    @Writes.writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        return self.page(data.number + 1, body_of(data.number))


def runtime_of(machine: type[Machine[Any]], store: str, concurrency: int) -> Runtime[None]:
    """Runs so many threads of one machine at once."""
    return Runtime(machines=[machine], store=store, artifacts="memory:", concurrency=concurrency + 1)


async def run_threads(
    runtime: Runtime[None],
    machine: type[Machine[Page]],
    threads: int,
    concurrency: int,
    *,
    name: str = "thread",
) -> dict[str, Any]:
    """Start ``threads`` threads, ``concurrency`` at a time, and wait for their ends. Seconds: of all, of CPU,
    and of one thread."""
    took: list[float] = []
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int) -> None:
        async with slots:
            began = time.perf_counter()
            thread = await runtime.start(machine, Page(), thread_id=f"{name}-{number}")
            await thread.result()
            took.append(time.perf_counter() - began)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one(number) for number in range(threads)))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    took.sort()
    return {
        "seconds": seconds,
        "cpu": cpu,
        "p50": took[len(took) // 2],
        "p99": took[min(len(took) - 1, len(took) * 99 // 100)],
    }


async def measure(
    path: str, threads: int, concurrency: int, machine: type[Machine[Page]] = Ten, options: str = ""
) -> dict[str, Any]:
    """Run the threads on a SQLite file; ``options`` are those of its URL."""
    async with runtime_of(machine, f"sqlite:///{path}{options}", concurrency) as runtime:
        return await run_threads(runtime, machine, threads, concurrency)


def main() -> None:
    path, threads, concurrency = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spare_collector()  # as `perdure serve` does
    result = asyncio.run(measure(path, threads, concurrency, options="".join(sys.argv[4:])))
    result["bytes"] = os.path.getsize(path)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
