"""Threads that wait for an event: what they cost a worker that has nothing else to do.

python -m benchmarks._waiting FOLDER THREADS
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure import Machine, Runtime, State, record
from perdure.runtime._garbage import spare_collector

IDLE = 10.0
"""Seconds over which an idle worker's CPU is measured."""
WARM = 2.0


@record
class Page:
    """About a kilobyte."""

    body: str = "a" * 1000


class Waits(Machine[Page], version=1):
    """Waits for a signal, a day at the most."""

    waiting = State(initial=True)
    done = State(final=True)

    told = waiting.to(done).on_signal()
    late = waiting.to(done).after(timedelta(days=1))


def runtime_of(path: str) -> Runtime[None]:
    return Runtime(machines=[Waits], store=f"sqlite:///{path}", artifacts="memory:")


async def fill(path: str, threads: int) -> None:
    """Start the threads; none of them runs."""
    async with runtime_of(path).client() as client:
        for first in range(0, threads, 1000):
            some = range(first, min(first + 1000, threads))
            await asyncio.gather(*(client.start(Waits, Page(), thread_id=f"t{n}") for n in some))


async def idle(path: str) -> None:
    """Memory and CPU of a worker that has nothing to do."""
    async with runtime_of(path):
        await asyncio.sleep(WARM)
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(IDLE)
        share = (time.process_time() - cpu) / (time.monotonic() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"memory": memory, "cpu": share}), flush=True)


def measure(folder: str, threads: int) -> dict[str, Any]:
    """Bytes above an empty runtime's, and the share of a core that an idle worker takes."""
    command = [sys.executable, "-m", "benchmarks._waiting"]
    full, empty = f"{folder}/waiting.db", f"{folder}/empty.db"
    subprocess.run([*command, "fill", full, str(threads)], check=True)
    found: dict[str, dict[str, float]] = {}
    for path in (empty, full):
        ran = subprocess.run([*command, "idle", path], stdout=subprocess.PIPE, check=True)
        found[path] = json.loads(ran.stdout)
    return {
        "memory": found[full]["memory"] - found[empty]["memory"],
        "cpu": found[full]["cpu"],
        "cpu_empty": found[empty]["cpu"],
    }


def main() -> None:
    """The processes that ``measure`` starts, or the measurement itself."""
    match sys.argv[1:]:
        case ["fill", path, threads]:
            asyncio.run(fill(path, int(threads)))
        case ["idle", path]:
            spare_collector()  # as `perdure serve` does
            asyncio.run(idle(path))
        case [folder, threads]:
            print(json.dumps(measure(str(Path(folder).absolute()), int(threads))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
