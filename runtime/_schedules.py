"""Schedules: threads that the calendar starts, one a slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Generic, Literal, TypeVar
from zoneinfo import ZoneInfo

import anyio
from attrs import define, field, frozen
from cronsim import CronSim, CronSimError

from perdure.machines import Definition, DefinitionError, Machine, Of, definition
from perdure.stores import MAX_WORKSPACE, Micros, StoreError, check_name, check_priority

from ._client import Client
from ._client_memory import ClientMemory, Fact
from ._context import micros, micros_at, moment
from ._errors import MemoryConflict, PerdureError, StartConflict
from ._observe import logger
from ._uploads import DEFAULT_PRINCIPAL, DEFAULT_WORKSPACE

D = TypeVar("D")

RECORDS = ":schedules"
"""The namespace of memory in which a workspace's schedules record how far they have come."""
ON_TIME = timedelta(minutes=1)
"""How long after its moment a slot is not yet missed."""
AHEAD = timedelta(hours=1)
"""How far in the future a record may lie: clocks differ by less, unless one was set wrongly."""
A_ROUND = 100
"""Missed slots that are started before the worker looks at everything else again."""
LONGEST_PAUSE = 30.0
"""Seconds after which the clock is looked at again: it may have been set."""
AGAIN = timedelta(minutes=1)
"""When a slot is tried again whose thread could not be started."""
LOOK_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=366 * 60))


@frozen
class Schedule(Generic[D]):
    """A machine whose threads the calendar starts, one a slot: ``Runtime(schedules=[Schedule(...)])``.

    The thread of a slot has the id ``<name>/<slot in ISO 8601 with its offset>``, so that any number of
    workers start it once. A new schedule begins with the first slot after a worker knows it.

    ``data``: what each thread starts with, or a pure function that makes it of the slot (an aware datetime in
    the schedule's zone). ``cron``: five fields as in Debian's cron (``"30 2 * * *"``), or six with seconds in
    front. ``tz``: the zone by whose wall clock it goes. A line with fixed minutes and hours comes once a day:
    where the clock is put forward over its time, directly after the gap; where it is put back, at the first
    of the two. A line whose minute or hour begins with ``*`` goes by the time that really passes.

    ``workspace``, ``principal`` and ``priority`` are the threads', as in ``Client.start``.

    ``catch_up``: what becomes of slots that nobody started within a minute: none of them is started
    ("skip"), the newest one is ("once"), or each is, in order ("all"; at most 100 at a time).
    ``DefinitionError`` where the line, the zone or a name is none.
    """

    name: str
    machine: Of[Any, D]
    data: D | Callable[[datetime], D]
    cron: str = field(kw_only=True)
    tz: str = field(default="UTC", kw_only=True)
    catch_up: Literal["skip", "once", "all"] = field(default="skip", kw_only=True)
    workspace: str = field(default=DEFAULT_WORKSPACE, kw_only=True)
    principal: str = field(default=DEFAULT_PRINCIPAL, kw_only=True)
    priority: int = field(default=0, kw_only=True)
    _zone: ZoneInfo = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        where = f"Schedule {self.name!r}"
        try:
            check_name("its name", self.name, 200)
            check_name("its workspace", self.workspace, MAX_WORKSPACE)
            check_name("its principal", self.principal)
            check_priority("its priority", self.priority)
        except (TypeError, ValueError, StoreError) as error:
            raise DefinitionError(f"{where}: {error}") from None
        if self.catch_up not in ("skip", "once", "all"):
            raise DefinitionError(f"{where}: catch_up= takes 'skip', 'once' or 'all', not {self.catch_up!r}")
        self._check_data(where)
        zone = _zone(where, self.tz)
        _check_line(where, self.cron, zone)
        object.__setattr__(self, "_zone", zone)  # read once: it lies in a file

    def _check_data(self, where: str) -> None:
        machine: Any = self.machine
        if not isinstance(machine, type) or not issubclass(machine, Machine):
            raise DefinitionError(f"{where}: it takes a machine class, not {machine!r}")
        plan = _plan_of(self)
        if type(self.data) is not plan.data.cls and not callable(self.data):
            raise DefinitionError(
                f"{where}: {plan.name} takes {plan.data.cls.__name__}, or a function of the slot that makes "
                f"one, not {self.data!r}"
            )

    def slots(self, after: datetime) -> Iterator[datetime]:
        """Its slots after a moment, in order, for as far as the calendar goes."""
        begin = after.astimezone(self._zone)
        # Where the clock was put back, the line is asked by a time of day that comes twice.
        return (slot for slot in CronSim(self.cron, begin) if slot > after)

    def data_of(self, slot: datetime) -> Any:
        """What the thread of a slot starts with."""
        plan = _plan_of(self)
        given: Any = self.data
        return given if type(given) is plan.data.cls else given(slot)


