"""Timers that come due while no worker is there: each comes once, soon, and not all of them at once."""

from __future__ import annotations

from asyncio import sleep
from datetime import timedelta
from itertools import pairwise
from typing import Any

from attrs import evolve
from harness.engine import CALLS, Note, Sim, World, simulated
from harness.loop import EPOCH, SimLoop

from perdure.machines import Machine, State
from perdure.runtime import StepSeen
from perdure.stores import Claimed, ClaimRequest, MemoryStore, Threads

SECOND = 1_000_000


class Reminder(Machine[Note, World], version=1, calls=CALLS):
    waiting = State(initial=True)
    reminded = State(final=True)
    remind = waiting.to(reminded).after(timedelta(seconds=2))


async def last(sim: Sim) -> StepSeen:
    return (await sim.thread(Reminder).history())[-1]


@simulated
async def test_g15_a_timer_that_ended_in_an_outage_fires_once_and_says_by_how_much_it_is_late(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Reminder)
    engine = await sim.engine()
    await engine.start(Reminder)
    await sleep(0.5)
    engine.kill()
    await sleep(5)
    before = loop.now()
    await sim.engine()
    await sim.until("ended")
    assert loop.now() - before < SECOND
    step = await last(sim)
    assert (step.event, step.decisions) == ("remind", ("timeout remind (4 s late)",))
    assert len(await sim.entries("timeout")) == 1


@simulated
async def test_two_clocks_that_are_wrong_do_not_fire_early(loop: SimLoop) -> None:
    """The store's clock decides, whichever of the workers is ahead of it."""
    sim = Sim(loop, Reminder)
    env = sim.env
    for offset in (3600, -3600):
        sim.env = evolve(env, now=lambda offset=offset: loop.now() + offset * SECOND)  # type: ignore[misc]
        await sim.engine()
    sim.env = env
    engine = await sim.engine()
    await engine.start(Reminder)
    await sim.until("ended")
    assert 1.9 * SECOND < loop.now() - EPOCH < 3 * SECOND


class Watched(MemoryStore):
    """Notes when threads that are long due were claimed, and how many at once."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(clock=loop.now)
        self.loop = loop
        self.rounds: list[tuple[int, int]] = []

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        claimed = await super().claim(request)
        wakes = [claim.thread.standing.wake for claim in claimed.claims]
        late = sum(wake is not None and wake < self.loop.now() - 60 * SECOND for wake in wakes)
        if late:
            self.rounds.append((self.loop.now(), late))
        return claimed


@simulated
async def test_g19_half_a_day_of_timers_is_spread_and_new_work_does_not_wait(loop: SimLoop) -> None:
    sim = Sim(loop, Reminder)
    store: Any = Watched(loop)
    sim.store = store
    client = sim.client()
    for number in range(500):
        await client.start(Reminder, Note(), thread_id=f"old-{number}", workspace="w")
    await sleep(12 * 3600)
    await sim.engine(concurrency=100)
    await sleep(0.1)
    fresh = await client.start(Reminder, Note(), thread_id="new", workspace="w")
    begun = loop.now()
    await fresh.result()
    assert loop.now() - begun < 3 * SECOND
    await sleep(10)
    rows = await sim.store_rows(Threads(workspace="w"))
    assert {row.standing.state for row in rows} == {"reminded"}
    assert [count for _, count in store.rounds] == [10] * 50
    moments = [at for at, _ in store.rounds]
    assert all(after - before >= 50_000 for before, after in pairwise(moments))
