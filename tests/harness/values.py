"""Values that other systems have lost or changed, and a machine that passes them through every place that
stores one."""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import anyio
import attrs
import pytest

from perdure.artifacts import MemoryArtifacts
from perdure.machines import (
    UNKNOWN,
    Absent,
    Accept,
    Append,
    Call,
    Fire,
    Found,
    Machine,
    Namespace,
    State,
    Step,
    Unknown,
    effect,
    read,
    record,
)
from perdure.runtime import Runtime, Thread
from perdure.stores import Store

BERLIN = ZoneInfo("Europe/Berlin")


class Mood(enum.StrEnum):
    """By value."""

    GOOD = "good"
    BAD = "bad"


class Level(enum.IntEnum):
    """By value."""

    LOW = 1
    HIGH = 2


class Side(enum.Enum):
    """By name: its values are no text."""

    LEFT = (0, 1)
    RIGHT = (1, 0)


class Right(enum.Flag):
    """Combinations."""

    READ = 1
    WRITE = 2
    ALL = 3


@record
class Base:
    """A class, and below it a class that has more."""

    name: str = ""


@record
class Sub(Base):
    """Is not read back as its base."""

    inner: Base | Sub | None = None


@record
class Empty:
    """Has defaults alone."""

    first: int = 0


@record
class Values:
    """One field for each kind of value that somebody has lost."""

    nul: str = "a\x00b\u2028\U0001f600"
    empty: str = ""
    many: Sequence[float] = (float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 0.1)
    whole: float = 1.0
    big: int = 2**200
    truth: bool | int = True
    one: bool | int = 1
    mood: Mood = Mood.BAD
    level: Level = Level.HIGH
    side: Side = Side.RIGHT
    rights: Right = Right.READ | Right.WRITE
    none: Right = Right(0)
    pairs: AbstractSet[tuple[int, int]] = frozenset({(1, 2), (3, 4)})
    words: AbstractSet[str] = frozenset({"x", "y\x00"})
    pair: tuple[int, str] = (1, "1")
    raw: bytes = b"\x00\xff"
    id: UUID = UUID("12345678-1234-5678-1234-567812345678")
    price: Decimal = Decimal("1.500")
    odd: Sequence[Decimal] = (Decimal("NaN"), Decimal("-Infinity"), Decimal("-0"), Decimal("1E+30"))
    early: datetime = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    late: datetime = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)
    utc: datetime = datetime(2026, 3, 29, 1, 0, 0, 1, tzinfo=UTC)
    offset: datetime = datetime(2026, 3, 29, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    naive: datetime = datetime(1, 1, 1)
    clock: time = time(2, 30, fold=1)
    day: date = date(9999, 12, 31)
    span: timedelta = timedelta(days=-1, microseconds=1)
    named: Mapping[str, int] = {"a\x00": 1, "": 2}
    numbered: Mapping[int, str] = {10: "ten", 9: "nine"}
    moody: Mapping[Mood, Sequence[Mood]] = {Mood.GOOD: (Mood.BAD,)}
    base: Base | Sub = Base(name="b")
    sub: Base | Sub = Sub(name="s", inner=Sub(inner=Base(name="deep")))
    empties: Empty | None = Empty()
    missing: Empty | None = None
    literal: Literal["a", 1, True, None] = True


def parts(value: Any) -> Any:
    """What a value consists of, with every type: equal for two values exactly where they are the same."""
    if attrs.has(type(value)):
        return type(value), [parts(getattr(value, field.name)) for field in attrs.fields(type(value))]
    if isinstance(value, Mapping):
        return Mapping, sorted((repr(parts(k)), parts(v)) for k, v in value.items())
    if isinstance(value, frozenset):
        return frozenset, sorted(repr(parts(item)) for item in value)
    if isinstance(value, tuple | list):
        return tuple, [parts(item) for item in value]
    return type(value), repr(value)


# --- a machine that passes them through every place -------------------------------------------------


@attrs.define
class Seen:
    """What each place had of them."""

    values: dict[str, Any] = attrs.field(factory=dict[str, Any])
    doubtful: bool = False
    """The effect's first answer gets lost."""
    arrivals: int = 0
    held_up: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def hold_up(self) -> None:
        """The first process comes no further than this."""
        self.held_up.set()
        await anyio.sleep_forever()


@read(keep=True)
async def look(call: Call[Seen], values: Values, *, also: Values) -> Values:
    call.deps.values["a read's argument"] = values
    call.deps.values["a read's argument by name"] = also
    return values


@effect
async def carry(call: Call[Seen], values: Values) -> Values:
    call.deps.values["an effect's argument"] = values
    call.deps.arrivals += 1
    if call.deps.doubtful:
        await call.deps.hold_up()
    return values


@carry.lookup
async def find_carried(call: Call[Seen], values: Values) -> Found[Values] | Absent | Unknown:
    call.deps.values["a lookup's argument"] = values
    return UNKNOWN if call.deps.arrivals == 0 else Found(values)


kept = Namespace("kept", Values)


@record
class Case:
    """The data: given at the start, by a signal, and by a handler."""

    given: Values
    signalled: Values | None = None
    fired: Values | None = None
    listed: Annotated[Sequence[Values], Append()] = ()


class Passing(Machine[Case, Seen], version=1, calls=[look, carry]):
    """Takes values in, passes them around, is interrupted, and goes on."""

    waits = State(initial=True)
    working = State()
    done = State(final=True)
    give = waits.to(working).on_signal(Values)
    passed = working.to(done)

    @give.received
    def was_given(self, data: Case, values: Values) -> Accept:
        return self.give(signalled=values, listed=[values])

    @working.handler
    async def work(self, data: Case, step: Step[Seen]) -> Fire:
        deps = DEPS[step.thread_id]
        seen = deps.values
        resumed = "the handler's data" in seen
        seen["the handler's data"] = data.given
        seen["the signal's payload"] = data.signalled
        seen["an appended item"] = data.listed[0]
        await step.memory.put(kept, "k", data.given)
        seen["memory of the step"] = await step.memory.get(kept, "k")
        seen["a read's result"] = await step.call(look, data.given, also=data.given)
        seen["an effect's result"] = await step.call(carry, data.given)
        if not resumed:
            await deps.hold_up()
        return self.passed(fired=data.given, listed=[data.given])


class Recalling(Machine[Case, Seen], version=1, calls=()):
    """Looks at what another thread has put into memory."""

    working = State(initial=True)
    done = State(final=True)
    recalled = working.to(done)

    @working.handler
    async def work(self, data: Case, step: Step[Seen]) -> Fire:
        return self.recalled(fired=await step.memory.get(kept, "k"))


DEPS: dict[str, Seen] = {}
"""By thread: a handler is given no dependencies, which calls are for."""


Opened = Callable[[], Store]
"""Opens the same store, as often as it is asked."""


def runtime_of(opened: Opened, seen: Seen) -> Runtime[Seen]:
    return Runtime(
        machines=[Passing, Recalling],
        deps=seen,
        store=opened(),
        artifacts=MemoryArtifacts(),
        grace=timedelta(0),
        poll=timedelta(milliseconds=5),
    )


async def values_survive(opened: Opened, doubtful: bool) -> None:
    """Through every place and a resume, they are equal and of the same type."""
    given, seen = Values(), Seen(doubtful=doubtful)
    thread_id = f"t{doubtful}"
    DEPS[thread_id] = seen
    async with runtime_of(opened, seen) as runtime:
        thread = await runtime.start(Passing, Case(given=given), thread_id=thread_id)
        await thread.signal(Passing.give, given, id="1")
        with anyio.fail_after(10):
            await seen.held_up.wait()
    assert len(seen.values) == (8 if doubtful else 9)
    for name, value in seen.values.items():
        assert parts(value) == parts(given), name
    async with runtime_of(opened, seen) as runtime:
        thread = runtime.thread(Passing, thread_id=thread_id)
        with anyio.fail_after(10):
            ended = await thread.result()
            other = await runtime.start(Recalling, Case(given=Values(nul="")), thread_id=f"r{doubtful}")
            recalled = await other.result()
        await shown(thread)
    assert len(seen.values) == (10 if doubtful else 9)
    assert seen.arrivals == 1
    for name, value in seen.values.items():
        assert parts(value) == parts(given), name
    data = ended.data
    for name, value in {
        "given": data.given,
        "signalled": data.signalled,
        "fired": data.fired,
        "listed": data.listed[1],
        "memory": recalled.data.fired,
    }.items():
        assert parts(value) == parts(given), name


async def shown(thread: Thread[Any, Any]) -> None:
    """What is shown of a thread is valid JSON and never raises."""
    plain = await thread.stored_data()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["fired"]["many"] == ["nan", "inf", "-inf", -0.0, 5e-324, 0.1]
    assert [step.event for step in await thread.history()] == ["start", "give", "passed"]
    assert "ended" in await thread.why()


async def a_lone_surrogate_is_refused(opened: Opened) -> None:
    """It is no text that could be stored, and is named before anything is written."""
    seen = Seen()
    async with runtime_of(opened, seen) as runtime:
        with pytest.raises(Exception, match=r"given.*nul.*lone surrogate") as refused:
            await runtime.start(Passing, Case(given=Values(nul="\ud800")), thread_id="t")
        assert type(refused.value).__name__ == "NotStorable"
        thread = await runtime.start(Passing, Case(given=Values()), thread_id="t")
        with pytest.raises(Exception, match=r"signal '1'.*nul.*lone surrogate") as refused:
            await thread.signal(Passing.give, Values(nul="\ud800"), id="1")
        assert type(refused.value).__name__ == "SignalRefused"
        assert await thread.pending() == []
