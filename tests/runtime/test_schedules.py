"""Threads that the calendar starts: which slots there are, and that each is started once, by anybody."""

from __future__ import annotations

import json
import sys
from asyncio import gather, sleep
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from attrs import evolve
from harness.cli import Perdure
from harness.engine import CALLS, Note, Sim, World, simulated
from harness.loop import EPOCH, SimLoop

from perdure.machines import DefinitionError, Machine, State
from perdure.runtime import Runtime, Schedule
from perdure.runtime._context import moment
from perdure.runtime._schedules import RECORDS
from perdure.stores import Threads

pytest_plugins = ("harness.desk",)

SECOND = 1_000_000
START = moment(EPOCH)
ZONES = [ZoneInfo(name) for name in ("UTC", "Europe/Berlin")]  # reading them blocks


class Report(Machine[Note, World], version=1, calls=CALLS):
    waiting = State(initial=True)
    done = State(final=True)
    stop = waiting.to(done).on_signal()


class Stranger(Machine[Note, World], version=1, calls=CALLS):
    waiting = State(initial=True)
    done = State(final=True)
    stop = waiting.to(done).on_signal()


def every(minutes: int, **more: Any) -> Schedule[Note]:
    return Schedule("report", Report, Note(), cron=f"*/{minutes} * * * *", workspace="w", **more)


# --- the calendar


def slots(cron: str, tz: str, day: datetime, count: int) -> list[str]:
    plan = Schedule("s", Report, Note(), cron=cron, tz=tz)
    return [slot.isoformat() for slot in islice(plan.slots(day), count)]


SPRING, AUTUMN = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "day", "expected"),
    [
        ("30 2 * * *", SPRING, ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("0 0 * * *", SPRING, ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"]),
        ("0 3 * * *", SPRING, ["2026-03-29T03:00:00+02:00", "2026-03-30T03:00:00+02:00"]),
        ("30 2 * * *", AUTUMN, ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
        ("0 0 * * *", AUTUMN, ["2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"]),
        (
            "30 * * * *",
            datetime(2026, 3, 29, 0, tzinfo=UTC),
            ["2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"],
        ),
        (
            "30 * * * *",
            datetime(2026, 10, 25, 0, tzinfo=UTC),
            ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"],
        ),
    ],
)
def test_g17_where_the_clock_is_put_forward_or_back(cron: str, day: datetime, expected: list[str]) -> None:
    assert slots(cron, "Europe/Berlin", day, 2) == expected


def test_no_day_is_left_out_and_none_comes_twice() -> None:
    for cron in ("30 2 * * *", "0 0 * * *", "0 3 * * *"):
        found = slots(cron, "Europe/Berlin", datetime(2026, 1, 1, tzinfo=UTC), 365)
        assert len({each[:10] for each in found}) == 365


def test_from_the_middle_of_the_hour_that_comes_twice_no_slot_of_the_first_is_given_again() -> None:
    second = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)  # 02:15 by the clock, for the second time
    assert slots("30 2 * * *", "Europe/Berlin", second, 1) == ["2026-10-26T02:30:00+01:00"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cron": "61 * * * *"}, "Schedule 's': cron='61 . . . .' cannot be read .Bad minute.: write minute"),
        ({"cron": "* * * *"}, "cannot be read .Wrong number of fields"),
        ({"cron": ""}, "cannot be read"),
        ({"cron": "*/0 * * * *"}, "cannot be read"),
        ({"cron": "*/nan * * * *"}, "cannot be read"),
        ({"cron": "-5 * * * *"}, "cannot be read"),
        ({"cron": 5}, r"cron= takes a line as in '30 2 \* \* \*', not 5"),
        ({"cron": "0 0 30 2 *"}, "cannot be read .Bad day-of-month|has no slot in fifty years"),
        ({"tz": "Europe/Berlyn"}, "tz= takes the name of a time zone, .*not 'Europe/Berlyn'"),
        ({"tz": "../etc/passwd"}, "tz= takes the name of a time zone"),
        ({"tz": None}, "tz= takes the name of a time zone"),
        ({"catch_up": "some"}, "catch_up= takes 'skip', 'once' or 'all', not 'some'"),
        ({"name": ""}, "Schedule '': its name is empty"),
        ({"priority": 11}, "its priority is 11: it is a whole number from -10 to 10"),
        ({"priority": float("nan")}, "its priority is nan: it is a whole number from -10 to 10"),
        ({"name": "x" * 300}, "its name .* has 300 bytes"),
        ({"workspace": "a\nb"}, "its workspace .* control character"),
        ({"machine": Note}, "it takes a machine class, not <class"),
        ({"data": "text"}, "Report takes Note, or a function of the slot that makes one, not 'text'"),
    ],
)
def test_what_is_no_schedule_is_refused_where_it_is_made(given: dict[str, Any], said: str) -> None:
    asked = {"name": "s", "machine": Report, "data": Note(), "cron": "0 0 * * *", **given}
    with pytest.raises(DefinitionError, match=said):
        Schedule(asked.pop("name"), asked.pop("machine"), asked.pop("data"), **asked)


