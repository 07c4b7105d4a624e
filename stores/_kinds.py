"""Rows of every kind, as a copy reads them from one store and puts them into another."""

from __future__ import annotations

from typing import Generic, Literal, TypeAlias, get_args

from attrs import frozen
from typing_extensions import TypeVar

from ._records import (
    Address,
    ArtifactRow,
    InboxRow,
    ItemsRow,
    KeyRow,
    LogRow,
    MemoryRow,
    MessageRow,
    OutboxRow,
    ThreadRow,
)
from ._workers import DefinitionRow

RowKind = Literal[
    "definition", "memory", "artifact", "key", "message", "log", "items", "inbox", "outbox", "thread"
]
"""What a store keeps, but for what belongs to its living workers: their rows and their parts of limits."""

ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)
"""In the order in which they are restored: a thread comes behind everything that belongs to it."""


Part: TypeAlias = LogRow | ItemsRow | InboxRow | OutboxRow
P = TypeVar("P", bound=Part, default=Part)


@frozen(kw_only=True)
class ThreadPart(Generic[P]):
    """A row that is kept with a thread, and the thread's address, which may not have started yet."""

    address: Address
    row: P


StoredRow: TypeAlias = (
    DefinitionRow | MemoryRow | ArtifactRow | KeyRow | MessageRow | ThreadPart[Part] | ThreadRow
)
"""A row of any kind, with everything that names it."""

RowKey: TypeAlias = tuple[str | int, ...]
"""What names a row among those of its kind, and orders them."""

PARTS: dict[type[object], RowKind] = {
    LogRow: "log",
    ItemsRow: "items",
    InboxRow: "inbox",
    OutboxRow: "outbox",
}
WHOLE: dict[type[object], RowKind] = {
    DefinitionRow: "definition",
    MemoryRow: "memory",
    ArtifactRow: "artifact",
    KeyRow: "key",
    MessageRow: "message",
    ThreadRow: "thread",
}


def kind_of_row(row: StoredRow) -> RowKind:
    """The kind of which a row is."""
    return PARTS[type(row.row)] if isinstance(row, ThreadPart) else WHOLE[type(row)]


def key_of_row(row: StoredRow) -> RowKey:
    """What names a row among those of its kind; ``Rows`` lists them in the order of these."""
    match row:
        case DefinitionRow():
            return row.machine, row.version, row.hash
        case MemoryRow():
            return row.workspace, row.namespace, row.key, row.version
        case ArtifactRow():
            return row.workspace, row.id
        case KeyRow():
            return row.workspace, row.effect, row.key
        case MessageRow():
            return row.workspace, row.session, row.number
        case ThreadRow():
            return row.address.workspace, row.address.thread_id
        case ThreadPart():
            return row.address.workspace, row.address.thread_id, *_position(row.row)


def _position(row: Part) -> tuple[int, ...]:
    match row:
        case InboxRow():
            return (row.number,)
        case OutboxRow():
            return row.seq, row.n
        case _:
            return (row.n,)


def bytes_of_row(row: StoredRow) -> int:
    """Bytes of a row's body."""
    match row:
        case DefinitionRow():
            return len(row.document)
        case MemoryRow():
            return len(row.value or b"")
        case KeyRow():
            return len(row.outcome or b"")
        case MessageRow():
            return len(row.payload)
        case ThreadPart():
            return len(row.row.payload)
        case _:
            return 0
