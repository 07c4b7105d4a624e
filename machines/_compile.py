"""From a machine class to its definition."""

from __future__ import annotations

import hashlib
import inspect
import json
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ._calls import Declared
from ._checks import (
    check_calls,
    check_events,
    check_identity,
    check_methods,
    check_rows,
    check_states,
    guard_name,
)
from ._codec import codec
from ._data import DataPlan
from ._parts import Parts, collect
from ._plan import Definition, EventPlan, FailurePlan, HandlerPlan, Row, StatePlan, TimeoutPlan
from ._states import After, Event, Guard, Kind, OnFailure
from ._table import Table, compiled

if TYPE_CHECKING:
    from ._machine import Machine


def compile_machine(
    machine: type[Machine[Any, Any]],
    root: type[Any],
    *,
    name: str | None,
    version: int,
    calls: Sequence[Declared[Any, ..., Any]],
) -> Definition:
    """Check the class and compile it. Raises ``DefinitionError``."""
    parts = collect(machine, root)
    check_identity(parts.label, parts.label if name is None else name, version)
    initial = check_states(parts)
    check_events(parts)
    data: DataPlan[Any] = DataPlan(parts.data, f"{parts.label}: {parts.data_class.__name__}")
    rows = list(_rows(parts, data))
    check_rows(parts, rows, initial)
    check_methods(parts, data)
    table = compiled(parts.states, initial, rows)
    return Definition(
        name=parts.label if name is None else name,
        version=version,
        hash=_hash(parts, rows, data),
        machine=machine,
        data=data,
        initial=initial,
        states={state: _state(parts, state, table, machine()) for state in parts.states},
        events={event: _event(parts, event, machine()) for event in parts.events},
        calls=check_calls(parts.label, calls),
        budget=None,
    )


def _rows(parts: Parts, data: DataPlan[Any]) -> Iterator[Row]:
    for name, event in parts.events.items():
        for arrow in event.arrows:
            label = None if arrow.guard is None else guard_name(parts, data, name, arrow.guard)
            yield Row(
                event=name,
                source=arrow.source.name,
                dest=arrow.dest.name,
                scope=arrow.source.name,
                guard=_guard(arrow.guard, label),
                guard_name=label,
            )


def _guard(guard: Guard | None, name: str | None) -> Any:
    # By name, so that a subclass of the data may override the property.
    return operator.attrgetter(name) if isinstance(guard, property) and name else guard


def _state(parts: Parts, name: str, table: Table, machine: Machine[Any, Any]) -> StatePlan:
    state = parts.states[name]
    leaving = [event for event in parts.events.values() if event.name in table[name]]
    handlers = parts.handlers_of(name)
    return StatePlan(
        name=name,
        final=state.final,
        handlers=tuple(
            HandlerPlan(lane="main" if len(handlers) == 1 else fn, run=getattr(machine, fn))
            for fn in handlers
        ),
        retry=state.retry,
        deadline=state.deadline,
        interruptible=state.interruptible,
        rows=table[name],
        signals=_named(leaving, "signal"),
        timeouts=tuple(
            TimeoutPlan(event=event.name, scope=name, after=event.delay)
            for event in leaving
            if isinstance(event, After)
        ),
        failures=tuple(
            FailurePlan(event=event.name, errors=event.errors)
            for event in leaving
            if isinstance(event, OnFailure)
        ),
        cancels=_named(leaving, "cancel"),
        budgets=_named(leaving, "budget"),
        choices=_named(leaving, "choice"),
    )


def _named(events: Sequence[Event], kind: Kind) -> tuple[str, ...]:
    return tuple(event.name for event in events if event.kind == kind)


def _event(parts: Parts, name: str, machine: Machine[Any, Any]) -> EventPlan:
    event = parts.events[name]
    receiver = parts.receiver_of(name)
    return EventPlan(
        name=name,
        kind=event.kind,
        payload=None
        if event.payload is None
        else codec(event.payload, f"{parts.label}.{name} (its payload)"),
        receiver=None if receiver is None else getattr(machine, receiver),
        doc=_doc(parts, event, receiver),
    )


def _doc(parts: Parts, event: Event, receiver: str | None) -> str:
    texts = [] if receiver is None else [inspect.getdoc(parts.method(receiver))]
    texts += [inspect.getdoc(arrow.guard) for arrow in event.arrows if arrow.guard is not None]
    return next((text for text in texts if text), "")


def _hash(parts: Parts, rows: Sequence[Row], data: DataPlan[Any]) -> str:
    shape = [
        [[name, state.initial, state.final] for name, state in sorted(parts.states.items())],
        sorted([row.event, row.source, row.dest, row.guard_name or ""] for row in rows),
        [[name, event.kind] for name, event in sorted(parts.events.items())],
        [[field.name, field.kind, _type(field.codec)] for _, field in sorted(data.fields.items())],
    ]
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]


def _type(made: Any) -> str:
    return "" if made is None else json.dumps(made.schema(), sort_keys=True)
