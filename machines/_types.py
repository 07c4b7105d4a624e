"""From a declared type to its shape, or to the reason why values of that type cannot be stored."""

from __future__ import annotations

import collections
import collections.abc as abc
import pathlib
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import attrs
import typing_extensions

from ._classes import is_class_of_fields, members_of, of_class
from ._containers import fixed_tuple, mapping, sequence, unordered
from ._enums import literal
from ._scalars import none, scalar
from ._shape import Refused, Shape
from ._unions import optional, union
from ._values import FrozenMapping

_MUTABLE = "it can be changed in place"
_ADVICE: dict[Any, str] = {
    list: f"{_MUTABLE}: say Sequence[...], which comes back as a tuple",
    collections.deque: "its settings would be lost: say Sequence[...]",
    set: f"{_MUTABLE}: say frozenset[...]",
    bytearray: f"{_MUTABLE}: say bytes",
    memoryview: f"{_MUTABLE}: say bytes",
    dict: f"{_MUTABLE}: say Mapping[..., ...]",
    collections.defaultdict: "its settings would be lost: say Mapping[..., ...]",
    collections.OrderedDict: f"{_MUTABLE}: say Mapping[..., ...], or Sequence[...] of pairs for an order",
    collections.Counter: f"{_MUTABLE}: say Mapping[..., int]",
    abc.MutableSequence: f"{_MUTABLE}: say Sequence[...]",
    abc.MutableSet: f"{_MUTABLE}: say frozenset[...]",
    abc.MutableMapping: f"{_MUTABLE}: say Mapping[..., ...]",
    abc.Iterable: "it does not say what it holds its items in: say Sequence[...] or frozenset[...]",
    abc.Collection: "it does not say what it holds its items in: say Sequence[...] or frozenset[...]",
    abc.Iterator: "it can be read once: say Sequence[...]",
    abc.Generator: "it can be read once: say Sequence[...]",
    cast("Any", abc.Callable): "code is never stored: store a name, and look the function up by it",
    pathlib.PurePath: "its class differs from system to system: say str",
    Any: "it says nothing of what is read back: name the type, or a union of types",
    object: "it says nothing of what is read back: name the type, or a union of types",
    complex: "JSON has no form for it: say tuple[float, float]",
    range: "say tuple[int, int, int]",
}
_BARE: dict[Any, str] = {
    tuple: "tuple[...]",
    frozenset: "frozenset[...]",
    abc.Sequence: "Sequence[...]",
    abc.Set: "AbstractSet[...]",
    abc.Mapping: "Mapping[..., ...]",
}
_RECORD = "make it a @record, or say what it is made of"
_ALIASES = (
    typing_extensions.TypeAliasType,
    getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType),
)


def type_name(type_: Any) -> str:
    """A type as it is written in code."""
    if type_ is None or type_ is type(None):
        return "None"
    if isinstance(type_, type) and not get_args(type_):
        return type_.__name__
    origin, args = get_origin(type_), get_args(type_)
    if origin in (Union, types.UnionType):
        return " | ".join(map(type_name, args))
    if origin is None or origin is Literal or not isinstance(origin, type):
        return str(type_).removeprefix("typing.").replace("collections.abc.", "")
    name = "AbstractSet" if origin is abc.Set else origin.__name__
    return f"{name}[{', '.join('...' if arg is ... else type_name(arg) for arg in args)}]"


def unwrap(type_: Any) -> Any:
    """What stands behind NewType, Annotated and aliases."""
    while True:
        origin = get_origin(type_)
        if isinstance(type_, typing.NewType):
            type_ = type_.__supertype__
        elif origin in (typing.Annotated, typing.Final, typing.ClassVar):
            type_ = get_args(type_)[0]
        elif isinstance(type_, _ALIASES):
            type_ = type_.__value__
        elif isinstance(origin, _ALIASES):
            type_ = origin.__value__[get_args(type_)]
        else:
            return type_


