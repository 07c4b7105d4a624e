"""What a step offers a model, and what it makes of the answer: an event, or a refusal to send back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.machines import (
    Accept,
    BadUpdate,
    Choice,
    Fire,
    NotStorable,
    Refusal,
    Row,
    ToolCall,
    choice_of,
    payload_of,
    refusal,
)

from ._context import Visit
from ._journal import describe_error, said_of
from ._progress import Progress
from ._transition import merged_with


def choices(visit: Visit) -> Sequence[Choice]:
    """The events that leave the state by a model's choice."""
    return tuple(choice_of(visit.definition.events[name]) for name in visit.state.choices)


def decide(visit: Visit, progress: Progress, call: ToolCall) -> Fire | Refusal:
    """What a model's tool call comes to. Nothing is written, and whatever the model wrote, nothing raises."""
    allowed = visit.state.choices
    if call.name not in allowed:
        there = f"choose one of {', '.join(allowed)}" if allowed else "there is none to choose here"
        return refusal(call, f"{call.name[:60]!r} is not on offer in state {visit.state.name!r}: {there}")
    payload = payload_of(visit.definition.events[call.name], call)
    if isinstance(payload, Refusal):
        return payload
    updates = _received(visit, progress, call, payload)
    if isinstance(updates, Refusal):
        return updates
    return _judged(visit, progress, call, updates)


def _received(
    visit: Visit, progress: Progress, call: ToolCall, payload: Any
) -> Mapping[str, object] | Refusal:
    receiver = visit.definition.events[call.name].receiver
    if receiver is None:
        return {}
    shown = visit.definition.data.shown(progress.data)
    try:
        accept: Any = receiver(shown, payload)
    except Exception as error:  # over what a model wrote: it may write something else
        return refusal(call, f"{call.name} cannot take this: {said_of(describe_error(error))}")
    if not isinstance(accept, Accept) or accept.event != call.name:
        raise TypeError(f"{visit.where}: the receiver of {call.name!r} must return self.{call.name}(...)")
    visit.definition.data.check_unchanged(progress.data, shown, f"the receiver of {call.name!r}")
    return accept.updates


def _judged(
    visit: Visit, progress: Progress, call: ToolCall, updates: Mapping[str, object]
) -> Fire | Refusal:
    try:
        data = merged_with(visit, progress, updates).data
        rows, shown = visit.state.rows[call.name], visit.definition.data.shown
        taken = any(row.guard is None or row.guard(shown(data)) for row in rows)
    except (BadUpdate, NotStorable) as error:
        return refusal(call, f"{call.name} does not fit: {error}")
    except Exception as error:  # a guard, over what a model wrote
        return refusal(call, f"{call.name} cannot be judged: {said_of(describe_error(error))}")
    if taken:
        return Fire(event=call.name, updates=updates)
    wants = "; or: ".join(_wanted(visit, row) for row in rows)
    return refusal(call, f"{call.name} is not allowed now. It is where: {wants}")


def _wanted(visit: Visit, row: Row) -> str:
    """What a guard asks for, in its docstring's words."""
    derived = getattr(visit.definition.data.cls, row.guard_name or "", None)
    doc = inspect.getdoc(derived) if isinstance(derived, property) else inspect.getdoc(row.guard)
    return (doc or row.guard_name or "its guard is true").rstrip(".")
