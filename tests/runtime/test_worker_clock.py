"""A worker goes by the store's clock, and knows it as well as its quickest heartbeat allows."""

from __future__ import annotations

from random import Random
from typing import Any

from harness.engine import Engine, Note, Reply, Sim, World, job, looked, simulated
from harness.loop import SimLoop
from hypothesis import given
from hypothesis import strategies as st

from perdure.machines import Step
from perdure.runtime._clock import Ahead

SECOND = 1_000_000


@given(seed=st.integers(0, 10_000), ahead=st.integers(-(10**9), 10**9))
def test_the_quickest_answer_bounds_the_error_whatever_the_others_take(seed: int, ahead: int) -> None:
    """The store's clock is ``ahead`` of this one, and stamps each heartbeat somewhere on its way."""
    rng, span, now, quickest = Random(seed), Ahead(), 0, 10**9
    for _ in range(8):
        there, back = (round(rng.choice((0.001, 0.1, 5.0)) * rng.random() * SECOND) for _ in range(2))
        at, sent, received = now + there + ahead, now, now + there + back
        quickest = min(quickest, there + back)
        span = span.narrowed(at - received, at - sent)
        assert abs(span.middle - ahead) <= quickest / 2 + 1
        now = received + SECOND


def test_where_a_clock_was_set_the_newer_answer_holds() -> None:
    """Nothing is learnt of two answers that cannot both be right."""
    span = Ahead().narrowed(-10, 10)
    assert span.narrowed(90, 110) == Ahead(90, 110)
    assert span.narrowed(5, 400) == Ahead(5, 10)


async def look(machine: Any, data: Note, step: Step[World]) -> Any:
    return machine.finished(text=await step.call(looked, "a"))


@simulated
async def test_absent_is_believed_later_by_all_that_the_clock_may_be_off(loop: SimLoop) -> None:
    """Both the clock that recorded the end of the call, and the one that judges it now."""
    sim = Sim(loop)
    machine = job(look)
    engine = Engine(sim, [machine], {})
    engine.store.fault("delay", lambda method, _: method in ("beat", "claim"), times=1000, seconds=0.2)
    await engine.begin()
    sim.world.reply("looked", Reply(lands=None, error=TimeoutError("no answer")))
    await engine.start(machine)
    await sim.until("ended")
    (ended,) = await sim.entries("call_ended")
    (believed,) = await sim.entries("lookup")
    first, _ = await sim.entries("intent")
    assert first["settle"] == 1.1 * SECOND  # the declared second, and half of what an answer took
    assert believed["at"] - ended["at"] >= 1.2 * SECOND
