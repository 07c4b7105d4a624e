"""The checks at class creation of the table as a whole: order of candidates, ends, what nothing can reach,
move or wake. Each raises ``DefinitionError``: class, state or event, and the mend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from itertools import combinations, pairwise

from ._errors import DefinitionError
from ._parts import Parts
from ._plan import Row, is_in
from ._states import After, At, Delay, Event, Kind, OnBudget, OnCancel, OnFailure
from ._table import Rows

WORK: frozenset[Kind] = frozenset(("fire", "choice", "failure", "budget"))
"""Events that only a state with a handler can see."""


def check_arrows(parts: Parts, arrows: Sequence[Row]) -> None:
    """What is declared for one state (or anywhere) and one event: the narrower before the wider."""
    for event, scope in dict.fromkeys((row.event, row.scope) for row in arrows):
        for before, after in pairwise(row for row in arrows if (row.event, row.scope) == (event, scope)):
            if before.guard is None:
                raise DefinitionError(
                    f"{parts.label}.{event}: from {scope or 'anywhere'} it always leads to {before.dest}, "
                    f"never to {after.dest}: put the transition without a guard last"
                )


def check_rows(parts: Parts, arrows: Sequence[Row], leaves: Mapping[str, Rows], initial: str) -> None:
    """The rows that each leaf has, its own and those that come to it from around it."""
    for name, state in parts.leaves.items():
        if state.final:
            _check_final(parts, name, leaves[name])
        else:
            _check_leaving(parts, name, leaves[name])
            _check_order(parts, name, leaves[name])
    idle = _check_taken(parts, arrows, leaves)
    spared = [name for name in leaves for row in arrows if row.event in idle and is_in(name, row.dest)]
    reached = _reached({initial, *spared}, leaves)
    lost = [name for name in leaves if name not in reached]
    if lost:
        raise DefinitionError(
            f"{parts.label}: nothing leads from {initial} to {', '.join(lost)}; "
            "add a transition or take it out"
        )


def innermost_first(parts: Parts, rows: Rows) -> list[Event]:
    """The events that leave a leaf: those that it declares itself, then its parent's and so on, each in
    their declared order."""
    return [parts.events[event] for event in sorted(rows, key=lambda event: -_depth(rows[event][0].scope))]


def _depth(scope: str) -> int:
    return len(scope.split(".")) if scope else 0


def _check_final(parts: Parts, state: str, rows: Rows) -> None:
    where = f"{parts.label}.{state}"
    if handlers := parts.handlers_of(parts.leaves[state]):
        raise DefinitionError(
            f"{where}: a final state runs nothing, but {handlers[0]} is declared for it; do the work "
            "in a state before it, or take final= away"
        )
    for event in rows:
        raise DefinitionError(
            f"{where}: a final state is left by nothing, but {event} leads out of it; take that "
            "transition or final= away"
        )


def _check_leaving(parts: Parts, state: str, rows: Rows) -> None:
    where, leaf = f"{parts.label}.{state}", parts.leaves[state]
    kinds = {event: parts.events[event].kind for event in rows}
    if not kinds:
        raise DefinitionError(f"{where}: a dead end; give it a transition, or mark it State(final=True)")
    if parts.handlers_of(leaf):
        if not {"fire", "choice"} & {*kinds.values()}:
            raise DefinitionError(f"{where}: its handler has no event to fire; add one: {leaf.name}.to(...)")
        return
    for event, kind in kinds.items():
        if kind in WORK:
            raise DefinitionError(
                f"{where}: {event} is for a handler's work, and the state has no handler; give it one "
                f"(@{leaf.name}.handler), or let {event} come by .on_signal(...) or .after(...)"
            )
    if not {"signal", "timeout"} & {*kinds.values()}:
        raise DefinitionError(
            f"{where}: it has no handler, and nothing but a cancel ({', '.join(kinds)}) can end the wait; "
            f"add {leaf.name}.to(...).on_signal(...) or .after(...), give it a handler, or mark it "
            "State(final=True)"
        )


def _check_order(parts: Parts, state: str, rows: Rows) -> None:
    events = innermost_first(parts, rows)
    for event in events:
        scopes = dict.fromkeys(row.scope or "anywhere" for row in rows[event.name])
        if isinstance(event, After | At) and len(scopes) > 1:
            raise DefinitionError(
                f"{parts.label}.{event.name}: from {state} it counts from the entry of "
                f"{' and of '.join(scopes)} at once; declare a timeout for each, or the first without a guard"
            )
    for first, second in combinations(events, 2):
        for sooner, later in ((first, second), (second, first)):
            if _forestalls(rows, sooner, later, sooner is first) and _always(rows[sooner.name]):
                raise DefinitionError(
                    f"{parts.label}.{later.name}: {sooner.name} takes {state} before it in every case, so "
                    f"that it never comes; guard {sooner.name} (when=), put {later.name} first if it is the "
                    "narrower one, or take one of them out"
                )


def _always(rows: Iterable[Row]) -> bool:
    return any(row.guard is None for row in rows)


def _forestalls(rows: Rows, event: Event, other: Event, declared_first: bool) -> bool:
    scope, others = rows[event.name][0].scope, rows[other.name][0].scope
    if isinstance(event, After) and isinstance(other, After):
        # Around a state the clock has run for as long as in it, or longer.
        around = _depth(scope) <= _depth(others)
        tie = scope == others and declared_first and event.delay == other.delay  # one property, one time
        return tie or (around and _shorter(event.delay, other.delay))
    if isinstance(event, At) and isinstance(other, At):
        return scope == others and declared_first and event.moment == other.moment
    if scope != others or not declared_first:  # a state's own stand before those around it, and may be wider
        return False
    if isinstance(event, OnFailure) and isinstance(other, OnFailure):
        return not event.errors or bool(
            other.errors and all(issubclass(e, event.errors) for e in other.errors)
        )
    return any(isinstance(event, kind) and isinstance(other, kind) for kind in (OnCancel, OnBudget))


def _shorter(delay: Delay, other: Delay) -> bool:
    """What the data gives, nobody knows before."""
    return isinstance(delay, timedelta) and isinstance(other, timedelta) and delay < other


def _inherited(parts: Parts, event: str) -> bool:
    return event not in vars(parts.machine)


def _check_taken(parts: Parts, arrows: Sequence[Row], leaves: Mapping[str, Rows]) -> AbstractSet[str]:
    """What a composite (or anywhere) declares must come to one of the states in it. Returns the events of
    bases that need not, since they are for a handler's work and there is none."""
    idle: set[str] = set()
    taken = {(row.event, row.scope) for rows in leaves.values() for found in rows.values() for row in found}
    for event, scope in dict.fromkeys((row.event, row.scope) for row in arrows):
        if (event, scope) in taken:
            continue
        where, around = f"{parts.label}.{event}", f"in {scope}" if scope else "that is not final"
        inside = [leaf for name, leaf in parts.leaves.items() if not scope or name.startswith(f"{scope}.")]
        if parts.events[event].kind in WORK and not any(parts.handlers_of(leaf) for leaf in inside):
            if _inherited(parts, event):  # a base is shared with machines that only wait
                idle.add(event)
                continue
            raise DefinitionError(
                f"{where}: it is for a handler's work, and no state {around} has a handler; give one a "
                f"handler, or let {event} come by .on_signal(...) or .after(...)"
            )
        raise DefinitionError(
            f"{where}: every state {around} has a transition of its own for it that is always taken, so that "
            f"the one from {scope or 'anywhere'} never is; take it out, or guard one of theirs"
        )
    return idle


def _reached(first: set[str], leaves: Mapping[str, Rows]) -> set[str]:
    reached, grew = first, True
    while grew:
        more = {row.dest for name in reached for rows in leaves[name].values() for row in rows} - reached
        reached, grew = reached | more, bool(more)
    return reached
