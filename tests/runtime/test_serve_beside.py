"""A worker beside others: what it must not run twice, and what it still hears while it drains."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from datetime import timedelta
from typing import Any

from harness.engine import Note, Sim, World, job, simulated
from harness.loop import SimLoop

from perdure.machines import Fire, Machine, State, Step

MANY = 200


class Hangs(Machine[Note, World], version=1):
    """Works for an hour, unless it is cancelled."""

    working = State(initial=True)
    done = State(final=True)
    worked = working.to(done)

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        await sleep(3600)
        return self.worked()


@simulated
async def test_what_starts_at_the_moment_of_a_sweep_is_run_once(loop: SimLoop) -> None:
    ran: list[str] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        ran.append(step.thread_id)
        await sleep(0)
        return machine.finished()

    machine = job(body)
    sim = Sim(loop, machine)
    engine, client = await sim.engine(), sim.client()
    starts: list[Any] = []
    for n in range(MANY):  # in the worker's own process, and beside it
        by = engine.start(machine, thread_id=f"t{n}") if n % 2 else started(client, machine, f"t{n}")
        starts.append(by)
    begun = loop.elapsed
    await asyncio.gather(sim.engine(), *starts)
    assert loop.elapsed == begun
    await sleep(60)
    assert sorted(ran) == sorted(f"t{n}" for n in range(MANY))


async def started(client: Any, machine: Any, thread_id: str) -> None:
    await client.start(machine, Note(), thread_id=thread_id, workspace="w")


@simulated
async def test_a_cancel_that_comes_while_a_worker_drains_is_seen(loop: SimLoop) -> None:
    sim = Sim(loop, Hangs, grace=timedelta(minutes=10))
    engine = await sim.engine()
    await engine.start(Hangs)
    await sleep(1)
    leaving = loop.create_task(engine.end())
    await sleep(5)
    row = await sim.row()
    thread = sim.client().thread(Hangs, thread_id=row.address.thread_id, workspace="w")
    await thread.cancel(by="ada", reason="not needed")
    await leaving
    assert loop.elapsed < 10
    row = await sim.row()
    assert (row.standing.status, row.standing.reason) == ("ended", "cancelled")
