"""Shapes of sequences, tuples, sets and mappings. All of them come back immutable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from ._shape import Misfit, Parts, Schemas, Shape, describe, identity
from ._values import FrozenMapping

to_bytes = msgspec.json.Encoder(order="sorted").encode
"""The canonical encoder: compact, the keys of objects sorted."""
from_bytes = msgspec.json.Decoder().decode

_TUPLE: tuple[type[Any], ...] = (tuple,)
_ARRAYS: tuple[type[Any], ...] = (tuple, list)
_MAPPINGS: tuple[type[Any], ...] = (dict, FrozenMapping)


def sequence(item: Shape, name: str, classes: tuple[type[Any], ...]) -> Shape:
    """Any number of items of one type, read back as a tuple."""
    return Shape(
        name=name,
        classes=classes,
        forms=frozenset({list}),
        load=_loads_items(item, tuple, name),
        dump=identity if item.dump is identity else _dumps_items(item.dump, classes, name),
        same=_same_sequence(item, classes),
        members=lambda value: _numbered(item, value),
        parts=lambda plain: _numbered(item, plain) if plain.__class__ is list else (),
        schema=lambda schemas: {"type": "array", "items": item.schema(schemas)},
    )


def fixed_tuple(items: Sequence[Shape], name: str) -> Shape:
    """A tuple with a type for each place."""
    size = len(items)

    def dump(value: Any) -> Any:
        if type(value) not in _TUPLE or len(value) != size:
            raise Misfit(f"{describe(value)} is no {name}")
        return [item.dump(part) for item, part in zip(items, value, strict=True)]

    def load(plain: Any, _: Any = None) -> Any:
        if plain.__class__ is not list or len(plain) != size:
            raise Misfit(f"expected an array of {size} for {name}, found {describe(plain)}")
        return tuple([item.load(part, None) for item, part in zip(items, plain, strict=True)])

    def same(one: Any, other: Any) -> bool:
        if type(one) not in _TUPLE or len(one) != len(other):
            return False
        return all(item.same(a, b) for item, a, b in zip(items, one, other, strict=True))

    def parts(plain: Any) -> Parts:
        if type(plain) not in _ARRAYS or len(plain) != size:
            return []
        return [(f"[{i}]", item, part) for i, (item, part) in enumerate(zip(items, plain, strict=True))]

    def schema(schemas: Schemas) -> dict[str, Any]:
        places = [item.schema(schemas) for item in items]
        return {"type": "array", "prefixItems": places, "minItems": size, "maxItems": size}

    return Shape(
        name=name,
        classes=(tuple,),
        forms=frozenset({list}),
        load=load,
        dump=identity if all(item.dump is identity for item in items) else dump,
        same=same,
        members=parts,
        parts=parts,
        problem=lambda value: None if len(value) == size else f"it has {len(value)} items, {name} has {size}",
        schema=schema,
    )


def unordered(item: Shape, name: str, classes: tuple[type[Any], ...]) -> Shape:
    """A set, written in the order of its items' bytes, read back as a frozenset."""
    load_items = _loads_items(item, frozenset, name)
    encode = to_bytes

    def dump(value: Any) -> Any:
        if type(value) not in classes:
            raise Misfit(f"{describe(value)} is no {name}")
        return sorted(map(item.dump, value), key=encode)

    def load(plain: Any, _: Any = None) -> Any:
        value = load_items(plain)
        if len(value) != len(plain):
            raise Misfit("an item stands twice in a set")
        return value

    def same(one: Any, other: Any) -> bool:
        if type(one) not in classes or len(one) != len(other):
            return False
        if item.is_leaf:
            return {(type(a), a) for a in one} == {(type(b), b) for b in other}
        pairs = zip(_in_order(item, one), _in_order(item, other), strict=True)
        return all(item.same(a, b) for a, b in pairs)

    return Shape(
        name=name,
        classes=classes,
        forms=frozenset({list}),
        load=load,
        dump=dump,
        same=same,
        members=lambda value: [("{...}", item, part) for part in value],
        parts=lambda plain: _numbered(item, plain) if plain.__class__ is list else (),
        schema=lambda schemas: {"type": "array", "items": item.schema(schemas), "uniqueItems": True},
    )


def mapping(key: Shape, value: Shape, name: str) -> Shape:
    """A mapping: an object where the keys have a text, else an array of pairs in the order of the keys."""
    form, dump, load, parts = _object(key, value, name) if key.key else _pairs(key, value, name)

    def same(one: Any, other: Any) -> bool:
        if type(one) not in _MAPPINGS or len(one) != len(other):
            return False
        keys = {k: k for k in other}
        return all(k in keys and key.same(k, keys[k]) and value.same(v, other[k]) for k, v in one.items())

    def members(whole: Any) -> Parts:
        for k, v in whole.items():
            yield f"[key {k!r}]", key, k
            yield f"[{k!r}]", value, v

    def schema(schemas: Schemas) -> dict[str, Any]:
        if form is dict:
            return {"type": "object", "additionalProperties": value.schema(schemas)}
        pair = {"type": "array", "prefixItems": [key.schema(schemas), value.schema(schemas)]}
        return {"type": "array", "items": {**pair, "minItems": 2, "maxItems": 2}}

    return Shape(
        name=name,
        classes=_MAPPINGS,
        forms=frozenset({form}),
        load=load,
        dump=dump,
        same=same,
        members=members,
        parts=parts,
        schema=schema,
    )


