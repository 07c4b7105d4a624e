"""What makes a thread wait, and what must not be lost while it is being released."""

from __future__ import annotations

from asyncio import gather, sleep
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve
from harness.engine import CALLS, Note, Sim, World, every, kept, simulated
from harness.loop import EPOCH, SimLoop

from perdure.machines import Accept, Failure, Fire, Machine, Retry, State, Step
from perdure.stores import Address, MemoryStore
from perdure.stores import Signal as StoredSignal

SECOND = 1_000_000
THREAD = Address(workspace="w", thread_id="t")


class Timed(Machine[Note, World], version=1, removed_events=("unknown",), calls=CALLS):
    """Waits for a timer, or a signal."""

    begun = State(initial=True)
    late = State(final=True)
    stopped = State(final=True)
    expired = begun.to(late).after(timedelta(seconds=10))
    stop = begun.to(stopped).on_signal()


@pytest.mark.parametrize("looks", range(12))
@simulated
async def test_a_timer_that_comes_due_while_the_thread_is_being_released_fires(
    loop: SimLoop, looks: int
) -> None:
    """Time goes on between two looks at the clock, and neither may take the timer for the other's."""
    due, left = EPOCH + 10 * SECOND, None

    def now() -> int:
        nonlocal left
        if left is None:
            return loop.now()
        left -= 1
        return due - 1 if left >= 0 else due

    sim = Sim(loop, Timed)
    sim.env = evolve(sim.env, now=now)
    sim.store = MemoryStore(clock=now)
    await (await sim.engine()).start(Timed)
    await sleep(1)
    # Something that the state does not take: the thread is claimed, looked at, and released.
    await sim.store.deliver(
        StoredSignal(address=THREAD, id="1", event="unknown", payload=b"null", digest=b"d")
    )
    left = looks
    ended = await sim.until("ended", within=timedelta(minutes=1))
    assert ended.standing.state == "late"


class Stubborn(Machine[Note, World], version=1, calls=CALLS):
    """Fails, can be stopped between two attempts, and takes its time to fail."""

    working = State(initial=True, retry=Retry(attempts=9, delay=timedelta(minutes=5)))
    stopped = State(final=True)
    stop = working.to(stopped).on_signal()
    never = working.to(stopped)

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        await sleep(10)
        raise RuntimeError(await step.call(kept, str(step.attempt)))


@simulated
async def test_r09_a_signal_that_came_while_the_attempt_ran_need_not_wait_for_the_retry(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Stubborn)
    engine = await sim.engine()
    await engine.start(Stubborn)
    await sleep(5)
    thread = engine.runtime.thread(Stubborn, thread_id="t", workspace="w")
    await engine.inside(lambda: thread.signal(Stubborn.stop, id="1"))
    ended = await sim.until("ended")
    assert ended.standing.state == "stopped"
    assert loop.now() < EPOCH + 11 * SECOND
    assert sim.world.asked == ["kept/1"]


@simulated
async def test_r09_a_signal_that_comes_while_the_failure_is_written_need_not_wait_either(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Stubborn)
    engine = await sim.engine()
    await engine.start(Stubborn)
    engine.store.fault("delay", every("commit"), skip=1, seconds=2)
    await sleep(11)
    thread = engine.runtime.thread(Stubborn, thread_id="t", workspace="w")
    await engine.inside(lambda: thread.signal(Stubborn.stop, id="1"))
    ended = await sim.until("ended")
    assert ended.standing.state == "stopped"
    assert loop.now() < EPOCH + 15 * SECOND


class Spoilt(Machine[Note, World], version=1, calls=CALLS):
    """The receiver of its failure sets what cannot be set."""

    working = State(initial=True)
    sorry = State(final=True)
    fine = State(final=True)
    gave_up = working.to(sorry).on_failure()
    worked = working.to(fine)

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        raise RuntimeError("no")

    @gave_up.received
    def given_up(self, data: Note, failure: Failure) -> Accept:
        updates: dict[str, Any] = {"text": 7}
        return self.gave_up(**updates)


@simulated
async def test_r92_a_receiver_of_a_failure_that_sets_what_does_not_fit_parks_and_names_the_field(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Spoilt)
    await (await sim.engine()).start(Spoilt)
    parked = await sim.until("parked")
    assert parked.standing.reason == "failed"
    assert (parked.standing.note or "").startswith("thread 't', state 'working': event 'gave_up': ")
    assert "text" in (parked.standing.note or "")


def slow(machine_name: str, running: list[int]) -> Any:
    class Slow(Machine[Note, World], version=1, calls=CALLS, name=machine_name):
        """Counts how many of it run at once."""

        working = State(initial=True)
        done = State(final=True)
        finished = working.to(done)

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            running[0] += 1
            running[1] = max(running)
            await sleep(1)
            running[0] -= 1
            return self.finished()

    return Slow


@simulated
async def test_no_more_threads_run_at_once_than_were_allowed_however_many_start_together(
    loop: SimLoop,
) -> None:
    running = [0, 0]
    machine = slow("Slow", running)
    sim = Sim(loop, machine)
    engine = await sim.engine(concurrency=3)
    names = [f"t{n}" for n in range(12)]
    await gather(*(engine.start(machine, thread_id=name) for name in names))
    for name in names:
        await sim.until("ended", thread_id=name)
    assert running == [0, 3]
    assert loop.now() < EPOCH + 10 * SECOND


@simulated
async def test_who_waited_for_a_thread_leaves_nothing_behind(loop: SimLoop) -> None:
    sim = Sim(loop, Timed)
    engine = await sim.engine()
    await engine.start(Timed)
    thread = engine.runtime.thread(Timed, thread_id="t", workspace="w")
    worker = engine.runtime._running._worker
    assert worker is not None
    gone = loop.create_task(engine.inside(thread.result))
    stays = loop.create_task(engine.inside(thread.result))
    await sleep(1)
    assert [len(waiting) for waiting in worker._watchers.values()] == [2]
    gone.cancel()
    await sleep(1)
    assert (await stays).state == "late"
    assert (await thread.result()).state == "late"
    assert worker._watchers == {}
