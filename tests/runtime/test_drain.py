"""Leaving in good order: what can end within the grace does, the rest is released, and nothing has failed."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve
from harness.engine import (
    CALLS,
    HANG,
    Note,
    Reply,
    Sim,
    World,
    again,
    every,
    fresh,
    job,
    kept,
    looked,
    simulated,
)
from harness.loop import EPOCH, SimLoop

from perdure.machines import Fire, Machine, Retry, State, Step
from perdure.stores import Workers

SECOND = 1_000_000
ONCE = Retry(attempts=1)


class Long(Machine[Note, World], version=1, calls=CALLS):
    """Five seconds of work, and a state after it."""

    working = State(initial=True, retry=ONCE)
    second = State(retry=ONCE)
    done = State(final=True)
    worked = working.to(second)
    finished = second.to(done)

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        await sleep(5)
        return self.worked(text=await step.call(looked, "a"))

    @second.handler
    async def end(self, data: Note, step: Step[World]) -> Fire:
        return self.finished(more=await step.call(looked, "b"))


async def worker_row(sim: Sim, worker: str) -> Any:
    return (await sim.store.page(Workers(id=worker))).rows[0]


@simulated
async def test_with_grace_enough_the_transition_commits_and_the_exit_is_clean(loop: SimLoop) -> None:
    sim = Sim(loop, Long, grace=timedelta(seconds=10))
    engine = await sim.engine()
    await engine.start(Long)
    worker = engine.id
    await sleep(1)
    await engine.end()
    assert loop.elapsed == 5
    row = await sim.row()
    assert (row.standing.state, row.standing.seq, row.standing.status) == ("second", 1, "running")
    assert (row.owner, row.crashes) == (None, 0)
    assert [a.args for a in sim.world.arrivals] == [("a",)]  # the next state was not begun
    assert (await worker_row(sim, worker)).ended == EPOCH + 5 * SECOND
    await sim.engine()
    row = await sim.until("ended")
    assert (row.epoch, row.crashes) == (2, 0)
    assert await sim.commits() == [
        "start",
        "record: intent",
        "transition: done",
        "record: intent",
        "transition: done",
    ]


@simulated
async def test_with_grace_too_short_the_thread_is_released_and_goes_on_elsewhere(loop: SimLoop) -> None:
    sim = Sim(loop, Long, grace=timedelta(seconds=1))
    engine = await sim.engine()
    await engine.start(Long)
    worker = engine.id
    await sleep(1)
    await engine.end()
    assert loop.elapsed == 2
    row = await sim.row()
    assert (row.standing.state, row.standing.status, row.owner) == ("working", "running", None)
    assert await sim.commits() == ["start"]
    assert (await worker_row(sim, worker)).ended == EPOCH + 2 * SECOND
    await sim.engine()
    row = await sim.until("ended", "parked")
    assert (row.standing.status, row.crashes) == ("ended", 0)
    assert await sim.entries("failed") == []


@simulated
async def test_restart_after_restart_uses_no_attempt(loop: SimLoop) -> None:
    attempts: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        attempts.append(step.attempt)
        await step.call(kept, "k")
        await sleep(60)
        return machine.finished(text="x")

    machine = job(body, retry=ONCE)
    sim = Sim(loop, machine, grace=timedelta(seconds=1))
    engine = await sim.engine()
    await engine.start(machine)
    for _ in range(3):
        await sleep(5)
        await engine.end()
        engine = await sim.engine()
    row = await sim.until("ended", "parked")
    assert row.standing.status == "ended"
    assert attempts == [1, 1, 1, 1]
    assert await sim.entries("failed") == []
    assert sim.world.asked == ["kept/k"]


@simulated
async def test_a_worker_with_nothing_to_do_leaves_at_once(loop: SimLoop) -> None:
    sim = Sim(loop, Long, grace=timedelta(hours=1))
    engine = await sim.engine()
    await sleep(1)
    await engine.end()
    assert loop.elapsed == 1


@simulated
async def test_while_it_drains_it_takes_nothing_new(loop: SimLoop) -> None:
    machine = job(lambda m, d, s: s.call(fresh, "r"), name="New")
    sim = Sim(loop, Long, machine, grace=timedelta(seconds=10))
    engine = await sim.engine()
    await engine.start(Long)
    runtime = engine.runtime
    client = runtime._running
    leaving = loop.create_task(engine.end())
    await sleep(1)
    await engine.inside(lambda: client.start(machine, Note(), thread_id="new", workspace="w"))
    await sim.client().start(machine, Note(), thread_id="other", workspace="w")
    await leaving
    for thread_id in ("new", "other"):
        row = await sim.row(thread_id)
        assert (row.owner, row.epoch, row.standing.status) == (None, 0, "running")
    assert sim.world.asked == []


@simulated
async def test_an_attempt_that_fails_while_it_drains_is_not_tried_again_there(loop: SimLoop) -> None:
    attempts: list[tuple[int, float]] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        attempts.append((step.attempt, loop.elapsed))
        if len(attempts) == 1:
            await sleep(3)
            raise ValueError
        return machine.finished()

    machine = job(body, retry=Retry(attempts=2, delay=timedelta(0)))
    sim = Sim(loop, machine, grace=timedelta(seconds=60))
    engine = await sim.engine()
    await engine.start(machine)
    await sleep(1)
    await engine.end()
    assert loop.elapsed == 3
    assert attempts == [(1, 0)]
    await sleep(7)
    await sim.engine()
    await sim.until("ended")
    assert attempts == [(1, 0), (2, 10)]


@simulated
async def test_the_end_of_an_aborted_effect_is_recorded_so_that_the_next_waits_no_longer_than_it_must(
    loop: SimLoop,
) -> None:
    """A repeatable effect, of which only the end of the call shortens the wait for its late arrival."""
    machine = job(lambda m, d, s: finish(m, s.call(again, "a")), retry=ONCE)
    sim = Sim(loop, machine, grace=timedelta(seconds=1))
    sim.world.reply("again", HANG)
    sim.env = evolve(sim.env, ended=lambda row: False)  # nobody can tell that the process is gone
    engine = await sim.engine()
    await engine.start(machine)
    await sleep(2)
    await engine.end()
    assert loop.elapsed == 3
    await sim.engine()
    await sim.until("ended")
    assert [(a.at - EPOCH) / SECOND for a in sim.world.arrivals] == [0, 4]  # its end, and a second to settle
    (first, second) = await sim.entries("intent")
    assert first["key"] == second["key"]


async def finish(machine: Any, call: Any) -> Any:
    return machine.finished(text=await call)


@simulated
async def test_an_effect_that_ends_within_the_grace_is_recorded_although_its_handler_does_not_go_on(
    loop: SimLoop,
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        text = await step.call(looked, "a")
        await sleep(60)
        return machine.finished(text=text)

    machine = job(body, retry=ONCE)
    sim = Sim(loop, machine, grace=timedelta(seconds=5))
    sim.world.reply("looked", Reply(takes=4.0))
    engine = await sim.engine()
    await engine.start(machine)
    await sleep(1)
    await engine.end()
    assert loop.elapsed == 6
    assert await sim.commits() == ["start", "record: intent", "record: done"]
    await sim.engine()
    await sim.until("ended")
    assert len(sim.world.arrivals) == 1
    assert sim.world.lookups == []


@simulated
async def test_a_handler_that_will_not_be_cancelled_does_not_hold_the_exit_up(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        while loop.elapsed < 600:
            try:
                await sleep(600)
            except asyncio.CancelledError:
                continue
        return machine.finished()

    machine = job(body, retry=ONCE)
    sim = Sim(loop, machine, grace=timedelta(seconds=1))
    engine = await sim.engine()
    await engine.start(machine)
    await engine.end()
    assert loop.elapsed < 10
    row = await sim.row()
    assert (row.standing.status, await sim.commits()) == ("running", ["start"])
    await sleep(700)
    await sim.engine()
    row = await sim.until("ended")
    assert row.crashes == 0
    assert await sim.entries("failed") == []


@simulated
async def test_a_store_out_of_reach_does_not_hold_the_exit_up_for_ever(loop: SimLoop) -> None:
    sim = Sim(loop, Long, grace=timedelta(seconds=1))
    engine = await sim.engine()
    await engine.start(Long)
    for method in ("commit", "release", "beat"):
        engine.store.fault("refuse", every(method), times=10**6)
    await engine.end()
    assert loop.elapsed < 20
    row = await sim.row()
    assert row.owner is not None
    await sim.engine()  # it takes the thread over once the lease has run out
    row = await sim.until("ended")
    assert row.standing.status == "ended"


@pytest.mark.parametrize("grace", [0, 60])
@simulated
async def test_a_waiting_thread_is_not_touched(loop: SimLoop, grace: int) -> None:
    class Waits(Machine[Note, World], version=1, calls=()):
        """Waits for its signal."""

        begun = State(initial=True)
        done = State(final=True)
        go = begun.to(done).on_signal()

    sim = Sim(loop, Waits, grace=timedelta(seconds=grace))
    engine = await sim.engine()
    thread = await engine.start(Waits)
    before = await sim.row()
    await engine.end()
    assert await sim.row() == before
    await thread.signal(Waits.go, id="go")
    await sim.engine()
    await sim.until("ended")


@simulated
async def test_an_error_in_the_body_drains_too(loop: SimLoop) -> None:
    sim = Sim(loop, Long, grace=timedelta(seconds=10))
    engine = await sim.engine()
    runtime = engine.runtime
    await engine.start(Long)
    await engine.end()

    async def fails() -> None:
        async with runtime:
            raise ValueError("of the body")

    with pytest.raises(ValueError, match="of the body"):
        await engine.inside(fails)
    workers = (await sim.store.page(Workers())).rows
    assert len(workers) == 2
    assert all(worker.ended is not None for worker in workers)
