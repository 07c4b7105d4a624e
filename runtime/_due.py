"""When the timeouts of a state are due."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from attrs import Factory, frozen

from perdure.machines import Definition, Row, StatePlan, TimeoutPlan
from perdure.stores import Micros

from ._context import FOREVER, micros, micros_at
from ._journal import describe_error

LAST = micros_at(FOREVER)


class BadTime(Exception):
    """What a timeout's delay or moment is judged by raised, or gave what is no time."""


@frozen(kw_only=True)
class Clocks:
    """The clocks of one visit."""

    due: Mapping[str, Micros] = Factory(dict[str, Micros])
    """When each timeout of the state is due."""
    fired: Mapping[str, Micros] = Factory(dict[str, Micros])
    """The moment with which each event that comes at one came last: that one does not bring it again."""


NONE = Clocks()
"""Those of a visit that waits for no moment."""


def first_clocks(definition: Definition, data: Any, at: Micros) -> Clocks:
    """Those of a thread that starts with this data; ``BadTime``."""
    return _armed(definition, definition.states[definition.initial], data, at, {}, {})


def clocks_after(
    definition: Definition, source: StatePlan, row: Row, data: Any, before: Clocks, at: Micros
) -> Clocks:
    """Those of the state that a transition leads to: where it neither leaves the state that declares one, nor
    was declared on it, a delay goes on from ``before``; the others begin at ``at``. ``BadTime``."""
    if not source.timeouts and not definition.states[row.dest].timeouts and not before.fired:
        return NONE
    going = {
        (plan.event, plan.scope): before.due[plan.event]
        for plan in source.timeouts
        if plan.kind == "after" and plan.event in before.due and _below(row.scope, plan.scope)
    }
    fired = before.fired
    for plan in source.timeouts:
        if plan.kind == "at" and plan.event == row.event:
            fired = {**fired, row.event: before.due[row.event]}
    return _armed(definition, definition.states[row.dest], data, at, going, fired)


def _armed(
    definition: Definition,
    state: StatePlan,
    data: Any,
    at: Micros,
    going: Mapping[tuple[str, str], Micros],
    fired: Mapping[str, Micros],
) -> Clocks:
    due: dict[str, Micros] = {}
    for plan in state.timeouts:
        when = going.get((plan.event, plan.scope))
        if when is None:
            when = _due(definition, plan, data, at)
        if when is not None and (plan.kind == "after" or fired.get(plan.event) != when):
            due[plan.event] = when
    return Clocks(due=due, fired=fired)


def _below(scope: str, outer: str) -> bool:
    """Whether a state stands in another one; every state stands in "", which is anywhere."""
    return scope.startswith(f"{outer}.") if outer else bool(scope)


def _due(definition: Definition, plan: TimeoutPlan, data: Any, at: Micros) -> Micros | None:
    given = plan.given if isinstance(plan.given, timedelta) else _judged(definition, plan, data)
    if given is None:
        return None
    when, problem = _time(plan, given, at)
    if not problem and when > LAST:
        problem = "past the year 9999"
    if problem:
        raise BadTime(f"{_said(plan)} gave {given!r}: {problem}")
    return when


def _time(plan: TimeoutPlan, given: Any, at: Micros) -> tuple[Micros, str]:
    if plan.kind == "after":
        if not isinstance(given, timedelta):
            return 0, "it takes a timedelta, or None for no timer"
        return at + micros(given), "a delay cannot be negative" if given < timedelta(0) else ""
    if not isinstance(given, datetime):
        return 0, "it takes an aware datetime, or None for no timer"
    if given.utcoffset() is None:
        return 0, "it has no zone, and could be any of 24 hours: make it an aware one"
    return micros_at(given), ""


def _judged(definition: Definition, plan: TimeoutPlan, data: Any) -> Any:
    assert not isinstance(plan.given, timedelta)
    try:
        return plan.given(definition.data.shown(data))
    except BaseException as error:  # its own: nothing is awaited here
        said = describe_error(error)
        raise BadTime(f"{_said(plan)} raised {said['type']}: {said['message']}") from error


def _said(plan: TimeoutPlan) -> str:
    return f"timeout {plan.event!r}: {plan.kind}({plan.label})"
