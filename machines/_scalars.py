"""Shapes of single values: numbers, text, times, enums, literals."""

from __future__ import annotations

import binascii
import enum
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from math import copysign, isfinite
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from ._shape import Misfit, Refused, Schemas, Shape, describe, identity

_CONSTANTS: tuple[type[Any], ...] = (bool, int, str, type(None))
NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*")
_DURATION = re.compile(r"(-?)P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6}))?S)?)?")
_STAMP = re.compile(r"([^\[\]]+)(?:\[([^\[\]=]+)\])?(\[fold=1\])?")


def scalar(type_: Any) -> Shape | None:
    """The shape of a type that holds no others; None for every other type."""
    if type_ in _SCALARS:
        return _SCALARS[type_]()
    if isinstance(type_, type) and issubclass(type_, enum.Enum):
        return _flag(type_) if issubclass(type_, enum.Flag) else _enum(type_)
    return None


def constant(schema: dict[str, Any]) -> Callable[[Schemas], dict[str, Any]]:
    return lambda _: dict(schema)


def _loads_exactly(type_: type, name: str) -> Callable[..., Any]:
    def load(plain: Any, _: Any = None) -> Any:
        if type(plain) is type_:
            return plain
        raise Misfit(f"expected {name}, found {describe(plain)}")

    return load


def _loads_text(name: str, parse: Callable[[str], Any]) -> Callable[..., Any]:
    def load(plain: Any, _: Any = None) -> Any:
        if type(plain) is not str:
            raise Misfit(f"expected {name} as text, found {describe(plain)}")
        try:
            return parse(plain)
        except (ValueError, KeyError, ArithmeticError, OSError, ImportError) as error:
            raise Misfit(f"{plain[:60]!r} is no {name}: {error}") from None

    return load


def _native(type_: type, json_name: str, **more: Any) -> Shape:
    return Shape(
        name=type_.__name__,
        classes=(type_,),
        forms=frozenset({type_}),
        load=_loads_exactly(type_, type_.__name__),
        schema=constant({"type": json_name}),
        native=True,
        exact=type_,
        **more,
    )


def none() -> Shape:
    return Shape(
        name="None",
        classes=(type(None),),
        forms=frozenset({type(None)}),
        load=_loads_exactly(type(None), "null"),
        schema=constant({"type": "null"}),
        native=True,
    )


def _text() -> Shape:
    def problem(value: str) -> str | None:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            where = error.start
            return f"character {where} is the lone surrogate {value[where]!r}: it is no valid Unicode"
        return None

    return _native(str, "string", problem=problem, key=(identity, identity))


