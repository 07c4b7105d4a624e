"""Who runs first where not all can: workspaces, machines, priorities, places, through real workers."""

from __future__ import annotations

from asyncio import sleep
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve
from harness.engine import Note, Sim, World, job, simulated
from harness.loop import SimLoop

from perdure.machines import Step
from perdure.stores import Start, Threads


class Order:
    """A machine whose threads take a second each, and the order in which they ran."""

    def __init__(self, loop: SimLoop, name: str = "Slow", at_once: int | None = None) -> None:
        self.ran: list[tuple[str, str]] = []
        self.under_way = 0
        self.most = 0

        async def body(machine: Any, data: Note, step: Step[World]) -> Any:
            self.ran.append((data.more or "", data.text or ""))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await sleep(1)
            self.under_way -= 1
            return machine.finished()

        self.machine = job(body, name=name, at_once=at_once)

    async def crowd(self, sim: Sim, workspace: str, n: int) -> None:
        """Threads that nobody runs yet."""
        client = sim.client(self.machine)
        for i in range(n):
            note = Note(more=workspace, text=str(i))
            await client.start(self.machine, note, thread_id=f"{workspace}{i:05}", workspace=workspace)


async def left(sim: Sim, **query: Any) -> int:
    page = await sim.store.page(Threads(status="running", **query), limit=100_000)
    return len(page.rows)


@simulated
async def test_a_large_workspace_does_not_keep_a_small_one_waiting(loop: SimLoop) -> None:
    order = Order(loop)
    sim = Sim(loop, order.machine, concurrency=10)
    await order.crowd(sim, "large", 2_000)
    await order.crowd(sim, "small", 5)
    for _ in range(2):
        await sim.engine()
    await sleep(3)
    assert await left(sim, workspace="small") == 0
    first = [workspace for workspace, _ in order.ran[:20]]
    assert first.count("small") == 5
    assert first.count("large") == 15  # and no room is left empty


@simulated
async def test_two_machines_share_the_room(loop: SimLoop) -> None:
    many, few = Order(loop, "Many"), Order(loop, "Few")
    sim = Sim(loop, many.machine, few.machine, concurrency=10)
    await many.crowd(sim, "w", 500)
    await few.crowd(sim, "w2", 20)
    await sim.engine()
    await sleep(8)
    assert len(few.ran) == 20
    assert len(many.ran) >= 50


@simulated
async def test_no_workspace_waits_for_ever(loop: SimLoop) -> None:
    order = Order(loop)
    sim = Sim(loop, order.machine, concurrency=4)
    for n in range(30):
        await order.crowd(sim, f"w{n:02}", 10)
    await sim.engine()
    await sleep(10)
    assert len({workspace for workspace, _ in order.ran}) == 30  # of 40 places that there were


@simulated
async def test_priority_counts_as_minutes_of_waiting(loop: SimLoop) -> None:
    order = Order(loop)
    sim = Sim(loop, order.machine, concurrency=1)
    kept = sim.store.start
    priorities = {"00000": -10, "00001": 0, "00002": 10}

    async def start(asked: Start, /) -> Any:
        return await kept(evolve(asked, priority=priorities[asked.address.thread_id[1:]]))

    sim.store.start = start  # type: ignore[method-assign]
    await order.crowd(sim, "w", 2)
    await sleep(timedelta(minutes=5).total_seconds())
    client = sim.client(order.machine)
    await client.start(order.machine, Note(text="2"), thread_id="w00002", workspace="w")
    await sim.engine()
    await sleep(5)
    assert [text for _, text in order.ran] == ["2", "1", "0"]


@simulated
@pytest.mark.parametrize("workers", [1, 3])
async def test_a_machine_has_so_many_places_over_all_workers(loop: SimLoop, workers: int) -> None:
    order, free = Order(loop, "Few", at_once=2), Order(loop, "Free")
    sim = Sim(loop, order.machine, free.machine)
    await order.crowd(sim, "w", 20)
    engines = [await sim.engine() for _ in range(workers)]
    await engines[0].start(free.machine, Note(), thread_id="free")
    await sim.until("ended", thread_id="free")
    assert loop.elapsed < 1.5
    await sleep(20)
    assert order.most == 2
    assert len(order.ran) == 20 if workers == 1 else len(order.ran) > 14  # a free place is seen in a poll
