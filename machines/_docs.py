"""What an event is for, in the words of the class that declares it: for models and for people."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ._parts import Parts
from ._source import strings_under
from ._states import Event

_OTHERS = {*sys.stdlib_module_names, "perdure"}
"""Whose classes say nothing of the event that brings one."""


def event_docs(parts: Parts) -> Mapping[str, str]:
    """By event, the first that there is: the receiver's docstring, the string under the event in the class
    body, the docstring of the payload's class, the guard's; otherwise ""."""
    under = _under(parts)
    return {
        name: next((text for text in _texts(parts, event, under) if text), "")
        for name, event in parts.events.items()
    }


def _under(parts: Parts) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for klass in parts.lineage:
        if any(isinstance(value, Event) for value in vars(klass).values()):  # reading a source takes its time
            found |= strings_under(klass)
    return found


def _texts(parts: Parts, event: Event, under: Mapping[str, str]) -> Iterator[str | None]:
    receiver = parts.receiver_of(event.name)
    if receiver is not None:
        yield inspect.getdoc(parts.method(receiver))
    yield under.get(event.name)
    yield _class_doc(event.payload)
    for arrow in event.arrows:
        if arrow.guard is not None:
            yield inspect.getdoc(arrow.guard)


def _class_doc(payload: Any) -> str | None:
    if not isinstance(payload, type) or payload.__module__.partition(".")[0] in _OTHERS:
        return None
    doc = vars(payload).get("__doc__")
    # What dataclasses and named tuples write themselves says no more than the fields.
    return inspect.cleandoc(doc) if doc and not doc.startswith(f"{payload.__name__}(") else None
