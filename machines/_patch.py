"""What a model's answer may set of a machine's data, and how it is told so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._errors import BadUpdate, NotStorable, Unreadable
from ._fields import FieldPlan
from ._shape import Schemas, describe


def patch(fields: Mapping[str, FieldPlan], answer: Mapping[str, Any], where: str) -> dict[str, object]:
    """The updates that decoded JSON makes to ``ModelWritable`` fields; the rest of it is left out.
    ``BadUpdate`` names the field whose value does not fit."""
    if not isinstance(answer, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadUpdate(f"{where}: a model's answer is a mapping of fields, not {describe(answer)}")
    return {
        name: _patched(plan, answer[name], f"{where}.{name}")
        for name, plan in fields.items()
        if plan.model_writable and name in answer
    }


def _patched(plan: FieldPlan, plain: Any, where: str) -> object:
    made = plan.codec
    assert made is not None  # what is not stored is not writable by a model
    try:
        if plan.kind == "plain":
            return made.roundtrip(made.structure(plain, where), where)[1]
        if plain.__class__ is not list:
            raise BadUpdate(f"{where}: expected an array of items, found {describe(plain)}")
        items = [made.structure(item, f"{where}[{i}]") for i, item in enumerate(plain)]
        return tuple([made.roundtrip(item, where)[1] for item in items])
    except (Unreadable, NotStorable) as error:
        raise BadUpdate(str(error)) from error


def patch_schema(fields: Mapping[str, FieldPlan]) -> dict[str, Any]:
    """JSON Schema of what ``patch`` takes over."""
    schemas = Schemas()
    properties: dict[str, Any] = {}
    for name, plan in fields.items():
        if plan.model_writable and plan.codec is not None:
            one = plan.codec.schema_in(schemas)
            properties[name] = one if plan.kind == "plain" else {"type": "array", "items": one}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "$defs": schemas.definitions} if schemas.definitions else schema
