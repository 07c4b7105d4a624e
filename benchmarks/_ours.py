"""The workload on perdure: threads of ten transitions, each changing about 1 KB, everything durable."""

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


class Ten(Machine[Page], version=1):
    """Ten transitions."""

    writing = State(initial=True)
    done = State(final=True)

    again = writing.to(writing)
    finished = writing.to(done)

    @writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        body = chr(ord("a") + data.number) * BODY
        if data.number == TRANSITIONS - 1:
            return self.finished(number=data.number + 1, body=body)
        return self.again(number=data.number + 1, body=body)


async def measure(path: str, threads: int, concurrency: int) -> dict[str, Any]:
    """Run ``threads`` threads, ``concurrency`` at a time."""
    runtime = Runtime(
        machines=[Ten], store=f"sqlite:///{path}", artifacts="memory:", concurrency=concurrency + 1
    )
    took: list[float] = []
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int) -> None:
        async with slots:
            began = time.perf_counter()
            thread = await runtime.start(Ten, Page(), thread_id=f"thread-{number}")
            await thread.result()
            took.append(time.perf_counter() - began)

    async with runtime:
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


def main() -> None:
    path, threads, concurrency = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spare_collector()  # as `perdure serve` does
    result = asyncio.run(measure(path, threads, concurrency))
    result["bytes"] = os.path.getsize(path)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
