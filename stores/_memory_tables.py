"""The tables of ``MemoryStore`` and the queries over them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import msgspec
from attrs import evolve

from ._kinds import StoredRow, ThreadPart, key_of_row
from ._outside import Expire, Expired
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
from ._records import (
    Address,
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
from ._workers import DefinitionRow, WorkerRow

R = TypeVar("R")


class Tables:
    """Everything that a memory store holds. A list is in the order of its numbers, from the first."""

    def __init__(self) -> None:
        self.threads: dict[Address, ThreadRow] = {}
        self.log: defaultdict[Address, list[LogRow]] = defaultdict(list)
        self.items: defaultdict[Address, list[ItemsRow]] = defaultdict(list)
        self.inbox: defaultdict[Address, list[InboxRow]] = defaultdict(list)
        self.outbox: defaultdict[Address, list[OutboxRow]] = defaultdict(list)
        self.messages: defaultdict[tuple[str, str], list[MessageRow]] = defaultdict(list)
        """By workspace and session."""
        self.memory: defaultdict[tuple[str, str, str], list[MemoryRow]] = defaultdict(list)
        """Every version, by workspace, namespace and key."""
        self.artifacts: dict[tuple[str, str], ArtifactRow] = {}
        """By workspace and id."""
        self.keys: dict[tuple[str, str, str], KeyRow] = {}
        """By workspace, effect and key."""
        self.since: dict[Address, Micros] = {}
        """When threads that run and have no owner came to have none."""
        self.workers: dict[str, WorkerRow] = {}
        self.definitions: dict[tuple[str, int, str], DefinitionRow] = {}
        """By machine, version and hash."""
        self.slots: dict[str, dict[str, int]] = {}
        """How many slots of a limit workers hold."""
        self.paces: dict[str, Micros] = {}
        """When a limit lets through as many starts at once again as ever."""

    def pending(self, address: Address) -> list[InboxRow]:
        """What a thread has not taken in yet."""
        return [row for row in self.inbox[address] if row.consumed is None]

    def expire(self, request: Expire) -> Expired:
        """Delete what has had its time, as ``Store.expire`` says."""
        facts = [(name, row) for name, rows in self.memory.items() for row in rows if _due(row, request.at)]
        files = [name for name, row in self.artifacts.items() if not row.thread_id and _due(row, request.at)]
        keys = [n for n, row in self.keys.items() if row.outcome is not None and _due(row, request.at)]
        facts = facts[: request.limit]
        files = files[: request.limit - len(facts)]
        keys = keys[: request.limit - len(facts) - len(files)]
        if not request.dry_run:
            for name, row in facts:
                self._forget(name, row)
            for artifact in files:
                del self.artifacts[artifact]
            for key in keys:
                del self.keys[key]
        return Expired(memory=len(facts), artifacts=len(files), keys=len(keys))

    def _forget(self, name: tuple[str, str, str], row: MemoryRow) -> None:
        history = self.memory[name]
        if row is history[-1]:
            history[-1] = evolve(row, value=None, expires=None)
        else:
            history.remove(row)

    def page(self, query: Query[R], after: str | None, limit: int) -> Page[R]:
        """The rows that the query matches, in its order, from behind the cursor."""
        if limit < 1:
            raise ValueError(f"a page of {limit} rows was asked for: limit must be at least 1")
        match, order = ANSWERS[type(query)]
        rows = sorted(match(self, query), key=order)
        if after is not None:
            behind = _position(after)
            try:
                rows = [row for row in rows if order(row) > behind]
            except TypeError:
                raise ValueError(f"{after!r} is no cursor of this query") from None
        more = len(rows) > limit
        return Page(rows=tuple(rows[:limit]), next=json.dumps(order(rows[limit - 1])) if more else None)


def checkpoint(row: LogRow) -> bool:
    """The row is a checkpoint."""
    return row.kind in ("start", "transition")


def newest_version(history: Sequence[MemoryRow]) -> int:
    """The version of a memory key that stands; 0: it was never written."""
    return history[-1].version if history else 0


def _due(row: MemoryRow | ArtifactRow | KeyRow, at: Micros) -> bool:
    return row.expires is not None and row.expires <= at


def _position(cursor: str) -> tuple[str | int, ...]:
    try:
        return tuple(msgspec.json.decode(cursor, type=list[str | int]))
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise ValueError(f"{cursor!r} is no cursor: pass what Page.next gave") from None


def _threads(tables: Tables, query: Threads) -> Iterable[ThreadRow]:
    for row in tables.threads.values():
        if (
            query.workspace in (None, row.address.workspace)
            and query.thread_id in (None, row.address.thread_id)
            and query.machine in (None, row.machine)
            and query.state in (None, row.standing.state)
            and query.status in (None, row.standing.status)
            and query.session in (None, row.session)
            and (query.owner is None or query.owner == row.owner)
        ):
            yield row


def _log(tables: Tables, query: Log) -> Iterable[LogRow]:
    rows = (row for row in tables.log[query.address] if row.n > query.after)
    return (row for row in rows if query.seq in (None, row.seq))


def _items(tables: Tables, query: Items) -> Iterable[ItemsRow]:
    return (row for row in tables.items[query.address] if row.n >= query.first)


def _inbox(tables: Tables, query: Inbox) -> Iterable[InboxRow]:
    rows = tables.pending(query.address) if query.pending else tables.inbox[query.address]
    return (row for row in rows if row.number > query.after)


def _messages(tables: Tables, query: Messages) -> Iterable[MessageRow]:
    for row in tables.messages[query.workspace, query.session]:
        whole = query.incarnation is None
        if whole or row.number <= query.since or row.incarnation == query.incarnation:
            yield row


def _memory(tables: Tables, query: Memory) -> Iterable[MemoryRow]:
    for (workspace, namespace, key), versions in tables.memory.items():
        if workspace == query.workspace and query.namespace in (None, namespace) and query.key in (None, key):
            yield from versions if query.history else versions[-1:]


def _artifacts(tables: Tables, query: Artifacts) -> Iterable[ArtifactRow]:
    for row in tables.artifacts.values():
        if (
            row.workspace == query.workspace
            and query.id in (None, row.id)
            and (query.thread_id is None or query.thread_id == row.thread_id)
            and query.sha256 in (None, row.sha256)
            and (query.derived_from is None or query.derived_from in row.derived_from)
        ):
            yield row


def _keys(tables: Tables, query: Keys) -> Iterable[KeyRow]:
    for row in tables.keys.values():
        if (row.workspace, row.effect) == (query.workspace, query.effect) and query.key in (None, row.key):
            yield row


def _outbox(tables: Tables, query: Outbox) -> Iterable[OutboxRow]:
    return tables.outbox[query.address]


def _workers(tables: Tables, query: Workers) -> Iterable[WorkerRow]:
    return (row for row in tables.workers.values() if query.id in (None, row.id))


def _definitions(tables: Tables, query: Definitions) -> Iterable[DefinitionRow]:
    for row in tables.definitions.values():
        if query.machine in (None, row.machine) and query.version in (None, row.version):
            yield row


def _rows(tables: Tables, query: Rows) -> Iterable[StoredRow]:
    match query.kind:
        case "definition":
            return tables.definitions.values()
        case "memory":
            return chain(*tables.memory.values())
        case "artifact":
            return tables.artifacts.values()
        case "key":
            return tables.keys.values()
        case "message":
            return chain(*tables.messages.values())
        case "thread":
            return tables.threads.values()
        case "log":
            return _parts(tables.log)
        case "items":
            return _parts(tables.items)
        case "inbox":
            return _parts(tables.inbox)
        case "outbox":
            return _parts(tables.outbox)


def _parts(table: Mapping[Address, Sequence[Any]]) -> Iterator[ThreadPart]:
    for address, rows in table.items():
        for row in rows:
            yield ThreadPart(address=address, row=row)


Match = Callable[[Tables, Any], Iterable[Any]]
Order = Callable[[Any], tuple[Any, ...]]

ANSWERS: dict[type[Query[Any]], tuple[Match, Order]] = {
    Threads: (_threads, lambda row: (row.address.workspace, row.address.thread_id)),
    Log: (_log, lambda row: (row.n,)),
    Items: (_items, lambda row: (row.n,)),
    Inbox: (_inbox, lambda row: (row.number,)),
    Messages: (_messages, lambda row: (row.number,)),
    Memory: (_memory, lambda row: (row.namespace, row.key, row.version)),
    Artifacts: (_artifacts, lambda row: (row.created, row.id)),
    Keys: (_keys, lambda row: (row.key,)),
    Outbox: (_outbox, lambda row: (row.seq, row.n)),
    Definitions: (_definitions, lambda row: (row.machine, row.version, row.hash)),
    Rows: (_rows, key_of_row),
    Workers: (_workers, lambda row: (-row.started, row.id)),
}
