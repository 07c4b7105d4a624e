"""The fields of a machine's data class: what their markers and types say, checked once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import attrs

from ._budget import COSTS, Budget, Cost, added, mentions_budget, no_such_cost, unknown_limit
from ._classes import class_fields, field_types, is_class_of_fields, is_frozen
from ._codec import Codec, codec
from ._errors import BadUpdate, DefinitionError, NotStorable
from ._record import (
    OWNED,
    Append,
    Conversation,
    Ephemeral,
    Merge,
    Message,
    ModelWritable,
    Reducer,
)
from ._shape import Refused
from ._types import type_name, unwrap

Kind = Literal["plain", "append", "conversation", "ephemeral", "owned"]

_MARKERS = (Append, Merge, Reducer, Cost, ModelWritable, Ephemeral, Conversation)
_OWNED_TYPES = {"seq": int, "thread_id": str}


@attrs.frozen(kw_only=True)
class FieldPlan:
    """One field of a machine's data."""

    name: str
    kind: Kind
    codec: Codec[Any] | None
    """Of the value; of one item where the kind is ``append`` or ``conversation``; None: nothing is stored."""
    reducer: Callable[[Any, Any], Any] | None = None
    """Makes the field's new value of its old one and an update; None: the update is the new value."""
    keep: int | None = None
    """How many items an ``append`` field keeps; None: all."""
    is_cost: bool = False
    """It counts up what the thread has used."""
    is_budget: bool = False
    """It holds the thread's limits."""
    model_writable: bool = False
    default: Any = attrs.NOTHING
    """What the constructor fills in; ``attrs.NOTHING`` where it fills in nothing."""
    owned: str | None = None
    """What of the runtime's own values the field shows."""


def plan_fields(cls: type[Any], where: str) -> dict[str, FieldPlan]:
    """The plan of each field; ``DefinitionError`` names ``where`` and the field that is declared wrongly."""
    class_: type[Any] = get_origin(cls) or cls
    if not is_class_of_fields(class_) or (attrs.has(class_) and not is_frozen(class_)):
        raise DefinitionError(
            f"{where}: the data {type_name(cls)} of a machine has to be a @record, a dataclass "
            "or a pydantic model"
        )
    try:
        types, fields = field_types(cls), class_fields(class_)
    except Refused as refused:
        raise DefinitionError(f"{where}{refused.path}: {refused.reason}") from refused.__cause__
    plans = {field.name: _plan(field, types, f"{where}.{field.name}") for field in fields}
    talks = [name for name, plan in plans.items() if plan.kind == "conversation"]
    if len(talks) > 1:
        raise DefinitionError(
            f"{where}: {' and '.join(talks)} are marked Conversation(): a session has one, keep one of them"
        )
    _check_budget(plans, where)
    return plans


def _check_budget(plans: Mapping[str, FieldPlan], where: str) -> None:
    budgets = [name for name, plan in plans.items() if plan.is_budget]
    if len(budgets) > 1:
        raise DefinitionError(
            f"{where}: {' and '.join(budgets)} are both a Budget: a thread has one, keep one of them"
        )
    costs = [name for name, plan in plans.items() if plan.is_cost]
    for name in budgets:
        default = plans[name].default
        lost = unknown_limit(default, costs) if isinstance(default, Budget) else None
        if lost is not None:
            raise DefinitionError(f"{where}.{name}: {no_such_cost(lost, costs)}")


def _plan(field: Any, types: Mapping[str, Any], where: str) -> FieldPlan:
    if field.name.startswith("_"):
        raise DefinitionError(f"{where}: an update could not name a private field: leave out the underscore")
    if field.alias != field.name:
        raise DefinitionError(f"{where}: its alias {field.alias!r} is a second name: drop it")
    if field.name not in types:
        raise DefinitionError(f"{where}: it has no annotation: say its type")
    type_, markers = _split(types[field.name], where)
    if OWNED in field.metadata:
        return _owned(field, type_, markers, where)
    if not field.init:
        raise DefinitionError(
            f"{where}: init=False, so that nothing could set it: make it a derived property"
        )
    marker = _merge_marker(markers, where)
    writable = any(isinstance(marker, ModelWritable) for marker in markers)
    if isinstance(marker, Ephemeral):
        return _ephemeral(field, writable, where)
    kind, made, reducer = _stored(type_, marker, where)
    _check_default(field, types[field.name], where)
    if isinstance(marker, Cost) and field.default is attrs.NOTHING:
        raise DefinitionError(f"{where}: Cost() counts up from a default: give it one, such as 0")
    return FieldPlan(
        name=field.name,
        kind=kind,
        codec=made,
        reducer=reducer,
        keep=marker.keep if isinstance(marker, Append) else None,
        is_cost=isinstance(marker, Cost),
        is_budget=_is_budget(type_, marker, where),
        model_writable=writable,
        default=field.default,
    )


