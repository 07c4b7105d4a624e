"""Plain dataclasses as a machine's data and as values in it: what works as in a record, what is refused."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import attrs
import msgspec
import pytest

from perdure.machines import (
    Append,
    BadUpdate,
    Conversation,
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


@dataclass(frozen=True)
class Note:
    text: str
    tags: Sequence[str] = ()


@dataclass
class Brief:
    kind: ClassVar[str] = "brief"
    customer: str
    draft: Annotated[str | None, ModelWritable()] = None
    notes: Annotated[Sequence[Note], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()
    prices: Annotated[Mapping[str, int], Merge()] = field(default_factory=dict)
    best: Annotated[int, Reducer(max)] = 0
    words: Sequence[str] = field(default_factory=list)
    scratch: Annotated[Cache | None, Ephemeral()] = None

    @property
    def ready(self) -> bool:
        return self.draft is not None


@dataclass(frozen=True)
class Still:
    customer: str
    size: int = 0


PLAN = DataPlan(Brief, "Summarise")


def wire(delta: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(msgspec.json.encode(delta), type=dict[str, msgspec.Raw])


def reloaded(plan: DataPlan[Any], *commits: Merged[Any]) -> Any:
    return plan.load(
        {},
        [(n, wire(commit.delta)) for n, commit in enumerate(commits)],
        [(n, commit.items) for n, commit in enumerate(commits) if commit.items is not None],
        [message for commit in commits for message in commit.messages],
        {},
    ).data


def after(plan: DataPlan[Any], before: Merged[Any], **update: object) -> Merged[Any]:
    return plan.merge(before.live, [("main", update)], {}, n=1, positions=before.positions)


class TestData:
    def test_of_every_kind_of_field_comes_back_as_it_was(self) -> None:
        first = PLAN.started(Brief("c", prices={"a": 1}, words=["x"], notes=[Note("n", ["t"])]), {})
        then = after(
            PLAN,
            first,
            draft="d",
            notes=[Note("m")],
            prices={"b": 2},
            best=4,
            talk=[Message(role="user", content="hi")],
        )
        assert then.data == Brief(
            "c",
            draft="d",
            notes=(Note("n", ("t",)), Note("m")),
            talk=(Message(role="user", content="hi"),),
            prices={"a": 1, "b": 2},
            best=4,
            words=("x",),
        )
        assert reloaded(PLAN, first, then) == then.data
        assert set(then.delta) == {"draft", "notes", "prices", "best"}
        with pytest.raises(TypeError):
            then.data.prices["c"] = 1

    def test_is_no_part_of_what_the_caller_holds(self) -> None:
        given = Brief("c")
        first = PLAN.started(given, {})
        given.customer = "other"
        assert first.data.customer == "c"

    def test_of_a_cache_is_there_in_this_process_alone(self) -> None:
        cache = Cache()
        then = after(PLAN, PLAN.started(Brief("c"), {}), scratch=cache)
        assert (then.live.scratch, then.data.scratch) == (cache, None)

    def test_is_patched_by_a_model(self) -> None:
        assert PLAN.patch({"draft": "d", "customer": "mine"}) == {"draft": "d"}
        assert list(PLAN.patch_schema()["properties"]) == ["draft"]

    def test_lacks_no_field_that_was_added_with_a_default(self) -> None:
        @dataclass
        class Old:
            customer: str

        @dataclass
        class New(Old):
            words: Sequence[str] = field(default_factory=lambda: ["w"])

        first = DataPlan(Old, "M").started(Old("c"), {})
        assert reloaded(DataPlan(New, "M"), first) == New("c", ("w",))

    def test_of_a_generic_class(self) -> None:
        @dataclass
        class Page(Generic[T]):
            item: T

        plan = DataPlan(Page[int], "M")
        first = plan.started(Page(1), {})
        assert reloaded(plan, first) == Page(1)
        with pytest.raises(NotStorable, match=r"M\.item: 'x' \(str\) is no int"):
            plan.started(Page("x"), {})  # type: ignore[arg-type]

    def test_in_slots_is_copied_and_read_back(self) -> None:
        @dataclass(slots=True, kw_only=True)
        class Small:
            size: int = 0

        plan = DataPlan(Small, "M")
        first = plan.started(Small(size=2), {})
        shown = plan.shown(first.data)
        shown.size = 3
        assert first.data.size == 2
        assert reloaded(plan, first) == Small(size=2)


class TestPostInit:
    def test_what_it_changes_is_what_is_written(self) -> None:
        @dataclass
        class Tidy:
            name: str = ""
            length: int = 0

            def __post_init__(self) -> None:
                self.name = self.name.strip()
                self.length = len(self.name)

        plan = DataPlan(Tidy, "M")
        then = after(plan, plan.started(Tidy(), {}), name=" abc ")
        assert {name: bytes(change[1]) for name, change in then.delta.items()} == {
            "name": b'"abc"',
            "length": b"3",
        }
        assert then.data == Tidy("abc")

    def test_what_it_refuses_is_refused(self) -> None:
        @dataclass
        class Checked:
            size: int = 0

            def __post_init__(self) -> None:
                if self.size < 0:
                    raise ValueError("size is under zero")

        plan = DataPlan(Checked, "M")
        first = plan.started(Checked(), {})
        with pytest.raises(BadUpdate, match="M: Checked refuses the values: ValueError: size is under zero"):
            after(plan, first, size=-1)
        with pytest.raises(Unreadable, match="size is under zero"):
            plan.load({"size": msgspec.Raw(b"-1")}, [], [], [], {})

    def test_may_not_change_what_accumulates(self) -> None:
        @dataclass
        class Short:
            notes: Annotated[Sequence[str], Append()] = ()

            def __post_init__(self) -> None:
                self.notes = self.notes[-1:]

        plan = DataPlan(Short, "M")
        first = plan.started(Short(["a"]), {})
        with pytest.raises(BadUpdate, match=r"M\.notes: Short changes items that accumulate"):
            after(plan, first, notes=["b"])

    def test_of_a_record_is_written_too(self) -> None:
        def upper(name: str) -> str:
            return name.upper()

        @attrs.frozen(kw_only=True)
        class Loud:
            name: str = attrs.field(default="", converter=upper)
            size: int = 0

            def __attrs_post_init__(self) -> None:
                object.__setattr__(self, "size", len(self.name))

        plan = DataPlan(Loud, "M")
        first = plan.started(Loud(name="ab"), {})
        later = after(plan, first, name="abc")
        assert later.data == Loud(name="ABC", size=3)
        assert msgspec.json.decode(msgspec.json.encode(later.delta)) == {
            "name": ["s", "ABC"],
            "size": ["s", 3],
        }

    @pytest.mark.parametrize("kind", ["dataclass", "record"])
    def test_may_not_go_on_changing_what_is_read_back(self, kind: str) -> None:
        @dataclass
        class Counting:
            times: int = 0

            def __post_init__(self) -> None:
                self.times += 1

        def more(times: int) -> int:
            return times + 1

        @attrs.frozen(kw_only=True)
        class Counted:
            times: int = attrs.field(default=0, converter=more)

        cls: Any = Counting if kind == "dataclass" else Counted
        plan: DataPlan[Any] = DataPlan(cls, "M")
        with pytest.raises(NotStorable, match=r"M\.times: Count\w+ changes it each time it is read back"):
            plan.started(cls(), {})

    def test_that_never_ran_leaves_no_field_without_a_value(self) -> None:
        plan = DataPlan(Brief, "M")
        with pytest.raises(NotStorable, match=r"M\.\w+: it has no value: make the data by its constructor"):
            plan.started(object.__new__(Brief), {})

    def test_may_not_make_what_cannot_be_stored(self) -> None:
        @dataclass
        class Odd:
            name: str = ""

            def __post_init__(self) -> None:
                self.name = 1 if self.name == "odd" else self.name  # type: ignore[assignment]

        plan = DataPlan(Odd, "M")
        with pytest.raises(NotStorable, match=r"M\.name: 1 \(int\) is no str"):
            after(plan, plan.started(Odd(), {}), name="odd")


class TestWhatUsersCodeIsShown:
    def test_is_a_copy_of_what_can_be_changed(self) -> None:
        data = PLAN.started(Brief("c"), {}).data
        shown = PLAN.shown(data)
        PLAN.check_unchanged(data, shown, "main")
        shown.draft = "changed"
        assert data.draft is None
        with pytest.raises(
            BadUpdate, match=r"Summarise\.draft: main assigned it in place.*return it as an update"
        ):
            PLAN.check_unchanged(data, shown, "main")

    def test_is_the_data_itself_where_it_cannot(self) -> None:
        plan = DataPlan(Still, "M")
        data = plan.started(Still("c"), {}).data
        assert plan.shown(data) is data
        with pytest.raises(dataclasses.FrozenInstanceError):
            data.size = 1  # type: ignore[misc]


@dataclass
class Open:
    size: int = 0


@attrs.define
class OpenAttrs:
    size: int = 0


@dataclass(frozen=True)
class Starting:
    text: str
    seed: InitVar[int] = 0


@dataclass
class HoldsOpen:
    inner: Open


@dataclass
class HoldsStarting:
    inner: Sequence[Starting]


@dataclass
class Owns:
    seq: int = runtime_owned(Position.seq)


@dataclass
class NotGiven:
    size: int = field(default=0, init=False)


@dataclass
class Hidden:
    _size: int = 0


@dataclass
class ListOf:
    words: list[str]


@dataclass
class BadDefault:
    size: int = "x"  # type: ignore[assignment]


class Undecorated(Brief):
    more: int = 0


class OnlyMore(Brief):
    kind: ClassVar[str] = "more"

    @property
    def loud(self) -> str:
        return self.customer.upper()


@record
class Recorded:
    size: int = 0


@dataclass(frozen=True)
class Mixed(Recorded):
    more: int = 0


class UndecoratedRecord(Recorded):
    more: int = 0


def test_a_subclass_without_fields_of_its_own_needs_no_decorator() -> None:
    plan = DataPlan(OnlyMore, "M")
    first = plan.started(OnlyMore("c"), {})
    assert reloaded(plan, first).loud == "C"


class TestRefused:
    @pytest.mark.parametrize(
        ("cls", "message"),
        [
            (Starting, r"M\.seed: an InitVar is not kept, and so cannot be given again: make it a field"),
            (HoldsStarting, r"M\.inner\[\.\.\.\]\.seed: an InitVar is not kept"),
            (HoldsOpen, r"M\.inner: Open can be changed in place: make it a @record"),
            (Owns, r"M\.seq: runtime_owned\(\) is a field of a @record alone"),
            (NotGiven, r"M\.size: init=False, so that nothing could set it"),
            (Hidden, r"M\._size: an update could not name a private field"),
            (ListOf, r"M\.words: list\[str\] cannot be stored: it can be changed in place"),
            (BadDefault, r"M\.size, by default: 'x' \(str\) is no int"),
            (Undecorated, r"M\.more: it is no field: decorate Undecorated with @dataclass"),
            (UndecoratedRecord, r"M\.more: it is no field: decorate UndecoratedRecord with @record"),
            (Mixed, r"M: Mixed is a record and a dataclass: decorate it and its bases alike"),
            (OpenAttrs, r"M: the data OpenAttrs of a machine has to be a @record, a dataclass or a pydantic"),
            (int, r"M: the data int of a machine has to be a @record, a dataclass or a pydantic model"),
        ],
    )
    def test_at_class_creation_by_name(self, cls: Any, message: str) -> None:
        with pytest.raises(DefinitionError, match=message):
            DataPlan(cls, "M")


class TestNested:
    def test_in_a_record_and_records_in_it(self) -> None:
        @record
        class Line:
            note: Note

        @dataclass(frozen=True)
        class Sheet:
            lines: Sequence[Line]
            by: Mapping[str, Note] = field(default_factory=dict)

        made = codec(Sheet, "sheet")
        value = Sheet([Line(note=Note("a"))], {"x": Note("b", ["t"])})
        raw, back = made.roundtrip(value, "sheet")
        assert back == Sheet((Line(note=Note("a")),), {"x": Note("b", ("t",))})
        assert made.decode(raw, "sheet") == back
