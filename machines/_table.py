"""The transition table: built and validated by ``transitions`` once a class, then read out into plain rows.

Nothing is ever fired through the library: awaiting inside its callbacks swallows cancellation, and a model
costs more than a whole step. Its compiled events are the source of truth; resolving a row is two lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import transitions

from ._plan import Row

Table = Mapping[str, Mapping[str, tuple[Row, ...]]]


def compiled(states: Iterable[str], initial: str, rows: Iterable[Row]) -> Table:
    """The rows by source and event, candidates in their declared order."""
    names = list(states)
    machine = transitions.Machine(
        model=None,
        states=[transitions.State(name) for name in names],
        initial=initial,
        auto_transitions=False,
        send_event=True,
        model_attribute="<state>",  # no model has it; the default would refuse an event named "state"
    )
    guards: dict[int, str | None] = {}
    for row in rows:
        guards[id(row.guard)] = row.guard_name
        machine.add_transition(row.event, row.source, row.dest, conditions=row.guard)
    table: dict[str, dict[str, tuple[Row, ...]]] = {name: {} for name in names}
    for event in machine.events.values():
        for source, candidates in event.transitions.items():
            table[source][event.name] = tuple(_row(event.name, found, guards) for found in candidates)
    return table


def _row(event: str, found: transitions.Transition, guards: Mapping[int, str | None]) -> Row:
    # Only functions were given: the library also takes names of a model's methods.
    guard = cast("Callable[[Any], bool] | None", found.conditions[0].func if found.conditions else None)
    return Row(
        event=event,
        source=found.source,
        dest=str(found.dest),
        scope=found.source,
        guard=guard,
        guard_name=guards[id(guard)],
    )
