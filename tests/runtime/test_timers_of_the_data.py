"""Timeouts whose time the data tells: when they are judged, what they may give, and that they come once."""

from __future__ import annotations

import re
from asyncio import sleep
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from harness.engine import Sim, World, simulated
from harness.loop import EPOCH, SimLoop

from perdure.machines import Accept, Fire, Machine, NotStorable, State, Step, record
from perdure.runtime._context import micros, micros_at, moment
from perdure.runtime.testing import crash_sweep

START = datetime.fromtimestamp(EPOCH / 1e6, UTC)
MINUTE = timedelta(minutes=1)
FAR = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


@record
class Meeting:
    at: datetime | None = None
    length: timedelta | None = None
    broken: str | None = None
    reminders: int = 0

    @property
    def begins(self) -> Any:
        if self.broken == "raise":
            raise RuntimeError("no calendar")
        return self.at if self.broken is None else GIVEN[self.broken]

    @property
    def lasts(self) -> Any:
        return self.length if self.broken is None else GIVEN.get(f"{self.broken} delay", self.length)


GIVEN: dict[str, Any] = {
    "naive": datetime(2030, 1, 1),
    "text": "tomorrow",
    "number": 12.5,
    "late": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))),
    "negative": START + MINUTE,
    "negative delay": timedelta(microseconds=-1),
    "endless": None,
    "endless delay": timedelta.max,
    "wrong": None,
    "wrong delay": float("nan"),
}


class Planned(Machine[Meeting, World], version=1):
    """Reminds at the meeting's moment, and goes home when it has lasted long enough."""

    out = State(initial=True)
    phase = State()
    planned = State(parent=phase, initial=True)
    held = State(parent=phase)
    over = State(final=True)

    enter = out.to(phase).on_signal(Meeting)
    remind = phase.to(phase).at(Meeting.begins)
    end = phase.to(over).after(Meeting.lasts)
    hold = planned.to(held).on_signal()
    move = planned.to(held).on_signal(Meeting)
    back = held.to(planned).on_signal()
    leave = phase.to(out).on_signal()

    @enter.received
    def entered(self, data: Meeting, new: Meeting) -> Accept:
        return self.enter(at=new.at, length=new.length, broken=new.broken)

    @move.received
    def moved(self, data: Meeting, new: Meeting) -> Accept:
        return self.move(at=new.at, length=new.length, broken=new.broken)


def minutes(n: float) -> datetime:
    return START + n * MINUTE


async def due(sim: Sim) -> dict[str, float]:
    """In minutes from the start."""
    body = (await sim.rows())[-1][1]
    return {event: round((at - EPOCH) / 60e6, 3) for event, at in body.due.items()}


async def sent(sim: Sim, *signals: tuple[str, Meeting | None]) -> None:
    """Each signal a minute after what came before."""
    thread, before = sim.thread(Planned), (await sim.row()).standing.seq
    for number, (name, data) in enumerate(signals):
        await sleep(60)
        given = () if data is None else (data,)
        await thread.signal(getattr(Planned, name), *given, id=f"{before}-{number}")
        await sim.until_row(lambda row, n=before + number + 1: row.standing.seq >= n)  # type: ignore[misc]


@simulated
async def test_a_delay_is_judged_on_entry_and_a_moment_at_each_transition(loop: SimLoop) -> None:
    sim = Sim(loop, Planned)
    await (await sim.engine()).start(Planned, Meeting())
    first = Meeting(at=minutes(60), length=30 * MINUTE)
    await sent(sim, ("enter", first))
    assert await due(sim) == {"remind": 60, "end": 31}
    await sent(sim, ("move", Meeting(at=minutes(50), length=10 * MINUTE)))
    assert await due(sim) == {"remind": 50, "end": 31}
    await sent(sim, ("back", None), ("move", Meeting(at=None, length=None)))
    assert await due(sim) == {"end": 31}
    await sent(sim, ("leave", None), ("enter", Meeting(length=None)))
    assert await due(sim) == {}
    await sent(sim, ("move", Meeting(length=10 * MINUTE)))  # none before: now there is one
    assert await due(sim) == {"end": 17}
    ended = await sim.until("ended")
    assert (ended.standing.state, loop.now() - EPOCH) == ("over", micros(17 * MINUTE))


@simulated
async def test_a_moment_that_has_brought_its_event_does_not_bring_it_again(loop: SimLoop) -> None:
    sim = Sim(loop, Planned)
    engine = await sim.engine()
    await engine.start(Planned, Meeting())
    await sent(sim, ("enter", Meeting(at=minutes(5))))
    await sleep(900)
    events = [step.event for step in await sim.thread(Planned).history()]
    assert events == ["start", "enter", "remind"]
    assert await due(sim) == {}
    # Nor after a way round, nor in another process; another moment does.
    engine.kill()
    await sim.engine()
    await sent(sim, ("leave", None), ("enter", Meeting(at=minutes(5))))
    assert await due(sim) == {}
    await sent(sim, ("move", Meeting(at=minutes(30))))
    assert await due(sim) == {"remind": 30}
    await sleep(900)
    assert [step.event for step in await sim.thread(Planned).history()][-2:] == ["move", "remind"]
    assert (await sim.row()).standing.wake is None