def _split(hint: Any, where: str) -> tuple[Any, list[Any]]:
    markers: list[Any] = []
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        markers += more
    for marker in markers:
        if marker in _MARKERS:
            raise DefinitionError(f"{where}: write {marker.__name__}(...) with its parentheses")
    return hint, [marker for marker in markers if isinstance(marker, _MARKERS)]


def _merge_marker(markers: Sequence[Any], where: str) -> Any:
    rules = [marker for marker in markers if not isinstance(marker, ModelWritable)]
    if len(rules) > 1:
        names = " and ".join(type(rule).__name__ for rule in rules)
        raise DefinitionError(f"{where}: it is marked {names}, which cannot both hold: keep one")
    return rules[0] if rules else None


def _owned(field: Any, type_: Any, markers: Sequence[Any], where: str) -> FieldPlan:
    what = field.metadata[OWNED]
    if markers:
        raise DefinitionError(
            f"{where}: the runtime owns it, so that {type(markers[0]).__name__} says nothing"
        )
    if type_ is not _OWNED_TYPES[what]:
        raise DefinitionError(
            f"{where}: the runtime puts the {what} there: declare it {_OWNED_TYPES[what].__name__}"
        )
    return FieldPlan(name=field.name, kind="owned", codec=None, default=field.default, owned=what)


def _ephemeral(field: Any, writable: bool, where: str) -> FieldPlan:
    if writable:
        raise DefinitionError(
            f"{where}: it is never stored, so that a model cannot write it: drop one marker"
        )
    if field.default is attrs.NOTHING:
        raise DefinitionError(f"{where}: it is never stored, and so needs a default for resumes and guards")
    return FieldPlan(name=field.name, kind="ephemeral", codec=None, default=field.default)


def _is_budget(type_: Any, marker: Any, where: str) -> bool:
    if unwrap(type_) is Budget and marker is None:
        return True
    if mentions_budget(unwrap(type_)):
        raise DefinitionError(f"{where}: the limits of a thread are one plain field: declare it Budget")
    return False


def _stored(type_: Any, marker: Any, where: str) -> tuple[Kind, Codec[Any], Callable[[Any, Any], Any] | None]:
    plain = unwrap(type_)
    origin, args = get_origin(plain), get_args(plain)
    if isinstance(marker, Append):
        if origin is not Sequence:
            raise DefinitionError(f"{where}: Append() needs Sequence[...], not {type_name(type_)}")
        if marker.keep is not None and (type(marker.keep) is not int or marker.keep < 1):
            raise DefinitionError(
                f"{where}: Append(keep=) takes a whole number from 1 on, not {marker.keep!r}"
            )
        return "append", codec(args[0], f"{where}[...]"), None
    if isinstance(marker, Conversation):
        if origin is not Sequence or args != (Message,):
            raise DefinitionError(f"{where}: Conversation() needs Sequence[Message], not {type_name(type_)}")
        return "conversation", codec(Message, where), None
    if isinstance(marker, Merge):
        if origin is not Mapping:
            raise DefinitionError(f"{where}: Merge() needs Mapping[..., ...], not {type_name(type_)}")
        return "plain", codec(type_, where), _merged
    if isinstance(marker, Cost):
        if plain not in COSTS:
            raise DefinitionError(f"{where}: Cost() needs int, float or Decimal, not {type_name(type_)}")
        return "plain", codec(type_, where), added
    if isinstance(marker, Reducer):
        _check_reducer(marker.fn, plain, where)
        return "plain", codec(type_, where), marker.fn
    return "plain", codec(type_, where), None


def _merged(old: Mapping[Any, Any], update: Any) -> dict[Any, Any]:
    if not isinstance(update, Mapping):
        raise BadUpdate("it merges, so that an update is a mapping")
    return {**old, **update}


def _check_reducer(fn: Callable[[Any, Any], Any], type_: Any, where: str) -> None:
    if not callable(fn) or inspect.iscoroutinefunction(fn):
        raise DefinitionError(f"{where}: Reducer takes a pure function of (old, new), not {fn!r}")
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        raise DefinitionError(
            f"{where}: Reducer calls {fn!r} with (old, new), which it does not take"
        ) from None
    except ValueError:
        pass  # a builtin without a signature
    returned = _returned(fn)
    if _is_class(returned) and _is_class(type_) and not issubclass(returned, type_):
        raise DefinitionError(
            f"{where}: Reducer's {fn!r} returns {type_name(returned)}, and the field is {type_name(type_)}"
        )


def _returned(fn: Callable[..., Any]) -> Any:
    """What a function says that it returns; None where it says nothing that can be resolved."""
    try:
        return unwrap(get_type_hints(fn).get("return"))
    except (NameError, TypeError, AttributeError):
        return None


def _is_class(type_: Any) -> bool:
    return isinstance(type_, type) and get_origin(type_) is None


def _check_default(field: Any, type_: Any, where: str) -> None:
    if field.default is attrs.NOTHING or isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
        return
    try:
        codec(type_, where).roundtrip(field.default, f"{where}, by default")
    except NotStorable as error:
        raise DefinitionError(str(error)) from None
