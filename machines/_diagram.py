"""A machine drawn as a Mermaid state diagram."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ._plan import Definition, EventPlan, Row, StatePlan, definition

if TYPE_CHECKING:
    from ._machine import Machine

_RESERVED = frozenset(("state", "note", "end", "direction", "class", "classDef", "style", "default", "click"))


def diagram(machine: type[Machine[Any, Any]], /) -> str:
    """The machine as Mermaid ``stateDiagram-v2`` text: every state and row, labelled with event and guard."""
    plan = definition(machine)
    ids = _ids(plan)
    lines = ["stateDiagram-v2"]
    lines += [f'state "{name}" as {ids[name]}' for name in plan.states if ids[name] != name]
    lines.append(f"[*] --> {ids[plan.initial]}")
    for state in plan.states.values():
        lines += [
            f"{ids[row.source]} --> {ids[row.dest]}: {_label(plan, state, row)}" for row in _rows(state)
        ]
        if state.final:
            lines.append(f"{ids[state.name]} --> [*]")
    return "\n    ".join(lines) + "\n"


def _rows(state: StatePlan) -> Iterator[Row]:
    return (row for rows in state.rows.values() for row in rows)


def _ids(plan: Definition) -> dict[str, str]:
    ids: dict[str, str] = {}
    for name in plan.states:
        found = name
        while found in _RESERVED or (found != name and found in plan.states):
            found += "_"
        ids[name] = found
    return ids


def _label(plan: Definition, state: StatePlan, row: Row) -> str:
    guard = "" if row.guard_name is None else f" [{row.guard_name.strip('<>')}]"
    return f"{row.event}{_why(plan.events[row.event], state)}{guard}"


def _why(event: EventPlan, state: StatePlan) -> str:
    match event.kind:
        case "fire":
            return ""
        case "choice":
            return " (choice)"
        case "cancel":
            return " (on cancel)"
        case "budget":
            return " (on budget)"
        case "signal":
            kind = None if event.payload is None else event.payload.type
            payload = "" if kind is None else f" {getattr(kind, '__name__', kind)}"
            return f" (signal{payload})"
        case "timeout":
            after = next(timeout.after for timeout in state.timeouts if timeout.event == event.name)
            return f" (after {_duration(after)})"
        case "failure":
            errors = next(failure.errors for failure in state.failures if failure.event == event.name)
            return f" (on {' or '.join(error.__name__ for error in errors) or 'any error'})"


def _duration(delay: timedelta) -> str:
    # No colons: Mermaid ends a label's head at the first one.
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    rest, parts = int(delay.total_seconds()), list[str]()
    for unit, seconds in units:
        count, rest = divmod(rest, seconds)
        parts += [f"{count} {unit}"] if count else []
    if delay.microseconds:
        parts.append(f"{delay.microseconds / 1000:g} ms")
    return " ".join(parts)
