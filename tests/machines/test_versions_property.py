"""Random chains of upcasters over random data: what they make of it is read, written, and read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Annotated, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.machines import Append, DataPlan, Merged, record

KEEP = 3
OWNED: dict[str, object] = {"seq": 0, "thread_id": "t"}
Plain = dict[str, Any]


@record
class Old:
    a: int = 0
    log: Annotated[Sequence[int], Append()] = ()
    last: Annotated[Sequence[int], Append(keep=KEEP)] = ()


@record
class New:
    """``a`` became a list, the others may have been changed."""

    kept: Annotated[Sequence[int], Append()] = ()
    log: Annotated[Sequence[int], Append()] = ()
    last: Annotated[Sequence[int], Append(keep=KEEP)] = ()
    count: int = 0


OLD: DataPlan[Old] = DataPlan(Old, "Old")
NEW: DataPlan[New] = DataPlan(New, "New")


def doubled(data: Plain) -> Plain:
    return {**data, "log": [2 * n for n in data.get("log", ())]}


def swapped(data: Plain) -> Plain:
    log, last = data.get("log", []), data.get("last", [])
    return {**data, "log": last, "last": log}


def counted(data: Plain) -> Plain:
    return {**data, "count": data.get("count", 0) + len(data.get("log", ()))}


def emptied(data: Plain) -> Plain:
    return {name: value for name, value in data.items() if name != "last"}


def the_same(data: Plain) -> Plain:
    return data


def listed(data: Plain) -> Plain:
    """The last step of each chain: what ``New`` cannot do without."""
    data["kept"] = [data.pop("a")]
    return data


STEPS = st.lists(st.sampled_from([doubled, swapped, counted, emptied, the_same]), max_size=4)
NUMBERS = st.integers(-3, 3)
MORE = st.lists(NUMBERS, max_size=4)
UPDATES = st.lists(st.fixed_dictionaries({}, optional={"a": NUMBERS, "log": MORE, "last": MORE}), max_size=8)
LATER = st.lists(st.fixed_dictionaries({}, optional={"kept": MORE, "log": MORE, "last": MORE}), max_size=6)


class Thread:
    """What a store would hold of a thread: a base, the deltas after it, and rows of items."""

    def __init__(self, base: Mapping[str, Any], items: bytes | None) -> None:
        self.base = wire(base)
        self.deltas: list[tuple[int, Plain]] = []
        self.items: list[tuple[int, bytes]] = [] if items is None else [(0, items)]
        self.n = 0

    def written(self, merged: Merged[Any], base: Mapping[str, Any] | None) -> None:
        self.n += 1
        if base is None:
            self.deltas.append((self.n, wire(merged.delta)))
        else:
            self.base, self.deltas = wire(base), []
        if merged.items is not None:
            self.items.append((self.n, merged.items))
        self.items = [(n, row) for n, row in self.items if n >= merged.items_from]


def wire(told: Mapping[str, Any]) -> Plain:
    """As it comes back from a store."""
    found: Plain = msgspec.json.decode(msgspec.json.encode(told), type=dict[str, msgspec.Raw])
    return found


def plain_of(data: Any, names: Sequence[str]) -> Plain:
    return {name: list(v) if isinstance(v := getattr(data, name), tuple) else v for name in names}


def chained(steps: Sequence[Callable[[Plain], Plain]]) -> Callable[[Plain], Plain]:
    return lambda data: reduce(lambda values, step: step(values), steps, data)


def appended(values: Plain, update: Plain) -> Plain:
    """The model of a merge."""
    after = {name: [*values[name], *update.get(name, ())] for name in ("kept", "log", "last")}
    return {**values, **after, "last": after["last"][-KEEP:]}


@settings(max_examples=60, deadline=None)
@given(start=MORE, updates=UPDATES, steps=STEPS, later=LATER, base_every=st.integers(1, 4))
def test_what_a_chain_makes_of_a_record_is_read_written_and_read_again(
    start: list[int],
    updates: list[Plain],
    steps: list[Callable[[Plain], Plain]],
    later: list[Plain],
    base_every: int,
) -> None:
    first = OLD.started(Old(log=tuple(start), last=tuple(start)), OWNED)
    thread = Thread(OLD.base(first.data, first.positions), first.items)
    at: Merged[Any] = first
    for n, update in enumerate(updates, 1):
        at = OLD.merge(at.data, [("main", update)], OWNED, n=n, positions=at.positions)
        thread.written(at, OLD.base(at.data, at.positions) if n % base_every == 0 else None)
    run = chained([*steps, listed])
    loaded = NEW.load(thread.base, thread.deltas, thread.items, (), OWNED, run)
    expected = {"kept": [], "log": [], "last": [], "count": 0, **run(plain_of(at.data, ("a", "log", "last")))}
    expected["last"] = expected["last"][-KEEP:]
    assert plain_of(loaded.data, tuple(expected)) == expected
    data, positions = loaded.data, loaded.positions
    for n, update in enumerate(later):
        merged = NEW.merge(data, [("main", update)], OWNED, n=thread.n + 1, positions=positions)
        thread.written(merged, NEW.base(merged.data, merged.positions) if n == 0 else None)
        expected = appended(expected, update)
        again = NEW.load(thread.base, thread.deltas, thread.items, (), OWNED)
        assert plain_of(again.data, tuple(expected)) == expected
        assert {k: v for k, v in again.positions.items() if v.stored} == {
            k: v for k, v in merged.positions.items() if v.stored
        }
        data, positions = merged.data, merged.positions
