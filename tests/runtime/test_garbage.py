"""A step that is over is freed at once, and the collector looks only as often as it finds something."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Append, Call, Fire, Machine, Namespace, Runtime, State, Step, effect, read, record
from perdure.runtime._garbage import MOST, next_pace, spare_collector


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


@pytest.mark.anyio
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


@pytest.fixture
def collector() -> Iterator[None]:
    """Python's own pace of 700, and all as it was afterwards."""
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    gc.set_threshold(700, 10, 10)
    try:
        yield
    finally:
        gc.callbacks[:] = callbacks
        gc.set_threshold(*before)
        gc.unfreeze()


def _come(number: int, *, garbage: bool) -> None:
    kept = []
    for _ in range(number):
        each: list[object] = []
        if garbage:
            each.append(each)
        else:
            kept.append(each)


@pytest.mark.usefixtures("collector")
def test_the_collector_looks_less_often_while_it_finds_nothing_and_at_pythons_pace_where_it_does() -> None:
    spare_collector()
    _come(20 * MOST, garbage=False)
    assert gc.get_threshold() == (MOST, 10, 10)
    _come(20 * MOST, garbage=True)
    assert gc.get_threshold() == (700, 10, 10)
    _come(20 * MOST, garbage=False)
    assert gc.get_threshold() == (MOST, 10, 10)


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("own", [0, 3 * MOST])
def test_who_turned_the_collector_off_or_slower_keeps_that(own: int) -> None:
    gc.set_threshold(own, 10, 10)
    spare_collector()
    _come(7 * MOST, garbage=False)
    assert gc.get_threshold()[0] == own


@given(share=st.floats(0, 1), least=st.integers(100, 10_000))
def test_no_more_garbage_that_comes_evenly_waits_than_python_lets_wait(share: float, least: int) -> None:
    pace = least
    for _ in range(50):
        found = int(pace * share)
        assert found <= least
        pace = next_pace(pace, found, least)
