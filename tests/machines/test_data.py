"""A machine's data: how updates merge, what is written of it, and that it is read back as it was."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, TypedDict, TypeVar

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.machines._data import DataPlan, Loaded, Merged
from perdure.machines._errors import BadUpdate, DefinitionError, NotStorable, Unreadable
from perdure.machines._record import (
    Append,
    Conversation,
    Ephemeral,
    Merge,
    Message,
    ModelWritable,
    Position,
    Reducer,
    record,
    runtime_owned,
)
from perdure.machines._stored import ITEMS, Span

T = TypeVar("T")


class Cache:
    """Something that could never be stored."""


@record
class Note:
    text: str
    tags: Sequence[str] = []


@record
class Brief:
    customer: str
    draft: Annotated[str | None, ModelWritable()] = None
    notes: Annotated[Sequence[Note], Append(), ModelWritable()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()
    prices: Annotated[Mapping[str, int | None], Merge()] = {}
    best: Annotated[int, Reducer(max)] = 0
    total: Annotated[int, Reducer(lambda old, new: old + new), ModelWritable()] = 0
    words: Sequence[str] = []
    size: int = 1
    transitions: int = runtime_owned(Position.seq)
    thread: str = runtime_owned(Position.thread_id)
    scratch: Annotated[Cache | None, Ephemeral()] = None

    @property
    def ready(self) -> bool:
        return self.draft is not None


PLAN = DataPlan(Brief, "Summarise")
OWNED: dict[str, object] = {"seq": 3, "thread_id": "cust_42/june"}


def started(**values: Any) -> Merged[Brief]:
    return PLAN.started(Brief(customer="c", **values), OWNED)


def merge(before: Merged[Brief], *updates: tuple[str, dict[str, object]], n: int = 1) -> Merged[Brief]:
    return PLAN.merge(before.data, updates, OWNED, n=n, positions=before.positions)


def wire(delta: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """A delta or snapshot as it comes back from the store."""
    return msgspec.json.decode(msgspec.json.encode(delta), type=dict[str, msgspec.Raw])


def load(
    commits: Sequence[tuple[int, Merged[Brief]]], base: Mapping[str, Any] | None = None
) -> Loaded[Brief]:
    return PLAN.load(
        wire(base or {}),
        [(n, wire(commit.delta)) for n, commit in commits],
        [(n, commit.items) for n, commit in commits if commit.items is not None],
        [message for _, commit in commits for message in commit.messages],
        OWNED,
    )


def said(text: str) -> Message:
    return Message(role="user", content=text)


class TestStarted:
    def test_is_what_would_be_read_back(self) -> None:
        first = started(words=["a"], notes=[Note(text="n", tags=["t"])], prices={"a": 1})
        assert first.data.words == ("a",)
        assert first.data.notes == (Note(text="n", tags=("t",)),)
        with pytest.raises(TypeError):
            first.data.prices["b"] = 1  # type: ignore[index]
        assert load([(0, first)]).data == first.data

    def test_has_every_stored_field_in_its_delta(self) -> None:
        first = started(notes=[Note(text="n")], talk=[said("hi")])
        assert set(first.delta) == {"customer", "draft", "notes", "prices", "best", "total", "words", "size"}
        assert first.delta["notes"] == ["a", 1]
        assert first.positions == {"notes": Span(0, 1, 1)}
        assert len(first.messages) == 1
        assert first.size > 0

    def test_shows_what_the_runtime_owns(self) -> None:
        assert (started().data.transitions, started().data.thread) == (3, "cust_42/june")

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"draft": 1}, r"Summarise\.draft: 1 \(int\) is no str \| None"),
            ({"notes": [Note(text="a"), Note(text=1)]}, r"Summarise\.notes\[1\]\.text: 1 \(int\) is no str"),
            ({"notes": "abc"}, r"Summarise\.notes: it accumulates, and so takes a list or tuple"),
            ({"words": ["\ud800"]}, r"Summarise\.words\[0\]: .* lone surrogate"),
            ({"best": True}, r"Summarise\.best: True \(bool\) is no int"),
        ],
    )
    def test_refuses_what_cannot_be_stored_by_field(self, values: Any, message: str) -> None:
        with pytest.raises(NotStorable, match=message):
            started(**values)

    def test_refuses_another_class(self) -> None:
        with pytest.raises(NotStorable, match="is given where Brief is declared"):
            PLAN.started(Note(text="n"), OWNED)  # type: ignore[arg-type]


class TestMerge:
    def test_writes_changed_fields_alone(self) -> None:
        after = merge(started(draft="a"), ("main", {"draft": "b", "words": ()}))
        assert after.data.draft == "b"
        assert after.delta == {"draft": ["s", msgspec.Raw(b'"b"')]}
        assert after.items is None

    def test_an_equal_update_changes_nothing(self) -> None:
        first = started(words=["a"], prices={"a": 1}, best=5)
        after = merge(first, ("main", {"words": ["a"], "prices": {"a": 1}, "best": 2, "notes": []}))
        assert after.delta == {}
        assert after.data == first.data

    def test_equal_but_of_another_type_is_no_equal_update(self) -> None:
        with pytest.raises(NotStorable, match=r"Summarise\.size: True \(bool\) is no int"):
            merge(started(size=1), ("main", {"size": True}))

    def test_appends(self) -> None:
        first = merge(started(), ("main", {"notes": [Note(text="a")]}), n=4)
        second = merge(first, ("main", {"notes": (Note(text="b"), Note(text="c"))}), n=7)
        assert [note.text for note in second.data.notes] == ["a", "b", "c"]
        assert second.delta == {"notes": ["a", 2]}
        assert second.items == b'{"notes":[{"tags":[],"text":"b"},{"tags":[],"text":"c"}]}'
        assert (first.positions, second.positions) == ({"notes": Span(4, 1, 1)}, {"notes": Span(4, 3, 3)})

    def test_appends_messages_apart_from_the_data(self) -> None:
        after = merge(started(), ("main", {"talk": [said("a"), said("b")]}))
        assert [message.content for message in after.data.talk] == ["a", "b"]
        assert after.delta == {}
        assert len(after.messages) == 2

    def test_merges_mappings(self) -> None:
        after = merge(started(prices={"a": 1, "b": 2}), ("main", {"prices": {"b": None, "c": 3}}))
        assert after.data.prices == {"a": 1, "b": None, "c": 3}

    def test_applies_reducers_to_lanes_in_order(self) -> None:
        first = started(total=1, notes=[Note(text="a")])
        after = merge(
            first,
            ("left", {"total": 10, "best": 7, "notes": [Note(text="l")], "prices": {"x": 1}}),
            ("right", {"total": 100, "best": 5, "notes": [Note(text="r")], "prices": {"x": 2}}),
        )
        assert (after.data.total, after.data.best, after.data.prices) == (111, 7, {"x": 2})
        assert [note.text for note in after.data.notes] == ["a", "l", "r"]
        assert after.delta["notes"] == ["a", 2]

    @pytest.mark.parametrize("values", [("a", "b"), ("a", "a")])
    def test_two_lanes_and_a_field_without_a_rule(self, values: tuple[str, str]) -> None:
        with pytest.raises(BadUpdate, match=r"Summarise\.draft: left and right both set it"):
            merge(started(), ("left", {"draft": values[0]}), ("right", {"draft": values[1]}))

    def test_two_lanes_and_a_cache(self) -> None:
        with pytest.raises(BadUpdate, match=r"Summarise\.scratch: left and right both set it"):
            merge(started(), ("left", {"scratch": Cache()}), ("right", {"scratch": None}))

    @pytest.mark.parametrize(
        ("update", "message"),
        [
            ({"darft": "x"}, r"the update 'darft' of main names no field: do you mean 'draft'\?"),
            ({"ready": True}, "the update 'ready' of main is derived, and is never set"),
            ({"transitions": 1}, r"Summarise\.transitions: only the runtime writes it; main sets it"),
            ({"notes": Note(text="a")}, r"Summarise\.notes: it accumulates, and so takes a list or tuple"),
            ({"prices": [("a", 1)]}, r"Summarise\.prices: it merges, so that an update is a mapping, not \["),
            ({"total": "x"}, r"Summarise\.total: its reducer raised TypeError"),
        ],
    )
    def test_refuses_a_wrong_update_by_name(self, update: dict[str, object], message: str) -> None:
        with pytest.raises(BadUpdate, match=message):
            merge(started(), ("main", update))

    def test_refuses_what_a_reducer_makes_of_it(self) -> None:
        with pytest.raises(NotStorable, match=r"Summarise\.best: 9.5 \(float\) is no int"):
            merge(started(), ("main", {"best": 9.5}))

    def test_refuses_what_the_class_refuses(self) -> None:
        @attrs.frozen(kw_only=True)
        class Checked:
            x: int = attrs.field(default=0, validator=attrs.validators.lt(5))

        plan = DataPlan(Checked, "M")
        first = plan.started(Checked(), {})
        with pytest.raises(BadUpdate, match="M: Checked refuses the values: ValueError"):
            plan.merge(first.data, [("main", {"x": 9})], {}, n=1, positions={})

    def test_shows_what_the_runtime_owns_now(self) -> None:
        after = PLAN.merge(started().data, [], {"seq": 4, "thread_id": "t"}, n=1, positions={})
        assert (after.data.transitions, after.data.thread) == (4, "t")

    def test_leaves_the_data_before_as_it_was(self) -> None:
        first = started(notes=[Note(text="a")])
        merge(first, ("main", {"notes": [Note(text="b")], "draft": "x"}))
        assert first.data == started(notes=[Note(text="a")]).data


class TestEphemeral:
    def test_is_seen_by_the_next_step_alone(self) -> None:
        cache = Cache()
        after = merge(started(), ("main", {"scratch": cache, "draft": "x"}))
        assert (after.live.scratch, after.data.scratch) == (cache, None)
        assert after.live.draft == after.data.draft == "x"
        assert "scratch" not in after.delta

    def test_stays_until_it_is_set_again(self) -> None:
        cache = Cache()
        first = merge(started(), ("main", {"scratch": cache}))
        second = PLAN.merge(first.live, [("main", {"draft": "x"})], OWNED, n=2, positions={})
        assert (second.live.scratch, second.data.scratch) == (cache, None)

    def test_may_be_given_at_the_start(self) -> None:
        cache = Cache()
        first = started(scratch=cache)
        assert (first.live.scratch, first.data.scratch) == (cache, None)


class TestLoad:
    def test_from_a_snapshot_and_the_deltas_after_it(self) -> None:
        first = started(notes=[Note(text="a")], talk=[said("hi")], draft="x")
        second = merge(first, ("main", {"notes": [Note(text="b")], "best": 2}), n=1)
        base = PLAN.base(second.data, second.positions)
        assert bytes(base[ITEMS]) == b'{"notes":[0,2,2]}'
        assert not {"talk", "scratch", "transitions", "ready"} & set(base)
        third = merge(second, ("main", {"notes": [Note(text="c")], "draft": None}), n=5)
        rows = [(n, commit.items) for n, commit in [(0, first), (1, second), (5, third)] if commit.items]
        loaded = PLAN.load(wire(base), [(5, wire(third.delta))], rows, first.messages, OWNED)
        assert loaded == Loaded(data=third.data, positions={"notes": Span(0, 3, 3)})

    def test_of_what_was_replaced(self) -> None:
        first = started(notes=[Note(text="a"), Note(text="b")])
        rows = [(0, first.items or b""), (3, b'{"notes":[{"text":"z","tags":[]}]}')]
        loaded = PLAN.load({}, [(0, first.delta), (3, {"notes": ["r", 1]})], rows, [], OWNED)
        assert loaded.data.notes == (Note(text="z", tags=()),)
        assert loaded.positions == {"notes": Span(3, 1, 1)}

    def test_a_field_that_is_new_takes_its_default(self) -> None:
        base = PLAN.base(started().data, {})
        del base["words"], base["best"]
        loaded = PLAN.load(wire(base), [], [], [], OWNED)
        assert (loaded.data.words, loaded.data.best) == ((), 0)

    def test_a_nested_default_comes_back_immutable(self) -> None:
        base = {**PLAN.base(started().data, {}), ITEMS: msgspec.Raw(b'{"notes":[0,1,1]}')}
        loaded = PLAN.load(wire(base), [], [(0, b'{"notes":[{"text":"a"}]}')], [], OWNED)
        assert loaded.data.notes[0].tags == ()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"customer": None}, r"Summarise\.customer: it is not stored, and has no default"),
            ({"customer": b"1"}, r"Summarise\.customer: expected str, found 1 \(int\)"),
            ({"gone": b"1"}, r"Summarise\.gone: it is stored, but is no stored field any more"),
            ({"scratch": b"1"}, r"Summarise\.scratch: it is stored, but is no stored field any more"),
            ({ITEMS: b'{"notes":[0]}'}, r"Summarise\.items: the stored bytes are damaged"),
            ({"notes": b"[]"}, r"Summarise\.notes: its value does not fit how it is declared now"),
            ({ITEMS: b'{"draft":[0,1,1]}'}, r"Summarise\.draft: its items do not fit how it is declared"),
            ({ITEMS: b'{"notes":[0,2,2]}'}, r"Summarise\.notes: 1 items were found, 2 were appended"),
        ],
    )
    def test_names_the_field_that_cannot_be_read(self, change: dict[str, Any], message: str) -> None:
        first = started(notes=[Note(text="a")])
        base: dict[str, Any] = {**PLAN.base(first.data, first.positions)}
        base.update({name: msgspec.Raw(raw) for name, raw in change.items() if raw is not None})
        base = {name: raw for name, raw in base.items() if change.get(name, b"") is not None}
        with pytest.raises(Unreadable, match=message):
            PLAN.load(wire(base), [], [(0, first.items or b"")], [], OWNED)

    @pytest.mark.parametrize(
        ("delta", "message"),
        [
            (b'{"draft":["a",1]}', r"Summarise\.draft: its items do not fit"),
            (b'{"notes":["s",[]]}', r"Summarise\.notes: its value does not fit"),
            (b'{"notes":["x",1]}', r"Summarise\.notes: its change 'x' does not fit"),
            (b'{"notes":["a","x"]}', r"Summarise\.notes: the stored bytes are damaged"),
            (b'{"notes":1}', r"Summarise\.notes: the stored bytes are damaged"),
        ],
    )
    def test_names_the_field_whose_delta_does_not_fit(self, delta: bytes, message: str) -> None:
        base = PLAN.base(started().data, {})
        change = msgspec.json.decode(delta, type=dict[str, msgspec.Raw])
        with pytest.raises(Unreadable, match=message):
            PLAN.load(base, [(1, change)], [], [], OWNED)

    def test_names_an_item_and_a_message(self) -> None:
        base = {**PLAN.base(started().data, {}), ITEMS: msgspec.Raw(b'{"notes":[0,1,1]}')}
        with pytest.raises(Unreadable, match=r"Summarise\.notes\[0\]\.text: expected str"):
            PLAN.load(base, [], [(0, b'{"notes":[{"text":1}]}')], [], OWNED)
        del base[ITEMS]
        with pytest.raises(Unreadable, match=r"Summarise\.talk\[0\]: the field 'role' of Message is missing"):
            PLAN.load(base, [], [], [b'{"content":"a"}'], OWNED)


class TestPatch:
    def test_takes_what_a_model_may_set_alone(self) -> None:
        answer = {"draft": "d", "customer": "evil", "best": 9, "transitions": 9, "ready": True, "junk": 1}
        assert PLAN.patch(answer) == {"draft": "d"}

    def test_makes_records_of_plain_values(self) -> None:
        updates = PLAN.patch({"notes": [{"text": "a", "tags": ["t"]}], "total": 2})
        assert updates == {"notes": (Note(text="a", tags=("t",)),), "total": 2}
        assert merge(started(), ("main", updates)).data.total == 2

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            ({"draft": 1}, r"Summarise\.draft: expected str, found 1 \(int\)"),
            ({"draft": "\ud800"}, r"Summarise\.draft: .* lone surrogate"),
            ({"notes": {"text": "a"}}, r"Summarise\.notes: expected an array of items"),
            ({"notes": [{"text": "a", "more": 1}]}, r"Summarise\.notes\[0\]: Note has no field 'more'"),
            (["draft"], "a model's answer is a mapping"),
        ],
    )
    def test_refuses_a_wrong_type(self, answer: Any, message: str) -> None:
        with pytest.raises(BadUpdate, match=message):
            PLAN.patch(answer)

    def test_schema_is_what_a_model_is_given(self) -> None:
        schema = PLAN.patch_schema()
        assert set(schema["properties"]) == {"draft", "notes", "total"}
        assert schema["properties"]["notes"] == {"type": "array", "items": {"$ref": "#/$defs/Note"}}
        assert set(schema["$defs"]["Note"]["properties"]) == {"text", "tags"}
        assert schema["additionalProperties"] is False


@record
class Box(Generic[T]):
    held: Sequence[T]


class Loose(TypedDict):
    x: int


def data_class(**annotations: Any) -> type[Any]:
    """A record with the given fields: a type, or a type and an attrs field."""
    pairs = {
        name: given if isinstance(given, tuple) else (given, None) for name, given in annotations.items()
    }
    body: dict[str, Any] = {"__annotations__": {name: type_ for name, (type_, _) in pairs.items()}}
    body |= {name: field for name, (_, field) in pairs.items() if field is not None}
    return record(type("Data", (), body))


def as_text(old: int, new: int) -> str:
    return f"{old}{new}"


async def asynchronous(old: int, new: int) -> int:
    return old + new


class TestDeclaration:
    @pytest.mark.parametrize(
        ("annotations", "message"),
        [
            (
                {"x": list[int]},
                r"M\.x: list\[int\] cannot be stored: it can be changed in place: say Sequence",
            ),
            ({"x": Sequence[dict[str, int]]}, r"M\.x\[\.\.\.\]: dict\[str, int\] cannot be stored"),
            (
                {"x": Annotated[Sequence[list[int]], Append()]},
                r"M\.x\[\.\.\.\]: list\[int\] cannot be stored",
            ),
            ({"x": Loose}, r"M\.x: Loose cannot be stored: make it a @record"),
            ({"x": Annotated[int, Append()]}, r"M\.x: Append\(\) needs Sequence\[\.\.\.\], not int"),
            ({"x": Annotated[tuple[int, ...], Append()]}, r"M\.x: Append\(\) needs Sequence"),
            ({"x": Annotated[int, Merge()]}, r"M\.x: Merge\(\) needs Mapping"),
            (
                {"x": Annotated[Sequence[str], Conversation()]},
                r"M\.x: Conversation\(\) needs Sequence\[Message\]",
            ),
            (
                {
                    "x": Annotated[Sequence[Message], Conversation()],
                    "y": Annotated[Sequence[Message], Conversation()],
                },
                r"M: x and y are marked Conversation\(\)",
            ),
            (
                {"x": Annotated[Cache | None, Ephemeral()]},
                r"M\.x: it is never stored, and so needs a default",
            ),
            (
                {"x": (Annotated[int, Ephemeral(), ModelWritable()], 0)},
                r"M\.x: it is never stored, so that a model cannot write it",
            ),
            ({"x": Annotated[Sequence[int], Append(), Merge()]}, r"M\.x: it is marked Append and Merge"),
            ({"x": Annotated[Sequence[int], Append]}, r"M\.x: write Append\(\.\.\.\) with its parentheses"),
            ({"x": Annotated[int, Reducer(lambda old: old)]}, r"M\.x: Reducer calls .* with \(old, new\)"),
            ({"x": Annotated[int, Reducer(asynchronous)]}, r"M\.x: Reducer takes a pure function"),
            (
                {"x": Annotated[int, Reducer(as_text)]},
                r"M\.x: Reducer's .* returns str, and the field is int",
            ),
            ({"x": (int, attrs.field(alias="y"))}, r"M\.x: its alias 'y' is a second name"),
            ({"x": (str, runtime_owned("seq"))}, r"M\.x: the runtime puts the seq there: declare it int"),
            (
                {"x": (Annotated[int, ModelWritable()], runtime_owned("seq"))},
                r"M\.x: the runtime owns it, so that ModelWritable says nothing",
            ),
            (
                {"x": (int, attrs.field(init=False, default=1))},
                r"M\.x: init=False.* make it a derived property",
            ),
            ({"_x": int}, r"M\._x: an update could not name a private field"),
            ({"x": (int, "one")}, r"M\.x, by default: 'one' \(str\) is no int"),
        ],
    )
    def test_is_checked_by_field(self, annotations: dict[str, Any], message: str) -> None:
        with pytest.raises(DefinitionError, match=message):
            DataPlan(data_class(**annotations), "M")

    @pytest.mark.parametrize("cls", [int, attrs.make_class("Open", {"x": attrs.field(type=int)}), Loose])
    def test_needs_a_record(self, cls: Any) -> None:
        with pytest.raises(DefinitionError, match=r"M: the data .* has to be a @record"):
            DataPlan(cls, "M")

    def test_plans_every_field(self) -> None:
        kinds = {name: plan.kind for name, plan in PLAN.fields.items()}
        assert kinds["notes"] == "append"
        assert kinds["talk"] == "conversation"
        assert kinds["scratch"] == "ephemeral"
        assert kinds["transitions"] == kinds["thread"] == "owned"
        assert "ready" not in kinds
        assert [name for name, plan in PLAN.fields.items() if plan.model_writable] == [
            "draft",
            "notes",
            "total",
        ]

    def test_may_be_generic(self) -> None:
        plan = DataPlan(Box[int], "M")
        assert plan.started(Box(held=(1,)), {}).data == Box(held=(1,))
        with pytest.raises(NotStorable, match=r"M\.held\[0\]: 'a' \(str\) is no int"):
            plan.started(Box(held=("a",)), {})  # type: ignore[arg-type]

    def test_a_builtin_may_reduce(self) -> None:
        assert DataPlan(data_class(x=Annotated[int, Reducer(max)]), "M").fields["x"].reducer is max


updates = st.fixed_dictionaries(
    {},
    optional={
        "draft": st.none() | st.text(max_size=3),
        "notes": st.lists(st.builds(Note, text=st.text(max_size=3)), max_size=3),
        "talk": st.lists(st.builds(said, st.text(max_size=3)), max_size=2),
        "prices": st.dictionaries(st.text(max_size=2), st.none() | st.integers(), max_size=3),
        "best": st.integers(),
        "words": st.lists(st.text(max_size=2), max_size=3),
    },
)


@given(st.lists(updates, max_size=6), st.integers(0, 6))
def test_deltas_from_any_snapshot_read_back_as_the_data(steps: list[dict[str, object]], at: int) -> None:
    commits = [(0, started(notes=[Note(text="first")]))]
    for n, update in enumerate(steps, start=1):
        commits.append((n, merge(commits[-1][1], ("main", update), n=n)))
    assert load(commits) == Loaded(data=commits[-1][1].data, positions=commits[-1][1].positions)
    n, snapshot = commits[min(at, len(steps))]
    rows = [(n, commit.items) for n, commit in commits if commit.items is not None]
    messages = [message for _, commit in commits for message in commit.messages]
    base = wire(PLAN.base(snapshot.data, snapshot.positions))
    deltas = [(later, wire(commit.delta)) for later, commit in commits[n + 1 :]]
    assert PLAN.load(base, deltas, rows, messages, OWNED).data == commits[-1][1].data
