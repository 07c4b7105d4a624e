"""A start that is under way when its runtime is left."""

from __future__ import annotations

from asyncio import gather, sleep
from typing import Any

from harness.engine import Note, Sim, World, every, job, simulated
from harness.loop import SimLoop

from perdure.machines import Step


@simulated
async def test_a_thread_that_was_being_started_is_given_up_and_goes_on_elsewhere(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text="done")

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    engine.store.fault("delay", every("start"), seconds=2.0)

    async def leave() -> None:
        await sleep(1)
        await engine.end()
        row = await sim.row()
        assert (row.owner, row.standing.status) == (None, "running")

    await gather(engine.start(machine), leave())
    await sim.engine()
    assert (await sim.until("ended")).crashes == 0
