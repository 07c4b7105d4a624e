"""Shapes of records: frozen attrs classes and frozen dataclasses."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import attrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.preconf.msgspec import make_converter

from ._containers import from_bytes, to_bytes
from ._record import OWNED
from ._shape import Misfit, Parts, Refused, Schemas, Shape, describe, identity


@attrs.frozen(kw_only=True)
class Member:
    """One field of a record class."""

    name: str
    type: Any
    required: bool


def is_class_of_fields(type_: Any) -> bool:
    return isinstance(type_, type) and (attrs.has(type_) or dataclasses.is_dataclass(type_))


def members_of(type_: Any) -> list[Member]:
    """The fields of a record class, what a generic one stands for put in; ``Refused`` if it is no record."""
    class_ = get_origin(type_) or type_
    if not is_frozen(class_):
        raise Refused(f"{class_.__name__} can be changed in place: make it a @record")
    types = field_types(type_)
    fields = attrs.fields(class_) if attrs.has(class_) else dataclasses.fields(class_)
    return [_member(class_, field, types) for field in fields]


def _member(class_: type, field: Any, types: Mapping[str, Any]) -> Member:
    if OWNED in field.metadata:
        raise Refused("the runtime owns fields of a machine's data alone", f".{field.name}")
    if not field.init:
        raise Refused("it is not set by the constructor: make it a derived property", f".{field.name}")
    if field.name not in types:
        raise Refused("it has no annotation", f".{field.name}")
    nothing: tuple[Any, ...] = (attrs.NOTHING, dataclasses.MISSING)
    factory = getattr(field, "default_factory", dataclasses.MISSING)
    required = field.default in nothing and factory is dataclasses.MISSING
    return Member(name=field.name, type=types[field.name], required=required)


def of_class(type_: Any, name: str, members: Mapping[str, Shape], required: Sequence[str]) -> Shape:
    """The shape of a record class, or of a generic one with its parameters, from those of its fields."""
    class_ = get_origin(type_) or type_
    as_dict, load = _converters(type_, class_, members)

    def parts_of(value: Any) -> Parts:
        return [(f".{field}", shape, getattr(value, field)) for field, shape in members.items()]

    def parts(plain: Any) -> Parts:
        if plain.__class__ is not dict:
            return []
        return [(f".{field}", shape, plain[field]) for field, shape in members.items() if field in plain]

    def schema(schemas: Schemas) -> dict[str, Any]:
        return schemas.reference(type_, name, lambda inner: _schema(members, required, inner))

    return Shape(
        name=name,
        classes=(class_,),
        forms=frozenset({dict}),
        load=load,
        dump=identity if _encoder_takes(class_, members) else as_dict,
        same=_compile_same(class_, members),
        members=parts_of,
        parts=parts,
        schema=schema,
        is_record=True,
    )


def _converters(
    type_: Any, class_: type, members: Mapping[str, Shape]
) -> tuple[Callable[[Any], dict[str, Any]], Callable[..., Any]]:
    converter = make_converter(detailed_validation=False)
    hooks: dict[str, Any] = {
        field: override(struct_hook=shape.load, unstruct_hook=shape.dump) for field, shape in members.items()
    }
    as_dict: Callable[[Any], dict[str, Any]] = make_dict_unstructure_fn(
        type_, converter, _cattrs_use_linecache=False, **hooks
    )
    structure = cast("Any", make_dict_structure_fn)(
        type_,
        converter,
        _cattrs_forbid_extra_keys=True,
        _cattrs_detailed_validation=False,
        _cattrs_use_linecache=False,
        **hooks,
    )

    def load(plain: Any, _: Any = None) -> Any:
        if plain.__class__ is not dict:
            raise Misfit(f"expected an object for {class_.__name__}, found {describe(plain)}")
        try:
            value = structure(plain, class_)
            if len(plain) == len(members):
                return value
            # A default may hold a list, and would come back as a tuple once it is stored.
            return structure(from_bytes(to_bytes(as_dict(value))), class_)
        except Exception as error:
            unknown = [name for name in plain if name not in members]
            if unknown:
                raise Misfit(f"{class_.__name__} has no field {unknown[0]!r}") from error
            if isinstance(error, KeyError) and error.args and error.args[0] in members:
                raise Misfit(f"the field {error.args[0]!r} of {class_.__name__} is missing") from error
            raise

    return as_dict, load


def _encoder_takes(class_: type, members: Mapping[str, Shape]) -> bool:
    """Whether the encoder writes the object as it is: it sees attrs fields, and leaves out private ones."""
    slotted = not getattr(class_, "__dictoffset__", 0)
    public = not any(field.startswith("_") for field in members)
    plain = all(shape.dump is identity for shape in members.values())
    return attrs.has(class_) and slotted and public and plain


def _compile_same(class_: type, members: Mapping[str, Shape]) -> Callable[[Any, Any], bool]:
    """One expression over all fields: this runs for every value that is stored."""
    terms = ["type(one) is class_", "type(other) is class_"]
    names: dict[str, Any] = {"class_": class_}
    for field, shape in members.items():
        if shape.is_leaf:
            terms.append(f"type(one.{field}) is type(other.{field}) and one.{field} == other.{field}")
        else:
            names[f"same_{field}"] = shape.same
            terms.append(f"same_{field}(one.{field}, other.{field})")
    compiled: Callable[[Any, Any], bool] = eval(f"lambda one, other: {' and '.join(terms)}", names)
    return compiled


def _schema(members: Mapping[str, Shape], required: Sequence[str], schemas: Schemas) -> dict[str, Any]:
    properties = {field: shape.schema(schemas) for field, shape in members.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def is_frozen(class_: Any) -> bool:
    parameters: Any = getattr(class_, "__dataclass_params__", None)
    if parameters is not None:
        return bool(parameters.frozen)
    fields: tuple[Any, ...] = attrs.fields(class_)
    # attrs says so from 25.4 on alone; every version refuses the assignment.
    try:
        setattr(object.__new__(class_), fields[0].name, None)
    except (attrs.exceptions.FrozenInstanceError, IndexError):
        return True
    except TypeError:
        pass  # it cannot be made at all
    return False


def field_types(type_: Any) -> dict[str, Any]:
    """The types of a class's fields by name, with what its bases and parameters stand for put in."""
    class_ = get_origin(type_) or type_
    parameters: tuple[Any, ...] = getattr(class_, "__parameters__", ())
    applied: dict[Any, Any] = dict(zip(parameters, get_args(type_), strict=False))
    types: dict[str, Any] = {}
    bases: tuple[Any, ...] = getattr(class_, "__orig_bases__", class_.__bases__)
    for base in reversed(bases):
        if is_class_of_fields(get_origin(base) or base):
            types.update(field_types(_apply(base, applied)))
    try:
        hints = get_type_hints(class_, include_extras=True)
        own = inspect.get_annotations(class_)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise Refused(f"an annotation of {class_.__name__} cannot be resolved: {error}") from error
    types.update({name: _apply(hints[name], applied) for name in own})
    return types


def _apply(hint: Any, applied: Mapping[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return applied.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or get_origin(hint) is None:
        return hint
    return hint[tuple(applied.get(parameter, parameter) for parameter in parameters)]
