"""The queries of ``Store.page`` as statements, each read at one moment, and the cursors between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve, frozen

from ._cursors import BIGGEST, cursor_of, parse_cursor
from ._kinds import RowKind, key_of_row
from ._queries import (
    Artifacts,
    Definitions,
    Inbox,
    Items,
    Keys,
    Log,
    Memory,
    Messages,
    Outbox,
    Page,
    Query,
    Rows,
    Threads,
    Workers,
)
from ._sql_kinds import PART_TABLES, TABLES
from ._sql_rows import (
    ARTIFACT,
    DEFINITION,
    INBOX,
    ITEMS,
    KEY,
    LOG,
    MEMORY,
    MESSAGE,
    NEWEST,
    OUTBOX,
    STATUS_CODES,
    THREAD,
    WORKER,
    read_artifact,
    read_definition,
    read_inbox,
    read_items,
    read_key,
    read_log,
    read_memory,
    read_message,
    read_outbox,
    read_thread,
    read_worker,
)
from ._sql_steps import Dialect, Row

NUMBER = "(SELECT id FROM thread WHERE workspace = ? AND thread_id = ?)"

# Positions grow with seq, so where a visit begins and the next one does is found by halving, not by reading
# what lies before and behind.
VISIT = """WITH RECURSIVE
    bounds (seq) AS (SELECT CAST(? AS BIGINT) UNION ALL SELECT CAST(? AS BIGINT)),
    halves (thread, seq, low, high) AS (
        SELECT id, b.seq, CAST(0 AS BIGINT), (SELECT coalesce(max(n), -1) + 1 FROM log WHERE thread = id)
        FROM thread t, bounds b WHERE t.workspace = ? AND t.thread_id = ?
        UNION ALL
        SELECT h.thread, h.seq, CASE WHEN m.seq < h.seq THEN m.n + 1 ELSE low END,
            CASE WHEN m.seq < h.seq THEN high ELSE m.n END
        FROM halves h {join} log m ON m.thread = h.thread AND m.n = (low + high) / 2 WHERE low < high),
    visit (thread, first, past) AS MATERIALIZED (
        SELECT max(thread), min(low), max(low) FROM halves WHERE low >= high)
    SELECT {columns} FROM log l"""
IN_VISIT = """l.thread = (SELECT thread FROM visit) AND l.n >= (SELECT first FROM visit)
    AND l.n < (SELECT past FROM visit)"""

# Two parts that an index orders each, which the database merges.
SEEN = f"""SELECT {MESSAGE} FROM (
    SELECT {MESSAGE} FROM message WHERE workspace = ? AND session = ? AND number <= ?
    UNION ALL
    SELECT {MESSAGE} FROM message WHERE workspace = ? AND session = ? AND incarnation = ? AND number > ?) m"""


@frozen(kw_only=True)
class Plan:
    """How one query is answered: a statement up to its conditions, and what orders it."""

    select: str
    conditions: Sequence[tuple[str, Sequence[Any]]]
    order: Sequence[str]
    """Columns that together name a row; the cursor holds their values."""
    types: Sequence[type]
    cursor: Callable[[Any], Sequence[Any]]
    read: Callable[[Row], Any]
    values: Sequence[Any] = ()
    """What stands in ``select``."""
    descending: bool = False
    """The first column of the order counts down."""
    outer: int = 0
    """So many columns of the order are of a table to which the others are joined."""

    def statement(self, after: str | None, limit: int) -> tuple[str, Sequence[Any]]:
        """The statement and its values; one row more than ``limit`` tells whether there are more."""
        conditions = list(self.conditions)
        if after is not None:
            conditions.append(self._behind(after))
        where = " WHERE " + " AND ".join(text for text, _ in conditions) if conditions else ""
        values = [value for _, values in conditions for value in values]
        order = ", ".join(self.order).replace(",", " DESC,", 1 if self.descending else 0)
        return f"{self.select}{where} ORDER BY {order} LIMIT ?", (
            *self.values,
            *values,
            min(limit, BIGGEST - 1) + 1,
        )

    def page(self, rows: Sequence[Row], limit: int) -> Page[Any]:
        read = tuple(self.read(row) for row in rows[:limit])
        more = len(rows) > limit
        return Page(rows=read, next=cursor_of(self.cursor(read[-1])) if more else None)

    def _behind(self, after: str) -> tuple[str, Sequence[Any]]:
        key = parse_cursor(after, self.types)
        if self.descending:
            first, second = self.order
            return f"({first} < ? OR {first} = ? AND {second} > ?)", (key[0], key[0], key[1])
        if self.outer:
            return self._behind_joined(key)
        return f"({', '.join(self.order)}) > ({', '.join('?' * len(key))})", key

    def _behind_joined(self, key: Sequence[Any]) -> tuple[str, Sequence[Any]]:
        """Said so that each table is entered by its index where the last page ended."""
        outer, inner, begun = self.order[: self.outer], self.order[self.outer], key[: self.outer]
        marks = ", ".join("?" * self.outer)
        same = " AND ".join(f"{column} = ?" for column in outer)
        text = f"""({", ".join(outer)}) >= ({marks})
            AND {inner} >= CASE WHEN {same} THEN CAST(? AS BIGINT) ELSE 0 END
            AND ({", ".join(self.order)}) > ({", ".join("?" * len(key))})"""
        return text, (*begun, *begun, key[self.outer], *key)


def plan(query: Query[Any], dialect: Dialect) -> Plan:
    """How to answer a query."""
    match query:
        case Threads():
            return _threads(query, dialect)
        case Log():
            return _log(query, dialect)
        case Items(address=address):
            planned = _by_position(f"SELECT {ITEMS} FROM items i", "i", address, "n", read_items)
            return evolve(planned, conditions=(*planned.conditions, ("i.n >= ?", (query.first,))))
        case Inbox():
            return _inbox(query)
        case Messages():
            return _messages(query)
        case Memory():
            return _memory(query)
        case Artifacts():
            return _artifacts(query, dialect)
        case Keys():
            return _keys(query)
        case Outbox():
            return _outbox(query)
        case Workers():
            return Plan(
                select=f"SELECT {WORKER} FROM worker",
                conditions=_given(("id", query.id)),
                order=("started", "id"),
                types=(int, str),
                cursor=lambda row: (row.started, row.id),
                read=read_worker,
                descending=True,
            )
        case Definitions():
            return Plan(
                select=f"SELECT {DEFINITION} FROM definition",
                conditions=_given(("machine", query.machine), ("version", query.version)),
                order=("machine", "version", "hash"),
                types=(str, int, str),
                cursor=lambda row: (row.machine, row.version, row.hash),
                read=read_definition,
            )
        case Rows(kind=kind):
            return _rows(kind, dialect)
        case _:
            raise TypeError(f"a store answers the queries of perdure.stores, not {type(query).__name__}")


def _given(*pairs: tuple[str, Any]) -> list[tuple[str, Sequence[Any]]]:
    return [(f"{column} = ?", (value,)) for column, value in pairs if value is not None]


def _threads(query: Threads, dialect: Dialect) -> Plan:
    conditions = _given(
        ("t.workspace", query.workspace),
        ("t.thread_id", query.thread_id),
        ("s.machine", query.machine),
        ("s.state", query.state),
        ("t.session", query.session),
        ("s.owner", query.owner),
    )
    if query.status is not None:
        # Written out, because only so does it match the condition of the index over parked threads.
        conditions.append((f"s.status = {STATUS_CODES.get(query.status, -1)}", ()))
    few = query.owner is not None or query.status == "parked"
    first, second = ("standing s", "thread t") if few else ("thread t", "standing s")
    in_one = query.workspace is not None
    return Plan(
        select=f"SELECT {THREAD} FROM {first} {dialect.join} {second} ON t.id = s.id {dialect.join} {NEWEST}",
        conditions=conditions,
        order=("t.thread_id",) if in_one else ("t.workspace", "t.thread_id"),
        types=(str,) if in_one else (str, str),
        cursor=lambda row: (row.address.workspace, row.address.thread_id)[in_one:],
        read=read_thread,
    )


def _by_position(select: str, table: str, address: Any, column: str, read: Callable[[Row], Any]) -> Plan:
    return Plan(
        select=select,
        conditions=[(f"{table}.thread = {NUMBER}", (address.workspace, address.thread_id))],
        order=(f"{table}.{column}",),
        types=(int,),
        cursor=lambda row: (getattr(row, column),),
        read=read,
    )


def _log(query: Log, dialect: Dialect) -> Plan:
    planned = _by_position(f"SELECT {LOG} FROM log l", "l", query.address, "n", read_log)
    if query.seq is not None:
        values = (query.seq, query.seq + 1, query.address.workspace, query.address.thread_id)
        select = VISIT.format(join=dialect.join, columns=LOG)
        planned = evolve(planned, select=select, values=values, conditions=[(IN_VISIT, ())])
    return evolve(planned, conditions=(*planned.conditions, ("l.n > ?", (query.after,))))


def _inbox(query: Inbox) -> Plan:
    conditions: list[tuple[str, Sequence[Any]]] = [
        (f"i.thread = {NUMBER}", (query.address.workspace, query.address.thread_id)),
        ("i.number > ?", (query.after,)),
    ]
    if query.pending:
        conditions.append(("i.consumed IS NULL", ()))
    return Plan(
        select=f"SELECT {INBOX} FROM inbox i",
        conditions=conditions,
        order=("i.number",),
        types=(int,),
        cursor=lambda row: (row.number,),
        read=read_inbox,
    )


def _outbox(query: Outbox) -> Plan:
    return Plan(
        select=f"SELECT {OUTBOX} FROM outbox o",
        conditions=[(f"o.thread = {NUMBER}", (query.address.workspace, query.address.thread_id))],
        order=("o.seq", "o.n"),
        types=(int, int),
        cursor=lambda row: (row.seq, row.n),
        read=read_outbox,
    )


def _messages(query: Messages) -> Plan:
    session = (query.workspace, query.session)
    planned = Plan(
        select=f"SELECT {MESSAGE} FROM message",
        conditions=[("workspace = ? AND session = ?", session)],
        order=("number",),
        types=(int,),
        cursor=lambda row: (row.number,),
        read=read_message,
    )
    if query.incarnation is None:
        return planned
    values = (*session, query.since, *session, query.incarnation, query.since)
    return evolve(planned, select=SEEN, values=values, conditions=())


def _memory(query: Memory) -> Plan:
    conditions = _given(("workspace", query.workspace), ("namespace", query.namespace), ("key", query.key))
    if not query.history:
        conditions.append(("newest = 1", ()))
    return Plan(
        select=f"SELECT {MEMORY} FROM memory",
        conditions=conditions,
        order=("namespace", "key", "version") if query.history else ("namespace", "key"),
        types=(str, str, int) if query.history else (str, str),
        cursor=lambda row: (row.namespace, row.key, *((row.version,) if query.history else ())),
        read=read_memory,
    )


def _artifacts(query: Artifacts, dialect: Dialect) -> Plan:
    conditions = _given(
        ("workspace", query.workspace),
        ("id", query.id),
        ("thread_id", query.thread_id),
        ("sha256", query.sha256),
    )
    if query.derived_from is not None:
        conditions.append((dialect.derived, (query.workspace, query.derived_from)))
    chosen = (
        ("id", query.id),
        ("blob", query.sha256),
        ("id", query.derived_from),
        ("thread", query.thread_id),
    )
    index = next((name for name, value in chosen if value is not None), "created")
    return Plan(
        select=f"SELECT {ARTIFACT} FROM artifact {dialect.index.format(f'artifact_{index}')}",
        conditions=conditions,
        order=("created", "id"),
        types=(int, str),
        cursor=lambda row: (row.created, row.id),
        read=read_artifact,
    )


def _keys(query: Keys) -> Plan:
    return Plan(
        select=f"SELECT {KEY} FROM effect_key",
        conditions=_given(("workspace", query.workspace), ("effect", query.effect), ("key", query.key)),
        order=("key",),
        types=(str,),
        cursor=lambda row: (row.key,),
        read=read_key,
    )


def _rows(kind: RowKind, dialect: Dialect) -> Plan:
    if kind == "thread":
        return _threads(Threads(), dialect)
    return _of_parts(kind, dialect) if kind in PART_TABLES else _of_kind(kind)


def _of_kind(kind: RowKind) -> Plan:
    table = TABLES[kind]
    return Plan(
        select=f"SELECT {table.columns} FROM {table.name}",
        conditions=(),
        order=table.key,
        types=table.types,
        cursor=key_of_row,
        read=table.read,
    )


def _of_parts(kind: RowKind, dialect: Dialect) -> Plan:
    table = PART_TABLES[kind]
    joined = f"{dialect.join} {table.name} {table.alias} ON {table.alias}.thread = t.id"
    return Plan(
        select=f"SELECT t.workspace, t.thread_id, {table.selected} FROM thread t {joined}",
        conditions=(),
        order=("t.workspace", "t.thread_id", *(f"{table.alias}.{column}" for column in table.key)),
        types=(str, str, *table.types),
        cursor=key_of_row,
        read=table.read_part,
        outer=2,
    )
