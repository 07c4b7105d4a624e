"""Random nested machines: a leaf's rows lead where the library's own event processing leads."""

from collections.abc import Mapping
from types import new_class
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from transitions.extensions.nesting import HierarchicalMachine, NestedState

from perdure.machines import DefinitionError, Machine, State, anywhere, definition, record

EVENTS = ("one", "two", "three")
GUARDS = ("a", "b", "c")


@record
class Truth:
    a: bool = False
    b: bool = False
    c: bool = False


def guard(name: str) -> Any:
    def holds(truth: Truth) -> bool:
        found: bool = getattr(truth, name)
        return found

    return holds


HOLDS = {name: guard(name) for name in GUARDS}


@attrs.frozen
class Arrow:
    event: str
    source: int  # a state's number, or -1: anywhere
    dest: int
    guard: str | None


@attrs.frozen
class Shape:
    """A tree of states by number, each with its parent's (-1: none); the last one is final."""

    parents: tuple[int, ...]
    arrows: tuple[Arrow, ...]

    @property
    def final(self) -> int:
        return len(self.parents)

    def first_child(self, state: int) -> int | None:
        return next((child for child, parent in enumerate(self.parents) if parent == state), None)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    size = draw(st.integers(2, 8))
    parents = tuple(draw(st.integers(-1, state - 1)) for state in range(size))
    places = st.integers(0, size)
    arrows: list[Arrow] = []
    for event in EVENTS:
        sources = draw(st.lists(st.integers(-1, size - 1), max_size=4, unique=True))
        for source in sources:
            guards = draw(st.lists(st.sampled_from(GUARDS), max_size=2, unique=True))
            ends = [None] if not guards or draw(st.booleans()) else []
            arrows += [Arrow(event, source, draw(places), each) for each in [*guards, *ends]]
    return Shape(parents, tuple(arrows))


def written(shape: Shape) -> type[Machine[Truth]]:
    """The machine as a user writes it. Every state can be reached and left: each has a signal of its own."""
    states: dict[str, State] = {}
    for n, parent in enumerate(shape.parents):
        initial = n == shape.first_child(parent)
        states[f"s{n}"] = State(parent=states.get(f"s{parent}"), initial=initial)
    states[f"s{shape.final}"] = State(final=True)
    body: dict[str, Any] = dict(states)
    for n in range(shape.final + 1):
        body[f"reach{n}"] = anywhere.to(states[f"s{n}"]).on_signal()
    for event in EVENTS:
        rows = None
        for arrow in shape.arrows:
            if arrow.event == event:
                source = anywhere if arrow.source < 0 else states[f"s{arrow.source}"]
                when = None if arrow.guard is None else HOLDS[arrow.guard]
                row = source.to(states[f"s{arrow.dest}"], when=when)
                rows = row if rows is None else rows | row
        if rows is not None:
            body[event] = rows.on_signal()
    return new_class("Made", (Machine[Truth],), exec_body=lambda namespace: namespace.update(body))


class Dotted(NestedState):
    separator = "."


class Library(HierarchicalMachine):
    state_cls = Dotted


class Model:
    """Thrown away after one event."""

    state: str
    truth: Truth


def library(shape: Shape) -> Library:
    """The same in the library's own terms: all that is not final stands in one root, which is anywhere."""

    def below(parent: int) -> list[dict[str, Any]]:
        return [
            {"name": f"s{n}", "children": below(n), "initial": initial(n)}
            for n, each in enumerate(shape.parents)
            if each == parent
        ]

    def initial(parent: int) -> str | None:
        child = shape.first_child(parent)
        return None if child is None else f"s{child}"

    root = {"name": "root", "children": below(-1), "initial": initial(-1)}
    made = Library(
        model=None,
        states=[root, f"s{shape.final}"],
        initial="root",
        auto_transitions=False,
        send_event=True,
        ignore_invalid_triggers=True,
    )
    for arrow in shape.arrows:
        condition = None if arrow.guard is None else asked(arrow.guard)
        made.add_transition(arrow.event, place(shape, arrow.source), place(shape, arrow.dest), condition)
    return made


def asked(name: str) -> Any:
    return lambda event: getattr(event.model.truth, name)


def place(shape: Shape, state: int) -> str:
    if state == shape.final:
        return f"s{state}"
    names: list[str] = []
    while state >= 0:
        names.insert(0, f"s{state}")
        state = shape.parents[state]
    return ".".join(["root", *names])


def placed(made: Library, state: str, truth: Truth) -> Model:
    model = Model()
    model.truth = truth
    made.add_model(model, initial=state)
    return model


def moved(made: Library, leaf: str, event: str, truth: Truth) -> str | None:
    """Where the library takes a model from this leaf; None where it stays, for want of a row."""
    model = placed(made, f"root.{leaf}", truth)
    taken = made.trigger_event(model, event)
    made.remove_model(model)
    return model.state.removeprefix("root.") if taken else None


def resolved(rows: Mapping[str, Any], event: str, truth: Truth) -> str | None:
    return next(
        (row.dest for row in rows.get(event, ()) if row.guard is None or row.guard(truth)),
        None,
    )


OVERRIDDEN = "has a transition of its own for it that is always taken"
TRUTHS = [Truth(a=a, b=b, c=c) for a in (False, True) for b in (False, True) for c in (False, True)]


@settings(max_examples=150, deadline=None)
@given(shapes())
def test_a_leaf_s_rows_lead_where_the_library_leads(shape: Shape) -> None:
    try:
        plan = definition(written(shape))
    except DefinitionError as refused:
        if OVERRIDDEN not in str(refused):
            raise
        return
    made = library(shape)
    assert plan.initial == placed(made, "root", Truth()).state.removeprefix("root.")
    for leaf, state in plan.states.items():
        for event in EVENTS:
            if event not in made.events or state.final:
                assert event not in state.rows
                continue
            for truth in TRUTHS:
                assert resolved(state.rows, event, truth) == moved(made, leaf, event, truth)
