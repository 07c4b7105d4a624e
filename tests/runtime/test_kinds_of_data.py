"""Threads whose data is a plain dataclass or a pydantic model: read back in another process, never changed
behind the record's back."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from harness.engine import CALLS, Sim, World, for_ever, simulated
from harness.loop import SimLoop
from pydantic import BaseModel, Field

from perdure.machines import Accept, Append, Budget, Cost, Fire, Machine, Retry, State, Step, ToolCall, record

ONCE = Retry(attempts=1)


@dataclass
class Plain:
    text: str = ""
    notes: Annotated[Sequence[str], Append(keep=2)] = ()
    tokens: Annotated[int, Cost()] = 0


@dataclass
class PlainLimited(Plain):
    budget: Budget = field(default=Budget(tokens=5))


class Modelled(BaseModel):
    text: str = Field(default="", max_length=5)
    notes: Annotated[Sequence[str], Append(keep=2)] = ()
    tokens: Annotated[int, Cost()] = 0


class ModelledLimited(Modelled):
    budget: Budget = Budget(tokens=5)


KINDS = pytest.mark.parametrize("cls", [Plain, Modelled])


@record
class Nothing:
    pass


def working(cls: Any, work: Any) -> Any:
    """A machine of one state, whose handler is ``work``."""

    class Works(Machine[cls, World], version=1, calls=CALLS):
        """One state."""

        working = State(initial=True, retry=ONCE)
        done = State(final=True)
        finished = working.to(done)

        @working.handler
        async def work(self, data: Any, step: Step[World]) -> Fire:
            return self.finished(**await work(data, step))

    return Works


def some(**updates: Any) -> dict[str, Any]:
    """Updates of a class that no checker knows."""
    return updates


async def parked_note(loop: SimLoop, machine: Any, data: Any) -> str:
    sim = Sim(loop, machine)
    await (await sim.engine()).start(machine, data)
    row = await sim.until("parked")
    return row.standing.note or ""


@pytest.mark.parametrize("cls", [PlainLimited, ModelledLimited])
@simulated
async def test_is_read_back_by_another_process(loop: SimLoop, cls: Any) -> None:
    seen: list[Any] = []

    class Steps(Machine[cls, World], version=1, calls=CALLS):
        """Two steps; the second hangs once."""

        first = State(initial=True)
        second = State()
        spent = State(final=True)
        done = State(final=True)
        filled = first.to(second)
        finished = second.to(done)
        over = second.to(spent).on_budget()

        @first.handler
        async def fill(self, data: Any, step: Step[World]) -> Fire:
            return self.filled(**some(text="a", notes=["1", "2", "3"], tokens=2))

        @second.handler
        async def look(self, data: Any, step: Step[World]) -> Fire:
            seen.append(data)
            if len(seen) == 1:
                await for_ever()
            return self.finished(**some(text="b", tokens=2))

    sim = Sim(loop, Steps)
    first = await sim.engine()
    await first.start(Steps, cls())
    await sleep(1)
    first.kill()
    await sim.engine()
    await sim.until("ended")
    assert seen == [cls(text="a", notes=("2", "3"), tokens=2)] * 2
    assert await sim.thread(Steps).data() == cls(text="b", notes=("2", "3"), tokens=4)


@KINDS
@simulated
async def test_a_field_that_a_handler_assigned_is_named(loop: SimLoop, cls: Any) -> None:
    async def assigns(data: Any, step: Step[World]) -> dict[str, Any]:
        data.text = "mine"
        return {"tokens": 1}

    note = await parked_note(loop, working(cls, assigns), cls())
    assert f"{cls.__name__}.text: the handler of 'working' assigned it in place" in note


@KINDS
@simulated
async def test_what_a_guard_assigns_is_not_kept(loop: SimLoop, cls: Any) -> None:
    seen: list[str] = []

    def spoils(data: Any) -> bool:
        data.text = "spoilt"
        return True

    class Guarded(Machine[cls, World], version=1, calls=CALLS):
        """Two steps in one process."""

        first = State(initial=True)
        second = State()
        done = State(final=True)
        went = first.to(second, when=spoils)
        finished = second.to(done)

        @first.handler
        async def go(self, data: Any, step: Step[World]) -> Fire:
            return self.went(**some(text="good"))

        @second.handler
        async def end(self, data: Any, step: Step[World]) -> Fire:
            seen.append(data.text)
            return self.finished()

    sim = Sim(loop, Guarded)
    await (await sim.engine()).start(Guarded, cls())
    await sim.until("ended")
    assert seen == ["good"]


@KINDS
@simulated
async def test_a_field_that_a_receiver_assigned_is_named(loop: SimLoop, cls: Any) -> None:
    class Waits(Machine[cls, World], version=1, calls=CALLS):
        """Waits for a signal."""

        waiting = State(initial=True)
        done = State(final=True)
        told = waiting.to(done).on_signal(Nothing)

        @told.received
        def hear(self, data: Any, payload: Nothing) -> Accept:
            data.tokens = 1
            return self.told()

    sim = Sim(loop, Waits)
    thread = await (await sim.engine()).start(Waits, cls())
    await sim.until("waiting")
    await thread.signal(Waits.told, Nothing(), id="1")
    row = await sim.until("parked")
    assert f"{cls.__name__}.tokens: the receiver of 'told' assigned it in place" in (row.standing.note or "")


@KINDS
@simulated
async def test_a_field_that_a_receiver_of_a_choice_assigned_is_named(loop: SimLoop, cls: Any) -> None:
    class Decides(Machine[cls, World], version=1, calls=CALLS):
        """A model chooses its only event."""

        deciding = State(initial=True, retry=ONCE)
        done = State(final=True)
        chosen = deciding.to(done).on_choice(Nothing)

        @chosen.received
        def take(self, data: Any, payload: Nothing) -> Accept:
            data.tokens = 1
            return self.chosen()

        @deciding.handler
        async def decide(self, data: Any, step: Step[World]) -> Fire:
            """Choose."""
            answer = step.decide(ToolCall(id="1", name="chosen", arguments="{}"))
            assert isinstance(answer, Fire)
            return answer

    note = await parked_note(loop, Decides, cls())
    assert f"{cls.__name__}.tokens: the receiver of 'chosen' assigned it in place" in note


@simulated
async def test_an_update_that_a_model_refuses_is_told_by_its_field(loop: SimLoop) -> None:
    async def too_long(data: Modelled, step: Step[World]) -> dict[str, Any]:
        return {"text": "much too long"}

    note = await parked_note(loop, working(Modelled, too_long), Modelled())
    assert "Modelled.text: String should have at most 5 characters" in note