def _integer() -> Shape:
    def problem(value: int) -> str | None:
        try:
            str(value)
        except ValueError:
            return f"an int of {value.bit_length()} bits has more digits than Python reads back"
        return None

    def from_key(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise Misfit(f"{text[:60]!r} is no int") from None
        if str(value) != text:
            raise Misfit(f"{text[:60]!r} is no int as it is written here: {value}")
        return value

    return _native(int, "integer", problem=problem, key=(str, from_key))


def _float() -> Shape:
    def dump(value: float) -> float | str:
        return value if isfinite(value) else repr(value)

    def load(plain: Any, _: Any = None) -> float:
        if type(plain) is float:
            return plain
        if type(plain) is str and plain in NOT_FINITE:
            return NOT_FINITE[plain]
        # A model, a person and an older definition with an int all write 1 for 1.0.
        if type(plain) is int and abs(plain) <= 2**53:
            return float(plain)
        raise Misfit(f"expected float, found {describe(plain)}")

    def same(one: Any, other: Any) -> bool:
        if type(one) is not float or type(other) is not float:
            return False
        return (one == other and copysign(1.0, one) == copysign(1.0, other)) or (
            one != one and other != other
        )

    return Shape(
        name="float",
        classes=(float,),
        forms=frozenset({float, str}),
        load=load,
        dump=dump,
        same=same,
        schema=constant({"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]}),
    )


def _of_text(
    type_: type,
    *,
    parse: Callable[[str], Any],
    write: Callable[[Any], str],
    schema: dict[str, Any],
    encoder_writes_it: bool = False,
    **more: Any,
) -> Shape:
    load = _loads_text(type_.__name__, parse)
    return Shape(
        name=type_.__name__,
        classes=(type_,),
        forms=frozenset({str}),
        load=load,
        dump=identity if encoder_writes_it else write,
        schema=constant({"type": "string", **schema}),
        key=(write, load),
        **more,
    )


def _bytes() -> Shape:
    return _of_text(
        bytes,
        parse=lambda text: binascii.a2b_base64(text.encode(), strict_mode=True),
        write=lambda value: binascii.b2a_base64(value, newline=False).decode(),
        schema={"contentEncoding": "base64"},
        encoder_writes_it=True,
    )


def _decimal() -> Shape:
    def parse(text: str) -> Decimal:
        try:
            return Decimal(text)
        except InvalidOperation:
            raise ValueError("not a decimal number") from None

    def same(one: Any, other: Any) -> bool:
        # Decimal("1.0") == Decimal("1.00"), and comparing a signalling NaN raises.
        return type(one) is type(other) is Decimal and one.as_tuple() == other.as_tuple()

    return _of_text(
        Decimal, parse=parse, write=str, schema={"format": "decimal"}, encoder_writes_it=True, same=same
    )


def _uuid() -> Shape:
    return _of_text(UUID, parse=UUID, write=str, schema={"format": "uuid"}, encoder_writes_it=True)


def _date() -> Shape:
    return _of_text(
        date,
        parse=date.fromisoformat,
        write=date.isoformat,
        schema={"format": "date"},
        encoder_writes_it=True,
    )


def _zone_suffix(value: datetime | time) -> str:
    zone = f"[{value.tzinfo.key}]" if isinstance(value.tzinfo, ZoneInfo) else ""
    return f"{zone}[fold=1]" if value.fold else zone


def write_stamp(value: datetime | time) -> str:
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


def _stamp(type_: type[datetime] | type[time], schema: dict[str, Any]) -> Shape:
    def write(value: Any) -> str:
        zone = value.tzinfo
        problem = None if zone is None or zone is UTC else _stamp_problem(value)
        if problem is not None:
            raise Misfit(problem)
        return write_stamp(value)

    return _of_text(
        type_,
        parse=_stamp_parser(type_),
        write=write,
        schema=schema,
        same=_same_stamp(type_),
        problem=_stamp_problem,
    )


def write_duration(value: timedelta) -> str:
    """ISO 8601 in days, seconds and microseconds: ``P1DT3600.000001S``."""
    sign, value = ("-", -value) if value.days < 0 else ("", value)
    fraction = f".{value.microseconds:06}" if value.microseconds else ""
    return f"{sign}P{value.days}DT{value.seconds}{fraction}S"


def parse_duration(text: str) -> timedelta:
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


def _duration() -> Shape:
    return _of_text(timedelta, parse=parse_duration, write=write_duration, schema={"format": "duration"})


def _enum(type_: type[enum.Enum]) -> Shape:
    members = list(type_)
    if not members:
        raise Refused(f"{type_.__name__} has no members: name the enum that is meant")
    by_value = all(type(member.value) is str for member in members) or issubclass(type_, enum.IntEnum)
    table = {member.value if by_value else member.name: member for member in members}
    form: type = int if by_value and issubclass(type_, enum.IntEnum) else str

    def load(plain: Any, _: Any = None) -> enum.Enum:
        if type(plain) is form and plain in table:
            return table[plain]
        raise Misfit(f"{describe(plain)} is none of {type_.__name__}: {', '.join(map(str, table))}")

    def dump_value(value: enum.Enum) -> Any:
        return value.value

    def dump_name(value: enum.Enum) -> str:
        return value.name

    dump = dump_value if by_value else dump_name
    return Shape(
        name=type_.__name__,
        classes=(type_,),
        forms=frozenset({form}),
        load=load,
        dump=dump,
        schema=constant({"enum": list(table)}),
        key=(dump, load) if form is str else None,
    )


def _flag(type_: type[enum.Flag]) -> Shape:
    def load(plain: Any, _: Any = None) -> enum.Flag:
        if type(plain) is int:
            with suppress(ValueError):
                value = type_(plain)
                # Some boundaries drop unknown bits, or return an int.
                if type(value) is type_ and value.value == plain:
                    return value
        raise Misfit(f"{describe(plain)} is no combination of {type_.__name__}")

    def dump(value: enum.Flag) -> Any:
        return value.value

    return Shape(
        name=type_.__name__,
        classes=(type_,),
        forms=frozenset({int}),
        load=load,
        dump=dump,
        schema=constant({"type": "integer"}),
    )


def literal(values: Sequence[Any]) -> Shape:
    """One of some constants: None, bool, int, str or members of enums."""
    enums: dict[type[Any], Shape] = {
        type(value): _literal_enum(value) for value in values if isinstance(value, enum.Enum)
    }
    for value in values:
        if value.__class__ not in enums and value.__class__ not in _CONSTANTS:
            raise Refused(f"Literal[{value!r}] cannot be stored: use None, bool, int, str or enum members")

    def dump(value: Any) -> Any:
        return enums[type(value)].dump(value) if type(value) in enums else value

    table: dict[tuple[type[Any], Any], Any] = {_typed(dump(value)): value for value in values}
    allowed = {_typed(value) for value in values}
    if len(table) != len(allowed):
        raise Refused(f"{_literal_name(values)} is ambiguous: two of its values are written alike")

    def load(plain: Any, _: Any = None) -> Any:
        if type(plain) in _CONSTANTS and _typed(plain) in table:
            return table[_typed(plain)]
        raise Misfit(f"{describe(plain)} is none of {_literal_name(values)}")

    forms: frozenset[type[Any]] = frozenset(form for form, _ in table)
    return Shape(
        name=_literal_name(values),
        classes=tuple({type(value): None for value in values}),
        forms=forms,
        load=load,
        dump=dump if enums else identity,
        problem=lambda value: (
            None if _typed(value) in allowed else f"{describe(value)} is none of {_literal_name(values)}"
        ),
        schema=constant({"enum": [plain for _, plain in table]}),
        key=(dump, load) if forms == frozenset({str}) else None,
        native=not enums,
    )


def _typed(value: Any) -> tuple[type[Any], Any]:
    kind: type[Any] = value.__class__
    return kind, value  # True == 1, which are two constants


def _literal_enum(value: enum.Enum) -> Shape:
    return _flag(type(value)) if isinstance(value, enum.Flag) else _enum(type(value))


def _literal_name(values: Sequence[Any]) -> str:
    return f"Literal[{', '.join(map(repr, values))}]"


_SCALARS: dict[Any, Callable[[], Shape]] = {
    None: none,
    type(None): none,
    bool: lambda: _native(bool, "boolean"),
    int: _integer,
    float: _float,
    str: _text,
    bytes: _bytes,
    Decimal: _decimal,
    UUID: _uuid,
    date: _date,
    time: lambda: _stamp(time, {"format": "time"}),
    datetime: lambda: _stamp(datetime, {"format": "date-time"}),
    timedelta: _duration,
}