def test_a_runtime_refuses_two_of_one_name_and_a_machine_that_it_has_not() -> None:
    other = Schedule("report", Stranger, Note(), cron="0 0 * * *")
    for schedules, said in (
        ([every(5), every(6)], "two schedules are named 'report'"),
        ([other], "schedule 'report' starts Stranger, which is not in machines"),
        ([Report], "schedules= takes Schedule objects"),
    ):
        with pytest.raises(DefinitionError, match=said):
            Runtime(machines=[Report], schedules=schedules)  # type: ignore[arg-type]


# --- what is started


async def started(sim: Sim) -> list[str]:
    """The slots that have threads, in minutes from the start."""
    rows = await sim.store_rows(Threads(workspace="w"))
    ids = [row.address.thread_id.partition("/")[2] for row in rows]
    return sorted(ids)


def at(*minutes: float) -> list[str]:
    return [(START + timedelta(minutes=n)).isoformat() for n in minutes]


async def ran(sim: Sim, minutes: float, *schedules: Schedule[Any]) -> None:
    """A worker that is there for so long."""
    engine = await sim.engine(schedules=schedules)
    await sleep(60 * minutes)
    engine.kill()


@simulated
async def test_a_new_schedule_begins_now_and_each_slot_starts_a_thread(loop: SimLoop) -> None:
    sim = Sim(loop, Report)
    await sleep(1)
    await ran(sim, 46, every(15))
    assert await started(sim) == at(15, 30, 45)
    row = (await sim.store_rows(Threads(workspace="w")))[0]
    assert row.created - (EPOCH + 15 * 60 * SECOND) < SECOND


@simulated
async def test_any_number_of_workers_start_a_slot_once(loop: SimLoop) -> None:
    sim = Sim(loop, Report)
    await gather(*(ran(sim, 46, every(15)) for _ in range(3)))
    assert await started(sim) == at(15, 30, 45)


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("skip", at(15, 735)), ("once", at(15, 720, 735)), ("all", at(*range(15, 736, 15)))],
)
@simulated
async def test_g19_after_half_a_day_the_policy_says_what_is_caught_up(
    loop: SimLoop, catch_up: Any, expected: Sequence[str]
) -> None:
    sim = Sim(loop, Report)
    await sleep(1)
    await ran(sim, 16, every(15, catch_up=catch_up))
    await sleep(710 * 60)
    await ran(sim, 10, every(15, catch_up=catch_up))
    assert await started(sim) == list(expected)


@pytest.mark.parametrize("catch_up", ["skip", "once", "all"])
@simulated
async def test_a_restart_over_the_moment_of_a_slot_does_not_lose_it(loop: SimLoop, catch_up: Any) -> None:
    sim = Sim(loop, Report)
    await sleep(1)
    await ran(sim, 14.9, every(15, catch_up=catch_up))
    await sleep(40)
    await ran(sim, 1, every(15, catch_up=catch_up))
    assert await started(sim) == at(15)


@simulated
async def test_what_is_missed_is_started_a_hundred_at_a_time_and_in_order(loop: SimLoop) -> None:
    sim = Sim(loop, Report)
    await sleep(1)
    await ran(sim, 0.1, every(1, catch_up="all"))
    await sleep(250 * 60)
    engine = await sim.engine(schedules=[every(1, catch_up="all")], poll=timedelta(seconds=5))
    await sleep(2)
    assert await started(sim) == sorted(at(*range(1, 101)))
    await sleep(20)
    assert await started(sim) == sorted(at(*range(1, 251)))
    engine.kill()


@simulated
async def test_data_may_be_made_of_the_slot(loop: SimLoop) -> None:
    sim = Sim(loop, Report)
    await sleep(1)
    plan = Schedule(
        "hourly",
        Report,
        lambda slot: Note(text=f"{slot:%H:%M %Z}"),
        cron="0 * * * *",
        tz="Europe/Berlin",
        workspace="w",
        principal="agent:reports",
        priority=3,
    )
    await ran(sim, 70, plan)
    (row,) = await sim.store_rows(Threads(workspace="w"))
    seen = await sim.thread(Report, row.address.thread_id).data()
    local = row.address.thread_id.partition("/")[2]
    assert seen.text == f"{datetime.fromisoformat(local):%H:%M} CET"
    assert (row.principal, row.priority) == ("agent:reports", 3)


