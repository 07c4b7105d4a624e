"""Threads whose process was killed in a handler: how long until a new process has them all going again.

python -m benchmarks._interrupted FOLDER THREADS
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from attrs import define, field

from perdure import Fire, Machine, Runtime, State, Step, record
from perdure.runtime._garbage import spare_collector

BODY = 1000


@record
class Page:
    """About a kilobyte."""

    body: str = "a" * BODY


@define
class Watch:
    """Counts handlers as they are entered: in ``first``, where threads are interrupted, and past it."""

    threads: int
    hold: bool
    first: int = 0
    second: int = 0
    moments: dict[str, float] = field(factory=dict[str, float])
    over: asyncio.Event = field(factory=asyncio.Event)

    def enter_first(self) -> None:
        self.first += 1
        if self.first == self.threads:
            self._note("entered")
            if self.hold:
                self.over.set()

    def enter_second(self) -> None:
        self.second += 1
        if self.second == self.threads:
            self._note("past")
            self.over.set()

    def _note(self, what: str) -> None:
        self.moments[what] = time.monotonic()
        self.moments[f"{what}_cpu"] = time.process_time()


def machine_of(watch: Watch) -> type[Machine[Page]]:
    """Threads of it are interrupted in ``first``; in ``second`` that state's transition is committed."""

    class Two(Machine[Page], version=1):
        """Two handlers that tell when they are entered."""

        first = State(initial=True)
        second = State()
        done = State(final=True)

        gone_on = first.to(second)
        finished = second.to(done)

        @first.handler
        async def work(self, data: Page, step: Step) -> Fire:
            watch.enter_first()
            if watch.hold:
                await asyncio.Event().wait()
            return self.gone_on(body="b" * BODY)

        @second.handler
        async def finish(self, data: Page, step: Step) -> Fire:
            watch.enter_second()
            return self.finished()

    return Two


def runtime_of(path: str, machine: type[Machine[Page]], threads: int) -> Runtime[None]:
    return Runtime(
        machines=[machine], store=f"sqlite:///{path}", artifacts="memory:", concurrency=threads + 1
    )


async def interrupt(path: str, threads: int) -> None:
    """Start the threads, and say when each is in its handler; whoever hears it kills this process."""
    watch = Watch(threads, hold=True)
    machine = machine_of(watch)
    async with runtime_of(path, machine, threads) as runtime:
        for first in range(0, threads, 500):
            some = range(first, min(first + 500, threads))
            await asyncio.gather(*(runtime.start(machine, Page(), thread_id=f"t{n}") for n in some))
        await watch.over.wait()
        print("all in their handlers", flush=True)
        await asyncio.Event().wait()


async def go_on(path: str, threads: int) -> None:
    """Run them to their ends; the moments at which all were so far, and the CPU seconds used until then."""
    watch = Watch(threads, hold=False)
    async with runtime_of(path, machine_of(watch), threads):
        await watch.over.wait()
    print(json.dumps(watch.moments), flush=True)


def measure(path: str, threads: int) -> dict[str, Any]:
    """Seconds, and CPU seconds, from the new process's start to each moment."""
    command = [sys.executable, "-m", "benchmarks._interrupted"]
    with subprocess.Popen([*command, "interrupt", path, str(threads)], stdout=subprocess.PIPE) as old:
        assert old.stdout is not None
        old.stdout.readline()
        old.kill()
    began = time.monotonic()
    ran = subprocess.run([*command, "go on", path, str(threads)], stdout=subprocess.PIPE, check=True)
    moments = json.loads(ran.stdout)
    return {name: at if name.endswith("_cpu") else at - began for name, at in moments.items()}


def main() -> None:
    """The two processes that ``measure`` starts, or the measurement itself."""
    match sys.argv[1:]:
        case ["interrupt", path, threads]:
            asyncio.run(interrupt(path, int(threads)))
        case ["go on", path, threads]:
            spare_collector()  # as `perdure serve` does
            asyncio.run(go_on(path, int(threads)))
        case [folder, threads]:
            print(json.dumps(measure(f"{Path(folder).absolute()}/interrupted.db", int(threads))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
