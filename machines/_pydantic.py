"""Pydantic models as records and as data. Pydantic is not imported here: who has a model has imported it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import attrs

from ._shape import Refused


def is_model(type_: Any) -> bool:
    """Whether a type is a pydantic model."""
    main = sys.modules.get("pydantic.main")
    return main is not None and isinstance(type_, type) and issubclass(type_, main.BaseModel)


def as_it_is(cls: Any, source: Any, handler: Any) -> Any:
    """How pydantic checks a record in a model: by its class alone, since its parts are checked when it is
    stored."""
    from pydantic_core import core_schema

    return core_schema.is_instance_schema(cls)


def is_frozen_model(class_: Any) -> bool:
    return bool(class_.model_config.get("frozen"))


def model_types(class_: Any) -> dict[str, Any]:
    """The types of a model's fields, with the markers that pydantic took off them; ``Refused`` for what would
    not be stored with them."""
    _check_model(class_)
    return {
        name: Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        for name, field in class_.model_fields.items()
    }


def _check_model(class_: Any) -> None:
    name = class_.__name__
    if not class_.__pydantic_complete__:
        class_.model_rebuild(raise_errors=False)
        if not class_.__pydantic_complete__:
            raise Refused(f"pydantic cannot resolve an annotation of {name}: define what it names before it")
    if getattr(class_, "__pydantic_root_model__", False):
        raise Refused(f"{name} is a RootModel, which has no fields: use the type that it is made of")
    if class_.model_config.get("extra") == "allow":
        raise Refused(f"{name} has extra='allow', and what is not declared is not stored: drop it")
    if class_.__private_attributes__:
        private = next(iter(class_.__private_attributes__))
        raise Refused(
            "a private attribute is not stored, and so would be lost: declare it as a field",
            f".{private}",
        )


@attrs.frozen(kw_only=True)
class PlainField:
    """A field of a model or a dataclass, as one of an attrs class looks."""

    name: str
    alias: str
    default: Any
    init: bool
    metadata: Mapping[Any, Any]


def model_fields(class_: Any) -> list[PlainField]:
    """The fields of a model."""
    return [_field(name, info) for name, info in class_.model_fields.items()]


def _field(name: str, info: Any) -> PlainField:
    default = attrs.NOTHING if info.default_factory is None else attrs.Factory(info.default_factory)
    if info.default_factory is None and not info.is_required():
        default = info.default
    aliases = [alias for alias in (info.alias, info.validation_alias) if alias is not None]
    return PlainField(
        name=name,
        alias=str(aliases[0]) if aliases else name,
        default=default,
        init=info.init is not False,
        metadata={},
    )


def fault_of(error: Exception, field: str | None = None) -> tuple[str, str] | None:
    """The path to the first value that a model refuses, and why, in ``field`` alone if one is given; None for
    any other error."""
    errors: Callable[..., list[dict[str, Any]]] | None = getattr(error, "errors", None)
    module = type(error).__module__
    if errors is None or type(error).__name__ != "ValidationError" or not module.startswith("pydantic"):
        return None
    found = errors(include_url=False, include_input=False, include_context=False)
    first = next((each for each in found if field is None or each["loc"][:1] == (field,)), None)
    if first is None:
        return None
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    return path, str(first["msg"])


def put_back(model: Any, given: Mapping[str, Any], same: Mapping[str, Callable[[Any, Any], bool]]) -> None:
    """Let a model that was made from values that were read back hold those same values, where validation
    only made copies of them: what is read back cannot be changed in place."""
    held: dict[str, Any] = model.__dict__
    for name, value in given.items():
        if held[name] is not value and name in same and same[name](held[name], value):
            held[name] = value
