"""The checks at class creation of guards, handlers and receivers: their shape, and what their code shows."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from ._data import DataPlan
from ._errors import DefinitionError
from ._parts import Parts
from ._source import EventCall, annotated, attributes_read, fits, own_calls, takes
from ._states import Guard, Incoming, Transition
from ._table import Rows


def guard_name(parts: Parts, data: DataPlan[Any], event: str, guard: Guard) -> str:
    """What people call a guard: the derived property's name, or the function's."""
    return pure_name(parts, data, event, guard, "guard", "when=", "ready")


def pure_name(
    parts: Parts, data: DataPlan[Any], event: str, given: object, what: str, taker: str, example: str
) -> str:
    """The name of a derived property of the data, or of a pure function of it, that ``taker`` was given."""
    where = f"{parts.label}.{event}"
    if isinstance(given, property):
        for klass in parts.data_class.__mro__:
            for name, value in vars(klass).items():
                if value is given:
                    return name
        raise DefinitionError(
            f"{where}: its {what} is a property of another class than {parts.data_class.__name__}; use one "
            "of the machine's own data"
        )
    if not callable(given) or inspect.iscoroutinefunction(given) or not takes(given, 1):
        raise DefinitionError(
            f"{where}: {taker} takes a derived property ({parts.data_class.__name__}.{example}) "
            f"or a pure function of the data, not {given!r}"
        )
    for name in attributes_read(given):
        if name not in data.fields and not hasattr(parts.data_class, name):
            raise DefinitionError(
                f"{where}: its {what} reads {name!r}, which {parts.data_class.__name__} has not; it has "
                f"{', '.join(data.fields)}"
            )
    return str(getattr(given, "__name__", type(given).__name__))


def by_name(given: Callable[[Any], Any] | property, name: str) -> Callable[[Any], Any]:
    """What to call with the data: a property by its name, so that a subclass of the data may override it."""
    return operator.attrgetter(name) if isinstance(given, property) else given


def check_methods(parts: Parts, leaves: Mapping[str, Rows], data: DataPlan[Any]) -> None:
    """Handlers and receivers: their shape, and what their code shows of the events that they name."""
    for name, states in parts.handlers.items():
        fn = parts.method(name)
        where = f"{parts.label}.{name}"
        if not inspect.iscoroutinefunction(fn) or not takes(fn, 3):
            raise DefinitionError(f"{where}: a handler is `async def {name}(self, data, step)`")
        _check_annotation(where, fn, 1, parts.data)
        own = [state.dotted for state in states]
        for event, call in _fired(parts, where, fn):
            leaving = [name for name, rows in leaves.items() if event in rows]
            if not set(leaving) & set(own):
                raise DefinitionError(
                    f"{where}: it fires {event}, which does not leave {' or '.join(own)}; it leaves "
                    f"{', '.join(sorted(leaving))}"
                )
            _check_updates(f"{where}: self.{event}(...)", call.fields, call.positional, data)
    for name, events in parts.receivers.items():
        fn = parts.method(name)
        where = f"{parts.label}.{name}"
        if inspect.iscoroutinefunction(fn) or not takes(fn, 3):
            raise DefinitionError(
                f"{where}: a receiver is pure: `def {name}(self, data, payload)`, not async"
            )
        _check_annotation(where, fn, 1, parts.data)
        _check_accepted(parts, where, fn, events, data)


def _check_annotation(where: str, fn: Callable[..., Any], position: int, given: Any) -> None:
    declared = annotated(fn, position)
    if declared is not None and not fits(given, declared):
        raise DefinitionError(
            f"{where}: it declares {getattr(declared, '__name__', declared)}, but is given "
            f"{getattr(given, '__name__', given)}; mend the annotation"
        )


def _events_named(parts: Parts, where: str, fn: Callable[..., Any]) -> Iterator[EventCall]:
    """The events that a method's code calls. One that calls what the machine has not is refused."""
    for call in own_calls(fn):
        if call.event in parts.events:
            yield call
        elif not hasattr(parts.machine, call.event):
            near = get_close_matches(call.event, parts.events, n=1)
            meant = f"do you mean {near[0]!r}?" if near else f"its events: {', '.join(parts.events)}"
            raise DefinitionError(f"{where}: self.{call.event}(...) is no event of {parts.label}; {meant}")


def _fired(parts: Parts, where: str, fn: Callable[..., Any]) -> Iterator[tuple[str, EventCall]]:
    for call in _events_named(parts, where, fn):
        event = parts.events[call.event]
        if event.kind == "choice":
            raise DefinitionError(
                f"{where}: {event.name} is a model's choice; return what step.decide(...) makes of its answer"
            )
        if not isinstance(event, Transition):
            raise DefinitionError(
                f"{where}: {event.name} is a {event.kind}, which comes by itself; no handler fires it"
            )
        yield event.name, call


def _check_accepted(
    parts: Parts, where: str, fn: Callable[..., Any], events: tuple[Incoming[Any], ...], data: DataPlan[Any]
) -> None:
    own = {event.name for event in events}
    for event in events:
        _check_annotation(where, fn, 2, event.payload or type(None))
    for call in _events_named(parts, where, fn):
        if call.event not in own:
            raise DefinitionError(
                f"{where}: it receives {' and '.join(sorted(own))}, but returns {call.event}; return "
                f"self.{min(own)}(...)"
            )
        _check_updates(f"{where}: self.{call.event}(...)", call.fields, call.positional, data)


def _check_updates(where: str, fields: Iterable[str], positional: bool, data: DataPlan[Any]) -> None:
    if positional:
        raise DefinitionError(
            f"{where}: updates are given by field name, as in {next(iter(data.fields), 'field')}=..."
        )
    for name in fields:
        if name not in data.fields:
            raise DefinitionError(f"{where}: {name!r} is not a stored field; it has {', '.join(data.fields)}")
        if data.fields[name].kind == "owned":
            raise DefinitionError(
                f"{where}: {name!r} is owned by the runtime, which alone writes it; leave it out"
            )
