"""A thread's journal: what a row says, and the chain that covers it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from traceback import walk_tb
from typing import Any, cast

import msgspec
from attrs import define, field

from perdure.stores import SCHEMA, LogKind, LogRow, Micros

from ._spilled import is_spilled, words_of_lost

Entry = dict[str, Any]
"""One thing that happened inside a visit; ``k`` says which kind. See docs/protocol.md."""

MAX_TEXT = 2000
"""Characters of an error's message that are kept."""

_encoder = msgspec.json.Encoder()


@define(kw_only=True)
class Body:
    """What a log row's payload says."""

    entries: Sequence[Entry] = ()
    event: str | None = None
    source: str | None = None
    dest: str | None = None
    delta: Mapping[str, Any] | None = None
    """Changed fields of a transition, or None."""
    base: Mapping[str, Any] | None = None
    """A whole snapshot of the data, or None."""
    version: int | None = None
    """With a snapshot: the machine's version whose data this one and the deltas after it hold. Without one:
    that which wrote these entries, where it is not the checkpoint's."""
    due: Mapping[str, Micros] = field(factory=dict[str, Micros])
    """When each timeout of the visit that begins here is due."""
    fired: Mapping[str, Micros] = field(factory=dict[str, Micros])
    """The moment with which each event that comes at one came last."""
    side: str | None = None
    """Digest of what the commit wrote beside this row."""


class _Wire(msgspec.Struct, omit_defaults=True):
    x: list[dict[str, msgspec.Raw]] = msgspec.field(default_factory=lambda: list[dict[str, msgspec.Raw]]())
    e: str | None = None
    f: str | None = None
    t: str | None = None
    d: dict[str, msgspec.Raw] | None = None
    b: dict[str, msgspec.Raw] | None = None
    v: int | None = None
    due: dict[str, int] = msgspec.field(default_factory=lambda: dict[str, int]())
    fired: dict[str, int] = msgspec.field(default_factory=lambda: dict[str, int]())
    s: str | None = None


_decoder = msgspec.json.Decoder(_Wire)
RAW_KEYS = frozenset(("args", "value", "updates"))
"""Entry keys whose values stay encoded: they are read by the codec of their declared type."""


def encode_body(body: Body, entries: Sequence[Entry], side: str | None) -> bytes:
    """The payload of a log row. Entries and the digest of what is written beside it are known last, and so
    are given here rather than in the body, which would have to be made again."""
    wire: dict[str, Any] = {}
    if body.event is not None:
        wire["e"] = body.event
    if body.source is not None:
        wire["f"] = body.source
    if body.dest is not None:
        wire["t"] = body.dest
    if body.delta is not None:
        wire["d"] = body.delta
    if body.base is not None:
        wire["b"] = body.base
    if body.version is not None:
        wire["v"] = body.version
    if body.due:
        wire["due"] = body.due
    if body.fired:
        wire["fired"] = body.fired
    if side is not None:
        wire["s"] = side
    if entries:
        wire["x"] = entries
    return _encoder.encode(wire)


def decode_body(payload: bytes) -> Body:
    """The reverse; ``msgspec.MsgspecError`` where the bytes are no payload, ``ValueError`` where they only
    name its blob."""
    try:
        wire = _decoder.decode(payload)
    except msgspec.MsgspecError:
        if is_spilled(payload):
            raise ValueError(words_of_lost(payload)) from None
        raise
    return Body(
        entries=[_entry(raw) for raw in wire.x],
        event=wire.e,
        source=wire.f,
        dest=wire.t,
        delta=wire.d,
        base=wire.b,
        version=wire.v,
        due=wire.due,
        fired=wire.fired,
        side=wire.s,
    )


def is_checkpoint(row: LogRow) -> bool:
    """Whether the row holds state and data, rather than what happened between two of those."""
    return row.kind in ("start", "transition")


def entries_of_visit(row: LogRow, seq: int) -> Sequence[Entry]:
    """What the row says of the visit that began with checkpoint ``seq``: nothing if it is of another one, or
    was purged. ``msgspec.MsgspecError`` as in ``decode_body``."""
    if row.seq != seq or is_checkpoint(row) or row.salt is None:
        return ()
    return decode_body(row.payload).entries


