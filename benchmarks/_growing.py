"""One thread whose data grows by one item a step: what its last ten steps cost beside steps 10 to 19.

python -m benchmarks._growing FOLDER STEPS

Once it is an `Append()` field that grows, once a conversation. A step's time is the median of the thread's
last ten beside that of steps 10 to 19 of the short threads that run just after it, when all is warm; bytes
are those of the rows that its own ten steps wrote. Then a new runtime loads the thread, and one of the short
ones, each from a signal's send to its transition's commit.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from attrs import define, field

from perdure import Append, Conversation, Fire, Machine, Message, Runtime, State, Step, record
from perdure.runtime import Observation
from perdure.runtime._garbage import spare_collector

EARLY, TEN = 10, 10
SHORT, SHORTS = 20, 5
LINE = "a" * 200

BYTES = """SELECT sum(size) FROM (
    SELECT thread, seq, length(l.payload) + ifnull((
        SELECT length(i.payload) FROM items i WHERE i.thread = l.thread AND i.n = l.n), 0) size FROM log l)
    WHERE thread = (SELECT id FROM thread WHERE thread_id = ?) AND seq BETWEEN ? AND ?"""
MESSAGES = "SELECT sum(length(payload)) FROM message WHERE thread_id = ? AND number BETWEEN ? AND ?"


@record
class Grown:
    """One of two fields grows by 200 letters a step."""

    steps: int
    talks: bool
    lines: Annotated[Sequence[str], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()


@define
class Watch:
    """When the transitions of a thread have landed."""

    event: str
    """What the runtime is left at."""
    moments: list[float] = field(factory=list[float])
    over: asyncio.Event = field(factory=asyncio.Event)

    def observe(self, seen: Observation, /) -> None:
        if seen.event is not None:
            self.moments.append(time.perf_counter())
        if seen.event == self.event:
            self.over.set()

    def steps(self, first: int) -> list[float]:
        """Seconds of ten steps: of that which leads to checkpoint ``first``, and of those that follow."""
        return [self.moments[n - 1] - self.moments[n - 2] for n in range(first, first + TEN)]


class Growing(Machine[Grown], version=1):
    """An item a step; then it waits, to be loaded."""

    writing = State(initial=True)
    resting = State()
    done = State(final=True)

    again = writing.to(writing)
    full = writing.to(resting)
    go = resting.to(done).on_signal()

    @writing.handler
    async def write(self, data: Grown, step: Step) -> Fire:
        fire = self.full if len(data.lines) + len(data.talk) == data.steps - 1 else self.again
        if data.talks:
            return fire(talk=[Message(role="user", content=LINE)])
        return fire(lines=[LINE])


def runtime_of(path: Path, watch: Watch) -> Runtime[None]:
    return Runtime(machines=[Growing], store=f"sqlite:///{path}", artifacts="memory:", observers=[watch])


async def grow(path: Path, steps: int, talks: bool) -> tuple[float, float]:
    """Run the threads until they wait; seconds of an early step and of a late one."""
    watch = Watch("full")
    async with runtime_of(path, watch) as runtime:

        async def run(name: str, size: int, first: int) -> list[float]:
            watch.moments.clear()
            watch.over.clear()
            await runtime.start(Growing, Grown(steps=size, talks=talks), thread_id=name)
            await watch.over.wait()
            return watch.steps(first)

        late = await run("long", steps, steps - TEN + 1)
        early = [took for n in range(SHORTS) for took in await run(f"short-{n}", SHORT, EARLY)]
    return median(early), median(late)


async def load(path: Path, name: str) -> float:
    """Seconds until a new runtime has loaded the thread and committed a transition of it."""
    watch = Watch("go")
    async with runtime_of(path, watch) as runtime:
        thread = runtime.thread(Growing, thread_id=name)
        began = time.perf_counter()
        await thread.signal(Growing.go, id="go")
        await watch.over.wait()
    return watch.moments[0] - began


def bytes_of(path: Path, first: int) -> int:
    """Bytes that ten steps wrote, in the journal and beside it."""
    db = sqlite3.connect(path)
    found = [db.execute(sql, ("long", first, first + TEN - 1)).fetchone()[0] for sql in (BYTES, MESSAGES)]
    db.close()
    return sum(size or 0 for size in found)


async def measure(path: Path, steps: int, talks: bool) -> dict[str, Any]:
    """Seconds, bytes and ratios of one kind of field."""
    early, late = await grow(path, steps, talks)
    small, large = bytes_of(path, EARLY), bytes_of(path, steps - TEN + 1)
    return {
        "step": late,
        "step_ratio": late / early,
        "bytes": large / TEN,
        "bytes_ratio": large / small,
        "load_short": await load(path, "short-0"),
        "load": await load(path, "long"),
    }


def main() -> None:
    folder, steps = Path(sys.argv[1]).absolute(), int(sys.argv[2])
    spare_collector()  # as `perdure serve` does
    found = {
        f"{kind}_{name}": value
        for kind in ("append", "conversation")
        for name, value in asyncio.run(measure(folder / f"{kind}.db", steps, kind == "conversation")).items()
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
