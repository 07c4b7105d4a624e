"""Rows R120 to R122 of docs/protocol.md: threads whose workers die."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from datetime import timedelta
from typing import Any

import pytest
from harness.engine import Engine, Note, Sim, World, for_ever, job, kept, simulated
from harness.loop import SimLoop

from perdure.machines import Machine, State, Step

HOUR = timedelta(hours=1)


class Tale:
    """What handlers of one test did, and in which process they run now."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = 0
        """How many ran beside each other, at the most."""
        self.ran: list[str] = []
        self.engine: Engine | None = None

    def next(self, engine: Engine) -> None:
        """Go on in another process."""
        self.engine, self.most, self.ran = engine, 0, []
        self.running.clear()

    def begin(self, step: Step[World]) -> None:
        self.ran.append(step.thread_id)
        self.running.add(step.thread_id)
        self.most = max(self.most, len(self.running))

    def kill(self) -> None:
        assert self.engine is not None
        self.engine.kill()


def hangs(name: str = "Hangs") -> Any:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await for_ever()

    return job(body, name=name)


# --- R120 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False], ids=["known to be gone", "by its lease"])
@simulated
async def test_r120_a_take_over_from_a_dead_worker_counts(loop: SimLoop, known: bool) -> None:
    machine = hangs()
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine)
    assert (await sim.row()).crashes == 0
    dead = first.id
    first.kill(known=known)
    second = await sim.engine()
    row = await sim.until_row(lambda row: row.owner == second.id)
    assert row.crashes == 1
    assert (loop.elapsed < 2) is known
    assert f"{row.crashes} workers died on it" in await sim.thread(machine).why()
    assert dead != second.id


@simulated
async def test_r120_any_new_record_sets_the_count_to_zero(loop: SimLoop) -> None:
    records: list[bool] = [False, False, True, False]
    counts: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        counts.append((await sim.row()).crashes)
        if records.pop(0):
            await step.call(kept, "k")
        await for_ever()

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine)
    for n in range(4):
        await sleep(2)
        engine.kill()
        if n < 3:
            engine = await sim.engine()
    await sim.engine()
    await sim.until_row(lambda row: row.crashes == 2)
    assert counts == [0, 1, 2, 1]  # the third run recorded what it had read


@simulated
async def test_r120_a_drain_never_counts(loop: SimLoop) -> None:
    machine = hangs()
    sim = Sim(loop, machine, grace=timedelta(0))
    first = await sim.engine()
    await first.start(machine)
    for _ in range(4):
        await sleep(1)
        await first.end()
        assert (await sim.row()).owner is None
        first = await sim.engine()
        await sim.until_row(lambda row: row.owner is not None)
    row = await sim.row()
    assert (row.crashes, row.standing.status) == (0, "running")


@simulated
async def test_r120_a_thread_that_waited_when_a_worker_died_has_no_part_in_it(loop: SimLoop) -> None:
    class Waits(Machine[Note, World], version=1, calls=()):
        """Waits for its signal."""

        begun = State(initial=True)
        done = State(final=True)
        go = begun.to(done).on_signal()

    sim = Sim(loop, Waits)
    first = await sim.engine()
    thread = await first.start(Waits)
    await sleep(1)
    first.kill()
    await thread.signal(Waits.go, id="go")
    await sim.engine()
    row = await sim.until("ended")
    assert (row.crashes, row.epoch) == (0, 1)


# --- R121 -----------------------------------------------------------------------------------------


