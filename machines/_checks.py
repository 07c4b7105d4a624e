"""The checks at class creation of states, events and calls, each for itself. Each raises
``DefinitionError``: class, state or event, and the mend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from ._calls import Declared, Effect, Keyed, Read, not_errors
from ._choices import NAME
from ._codec import Codec
from ._errors import DefinitionError
from ._parts import Parts
from ._states import After, OnFailure, Retry, State
from ._versions import VersionMarks, check_marks

_ZERO = timedelta(0)
_LONGEST = timedelta(days=365_000)
"""A thousand years: what is due then can still be stored."""
AnyCall: TypeAlias = Declared[Any, ..., Any]


def check_states(parts: Parts) -> str:
    """The states, each for itself and in its parent; returns the name of the initial one."""
    label = parts.label
    for name, state in parts.states.items():
        _check_parent(parts, f"{label}.{name}", state)
    for name, state in parts.states.items():
        if children := parts.children_of(state):
            _check_composite(parts, state, children)
        else:
            _check_leaf(parts, f"{label}.{name}", state)
    initial = [state.name for state in parts.children_of(None) if state.initial]
    if not initial:
        raise DefinitionError(f"{label}: no state is the initial one; mark one with State(initial=True)")
    if len(initial) > 1:
        raise DefinitionError(
            f"{label}: {' and '.join(initial)} are both initial; a thread starts in one state: mark only that"
        )
    return initial[0]


def _check_parent(parts: Parts, where: str, state: State) -> None:
    parent = state.parent
    if parent is None:
        return
    if parts.state_name(parent) is None:
        raise DefinitionError(
            f"{where}: its parent {parent.name or 'State()'!r} is not a state of this machine; declare it in "
            "the class body (or in a base's) under a name of its own"
        )
    if state.final:
        raise DefinitionError(
            f"{where}: a final state ends the thread and stands in no other; take parent= away"
        )


def _check_composite(parts: Parts, state: State, children: Sequence[State]) -> None:
    where = f"{parts.label}.{state.name}"
    names = ", ".join(child.name for child in children)
    for given, what in (
        (state.final, "final="),
        (state.retry is not None, "retry="),
        (state.deadline is not None, "deadline="),
        (state.interruptible, "interruptible="),
    ):
        if given:
            raise DefinitionError(
                f"{where}: it holds other states ({names}), and a thread is never in it itself; "
                + ("take final= away" if what == "final=" else f"say {what} of those that need it")
            )
    if handlers := parts.handlers_of(state):
        raise DefinitionError(
            f"{where}: {handlers[0]} is declared for it, but a thread is never in it itself; declare the "
            f"handler for a state that it holds: {names}"
        )
    initial = [child.name for child in children if child.initial]
    if not initial:
        raise DefinitionError(
            f"{where}: none of the states in it ({names}) is its initial one; mark the one that a thread "
            f"enters first: State(parent={state.name}, initial=True)"
        )
    if len(initial) > 1:
        raise DefinitionError(
            f"{where}: {' and '.join(initial)} are both initial in it; a thread enters one of them: mark "
            "only that"
        )


def _check_leaf(parts: Parts, where: str, state: State) -> None:
    if state.retry is not None:
        _check_retry(where, state.retry)
    if state.deadline is not None and not _over_zero(state.deadline):
        raise DefinitionError(
            f"{where}: deadline= takes a timedelta over zero and up to a thousand years, "
            f"not {state.deadline!r}"
        )
    if not parts.handlers_of(state) and (state.deadline is not None or state.interruptible):
        raise DefinitionError(
            f"{where}: deadline= and interruptible= are about a handler, and "
            f"it has none; to end the wait, add an event: {state.name}.to(...).after(...)"
        )


def _over_zero(value: object) -> bool:
    return isinstance(value, timedelta) and _ZERO < value <= _LONGEST


def _judged_later(value: object) -> bool:
    return isinstance(value, property) or callable(value)


def _not_negative(value: object) -> bool:
    return isinstance(value, timedelta) and _ZERO <= value <= _LONGEST


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _factor(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 1


def _check_retry(where: str, retry: object) -> None:
    if not isinstance(retry, Retry):
        raise DefinitionError(f"{where}: retry= takes a Retry, as in Retry(attempts=3), not {retry!r}")
    for name, value, valid, what in (
        ("attempts", retry.attempts, _whole, "a whole number from 1 on"),
        ("delay", retry.delay, _not_negative, "a timedelta from zero to a thousand years"),
        ("max_delay", retry.max_delay, _not_negative, "a timedelta from zero to a thousand years"),
        ("factor", retry.factor, _factor, "a finite number from 1 on"),
    ):
        if not valid(value):
            raise DefinitionError(f"{where}: Retry({name}=) takes {what}, not {value!r}")


def check_events(parts: Parts) -> None:
    """The events, each for itself: known states, durations, errors, receivers."""
    for name, event in parts.events.items():
        where = f"{parts.label}.{name}"
        for arrow in event.arrows:
            if not isinstance(arrow.dest, State):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise DefinitionError(f"{where}: to(...) takes a State of the machine, not {arrow.dest!r}")
            for state in (arrow.source, arrow.dest):
                if state is not None and parts.state_name(state) is None:
                    raise DefinitionError(f"{where}: {_unknown(parts, state)}")
        if isinstance(event, After) and not (_over_zero(event.delay) or _judged_later(event.delay)):
            raise DefinitionError(
                f"{where}: after() takes a timedelta over zero and up to a thousand years, as in "
                "timedelta(days=1), or what gives one: a derived property, or a pure function of the data; "
                f"not {event.delay!r}"
            )
        if isinstance(event, OnFailure):
            for wrong in not_errors(event.errors):
                raise DefinitionError(f"{where}: on_failure() takes exception classes, not {wrong}")
        receivers = [method for method, events in parts.receivers.items() if event in events]
        if len(receivers) > 1:
            raise DefinitionError(f"{where}: {' and '.join(receivers)} both receive it; keep one receiver")


def check_budget(parts: Parts, budget: str | None) -> None:
    """Limits and the events that they bring come together."""
    events = [name for name, event in parts.events.items() if event.kind == "budget"]
    # A base is shared with machines that only wait: nothing in them uses anything.
    works = any(map(parts.handlers_of, parts.leaves.values()))
    idle = not works and not {*events} & {*vars(parts.machine)}
    if events and budget is None and not idle:
        raise DefinitionError(
            f"{parts.label}.{events[0]}: no limit brings it: give {parts.data_class.__name__} a field "
            "budget: Budget = Budget(steps=...)"
        )
    if budget is not None and not events:
        raise DefinitionError(
            f"{parts.label}: nothing happens when a limit of {parts.data_class.__name__}.{budget} is "
            "reached: add an event, as in used_up = anywhere.to(...).on_budget()"
        )


def check_choice(where: str, payload: Codec[Any] | None) -> None:
    """A choice is offered to models as a tool: in a name and with arguments that their APIs take."""
    name = where.rpartition(".")[2]
    if not NAME.fullmatch(name):
        raise DefinitionError(
            f"{where}: a model knows the event by its name, and model APIs take no more than 64 ASCII "
            "letters, digits and underscores; rename it"
        )
    schema = {} if payload is None else payload.schema()
    for part in schema.get("$ref", "#").split("/")[1:]:
        schema = schema[part]
    if payload is not None and schema.get("type") != "object":
        shown = getattr(payload.type, "__name__", payload.type)
        raise DefinitionError(
            f"{where}: a model gives arguments by name, so that on_choice() takes a record, not {shown}; "
            "put it into a field of one"
        )


def _unknown(parts: Parts, state: State) -> str:
    if state.name in parts.states:
        return f"its state {state.name!r} is not the one that the class now has under this name; rename one"
    if state.name:
        return f"the state {state.name!r} is not one of this machine; transitions lead between its own states"
    return (
        "it leads from or to a state that the class does not hold; give each State() a name in the class body"
    )


def check_listed(label: str, calls: object) -> None:
    """``calls=`` is a list, before anything is looked for in it."""
    if not isinstance(calls, list | tuple):
        raise DefinitionError(f"{label}: calls= takes a list of declared reads and effects, not {calls!r}")


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


def check_identity(label: str, name: object, marks: VersionMarks) -> None:
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"{label}: name= takes the name under which the store knows it, not {name!r}")
    check_marks(label, marks)


def check_abstract(
    label: str, *, name: str | None, marks: VersionMarks, calls: Sequence[AnyCall], at_once: int | None
) -> None:
    """A base that does not run itself: the store never sees it."""
    if name is not None or marks != VersionMarks() or at_once is not None:
        raise DefinitionError(
            f"{label}: it is abstract, and the store never sees it; give name=, version= and at_once= to the "
            "machines that are made of it, and what is said of older versions with them"
        )
    check_calls(label, calls)
