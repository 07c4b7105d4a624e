"""Shapes of dates, times and durations, as ISO 8601 writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from ._shape import Misfit, Shape, of_text

_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*")
_DURATION = re.compile(r"(-?)P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6}))?S)?)?")
_STAMP = re.compile(r"([^\[\]]+)(?:\[([^\[\]=]+)\])?(\[fold=1\])?")


def of_date() -> Shape:
    return of_text(
        date,
        parse=date.fromisoformat,
        write=date.isoformat,
        schema={"format": "date"},
        encoder_writes_it=True,
    )


def _zone_suffix(value: datetime | time) -> str:
    zone = f"[{value.tzinfo.key}]" if isinstance(value.tzinfo, ZoneInfo) else ""
    return f"{zone}[fold=1]" if value.fold else zone


def _write_stamp(value: datetime | time) -> str:
    """ISO 8601 with an offset, or without one and with the zone's name in brackets (as in RFC 9557).

    The wall clock and the zone are what Python's value consists of: an offset beside the zone would
    contradict it once the zone's rules change.
    """
    if value.tzinfo is None:
        return value.isoformat() if not value.fold else value.isoformat() + "[fold=1]"
    if type(value.tzinfo) is ZoneInfo:
        return value.replace(tzinfo=None).isoformat() + _zone_suffix(value)
    return value.isoformat() + _zone_suffix(value)


def _stamp_parser(type_: type[datetime] | type[time]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text[-1:] != "]":
            return type_.fromisoformat(text)
        match = _STAMP.fullmatch(text)
        if match is None:
            raise ValueError("it is not written as a time, [zone] and [fold=1]")
        wall, zone, fold = match.groups()
        value = type_.fromisoformat(wall)
        if zone is not None:
            value = value.replace(tzinfo=_zone(zone))
        return value.replace(fold=1) if fold else value

    return parse


def _zone(key: str) -> ZoneInfo:
    if _ZONE.fullmatch(key) is None:
        raise ValueError("not a zone's name")
    try:
        return ZoneInfo(key)
    except (LookupError, OSError, ValueError, ImportError):
        raise ValueError(f"time zone {key} is not known here: install tzdata") from None


def _same_zone(one: tzinfo | None, other: tzinfo | None) -> bool:
    if one is other:
        return True
    if type(one) is ZoneInfo and type(other) is ZoneInfo:
        return bool(one.key) and one.key == other.key
    return type(one) is timezone and type(other) is timezone and one == other


def _same_stamp(type_: Any) -> Callable[[Any, Any], bool]:
    def same(one: Any, other: Any) -> bool:
        return (
            type(one) is type_
            and type(other) is type_
            and one.fold == other.fold
            and _same_zone(one.tzinfo, other.tzinfo)
            and one.replace(tzinfo=None) == other.replace(tzinfo=None)
        )

    return same


def _stamp_problem(value: datetime | time) -> str | None:
    zone = value.tzinfo
    if zone is None or (type(zone) is ZoneInfo and _ZONE.fullmatch(zone.key or "")):
        return None
    if type(zone) is timezone:
        if zone.tzname(None) == timezone(zone.utcoffset(None)).tzname(None):
            return None
        return f"the name of {zone!r} would be lost: use ZoneInfo, or a timezone without a name"
    return f"its tzinfo is {zone!r}: use zoneinfo.ZoneInfo(name), datetime.timezone or None"


def of_datetime() -> Shape:
    return _stamp(datetime, {"format": "date-time"})


def of_time() -> Shape:
    return _stamp(time, {"format": "time"})


def _stamp(type_: type[datetime] | type[time], schema: dict[str, Any]) -> Shape:
    def write(value: Any) -> str:
        zone = value.tzinfo
        problem = None if zone is None or zone is UTC else _stamp_problem(value)
        if problem is not None:
            raise Misfit(problem)
        return _write_stamp(value)

    return of_text(
        type_,
        parse=_stamp_parser(type_),
        write=write,
        schema=schema,
        same=_same_stamp(type_),
        problem=_stamp_problem,
    )


def _write_duration(value: timedelta) -> str:
    """ISO 8601 in days, seconds and microseconds: ``P1DT3600.000001S``."""
    sign, value = ("-", -value) if value.days < 0 else ("", value)
    fraction = f".{value.microseconds:06}" if value.microseconds else ""
    return f"{sign}P{value.days}DT{value.seconds}{fraction}S"


def _parse_duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None or text[-1] in "PT":
        raise ValueError("write it as P1DT2H3M4.5S")
    sign, days, hours, minutes, seconds, fraction = match.groups()
    value = timedelta(
        days=int(days or 0),
        hours=int(hours or 0),
        minutes=int(minutes or 0),
        seconds=int(seconds or 0),
        microseconds=int((fraction or "").ljust(6, "0")),
    )
    return -value if sign else value


def of_duration() -> Shape:
    return of_text(timedelta, parse=_parse_duration, write=_write_duration, schema={"format": "duration"})
