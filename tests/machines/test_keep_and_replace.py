"""``Append(keep=)``, ``replace`` and ``Budget``: what they hold, what is written, what is read."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.machines import (
    Append,
    BadUpdate,
    Budget,
    Conversation,
    Cost,
    DataPlan,
    DefinitionError,
    Merge,
    Merged,
    Message,
    NotStorable,
    Position,
    Reducer,
    Unreadable,
    record,
    replace,
    runtime_owned,
)

KEEP = 3
OWNED = {"seq": 0, "thread_id": "t"}


@record
class Log:
    recent: Annotated[Sequence[int], Append(keep=KEEP)] = ()
    every: Annotated[Sequence[int], Append()] = ()
    prices: Annotated[Mapping[str, int], Merge()] = {}
    best: Annotated[int, Reducer(max)] = 0
    tokens: Annotated[int, Cost()] = 0
    spent: Annotated[Decimal, Cost()] = Decimal(0)
    plain: str = ""
    talk: Annotated[Sequence[Message], Conversation()] = ()
    budget: Budget = Budget(tokens=100, steps=5)
    transitions: int = runtime_owned(Position.seq)


PLAN = DataPlan(Log, "Log")


def merge(before: Merged[Log], n: int = 1, **update: object) -> Merged[Log]:
    return PLAN.merge(before.data, [("main", update)], OWNED, n=n, positions=before.positions)


def wire(delta: Mapping[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(delta), type=dict[str, msgspec.Raw])


# --- against plain lists --------------------------------------------------------------------------

numbers = st.lists(st.integers(0, 99), max_size=8)
update = st.tuples(st.sampled_from(["recent", "every"]), st.booleans(), numbers)


@given(st.lists(st.lists(update, min_size=1, max_size=3), max_size=14), st.integers(0, 14), numbers)
def test_any_updates_hold_what_plain_lists_would_and_read_back(
    commits: list[list[tuple[str, bool, list[int]]]], at: int, first: list[int]
) -> None:
    model: dict[str, list[int]] = {"recent": first[-KEEP:], "every": list(first)}
    made = [PLAN.started(Log(recent=first, every=first), OWNED)]
    for n, lanes in enumerate(commits, start=1):
        updates = [
            (f"lane{i}", {name: replace(items) if fresh else items})
            for i, (name, fresh, items) in enumerate(lanes)
        ]
        for name, fresh, items in lanes:
            model[name] = (items if fresh else model[name] + items)[-KEEP if name == "recent" else 0 :]
        made.append(PLAN.merge(made[-1].data, updates, OWNED, n=n, positions=made[-1].positions))
        now = made[-1]
        assert (list(now.data.recent), list(now.data.every)) == (model["recent"], model["every"])
        assert (
            now.positions["recent"].stored <= 2 * KEEP if "recent" in now.positions else not model["recent"]
        )
    last, start = made[-1], min(at, len(commits))
    rows = [(n, each.items) for n, each in enumerate(made) if each.items and n >= last.items_from]
    if start < len(commits):  # read from an older snapshot: what that one needs too
        rows = [(n, each.items) for n, each in enumerate(made) if each.items]
    base = wire(PLAN.base(made[start].data, made[start].positions))
    deltas = [(n, wire(made[n].delta)) for n in range(start + 1, len(made))]
    loaded = PLAN.load(base, deltas, rows, [], OWNED)
    assert loaded.data == last.data
    assert loaded.positions == last.positions


def test_the_ten_thousandth_step_needs_no_more_items_than_the_tenth() -> None:
    now = PLAN.started(Log(), OWNED)
    for n in range(1, 10_001):
        now = PLAN.merge(now.data, [("main", {"recent": [n]})], OWNED, n=n, positions=now.positions)
    assert now.data.recent == (9_998, 9_999, 10_000)
    assert now.items_from > 10_000 - 2 * KEEP


# --- replace --------------------------------------------------------------------------------------


def test_replace_sets_a_field_past_its_reducer() -> None:
    first = PLAN.started(Log(prices={"a": 1}, best=9, tokens=7), OWNED)
    after = merge(
        first, prices=replace({"b": 2}), best=replace(3), tokens=replace(1), plain=replace("x")
    ).data
    assert (dict(after.prices), after.best, after.tokens, after.plain) == ({"b": 2}, 3, 1, "x")


def test_a_conversation_is_not_replaced() -> None:
    with pytest.raises(BadUpdate, match=r"Log\.talk: a conversation lives with its session"):
        merge(PLAN.started(Log(), OWNED), talk=replace([]))


def test_what_the_runtime_owns_is_not_replaced() -> None:
    with pytest.raises(BadUpdate, match=r"Log\.transitions: only the runtime writes it"):
        merge(PLAN.started(Log(), OWNED), transitions=replace(3))


def test_replace_stands_for_a_whole_update() -> None:
    with pytest.raises(NotStorable, match=r"Log\.every\[0\]: .*Replaced"):
        merge(PLAN.started(Log(), OWNED), every=[replace(3)])


# --- costs and limits -----------------------------------------------------------------------------


def test_costs_add_up() -> None:
    once = merge(PLAN.started(Log(tokens=1), OWNED), tokens=4, spent=Decimal("0.25"))
    assert (merge(once, n=2, tokens=2).data.tokens, once.data.spent) == (7, Decimal("0.25"))


@pytest.mark.parametrize("amount", [-1, True, "3", None, float("nan"), float("inf"), Decimal("NaN")])
def test_what_is_no_amount_is_refused(amount: object) -> None:
    with pytest.raises(BadUpdate, match=r"Log\.(tokens|spent): it counts what is used"):
        merge(PLAN.started(Log(), OWNED), tokens=amount)


def test_a_budget_may_be_raised_by_an_update_and_reads_back() -> None:
    first = PLAN.started(Log(), OWNED)
    after = merge(first, budget=Budget(tokens=2.5, steps=9))
    base = wire(PLAN.base(after.data, after.positions))
    assert PLAN.load(base, [], [], [], OWNED).data.budget == Budget(steps=9, tokens=2.5)
    assert repr(after.data.budget) == "Budget(steps=9, tokens=2.5)"
    assert len({Budget(steps=1), Budget(steps=1), Budget(tokens=1)}) == 2
    with pytest.raises(TypeError):
        after.data.budget.limits["steps"] = 1  # type: ignore[index]


def test_a_limit_on_nothing_is_refused_before_anything_is_written() -> None:
    with pytest.raises(NotStorable, match=r"Log\.budget: it limits 'euros', and no field of that name"):
        PLAN.started(Log(budget=Budget(euros=3)), OWNED)
    with pytest.raises(BadUpdate, match=r"Log\.budget: it limits 'euros'"):
        merge(PLAN.started(Log(), OWNED), budget=Budget(euros=3))


@pytest.mark.parametrize("limit", [0, -1, True, float("nan"), float("inf"), 10**400, "3", None])
def test_a_limit_is_a_positive_number(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"Budget\(tokens=\) takes a finite number over zero"):
        Budget(tokens=limit)


def test_steps_are_whole() -> None:
    with pytest.raises(ValueError, match=r"Budget\(steps=\) counts transitions"):
        Budget(steps=2.5)


def data_class(**fields: tuple[Any, Any]) -> type[Any]:
    made = type("Made", (), {"__annotations__": {n: t for n, (t, _) in fields.items()}})
    for name, (_, default) in fields.items():
        if default is not ...:
            setattr(made, name, default)
    return record(made)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"a": (Annotated[int, Cost()], ...)}, r"M\.a: Cost\(\) counts up from a default"),
        ({"a": (Annotated[str, Cost()], "")}, r"M\.a: Cost\(\) needs int, float or Decimal, not str"),
        ({"a": (Budget, Budget()), "b": (Budget, Budget())}, r"M: a and b are both a Budget"),
        ({"a": (Budget | None, None)}, r"M\.a: the limits of a thread are one plain field"),
        ({"a": (Sequence[Budget], ())}, r"M\.a: the limits of a thread are one plain field"),
        ({"a": (Budget, Budget(tokens=1))}, r"M\.a: it limits 'tokens', and no field .* none so far"),
        (
            {"a": (Annotated[Sequence[int], Append(keep=0)], ())},
            r"M\.a: Append\(keep=\) takes a whole number",
        ),
        ({"a": (Annotated[Sequence[int], Append(keep=True)], ())}, r"M\.a: Append\(keep=\) takes a whole"),
    ],
)
def test_the_declaration_is_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        DataPlan(data_class(**fields), "M")


def test_a_stored_limit_of_what_is_counted_no_more_is_not_passed_over() -> None:
    @record
    class Less:
        budget: Budget = Budget(steps=5)
        tokens: int = 0

    stored = {"budget": msgspec.Raw(b'{"limits":{"tokens":100}}'), "tokens": msgspec.Raw(b"7")}
    with pytest.raises(
        Unreadable, match=r"M\.budget: it limits 'tokens', and no field of that name is marked"
    ):
        DataPlan(Less, "M").load(stored, [], [], [], {})