def _entry(raw: Mapping[str, msgspec.Raw]) -> Entry:
    return {k: bytes(v) if k in RAW_KEYS else msgspec.json.decode(v) for k, v in raw.items()}


def raw(encoded: bytes) -> msgspec.Raw:
    """Embed what is JSON already."""
    return msgspec.Raw(encoded)


def log_row(
    previous: bytes, *, seq: int, n: int, epoch: int, kind: LogKind, at: Micros, salt: bytes, payload: bytes
) -> LogRow:
    """The row that follows the one with this head; a thread's first follows its incarnation."""
    head = _head(previous, SCHEMA, seq, n, epoch, kind, at, seal(salt, payload))
    return LogRow(seq=seq, n=n, epoch=epoch, kind=kind, at=at, head=head, salt=salt, payload=payload)


def seal(salt: bytes, payload: bytes) -> bytes:
    """``H(salt, payload)``: what the chain covers, and what stays of a payload that is purged."""
    return blake2b(payload, digest_size=32, salt=salt).digest()


def _head(
    previous: bytes, schema: int, seq: int, n: int, epoch: int, kind: LogKind, at: Micros, sealed: bytes
) -> bytes:
    """``H(previous, metadata, H(salt, payload))``."""
    outer = blake2b(previous, digest_size=32)
    outer.update(b"%d %d %d %d %s %d " % (schema, seq, n, epoch, kind.encode(), at))
    outer.update(sealed)
    return outer.digest()


def holds(previous: bytes, row: LogRow) -> bool:
    """Whether a row follows the head before it (a thread's first row: its incarnation), purged or not."""
    return row.head == relinked(previous, row)


def relinked(previous: bytes, row: LogRow) -> bytes:
    """The head that a row with this content has behind the head before it."""
    sealed = row.payload if row.salt is None else seal(row.salt, row.payload)
    return _head(previous, row.schema, row.seq, row.n, row.epoch, row.kind, row.at, sealed)


_NOT_THE_USERS = frozenset({"perdure", *sys.stdlib_module_names})


def describe_error(error: BaseException) -> dict[str, Any]:
    """An error as bounded text: type name, message, notes, and ``at``, the line of the user's code that it
    came through last. Never raises, whatever the error's code does."""
    said: dict[str, Any] = {"type": plain_text(type(error).__qualname__)[:200], "message": _message(error)}
    notes = _notes(error)
    if notes:
        said["notes"] = notes
    if at := _users_line(error):
        said["at"] = at
    return said


def said_of(said: Mapping[str, Any]) -> str:
    """A described error in one line."""
    at = f" ({said['at']})" if "at" in said else ""
    return f"{said['type']}: {said['message']}{at}"


def _users_line(error: BaseException) -> str | None:
    """``app.py:12``: by its name alone, since the folder says nothing to others who read the journal."""
    at: str | None = None
    for frame, line in walk_tb(error.__traceback__):
        path, module = frame.f_code.co_filename, frame.f_globals.get("__name__")
        root = module.partition(".")[0] if isinstance(module, str) else ""
        if root not in _NOT_THE_USERS and "site-packages" not in path:
            at = plain_text(f"{os.path.basename(path)[:100]}:{line}")
    return at


def _message(error: BaseException, depth: int = 3) -> str:
    """What it says; of a group, what its first errors say as well: its own text only counts them."""
    message = _text(error)
    if not isinstance(error, BaseExceptionGroup) or not depth:
        return message
    group = cast("BaseExceptionGroup[BaseException]", error)
    inner = [f"{type(each).__qualname__}: {_message(each, depth - 1)}" for each in group.exceptions[:5]]
    return plain_text(f"{message[:200]}: {'; '.join(inner)}")


def plain_text(text: str) -> str:
    """Text that any store can hold: bounded, with NUL and whatever is no valid Unicode written as escapes."""
    return text[:MAX_TEXT].replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def _notes(error: BaseException) -> list[str]:
    try:
        notes: Any = error.__notes__
        return [_text(note) for note in cast("list[object]", notes)[:10]]
    except BaseException:
        return []


def _text(value: object) -> str:
    try:
        text = str(value)
    except BaseException:
        text = f"<{type(value).__qualname__} whose text cannot be made>"
    return plain_text(text)
