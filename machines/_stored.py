"""What snapshots and deltas say, put together, newest last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ._errors import Unreadable
from ._fields import FieldPlan

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

    def __init__(self, fields: Mapping[str, FieldPlan], where: str) -> None:
        self._fields = fields
        self._where = where
        self.raws: dict[str, Any] = {}
        self.positions: dict[str, Span] = {}

    def take_value(self, name: str, raw: Any) -> None:
        if self._kind(name) != "plain":
            raise Unreadable(f"{self._where}.{name}: its value does not fit how it is declared now")
        self.raws[name] = raw

    def take_spans(self, raw: Any) -> None:
        for name, span in self._read("items", _read_spans, raw).items():
            if self._kind(name) != "append":
                raise Unreadable(f"{self._where}.{name}: its items do not fit how it is declared now")
            self.positions[name] = span

    def take_change(self, n: int, name: str, change: Any) -> None:
        op, what = self._read(name, _read_change, change) if isinstance(change, Raw) else change
        if (op == "s") != (self._kind(name) == "plain") or op not in ("s", "a", "r", "t"):
            raise Unreadable(f"{self._where}.{name}: its change {op!r} does not fit how it is declared now")
        if op == "s":
            self.raws[name] = what
            return
        if isinstance(what, Raw):
            what = self._read(name, _read_cut if op == "t" else _read_count, what)
        self.positions[name] = Span.after(self.positions.get(name), n, op, what)

    def items(self, rows: Sequence[tuple[int, bytes]]) -> dict[str, list[Raw]]:
        """The items that each append field shows, from the rows at and after its first."""
        found: dict[str, list[Raw]] = {name: [] for name in self.positions}
        for n, row in rows:
            for name, raws in self._read("items", _read_items, row).items():
                if self._kind(name) == "append" and n >= self.positions.get(name, (n + 1, 0))[0]:
                    found[name] += raws
        for name, raws in found.items():
            span = self.positions[name]
            if len(raws) != span.stored or span.shown > span.stored:
                raise Unreadable(
                    f"{self._where}.{name}: {len(raws)} items were found, {span.stored} were appended"
                )
            del raws[: span.stored - span.shown]
        return found

    def _kind(self, name: str) -> str:
        plan = self._fields.get(name)
        if plan is None or plan.kind not in ("plain", "append"):
            raise Unreadable(
                f"{self._where}.{name}: it is stored, but is no stored field any more: "
                "put it back, or write an upcaster that takes it out"
            )
        return plan.kind

    def _read(self, name: str, read: Callable[[Any], Any], raw: Any) -> Any:
        try:
            return read(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
            raise Unreadable(f"{self._where}.{name}: the stored bytes are damaged: {error}") from None