@attrs.define
class Compiler:
    """Makes the shape of one type. ``recursive`` tells afterwards whether a value may nest without an end."""

    recursive: bool = False
    _open: dict[Any, Shape | None] = attrs.field(factory=dict[Any, "Shape | None"], init=False)

    def shape(self, type_: Any) -> Shape:
        type_ = unwrap(type_)
        found = scalar(type_) if isinstance(type_, type) or type_ is None else None
        if found is not None:
            return found
        origin = get_origin(type_)
        if origin in (Union, types.UnionType):
            return self._union(get_args(type_))
        if origin is Literal:
            return literal(get_args(type_))
        if is_class_of_fields(origin or type_):
            return self._record(type_)
        return self._container(type_, origin, get_args(type_))

    def _container(self, type_: Any, origin: Any, args: tuple[Any, ...]) -> Shape:
        name = type_name(type_)
        if origin is tuple and len(args) == 2 and args[1] is ...:
            return sequence(self._part(args[0], "[...]"), name, (tuple,))
        if origin is tuple:
            places = [self._part(arg, f"[{i}]") for i, arg in enumerate(args)]
            return fixed_tuple(places, name)
        if origin is abc.Sequence:
            return sequence(self._part(args[0], "[...]"), name, (tuple, list))
        if origin is frozenset:
            return unordered(self._part(args[0], "{...}"), name, (frozenset,))
        if origin is abc.Set:
            return unordered(self._part(args[0], "{...}"), name, (frozenset, set))
        if origin in (abc.Mapping, FrozenMapping):
            key, value = self._part(args[0], "[key]"), self._part(args[1], "[...]")
            return mapping(key, value, name)
        raise Refused(f"{name} cannot be stored: {_advice(type_, origin)}")

    def _part(self, type_: Any, step: str) -> Shape:
        try:
            return self.shape(type_)
        except Refused as refused:
            raise Refused(refused.reason, step + refused.path) from refused.__cause__

    def _record(self, type_: Any) -> Shape:
        if type_ in self._open:
            finished = self._open[type_]
            self.recursive |= finished is None
            return finished or self._reference(type_)
        self._open[type_] = None
        members = members_of(type_)
        shapes = {member.name: self._part(member.type, f".{member.name}") for member in members}
        required = [member.name for member in members if member.required]
        made = of_class(type_, type_name(type_), shapes, required)
        self._open[type_] = made
        return made

    def _reference(self, type_: Any) -> Shape:
        """Stands for a record inside itself, whose shape is not finished yet."""

        def target() -> Shape:
            shape = self._open[type_]
            assert shape is not None
            return shape

        def load(plain: Any, _: Any = None) -> Any:
            return target().load(plain, None)

        return Shape(
            name=type_name(type_),
            classes=(get_origin(type_) or type_,),
            forms=frozenset({dict}),
            load=load,
            dump=lambda value: target().dump(value),
            same=lambda one, other: target().same(one, other),
            members=lambda value: target().members(value),
            parts=lambda plain: target().parts(plain),
            schema=lambda schemas: target().schema(schemas),
            is_record=True,
        )

    def _union(self, args: Sequence[Any]) -> Shape:
        members, constants = _flatten(args)
        shapes = [self.shape(member) for member in members]
        classes = {class_ for shape in shapes for class_ in shape.classes}
        constants = [value for value in constants if type(value) not in classes]
        has_none = None in constants or type(None) in members
        constants = [value for value in constants if value is not None]
        shapes = [shape for shape in shapes if shape.classes != (type(None),)]
        shapes += [literal(constants)] if constants else []
        if not shapes:
            return none()
        whole = union(shapes) if len(shapes) > 1 else shapes[0]
        return optional(whole) if has_none else whole


def _flatten(args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The members of a union, nested ones taken apart, and the values of its literals."""
    members: dict[Any, None] = {}
    constants: list[Any] = []
    for arg in map(unwrap, args):
        if get_origin(arg) in (Union, types.UnionType):
            inner, more = _flatten(get_args(arg))
            members.update(dict.fromkeys(inner))
            constants += more
        elif get_origin(arg) is Literal:
            constants += get_args(arg)
        else:
            members[type(None) if arg is None else arg] = None
    return list(members), constants


def _advice(type_: Any, origin: Any) -> str:
    if isinstance(type_, TypeVar | typing_extensions.TypeVar):
        return "it stands for no type here: give its record a parameter, as in Page[int]"
    if not isinstance(type_, abc.Hashable):
        return "it is a value: name its type"
    if type_ in _BARE:
        return f"say what it holds: {_BARE[type_]}"
    class_ = origin or type_
    if isinstance(class_, type) and not typing.is_typeddict(class_):
        for known in class_.__mro__[:-1]:
            if known in _ADVICE:
                return _ADVICE[known]
    return _ADVICE.get(class_, _RECORD)
