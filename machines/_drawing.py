"""What the drawings of a machine show: its rows as edges, and the way that a thread took through them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from ._plan import Definition, EventPlan, Row, StatePlan, definition, is_in

if TYPE_CHECKING:
    from ._machine import Machine

Path: TypeAlias = Sequence[tuple[str, str, str]]
ANYWHERE = ""
_NAMED_STEPS = 4


@attrs.frozen(kw_only=True)
class Edge:
    """A drawn row. ``source`` is the state that declares it, or ``ANYWHERE``; ``steps`` are the positions in
    the path (from 1) that took it."""

    source: str
    dest: str
    text: str
    steps: tuple[int, ...]

    @property
    def label(self) -> str:
        """What stands on the edge: when it was taken, and what moves it."""
        if not self.steps:
            return self.text
        named = ", ".join(str(step) for step in self.steps[:_NAMED_STEPS])
        more = len(self.steps) - _NAMED_STEPS
        return f"({named}{f' and {more} more' if more > 0 else ''}) {self.text}"


@attrs.frozen(kw_only=True)
class Drawing:
    """A machine and a path through it, ready to be drawn. ``gone``: states of the path that the machine does
    not have (any more)."""

    plan: Definition
    edges: tuple[Edge, ...]
    visited: tuple[str, ...]
    gone: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every state that is drawn, each composite before what is in it."""
        return (*self.plan.composites, *self.plan.states, *self.gone)

    def inside(self, composite: str) -> Iterator[str]:
        """The states right inside this composite; those in none for ``""``."""
        return (name for name in self.names if around(name, self.plan) == composite)

    def entered(self, composite: str) -> str:
        """The state right inside the composite that entering it enters."""
        leaf = self.plan.composites[composite]
        return next(name for name in self.inside(composite) if is_in(leaf, name))


def drawing(machine: type[Machine[Any, Any]] | Definition, path: Path) -> Drawing:
    """The machine with the path of (source, event, dest) rows marked in it."""
    plan = machine if isinstance(machine, Definition) else definition(machine)
    visited = tuple(dict.fromkeys(name for source, _, dest in path for name in (source, dest)))
    return Drawing(
        plan=plan,
        edges=tuple(_edges(plan, path)),
        visited=visited,
        gone=tuple(name for name in visited if name not in plan.states),
    )


def around(state: str, plan: Definition) -> str:
    """The composite that a state stands in, or ""."""
    parent = state.rpartition(".")[0]
    return parent if parent in plan.composites else ""


def short(state: str, plan: Definition) -> str:
    """A state's name inside the composite that is drawn around it."""
    return state.removeprefix(f"{around(state, plan)}.")


def _edges(plan: Definition, path: Path) -> Iterator[Edge]:
    taken: dict[tuple[str, str, str], list[int]] = {}
    for step, passed in enumerate(path, 1):
        taken.setdefault(passed, []).append(step)
    drawn: dict[tuple[str, str, str], list[int]] = {}
    for state in plan.states.values():
        for row in _rows(state):
            # An edge from a composite to what is in it cannot be drawn: it starts at each of the states.
            source = row.source if row.scope and is_in(row.dest, row.scope) else row.scope
            steps = drawn.setdefault((source, row.dest, _text(plan, state, row)), [])
            steps += taken.get((row.source, row.event, row.dest), ())
    known = {(row.source, row.event, row.dest) for state in plan.states.values() for row in _rows(state)}
    for passed, steps in taken.items():
        if passed not in known:
            drawn[passed[0], passed[2], f"{passed[1]} (not in this version)"] = steps
    for (source, dest, text), steps in drawn.items():
        yield Edge(source=source, dest=dest, text=text, steps=tuple(sorted(set(steps))))


def _rows(state: StatePlan) -> Iterable[Row]:
    return (row for rows in state.rows.values() for row in rows)


def _text(plan: Definition, state: StatePlan, row: Row) -> str:
    guard = "" if row.guard_name is None else f" [{row.guard_name.strip('<>')}]"
    return f"{row.event}{_why(plan.events[row.event], state)}{guard}"


def _why(event: EventPlan, state: StatePlan) -> str:
    match event.kind:
        case "fire":
            return ""
        case "choice" | "signal":
            kind = None if event.payload is None else event.payload.type
            payload = "" if kind is None else f" {getattr(kind, '__name__', kind)}"
            return f" ({event.kind}{payload})"
        case "cancel":
            return " (on cancel)"
        case "budget":
            return " (on a limit)"
        case "timeout":
            timer = next(timeout for timeout in state.timeouts if timeout.event == event.name)
            return f" ({timer.kind} {timer.label.strip('<>')})"
        case "failure":
            errors = next(failure.errors for failure in state.failures if failure.event == event.name)
            return f" (on {' or '.join(error.__name__ for error in errors) or 'any error'})"
