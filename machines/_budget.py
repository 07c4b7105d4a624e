"""Limits on what a thread may use, kept in its data."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any, get_args, get_origin

import attrs

from ._errors import BadUpdate
from ._pydantic import as_it_is
from ._values import FrozenMapping

STEPS = "steps"


@attrs.frozen(init=False)
class Budget:
    """What a thread may use: ``Budget(steps=30, tokens=20_000)``, the value of one field of its data.

    ``steps`` limits its transitions, every other name the data field of that name, marked ``Cost()``. A limit
    counts as reached when as much as it allows is used; the events that ``on_budget()`` declares take the
    thread on from there. It is kept with the data, and an update may raise it. ``ValueError`` for a limit
    that is no positive finite number, and for a number of steps that is not whole.
    """

    __get_pydantic_core_schema__ = classmethod(as_it_is)

    limits: Mapping[str, int | float] = attrs.field(hash=False)
    """The limits by name."""

    def __init__(self, limits: Mapping[str, int | float] | None = None, /, **named: float) -> None:
        together = {**(limits or {}), **named}
        for name, limit in together.items():
            _check_limit(name, limit)
        self.__attrs_init__(FrozenMapping(sorted(together.items())))  # pyright: ignore

    def __repr__(self) -> str:
        return f"Budget({', '.join(f'{name}={limit!r}' for name, limit in self.limits.items())})"


def _check_limit(name: str, limit: object) -> None:
    number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if not number or not _finite(limit) or limit <= 0:  # type: ignore[operator] # pyright: ignore
        raise ValueError(f"Budget({name}=) takes a finite number over zero, not {limit!r}")
    if name == STEPS and not isinstance(limit, int):
        raise ValueError(f"Budget(steps=) counts transitions: a whole number, not {limit!r}")


def _finite(limit: Any) -> bool:
    try:
        return math.isfinite(limit)
    except OverflowError:  # a whole number that no float can hold
        return False


@attrs.frozen
class Cost:
    """Marks a number that counts up what a thread has used: an update is added to it.

    The field is an ``int``, ``float`` or ``Decimal`` with a default. An update that is negative or no number
    is refused, as is one that is not finite.
    """


COSTS: tuple[type[Any], ...] = (int, float, Decimal)


def added(old: Any, update: Any) -> Any:
    """The reducer of a cost field."""
    number = isinstance(update, COSTS) and not isinstance(update, bool)
    if not number or not math.isfinite(update) or update < 0:
        raise BadUpdate("it counts what is used, so that an update is a finite number from 0 on")
    return old + update


def mentions_budget(type_: Any) -> bool:
    """Whether a type is or holds a budget."""
    return type_ is Budget or get_origin(type_) is Budget or any(map(mentions_budget, get_args(type_)))


def unknown_limit(budget: Budget, costs: Collection[str]) -> str | None:
    """The first limit that limits nothing: neither steps nor a cost field."""
    return next((name for name in budget.limits if name != STEPS and name not in costs), None)


def no_such_cost(limit: str, costs: Collection[str]) -> str:
    """What to say of it."""
    there = ", ".join(costs) or "none so far"
    return f"it limits {limit!r}, and no field of that name is marked Cost(): mark one (there are: {there})"
