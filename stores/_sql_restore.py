"""How rows of another store are put as they are: all of a batch are judged first, then written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from attrs import frozen

from ._errors import RestoreConflict
from ._kinds import RowKey, RowKind, StoredRow, ThreadPart, key_of_row, kind_of_row
from ._records import Address, MemoryRow, Micros, ThreadRow
from ._sql_commits import OLD_MEMORY
from ._sql_kinds import PART_TABLES, TABLES
from ._sql_rows import STATUS_CODES
from ._sql_steps import Ask, Row, Steps
from ._sql_writes import CAME_BEFORE, find_thread

R = TypeVar("R", bound=StoredRow)

FIND_NUMBERS = "SELECT id, workspace, thread_id, session FROM thread WHERE "
FIND_NEWEST = "SELECT workspace, namespace, key, version FROM memory WHERE "
FIND_HEAD = "SELECT head, at FROM log WHERE thread = ? AND n = ?"
NAME_THREAD = """UPDATE thread SET session = ?, session_since = ?, principal = ?, parent = ?, started = ?,
    created = ?, schema = ? WHERE id = ?"""
STANDING = """id, incarnation, machine, state, seq, version, definition, status, base, n, epoch, owner,
    crashes, inbox, wake, expires, reason, note, items, schema, workspace, priority, since"""


@frozen
class Numbered:
    """A thread's number, and whether the thread stands."""

    number: int
    stands: bool


Numbers = Mapping[Address, Numbered]
There = Mapping[RowKey, StoredRow]


def restore(rows: Sequence[StoredRow], now: Micros) -> Steps[None]:
    numbers = yield from _find_numbers(_addresses(rows))
    missing: list[StoredRow] = []
    for kind, some in _by_kind(rows):
        there = yield from _find(kind, some, numbers)
        missing += [row for row in some if _is_missing(row, there.get(key_of_row(row)), numbers)]
    for row in missing:
        if isinstance(row, ThreadRow):
            yield from _judge_thread(row, numbers)
    unknown = _addresses(missing) - numbers.keys()
    if unknown:
        names = [(address.workspace, address.thread_id) for address in unknown]
        yield _insert("thread", "workspace, thread_id", names)
        numbers = {**numbers, **(yield from _find_numbers(unknown))}
    for kind, some in _by_kind(missing):
        yield from _write(kind, some, numbers, now)


def _by_kind(rows: Sequence[StoredRow]) -> Iterator[tuple[RowKind, Sequence[StoredRow]]]:
    for kind, some in groupby(sorted(rows, key=kind_of_row), key=kind_of_row):
        yield kind, list(some)


def _only(rows: Iterable[StoredRow], kind: type[R]) -> list[R]:
    return [row for row in rows if isinstance(row, kind)]


def _addresses(rows: Iterable[StoredRow]) -> set[Address]:
    return {row.address for row in rows if isinstance(row, ThreadPart | ThreadRow)}


def _any_of(columns: Sequence[str], keys: Iterable[Row]) -> tuple[str, Row]:
    """Holds of the rows that have one of these keys: written so that each is looked up in an index."""
    given = list(keys)
    one = " AND ".join(f"{column} = ?" for column in columns)
    return f"({' OR '.join([f'({one})'] * len(given))})", [value for key in given for value in key]


def _insert(table: str, columns: str, rows: Sequence[Row]) -> Ask:
    values = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
    return f"INSERT INTO {table} ({columns}) VALUES {values}", [value for row in rows for value in row]


def _find_numbers(addresses: Iterable[Address]) -> Steps[Numbers]:
    names = [(address.workspace, address.thread_id) for address in addresses]
    if not names:
        return {}
    condition, values = _any_of(("workspace", "thread_id"), names)
    return {
        Address(workspace=workspace, thread_id=thread_id): Numbered(number, session is not None)
        for number, workspace, thread_id, session in (yield FIND_NUMBERS + condition, values)
    }


def _find(kind: RowKind, rows: Sequence[StoredRow], numbers: Numbers) -> Steps[There]:
    """What stands under the names of these rows, which are of one kind."""
    if kind == "thread":
        threads: list[ThreadRow | None] = []
        for row in _only(rows, ThreadRow):
            threads.append((yield from find_thread(row.address)))
        return {key_of_row(row): row for row in threads if row is not None}
    if kind in PART_TABLES:
        return (yield from _find_parts(kind, _only(rows, ThreadPart), numbers))
    table = TABLES[kind]
    condition, values = _any_of(table.key, map(key_of_row, rows))
    found = map(table.read, (yield f"SELECT {table.columns} FROM {table.name} WHERE {condition}", values))
    return {key_of_row(row): row for row in found}


