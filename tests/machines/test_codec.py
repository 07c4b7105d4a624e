"""What a codec stores, refuses and reads back: the named cases. ``test_values_property`` has the rest."""

import collections
import enum
import io
import json
import math
import pathlib
import struct
import typing
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest

from perdure.machines._codec import codec
from perdure.machines._errors import DefinitionError, NotStorable, Unreadable
from perdure.machines._record import ArtifactRef, Message, ToolCall, record, runtime_owned
from perdure.machines._values import FrozenMapping

T = TypeVar("T")
CustomerId = NewType("CustomerId", str)
BERLIN = ZoneInfo("Europe/Berlin")


class Color(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.Enum):
    FAST = enum.auto()
    SLOW = enum.auto()


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    A = 1
    B = 2


@record
class Base:
    size: int = 1


@record
class Sub(Base):
    extra: str = ""


@record
class Other:
    size: int = 1


@record
class Holder:
    held: Base | Sub
    maybe: Base | Sub | None = None


@record
class Left(Base):
    pass


@record
class Right(Base):
    pass


@record
class Diamond(Left, Right):
    pass


@record
class Tree:
    name: str
    children: Sequence["Tree"] = ()


@record
class Page(Generic[T]):
    items: Sequence[T]
    total: int


@record
class Numbers(Page[int]):
    label: str = ""


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0
    tags: Sequence[str] = field(default_factory=tuple)


@attrs.frozen
class Private:
    _secret: str
    shown: int = 0


@attrs.frozen
class Short:
    text: str = attrs.field(validator=attrs.validators.max_len(3))


@attrs.frozen
class Shouting:
    text: str = attrs.field(converter=str.upper)


@dataclass
class Loose:
    x: int


@attrs.define
class Open:
    x: int


class Pair(NamedTuple):
    x: int


class Table(TypedDict):
    x: int


