"""Handlers that keep the loop from running for longer than a lease."""

from __future__ import annotations

from typing import Any

import pytest
from harness.engine import Note, Sim, World, bare, job, looked, simulated
from harness.loop import SimLoop

from perdure.machines import Step


@pytest.mark.parametrize("effect", [bare, looked], ids=lambda effect: effect.name)
@simulated
async def test_a_handler_that_blocks_for_three_leases_goes_on_at_once_where_nobody_took_over(
    loop: SimLoop, effect: Any
) -> None:
    """Nor is an effect in doubt for it: the lease is shown anew before the intent, which has the fence."""
    ran: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        ran.append(step.attempt)
        loop.elapsed += 45  # time.sleep: nothing else runs meanwhile
        return machine.finished(text=await step.call(effect, "a"))

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine)
    row = await sim.until("ended", "parked")
    assert (row.standing.status, row.epoch, ran) == ("ended", 1, [1])
    assert len(sim.world.arrivals) == 1