def _find_parts(kind: RowKind, parts: Sequence[ThreadPart], numbers: Numbers) -> Steps[There]:
    table = PART_TABLES[kind]
    keys = [
        (numbers[part.address].number, *key_of_row(part)[2:]) for part in parts if part.address in numbers
    ]
    if not keys:
        return {}
    columns = [f"{table.alias}.{column}" for column in ("thread", *table.key)]
    condition, values = _any_of(columns, keys)
    select = f"SELECT {columns[0]}, {table.selected} FROM {table.name} {table.alias} WHERE {condition}"
    address_of = {numbered.number: address for address, numbered in numbers.items()}
    found = [
        ThreadPart(address=address_of[row[0]], row=table.read(row[1:])) for row in (yield select, values)
    ]
    return {key_of_row(row): row for row in found}


def _is_missing(row: StoredRow, there: StoredRow | None, numbers: Numbers) -> bool:
    """Whether it is to be written; raises where another row stands, or where it would come too late."""
    if there is not None and there != row:
        raise RestoreConflict(f"the {kind_of_row(row)} row {key_of_row(row)} is another one here")
    thread = numbers.get(row.address) if isinstance(row, ThreadPart) else None
    if there is None and thread is not None and thread.stands:
        raise RestoreConflict(f"a thread stands here without its {kind_of_row(row)} row {key_of_row(row)}")
    return there is None


def _judge_thread(thread: ThreadRow, numbers: Numbers) -> Steps[None]:
    """A thread comes behind its log and inbox: it may be claimed from then on."""
    numbered = numbers.get(thread.address)
    number = -1 if numbered is None else numbered.number
    heads = yield FIND_HEAD, (number, thread.n - 1)
    if [tuple(row) for row in heads] != [(thread.head, thread.updated)]:
        raise RestoreConflict(
            f"thread {thread.address.thread_id!r} comes before its newest log row: restore that first"
        )
    [(inbox, _)] = yield CAME_BEFORE, (number,)
    if inbox != thread.inbox:
        raise RestoreConflict(
            f"thread {thread.address.thread_id!r} has {thread.inbox} inbox entries, and {inbox} are here"
        )


def _write(kind: RowKind, rows: Sequence[StoredRow], numbers: Numbers, now: Micros) -> Steps[None]:
    if kind == "thread":
        for thread in _only(rows, ThreadRow):
            yield from _write_thread(thread, numbers[thread.address].number, now)
    elif kind == "memory":
        yield from _write_memory(_only(rows, MemoryRow))
    elif kind in PART_TABLES:
        part = PART_TABLES[kind]
        numbered = [(numbers[row.address].number, *part.values(row.row)) for row in _only(rows, ThreadPart)]
        yield _insert(part.name, f"thread, {part.columns}", numbered)
    else:
        table = TABLES[kind]
        yield _insert(table.name, table.columns, [table.values(row) for row in rows])


def _write_memory(rows: Sequence[MemoryRow]) -> Steps[None]:
    last: dict[Row, int] = {}
    for row in rows:
        name = (row.workspace, row.namespace, row.key)
        last[name] = max(row.version, last.get(name, 0))
    condition, values = _any_of(("workspace", "namespace", "key", "newest"), [(*name, 1) for name in last])
    for *key, version in (yield FIND_NEWEST + condition, values):
        if version < last[tuple(key)]:
            yield OLD_MEMORY, key
        else:
            del last[tuple(key)]
    written = [
        (*TABLES["memory"].values(row), int(last.get((row.workspace, row.namespace, row.key)) == row.version))
        for row in rows
    ]
    yield _insert("memory", f"{TABLES['memory'].columns}, newest", written)


def _write_thread(thread: ThreadRow, number: int, now: Micros) -> Steps[None]:
    stamps = (thread.principal, thread.parent, thread.started, thread.created, thread.schema, number)
    yield NAME_THREAD, (thread.session, thread.session_since, *stamps)
    yield _insert("standing", STANDING, [_standing_values(thread, number, now)])


def _standing_values(thread: ThreadRow, number: int, now: Micros) -> Row:
    standing = thread.standing
    return (
        number,
        thread.incarnation,
        thread.machine,
        standing.state,
        standing.seq,
        standing.version,
        standing.definition,
        STATUS_CODES[standing.status],
        standing.base,
        thread.n,
        thread.epoch,
        thread.owner,
        thread.crashes,
        thread.inbox,
        standing.wake,
        standing.expires,
        standing.reason,
        standing.note,
        standing.items,
        thread.schema,
        thread.address.workspace,
        thread.priority,
        now,
    )
