"""The checks at class creation. Each raises ``DefinitionError``: class, state or event, and the mend."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from itertools import combinations, pairwise
from typing import Any, TypeAlias

from ._calls import Declared, Effect, Keyed, Read, not_errors
from ._data import DataPlan
from ._errors import DefinitionError
from ._parts import Parts
from ._plan import Row
from ._source import EventCall, annotated, attributes_read, fits, own_calls, takes
from ._states import After, Event, Guard, Incoming, OnFailure, Retry, State, Transition

_ZERO = timedelta(0)
AnyCall: TypeAlias = Declared[Any, ..., Any]


def check_states(parts: Parts) -> str:
    """The states, each for itself; returns the name of the initial one."""
    label = parts.label
    initial = [name for name, state in parts.states.items() if state.initial]
    if not initial:
        raise DefinitionError(f"{label}: no state is the initial one; mark one with State(initial=True)")
    if len(initial) > 1:
        raise DefinitionError(
            f"{label}: {' and '.join(initial)} are both initial; a thread starts in one state"
        )
    for name, state in parts.states.items():
        _check_retry(f"{label}.{name}", state.retry)
        if state.deadline is not None and not _over_zero(state.deadline):
            raise DefinitionError(
                f"{label}.{name}: deadline= takes a timedelta over zero, not {state.deadline!r}"
            )
        if not parts.handlers_of(name) and (state.deadline is not None or state.interruptible):
            raise DefinitionError(
                f"{label}.{name}: deadline= and interruptible= are about a handler, and "
                f"it has none; to end the wait, add an event: {name}.to(...).after(...)"
            )
    return initial[0]


def _over_zero(value: object) -> bool:
    return isinstance(value, timedelta) and value > _ZERO


def _not_negative(value: object) -> bool:
    return isinstance(value, timedelta) and value >= _ZERO


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _factor(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 1


def _check_retry(where: str, retry: object) -> None:
    if not isinstance(retry, Retry):
        raise DefinitionError(f"{where}: retry= takes a Retry, as in Retry(attempts=3), not {retry!r}")
    for name, value, valid, what in (
        ("attempts", retry.attempts, _whole, "a whole number from 1 on"),
        ("delay", retry.delay, _not_negative, "a timedelta that is not negative"),
        ("max_delay", retry.max_delay, _not_negative, "a timedelta that is not negative"),
        ("factor", retry.factor, _factor, "a finite number from 1 on"),
    ):
        if not valid(value):
            raise DefinitionError(f"{where}: Retry({name}=) takes {what}, not {value!r}")


def check_events(parts: Parts) -> None:
    """The events, each for itself: known states, durations, errors, receivers."""
    for name, event in parts.events.items():
        where = f"{parts.label}.{name}"
        for arrow in event.arrows:
            for state in (arrow.source, arrow.dest):
                if parts.state_name(state) is None:
                    raise DefinitionError(f"{where}: {_unknown(parts, state)}")
        if isinstance(event, After) and not _over_zero(event.delay):
            raise DefinitionError(f"{where}: after() takes a timedelta over zero, not {event.delay!r}")
        if isinstance(event, OnFailure):
            for wrong in not_errors(event.errors):
                raise DefinitionError(f"{where}: on_failure() takes exception classes, not {wrong}")
        receivers = [method for method, events in parts.receivers.items() if event in events]
        if len(receivers) > 1:
            raise DefinitionError(f"{where}: {' and '.join(receivers)} both receive it; keep one receiver")


def _unknown(parts: Parts, state: State) -> str:
    if state.name in parts.states:
        return f"its state {state.name!r} is not the one that the class now has under this name"
    if state.name:
        return f"the state {state.name!r} is not one of this machine; transitions lead between its own states"
    return (
        "it leads from or to a state that the class does not hold; give each State() a name in the class body"
    )


def check_rows(parts: Parts, rows: Sequence[Row], initial: str) -> None:
    """The table as a whole: order of candidates, ends, what nothing can reach, move or wake."""
    for name in parts.states:
        leaving = [row for row in rows if row.source == name]
        _check_order(parts, name, leaving)
        if parts.states[name].final:
            _check_final(parts, name, leaving)
        else:
            _check_leaving(parts, name, leaving)
    reached = _reached(initial, rows)
    lost = [name for name in parts.states if name not in reached]
    if lost:
        raise DefinitionError(
            f"{parts.label}: nothing leads from {initial} to {', '.join(lost)}; "
            "add a transition or take it out"
        )


def _check_order(parts: Parts, state: str, leaving: Sequence[Row]) -> None:
    for name in dict.fromkeys(row.event for row in leaving):
        rows = [row for row in leaving if row.event == name]
        for before, after in pairwise(rows):
            if before.guard is None:
                raise DefinitionError(
                    f"{parts.label}.{name}: from {state} it always leads to {before.dest}, "
                    f"never to {after.dest}: put the transition without a guard last"
                )
    events = [event for event in parts.events.values() if any(row.event == event.name for row in leaving)]
    for first, second in combinations(events, 2):
        for sooner, later in ((first, second), (second, first)):
            if _forestalls(sooner, later, sooner is first) and _always(sooner.name, leaving):
                raise DefinitionError(
                    f"{parts.label}.{later.name}: {sooner.name} takes {state} before it in every case; "
                    "put the narrower or earlier one first, or guard the other"
                )


def _always(event: str, leaving: Iterable[Row]) -> bool:
    return any(row.event == event and row.guard is None for row in leaving)


def _forestalls(event: Event, other: Event, declared_first: bool) -> bool:
    if isinstance(event, After) and isinstance(other, After):
        return event.delay < other.delay or (declared_first and event.delay == other.delay)
    if declared_first and isinstance(event, OnFailure) and isinstance(other, OnFailure):
        return not event.errors or bool(
            other.errors and all(issubclass(e, event.errors) for e in other.errors)
        )
    return False


def _check_final(parts: Parts, state: str, leaving: Sequence[Row]) -> None:
    where = f"{parts.label}.{state}"
    if handlers := parts.handlers_of(state):
        raise DefinitionError(f"{where}: a final state runs nothing, but {handlers[0]} is declared for it")
    if leaving:
        raise DefinitionError(
            f"{where}: a final state is left by nothing, but {leaving[0].event} leads out of it"
        )


def _check_leaving(parts: Parts, state: str, leaving: Sequence[Row]) -> None:
    where = f"{parts.label}.{state}"
    kinds = {row.event: parts.events[row.event].kind for row in leaving}
    if not kinds:
        raise DefinitionError(f"{where}: a dead end; give it a transition, or mark it State(final=True)")
    if parts.handlers_of(state):
        if not {"fire", "choice"} & {*kinds.values()}:
            raise DefinitionError(f"{where}: its handler has no event to fire; add one: {state}.to(...)")
        return
    for event, kind in kinds.items():
        if kind in ("fire", "choice", "failure", "budget"):
            raise DefinitionError(
                f"{where}: {event} is for a handler's work, and the state has no handler; give it one "
                f"(@{state}.handler), or let {event} come by .on_signal(...) or .after(...)"
            )


def _reached(initial: str, rows: Sequence[Row]) -> set[str]:
    reached, grew = {initial}, True
    while grew:
        more = {row.dest for row in rows if row.source in reached} - reached
        reached, grew = reached | more, bool(more)
    return reached


def guard_name(parts: Parts, data: DataPlan[Any], event: str, guard: Guard) -> str:
    """What people call a guard: the derived property's name, or the function's."""
    where = f"{parts.label}.{event}"
    if isinstance(guard, property):
        for klass in parts.data_class.__mro__:
            for name, value in vars(klass).items():
                if value is guard:
                    return name
        raise DefinitionError(
            f"{where}: its guard is a property of another class than {parts.data_class.__name__}"
        )
    if not callable(guard) or inspect.iscoroutinefunction(guard) or not takes(guard, 1):
        raise DefinitionError(
            f"{where}: when= takes a derived property ({parts.data_class.__name__}.ready) "
            f"or a pure function of the data, not {guard!r}"
        )
    for name in attributes_read(guard):
        if name not in data.fields and not hasattr(parts.data_class, name):
            raise DefinitionError(
                f"{where}: its guard reads {name!r}, which {parts.data_class.__name__} has not"
            )
    return str(getattr(guard, "__name__", type(guard).__name__))


def check_methods(parts: Parts, data: DataPlan[Any]) -> None:
    """Handlers and receivers: their shape, and what their code shows of the events that they name."""
    for name, states in parts.handlers.items():
        fn = parts.method(name)
        where = f"{parts.label}.{name}"
        if not inspect.iscoroutinefunction(fn) or not takes(fn, 3):
            raise DefinitionError(f"{where}: a handler is `async def {name}(self, data, step)`")
        _check_annotation(where, fn, 1, parts.data)
        _check_fired(parts, where, fn, tuple(state.name for state in states), data)
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


def _check_fired(
    parts: Parts, where: str, fn: Callable[..., Any], states: tuple[str, ...], data: DataPlan[Any]
) -> None:
    for call in _events_named(parts, where, fn):
        event = parts.events[call.event]
        if not isinstance(event, Transition):
            how = (
                "is a choice of the model's; return what step.decide(...) makes of its answer"
                if event.kind == "choice"
                else f"is a {event.kind}, which comes by itself; no handler fires it"
            )
            raise DefinitionError(f"{where}: {call.event} {how}")
        sources = {arrow.source.name for arrow in event.arrows}
        if sources.isdisjoint(states):
            raise DefinitionError(
                f"{where}: it fires {call.event}, which does not leave {' or '.join(states)}; it leaves "
                f"{', '.join(sorted(sources))}"
            )
        _check_updates(f"{where}: self.{call.event}(...)", call.fields, call.positional, data)


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
        raise DefinitionError(f"{where}: updates are given by field name")
    for name in fields:
        if name not in data.fields:
            raise DefinitionError(f"{where}: {name!r} is not a stored field; it has {', '.join(data.fields)}")
        if data.fields[name].kind == "owned":
            raise DefinitionError(f"{where}: {name!r} is owned by the runtime, which alone writes it")


def check_calls(
    label: str, calls: Sequence[Declared[Any, ..., Any]]
) -> Mapping[str, Declared[Any, ..., Any]]:
    """What the machine may call, by each name that the store may hold for it."""
    known: dict[str, AnyCall] = {}
    for declared in calls:
        call = _listed(label, declared)
        call.resolve()
        for name in (call.name, *call.renamed):
            if known.setdefault(name, call) is not call:
                raise DefinitionError(
                    f"{label}: two of its calls are stored as {name!r} ({known[name]!r} "
                    f"and {call!r}); rename one, and name its old name in renamed="
                )
    return known


def _listed(label: str, declared: AnyCall) -> Read[Any, ..., Any] | Effect[Any, ..., Any]:
    if isinstance(declared, Keyed):
        raise DefinitionError(f"{label}: calls= lists {declared.name} with a key; list the effect itself")
    if isinstance(declared, Read) and declared.lookup_of is not None:
        raise DefinitionError(
            f"{label}: {declared.name} is a lookup; list its effect, {declared.lookup_of.name}"
        )
    if isinstance(declared, Read | Effect):
        return declared
    name = getattr(declared, "__name__", None) or repr(declared)
    raise DefinitionError(
        f"{label}: calls= lists {name}, which is not declared; put @read or @effect over it"
    )


def check_identity(label: str, name: object, version: object) -> None:
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"{label}: name= takes the name under which the store knows it, not {name!r}")
    if not _whole(version):
        raise DefinitionError(f"{label}: version= takes a whole number from 1 on, not {version!r}")
