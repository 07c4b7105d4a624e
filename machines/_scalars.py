"""Shapes of single values: what JSON has itself, and what it takes as text."""

from __future__ import annotations

import binascii
import enum
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from math import copysign, isfinite
from typing import Any
from uuid import UUID

from ._enums import of_enum, of_flag
from ._shape import Misfit, Shape, constant, describe, identity, of_text
from ._times import of_date, of_datetime, of_duration, of_time

NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def scalar(type_: Any) -> Shape | None:
    """The shape of a type that holds no others; None for every other type."""
    if type_ in _SCALARS:
        return _SCALARS[type_]()
    if isinstance(type_, type) and issubclass(type_, enum.Enum):
        return of_flag(type_) if issubclass(type_, enum.Flag) else of_enum(type_)
    return None


def _loads_exactly(type_: type, name: str) -> Callable[..., Any]:
    def load(plain: Any, _: Any = None) -> Any:
        if type(plain) is type_:
            return plain
        raise Misfit(f"expected {name}, found {describe(plain)}")

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


def _bytes() -> Shape:
    return of_text(
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

    return of_text(
        Decimal, parse=parse, write=str, schema={"format": "decimal"}, encoder_writes_it=True, same=same
    )


def _uuid() -> Shape:
    return of_text(UUID, parse=UUID, write=str, schema={"format": "uuid"}, encoder_writes_it=True)


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
    date: of_date,
    time: of_time,
    datetime: of_datetime,
    timedelta: of_duration,
}
