"""From a signal's send to the commit that takes it in: alone, many at once, and from another process.

python -m benchmarks._signals FOLDER SIGNALS
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

from perdure import Machine, Runtime, State, Thread, record
from perdure.runtime import Client, Observation
from perdure.runtime._garbage import spare_collector

AT_ONCE = 100


@record
class Page:
    """About a kilobyte."""

    body: str = "a" * 1000


class Told(Machine[Page], version=1):
    """Takes in one signal after the other."""

    waiting = State(initial=True)
    done = State(final=True)

    tell = waiting.to(waiting).on_signal()
    stop = waiting.to(done).on_signal()


@define
class Commits:
    """Says when each thread's next transition has landed."""

    waiting: dict[str, asyncio.Future[float]] = field(factory=dict[str, "asyncio.Future[float]"])

    def observe(self, seen: Observation, /) -> None:
        waiting = self.waiting.pop(seen.thread_id, None) if seen.event == "tell" else None
        if waiting is not None and not waiting.done():
            waiting.set_result(time.monotonic())

    def next_of(self, thread_id: str) -> asyncio.Future[float]:
        return self.waiting.setdefault(thread_id, asyncio.get_running_loop().create_future())


class Printed:
    """Prints when each transition has landed."""

    def observe(self, seen: Observation, /) -> None:
        if seen.event == "tell":
            print(time.monotonic(), flush=True)


def runtime_of(path: str, observer: Any) -> Runtime[None]:
    return Runtime(machines=[Told], store=f"sqlite:///{path}", artifacts="memory:", observers=[observer])


async def one_process(path: str, signals: int) -> dict[str, list[float]]:
    """Seconds of each signal: alone, and ``AT_ONCE`` together."""
    commits = Commits()

    async def one(thread: Thread[Told, Page], number: int) -> float:
        landed = commits.next_of(thread.thread_id)
        began = time.monotonic()
        await thread.signal(Told.tell, id=f"s{number}")
        return await landed - began

    async with runtime_of(path, commits) as runtime:
        ids = [f"t{n}" for n in range(AT_ONCE)]
        threads = [await runtime.start(Told, Page(), thread_id=each) for each in ids]
        alone = [await one(threads[0], n) for n in range(signals)]
        together: list[float] = []
        for number in range(max(1, signals // AT_ONCE)):
            together += await asyncio.gather(*(one(thread, signals + number) for thread in threads))
    return {"alone": alone, "at_once": together}


async def tell(client: Client, worker: asyncio.subprocess.Process, signals: int) -> list[float]:
    thread = client.thread(Told, thread_id="t0")
    took: list[float] = []
    assert worker.stdout is not None
    for number in range(signals):
        began = time.monotonic()
        await thread.signal(Told.tell, id=f"other-{number}")
        took.append(float(await worker.stdout.readline()) - began)
    return took


async def other_process(path: str, signals: int) -> list[float]:
    """Seconds of each signal that this process sends to a worker in another."""
    command = (sys.executable, "-m", "benchmarks._signals", "work", path)
    worker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None
        await worker.stdout.readline()
        async with runtime_of(path, Commits()).client() as client:
            return await tell(client, worker, signals)
    finally:
        worker.kill()
        await worker.wait()


async def work(path: str) -> None:
    """A worker that prints the moments of its commits."""
    async with runtime_of(path, Printed()):
        print("there", flush=True)
        await asyncio.Event().wait()


def percentiles(took: Sequence[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[len(ordered) * 99 // 100]}


async def measure(path: str, signals: int) -> dict[str, Any]:
    """Seconds, p50 and p99, of each way."""
    took = await one_process(path, signals)
    took["other_process"] = await other_process(path, signals)
    return {f"{way}_{name}": value for way, each in took.items() for name, value in percentiles(each).items()}


def main() -> None:
    """The worker that ``measure`` starts, or the measurement itself."""
    match sys.argv[1:]:
        case ["work", path]:
            spare_collector()  # as `perdure serve` does
            asyncio.run(work(path))
        case [folder, signals]:
            print(json.dumps(asyncio.run(measure(f"{Path(folder).absolute()}/signals.db", int(signals)))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