def crowd(tale: Tale, *, poison: str | None) -> Any:
    """Threads that work for three seconds, and one that kills its process after one."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        tale.begin(step)
        await sleep(1)
        if step.thread_id == poison:
            tale.kill()
            await for_ever()
        await sleep(2)
        tale.running.discard(step.thread_id)
        await step.call(kept, "k")
        await sleep(2)
        return machine.finished()

    return job(body, name="Crowd")


async def deaths(sim: Sim, tale: Tale, machine: Any, *threads: str, times: int) -> None:
    """Start threads of which one kills their process, and let that happen so many times in all."""
    tale.next(await sim.engine(machine))
    for thread_id in threads:
        assert tale.engine is not None
        await tale.engine.start(machine, thread_id=thread_id)
    for _ in range(times):
        assert tale.engine is not None
        await sim.until_dead(tale.engine)
        assert tale.most == len(threads)
        tale.next(await sim.engine(machine))


async def crashes(sim: Sim, threads: str) -> list[int]:
    return [(await sim.row(thread_id)).crashes for thread_id in threads]


@simulated
async def test_r121_a_suspect_runs_alone_until_it_records_something(loop: SimLoop) -> None:
    tale = Tale()
    bad, good = crowd(tale, poison="a"), crowd(tale, poison=None)
    sim = Sim(loop)
    await deaths(sim, tale, bad, "a", "b", "c", times=1)
    assert tale.engine is not None
    await sim.until_dead(tale.engine)
    assert await crashes(sim, "abc") == [1, 1, 1]
    tale.next(await sim.engine(good))
    await sleep(0.5)
    assert await crashes(sim, "abc") == [2, 1, 1]
    await tale.engine.start(good, thread_id="new")
    for thread_id in ("a", "b", "c", "new"):
        await sim.until("ended", thread_id=thread_id)
    assert tale.most == 1
    assert tale.ran == ["a", "b", "c", "new"]


@simulated
async def test_r121_the_dead_workers_suspects_are_found_before_its_lease_is_over(loop: SimLoop) -> None:
    tale = Tale()
    sim = Sim(loop)
    await deaths(sim, tale, crowd(tale, poison="a"), "a", times=1)
    assert tale.engine is not None
    await sim.until_dead(tale.engine)
    died = loop.elapsed
    second = await sim.engine(crowd(tale, poison=None))
    await sim.until_row(lambda row: row.owner == second.id, "a")
    assert loop.elapsed - died < 1


@simulated
async def test_r121_a_suspect_goes_alone_also_where_others_of_the_worker_are_at_work(loop: SimLoop) -> None:
    """The next worker was there before, and waits for what it runs to end."""
    tale = Tale()
    bad, good = crowd(tale, poison="a"), crowd(tale, poison=None)
    sim = Sim(loop)
    await deaths(sim, tale, bad, "a", times=1)
    assert tale.engine is not None
    other = await sim.engine(good)
    await other.start(good, thread_id="b")
    await sim.until_dead(tale.engine)
    tale.most = 0
    await sim.until("ended", thread_id="a")
    assert tale.ran[-2:] == ["b", "a"]
    (begun,) = [row.at for row, body in await sim.rows("b") if row.kind == "transition"]
    (resumed,) = [entry["at"] for entry in await sim.entries("resumed", "a")]
    assert resumed >= begun


def long_work(tale: Tale, *, poison: str | None) -> Any:
    """Records something at once, and then works for an hour; one of the threads kills its process instead."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        tale.begin(step)
        await sleep(1)
        if step.thread_id == poison:
            tale.kill()
            await for_ever()
        await step.call(kept, "k")
        await sleep(3600)
        return machine.finished()

    return job(body, name="Crowd")


@simulated
async def test_r121_what_a_suspect_does_after_it_has_recorded_something_holds_nobody_up(
    loop: SimLoop,
) -> None:
    tale = Tale()
    sim = Sim(loop)
    await deaths(sim, tale, crowd(tale, poison="a"), "a", times=1)
    assert tale.engine is not None
    await sim.until_dead(tale.engine)
    good = long_work(tale, poison=None)
    tale.next(await sim.engine(good))
    await sim.client(good).start(good, Note(), thread_id="b", workspace="w")
    await sleep(5)
    assert tale.ran == ["a", "b"]
    assert (await sim.row("a")).standing.status == "running"


@simulated
async def test_r121_a_busy_worker_goes_on_once_another_has_taken_the_suspect(loop: SimLoop) -> None:
    tale = Tale()
    sim = Sim(loop)
    good = long_work(tale, poison=None)
    busy = await sim.engine(good)
    await busy.start(good, thread_id="busy")
    await deaths(sim, tale, crowd(tale, poison="a"), "a", times=1)
    assert tale.engine is not None
    await sim.until_dead(tale.engine)
    await sleep(2)  # the busy one has seen the suspect, and waits for its own to end
    taker = await sim.engine(hangs("Crowd"))
    await sim.until_row(lambda row: row.owner == taker.id, "a")
    await sim.client(good).start(good, Note(), thread_id="b", workspace="w")
    await sleep(5)
    assert (await sim.row("b")).owner == busy.id
    assert tale.ran[-1] == "b"


# --- R122 -----------------------------------------------------------------------------------------


@simulated
async def test_r122_three_crashes_without_progress_park_the_thread_that_made_them(loop: SimLoop) -> None:
    """Beside others twice, then alone: those end, though they went down with it twice."""
    tale = Tale()
    bad = crowd(tale, poison="b")
    sim = Sim(loop)
    await deaths(sim, tale, bad, "a", "b", "c", times=1)
    for _ in range(10):
        assert tale.engine is not None
        died = sim.loop.create_task(tale.engine.died.wait())
        settled = sim.loop.create_task(sim.until("parked", thread_id="b"))
        await wait_for_either(died, settled)
        if settled.done():
            break
        tale.next(await sim.engine(bad))
    row = await sim.row("b")
    assert (row.standing.status, row.standing.reason, row.owner) == ("parked", "poison", None)
    assert "3 workers died in state 'working'" in (row.standing.note or "")
    assert "perdure retry b" in (row.standing.note or "")
    for thread_id in ("a", "c"):
        await sim.until("ended", thread_id=thread_id)
    assert await sim.commits("b") == ["start", "park: park"]


async def wait_for_either(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if not task.done():
            task.cancel()


@simulated
async def test_r122_a_retry_gives_a_poisoned_thread_its_crashes_anew(loop: SimLoop) -> None:
    tale = Tale()
    bad, good = crowd(tale, poison="a"), crowd(tale, poison=None)
    sim = Sim(loop)
    await deaths(sim, tale, bad, "a", times=3)
    row = await sim.until("parked", thread_id="a")
    assert row.standing.reason == "poison"
    assert tale.engine is not None
    await tale.engine.end()
    thread = sim.thread(good, "a")
    await thread.retry()
    assert (await sim.row("a")).crashes == 0
    await sim.engine(good)
    await sim.until("ended", thread_id="a")
