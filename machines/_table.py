"""The transition table: built and validated by ``transitions`` once a class, then read out into plain rows.

Nothing is ever fired through the library: awaiting inside its callbacks swallows cancellation, and a model
costs more than a whole step. Its compiled events are the source of truth for which candidates a state has,
its own and those of the states around it; resolving a row is two lookups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from transitions.extensions.nesting import HierarchicalMachine, NestedState

from ._parts import Parts
from ._plan import Row
from ._states import State

Rows = Mapping[str, tuple[Row, ...]]


@attrs.frozen(kw_only=True)
class Table:
    """``rows``: by leaf and event, the candidates in order. ``entered``: by state, the leaf that entering it
    leads to."""

    rows: Mapping[str, Rows]
    entered: Mapping[str, str]


class _Dotted(NestedState):
    separator = "."


class _Machine(HierarchicalMachine):
    state_cls = _Dotted


def compiled(parts: Parts, initial: str, arrows: Sequence[Row]) -> Table:
    """The table of these declared rows, each given with its scope as its source ("" for anywhere)."""
    machine = _Machine(
        model=None,
        states=_below(parts, None),
        initial=initial,
        auto_transitions=False,
        send_event=True,
        model_attribute="<state>",  # no model has it; the default would refuse an event named "state"
    )
    outermost = [state.name for state in parts.children_of(None) if not state.final]
    declared: dict[int, Row] = {}
    for row in sorted(arrows, key=lambda row: not row.scope):  # anywhere's stand behind a state's own
        for source in [row.scope] if row.scope else outermost:
            machine.add_transition(row.event, source, row.dest, conditions=row.guard)
            declared[id(machine.events[row.event].transitions[source][-1])] = row
    entered = {state.dotted: _entered(machine, state.dotted) for state in parts.states.values()}
    events = list(dict.fromkeys(row.event for row in arrows))
    return Table(
        rows={
            leaf: {
                event: tuple(attrs.evolve(row, source=leaf, dest=entered[row.dest]) for row in found)
                for event in events
                if (found := list(_candidates(machine, leaf, event, declared)))
            }
            for leaf in parts.leaves
        },
        entered=entered,
    )


def _below(parts: Parts, parent: State | None) -> list[dict[str, Any]]:
    """The states in this one, in the shape that the library takes."""
    return [
        {
            "name": state.name,
            "children": _below(parts, state),
            "initial": next((child.name for child in parts.children_of(state) if child.initial), None),
        }
        for state in parts.children_of(parent)
    ]


def _entered(machine: _Machine, state: str) -> str:
    while child := machine.get_state(state).initial:
        state = f"{state}.{child}"
    return state


def _candidates(machine: _Machine, leaf: str, event: str, declared: Mapping[int, Row]) -> Iterator[Row]:
    for state in _outwards(leaf):
        for found in machine.events[event].transitions.get(state, ()):
            yield declared[id(found)]


def _outwards(leaf: str) -> Iterable[str]:
    """The leaf and the states around it, the innermost first."""
    names = leaf.split(".")
    return (".".join(names[:depth]) for depth in range(len(names), 0, -1))
