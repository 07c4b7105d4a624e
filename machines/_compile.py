"""From a machine class to its definition."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve

from ._calls import Declared
from ._check_methods import by_name, check_methods, guard_name
from ._check_rows import WORK, check_arrows, check_rows, innermost_first
from ._checks import check_budget, check_calls, check_choice, check_events, check_identity, check_states
from ._codec import codec
from ._data import DataPlan
from ._docs import event_docs
from ._limits import check_count
from ._parts import Parts, collect
from ._plan import Definition, EventPlan, FailurePlan, HandlerPlan, Row, StatePlan, TimeoutPlan
from ._states import Event, Kind, OnFailure, Retry, State
from ._table import Rows, compiled
from ._timers import timeout_plans
from ._versions import Upcasts, VersionMarks, check_removed_calls, old_events, old_states, upcasts_of

if TYPE_CHECKING:
    from ._machine import Machine


def compile_machine(
    machine: type[Machine[Any, Any]],
    root: type[Any],
    *,
    name: str | None,
    marks: VersionMarks,
    calls: Sequence[Declared[Any, ..., Any]],
    at_once: int | None,
) -> Definition:
    """Check the class and compile it. Raises ``DefinitionError``."""
    parts = collect(machine, root)
    name = parts.label if name is None else name
    check_identity(parts.label, name, marks)
    check_count(parts.label, "at_once", at_once)
    initial = check_states(parts)
    check_events(parts)
    data: DataPlan[Any] = DataPlan(parts.data, f"{parts.label}: {parts.data_class.__name__}")
    arrows = list(_arrows(parts, data))
    check_arrows(parts, arrows)
    table = compiled(parts, initial, arrows)
    rows = {name: _live(parts, state, table.rows[name]) for name, state in parts.leaves.items()}
    check_rows(parts, arrows, rows, table.entered[initial])
    check_methods(parts, rows, data)
    check_budget(parts, data.budget)
    events = {event: _event(parts, event, doc, machine()) for event, doc in event_docs(parts).items()}
    known = check_calls(parts.label, calls)
    check_removed_calls(parts.label, marks.removed_calls, known)
    state_names, event_names = old_states(parts), old_events(parts, marks.removed_events)
    upcasts = upcasts_of(parts, name, marks, machine(), known)
    timers = dict(timeout_plans(parts, data))
    return Definition(
        name=name,
        version=marks.version,
        hash=_hash([*_shape(parts, rows, data, events), *_older(marks, state_names, event_names, upcasts)]),
        machine=machine,
        data=data,
        initial=table.entered[initial],
        states={name: _state(parts, name, rows[name], machine(), timers) for name in rows},
        composites={name: leaf for name, leaf in table.entered.items() if name not in rows},
        events=events,
        calls=known,
        budget=data.budget,
        at_once=at_once,
        oldest=marks.oldest,
        state_names=state_names,
        event_names=event_names,
        removed_events=frozenset(marks.removed_events),
        removed_calls=frozenset(marks.removed_calls),
        upcasts=upcasts,
    )


def _arrows(parts: Parts, data: DataPlan[Any]) -> Iterator[Row]:
    """Each declared transition, its scope as its source, and its dest as it stands in the class."""
    for name, event in parts.events.items():
        for arrow in event.arrows:
            label = None if arrow.guard is None else guard_name(parts, data, name, arrow.guard)
            scope = "" if arrow.source is None else arrow.source.dotted
            yield Row(
                event=name,
                source=scope,
                dest=arrow.dest.dotted,
                scope=scope,
                guard=None if arrow.guard is None else by_name(arrow.guard, label or ""),
                guard_name=label,
            )


def _live(parts: Parts, state: State, candidates: Rows) -> dict[str, tuple[Row, ...]]:
    """A leaf's rows without those of the states around it that cannot come to it: behind a row without a
    guard, or for a handler's work where there is no handler."""
    works = bool(parts.handlers_of(state))
    live: dict[str, tuple[Row, ...]] = {}
    for event, rows in candidates.items():
        come = [
            row for row in rows if works or row.scope == row.source or parts.events[event].kind not in WORK
        ]
        last = next((n for n, row in enumerate(come) if row.guard is None), len(come))
        if come:
            live[event] = tuple(come[: last + 1])
    return live


def _state(
    parts: Parts, name: str, rows: Rows, machine: Machine[Any, Any], timers: Mapping[str, TimeoutPlan]
) -> StatePlan:
    state = parts.leaves[name]
    leaving = innermost_first(parts, rows)
    handlers = parts.handlers_of(state)
    return StatePlan(
        name=name,
        final=state.final,
        handlers=tuple(
            HandlerPlan(lane="main" if len(handlers) == 1 else fn, run=getattr(machine, fn))
            for fn in handlers
        ),
        retry=Retry() if state.retry is None else state.retry,
        deadline=state.deadline,
        interruptible=state.interruptible,
        rows=rows,
        signals=_named(leaving, "signal"),
        timeouts=tuple(
            evolve(timers[event.name], scope=rows[event.name][0].scope)
            for event in leaving
            if event.name in timers
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


def _event(parts: Parts, name: str, doc: str, machine: Machine[Any, Any]) -> EventPlan:
    event = parts.events[name]
    receiver = parts.receiver_of(name)
    payload = None if event.payload is None else codec(event.payload, f"{parts.label}.{name} (its payload)")
    if event.kind == "choice":
        check_choice(f"{parts.label}.{name}", payload)
    return EventPlan(
        name=name,
        kind=event.kind,
        payload=payload,
        receiver=None if receiver is None else getattr(machine, receiver),
        doc=doc,
    )


def _hash(shape: list[Any]) -> str:
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]


def _older(
    marks: VersionMarks, states: Mapping[str, str], events: Mapping[str, str], upcasts: Upcasts
) -> list[Any]:
    of = [("", upcasts.of_data), *sorted(upcasts.of_events.items()), *sorted(upcasts.of_calls.items())]
    return [
        marks.oldest,
        [sorted(marks.removed_events), sorted(marks.removed_calls)],
        [sorted(states.items()), sorted(events.items())],
        [[name, sorted(steps)] for name, steps in of],
    ]


def _shape(
    parts: Parts, leaves: Mapping[str, Rows], data: DataPlan[Any], events: Mapping[str, EventPlan]
) -> list[Any]:
    rows = [row for events in leaves.values() for found in events.values() for row in found]
    return [
        sorted([state.dotted, state.initial, state.final] for state in parts.states.values()),
        # Sorted by state and event alone: the order of candidates counts.
        [
            [row.event, row.source, row.dest, row.scope, row.guard_name or ""]
            for row in sorted(rows, key=lambda row: (row.source, row.event))
        ],
        [[name, event.kind, _type(event.payload)] for name, event in sorted(events.items())],
        [[field.name, field.kind, _type(field.codec)] for _, field in sorted(data.fields.items())],
    ]


def _type(made: Any) -> str:
    return "" if made is None else json.dumps(made.schema(), sort_keys=True)
