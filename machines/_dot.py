"""A machine drawn for Graphviz."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._drawing import ANYWHERE, Drawing, Edge, Path, drawing, short
from ._plan import Definition

if TYPE_CHECKING:
    from ._machine import Machine

_START = "[*]"  # no state has these names
_ANYWHERE = "(anywhere)"
_VISITED = 'fillcolor="#cfe8cf", color="#2e7d32"'
_TAKEN = 'color="#2e7d32", fontcolor="#2e7d32", penwidth=2'


def dot(machine: type[Machine[Any, Any]] | Definition, /, *, path: Path = ()) -> str:
    """The machine as text in Graphviz's DOT language, for ``dot -Tsvg``.

    It shows what ``diagram`` shows, composite states as boxes around their children, and marks ``path`` in
    the same way.
    """
    plan = drawing(machine, path)
    lines = [
        f"digraph {_quoted(plan.plan.name)} {{",
        "compound=true;",
        'node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica"];',
        'edge [fontname="Helvetica", fontsize=10];',
        f'{_quoted(_START)} [shape=point, width=0.15, fillcolor=black, label=""];',
        *_states(plan, "", path[-1][2] if path else None),
        f"{_quoted(_START)} -> {_quoted(plan.plan.initial)};",
    ]
    if any(edge.source == ANYWHERE for edge in plan.edges):
        lines.append(f'{_quoted(_ANYWHERE)} [label="anywhere", style="rounded,dashed"];')
    lines += [_edge(plan, edge) for edge in plan.edges]
    return "\n    ".join(lines) + "\n}\n"


def _states(plan: Drawing, composite: str, last: str | None) -> Iterator[str]:
    for name in plan.inside(composite):
        label = _quoted(short(name, plan.plan))
        if name in plan.plan.composites:
            yield f"subgraph {_quoted(_cluster(name))} {{"
            yield f'    label={label}; style=rounded; fontname="Helvetica";'
            yield from (f"    {line}" for line in _states(plan, name, last))
            yield "}"
            continue
        known = plan.plan.states.get(name)
        marks = [f"label={label}"]
        marks += ["peripheries=2"] if known is not None and known.final else []
        marks += [_VISITED] if name in plan.visited else []
        marks += ["penwidth=3"] if name == last else []
        yield f"{_quoted(name)} [{', '.join(marks)}];"


def _edge(plan: Drawing, edge: Edge) -> str:
    source, marks = edge.source or _ANYWHERE, [f"label={_quoted(edge.label)}"]
    if source in plan.plan.composites:
        # Graphviz draws edges between nodes alone, and cuts this one off at the box.
        marks.append(f"ltail={_quoted(_cluster(source))}")
        source = plan.plan.composites[source]
    marks += [_TAKEN] if edge.steps else []
    return f"{_quoted(source)} -> {_quoted(edge.dest)} [{', '.join(marks)}];"


def _cluster(composite: str) -> str:
    return f"cluster_{composite}"


def _quoted(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text)
    escaped = shown.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
