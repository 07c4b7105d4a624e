"""Where rows of each kind stand in the tables of a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from ._kinds import RowKind, ThreadPart
from ._records import Address, InboxRow, ItemsRow, KeyRow, LogRow, MemoryRow, MessageRow, OutboxRow
from ._sql_rows import (
    ARTIFACT,
    DEFINITION,
    INBOX,
    ITEMS,
    KEY,
    LOG,
    MEMORY,
    MESSAGE,
    OUTBOX,
    artifact_values,
    log_values,
    read_artifact,
    read_definition,
    read_inbox,
    read_items,
    read_key,
    read_log,
    read_memory,
    read_message,
    read_outbox,
)
from ._sql_steps import Row
from ._workers import DefinitionRow


@frozen(kw_only=True)
class Table:
    """Where the rows of one kind stand."""

    name: str
    columns: str
    """What is written, in the order of ``values``; of a thread's part without the thread's number."""
    read: Callable[[Row], Any]
    values: Callable[[Any], Row]
    key: Sequence[str]
    """The columns that name a row, or, of a thread's part, a row among the thread's."""
    types: Sequence[type]


@frozen(kw_only=True)
class PartTable(Table):
    """Where rows stand that are kept with a thread, by its number."""

    alias: str
    selected: str
    """The columns as ``read`` takes them, by the alias."""

    def read_part(self, row: Row) -> ThreadPart:
        """A row behind its thread's workspace and id."""
        address = Address(workspace=row[0], thread_id=row[1])
        return ThreadPart(address=address, row=self.read(row[2:]))


def _items_values(row: ItemsRow) -> Row:
    return row.n, row.payload, row.schema


def _inbox_values(row: InboxRow) -> Row:
    whole = (row.number, row.id, row.event, row.payload, row.digest, row.at, row.consumed, row.schema)
    return *whole, row.version


def _outbox_values(row: OutboxRow) -> Row:
    return row.seq, row.n, row.target.workspace, row.target.thread_id, row.kind, row.payload, row.schema


def _log_values(row: LogRow) -> Row:
    return log_values(0, row)[1:]


def _message_values(row: MessageRow) -> Row:
    owner = (row.thread_id, row.incarnation, row.principal)
    return row.workspace, row.session, row.number, *owner, row.payload, row.at, row.schema


def _memory_values(row: MemoryRow) -> Row:
    name = (row.workspace, row.namespace, row.key, row.version)
    stamps = (row.at, row.thread_id, row.seq, row.principal, row.expires, row.request, row.schema)
    return *name, row.value, *stamps


def _key_values(row: KeyRow) -> Row:
    name = (row.workspace, row.effect, row.key)
    visit = (row.thread_id, row.incarnation, row.seq)
    return *name, row.arguments, row.salt, *visit, row.outcome, row.at, row.expires, row.schema


def _definition_values(row: DefinitionRow) -> Row:
    return row.machine, row.version, row.hash, row.document, row.at, row.schema


TABLES: Mapping[RowKind, Table] = {
    "definition": Table(
        name="definition",
        columns=DEFINITION,
        read=read_definition,
        values=_definition_values,
        key=("machine", "version", "hash"),
        types=(str, int, str),
    ),
    "memory": Table(
        name="memory",
        columns=MEMORY,
        read=read_memory,
        values=_memory_values,
        key=("workspace", "namespace", "key", "version"),
        types=(str, str, str, int),
    ),
    "artifact": Table(
        name="artifact",
        columns=ARTIFACT,
        read=read_artifact,
        values=artifact_values,
        key=("workspace", "id"),
        types=(str, str),
    ),
    "key": Table(
        name="effect_key",
        columns=KEY,
        read=read_key,
        values=_key_values,
        key=("workspace", "effect", "key"),
        types=(str, str, str),
    ),
    "message": Table(
        name="message",
        columns=MESSAGE,
        read=read_message,
        values=_message_values,
        key=("workspace", "session", "number"),
        types=(str, str, int),
    ),
}

PART_TABLES: Mapping[RowKind, PartTable] = {
    "log": PartTable(
        name="log",
        alias="l",
        columns="n, seq, epoch, kind, at, head, salt, payload, schema",
        selected=LOG,
        read=read_log,
        values=_log_values,
        key=("n",),
        types=(int,),
    ),
    "items": PartTable(
        name="items",
        alias="i",
        columns="n, payload, schema",
        selected=ITEMS,
        read=read_items,
        values=_items_values,
        key=("n",),
        types=(int,),
    ),
    "inbox": PartTable(
        name="inbox",
        alias="i",
        columns="number, id, event, payload, digest, at, consumed, schema, version",
        selected=INBOX,
        read=read_inbox,
        values=_inbox_values,
        key=("number",),
        types=(int,),
    ),
    "outbox": PartTable(
        name="outbox",
        alias="o",
        columns="seq, n, workspace, thread_id, kind, payload, schema",
        selected=OUTBOX,
        read=read_outbox,
        values=_outbox_values,
        key=("seq", "n"),
        types=(int, int),
    ),
}
