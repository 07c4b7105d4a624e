"""How many threads of a machine run at once: what is asked of the store, and who is said to wait."""

from __future__ import annotations

from asyncio import sleep
from typing import Any

from attrs import evolve
from harness.engine import Note, Sim, World, job, simulated
from harness.loop import SimLoop

from perdure.machines import Step, definition
from perdure.runtime._look import why


async def body(machine: Any, data: Note, step: Step[World]) -> Any:
    await sleep(3)
    return machine.finished()


@simulated
async def test_claims_say_how_many_and_a_start_claims_nothing(loop: SimLoop) -> None:
    machine, free = job(body, name="Few", at_once=2), job(body, name="Many")
    sim = Sim(loop, machine, free)
    engine = await sim.engine()
    await engine.start(machine, thread_id="few")
    await engine.start(free, thread_id="many")
    starts = {start.address.thread_id: start.owner for m, start in engine.store.writes if m == "start"}
    assert starts == {"few": None, "many": engine.id}
    asked = [dict(request.at_once) for m, request in engine.store.writes if m == "claim"]
    assert asked
    assert all(at_once == {"Few": 2} for at_once in asked)
    await sim.until("ended", thread_id="few")
    assert loop.elapsed == 3  # it is claimed at once all the same


@simulated
async def test_why_says_that_it_waits_for_a_place(loop: SimLoop) -> None:
    machine = job(body, name="Few", at_once=2)
    sim = Sim(loop, machine, concurrency=2)
    engine = await sim.engine()
    for thread_id in ("a", "b", "c"):
        await engine.start(machine, thread_id=thread_id)
    await sleep(1)
    said = await why(sim.store, definition(machine), await sim.row("c"), loop.now())
    assert "waits for a place: 2 of Few run at once." in said
    row = await sim.row("c")
    due = evolve(row, standing=evolve(row.standing, status="waiting", wake=loop.now()))
    assert "waits for a place: 2 of Few run" in await why(sim.store, definition(machine), due, loop.now())
    later = evolve(due, standing=evolve(due.standing, wake=loop.now() + 1))
    assert "waits for a place" not in await why(sim.store, definition(machine), later, loop.now())
    assert "no worker has claimed it" not in said
    assert "runs it" in await why(sim.store, definition(machine), await sim.row("a"), loop.now())
    await sim.until("ended", thread_id="c")
