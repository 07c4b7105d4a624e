"""How a machine's data is made of values that were read back, whichever kind of class it is."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import attrs

from ._classes import is_frozen
from ._errors import BadUpdate
from ._fields import FieldPlan
from ._pydantic import fault_of, is_model
from ._shape import reason_of

D = TypeVar("D")

_NOTHING: Mapping[str, bytes] = {}


class Constructor(Generic[D]):
    """Makes objects of one data class, and shows them to users' code so that it cannot change them."""

    def __init__(self, cls: type[D], fields: Mapping[str, FieldPlan], where: str) -> None:
        self._cls = cls
        self._fields = fields
        self._where = where
        self._mutable = not is_frozen(cls)
        self._changes_values = _may_change(cls)

    def make(self, values: Mapping[str, Any], error: type[Exception]) -> tuple[D, Mapping[str, bytes]]:
        """The object, and the bytes of those values that its constructor or a validator changed.

        ``error`` names the field that the class refuses. What validation only copied is held as it was read
        back, so that nothing in it can be changed in place.
        """
        data = self._built(values, error)
        if not self._changes_values:
            return data, _NOTHING
        changed = self._settled(data, values, error)
        if changed:
            self._check_settled(data, values, error)
        return data, changed

    def _built(self, values: Mapping[str, Any], error: type[Exception]) -> D:
        try:
            return self._cls(**values)
        except Exception as raised:
            fault = fault_of(raised)
            if fault is not None and fault[0]:
                raise error(f"{self._where}{fault[0]}: {fault[1]}") from raised
            reason = fault[1] if fault is not None else reason_of(raised)
            raise error(f"{self._where}: {self._cls.__name__} refuses the values: {reason}") from raised

    def _check_settled(self, data: D, values: Mapping[str, Any], error: type[Exception]) -> None:
        """What is stored must be what is read back: made of it again, the object is the same."""
        again = self._built({name: getattr(data, name) for name in values}, error)
        for name, plan in self._fields.items():
            if plan.codec is None or plan.kind != "plain":
                continue
            if not plan.codec.same(getattr(again, name), getattr(data, name)):
                raise error(
                    f"{self._where}.{name}: {self._cls.__name__} changes it each time it is read back: "
                    "let what it has changed once stay as it is"
                )

    def _settled(self, data: D, values: Mapping[str, Any], error: type[Exception]) -> dict[str, bytes]:
        changed: dict[str, bytes] = {}
        for name, given in values.items():
            plan, held = self._fields[name], getattr(data, name)
            if held is given or plan.codec is None:
                continue
            where = f"{self._where}.{name}"
            if plan.kind == "plain":
                if not plan.codec.same(held, given):
                    changed[name], given = plan.codec.roundtrip(held, where)
            elif len(held) != len(given) or not all(map(plan.codec.same, held, given)):
                raise error(f"{where}: {self._cls.__name__} changes items that accumulate: let it keep them")
            object.__setattr__(data, name, given)
        return changed

    def check_field(self, name: str, value: Any) -> None:
        """``BadUpdate`` where a model refuses the field's value, whatever the others are."""
        if not is_model(self._cls):
            return
        try:
            self._cls(**{name: value})
        except Exception as raised:
            fault = fault_of(raised, name)
            if fault is not None:
                raise BadUpdate(f"{self._where}{fault[0]}: {fault[1]}") from raised

    def shown(self, data: D) -> D:
        """The data itself where it cannot be changed, else a copy."""
        return copy.copy(data) if self._mutable else data

    def assigned(self, data: D, shown: D) -> str | None:
        """The field that was assigned in place on what ``shown`` returned for ``data``."""
        if shown is data:
            return None
        return next((name for name in self._fields if getattr(shown, name) is not getattr(data, name)), None)


def _may_change(cls: Any) -> bool:
    """Whether what a class makes may hold other values than it was given."""
    if not attrs.has(cls):
        own = not is_model(cls) and not cls.__dataclass_params__.init
        return is_model(cls) or own or hasattr(cls, "__post_init__")
    own = hasattr(cls, "__attrs_init__") or hasattr(cls, "__attrs_post_init__")
    return own or any(field.converter is not None for field in attrs.fields(cls))