def _plan_of(schedule: Schedule[Any]) -> Definition:
    machine: Any = schedule.machine
    return definition(machine)


def _zone(where: str, name: object) -> ZoneInfo:
    try:
        return ZoneInfo(name)  # type: ignore[arg-type]
    except (TypeError, ValueError, OSError, KeyError):  # an unknown one is a KeyError
        raise DefinitionError(
            f"{where}: tz= takes the name of a time zone, as in 'Europe/Berlin', not {name!r}"
        ) from None


def _check_line(where: str, cron: object, zone: ZoneInfo) -> None:
    if not isinstance(cron, str):
        raise DefinitionError(f"{where}: cron= takes a line as in '30 2 * * *', not {cron!r}")
    try:
        slots = CronSim(cron, datetime(2000, 1, 1, tzinfo=zone))
    except (CronSimError, ValueError, AssertionError, TypeError) as error:
        raise DefinitionError(
            f"{where}: cron={cron!r} cannot be read ({error or 'it is malformed'}): write minute, hour, day "
            "of the month, month and day of the week, as in '30 2 * * *'"
        ) from None
    if next(slots, None) is None:
        raise DefinitionError(f"{where}: cron={cron!r} has no slot in fifty years: no such day comes")


def by_name(schedules: Sequence[Schedule[Any]], machines: Mapping[str, Any]) -> tuple[Schedule[Any], ...]:
    """A runtime's schedules; ``DefinitionError`` where two share a name, or a machine is another's."""
    seen: set[tuple[str, str]] = set()
    for each in schedules:
        if not isinstance(each, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"Runtime: schedules= takes Schedule objects, not {each!r}")
        if (each.workspace, each.name) in seen:
            raise DefinitionError(f"Runtime: two schedules are named {each.name!r}: rename one")
        seen.add((each.workspace, each.name))
        plan = _plan_of(each)
        if machines.get(plan.name) is not plan:
            raise DefinitionError(
                f"Runtime: schedule {each.name!r} starts {plan.name}, which is not in machines=[...]: list it"
            )
    return tuple(schedules)


@define
class _Kept:
    schedule: Schedule[Any]
    next: Micros | None = 0
    """When there is something to do next; None: never again."""


