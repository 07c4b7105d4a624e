"""A machine drawn as a Mermaid state diagram."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._drawing import ANYWHERE, Drawing, Path, drawing, short
from ._plan import Definition

if TYPE_CHECKING:
    from ._machine import Machine

# Mermaid reads most of these in any case, wherever a line begins; the last ones are its own states.
_RESERVED = frozenset(
    (
        "state",
        "note",
        "end",
        "direction",
        "class",
        "classdef",
        "style",
        "default",
        "click",
        "scale",
        "as",
        "hide",
        "acctitle",
        "accdescr",
        "root",
        "root_start",
        "root_end",
    )
)
_PLAIN = frozenset(" _.,()[]/'+-*=&|!?")


def diagram(machine: type[Machine[Any, Any]] | Definition, /, *, path: Path = ()) -> str:
    """The machine as Mermaid ``stateDiagram-v2`` text: every state and row, labelled with event and guard.

    A row that a composite state or ``anywhere`` declares is drawn once, from there. ``path``: the rows that a
    thread took, each as (source, event, dest); the states on it are coloured, and each row tells at which
    positions of the path it was taken. What of it the machine no longer has is drawn too, and says so.
    """
    plan = drawing(machine, path)
    ids = _ids(plan)
    lines = ["stateDiagram-v2", *_states(plan, ids, "")]
    lines.append(f"[*] --> {ids[_outermost(plan.plan.initial)]}")
    if any(edge.source == ANYWHERE for edge in plan.edges):
        lines.append(f'state "anywhere" as {ids[ANYWHERE]}')
    lines += [f"{ids[edge.source]} --> {ids[edge.dest]}: {_escaped(edge.label)}" for edge in plan.edges]
    lines += [f"{ids[state.name]} --> [*]" for state in plan.plan.states.values() if state.final]
    if plan.visited:
        lines.append("classDef visited fill:#cfe8cf,stroke:#2e7d32,color:#000")
        lines.append("classDef last stroke-width:4px")
        lines += [f"class {ids[name]} visited" for name in plan.visited]
        lines.append(f"class {ids[path[-1][2]]} last")
    return "\n    ".join(lines) + "\n"


def _states(plan: Drawing, ids: dict[str, str], composite: str) -> Iterator[str]:
    for name in plan.inside(composite):
        label = _escaped(short(name, plan.plan))
        if name in plan.plan.composites:
            yield f'state "{label}" as {ids[name]} {{'
            yield f"    [*] --> {ids[plan.entered(name)]}"
            yield from (f"    {line}" for line in _states(plan, ids, name))
            yield "}"
        elif label != ids[name] or composite:
            yield f'state "{label}" as {ids[name]}'


def _outermost(state: str) -> str:
    return state.partition(".")[0]


def _ids(plan: Drawing) -> dict[str, str]:
    plain = {name: _identifier(name) for name in plan.names} | {ANYWHERE: "anywhere"}
    ids: dict[str, str] = {}
    for name, wanted in plain.items():
        found = wanted
        while found.casefold() in _RESERVED or _taken(found, wanted, plain, ids):
            found += "_"
        ids[name] = found
    return ids


def _taken(found: str, wanted: str, plain: dict[str, str], ids: dict[str, str]) -> bool:
    return found in ids.values() or (found != wanted and found in plain.values())


def _identifier(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name)


def _escaped(text: str) -> str:
    """The text as Mermaid shows it whatever is in it: a colon, a semicolon or a line's end would end it."""
    return "".join(
        char if char.isalnum() or char in _PLAIN else f"#{ord(char)};" if char.isprintable() else " "
        for char in text
    )
