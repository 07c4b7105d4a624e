"""The timeouts of a machine: what gives their time, checked and put into words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from ._check_methods import by_name, pure_name
from ._data import DataPlan
from ._errors import DefinitionError
from ._parts import Parts
from ._plan import TimeoutPlan
from ._source import may_give
from ._states import After, At


def timeout_plans(parts: Parts, data: DataPlan[Any]) -> Iterator[tuple[str, TimeoutPlan]]:
    """Each timeout event by its name, its scope still open."""
    for name, event in parts.events.items():
        if isinstance(event, At):
            given, label = _given(parts, data, name, "moment", "at()", event.moment, datetime)
            yield name, TimeoutPlan(event=name, scope="", kind="at", given=given, label=label)
        elif isinstance(event, After):
            delay = event.delay
            if isinstance(delay, timedelta):
                label = duration(delay)
            else:
                delay, label = _given(parts, data, name, "delay", "after()", delay, timedelta)
            yield name, TimeoutPlan(event=name, scope="", kind="after", given=delay, label=label)


def _given(
    parts: Parts,
    data: DataPlan[Any],
    event: str,
    what: str,
    taker: str,
    given: Callable[[Any], Any] | property,
    wanted: type[timedelta | datetime],
) -> tuple[Callable[[Any], Any], str]:
    label = pure_name(parts, data, event, given, what, taker, "due")
    if not may_give(given.fget if isinstance(given, property) else given, wanted):
        raise DefinitionError(
            f"{parts.label}.{event}: {taker} takes what gives a {wanted.__name__}, or None for no timer, and "
            f"{label} declares that it gives something else; mend it, or its annotation"
        )
    return by_name(given, label), label


def duration(delay: timedelta) -> str:
    """A span of time in words: ``1 h 30 min``."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    rest, parts = delay // timedelta(seconds=1), list[str]()
    for unit, seconds in units:
        count, rest = divmod(rest, seconds)
        parts += [f"{count} {unit}"] if count else []
    if delay.microseconds:
        parts.append(f"{delay.microseconds / 1000:g} ms")
    return " ".join(parts)
