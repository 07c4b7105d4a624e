"""Rows R150 to R152 of docs/protocol.md: a limit that is reached moves the thread on."""

from __future__ import annotations

from asyncio import sleep
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
from harness.engine import Sim, World, bare, carrying, fresh, looked, simulated
from harness.loop import EPOCH, SimLoop

from perdure.machines import (
    Accept,
    Budget,
    Cost,
    Fire,
    Machine,
    Retry,
    Spent,
    State,
    Step,
    anywhere,
    record,
    replace,
)


@record
class Purse:
    budget: Budget = Budget(tokens=100, steps=6)
    tokens: Annotated[int, Cost()] = 0
    euros: Annotated[Decimal, Cost()] = Decimal(0)
    spent: str = ""
    open: bool = True


CALLS = [fresh, looked, bare]


class Talk(Machine[Purse, World], version=1, calls=CALLS):
    """Thinks round after round, until something is used up; then it sums up once more."""

    thinking = State(initial=True, retry=Retry(attempts=3, delay=timedelta(minutes=1)))
    asking = State()
    summing = State()
    done = State(final=True)
    again = thinking.to(thinking)
    ask = thinking.to(asking)
    answer = asking.to(thinking).on_signal()
    used_up = thinking.to(summing, when=lambda purse: purse.open).on_budget()
    summed = summing.to(done)

    @thinking.handler
    async def think(self, data: Purse, step: Step[World]) -> Fire:
        tokens = int(await step.call(fresh, str(step.seq)))
        return self.again(tokens=tokens, euros=Decimal("0.5"))

    @used_up.received
    def stop(self, data: Purse, spent: Spent) -> Accept:
        return self.used_up(spent=f"{spent.limit} {spent.allowed:g} {spent.used:g}")

    @summing.handler
    async def sum_up(self, data: Purse, step: Step[World]) -> Fire:
        return self.summed(tokens=50)


async def ran(sim: Sim, *tokens: int, data: Purse | None = None, machine: Any = Talk) -> Purse:
    sim.world.next_reads("fresh", *map(str, tokens))
    await (await sim.engine()).start(machine, data or Purse())
    await sim.until("ended")
    purse: Purse = await sim.thread(machine).data()
    return purse


@pytest.mark.parametrize(
    ("budget", "tokens", "rounds", "spent"),
    [
        (Budget(tokens=100), [40, 40, 40, 40], 3, "tokens 100 120"),
        (Budget(tokens=80), [40, 40, 40, 40], 2, "tokens 80 80"),
        (Budget(steps=3), [1, 1, 1, 1], 3, "steps 3 3"),
        (Budget(euros=1), [1, 1, 1, 1], 2, "euros 1 1"),
        (Budget(euros=0.75, tokens=1000, steps=9), [1, 1, 1, 1], 2, "euros 0.75 1"),
    ],
    ids=["passed", "just reached", "steps", "decimal", "the first of several"],
)
@simulated
async def test_r150_a_limit_that_is_reached_takes_its_event_in_the_handlers_stead(
    loop: SimLoop, budget: Budget, tokens: list[int], rounds: int, spent: str
) -> None:
    sim = Sim(loop, Talk)
    data = await ran(sim, *tokens, data=Purse(budget=budget))
    assert (len(sim.world.asked), data.spent) == (rounds, spent)
    assert data.tokens == sum(tokens[:rounds]) + 50  # the state that sums up goes on
    limit, allowed, used = spent.split()
    steps = await sim.thread(Talk).history()
    assert [step.event for step in steps][-2:] == ["used_up", "summed"]
    assert steps[-2].decisions == (f"budget: {limit} allowed {allowed}, used {used}",)


@simulated
async def test_r150_a_cost_that_no_float_can_hold_is_over_every_limit(loop: SimLoop) -> None:
    data = await ran(Sim(loop, Talk), data=Purse(tokens=10**400))
    assert data.spent == "tokens 100 1.79769e+308"


@simulated
async def test_r150_steps_count_committed_transitions(loop: SimLoop) -> None:
    sim = Sim(loop, Talk)
    await ran(sim, *[1] * 9)
    assert len(sim.world.asked) == 6
    assert [step.seq for step in await sim.thread(Talk).history() if step.event == "used_up"] == [7]


@simulated
async def test_r150_an_attempt_that_failed_uses_none(loop: SimLoop) -> None:
    sim = Sim(loop, Talk)
    sim.world.next_reads("fresh", RuntimeError("no"), RuntimeError("no"))
    data = await ran(sim, 60, 60)
    assert data.spent == "tokens 100 120"


@simulated
async def test_r150_a_budget_raised_by_an_update_goes_further(loop: SimLoop) -> None:
    class Raised(Talk, name="Raised"):
        """Gives itself more, once."""

        async def think(self, data: Purse, step: Step[World]) -> Fire:
            tokens = int(await step.call(fresh, str(step.seq)))
            if step.seq == 0:
                return self.again(tokens=tokens, budget=Budget(tokens=200))
            if step.seq == 2:
                return self.again(tokens=replace(10))
            return self.again(tokens=tokens)

    sim = Sim(loop, Raised)
    data = await ran(sim, 90, 90, 0, 100, 100, machine=Raised)
    assert (len(sim.world.asked), data.spent) == (5, "tokens 200 210")


@simulated
async def test_r150_a_crash_over_it_takes_it_once(loop: SimLoop) -> None:
    sim = Sim(loop, Talk)
    sim.world.next_reads("fresh", "100")
    engine = await sim.engine()
    engine.store.fault("kill before", carrying("budget"))
    await engine.start(Talk, Purse())
    await sim.until_dead(engine)
    await sim.engine()
    await sim.until("ended")
    assert [entry["limit"] for entry in await sim.entries("budget")] == ["tokens"]
    assert sim.world.asked == ["fresh/0"]


@simulated
async def test_r151_a_guard_that_is_false_lets_the_handler_go_on(loop: SimLoop) -> None:
    sim = Sim(loop, Talk)
    sim.world.next_reads("fresh", "200", "0", RuntimeError("no"), RuntimeError("no"), RuntimeError("no"))
    await (await sim.engine()).start(Talk, Purse(open=False))
    await sim.until("parked")
    assert len(sim.world.asked) == 5
    assert await sim.entries("budget") == []


@simulated
async def test_r152_a_timeout_of_the_states_around_that_is_due_comes_first(loop: SimLoop) -> None:
    class Timed(Machine[Purse, World], version=1, calls=CALLS):
        """Has a minute, and a hundred tokens."""

        thinking = State(initial=True)
        done = State(final=True)
        late = State(final=True)
        again = thinking.to(thinking)
        used_up = thinking.to(done).on_budget()
        expired = anywhere.to(late).after(timedelta(minutes=1))

        @thinking.handler
        async def think(self, data: Purse, step: Step[World]) -> Fire:
            await sleep(90)
            return self.again(tokens=100)

    sim = Sim(loop, Timed)
    await (await sim.engine()).start(Timed, Purse())
    row = await sim.until("ended")
    assert (row.standing.state, loop.now() - EPOCH) == ("late", 90_000_000)


@simulated
async def test_r152_a_cancel_comes_first(loop: SimLoop) -> None:
    sim = Sim(loop, Talk)
    await sim.thread(Talk).cancel(by="ada")
    await (await sim.engine()).start(Talk, Purse(budget=Budget(tokens=1), tokens=5))
    row = await sim.until("ended")
    assert (row.standing.state, row.standing.reason) == ("thinking", "cancelled")
    assert await sim.entries("budget") == []