class Schedules:
    """Starts the threads of a runtime's schedules, beside any number of other workers."""

    def __init__(
        self, schedules: Sequence[Schedule[Any]], client: Client, now: Callable[[], Micros], poll: timedelta
    ) -> None:
        self._kept = [_Kept(each) for each in schedules]
        self._client = client
        self._now = now
        self._poll = poll
        self._longest = max(LONGEST_PAUSE, poll.total_seconds())

    async def keep(self) -> None:
        """Start what comes due, for as long as the worker lives."""
        while True:
            await self.look()
            times = [kept.next for kept in self._kept if kept.next is not None]
            left = (min(times) - self._now()) / 1e6 if times else self._longest
            await anyio.sleep(min(max(left, 0.0), self._longest))

    async def look(self) -> None:
        """Start what is due now. One that cannot be started does not keep the others from it."""
        for kept in self._kept:
            now = self._now()
            if kept.next is None or kept.next > now:
                continue
            try:
                kept.next = await self._start_due(kept.schedule, now)
            except StoreError as error:
                logger.warning("schedule %r: %s", kept.schedule.name, error)
                kept.next = now + micros(self._poll)
            except Exception:
                logger.exception("schedule %r: it is tried again in a minute", kept.schedule.name)
                kept.next = now + micros(AGAIN)

    async def _start_due(self, schedule: Schedule[Any], now: Micros) -> Micros | None:
        """Start what nobody has started yet, and tell when there is something to do again."""
        at = moment(now)
        record = await handled(self._client.memory, schedule)
        if record is None or record.until > at + AHEAD:
            if record is not None:
                logger.warning(
                    "schedule %r: its record says %s, which is in the future: it begins anew now",
                    schedule.name,
                    record.until.isoformat(),
                )
            await self._record(schedule, record, at)
            return _next(schedule, at)
        slots, until = due_slots(schedule, record, at)
        for slot in slots:
            await self._start(schedule, slot)
        if until is not None:
            await self._record(schedule, record, until)
        return now + micros(self._poll) if len(slots) == A_ROUND else _next(schedule, max(at, record.until))

    async def _start(self, schedule: Schedule[Any], slot: datetime) -> None:
        thread_id = f"{schedule.name}/{slot.isoformat()}"
        try:
            await self._client.start(
                schedule.machine,
                schedule.data_of(slot),
                thread_id=thread_id,
                workspace=schedule.workspace,
                principal=schedule.principal,
                priority=schedule.priority,
            )
        except StartConflict as error:  # other code was here first, and its thread is this slot's
            logger.warning("schedule %r: %s", schedule.name, error)

    async def _record(self, schedule: Schedule[Any], before: Handled | None, until: datetime) -> None:
        value = {"until": until.isoformat(), "cron": schedule.cron, "tz": schedule.tz}
        try:
            await self._client.memory.put(
                RECORDS,
                schedule.name,
                value,
                workspace=schedule.workspace,
                principal=schedule.principal,
                if_version=0 if before is None else before.version,
            )
        except MemoryConflict:
            logger.debug("schedule %r: another worker was faster", schedule.name)


@frozen(kw_only=True)
class Handled:
    """How far a schedule has come."""

    version: int
    until: datetime
    """Every slot up to here has been started or passed over."""
    line: tuple[str, str]
    """The cron line and the zone of whoever recorded it."""


async def handled(memory: ClientMemory, schedule: Schedule[Any]) -> Handled | None:
    """What is recorded of a schedule; None before its first run."""
    fact = await memory.get(RECORDS, schedule.name, workspace=schedule.workspace)
    if fact is None:
        return None
    try:
        return _handled(fact)
    except (KeyError, TypeError, ValueError) as error:
        raise PerdureError(
            f"schedule {schedule.name!r}: its record, memory {RECORDS}/{schedule.name}, cannot be read: "
            f"{fact.value!r}: delete it, and the schedule begins anew"
        ) from error


def _handled(fact: Fact[Any]) -> Handled:
    until = datetime.fromisoformat(fact.value["until"])
    if until.utcoffset() is None:
        raise ValueError("it has no zone")
    return Handled(version=fact.version, until=until, line=(fact.value["cron"], fact.value["tz"]))


def due_slots(
    schedule: Schedule[Any], record: Handled, at: datetime
) -> tuple[Sequence[datetime], datetime | None]:
    """The slots to start now, and up to which one all is done with them (None: nothing was due).

    Where the line has changed, nothing is caught up: its slots in the past were never asked for.
    """
    changed = record.line != (schedule.cron, schedule.tz)
    if schedule.catch_up == "all" and not changed:
        slots = [slot for slot in islice(schedule.slots(record.until), A_ROUND) if slot <= at]
        return slots, slots[-1] if slots else None
    newest = _newest(schedule, record.until, at)
    if newest is None:
        return (), None
    missed = at - newest > ON_TIME
    return () if missed and (changed or schedule.catch_up == "skip") else (newest,), newest


def _newest(schedule: Schedule[Any], after: datetime, at: datetime) -> datetime | None:
    """The newest slot after one moment and not after the other."""
    for span in LOOK_BACK:  # a year of minutes need not be counted
        begin = max(after, at - span)
        newest = max(takewhile(lambda slot: slot <= at, schedule.slots(begin)), default=None)
        if newest is not None or begin == after:
            return newest
    return None


def _next(schedule: Schedule[Any], after: datetime) -> Micros | None:
    slot = next(schedule.slots(after), None)
    return None if slot is None else micros_at(slot)
