"""What an event is for, in the words of the class that declares it: for models and for people."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from ._parts import Parts
from ._source import strings_under
from ._states import Event

_OTHERS = {*sys.stdlib_module_names, "perdure"}
"""Whose classes say nothing of the event that brings one."""


def event_doc(parts: Parts, event: Event, receiver: str | None) -> str:
    """The first that there is: the receiver's docstring, the string under the event in the class body, the
    docstring of the payload's class, the guard's."""
    return next((text for text in _texts(parts, event, receiver) if text), "")


def _texts(parts: Parts, event: Event, receiver: str | None) -> Iterator[str | None]:
    if receiver is not None:
        yield inspect.getdoc(parts.method(receiver))
    holder = next(klass for klass in parts.lineage if vars(klass).get(event.name) is event)
    yield strings_under(holder).get(event.name)
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