def back(type_: Any, value: Any) -> Any:
    made = codec(type_, "field")
    raw, read = made.roundtrip(value, "field")
    json.loads(raw, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert made.encode(read, "field") == raw
    assert made.snapshot(read) == raw
    again = made.decode(raw, "field")
    assert made.same(read, again)
    return again


def refusal(type_: Any, value: Any) -> str:
    with pytest.raises(NotStorable) as caught:
        codec(type_, "field").roundtrip(value, "thread t: Data.field")
    message = str(caught.value)
    assert message.startswith("thread t: Data.field")
    return message.removeprefix("thread t: Data.field")


class TestComesBackAsItWas:
    @pytest.mark.parametrize(
        ("type_", "value"),
        [
            (None, None),
            (bool, True),
            (int, 2**80),
            (int, -(2**63) - 1),
            (float, 1.0),
            (float, 5e-324),
            (float, math.inf),
            (float, -math.inf),
            (str, "a\x00b"),
            (str, '\u2028 \U0001f600 \\ "'),
            (bytes, b"\x00\xff"),
            (Decimal, Decimal("1.00")),
            (Decimal, Decimal("-Infinity")),
            (UUID, UUID(int=7)),
            (date, date(2026, 2, 28)),
            (time, time(2, 30, fold=1)),
            (time, time(2, 30, tzinfo=BERLIN)),
            (datetime, datetime(2026, 10, 25, 2, 30, fold=1)),
            (
                datetime,
                datetime(2026, 10, 25, 2, 30, 1, 5, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
            ),
            (timedelta, timedelta.max),
            (timedelta, timedelta.min),
            (timedelta, timedelta(microseconds=-1)),
            (Color, Color.BLUE),
            (Level, Level.HIGH),
            (Mode, Mode.SLOW),
            (Access, Access.READ | Access.WRITE),
            (Bits, Bits(0)),
            (Literal[1, True, "1", None, Color.RED], True),
            (Literal[1, True, "1", None, Color.RED], 1),
            (Literal[1, True, "1", None, Color.RED], None),
            (Literal[1, True, "x", Color.RED], Color.RED),
            (CustomerId, "cust_42"),
            (Annotated[int, "a note"], 3),
            (int | None, None),
            (int | str, 5),
            (int | str, "5"),
            (int | float, 1),
            (int | float, 1.0),
            (int | float | str | bool | None, "nan"),
            (int | float | str | bool | None, math.inf),
            (str | bytes | Decimal | UUID, b"AAAA"),
            (str | Color, Color.RED),
            (str | Color, "red"),
            (date | datetime, datetime(2026, 1, 1)),
            (date | datetime, date(2026, 1, 1)),
            (Literal["auto"] | int, "auto"),
            (Literal["auto"] | str, "other"),
            (tuple[int, str], (1, "a")),
            (tuple[()], ()),
            (tuple[int, ...], (1, 2)),
            (tuple[float, ...], (1.0, math.inf)),
            (Sequence[Sequence[int]], ((1,), ())),
            (frozenset[tuple[int, int]], frozenset({(1, 2), (0, 3)})),
            pytest.param(frozenset[str | int], frozenset({"1", 1}), id="a set of texts and numbers"),
            (Mapping[str, int], FrozenMapping({"a\x00": 1, "$": 2})),
            (Mapping[int, str], FrozenMapping({2**70: "x", -1: "y"})),
            (Mapping[Color, int], FrozenMapping({Color.RED: 1})),
            (Mapping[Level, int], FrozenMapping({Level.LOW: 1})),
            (Mapping[UUID, int], FrozenMapping({UUID(int=1): 1})),
            (Mapping[bytes, int], FrozenMapping({b"\xff": 1})),
            (Mapping[tuple[int, str], Base], FrozenMapping({(1, "a"): Base(size=2)})),
            (Mapping[bool | None, int], FrozenMapping({None: 1, True: 2})),
            (Mapping[str, str] | str | bytes, FrozenMapping({"$": "bytes", "value": "AA=="})),
            (Tree, Tree(name="a", children=(Tree(name="b"),))),
            (Page[int], Page[int](items=(1, 2), total=2)),
            (Page[Sequence[str]], Page(items=(("a",),), total=2)),
            (Numbers, Numbers(items=(1,), total=1, label="n")),
            (Point, Point(1, 2.5, ("a",))),
            (Private, Private(secret="s", shown=2)),
            (ArtifactRef, ArtifactRef(id="a", sha256="0" * 64, media_type="text/plain", size_bytes=1)),
            (
                Message,
                Message(
                    role="assistant", content="", tool_calls=(ToolCall(id="1", name="f", arguments="{}"),)
                ),
            ),
        ],
        ids=repr,
    )
    def test_equal_and_of_the_same_type(self, type_: Any, value: Any) -> None:
        read = back(type_, value)
        assert read == value
        assert type(read) is type(value)

    def test_nan(self) -> None:
        assert math.isnan(back(float, math.nan))
        assert back(Sequence[float], (math.nan, -0.0))[1:] == (0.0,)
        assert Decimal("sNaN").as_tuple() == back(Decimal, Decimal("sNaN")).as_tuple()

    def test_minus_zero_keeps_its_sign(self) -> None:
        assert math.copysign(1.0, back(float, -0.0)) == -1.0

    def test_a_decimal_keeps_its_exponent(self) -> None:
        assert str(back(Decimal, Decimal("1E+3"))) == "1E+3"

    @pytest.mark.parametrize("fold", [0, 1])
    def test_an_ambiguous_wall_clock_keeps_zone_and_fold(self, fold: int) -> None:
        value = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold)
        read = back(datetime, value)
        assert (read.tzinfo, read.fold, read.utcoffset()) == (BERLIN, fold, value.utcoffset())

    def test_an_integer_enum_stays_what_it_is(self) -> None:
        assert back(int | Level, Level.HIGH) is Level.HIGH
        assert type(back(int | Level, 2)) is int

    def test_keys_of_a_mapping_keep_their_type(self) -> None:
        assert {type(key) for key in back(Mapping[int, int], {1: 1})} == {int}
        assert {type(key) for key in back(Mapping[Level, int], {Level.LOW: 1})} == {Level}


class TestMutableCollectionsComeBackImmutable:
    def test_a_list_as_a_tuple(self) -> None:
        assert back(Sequence[int], [1, 2]) == (1, 2)

    def test_a_set_as_a_frozenset(self) -> None:
        assert type(back(AbstractSet[int], {1})) is frozenset

    def test_a_dict_as_a_mapping_that_refuses_changes(self) -> None:
        read = back(Mapping[str, Sequence[int]], {"a": [1]})
        assert read == {"a": (1,)}
        for change in (
            lambda: read.__setitem__("b", 1),
            lambda: read.update(b=1),
            lambda: read.pop("a"),
            lambda: read.popitem(),
            lambda: read.clear(),
            lambda: read.setdefault("b", 1),
            lambda: read.__delitem__("a"),
            lambda: read.__ior__({"b": 1}),
        ):
            with pytest.raises(TypeError, match="new mapping"):
                change()
        assert read == {"a": (1,)}
        assert {**read, "b": ()} == {"a": (1,), "b": ()}
        assert hash(read) == hash(back(Mapping[str, Sequence[int]], {"a": (1,)}))

    def test_but_not_where_the_type_is_exact(self) -> None:
        assert "is no tuple[int, ...]: [1] (list)" not in refusal(tuple[int, ...], [1])
        assert "[1] (list) is no tuple[int, ...]" in refusal(tuple[int, ...], [1])
        assert "is no frozenset[int]" in refusal(frozenset[int], {1})


class TestUnionsOfRecords:
    @pytest.mark.parametrize("value", [Base(), Sub(), Sub(size=2, extra="x")])
    def test_base_or_subclass_comes_back_as_what_it_was(self, value: Base) -> None:
        assert type(back(Base | Sub, value)) is type(value)
        assert type(back(Sub | Base | None, value)) is type(value)
        held = back(Holder, Holder(held=value, maybe=value))
        assert type(held.held) is type(held.maybe) is type(value)

    @pytest.mark.parametrize("value", [Base(), Left(), Right(), Diamond(), Other(), None])
    def test_classes_with_the_same_fields_are_told_apart(self, value: Any) -> None:
        assert type(back(Base | Left | Right | Diamond | Other | None, value)) is type(value)

    def test_a_subclass_where_the_base_is_declared_is_refused(self) -> None:
        assert refusal(Base, Sub()) == ": Sub(size=1, extra='') (Sub) is no Base: it would come back as Base"
        assert ".held" in refusal(Holder, Holder(held=Left()))

    def test_two_classes_of_one_name_are_refused(self) -> None:
        again = attrs.make_class("Base", {"size": attrs.field(type=int)}, frozen=True)
        with pytest.raises(DefinitionError, match="have one name"):
            codec(Base | again, "M.x")

    def test_two_parameters_of_one_generic_are_refused(self) -> None:
        with pytest.raises(DefinitionError, match=r"M.x: Page\[int\] \| Page\[str\]: .* both a Page"):
            codec(Page[int] | Page[str], "M.x")

    @pytest.mark.parametrize(
        "type_",
        [
            Sequence[int] | tuple[str, str],
            Sequence[int] | Sequence[str],
            Mapping[str, int] | Mapping[str, str],
        ],
    )
    def test_collections_that_cannot_be_told_apart_are_refused(self, type_: Any) -> None:
        with pytest.raises(DefinitionError, match="cannot be told apart"):
            codec(type_, "M.x")


class TestWrongValuesAreRefused:
    @pytest.mark.parametrize(
        ("type_", "value", "message"),
        [
            (int, True, ": True (bool) is no int: it would come back as int"),
            (int, Level.LOW, "(Level) is no int: it would come back as int"),
            (int, 1.0, ": 1.0 (float) is no int"),
            (float, 1, ": 1 (int) is no float"),
            (float, "nan", ": 'nan' (str) is no float"),
            (str, Color.RED, "(Color) is no str: it would come back as str"),
            (str, None, ": None (NoneType) is no str"),
            (bytes, bytearray(b"x"), "(bytearray) is no bytes"),
            (date, datetime(2026, 1, 1), "(datetime) is no date: it would come back as date"),
            (Color, "red", ": 'red' (str) is no Color"),
            (Literal["a"], "b", ": 'b' (str) is none of Literal['a']"),
            (Literal[1], True, "is no Literal[1]"),
            (Literal[0, True], 1, "1 (int) is none of Literal[0, True]"),
            (int | str, 1.5, ": 1.5 (float) is no "),
            (Sequence[str], "abc", ": 'abc' (str) is no Sequence[str]"),
            (Sequence[int], {1}, ": {1} (set) is no Sequence[int]"),
            (Sequence[int], range(3), "(range) is no Sequence[int]"),
            (Sequence[int], [1, True], "[1]: True (bool) is no int: it would come back as int"),
            (Sequence[int], collections.deque([1], maxlen=3), "(deque) is no Sequence[int]"),
            pytest.param(Sequence[Base], iter([]), "is no Sequence[Base]", id="iterator"),
            (tuple[int, str], (1,), ": it has 1 items, tuple[int, str] has 2"),
            (tuple[int, str], (1, 2), "[1]: 2 (int) is no str"),
            (frozenset[int], frozenset({True}), "{...}: True (bool) is no int: it would come back as int"),
            (Mapping[str, int], collections.Counter("a"), "(Counter) is no Mapping[str, int]"),
            (Mapping[str, int], {"a": True}, "['a']: True (bool) is no int: it would come back as int"),
            (Mapping[str, int], {1: 1}, "[key 1]: 1 (int) is no str"),
            (Mapping[int, int], {True: 1}, "[key True]: True (bool) is no int: it would come back as int"),
            (Base, None, ": None (NoneType) is no Base"),
            (Tree, Tree(name="a", children=[Tree(name=1)]), ".children[0].name: 1 (int) is no str"),
            (Short, None, ": None (NoneType) is no Short"),
            (datetime, datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")), "would be lost"),
        ],
        ids=repr,
    )
    def test_with_the_path_and_the_reason(self, type_: Any, value: Any, message: str) -> None:
        assert message in refusal(type_, value)

    @pytest.mark.parametrize(
        "type_", [str, Sequence[str], Mapping[str, int], frozenset[str], str | int, Tree]
    )
    def test_lone_surrogates(self, type_: Any) -> None:
        value: Any = {
            str: "a\ud800",
            str | int: "a\ud800",
            Sequence[str]: ["a\ud800"],
            Mapping[str, int]: {"a\ud800": 1},
            frozenset[str]: frozenset({"a\ud800"}),
            Tree: Tree(name="a\ud800"),
        }[type_]
        assert "character 1 is the lone surrogate '\\ud800'" in refusal(type_, value)

    def test_a_foreign_time_zone(self) -> None:
        class Zone(timezone.__base__):  # type: ignore[misc, name-defined]
            def utcoffset(self, when: datetime | None) -> timedelta:
                return timedelta(0)

        assert "use zoneinfo.ZoneInfo(name)" in refusal(datetime, datetime(2026, 1, 1, tzinfo=Zone()))

    def test_a_zone_without_a_name(self) -> None:
        counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)
        file = b"TZif" + bytes(16) + counts + struct.pack(">lbb", 3600, 0, 0) + b"CET\0"
        nameless = ZoneInfo.from_file(io.BytesIO(file))
        assert "use zoneinfo.ZoneInfo(name)" in refusal(datetime, datetime(2026, 1, 1, tzinfo=nameless))

    def test_a_constructor_that_changes_its_argument(self) -> None:
        changed = Shouting("a")
        object.__setattr__(changed, "text", "quiet")
        assert "a constructor or converter changes it" in refusal(Shouting, changed)

    def test_a_constructor_that_refuses_what_was_smuggled_in(self) -> None:
        broken = Short("abc")
        object.__setattr__(broken, "text", "too long")
        assert "ValueError" in refusal(Short, broken)

    def test_a_value_that_cannot_even_be_shown(self) -> None:
        class Shy:
            def __repr__(self) -> str:
                raise RuntimeError

        assert "an object of type Shy is no int" in refusal(int, Shy())

    def test_cycles(self) -> None:
        children: list[Any] = []
        children.append(Tree(name="a", children=children))
        assert "nested deeper than 100 levels, or holds itself" in refusal(Tree, children[0])

    def test_depth(self) -> None:
        assert back(Tree, nested(49)) == nested(49)
        assert "nested deeper than 100 levels" in refusal(Tree, nested(51))

    def test_size(self) -> None:
        assert "it has 16,777,217 bytes, 16,777,216 are allowed: put it into an artifact" in refusal(
            str, "x" * (16 * 1024 * 1024 - 1)
        )
        assert len(codec(str, "x").encode("x" * (16 * 1024 * 1024 - 2), "x")) == 16 * 1024 * 1024

    def test_an_int_that_python_does_not_read_back(self) -> None:
        assert "more digits than Python reads back" in refusal(int, 10**5000)


def nested(levels: int) -> Tree:
    tree = Tree(name="leaf")
    for _ in range(levels):
        tree = Tree(name="node", children=(tree,))
    return tree


class TestTypesAreRefusedWhenDeclared:
    @pytest.mark.parametrize(
        ("type_", "message"),
        [
            (list[int], r"list\[int\] cannot be stored: it can be changed in place: say Sequence"),
            (list, "say Sequence"),
            (dict[str, int], "say Mapping"),
            (set[int], "say frozenset"),
            (bytearray, "say bytes"),
            (collections.deque[int], "settings would be lost: say Sequence"),
            (collections.Counter[str], r"say Mapping\[\.\.\., int\]"),
            (collections.defaultdict[str, int], "settings would be lost: say Mapping"),
            (MutableMapping[str, int], "say Mapping"),
            (Iterable[int], "say Sequence"),
            (Callable[[], None], "code is never stored"),
            (pathlib.Path, "say str"),
            (Any, "name the type"),
            (object, "name the type"),
            (complex, "say tuple"),
            (Sequence, r"say what it holds: Sequence"),
            (tuple, r"say what it holds: tuple"),
            (Mapping, r"say what it holds: Mapping"),
            (T, r"give its record a parameter"),
            (Page, r"M\.x\.items\[\.\.\.\]: .* give its record a parameter"),
            (Pair, "make it a @record"),
            (Table, "make it a @record"),
            (Loose, "Loose can be changed in place: make it a @record"),
            (Open, "Open can be changed in place: make it a @record"),
            (type("Arbitrary", (), {}), "Arbitrary cannot be stored: make it a @record"),
            (Literal[b"x"], "cannot be stored: use None, bool, int, str or enum members"),
            (Literal["red", Color.RED], "is ambiguous"),
            (enum.Enum, "has no members"),
            (Sequence[Mapping[str, list[int]]], r"^M\.x\[\.\.\.\]\[\.\.\.\]: list"),
            (int | list[int], "say Sequence"),
        ],
        ids=repr,
    )
    def test_naming_the_place_and_the_mend(self, type_: Any, message: str) -> None:
        with pytest.raises(DefinitionError, match=message) as caught:
            codec(type_, "M.x")
        assert str(caught.value).startswith("M.x")

    def test_by_the_field_of_a_nested_record(self) -> None:
        inner = attrs.make_class("Inner", {"items": attrs.field(type=list[int])}, frozen=True)
        outer = attrs.make_class("Outer", {"inner": attrs.field(type=inner)}, frozen=True)
        with pytest.raises(DefinitionError, match=r"^M\.x\.inner\.items: list\[int\] cannot be stored"):
            codec(outer, "M.x")

    def test_a_field_that_the_constructor_does_not_set(self) -> None:
        derived = attrs.make_class(
            "Derived", {"x": attrs.field(type=int, init=False, default=1)}, frozen=True
        )
        with pytest.raises(DefinitionError, match=r"M\.d\.x: .* make it a derived property"):
            codec(derived, "M.d")

    def test_a_runtime_owned_field_of_a_nested_record(self) -> None:
        nested_owner = attrs.make_class("Owner", {"seq": runtime_owned("seq")}, frozen=True)
        with pytest.raises(
            DefinitionError, match=r"M\.o\.seq: the runtime owns fields of a machine's data alone"
        ):
            codec(nested_owner, "M.o")

    def test_an_annotation_that_names_nothing(self) -> None:
        unknown = attrs.make_class("Unknown", {"x": attrs.field(type="Nowhere")}, frozen=True)
        unknown.__annotations__ = {"x": "Nowhere"}
        with pytest.raises(DefinitionError, match=r"annotation of Unknown cannot be resolved.*Nowhere"):
            codec(unknown, "M.u")


class TestStoredBytes:
    @pytest.mark.parametrize(
        ("type_", "raw", "message"),
        [
            (int, b"", "the stored bytes are no JSON"),
            (int, b"\xff", "the stored bytes are no JSON"),
            (int, b"[" * 100_000, "the stored bytes are no JSON"),
            (int, b"true", ": expected int, found True (bool)"),
            (int, b"1.0", ": expected int, found 1.0 (float)"),
            (float, b'"Infinity"', ": expected float"),
            (str, b"null", ": expected str, found None (NoneType)"),
            (UUID, b'"x"', ": 'x' is no UUID"),
            (bytes, b'"a"', ": 'a' is no bytes"),
            (Decimal, b'"one"', ": 'one' is no Decimal: not a decimal number"),
            (datetime, b'"2026-01-01T00:00:00[../../etc/passwd]"', "not a zone's name"),
            (datetime, b'"2026-01-01T00:00:00[Mars/Base]"', "time zone Mars/Base is not known here"),
            (timedelta, b'"P"', "write it as P1DT2H3M4.5S"),
            (Color, b'"green"', ": 'green' (str) is none of Color: red, blue"),
            (Level, b"true", "is none of Level"),
            (Access, b"4", ": 4 (int) is no combination of Access"),
            (Literal["a"], b'["a"]', "is none of Literal['a']"),
            (Sequence[int], b'[1,"x"]', "[1]: expected int, found 'x' (str)"),
            (tuple[int, int], b"[1]", "expected an array of 2 for tuple[int, int]"),
            (frozenset[int], b"[1,1]", ": an item stands twice in a set"),
            (Mapping[str, int], b'{"a":"x"}', "['a']: expected int, found 'x' (str)"),
            (Mapping[int, int], b'{"01":1}', ": '01' is no int as it is written here: 1"),
            (Mapping[tuple[int, int], int], b"[[[1,2],3],[[1,2],4]]", ": a key stands twice in a mapping"),
            (Base, b"[]", "expected an object for Base"),
            (Base, b'{"size":1,"gone":2}', ": Base has no field 'gone'"),
            (Tree, b'{"children":[]}', ": the field 'name' of Tree is missing"),
            (
                Tree,
                b'{"name":"a","children":[{"name":"b","children":[{"name":1}]}]}',
                ".children[0].children[0].name",
            ),
            (Short, b'{"text":"long"}', "ValueError"),
            (Base | Sub, b'{"size":1}', "expected one of Base | Sub"),
            (Base | Sub, b'{"$":"Gone","value":{}}', "expected one of Base | Sub"),
            (Base | Sub, b'{"$":["Base"],"value":{}}', "expected one of Base | Sub"),
            (Base | Sub, b'{"$":"Base","value":{"size":"x"}}', ".size: expected int, found 'x' (str)"),
            (Base | Sub, b'{"$":"Base","size":1}', "expected the one key 'value' beside the tag 'Base'"),
        ],
        ids=repr,
    )
    def test_that_do_not_fit_are_unreadable(self, type_: Any, raw: bytes, message: str) -> None:
        with pytest.raises(Unreadable) as caught:
            codec(type_, "field").decode(raw, "thread t: Data.field")
        assert str(caught.value).startswith("thread t: Data.field")
        assert message in str(caught.value)

    def test_deep_nesting_is_unreadable(self) -> None:
        raw = b'{"name":"a","children":[' * 400 + b"]}" * 400
        with pytest.raises(Unreadable, match=r"^x\.children\[0\].*\.\.\.: nested deeper than 100 levels"):
            codec(Tree, "x").decode(raw, "x")

    def test_name_no_module_to_import(self) -> None:
        with pytest.raises(Unreadable):
            codec(Base | Sub, "x").decode(b'{"$":"os.system","value":"true"}', "x")

    def test_of_an_older_definition_take_the_default(self) -> None:
        assert codec(Sub, "x").decode(b'{"size":3}', "x") == Sub(size=3)

    def test_may_come_as_raw(self) -> None:
        assert codec(Base, "x").decode(msgspec.Raw(b'{"size":3}'), "x") == Base(size=3)

    def test_a_whole_number_is_a_float_where_one_is_declared(self) -> None:
        read = codec(Sequence[float], "x").decode(b"[1,2.5]", "x")
        assert read == (1.0, 2.5)
        assert {type(number) for number in read} == {float}


class TestCanonicalBytes:
    def test_are_compact_and_sorted(self) -> None:
        made = codec(Mapping[str, frozenset[int]], "x")
        assert made.encode({"b": frozenset({3, 1, 2}), "a": frozenset()}, "x") == b'{"a":[],"b":[1,2,3]}'
        assert codec(Sub, "x").encode(Sub(extra="e"), "x") == b'{"extra":"e","size":1}'
        assert codec(tuple[Sub, float], "x").encode((Sub(), 1.0), "x") == b'[{"extra":"","size":1},1.0]'

    def test_do_not_depend_on_how_a_mapping_was_built(self) -> None:
        made = codec(Mapping[tuple[int, int], int], "x")
        assert made.encode({(2, 0): 1, (1, 0): 2}, "x") == made.encode({(1, 0): 2, (2, 0): 1}, "x")

    def test_stay_what_they_are(self) -> None:
        """Keys of effects are digests of these bytes: a change here issues effects again."""
        when = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)
        value: Any = (
            math.nan,
            2**80,
            b"\xff",
            when,
            timedelta(days=1, microseconds=5),
            Mode.SLOW,
            Level.HIGH,
        )
        type_ = tuple[float, int, bytes, datetime, timedelta, Mode, Level]
        assert codec(type_, "x").encode(value, "x") == (
            b'["nan",1208925819614629174706176,"/w==","2026-10-25T02:30:00[Europe/Berlin][fold=1]",'
            b'"P1DT0.000005S","SLOW",2]'
        )
        assert (
            codec(Base | Sub | None, "x").encode(Sub(), "x") == b'{"$":"Sub","value":{"extra":"","size":1}}'
        )


