"""Shapes of unions. Every value comes back as exactly the member that it was, or the union is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from ._shape import Misfit, Parts, Refused, Schemas, Shape, describe, identity, leaf_same

TAG = "$"
"""The key that says which member an object is. No field can have this name."""
VALUE = "value"
_TAGGED: frozenset[type[Any]] = frozenset({dict})


def optional(shape: Shape) -> Shape:
    """A value or None, which is null."""
    dump, load, same = shape.dump, shape.load, shape.same

    def dump_optional(value: Any) -> Any:
        return None if value is None else dump(value)

    def load_optional(plain: Any, _: Any = None) -> Any:
        return None if plain is None else load(plain, None)

    def same_optional(one: Any, other: Any) -> bool:
        return other is None if one is None else other is not None and same(one, other)

    return Shape(
        name=f"{shape.name} | None",
        classes=(*shape.classes, type(None)),
        forms=shape.forms | {type(None)},
        load=load_optional,
        dump=identity if dump is identity else dump_optional,
        same=same if shape.is_leaf else same_optional,
        members=lambda value: () if value is None else shape.members(value),
        problem=lambda value: None if value is None else shape.problem(value),
        parts=lambda plain: () if plain is None else shape.parts(plain),
        schema=lambda schemas: {"anyOf": [shape.schema(schemas), {"type": "null"}]},
    )


def union(shapes: Sequence[Shape]) -> Shape:
    """One of several types, told apart by the form of its JSON, or by a tag where that does not do."""
    name = " | ".join(shape.name for shape in shapes)
    _check_classes(shapes, name)
    choices = [_Choice(shape=shape, tag=tag) for shape, tag in zip(shapes, _tags(shapes), strict=True)]
    tags = {choice.tag: choice for choice in choices if choice.tag is not None}
    if len(tags) != sum(choice.tag is not None for choice in choices):
        raise Refused(f"two members of {name} have one name: rename one, its name is what tells them apart")
    return _union(name, choices, tags)


@attrs.frozen(kw_only=True)
class _Choice:
    shape: Shape
    tag: str | None

    def dump(self, value: Any) -> Any:
        plain = self.shape.dump(value)
        return plain if self.tag is None else {TAG: self.tag, VALUE: plain}

    def strip(self, plain: Any) -> Any:
        """The JSON without its tag."""
        if self.tag is None:
            return plain
        if plain.keys() != {TAG, VALUE}:
            raise Misfit(
                f"expected the one key {VALUE!r} beside the tag {self.tag!r}, found {describe(plain)}"
            )
        return plain[VALUE]

    def schema(self, schemas: Schemas) -> dict[str, Any]:
        inner = self.shape.schema(schemas)
        if self.tag is None:
            return inner
        properties = {TAG: {"const": self.tag}, VALUE: inner}
        return {
            "type": "object",
            "properties": properties,
            "required": [TAG, VALUE],
            "additionalProperties": False,
        }


@attrs.frozen(kw_only=True)
class _Dispatch:
    """Finds the member that a value or its JSON belongs to."""

    name: str
    by_class: dict[type[Any], _Choice]
    by_form: dict[type[Any], _Choice]
    tags: dict[str, _Choice]

    def dump(self, value: Any) -> Any:
        if type(value) not in self.by_class:
            raise Misfit(f"{describe(value)} is no {self.name}")
        return self.by_class[type(value)].dump(value)

    def load(self, plain: Any, _: Any = None) -> Any:
        choice = self.choice(plain)
        return choice.shape.load(choice.strip(plain), None)

    def choice(self, plain: Any) -> _Choice:
        tag: Any = plain.get(TAG) if self.tags and plain.__class__ is dict else None
        choice = self.tags.get(tag) if tag.__class__ is str else self.by_form.get(plain.__class__)
        if choice is None:
            raise Misfit(f"expected one of {self.name}, found {describe(plain)}")
        return choice

    def same(self, one: Any, other: Any) -> bool:
        if type(one) not in self.by_class or type(other) not in self.by_class:
            return False
        choice = self.by_class[type(one)]
        return choice is self.by_class[type(other)] and choice.shape.same(one, other)

    def members(self, value: Any) -> Parts:
        return self.by_class[type(value)].shape.members(value)

    def problem(self, value: Any) -> str | None:
        return self.by_class[type(value)].shape.problem(value)

    def parts(self, plain: Any) -> Parts:
        try:
            choice = self.choice(plain)
            return choice.shape.parts(choice.strip(plain))
        except Misfit:
            return ()


def _union(name: str, choices: Sequence[_Choice], tags: dict[str, _Choice]) -> Shape:
    by_class = {class_: choice for choice in choices for class_ in choice.shape.classes}
    by_form = {form: choice for choice in choices if choice.tag is None for form in choice.shape.forms}
    forms = frozenset(by_form)
    if float in by_form:
        by_form.setdefault(int, by_form[float])
    dispatch = _Dispatch(name=name, by_class=by_class, by_form=by_form, tags=tags)
    untagged = all(choice.tag is None and choice.shape.dump is identity for choice in choices)
    leaves = all(choice.shape.is_leaf for choice in choices)
    return Shape(
        name=name,
        classes=tuple([class_ for choice in choices for class_ in choice.shape.classes]),
        forms=forms | _TAGGED if tags else forms,
        load=dispatch.load,
        dump=identity if untagged else dispatch.dump,
        same=leaf_same if leaves else dispatch.same,
        members=dispatch.members,
        problem=dispatch.problem,
        parts=dispatch.parts,
        schema=lambda schemas: {"anyOf": [choice.schema(schemas) for choice in choices]},
        native=all(choice.shape.native for choice in choices),
    )


def _check_classes(shapes: Sequence[Shape], name: str) -> None:
    seen: dict[type[Any], Shape] = {}
    for shape in shapes:
        for class_ in shape.classes:
            if class_ in seen:
                raise Refused(
                    f"{name}: {seen[class_].name} and {shape.name} are both a {class_.__name__} and "
                    "cannot be told apart: give each a @record of its own, or declare one type of both"
                )
            seen[class_] = shape


def _tags(shapes: Sequence[Shape]) -> list[str | None]:
    tags = [shape.name if _needs_tag(shape, shapes) else None for shape in shapes]
    if any(tags):
        # An object without a tag must not look like one that has it.
        tags = [shape.name if dict in shape.forms else tag for shape, tag in zip(shapes, tags, strict=True)]
    return tags


def _needs_tag(shape: Shape, shapes: Sequence[Shape]) -> bool:
    alike = any(shape.forms & other.forms for other in shapes if other is not shape)
    return shape.is_record or (alike and not shape.native)
