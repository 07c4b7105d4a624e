"""A machine's data class, planned once: what of it is stored, and how updates merge into it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, NoReturn, TypeVar, get_origin

import attrs
import msgspec

from ._budget import Budget, no_such_cost, unknown_limit
from ._codec import Codec
from ._construct import Constructor
from ._containers import to_bytes
from ._errors import BadUpdate, NotStorable, Unreadable
from ._fields import FieldPlan, plan_fields
from ._patch import patch, patch_schema
from ._record import Replaced
from ._shape import describe, reason_of
from ._stored import ITEMS, Span, Stored

D = TypeVar("D")

Raw = msgspec.Raw


@attrs.define(kw_only=True)
class Merged(Generic[D]):
    """Data after updates, and what of it is to be written."""

    data: D
    """What would be read back: ephemeral fields hold their defaults."""
    live: D
    """The same with what ephemeral fields were given, for a next step in this process."""
    delta: dict[str, list[Any]]
    """By field: ``["s", Raw]`` set, ``["a", k]`` appended k items, ``["t", [k, shown]]`` appended k and only
    the newest ``shown`` are left, ``["r", k]`` replaced by k items."""
    items: bytes | None
    """JSON: the appended items by field."""
    items_from: int
    """The log position from which on the data needs items."""
    messages: tuple[bytes, ...]
    positions: Mapping[str, Span]
    """By append field: where its items lie."""
    size: int
    """Bytes of the delta."""


@attrs.frozen(kw_only=True)
class Loaded(Generic[D]):
    """Data read back, with ``positions`` as in ``Merged``."""

    data: D
    positions: Mapping[str, Span]


class _Changes:
    """What a commit changes, as it is collected."""

    # Written out: one is made for each commit, and attrs calls a factory for every field.
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.live: dict[str, Any] = {}
        self.raws: dict[str, bytes] = {}
        self.items: dict[str, list[bytes]] = {}
        self.messages: list[bytes] = []
        self.replaced: set[str] = set()
        self.lanes: dict[str, str] = {}


class DataPlan(Generic[D]):
    """How one data class is stored. ``DefinitionError`` where it cannot be, naming ``where`` and the field.

    Derived properties are not stored, and what the runtime owns and what is ephemeral is not either.
    ``owned``, wherever it is asked for, has a value for each name of ``Position``.
    """

    def __init__(self, cls: type[D], where: str) -> None:
        self.cls: type[D] = get_origin(cls) or cls
        self.where = where
        self.fields: Mapping[str, FieldPlan] = plan_fields(cls, where)
        plans = self.fields.values()
        self._given = tuple(plan.name for plan in plans if plan.kind not in ("owned", "ephemeral"))
        self._take: Callable[[D], tuple[Any, ...]] = _taker(self._given)
        self._places = {name: f"{where}.{name}" for name in self.fields}
        self._appended = tuple(plan.name for plan in plans if plan.kind == "append")
        self._ephemeral = tuple(plan.name for plan in plans if plan.kind == "ephemeral")
        self.budget = next((plan.name for plan in plans if plan.is_budget), None)
        self._costs = tuple(plan.name for plan in plans if plan.is_cost)
        self._constructor: Constructor[D] = Constructor(self.cls, self.fields, where)
        self._owned = tuple((plan.name, plan.owned) for plan in plans if plan.owned is not None)

    def started(self, data: D, owned: Mapping[str, object]) -> Merged[D]:
        """A thread's first data, as the commit at log position 0 writes it: the delta has every stored field.

        ``NotStorable`` names the field.
        """
        if type(data) is not self.cls:
            raise NotStorable(
                f"{self.where}: {describe(data)} is given where {self.cls.__name__} is declared"
            )
        changes = _Changes()
        for name, plan in self.fields.items():
            value = getattr(data, name, attrs.NOTHING)
            if value is attrs.NOTHING:
                raise NotStorable(f"{self.where}.{name}: it has no value: make the data by its constructor")
            if plan.kind in ("append", "conversation"):
                self._append(plan, value, (), changes, NotStorable)
            elif plan.codec is not None:
                if plan.is_budget:
                    self._check_limits(plan, value, NotStorable)
                changes.raws[name], changes.values[name] = plan.codec.roundtrip(value, f"{self.where}.{name}")
        return self._merged(data, changes, owned, 0, {}, NotStorable)

    def merge(
        self,
        data: D,
        updates: Sequence[tuple[str, Mapping[str, object]]],
        owned: Mapping[str, object],
        *,
        n: int,
        positions: Mapping[str, Span],
    ) -> Merged[D]:
        """``data`` with the updates of each lane in order, for the commit at log position ``n``.

        An update equal to what is there changes nothing. ``BadUpdate`` names lane and field, where there is
        no such field, it is not the handler's to set, or two lanes set it without a merge rule;
        ``NotStorable`` names the field whose new value cannot be stored.
        """
        changes = _Changes()
        for name in self._appended:
            if name not in positions and (items := getattr(data, name)):
                # An upcaster has changed them: they lie nowhere yet.
                changes.items[name] = [self._codec(name).snapshot(item) for item in items]
        for lane, update in updates:
            for name, value in update.items():
                plan = self.fields.get(name)
                if plan is None or plan.kind == "owned":
                    self._refuse(lane, name, plan)
                self._update(plan, lane, value, data, changes)
        return self._merged(data, changes, owned, n, positions, BadUpdate)

    def base(self, data: D, positions: Mapping[str, Span]) -> dict[str, Raw]:
        """A snapshot of data that this plan returned: values by field, under ``ITEMS`` where items lie."""
        snapshot: dict[str, Raw] = {}
        spans: dict[str, Span] = {}
        for name, plan in self.fields.items():
            if plan.kind == "append" and name in positions:
                spans[name] = positions[name]
            elif plan.kind == "plain" and plan.codec is not None:
                snapshot[name] = Raw(plan.codec.snapshot(getattr(data, name)))
        if spans:
            snapshot[ITEMS] = Raw(to_bytes(spans))
        return snapshot

    def load(
        self,
        base: Mapping[str, Any],
        deltas: Sequence[tuple[int, Mapping[str, Any]]],
        items: Sequence[tuple[int, bytes]],
        messages: Sequence[bytes],
        owned: Mapping[str, object],
        upcast: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> Loaded[D]:
        """Data from a snapshot, the deltas after it with their log positions, and the rows of items.

        ``upcast`` is given the plain JSON values by field, where an older version of the machine wrote them;
        items that it changes lie nowhere, and the next ``merge`` writes them again. ``Unreadable`` names the
        field that is not declared any more, is missing, or does not fit its type.
        """
        stored = Stored(self.where)
        for name, raw in base.items():
            if name == ITEMS:
                stored.take_spans(raw)
            else:
                stored.take_value(name, raw)
        for n, delta in deltas:
            for name, change in delta.items():
                stored.take_change(n, name, change)
        if upcast is None:
            stored.check_kinds(self.fields)
        stored.take_items(items)
        if upcast is not None:
            stored.bring_over(self.fields, upcast)
            stored.check_kinds(self.fields)
        values = {
            name: self._codec(name).decode(raw, f"{self.where}.{name}") for name, raw in stored.raws.items()
        }
        for name, raws in stored.lists.items():
            values[name] = self._decode_all(name, raws[-(self.fields[name].keep or len(raws)) :])
        missing: list[str] = []
        for name, plan in self.fields.items():
            if plan.kind == "conversation":
                values[name] = self._decode_all(name, messages)
            elif plan.kind == "append":
                values.setdefault(name, ())
            elif plan.kind == "plain" and name not in values:
                missing.append(name)
        values.update(self._defaults(missing, values, owned))
        if self.budget is not None:
            self._check_limits(self.fields[self.budget], values[self.budget], Unreadable)
        return Loaded(data=self._build(values, owned, Unreadable)[0], positions=stored.positions)

    def shown(self, data: D) -> D:
        """What users' code is given: ``data`` itself where it cannot be changed, else a copy of it."""
        return self._constructor.shown(data)

    def check_unchanged(self, data: D, shown: D, lane: str) -> None:
        """``BadUpdate`` names the field that a handler assigned in place on what ``shown`` returned."""
        name = self._constructor.assigned(data, shown)
        if name is not None:
            raise BadUpdate(
                f"{self.where}.{name}: {lane} assigned it in place, which is not kept: "
                "return it as an update of the event"
            )

    def patch(self, mapping: Mapping[str, Any]) -> dict[str, object]:
        """The updates that a model's answer, as decoded JSON, makes: those of ``ModelWritable`` fields.

        Everything else that it says is left out. ``BadUpdate`` names the field whose value does not fit.
        """
        updates = patch(self.fields, mapping, self.where)
        for name, value in updates.items():
            self._constructor.check_field(name, value)
        return updates

    def patch_schema(self) -> dict[str, Any]:
        """JSON Schema of what a model may set, for the model to be given."""
        return patch_schema(self.fields)

    def _codec(self, name: str) -> Codec[Any]:
        made = self.fields[name].codec
        assert made is not None
        return made

    def _refuse(self, lane: str, name: str, plan: FieldPlan | None) -> NoReturn:
        if plan is None:
            derived = isinstance(getattr(self.cls, name, None), property)
            near = difflib.get_close_matches(name, self.fields, 1)
            hint = "is derived, and is never set" if derived else "names no field"
            hint += f": do you mean {near[0]!r}?" if near and not derived else ""
            raise BadUpdate(f"{self.where}: the update {name!r} of {lane} {hint}")
        raise BadUpdate(f"{self.where}.{name}: only the runtime writes it; {lane} sets it")

    def _update(self, plan: FieldPlan, lane: str, value: object, data: D, changes: _Changes) -> None:
        name = plan.name
        before = changes.lanes.setdefault(name, lane)
        fresh = False
        if isinstance(value, Replaced):
            value, fresh = value.value, True
        if plan.kind in ("append", "conversation"):
            if fresh:
                self._forget(plan, changes)
            self._append(plan, value, changes.values.get(name, getattr(data, name)), changes, BadUpdate)
            return
        if before != lane and plan.reducer is None:
            raise BadUpdate(
                f"{self.where}.{name}: {before} and {lane} both set it, and it has no merge rule: "
                "mark it Append(), Merge() or Reducer(fn), or let one of them set it"
            )
        if plan.codec is None:
            changes.live[name] = value
            return
        old = changes.values.get(name, getattr(data, name))
        if plan.reducer is not None and not fresh:
            value = self._reduce(plan, plan.reducer, old, value)
        if plan.is_budget:
            self._check_limits(plan, value, BadUpdate)
        if not plan.codec.same(value, old):
            changes.raws[name], changes.values[name] = plan.codec.roundtrip(value, self._places[name])

    def _forget(self, plan: FieldPlan, changes: _Changes) -> None:
        """What accumulated goes; the items of the same update are its first ones."""
        if plan.kind == "conversation":
            raise BadUpdate(
                f"{self.where}.{plan.name}: a conversation lives with its session and is never replaced: "
                "append to it, and keep a summary in a field of its own"
            )
        changes.values[plan.name], changes.items[plan.name] = (), []
        changes.replaced.add(plan.name)

    def _check_limits(self, plan: FieldPlan, value: Any, error: type[Exception]) -> None:
        if isinstance(value, Budget):
            lost = unknown_limit(value, self._costs)
            if lost is not None:
                raise error(f"{self.where}.{plan.name}: {no_such_cost(lost, self._costs)}")

    def _reduce(self, plan: FieldPlan, reducer: Callable[[Any, Any], Any], old: Any, value: object) -> Any:
        try:
            return reducer(old, value)
        except BadUpdate as error:
            raise BadUpdate(f"{self.where}.{plan.name}: {error}, not {describe(value)}") from None
        except Exception as error:
            raise BadUpdate(f"{self.where}.{plan.name}: its reducer raised {reason_of(error)}") from error

    def _append(
        self,
        plan: FieldPlan,
        value: Any,
        old: tuple[Any, ...],
        changes: _Changes,
        error: type[Exception],
    ) -> None:
        if type(value) not in (tuple, list):
            raise error(
                f"{self.where}.{plan.name}: it accumulates, and so takes a list or tuple of items, "
                f"not {describe(value)}"
            )
        raws: list[bytes] = []
        added: list[Any] = []
        for i, item in enumerate(value):
            raw, back = self._codec(plan.name).roundtrip(item, f"{self.where}.{plan.name}[{len(old) + i}]")
            raws.append(raw)
            added.append(back)
        together = old + tuple(added)
        changes.values[plan.name] = together if plan.keep is None else together[-plan.keep :]
        if plan.kind == "conversation":
            changes.messages += raws
        elif raws:
            changes.items.setdefault(plan.name, []).extend(raws)

    def _merged(
        self,
        data: D,
        changes: _Changes,
        owned: Mapping[str, object],
        n: int,
        positions: Mapping[str, Span],
        error: type[Exception],
    ) -> Merged[D]:
        values = dict(zip(self._given, self._take(data), strict=True)) | changes.values
        built, changed = self._build(values, owned, error)
        changes.raws.update(changed)
        live = built
        if self._ephemeral:
            caches = {name: getattr(data, name) for name in self._ephemeral}
            live, _ = self._build({**values, **caches, **changes.live}, owned, error)
        delta: dict[str, list[Any]] = {}
        size = 0
        for name, raw in changes.raws.items():
            delta[name] = ["s", Raw(raw)]
            size += len(name) + len(raw) + 10
        merged = Merged(
            data=built,
            live=live,
            delta=delta,
            items=None,
            items_from=n + 1,
            messages=tuple(changes.messages),
            positions=positions,
            size=size,
        )
        if positions or changes.items:
            self._move_items(merged, changes, values, n)
        return merged

    def _move_items(self, merged: Merged[D], changes: _Changes, values: Mapping[str, Any], n: int) -> None:
        """Where items lie after this commit."""
        moved: dict[str, Span] = dict(merged.positions)
        items: dict[str, list[Raw]] = {}
        for name, raws in changes.items.items():
            before = None if name in changes.replaced else moved.get(name, Span(n, 0, 0))
            merged.delta[name], span, kept = self._kept(name, raws, before, n, values[name])
            moved[name], items[name] = span, list(map(Raw, kept))
            merged.size += len(name) + 12
        if any(items.values()):
            merged.items = to_bytes(items)
        starts = [span.first for span in moved.values() if span.stored]
        merged.items_from = min(starts) if starts else n + 1
        merged.positions = moved

    def _kept(
        self, name: str, raws: list[bytes], before: Span | None, n: int, shown: Sequence[Any]
    ) -> tuple[list[Any], Span, list[bytes]]:
        """How appended items are written: the change, where the field's items lie then, and those of this
        commit. Of a field that keeps some, at most twice as many are ever stored from its first position on.
        """
        count, keep = len(raws), self.fields[name].keep
        if before is None:  # replaced
            kept = raws if keep is None else raws[-keep:]
            return ["r", len(kept)], Span(n, len(kept), len(kept)), kept
        first, stored = before.first if before.stored else n, before.stored + count
        if keep is None or before.shown + count <= keep:
            return ["a", count], Span(first, stored, before.shown + count), raws
        if stored <= 2 * keep:
            return ["t", [count, keep]], Span(first, stored, keep), raws
        kept = [self._codec(name).snapshot(item) for item in shown]
        return ["r", keep], Span(n, keep, keep), kept

    def _build(
        self, values: Mapping[str, Any], owned: Mapping[str, object], error: type[Exception]
    ) -> tuple[D, Mapping[str, bytes]]:
        data, changed = self._constructor.make(values, error)
        for name, what in self._owned:
            object.__setattr__(data, name, owned[what])
        return data, changed

    def _defaults(
        self, names: Sequence[str], values: Mapping[str, Any], owned: Mapping[str, object]
    ) -> dict[str, Any]:
        """What fields hold that were not declared yet when the data was stored."""
        for name in names:
            if self.fields[name].default is attrs.NOTHING:
                raise Unreadable(
                    f"{self.where}.{name}: it is not stored, and has no default: "
                    "give it one, or write an upcaster"
                )
        if not names:
            return {}
        draft, _ = self._build(values, owned, Unreadable)
        return {
            name: self._codec(name).roundtrip(getattr(draft, name), f"{self.where}.{name}")[1]
            for name in names
        }

    def _decode_all(self, name: str, raws: Sequence[bytes | Raw]) -> tuple[Any, ...]:
        decode = self._codec(name).decode
        return tuple([decode(raw, f"{self.where}.{name}[{i}]") for i, raw in enumerate(raws)])


def _taker(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda data: tuple([getattr(data, name) for name in names])
