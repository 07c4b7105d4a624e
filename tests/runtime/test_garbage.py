"""A step that is over is freed at once: nothing of it waits for the garbage collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import pytest

from perdure import Append, Call, Fire, Machine, Namespace, Runtime, State, Step, effect, read, record

pytestmark = pytest.mark.anyio


@read
async def look(call: Call, number: int) -> str:
    return f"line {number}"


@effect(idempotent=True)
async def send(call: Call, number: int) -> str:
    return f"sent {number}"


@record
class Page:
    number: int = 0
    lines: Annotated[Sequence[str], Append()] = ()


facts = Namespace("facts", Page)


class Plain(Machine[Page], version=1):
    """No calls."""

    writing = State(initial=True)
    done = State(final=True)
    again = writing.to(writing)
    finished = writing.to(done)

    @writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        return self.finished() if data.number == 5 else self.again(number=data.number + 1)


class Calling(Machine[Page], version=1, calls=[look, send]):
    """A read, an effect, a memory write and an artifact in each step."""

    writing = State(initial=True)
    done = State(final=True)
    again = writing.to(writing)
    finished = writing.to(done)

    @writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        line = await step.call(look, data.number)
        await step.call(send, data.number)
        await step.memory.put(facts, f"{step.thread_id} {data.number}", Page(number=data.number))
        await step.artifacts.put(line.encode(), media_type="text/plain")
        if data.number == 5:
            return self.finished()
        return self.again(number=data.number + 1, lines=[line])


@pytest.mark.parametrize("machine", [Plain, Calling])
async def test_a_step_leaves_nothing_to_the_garbage_collector(machine: type[Machine[Page]]) -> None:
    async with Runtime(machines=[machine], store="memory://", artifacts="memory:") as runtime:

        async def run(name: str) -> None:
            thread = await runtime.start(machine, Page(), thread_id=name)
            ended = await thread.result()
            assert ended.data == await thread.data()  # the run's own data is what the store would give

        await run("what is made once")
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for number in range(5):
                await run(f"t{number}")
            gc.collect()
            left = Counter(type(each).__qualname__ for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.enable()
            gc.garbage.clear()
    assert left == {}
