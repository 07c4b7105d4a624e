"""Shapes of records: frozen attrs classes, frozen dataclasses and frozen pydantic models."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import attrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.preconf.msgspec import make_converter

from ._containers import from_bytes, to_bytes
from ._pydantic import PlainField, fault_of, is_frozen_model, is_model, model_fields, model_types, put_back
from ._record import OWNED
from ._shape import Misfit, Parts, Refused, Schemas, Shape, describe, identity


@attrs.frozen(kw_only=True)
class Member:
    """One field of a record class."""

    name: str
    type: Any
    required: bool


def is_class_of_fields(type_: Any) -> bool:
    return isinstance(type_, type) and (
        attrs.has(type_) or dataclasses.is_dataclass(type_) or is_model(type_)
    )


def class_fields(class_: Any) -> Sequence[Any]:
    """The fields of a class, each with what an attrs field says of itself; ``Refused`` for one that could not
    be given again when its object is read back."""
    if not is_model(class_):
        _check_decorated(class_)
    if attrs.has(class_):
        fields: tuple[Any, ...] = attrs.fields(class_)
        return fields
    found = model_fields(class_) if is_model(class_) else _dataclass_fields(class_)
    for field in found:
        metadata: Any = getattr(field.default, "metadata", None)
        if isinstance(metadata, dict) and OWNED in metadata:
            raise Refused(
                "runtime_owned() is a field of a @record alone: make the data one, or drop it",
                f".{field.name}",
            )
    return found


def _check_decorated(class_: Any) -> None:
    """What a class declares is a field of it only once it is decorated, and by the decorator of its bases."""
    by_attrs, by_dataclass = attrs.has(class_), dataclasses.is_dataclass(class_)
    if by_attrs and by_dataclass:
        raise Refused(f"{class_.__name__} is a record and a dataclass: decorate it and its bases alike")
    if "__attrs_attrs__" in vars(class_) or "__dataclass_fields__" in vars(class_):
        return
    hints = inspect.get_annotations(class_)
    lost = next((name for name, hint in hints.items() if "ClassVar" not in str(hint)), None)
    if lost is not None:
        way = "@record" if by_attrs else "@dataclass"
        raise Refused(f"it is no field: decorate {class_.__name__} with {way}", f".{lost}")


def _dataclass_fields(class_: Any) -> Sequence[Any]:
    if hasattr(class_, "__pydantic_fields__"):
        raise Refused(f"{class_.__name__} is pydantic's dataclass: make it a BaseModel, or a plain dataclass")
    for name, field in class_.__dataclass_fields__.items():
        if field._field_type is dataclasses._FIELD_INITVAR:  # type: ignore[attr-defined] # pyright: ignore
            raise Refused("an InitVar is not kept, and so cannot be given again: make it a field", f".{name}")
    return [_dataclass_field(field) for field in dataclasses.fields(class_)]


def _dataclass_field(field: dataclasses.Field[Any]) -> PlainField:
    default = attrs.NOTHING if field.default is dataclasses.MISSING else field.default
    if field.default_factory is not dataclasses.MISSING:
        default = attrs.Factory(field.default_factory)
    return PlainField(
        name=field.name, alias=field.name, default=default, init=field.init, metadata=field.metadata
    )


def members_of(type_: Any) -> list[Member]:
    """The fields of a record class, what a generic one stands for put in; ``Refused`` if it is no record."""
    class_ = get_origin(type_) or type_
    if not is_frozen(class_):
        way = "give it model_config = ConfigDict(frozen=True)" if is_model(class_) else "make it a @record"
        raise Refused(f"{class_.__name__} can be changed in place: {way}")
    types = field_types(type_)
    return [_member(field, types) for field in class_fields(class_)]


def _member(field: Any, types: Mapping[str, Any]) -> Member:
    if OWNED in field.metadata:
        raise Refused("the runtime owns fields of a machine's data alone", f".{field.name}")
    if not field.init:
        raise Refused("it is not set by the constructor: make it a derived property", f".{field.name}")
    if field.name not in types:
        raise Refused("it has no annotation", f".{field.name}")
    if isinstance(field, PlainField) and field.alias != field.name:
        raise Refused(f"its alias {field.alias!r} is a second name: drop it", f".{field.name}")
    return Member(name=field.name, type=types[field.name], required=field.default is attrs.NOTHING)


def of_class(type_: Any, name: str, members: Mapping[str, Shape], required: Sequence[str]) -> Shape:
    """The shape of a record class, or of a generic one with its parameters, from those of its fields."""
    class_ = get_origin(type_) or type_
    as_dict, load = (_model_converters if is_model(class_) else _converters)(type_, class_, members)

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


def _model_converters(
    type_: Any, class_: Any, members: Mapping[str, Shape]
) -> tuple[Callable[[Any], dict[str, Any]], Callable[..., Any]]:
    sames = {name: shape.same for name, shape in members.items() if not shape.is_leaf}

    def as_dict(value: Any) -> dict[str, Any]:
        if type(value) is not class_:
            raise Misfit(f"{describe(value)} is no {class_.__name__}")
        held: dict[str, Any] = value.__dict__
        return {name: shape.dump(held[name]) for name, shape in members.items()}

    def load(plain: Any, _: Any = None) -> Any:
        if plain.__class__ is not dict:
            raise Misfit(f"expected an object for {class_.__name__}, found {describe(plain)}")
        unknown = next((name for name in plain if name not in members), None)
        if unknown is not None:
            raise Misfit(f"{class_.__name__} has no field {unknown!r}")
        given = {name: members[name].load(part, None) for name, part in plain.items()}
        try:
            value = class_(**given)
        except Exception as error:
            path, reason = fault_of(error) or ("", f"{type(error).__name__}: {error}")
            raise Misfit(f"{class_.__name__}{path}: {reason}") from error
        put_back(value, given, sames)
        if len(plain) == len(members):
            return value
        return load(from_bytes(to_bytes(as_dict(value))))

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
    if is_model(class_):
        return is_frozen_model(class_)
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
    if is_model(class_):
        return model_types(class_)
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
