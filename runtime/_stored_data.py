"""Data as it is stored, at any checkpoint, read without the machine's code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from attrs import frozen

from perdure.machines import ITEMS, Span, Unreadable
from perdure.stores import Items, Log, LogRow, Store, ThreadRow

from ._journal import Body, decode_body, is_checkpoint
from ._look import DAMAGE, rows_of


@frozen(kw_only=True)
class StoredData:
    """A thread's data at one checkpoint: plain JSON values by field."""

    seq: int
    at: int
    event: str | None
    """What led there; None: the start."""
    state: str | None
    values: Mapping[str, Any]
    spans: Mapping[str, Span]
    """Of fields that accumulate: where their items lie."""


@frozen(kw_only=True)
class Change:
    """What became of one field between two checkpoints."""

    field: str
    kind: str
    """``set``, ``new``, ``gone`` or ``appended``."""
    before: Any = None
    after: Any = None
    items: Sequence[Any] = ()
    """What was appended."""
    dropped: int = 0
    """With ``appended``: how many of the oldest items are not shown any more."""


async def data_at(store: Store, row: ThreadRow, seq: int) -> StoredData:
    """A thread's data at checkpoint ``seq``, from the snapshot before it and the deltas after that.

    Left out is what is stored elsewhere (a session's messages) or not at all. ``ValueError`` where the thread
    has no such checkpoint, ``Unreadable`` where its record cannot be read or was purged.
    """
    thread = f"thread {row.address.thread_id!r}"
    if not 0 <= seq <= row.standing.seq:
        raise ValueError(f"{thread} has checkpoints 0 to {row.standing.seq}, and none {seq}")
    try:
        reader = await _read(store, row, seq)
        items = [
            (r.n, msgspec.json.decode(r.payload))
            async for r in rows_of(store, Items(address=row.address, first=reader.first))
            if r.n <= reader.last.n
        ]
        return reader.data(items)
    except DAMAGE as error:
        raise Unreadable(f"{thread}: a stored record cannot be read: {error}") from error


async def stored_data(store: Store, row: ThreadRow) -> dict[str, Any]:
    """A thread's data as of its newest checkpoint; see ``data_at``."""
    return dict((await data_at(store, row, row.standing.seq)).values)


async def _read(store: Store, row: ThreadRow, seq: int) -> _Reader:
    reader: _Reader | None = None
    begin = row.standing.base - 1 if seq == row.standing.seq else -1
    async for log in rows_of(store, Log(address=row.address, after=begin)):
        if log.seq > seq:
            break
        if not is_checkpoint(log):
            continue
        body = None if log.salt is None else decode_body(log.payload)
        if body is not None and body.base is not None:
            reader = _Reader(log, body.base)
        if reader is not None:
            reader.take(log, body)
    if reader is None or reader.last.seq != seq:
        raise ValueError(f"checkpoint {seq} has no snapshot that can be read before it")
    return reader


class _Reader:
    """Fields as a snapshot and the deltas after it have them; those of items by where they lie."""

    def __init__(self, log: LogRow, base: Mapping[str, Any]) -> None:
        self.last = log
        self._body = Body()
        self._values = {name: msgspec.json.decode(value) for name, value in base.items() if name != ITEMS}
        self._spans: dict[str, Span] = {}
        if ITEMS in base:
            self._spans = msgspec.json.decode(base[ITEMS], type=dict[str, Span])

    def take(self, log: LogRow, body: Body | None) -> None:
        if body is None:
            raise ValueError(f"row {log.n} of the journal was purged")
        for name, change in (body.delta or {}).items():
            op, what = msgspec.json.decode(change)
            if op == "s":
                self._values[name] = what
            else:
                self._spans[name] = Span.after(self._spans.get(name), log.n, op, what)
        self.last, self._body = log, body

    @property
    def first(self) -> int:
        """The position from which on items are needed."""
        return min((span.first for span in self._spans.values()), default=self.last.n + 1)

    def data(self, items: Sequence[tuple[int, Mapping[str, list[Any]]]]) -> StoredData:
        lists: dict[str, list[Any]] = {name: [] for name in self._spans}
        for n, row in items:
            for name, more in row.items():
                if name in self._spans and n >= self._spans[name].first:
                    lists[name] += more
        shown = {name: lists[name][span.stored - span.shown :] for name, span in self._spans.items()}
        return StoredData(
            seq=self.last.seq,
            at=self.last.at,
            event=self._body.event,
            state=self._body.dest,
            values={**self._values, **shown},
            spans=self._spans,
        )


def changes(before: StoredData, after: StoredData) -> list[Change]:
    """What is different, field by field; what was appended as such."""
    found: list[Change] = []
    for name in dict.fromkeys((*before.values, *after.values)):
        if name not in after.values:
            found.append(Change(field=name, kind="gone", before=before.values[name]))
        elif (grown := _appended(name, before, after)) is not None:
            found += [grown] if grown.items or grown.dropped else []
        elif name not in before.values:
            found.append(Change(field=name, kind="new", after=after.values[name]))
        elif before.values[name] != after.values[name]:
            found.append(Change(field=name, kind="set", before=before.values[name], after=after.values[name]))
    return found


def _appended(name: str, before: StoredData, after: StoredData) -> Change | None:
    """How a field that accumulates went on; None where it began anew or is another kind of field."""
    new = after.spans.get(name)
    if new is None:
        return None
    old = before.spans.get(name, Span(new.first, 0, 0))
    if (old.stored and old.first != new.first) or new.stored < old.stored:
        return None
    count = min(new.shown, new.stored - old.stored)
    items = list(after.values[name])[new.shown - count :]
    return Change(field=name, kind="appended", items=items, dropped=max(0, old.shown - (new.shown - count)))
