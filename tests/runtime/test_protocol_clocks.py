"""Rows R160 to R162 of docs/protocol.md: timeouts of the states around the one that a thread is in."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Mapping
from datetime import timedelta

import pytest
from harness.engine import CALLS, Note, Reply, Sim, World, every, fresh, simulated
from harness.loop import EPOCH, SimLoop

from perdure.machines import Fire, Machine, State, Step, anywhere

SECOND = 1_000_000


class Nested(Machine[Note, World], version=1, calls=CALLS):
    """A review in two parts, which has an hour, in a thread that has three."""

    idle = State(initial=True)
    review = State()
    asking = State(parent=review, initial=True)
    checking = State(parent=review)
    late = State(final=True)
    expired = State(final=True)

    open = idle.to(review).on_signal()
    ask = asking.to(checking).on_signal()
    check = checking.to(asking).on_signal()
    again = review.to(review).on_signal()
    close = review.to(idle).on_signal()
    slow = checking.to(asking).after(timedelta(minutes=20))
    overdue = review.to(late).after(timedelta(hours=1))
    expire = anywhere.to(expired).after(timedelta(hours=3))
    anew = anywhere.to(idle).on_signal()


async def sent(sim: Sim, *signals: str, minutes: float = 10) -> Mapping[str, float]:
    """Start, and send each signal so many minutes after what came before; when, in minutes from the start,
    the timeouts of the last state are due."""
    engine = await sim.engine()
    # A thread that is claimed again and again while nothing is due would hold the time still.
    engine.store.fault("kill before", every("claim"), skip=100_000)
    await engine.start(Nested)
    thread = sim.thread(Nested)
    for number, name in enumerate(signals):
        await sleep(60 * minutes)
        await thread.signal(getattr(Nested, name), id=str(number))
        await sleep(0)
        await sim.until_row(lambda row, n=number + 1: row.standing.seq >= n)  # type: ignore[misc]
    return {
        event: round((due - EPOCH) / 60 / SECOND, 3) for event, due in (await sim.rows())[-1][1].due.items()
    }


@pytest.mark.parametrize(
    ("signals", "due"),
    [
        ([], {"expire": 180}),
        (["open"], {"overdue": 70, "expire": 180}),
        (["open", "ask"], {"slow": 40, "overdue": 70, "expire": 180}),
        (["open", "ask", "check", "ask"], {"slow": 60, "overdue": 70, "expire": 180}),
        (["open", "close", "open"], {"overdue": 90, "expire": 180}),
        (["open", "ask", "again"], {"overdue": 90, "expire": 180}),
        (["open", "ask", "anew"], {"expire": 210}),
        (["open", "anew", "open"], {"overdue": 90, "expire": 200}),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, list) else "",
)
@simulated
async def test_r160_r161_a_clock_runs_on_within_its_state_and_begins_anew_from_outside_or_above(
    loop: SimLoop, signals: list[str], due: Mapping[str, float]
) -> None:
    assert await sent(Sim(loop, Nested), *signals) == due


@simulated
async def test_r160_the_thread_is_woken_at_what_is_due_first(loop: SimLoop) -> None:
    sim = Sim(loop, Nested)
    await sent(sim, "open", "ask")
    row = await sim.until("ended")
    assert row.standing.state == "late"
    assert (loop.now() - EPOCH) / 60 / SECOND == 70
    events = [step.event for step in await sim.thread(Nested).history()]
    assert events == ["start", "open", "ask", "slow", "overdue"]


@simulated
async def test_r160_downtime_does_not_stop_it_and_a_resume_keeps_it(loop: SimLoop) -> None:
    sim = Sim(loop, Nested)
    engine = await sim.engine()
    await engine.start(Nested)
    thread = sim.thread(Nested)
    await thread.signal(Nested.open, id="1")
    await sleep(600)
    engine.kill()
    await sleep(3600)
    await thread.signal(Nested.ask, id="2")  # accepted after the hour was over
    await sim.engine()
    row = await sim.until("ended")
    assert row.standing.state == "late"
    decisions = [d for step in await thread.history() for d in step.decisions]
    assert [d for d in decisions if d.startswith("timeout overdue (")]


class Chain(Machine[Note, World], version=1, calls=CALLS):
    """Works in three states, one after the other, and has ten seconds in all."""

    one = State(initial=True)
    two = State()
    three = State(deadline=timedelta(minutes=5))
    done = State(final=True)
    expired = State(final=True)

    first = one.to(two)
    second = two.to(three)
    third = three.to(done)
    expire = anywhere.to(expired).after(timedelta(seconds=10))

    @one.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        return self.first(lines=[await step.call(fresh, "one")])

    @two.handler
    async def work_on(self, data: Note, step: Step[World]) -> Fire:
        return self.second(lines=[await step.call(fresh, "two")])

    @three.handler
    async def work_more(self, data: Note, step: Step[World]) -> Fire:
        return self.third(lines=[await step.call(fresh, "three")])


@pytest.mark.parametrize(
    ("takes", "state", "asked"),
    [((3, 3, 3), "done", 3), ((3, 15, 3), "expired", 2), ((15, 3, 3), "expired", 1), ((3, 3, 60), "done", 3)],
)
@simulated
async def test_r162_one_that_ran_out_while_a_handler_ran_is_taken_before_the_next_one_begins(
    loop: SimLoop, takes: tuple[int, ...], state: str, asked: int
) -> None:
    """The handler that runs is left alone, as with every timeout of a state that is not interruptible."""
    sim = Sim(loop, Chain)
    sim.world.next_reads("fresh", *[Reply(takes=seconds, value="x") for seconds in takes])
    await (await sim.engine()).start(Chain)
    row = await sim.until("ended")
    assert (row.standing.state, len(sim.world.asked)) == (state, asked)


@simulated
async def test_r162_an_attempt_that_has_begun_goes_on_after_a_crash(loop: SimLoop) -> None:
    class Acting(Machine[Note, World], version=1, calls=CALLS):
        """Pays for an answer, then takes its time."""

        one = State(initial=True)
        done = State(final=True)
        expired = State(final=True)
        first = one.to(done)
        expire = anywhere.to(expired).after(timedelta(seconds=10))

        @one.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            text = await step.call(CALLS[-1], "a")  # kept
            return self.first(text=text, more=await step.call(fresh, "b"))

    sim = Sim(loop, Acting)
    sim.world.next_reads("fresh", Reply(takes=30))
    engine = await sim.engine()
    await engine.start(Acting)
    await sleep(20)
    engine.kill()
    await sim.engine()
    assert (await sim.until("ended")).standing.state == "done"
    assert sim.world.asked.count("kept/a") == 1