class TestSchema:
    def test_of_records_refers_to_definitions(self) -> None:
        assert codec(Tree, "x").schema() == {
            "$ref": "#/$defs/Tree",
            "$defs": {
                "Tree": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
                    },
                    "required": ["name"],
                    "additionalProperties": False,
                }
            },
        }

    def test_of_a_union_names_its_tags(self) -> None:
        branches = codec(Base | Sub, "x").schema()["anyOf"]
        assert [branch["properties"]["$"] for branch in branches] == [{"const": "Base"}, {"const": "Sub"}]

    def test_tells_classes_of_one_name_apart(self) -> None:
        again = attrs.make_class("Base", {"other": attrs.field(type=int)}, frozen=True)
        definitions = codec(tuple[Base, again], "x").schema()["$defs"]
        assert [set(schema["properties"]) for schema in definitions.values()] == [{"size"}, {"other"}]

    def test_of_plain_types(self) -> None:
        assert codec(Mapping[str, int | None], "x").schema() == {
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        }
        assert codec(Color, "x").schema() == {"enum": ["red", "blue"]}


def test_a_type_gets_one_codec() -> None:
    assert codec(Sequence[Base], "a") is codec(Sequence[Base], "b")


def test_utc_is_written_as_an_offset() -> None:
    assert (
        codec(datetime, "x").encode(datetime(2026, 1, 1, tzinfo=UTC), "x") == b'"2026-01-01T00:00:00+00:00"'
    )


