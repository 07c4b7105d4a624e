"""Records: frozen, copied with changes, sharing no default; and the markers on their fields."""

import copy
import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import attrs
import pytest

from perdure.machines._record import (
    Append,
    ArtifactRef,
    Message,
    ModelWritable,
    Position,
    Reducer,
    record,
    runtime_owned,
)
from perdure.machines._record import present as required
from perdure.machines._values import FrozenMapping


@record
class Note:
    text: str


@record
class Brief:
    customer_id: str
    draft: Annotated[str | None, ModelWritable()] = None
    notes: Annotated[Sequence[Note], Append()] = []
    prices: Mapping[str, Sequence[int]] = {"a": [1]}
    transitions: int = runtime_owned(Position.seq)
    thread: str = runtime_owned(Position.thread_id)

    @property
    def ready(self) -> bool:
        return self.draft is not None


@record
class LongBrief(Brief):
    more: int = 0


class TestRecord:
    def test_cannot_be_changed(self) -> None:
        brief = Brief(customer_id="c")
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            brief.draft = "x"  # type: ignore[misc]
        with pytest.raises(AttributeError):
            object.__setattr__(brief, "misspelt", 1)

    def test_takes_keywords_alone(self) -> None:
        with pytest.raises(TypeError):
            Brief("c")  # type: ignore[call-arg]

    def test_is_equal_by_its_fields_and_hashable(self) -> None:
        assert Note(text="a") == Note(text="a") != Note(text="b")
        assert len({Note(text="a"), Note(text="a")}) == 1

    def test_shares_no_default(self) -> None:
        one, other = Brief(customer_id="a"), Brief(customer_id="b")
        assert one.notes == other.notes == []
        assert one.notes is not other.notes
        assert one.prices is not other.prices
        assert one.prices["a"] is not other.prices["a"]

    def test_keeps_its_derived_properties(self) -> None:
        assert not Brief(customer_id="c").ready
        assert Brief(customer_id="c", draft="x").ready


class TestReplace:
    @pytest.mark.parametrize("cls", [Brief, LongBrief])
    def test_changes_fields_in_a_copy(self, cls: type[Brief]) -> None:
        brief = cls(customer_id="c", draft="x")
        changed = brief.__replace__(draft="y")  # type: ignore[attr-defined]
        assert (type(changed), changed.draft, changed.customer_id, brief.draft) == (cls, "y", "c", "x")

    def test_keeps_what_the_runtime_wrote(self) -> None:
        brief = Brief(customer_id="c")
        object.__setattr__(brief, "transitions", 7)
        object.__setattr__(brief, "thread", "cust_42/june")
        changed = brief.__replace__(draft="y")  # type: ignore[attr-defined]
        assert (changed.transitions, changed.thread) == (7, "cust_42/june")

    @pytest.mark.parametrize("name", ["misspelt", "transitions", "ready"])
    def test_refuses_what_is_no_field_to_set(self, name: str) -> None:
        with pytest.raises(TypeError, match=name):
            Brief(customer_id="c").__replace__(**{name: 1})  # type: ignore[attr-defined]

    def test_of_the_class_itself_is_kept(self) -> None:
        @record
        class Own:
            x: int = 0

            def __replace__(self, **changes: Any) -> str:
                return "mine"

        assert Own().__replace__(x=1) == "mine"

    @pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace is new in Python 3.13")
    def test_is_what_copy_replace_uses(self) -> None:
        replace = copy.replace  # type: ignore[attr-defined]
        assert replace(Note(text="a"), text="b") == Note(text="b")


class TestRuntimeOwned:
    def test_is_no_argument(self) -> None:
        with pytest.raises(TypeError, match="transitions"):
            Brief(customer_id="c", transitions=1)  # type: ignore[call-arg]

    def test_holds_nothing_yet(self) -> None:
        brief = Brief(customer_id="c")
        assert (brief.transitions, brief.thread) == (0, "")

    def test_names_what_the_runtime_has(self) -> None:
        with pytest.raises(ValueError, match=r"Position\.seq or Position\.thread_id"):
            runtime_owned("epoch")  # type: ignore[arg-type]


class TestPresent:
    def test_returns_what_is_there(self) -> None:
        assert required("x") == "x"
        assert required(0) == 0

    def test_raises_where_it_is_none(self) -> None:
        with pytest.raises(ValueError, match="it is None"):
            required(None)


class TestFrozenMapping:
    def test_reads_like_a_dict(self) -> None:
        mapping = FrozenMapping({"a": 1})
        assert mapping == {"a": 1}
        assert json.dumps(mapping) == '{"a": 1}'
        assert repr(mapping) == "FrozenMapping({'a': 1})"

    def test_is_its_own_copy(self) -> None:
        mapping = FrozenMapping({"a": 1})
        assert copy.copy(mapping) is copy.deepcopy(mapping) is mapping
        assert pickle.loads(pickle.dumps(mapping)) == mapping

    def test_is_hashable_where_its_values_are(self) -> None:
        assert len({FrozenMapping({"a": 1, "b": 2}), FrozenMapping({"b": 2, "a": 1})}) == 1
        with pytest.raises(TypeError):
            hash(FrozenMapping({"a": []}))


def test_markers_are_equal_by_what_they_say() -> None:
    assert Append() == Append()
    assert Reducer(max) == Reducer(max) != Reducer(min)


def test_transcripts_need_little() -> None:
    assert Message(role="user", content="hello").tool_calls == ()
    assert ArtifactRef(id="a", sha256="0", media_type="text/plain", size_bytes=0).id == "a"
