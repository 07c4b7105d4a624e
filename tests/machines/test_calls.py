"""Declared calls: their options, and their arguments as they are stored."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure.machines import (
    Absent,
    ArtifactRef,
    BadCall,
    Call,
    DefinitionError,
    Effect,
    Found,
    Keyed,
    NotStorable,
    Read,
    Unknown,
    Unreadable,
    effect,
    read,
    record,
)


@record
class Line:
    item: str
    count: int = 1


@effect
async def order(call: Call, line: Line, *, note: str = "", tags: Sequence[str] = ()) -> int:
    """Order something."""
    return line.count


@order.lookup
async def find_order(
    call: Call, line: Line, *, note: str = "", tags: Sequence[str] = ()
) -> Found[int] | Absent | Unknown:
    return Found(line.count)


@effect
async def ping(call: Call) -> None: ...


class TestArguments:
    def test_they_are_one_canonical_object_with_defaults_and_sorted_names(self) -> None:
        raw, values = order.arguments((Line(item="tea"),), {}, "thread a")
        assert raw == b'{"line":{"count":1,"item":"tea"},"note":"","tags":[]}'
        assert values == {"line": Line(item="tea"), "note": "", "tags": ()}

    def test_how_they_are_given_does_not_matter(self) -> None:
        one, _ = order.arguments((Line(item="tea"),), {"tags": ["a"], "note": "x"}, "thread a")
        two, values = order.arguments((), {"note": "x", "line": Line(item="tea"), "tags": ("a",)}, "thread a")
        assert one == two
        assert values["tags"] == ("a",)

    def test_none_are_an_empty_object(self) -> None:
        assert ping.arguments((), {}, "thread a") == (b"{}", {})
        assert ping.decode_arguments(b"{}", "thread a") == {}

    def test_they_come_back(self) -> None:
        raw, values = order.arguments((Line(item="tea", count=3),), {"tags": ["a", "b"]}, "thread a")
        assert order.decode_arguments(raw, "thread a") == values

    @pytest.mark.parametrize(
        ("args", "kwargs", "said"),
        [
            ((), {}, "lacks 'line'"),
            ((Line(item="a"), "b"), {}, "takes 1 arguments by position, 2 given"),
            ((Line(item="a"),), {"line": Line(item="b")}, "'line' twice"),
            ((Line(item="a"),), {"lines": 1}, "has no parameter 'lines'; it has 'line', 'note', 'tags'"),
        ],
    )
    def test_what_does_not_bind_is_refused_by_name(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(BadCall, match=rf"thread a: effect order\(\) .*{said}"):
            order.arguments(args, kwargs, "thread a")

    @pytest.mark.parametrize(
        ("kwargs", "where"),
        [({"line": "tea"}, "line"), ({"line": Line(item="a"), "note": 3}, "note")],
    )
    def test_what_cannot_be_stored_is_refused_by_name(self, kwargs: dict[str, Any], where: str) -> None:
        with pytest.raises(NotStorable, match=rf"thread a: effect order\({where}\)"):
            order.arguments((), kwargs, "thread a")

    def test_a_parameter_that_is_new_since_then_has_its_default(self) -> None:
        values = order.decode_arguments(b'{"line":{"count":1,"item":"tea"}}', "thread a")
        assert values == {"line": Line(item="tea"), "note": "", "tags": ()}

    @pytest.mark.parametrize(
        ("raw", "said"),
        [
            (b'{"note":""}', r"order\(line\): not stored"),
            (b'{"line":{"count":1,"item":"tea"},"colour":1}', r"order\(colour\): stored, but"),
            (b'{"line":7}', r"order\(line\)"),
            (b"[1]", "not a JSON object"),
            (b"\xff", "not a JSON object"),
        ],
    )
    def test_stored_ones_that_do_not_fit_are_unreadable(self, raw: bytes, said: str) -> None:
        with pytest.raises(Unreadable, match=rf"thread a: .*{said}"):
            order.decode_arguments(raw, "thread a")

    def test_the_result_has_a_codec(self) -> None:
        assert order.result.decode(order.result.encode(3, "r"), "r") == 3
        assert ping.result.decode(ping.result.encode(None, "r"), "r") is None


class TestOptions:
    def test_a_bare_read_and_effect(self) -> None:
        @read
        async def look(call: Call) -> int:
            """Look."""
            return 1

        assert isinstance(look, Read)
        assert (look.name, look.reuse_for, look.keep, look.renamed) == ("look", None, False, ())
        assert look.__doc__ == "Look."
        assert isinstance(ping, Effect)
        assert (ping.name, ping.deadline, ping.settle) == (
            "ping",
            timedelta(seconds=60),
            timedelta(seconds=1),
        )
        assert (ping.idempotent, ping.repeatable, ping.not_done, ping.lookup_fn) == (False, False, (), None)
        assert ping.key_retention == timedelta(days=30)

    def test_options_are_kept(self) -> None:
        @effect(
            idempotent=True,
            key_lifetime=timedelta(hours=1),
            not_done=[ConnectionRefusedError],
            deadline=timedelta(milliseconds=5),
            settle=timedelta(0),
            renamed="send",
        )
        async def deliver(call: Call) -> None: ...

        assert deliver.idempotent
        assert deliver.key_lifetime == timedelta(hours=1)
        assert deliver.not_done == (ConnectionRefusedError,)
        assert (deliver.deadline, deliver.settle) == (timedelta(milliseconds=5), timedelta(0))
        assert deliver.renamed == ("send",)

    def test_an_explicit_key_binds_an_effect(self) -> None:
        keyed = order.keyed("invoice-7")
        assert isinstance(keyed, Keyed)
        assert (keyed.effect, keyed.key, keyed.name) == (order, "invoice-7", "order")

    @pytest.mark.parametrize("key", ["", 7, None, "\ud800"])
    def test_an_explicit_key_is_text(self, key: Any) -> None:
        with pytest.raises(BadCall, match=r"effect order: .* is no explicit key"):
            order.keyed(key)

    def test_a_lookup_belongs_to_its_effect(self) -> None:
        assert order.lookup_fn is find_order.fn
        assert find_order.lookup_of is order
        assert find_order.result is order.result

    def test_an_effect_has_one_lookup(self) -> None:
        @effect
        async def once(call: Call) -> int:
            return 1

        async def ask(call: Call) -> Absent:
            return Absent()

        once.lookup(ask)
        with pytest.raises(DefinitionError, match="effect once: it has a lookup already, ask"):
            once.lookup(ask)


def declared_wrongly() -> dict[str, tuple[Callable[[], object], str]]:
    async def plain(call: Call) -> int:
        return 1

    def not_async(call: Call) -> int:
        return 1

    async def nothing() -> int:
        return 1

    async def many(call: Call, *lines: Line) -> int:
        return 1

    async def any_names(call: Call, **lines: Line) -> int:
        return 1

    async def unnamed(call: Call, line: Line, /) -> int:
        return 1

    second: Any = timedelta(seconds=1)
    r: Any = read
    e: Any = effect
    return {
        "sync read": (lambda: r(not_async), "read not_async: declare an `async def`"),
        "a value": (lambda: e(3), "effect 3: declare an `async def`"),
        "no call": (lambda: r(nothing), "read nothing: the first parameter must be `call"),
        "var-args": (lambda: e(many), r"effect many\(\*lines.*name each parameter"),
        "keyword var-args": (lambda: e(any_names), r"effect any_names\(\*\*lines.*name each"),
        "positional only": (lambda: e(unnamed), r"effect unnamed\(line.*name each"),
        "kept twice": (lambda: r(keep=True, reuse_for=second)(plain), "read plain: keep=True is for good"),
        "reuse for nothing": (lambda: r(reuse_for=0 * second)(plain), "read plain: reuse_for= takes"),
        "both kinds": (
            lambda: e(idempotent=True, repeatable=True)(plain),
            "effect plain: idempotent=True says .* give one",
        ),
        "lifetime of no key": (lambda: e(key_lifetime=second)(plain), "effect plain: key_lifetime= is for"),
        "no deadline": (lambda: e(deadline=0 * second)(plain), "effect plain: deadline= takes"),
        "nan deadline": (lambda: e(deadline=float("nan"))(plain), "effect plain: deadline= takes"),
        "negative settle": (lambda: e(settle=-second)(plain), "effect plain: settle= takes"),
        "no retention": (lambda: e(key_retention=-second)(plain), "effect plain: key_retention= takes"),
        "not an error": (lambda: e(not_done=["x"])(plain), "effect plain: not_done= takes exception classes"),
    }


@pytest.mark.parametrize("case", declared_wrongly())
def test_a_call_declared_wrongly_is_refused_at_once(case: str) -> None:
    declare, said = declared_wrongly()[case]
    with pytest.raises(DefinitionError, match=said):
        declare()


def test_a_declared_call_that_is_called_like_a_function_says_how_it_is_made() -> None:
    called: Any = order
    with pytest.raises(BadCall, match=r"effect order: .* await step.call\(order, \.\.\.\)"):
        called(1)


def resolved_wrongly() -> dict[str, tuple[Any, str]]:
    @read
    async def untyped(call: Call, line) -> int:  # type: ignore[no-untyped-def]
        return 1

    @read
    async def no_result(call: Call, line: Line):  # type: ignore[no-untyped-def]
        return 1

    @effect
    async def not_storable(call: Call, lines: list[Line]) -> int:
        return 1

    @effect
    async def result_not_storable(call: Call) -> object:
        return 1

    @effect
    async def unresolved(call: Call, line: "Nowhere") -> int:  # type: ignore[name-defined]  # noqa: F821
        return 1

    @effect
    async def send(call: Call, ref: ArtifactRef) -> int:
        return 1

    async def find(call: Call, other: ArtifactRef) -> Absent:
        return Absent()

    other: Any = find
    send.lookup(other)
    return {
        "untyped": (untyped, r"read untyped\(line\): the parameter has no type"),
        "no result": (no_result, "read no_result: the result has no type"),
        "mutable": (not_storable, r"effect not_storable\(lines\)"),
        "result": (result_not_storable, r"effect result_not_storable \(its result\)"),
        "unresolved": (unresolved, "effect unresolved: an annotation cannot be resolved .*Nowhere"),
        "lookup": (send, "read find: it is asked with the arguments of effect send"),
    }


@pytest.mark.parametrize("case", resolved_wrongly())
def test_types_are_read_when_a_machine_lists_the_call(case: str) -> None:
    declared, said = resolved_wrongly()[case]
    with pytest.raises(DefinitionError, match=said):
        declared.resolve()