Form = tuple[type, Callable[[Any], Any], Callable[..., Any], Callable[[Any], Parts]]


def _object(key: Shape, value: Shape, name: str) -> Form:
    assert key.key is not None
    to_text, from_text = key.key
    dump_value, load_value = value.dump, value.load

    def dump(whole: Any) -> Any:
        if type(whole) not in _MAPPINGS:
            raise Misfit(f"{describe(whole)} is no {name}")
        return {to_text(k): dump_value(v) for k, v in whole.items()}

    def load(plain: Any, _: Any = None) -> Any:
        if plain.__class__ is not dict:
            raise Misfit(f"expected an object for {name}, found {describe(plain)}")
        whole = FrozenMapping({from_text(k): load_value(v, None) for k, v in plain.items()})
        if len(whole) != len(plain):
            raise Misfit("a key stands twice in a mapping")
        return whole

    def load_texts(plain: Any, _: Any = None) -> Any:
        if plain.__class__ is not dict:
            raise Misfit(f"expected an object for {name}, found {describe(plain)}")
        return FrozenMapping({k: load_value(v, None) for k, v in plain.items()})

    def parts(plain: Any) -> Parts:
        return [(f"[{k!r}]", value, v) for k, v in plain.items()] if plain.__class__ is dict else []

    plain_keys = to_text is identity and from_text is identity
    encoder_takes_it = plain_keys and dump_value is identity
    return dict, identity if encoder_takes_it else dump, load_texts if plain_keys else load, parts


def _pairs(key: Shape, value: Shape, name: str) -> Form:
    encode = to_bytes

    def dump(whole: Any) -> Any:
        if type(whole) not in _MAPPINGS:
            raise Misfit(f"{describe(whole)} is no {name}")
        pairs = [[key.dump(k), value.dump(v)] for k, v in whole.items()]
        return sorted(pairs, key=lambda pair: encode(pair[0]))

    def load(plain: Any, _: Any = None) -> Any:
        if plain.__class__ is not list or not all(
            pair.__class__ is list and len(pair) == 2 for pair in plain
        ):
            raise Misfit(f"expected an array of pairs for {name}, found {describe(plain)}")
        whole = FrozenMapping({key.load(k, None): value.load(v, None) for k, v in plain})
        if len(whole) != len(plain):
            raise Misfit("a key stands twice in a mapping")
        return whole

    def parts(plain: Any) -> Parts:
        if plain.__class__ is not list:
            return
        for i, pair in enumerate(plain):
            if pair.__class__ is list and len(pair) == 2:
                yield f"[{i}][0]", key, pair[0]
                yield f"[{i}][1]", value, pair[1]

    return list, dump, load, parts


def _loads_items(item: Shape, build: Callable[[Any], Any], name: str) -> Callable[..., Any]:
    load_item = item.load
    exact = {item.exact}

    def load(plain: Any, _: Any = None) -> Any:
        if plain.__class__ is not list:
            raise Misfit(f"expected an array for {name}, found {describe(plain)}")
        return build([load_item(part, None) for part in plain])

    def load_exact(plain: Any, _: Any = None) -> Any:
        if plain.__class__ is list and exact.issuperset(map(type, plain)):
            return build(plain)
        return load(plain)

    return load if item.exact is None else load_exact


def _dumps_items(
    dump: Callable[[Any], Any], classes: tuple[type[Any], ...], name: str
) -> Callable[[Any], Any]:
    def dump_items(value: Any) -> Any:
        if type(value) not in classes:
            raise Misfit(f"{describe(value)} is no {name}")
        return [dump(part) for part in value]

    return dump_items


def _same_sequence(item: Shape, classes: tuple[type[Any], ...]) -> Callable[[Any, Any], bool]:
    same_item = item.same

    def same(one: Any, other: Any) -> bool:
        if type(one) not in classes or len(one) != len(other):
            return False
        return all(map(same_item, one, other))

    def same_leaves(one: Any, other: Any) -> bool:
        if type(one) not in classes or len(one) != len(other):
            return False
        return tuple(one) == other and list(map(type, one)) == list(map(type, other))

    return same_leaves if item.is_leaf else same


def _numbered(item: Shape, values: Any) -> Parts:
    return [(f"[{i}]", item, part) for i, part in enumerate(values)]


def _in_order(item: Shape, values: Any) -> list[Any]:
    encode = to_bytes
    keyed = [(encode(item.dump(value)), value) for value in values]
    return [value for _, value in sorted(keyed, key=itemgetter(0))]
