"""How values of one declared type look as JSON: what every converter is composed of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

MAX_DEPTH = 100
"""Levels that a value may be nested."""
MAX_PARTS = 8 * 1024 * 1024
"""Parts that a value of a recursive type may have: each costs at least two of the bytes that it may have."""

Parts = Iterable[tuple[str, "Shape", Any]]


class Misfit(Exception):
    """A value does not have the shape; the reason alone, since the place is searched for afterwards."""


class Refused(Exception):
    """A type cannot be stored; ``path`` leads from the declared type to it."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


def identity(value: Any) -> Any:
    return value


def _no_parts(value: Any) -> Parts:
    return ()


def _no_problem(value: Any) -> str | None:
    return None


def leaf_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


class Schemas:
    """Collects the definitions that a JSON Schema refers to, one for each record type."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self._names: dict[Any, str] = {}

    def reference(self, type_: Any, name: str, build: Callable[[Schemas], dict[str, Any]]) -> dict[str, Any]:
        if type_ not in self._names:
            unique = name if name not in self.definitions else f"{name}-{len(self.definitions)}"
            self._names[type_] = unique
            self.definitions[unique] = {}
            self.definitions[unique] = build(self)
        return {"$ref": f"#/$defs/{self._names[type_]}"}


@attrs.define(kw_only=True, eq=False)
class Shape:
    """The JSON form of one type.

    ``dump`` turns a value into what the encoder takes, ``load`` turns decoded JSON into a value or raises.
    Both are on the hot path and say nothing about the place of a fault: ``members`` (of a value) and
    ``parts`` (of JSON) lead to it afterwards.
    """

    name: str
    classes: tuple[type[Any], ...]
    """The exact classes that its values have, or are accepted in."""
    forms: frozenset[type[Any]]
    """Python types of the JSON that ``dump`` leads to."""
    load: Callable[..., Any]
    schema: Callable[[Schemas], dict[str, Any]]
    dump: Callable[[Any], Any] = identity
    same: Callable[[Any, Any], bool] = leaf_same
    """Whether a value and what was read back for it are equal, and of the same types all the way down."""
    members: Callable[[Any], Parts] = _no_parts
    parts: Callable[[Any], Parts] = _no_parts
    problem: Callable[[Any], str | None] = _no_problem
    """Why a value of the right class cannot be stored."""
    key: tuple[Callable[[Any], str], Callable[[str], Any]] | None = None
    """To and from the text of an object's key, for types that have one."""
    is_record: bool = False
    """A union tags it even where it could do without, so that another record can join the union."""
    native: bool = False
    """JSON has the type itself, so that a union never tags it."""
    exact: type | None = None
    """The one type of which ``load`` takes every value, and as it is."""

    @property
    def is_leaf(self) -> bool:
        """Equality and one look at the type are enough to compare values."""
        return self.same is leaf_same


def describe(value: Any) -> str:
    """A value in a few words, for messages."""
    try:
        text = repr(value)
    except Exception:
        return f"an object of type {type(value).__name__}"
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"{text} ({type(value).__name__})"


class _Walk:
    """Looks for the first place where a value cannot be stored, and gives up on one without an end."""

    def __init__(self) -> None:
        self.visited = 0

    def fault(self, shape: Shape, value: Any, path: str, depth: int) -> tuple[str, str] | None:
        self.visited += 1
        if depth > MAX_DEPTH:
            return path[:80] + "...", f"nested deeper than {MAX_DEPTH} levels, or holds itself"
        if self.visited > MAX_PARTS:
            return path, f"it has more than {MAX_PARTS:,} parts: put it into an artifact"
        if type(value) not in shape.classes:
            return path, f"{describe(value)} is no {shape.name}{_as_subclass(shape, value)}"
        problem = shape.problem(value)
        if problem is not None:
            return path, problem
        for step, member, part in shape.members(value):
            found = self.fault(member, part, path + step, depth + 1)
            if found is not None:
                return found
        return None


def unstorable(shape: Shape, value: Any) -> tuple[str, str] | None:
    """Path and reason of the first place where a value cannot be stored as ``shape``."""
    return _Walk().fault(shape, value, "", 0)


def misfit(shape: Shape, plain: Any, path: str = "", depth: int = 0) -> tuple[str, str] | None:
    """Path and reason of the innermost place where decoded JSON does not fit ``shape``."""
    if depth > MAX_DEPTH:
        return path[:80] + "...", f"nested deeper than {MAX_DEPTH} levels"
    try:
        shape.load(plain, None)
    except Exception as error:
        for step, member, part in shape.parts(plain):
            found = misfit(member, part, path + step, depth + 1)
            if found is not None:
                return found
        return path, reason_of(error)
    return None


def reason_of(error: Exception) -> str:
    """What to say about an error that a constructor or converter raised."""
    if isinstance(error, Misfit):
        return str(error)
    if isinstance(error, RecursionError):
        return f"nested deeper than {MAX_DEPTH} levels"
    return f"{type(error).__name__}: {error}"


def _as_subclass(shape: Shape, value: Any) -> str:
    for class_ in shape.classes:
        if isinstance(value, class_):
            return f": it would come back as {class_.__name__}"
    return ""


def constant(schema: dict[str, Any]) -> Callable[[Schemas], dict[str, Any]]:
    return lambda _: dict(schema)


def _loads_text(name: str, parse: Callable[[str], Any]) -> Callable[..., Any]:
    def load(plain: Any, _: Any = None) -> Any:
        if type(plain) is not str:
            raise Misfit(f"expected {name} as text, found {describe(plain)}")
        try:
            return parse(plain)
        except (ValueError, KeyError, ArithmeticError, OSError, ImportError) as error:
            raise Misfit(f"{plain[:60]!r} is no {name}: {error}") from None

    return load


def of_text(
    type_: type,
    *,
    parse: Callable[[str], Any],
    write: Callable[[Any], str],
    schema: dict[str, Any],
    encoder_writes_it: bool = False,
    **more: Any,
) -> Shape:
    load = _loads_text(type_.__name__, parse)
    return Shape(
        name=type_.__name__,
        classes=(type_,),
        forms=frozenset({str}),
        load=load,
        dump=identity if encoder_writes_it else write,
        schema=constant({"type": "string", **schema}),
        key=(write, load),
        **more,
    )