@simulated
async def test_a_moment_that_is_over_is_due_at_once_and_said_to_be_late(loop: SimLoop) -> None:
    sim = Sim(loop, Planned)
    await (await sim.engine()).start(Planned, Meeting())
    await sent(sim, ("enter", Meeting(at=datetime(1, 1, 1, tzinfo=UTC))))
    await sleep(1)
    (entry,) = await sim.entries("timeout")
    assert entry["event"] == "remind"
    assert moment(entry["due"]) == datetime(1, 1, 1, tzinfo=UTC)
    assert entry["late"] == entry["at"] - entry["due"]
    (decision,) = (await sim.thread(Planned).history())[-1].decisions
    assert decision.startswith("timeout remind (")
    assert decision.endswith(" late)")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("raise", r"timeout 'remind': at\(begins\) raised RuntimeError: no calendar"),
        ("naive", r"timeout 'remind': at\(begins\) gave datetime.datetime\(2030.*has no zone"),
        ("text", r"timeout 'remind': at\(begins\) gave 'tomorrow': it takes an aware datetime"),
        ("number", r"timeout 'remind': at\(begins\) gave 12.5: it takes an aware datetime"),
        ("late", r"timeout 'remind': at\(begins\) gave .*past the year 9999"),
        ("negative", r"timeout 'end': after\(lasts\) gave .*a delay cannot be negative"),
        ("endless", r"timeout 'end': after\(lasts\) gave .*past the year 9999"),
        ("wrong", r"timeout 'end': after\(lasts\) gave nan: it takes a timedelta"),
    ],
)
@simulated
async def test_what_is_no_time_parks_the_thread_and_a_start_is_refused(
    loop: SimLoop, broken: str, said: str
) -> None:
    sim = Sim(loop, Planned, Waiting)
    engine = await sim.engine()
    await engine.start(Planned, Meeting())
    await sim.thread(Planned).signal(Planned.enter, Meeting(broken=broken), id="1")
    parked = await sim.until("parked")
    assert (parked.standing.reason, parked.standing.state) == ("failed", "out")
    assert re.search(f"thread 't', state 'out': {said}", parked.standing.note or "")
    with pytest.raises(NotStorable, match=f"thread 'no': {said}"):
        await engine.start(Waiting, Meeting(broken=broken), thread_id="no")
    assert not await sim.exists("no")


class Waiting(Machine[Meeting, World], version=1):
    waiting = State(initial=True)
    over = State(final=True)
    remind = waiting.to(over).at(Meeting.begins)
    end = waiting.to(over).after(Meeting.lasts)
    far = waiting.to(over).after(timedelta(days=365 * 500))


@simulated
async def test_what_is_far_away_is_stored_to_the_microsecond(loop: SimLoop) -> None:
    sim = Sim(loop, Waiting)
    engine = await sim.engine()
    await engine.start(Waiting, Meeting(at=FAR, length=FAR - START))
    await sleep(60)
    engine.kill()
    body = (await sim.rows())[0][1]
    assert {event: moment(at) for event, at in body.due.items()} == {
        "remind": FAR,
        "end": FAR,
        "far": START + timedelta(days=365 * 500),
    }
    assert micros_at(FAR) == 253_402_300_799_999_999
    loop.elapsed += timedelta(days=365 * 500).total_seconds() - 120
    later = await sim.engine()
    await sleep(10)
    assert (await sim.row()).standing.status == "waiting"
    assert (await sim.until("ended")).standing.state == "over"
    later.kill()


class Reminded(Machine[Meeting], version=1):
    """Works, waits with both kinds of timers, and works again."""

    first = State(initial=True)
    waiting = State()
    again = State()
    over = State(final=True)

    plan = first.to(waiting)
    remind = waiting.to(again).at(Meeting.begins)
    end = waiting.to(over).after(Meeting.lasts)
    back = again.to(waiting)

    @first.handler
    async def begin(self, data: Meeting, step: Step) -> Fire:
        return self.plan()

    @again.handler
    async def reminded(self, data: Meeting, step: Step) -> Fire:
        return self.back(reminders=data.reminders + 1)


@pytest.mark.anyio
async def test_wherever_a_process_is_killed_each_timer_comes_once() -> None:
    swept = await crash_sweep(Reminded, Meeting(at=minutes(1), length=10 * MINUTE))
    swept.check()
    assert swept.state == "over"
    assert len(swept.runs) > 10
