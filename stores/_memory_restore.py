"""How a memory store takes rows of another store as they are: all are judged first, then written."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from ._errors import RestoreConflict
from ._kinds import StoredRow, ThreadPart, key_of_row, kind_of_row
from ._memory_tables import Tables
from ._records import (
    ArtifactRow,
    InboxRow,
    ItemsRow,
    KeyRow,
    LogRow,
    MemoryRow,
    MessageRow,
    Micros,
    OutboxRow,
    ThreadRow,
)
from ._workers import DefinitionRow


def restore(tables: Tables, rows: Sequence[StoredRow], now: Micros) -> None:
    """Put rows as ``Store.restore`` says."""
    missing = [row for row in rows if _is_missing(tables, row)]
    for row in missing:
        if isinstance(row, ThreadRow):
            _judge_thread(tables, row)
    for row in missing:
        _write(tables, row, now)


def _is_missing(tables: Tables, row: StoredRow) -> bool:
    there = _find(tables, row)
    wanted = row.row if isinstance(row, ThreadPart) else row
    if there is not None and there != wanted:
        raise RestoreConflict(f"the {kind_of_row(row)} row {key_of_row(row)} is another one here")
    if there is None and isinstance(row, ThreadPart) and row.address in tables.threads:
        raise RestoreConflict(f"a thread stands here without its {kind_of_row(row)} row {key_of_row(row)}")
    return there is None


def _judge_thread(tables: Tables, thread: ThreadRow) -> None:
    """A thread comes behind its log and inbox: it may be claimed from then on."""
    log, inbox = tables.log[thread.address], tables.inbox[thread.address]
    heads = [(row.head, row.at) for row in log if row.n == thread.n - 1]
    if heads != [(thread.head, thread.updated)]:
        raise RestoreConflict(
            f"thread {thread.address.thread_id!r} comes before its newest log row: restore that first"
        )
    if len(inbox) != thread.inbox:
        raise RestoreConflict(
            f"thread {thread.address.thread_id!r} has {thread.inbox} inbox entries, and {len(inbox)} are here"
        )


def _find(tables: Tables, row: StoredRow) -> object | None:
    """What stands under the row's name."""
    match row:
        case DefinitionRow():
            return tables.definitions.get((row.machine, row.version, row.hash))
        case ArtifactRow():
            return tables.artifacts.get((row.workspace, row.id))
        case KeyRow():
            return tables.keys.get((row.workspace, row.effect, row.key))
        case ThreadRow():
            return tables.threads.get(row.address)
        case _:
            listed = _list_of(tables, row)
            position = key_of_row(row)
            index = bisect_left(listed, position, key=lambda one: _key_in_list(row, one))
            found = listed[index : index + 1]
            return found[0] if found and _key_in_list(row, found[0]) == position else None


def _write(tables: Tables, row: StoredRow, now: Micros) -> None:
    match row:
        case DefinitionRow():
            tables.definitions[row.machine, row.version, row.hash] = row
        case ArtifactRow():
            tables.artifacts[row.workspace, row.id] = row
        case KeyRow():
            tables.keys[row.workspace, row.effect, row.key] = row
        case ThreadRow():
            tables.threads[row.address] = row
            tables.since[row.address] = now
        case _:
            listed = _list_of(tables, row)
            index = bisect_left(listed, key_of_row(row), key=lambda one: _key_in_list(row, one))
            listed.insert(index, row.row if isinstance(row, ThreadPart) else row)


def _list_of(tables: Tables, row: MemoryRow | MessageRow | ThreadPart) -> list[Any]:
    match row:
        case MemoryRow():
            return tables.memory[row.workspace, row.namespace, row.key]
        case MessageRow():
            return tables.messages[row.workspace, row.session]
        case ThreadPart():
            return _part_list(tables, row)


def _part_list(tables: Tables, part: ThreadPart) -> list[Any]:
    match part.row:
        case LogRow():
            return tables.log[part.address]
        case ItemsRow():
            return tables.items[part.address]
        case InboxRow():
            return tables.inbox[part.address]
        case OutboxRow():
            return tables.outbox[part.address]


def _key_in_list(row: StoredRow, one: Any) -> tuple[Any, ...]:
    """The key of a row of the list in which ``row`` belongs."""
    return key_of_row(ThreadPart(address=row.address, row=one) if isinstance(row, ThreadPart) else one)