@pytest.mark.skipif(not hasattr(typing, "TypeAliasType"), reason="Python 3.12 has the type statement")
def test_an_alias_stands_for_its_type() -> None:
    alias = typing.TypeAliasType("Ids", Sequence[int])
    assert back(alias, [1]) == (1,)


@attrs.frozen
class Nest(Generic[T]):
    pair: tuple[T, int]
    group: frozenset[T]
    page: Page[T] | None
    lookup: Mapping[str, Sequence[T]]


def test_parameters_reach_every_field_of_a_generic_record() -> None:
    value = Nest(("a", 1), frozenset({"b"}), Page(items=("c",), total=1), FrozenMapping({"d": ("e",)}))
    assert back(Nest[str], value) == value
    assert ".page.items[0]: 'c' (str) is no int" in refusal(
        Nest[int], attrs.evolve(value, pair=(1, 1), group=frozenset({2}))
    )


@record
class Unsorted:
    b: int = 1
    a: int = 2


class Dropping(enum.Flag, boundary=enum.CONFORM):
    A = 1


class Ejecting(enum.IntFlag, boundary=enum.EJECT):
    A = 1


class TestSame:
    """Whether an update changes anything is asked of this alone."""

    @pytest.mark.parametrize(
        ("type_", "one", "other"),
        [
            (int, True, 1),
            (float, 0.0, -0.0),
            (float, 1, 1.0),
            (Decimal, Decimal("1.0"), Decimal("1.00")),
            (str, Color.RED, "red"),
            (int | str, True, 1),
            (int | bool, True, 1),
            (int | None, None, 0),
            (int | float, 1, 1.0),
            (str | Decimal | None, Decimal("1.0"), Decimal("1.00")),
            (datetime, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))),
            (
                datetime,
                datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1))),
                datetime(2026, 1, 1, 12, tzinfo=UTC),
            ),
            (datetime, datetime(2026, 1, 1, fold=1), datetime(2026, 1, 1)),
            (time, time(1, tzinfo=BERLIN), time(1)),
            (Sequence[int], (True,), (1,)),
            (Sequence[int], [1, 2], (1,)),
            (Sequence[float], (0.0,), (-0.0,)),
            (tuple[int, ...], [1], (1,)),
            (tuple[int, str], (True, "a"), (1, "a")),
            (tuple[int, str], [1, "a"], (1, "a")),
            (frozenset[int], frozenset({True}), frozenset({1})),
            (frozenset[int], {1}, frozenset({1})),
            (frozenset[tuple[int, int]], frozenset({(True, 0)}), frozenset({(1, 0)})),
            (Mapping[int, int], {True: 1}, {1: 1}),
            (Mapping[str, int], {"a": True}, {"a": 1}),
            (Mapping[str, int], {"a": 1}, {"b": 1}),
            (Mapping[str, int], collections.Counter("a"), {"a": 1}),
            (Base, Base(size=True), Base(size=1)),
            (Base, Sub(), Base()),
            (Base | Sub, Sub(), Base()),
            (Mapping[str, int] | int, {"a": 1}, 1),
            (Base | None, None, Base()),
            (Base | None, Base(), None),
            (Tree, Tree(name="a", children=[Tree(name="b")]), Tree(name="a", children=(Tree(name="c"),))),
        ],
        ids=repr,
    )
    def test_is_false_for_equal_values_of_other_types(self, type_: Any, one: Any, other: Any) -> None:
        assert not codec(type_, "x").same(one, other)

    @pytest.mark.parametrize(
        ("type_", "one", "other"),
        [
            (float, math.nan, float("nan")),
            (Decimal, Decimal("sNaN"), Decimal("sNaN")),
            (Sequence[int], [1], (1,)),
            (AbstractSet[int], {1}, frozenset({1})),
            (Mapping[str, int], {"b": 1, "a": 2}, FrozenMapping({"a": 2, "b": 1})),
            (
                datetime,
                datetime(2026, 1, 1, tzinfo=ZoneInfo.no_cache("UTC")),
                datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")),
            ),
            (Tree, Tree(name="a", children=[Tree(name="b")]), Tree(name="a", children=(Tree(name="b"),))),
        ],
        ids=repr,
    )
    def test_is_true_for_what_is_stored_alike(self, type_: Any, one: Any, other: Any) -> None:
        assert codec(type_, "x").same(one, other)


def test_fields_are_sorted_however_they_are_declared() -> None:
    assert codec(Unsorted, "x").encode(Unsorted(), "x") == b'{"a":2,"b":1}'


def test_a_record_is_tagged_wherever_it_has_company() -> None:
    """So that another record can join the union, and what is stored can still be read."""
    assert codec(int | Base, "x").encode(Base(), "x") == b'{"$":"Base","value":{"size":1}}'
    assert codec(Base | None, "x").encode(Base(), "x") == b'{"size":1}'


@pytest.mark.parametrize("type_", [Dropping, Ejecting])
def test_a_flag_that_is_gone_is_unreadable_whatever_the_boundary(type_: Any) -> None:
    assert back(type_, type_.A) is type_.A
    with pytest.raises(Unreadable, match=r"3 .* is no combination"):
        codec(type_, "x").decode(b"3", "x")


def test_bytes_are_read_strictly() -> None:
    with pytest.raises(Unreadable, match="is no bytes"):
        codec(bytes, "x").decode(b'"/w==!"', "x")
