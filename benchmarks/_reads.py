"""Commits of a step that reads: two plain reads, and a kept one.

python -m benchmarks._reads FOLDER THREADS

Plain reads ride in the transition. A kept read's answer is recorded behind the handler's back while that goes
on: one commit more; where the handler returns at once, the answer rides in the transition too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from benchmarks._effects import CONCURRENCY, commits_per_step
from benchmarks._ours import TRANSITIONS, Page, Writes, body_of, measure
from perdure import Call, Fire, Machine, Step, read
from perdure.runtime._garbage import spare_collector

TURNS = 20
"""Turns of the loop that a handler goes on for after a kept read."""


@read
async def look(call: Call, number: int) -> int:
    """Answers at once."""
    return number


@read(keep=True)
async def draft(call: Call, number: int) -> int:
    """Answers in a later turn of the loop, as a model does."""
    await asyncio.sleep(0)
    return number


class Reading(Writes, version=1, calls=[look]):
    """Two plain reads a step."""

    @Writes.writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        number = await step.call(look, data.number)
        await step.call(look, number + 1)
        return self.page(number + 1, body_of(number))


class Keeping(Writes, version=1, calls=[draft]):
    """A kept read a step; the handler has more to do when its answer is there."""

    @Writes.writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        number = await step.call(draft, data.number)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self.page(number + 1, body_of(number))


class Returning(Writes, version=1, calls=[draft]):
    """A kept read a step, with which the handler returns."""

    @Writes.writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        number = await step.call(draft, data.number)
        return self.page(number + 1, body_of(number))


WAYS: dict[str, type[Machine[Page]]] = {"plain": Reading, "kept": Keeping, "kept_last": Returning}


async def figures(folder: str, threads: int) -> dict[str, Any]:
    """Commits a step and transitions a second of each way."""
    found: dict[str, Any] = {}
    for way, machine in WAYS.items():
        path = f"{folder}/{way}.db"
        ran = await measure(path, threads, CONCURRENCY, machine)
        found[f"{way}_commits_per_step"] = commits_per_step(path)
        found[f"{way}_per_second"] = threads * TRANSITIONS / ran["seconds"]
    return found


def main() -> None:
    spare_collector()  # as `perdure serve` does
    sys.stdout.write(json.dumps(asyncio.run(figures(sys.argv[1], int(sys.argv[2])))) + "\n")


if __name__ == "__main__":
    main()
