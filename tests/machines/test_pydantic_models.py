"""Pydantic models as a machine's data and as values in it: validated, immutable once read back; and pydantic
is not imported unless there is one."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from perdure.machines import (
    Append,
    ArtifactRef,
    BadUpdate,
    Budget,
    Conversation,
    Cost,
    DataPlan,
    DefinitionError,
    Ephemeral,
    Merge,
    Merged,
    Message,
    ModelWritable,
    NotStorable,
    Position,
    Reducer,
    Unreadable,
    codec,
    record,
    runtime_owned,
)

T = TypeVar("T")


class Cache:
    """Something that could never be stored."""


class Note(BaseModel):
    model_config = ConfigDict(frozen=True)

    text: str = Field(max_length=5)
    tags: Sequence[str] = ()
    by: Mapping[str, int] = {}


class Brief(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True, str_strip_whitespace=True)

    customer: str
    draft: Annotated[str | None, ModelWritable()] = Field(default=None, max_length=10)
    notes: Annotated[Sequence[Note], Append()] = ()
    prices: Annotated[Mapping[str, int], Merge()] = {}
    best: Annotated[int, Reducer(max), Field(lt=100)] = 0
    words: Sequence[str] = Field(default_factory=lambda: ["w"])
    scratch: Annotated[Cache | None, Ephemeral()] = None

    @property
    def ready(self) -> bool:
        return self.draft is not None


class Still(BaseModel):
    model_config = ConfigDict(frozen=True)

    size: int = 0


PLAN = DataPlan(Brief, "Summarise")


def said(text: str) -> Message:
    return Message(role="user", content=text)


def wire(delta: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(msgspec.json.encode(delta), type=dict[str, msgspec.Raw])


def reloaded(plan: DataPlan[Any], *commits: Merged[Any]) -> Any:
    return plan.load(
        {},
        [(n, wire(commit.delta)) for n, commit in enumerate(commits)],
        [(n, commit.items) for n, commit in enumerate(commits) if commit.items is not None],
        [],
        {},
    ).data


def after(plan: DataPlan[Any], before: Merged[Any], **update: object) -> Merged[Any]:
    return plan.merge(before.live, [("main", update)], {}, n=1, positions=before.positions)


class TestData:
    def test_comes_back_as_it_was_and_cannot_be_changed_inside(self) -> None:
        first = PLAN.started(Brief(customer="c", prices={"a": 1}, notes=[Note(text="n", tags=["t"])]), {})
        then = after(PLAN, first, draft="d", notes=[Note(text="m", by={"x": 1})], prices={"b": 2}, best=4)
        back = reloaded(PLAN, first, then)
        assert back == then.data
        assert set(then.delta) == {"draft", "notes", "prices", "best"}
        assert back.notes == (Note(text="n", tags=("t",)), Note(text="m", by={"x": 1}))
        assert back.words == ("w",)
        for data in (first.data, then.data, then.live, back):
            prices: Any = data.prices
            with pytest.raises(TypeError):
                prices["c"] = 1
        with pytest.raises(TypeError):
            back.notes[1].by["y"] = 1

    def test_of_a_cache_is_there_in_this_process_alone(self) -> None:
        cache = Cache()
        then = after(PLAN, PLAN.started(Brief(customer="c"), {}), scratch=cache)
        assert (then.live.scratch, then.data.scratch) == (cache, None)
        prices: Any = then.live.prices
        with pytest.raises(TypeError):
            prices["c"] = 1

    def test_is_patched_by_a_model(self) -> None:
        assert PLAN.patch({"draft": "d", "customer": "mine"}) == {"draft": "d"}
        assert list(PLAN.patch_schema()["properties"]) == ["draft"]
        with pytest.raises(BadUpdate, match=r"Summarise\.draft: String should have at most 10 characters"):
            PLAN.patch({"draft": "much too long for it"})

    def test_is_shown_to_users_code_as_a_copy_where_it_can_be_changed(self) -> None:
        data = PLAN.started(Brief(customer="c"), {}).data
        shown = PLAN.shown(data)
        shown.draft = "x"
        assert data.draft is None
        with pytest.raises(BadUpdate, match=r"Summarise\.draft: main assigned it in place"):
            PLAN.check_unchanged(data, shown, "main")
        still = DataPlan(Still, "M")
        data_of_still = still.started(Still(), {}).data
        assert still.shown(data_of_still) is data_of_still

    def test_takes_records_and_limits_as_they_are(self) -> None:
        class Kept(BaseModel):
            talk: Annotated[Sequence[Message], Conversation()] = ()
            ref: ArtifactRef | None = None
            tokens: Annotated[int, Cost()] = 0
            lines: Annotated[Sequence[str], Append(keep=2)] = ()
            budget: Budget = Budget(steps=3, tokens=10)

        plan = DataPlan(Kept, "M")
        ref = ArtifactRef(id="a", sha256="b", media_type="text/plain", size_bytes=1)
        first = plan.started(Kept(ref=ref, lines=["a", "b", "c"]), {})
        then = after(plan, first, tokens=4, budget=Budget(steps=5), lines=["d"], talk=[said("hi")])
        assert then.data == Kept(
            ref=ref, tokens=4, lines=("c", "d"), talk=(said("hi"),), budget=Budget(steps=5)
        )
        assert reloaded(plan, first, after(plan, first, tokens=4)).tokens == 4
        assert plan.budget == "budget"
        with pytest.raises(BadUpdate, match=r"M\.tokens: it counts what is used"):
            after(plan, first, tokens=-1)

    def test_of_a_generic_class(self) -> None:
        class Page(BaseModel, Generic[T]):
            item: T

        plan = DataPlan(Page[int], "M")
        assert reloaded(plan, plan.started(Page[int](item=1), {})) == Page[int](item=1)

    def test_of_a_subclass(self) -> None:
        class Longer(Brief):
            more: int = 0

        plan = DataPlan(Longer, "M")
        first = plan.started(Longer(customer="c", more=2), {})
        assert reloaded(plan, first) == first.data


class TestValidation:
    def test_names_the_field_of_an_update(self) -> None:
        first = PLAN.started(Brief(customer="c"), {})
        with pytest.raises(BadUpdate, match=r"Summarise\.draft: String should have at most 10 characters"):
            after(PLAN, first, draft="much too long for it")
        with pytest.raises(BadUpdate, match=r"Summarise\.best: Input should be less than 100"):
            after(PLAN, first, best=100)

    def test_runs_on_what_is_read_back(self) -> None:
        with pytest.raises(Unreadable, match=r"Summarise\.best: Input should be less than 100"):
            PLAN.load({"customer": msgspec.Raw(b'"c"'), "best": msgspec.Raw(b"100")}, [], [], [], {})

    def test_does_not_convert_what_is_of_another_type(self) -> None:
        plan = DataPlan(Still, "M")
        with pytest.raises(NotStorable, match=r"M\.size: '4' \(str\) is no int"):
            after(plan, plan.started(Still(), {}), size="4")

    def test_writes_what_it_made_of_a_value(self) -> None:
        then = after(PLAN, PLAN.started(Brief(customer="c"), {}), draft="  d ")
        assert then.data.draft == "d"
        assert bytes(then.delta["draft"][1]) == b'"d"'

    def test_of_the_whole_model_is_told_without_a_field(self) -> None:
        class Range(BaseModel):
            low: int = 0
            high: int = 9

            @model_validator(mode="after")
            def ordered(self) -> "Range":
                if self.low > self.high:
                    raise ValueError("low is over high")
                return self

        plan = DataPlan(Range, "M")
        with pytest.raises(BadUpdate, match="M: Range refuses the values: Value error, low is over high"):
            after(plan, plan.started(Range(), {}), low=10)

    def test_of_a_nested_model_names_the_place(self) -> None:
        with pytest.raises(Unreadable, match=r"note: Note\.text: String should have at most 5 characters"):
            codec(Note, "note").decode(b'{"text":"too long"}', "note")
        with pytest.raises(Unreadable, match=r"note\.tags\[1\]: expected str"):
            codec(Note, "note").decode(b'{"text":"a","tags":["a",1]}', "note")
        with pytest.raises(Unreadable, match=r"note: Note has no field 'x'"):
            codec(Note, "note").decode(b'{"text":"a","x":1}', "note")
        with pytest.raises(Unreadable, match=r"note: Note\.text: Field required"):
            codec(Note, "note").decode(b"{}", "note")


class Loud(BaseModel):
    model_config = ConfigDict(frozen=True)

    text: str

    @field_validator("text")
    @classmethod
    def louder(cls, text: str) -> str:
        return text + "!"


class TestNested:
    def test_in_a_record_and_a_record_in_it(self) -> None:
        @record
        class Line:
            note: Note

        class Sheet(BaseModel):
            model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

            lines: Sequence[Line]

        made = codec(Sheet, "sheet")
        raw, back = made.roundtrip(Sheet(lines=[Line(note=Note(text="a"))]), "sheet")
        assert raw == b'{"lines":[{"note":{"by":{},"tags":[],"text":"a"}}]}'
        assert made.decode(raw, "sheet") == back == Sheet(lines=(Line(note=Note(text="a")),))

    def test_has_a_schema(self) -> None:
        schema = codec(Note, "note").schema()
        assert schema["$defs"]["Note"]["required"] == ["text"]
        assert set(schema["$defs"]["Note"]["properties"]) == {"text", "tags", "by"}

    def test_is_not_stored_where_its_validator_would_change_it_again(self) -> None:
        with pytest.raises(NotStorable, match="it would not come back equal"):
            codec(Loud, "loud").encode(Loud(text="a"), "loud")

    def test_another_class_is_no_such_model(self) -> None:
        with pytest.raises(NotStorable, match=r"note: Still\(size=0\) \(Still\) is no Note"):
            codec(Note, "note").encode(Still(), "note")


class Rooted(RootModel[int]):
    pass


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Hiding(BaseModel):
    size: int = 0
    _cache: int = 0


class Renamed(BaseModel):
    size: int = Field(default=0, alias="Size")


class HoldsOpen(BaseModel):
    inner: Brief


class HoldsRenamed(BaseModel):
    class Inner(BaseModel):
        model_config = ConfigDict(frozen=True)

        size: int = Field(alias="Size")

    inner: Inner


class ListOf(BaseModel):
    words: list[str]


class Owns(BaseModel):
    seq: int = runtime_owned(Position.seq)


class Unresolved(BaseModel):
    inner: "NeverDefined"  # type: ignore[name-defined]  # noqa: F821


@pydantic_dataclass
class Mixed:
    size: int = 0


class TestRefused:
    @pytest.mark.parametrize(
        ("cls", "message"),
        [
            (Rooted, "M: Rooted is a RootModel, which has no fields"),
            (Extra, "M: Extra has extra='allow', and what is not declared is not stored: drop it"),
            (Hiding, r"M\._cache: a private attribute is not stored"),
            (Renamed, r"M\.size: its alias 'Size' is a second name: drop it"),
            (HoldsRenamed, r"M\.inner\.size: its alias 'Size' is a second name: drop it"),
            (
                HoldsOpen,
                r"M\.inner: Brief can be changed in place: give it model_config = ConfigDict\(frozen",
            ),
            (Owns, r"M\.seq: runtime_owned\(\) is a field of a @record alone"),
            (ListOf, r"M\.words: list\[str\] cannot be stored"),
            (Unresolved, "M: pydantic cannot resolve an annotation of Unresolved"),
            (Mixed, "M: Mixed is pydantic's dataclass: make it a BaseModel, or a plain dataclass"),
        ],
    )
    def test_at_class_creation_by_name(self, cls: Any, message: str) -> None:
        with pytest.raises(DefinitionError, match=message):
            DataPlan(cls, "M")


def test_pydantic_is_not_imported_without_a_model() -> None:
    code = (
        "import sys, dataclasses, perdure.machines as m\n"
        "@dataclasses.dataclass\n"
        "class D:\n"
        "    size: int = 0\n"
        "m.DataPlan(D, 'M').started(D(), {})\n"
        "sys.exit('pydantic' in sys.modules or 'pydantic_core' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
