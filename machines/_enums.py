"""Shapes of enums, flags and literals."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ._shape import Misfit, Refused, Shape, constant, describe, identity

_CONSTANTS: tuple[type[Any], ...] = (bool, int, str, type(None))


def of_enum(type_: type[enum.Enum]) -> Shape:
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


def of_flag(type_: type[enum.Flag]) -> Shape:
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
    return of_flag(type(value)) if isinstance(value, enum.Flag) else of_enum(type(value))


def _literal_name(values: Sequence[Any]) -> str:
    return f"Literal[{', '.join(map(repr, values))}]"
