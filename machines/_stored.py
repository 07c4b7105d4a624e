"""What snapshots and deltas say, put together, newest last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from ._errors import Unreadable
from ._fields import FieldPlan
from ._plain import plain_json, plain_value
from ._shape import describe

Raw = msgspec.Raw

ITEMS = "@items"
"""Where a snapshot says, by field, where the items of append fields lie. No field has such a name."""

_read_items = msgspec.json.Decoder(dict[str, list[Raw]]).decode
_read_change = msgspec.json.Decoder(tuple[str, Raw]).decode
_read_count = msgspec.json.Decoder(int).decode
_read_cut = msgspec.json.Decoder(tuple[int, int]).decode


class Span(NamedTuple):
    """Where the items of an append field lie: from the log position of the first ones on."""

    first: int
    stored: int
    """Items stored from there on."""
    shown: int
    """How many of them, the newest, are the field's value."""

    @classmethod
    def after(cls, before: Span | None, n: int, op: str, what: Any) -> Span:
        """Where they lie after a delta's change ``[op, what]`` at log position ``n``; see ``Merged.delta``.
        ``before`` is None where nothing was appended so far."""
        count, shown = what if op == "t" else (what, None)
        if before is None or op == "r":
            before = cls(n, 0, 0)
        first = before.first if before.stored else n
        return cls(first, before.stored + count, before.shown + count if shown is None else shown)


_read_spans = msgspec.json.Decoder(dict[str, Span]).decode


class Stored:
    """What a snapshot and the deltas after it say, newest last."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.raws: dict[str, Any] = {}
        """Values by field."""
        self.positions: dict[str, Span] = {}
        self.lists: dict[str, list[Any]] = {}
        """By field that accumulates: what it shows, item by item."""

    def take_value(self, name: str, raw: Any) -> None:
        self.raws[name] = raw

    def take_spans(self, raw: Any) -> None:
        self.positions.update(self._read("items", _read_spans, raw))

    def take_change(self, n: int, name: str, change: Any) -> None:
        op, what = self._read(name, _read_change, change) if isinstance(change, Raw) else change
        if op not in ("s", "a", "r", "t"):
            raise Unreadable(f"{self._where}.{name}: its change {op!r} does not fit how it is declared now")
        if op == "s":
            self.raws[name] = what
            return
        if isinstance(what, Raw):
            what = self._read(name, _read_cut if op == "t" else _read_count, what)
        self.positions[name] = Span.after(self.positions.get(name), n, op, what)

    def take_items(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """The items that each field shows, from the rows at and after its first."""
        found: dict[str, list[Any]] = {name: [] for name in self.positions}
        for n, row in rows:
            for name, raws in self._read("items", _read_items, row).items():
                if name in found and n >= self.positions[name].first:
                    found[name] += raws
        for name, raws in found.items():
            span = self.positions[name]
            if len(raws) != span.stored or span.shown > span.stored:
                raise Unreadable(
                    f"{self._where}.{name}: {len(raws)} items were found, {span.stored} were appended"
                )
            del raws[: span.stored - span.shown]
        self.lists = found

    def bring_over(
        self, fields: Mapping[str, FieldPlan], run: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """Put what upcasters make of it in its place. Items that they changed lie nowhere yet."""
        values = {name: self._plain(name, raw) for name, raw in self.raws.items()}
        values |= {name: [self._plain(name, raw) for raw in raws] for name, raws in self.lists.items()}
        before = {name: plain_json(values[name], self._where) for name in self.lists}
        stored, self.raws, self.lists = self.lists, {}, {}
        for name, value in run(values).items():
            told = plain_json(value, f"{self._where}.{name}")
            if name not in fields or fields[name].kind != "append":
                self.raws[name] = told
            elif before.get(name) == told:
                self.lists[name] = stored[name]
                continue
            else:
                self.lists[name] = self._items_of(name, value)
            self.positions.pop(name, None)
        self.positions = {name: span for name, span in self.positions.items() if name in self.lists}

    def check_kinds(self, fields: Mapping[str, FieldPlan]) -> None:
        """``Unreadable`` names the field that is not declared any more, or otherwise."""
        told = [*((name, "plain") for name in self.raws)]
        told += [(name, "append") for name in (*self.positions, *self.lists)]
        for name, kind in told:
            plan = fields.get(name)
            if plan is None or plan.kind not in ("plain", "append"):
                raise Unreadable(
                    f"{self._where}.{name}: it is stored, but is no stored field any more: put it back, or "
                    "write an upcaster, @upcast(from_version=), that renames it or takes it out"
                )
            if plan.kind != kind:
                what = "its value does" if kind == "plain" else "its items do"
                raise Unreadable(f"{self._where}.{name}: {what} not fit how it is declared now")

    def _plain(self, name: str, raw: Any) -> Any:
        return plain_value(raw, f"{self._where}.{name}")

    def _items_of(self, name: str, value: Any) -> list[Any]:
        where = f"{self._where}.{name}"
        if not isinstance(value, list):
            raise Unreadable(f"{where}: it accumulates, and its upcasters left {describe(value)}, not a list")
        return [plain_json(item, where) for item in cast("Iterable[Any]", value)]

    def _read(self, name: str, read: Callable[[Any], Any], raw: Any) -> Any:
        try:
            return read(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
            raise Unreadable(f"{self._where}.{name}: the stored bytes are damaged: {error}") from None