@simulated
async def test_where_other_code_started_the_slot_with_other_data_its_thread_stays(loop: SimLoop) -> None:
    sim = Sim(loop, Report)
    await sleep(1)
    engine = await sim.engine()
    (slot,) = at(15)
    await engine.start(Report, Note(text="mine"), thread_id=f"report/{slot}")
    await ran(sim, 31, every(15))
    assert await started(sim) == at(15, 30)
    assert (await sim.thread(Report, f"report/{slot}").data()).text == "mine"


@simulated
async def test_a_slot_whose_data_cannot_be_made_is_tried_again_and_holds_nothing_else_up(
    loop: SimLoop, caplog: pytest.LogCaptureFixture
) -> None:
    sim, calls = Sim(loop, Report), 0

    def made(slot: datetime) -> Note:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise RuntimeError("not yet")
        return Note()

    broken = Schedule("broken", Report, made, cron="*/15 * * * *", catch_up="once", workspace="w")
    await sleep(1)
    await ran(sim, 20, broken, every(15))
    assert await started(sim) == at(15, 15)
    assert "schedule 'broken': it is tried again in a minute" in caplog.text


@simulated
async def test_a_changed_line_catches_nothing_up_and_loses_nothing_beside_the_old_one(loop: SimLoop) -> None:
    sim = Sim(loop, Report)
    await sleep(1)
    await ran(sim, 61, every(60, catch_up="all"))
    await sleep(100 * 60)
    await ran(sim, 12, every(5, catch_up="all"))
    assert await started(sim) == at(60, 165, 170)
    await gather(ran(sim, 14, every(60, catch_up="all")), ran(sim, 14, every(5, catch_up="all")))
    assert await started(sim) == at(60, 165, 170, 175, 180, 185)


@simulated
async def test_a_clock_that_is_set_back_starts_nothing_twice(loop: SimLoop) -> None:
    sim, offset = Sim(loop, Report), 0
    sim.env = evolve(sim.env, now=lambda: loop.now() + offset)
    sim.store = type(sim.store)(clock=lambda: loop.now() + offset)
    await sleep(1)
    engine = await sim.engine(schedules=[every(15)])
    await sleep(46 * 60)
    offset = -20 * 60 * SECOND  # the slot at 30 comes again, and was handled
    await sleep(40 * 60)
    assert await started(sim) == at(15, 30, 45, 60)
    offset = 30 * 24 * 3600 * SECOND
    await sleep(120)
    engine.kill()
    offset = 0
    await ran(sim, 32, every(15))
    assert {*at(90, 105)} < {*await started(sim)}  # a record from the future does not hold it up for a month


@simulated
async def test_a_record_that_says_nothing_is_named(loop: SimLoop, caplog: pytest.LogCaptureFixture) -> None:
    sim = Sim(loop, Report)
    client = sim.client()
    await client.memory.put(RECORDS, "report", {"until": "soon"}, workspace="w")
    await ran(sim, 2, every(1))
    assert await started(sim) == []
    assert "memory :schedules/report, cannot be read" in caplog.text
    await client.memory.delete(RECORDS, "report", workspace="w")
    await ran(sim, 3.1, every(1))
    assert len(await started(sim)) >= 2


# --- the command line

CODE = """
from cli_desk import Claim, Desk
from perdure import Runtime, Schedule

runtime = Runtime(machines=[Desk], artifacts="memory:", schedules=[
    Schedule("daily", Desk, Claim(item="pan"), cron="30 2 * * *", tz="Europe/Berlin", catch_up="once"),
    Schedule("new", Desk, Claim(item="pot"), cron="*/5 * * * *", workspace="acme"),
])
"""


def test_the_command_lists_each_with_what_comes_next(cli: Perdure, at_desk: Path) -> None:
    (at_desk / "planned.py").write_text(CODE)
    record = '{"until": "2026-03-28T02:30:00+01:00", "cron": "30 2 * * *", "tz": "Europe/Berlin"}'
    assert cli("memory", "put", RECORDS, "daily", record).status == 0
    daily, new = json.loads(cli("schedules", "planned:runtime", "--json").out)
    assert (daily["cron"], daily["zone"], daily["catch_up"]) == ("30 2 * * *", "Europe/Berlin", "once")
    assert daily["until"] == "2026-03-28T02:30:00+01:00"
    assert (new["until"], new["workspace"], len(new["next"])) == ("", "acme", 3)
    said = cli("schedules", "planned:runtime")
    assert (said.status, len(said.lines)) == (0, 3)
    cells = said.lines[1].split("\t")
    assert cells[:6] == ["daily", "default", "Desk", "30 2 * * *", "Europe/Berlin", "once"]
    sys.modules.pop("planned", None)
