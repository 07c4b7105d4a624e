"""The queries of ``Store.page`` on a DynamoDB table: spans that are walked in order, row by row.

What is spread over partitions is walked in all of them at once. A list names what may be there; the rows
themselves are read consistently, and judged as they stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from attrs import asdict, evolve, frozen

from ._cursors import cursor_of, parse_cursor
from ._dynamodb_asks import Item, Key, Span, Table
from ._dynamodb_items import address_of, unpack, unpack_artifact, unpack_thread
from ._dynamodb_keys import (
    GROUPS,
    PART,
    artifact_key,
    artifacts_pk,
    below,
    definition_key,
    effect_key,
    every_shard,
    facts_pk,
    groups_pk,
    is_name,
    joined,
    keys_pk,
    listed_pk,
    log_key,
    memory_pk,
    number,
    outbox_key,
    parked_pk,
    session_pk,
    standing_key,
    thread_pk,
    worker_key,
    workers_pk,
)
from ._dynamodb_outside import newest
from ._dynamodb_walks import batches, looked_up, merged, walk
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
    OutboxRow,
    ThreadRow,
)
from ._workers import DefinitionRow, WorkerRow

T = TypeVar("T")

AHEAD = 200
"""Entries of a list that are looked up at once, at most."""

Rows = AsyncIterator[Any]


@frozen(kw_only=True)
class Plan:
    """How a query is answered: its rows in order, from behind a key on, and the key of a row."""

    types: Sequence[type]
    key: Callable[[Any], Sequence[Any]]
    rows: Callable[[Sequence[Any] | None, int], Rows]
    """From behind this key on; so many are of use at once."""

    async def page(self, after: str | None, limit: int) -> Page[Any]:
        behind = None if after is None else parse_cursor(after, self.types)
        found: list[Any] = []
        async for row in self.rows(behind, min(limit + 1, AHEAD)):
            found.append(row)
            if len(found) > limit:
                return Page(rows=tuple(found[:limit]), next=cursor_of(self.key(found[limit - 1])))
        return Page(rows=tuple(found), next=None)


async def answer(table: Table, query: Query[Any], after: str | None, limit: int) -> Page[Any]:
    planned = plan(table, query)
    if not _is_possible(query):
        planned = evolve(planned, rows=_none)
    return await planned.page(after, limit)


def _is_possible(query: Query[Any]) -> bool:
    """All texts of the query are such as may be stored."""
    asked = asdict(query)
    asked |= asked.pop("address", {})
    return all(is_name(text) for text in asked.values() if isinstance(text, str))


async def _none(behind: Sequence[Any] | None, some: int) -> Rows:
    nothing: Sequence[Any] = ()
    for row in nothing:
        yield row


def plan(table: Table, query: Query[Any]) -> Plan:
    match query:
        case Threads():
            return _threads(table, query)
        case Log():
            return _log(table, query)
        case Items(address=address, first=first):
            return _by_number(table, address, "items", ItemsRow, lambda row: row.n, first)
        case Inbox(address=address, after=after, pending=pending):
            planned = _by_number(table, address, "inbox", InboxRow, lambda row: row.number, after + 1)
            return _only(planned, lambda row: row.consumed is None) if pending else planned
        case Messages():
            return _messages(table, query)
        case Memory():
            return _memory(table, query)
        case Artifacts():
            return _artifacts(table, query)
        case Keys():
            return _keys(table, query)
        case Outbox():
            return _outbox(table, query)
        case Workers():
            return _workers(table, query)
        case Definitions():
            return definitions(table, query)
        case _:
            raise TypeError(f"a store answers the queries of perdure.stores, not {type(query).__name__}")


def _only(planned: Plan, fits: Callable[[Any], bool]) -> Plan:
    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        async for row in planned.rows(behind, some):
            if fits(row):
                yield row

    return evolve(planned, rows=rows)


def _by_number(
    table: Table, address: Address, part: str, kind: type[Any], count: Callable[[Any], int], first: int
) -> Plan:
    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        start = max(0, first, 0 if behind is None else behind[0] + 1)
        span = below(thread_pk(address), part, after=joined(part, number(start - 1)))
        async for _, item in walk(table, span, some):
            yield unpack(kind, item)

    return Plan(types=(int,), key=lambda row: (count(row),), rows=rows)


def _log(table: Table, query: Log) -> Plan:
    planned = _by_number(table, query.address, "log", LogRow, lambda row: row.n, query.after + 1)
    if query.seq is None:
        return planned
    seq = query.seq

    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        first = await _first_of_visit(table, query.address, seq) - 1
        async for row in planned.rows([first if behind is None else max(first, behind[0])], some):
            if row.seq != seq:
                return
            yield row

    return evolve(planned, rows=rows)


async def _first_of_visit(table: Table, address: Address, seq: int) -> int:
    """Positions grow with seq, so where a visit begins is found by halving."""
    stood = unpack_thread(await table.get(standing_key(address)))
    low, high = 0, 0 if stood is None else stood.row.n
    while low < high:
        middle = (low + high) // 2
        item = await table.get(log_key(address, middle))
        if item is None or item["seq"] >= seq:
            high = middle
        else:
            low = middle + 1
    return low


def _messages(table: Table, query: Messages) -> Plan:
    pk = session_pk(query.workspace, query.session)

    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        after = None if behind is None else joined("message", number(behind[0]))
        async for _, item in walk(table, below(pk, "message", after=after), some):
            row = unpack(MessageRow, item)
            if query.incarnation in (None, row.incarnation) or row.number <= query.since:
                yield row

    return Plan(types=(int,), key=lambda row: (row.number,), rows=rows)


def _outbox(table: Table, query: Outbox) -> Plan:
    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        after = None if behind is None else outbox_key(query.address, *behind).sk
        async for _, item in walk(table, below(thread_pk(query.address), "outbox", after=after), some):
            workspace, thread_id = item["target"]
            target = Address(workspace=workspace, thread_id=thread_id)
            yield evolve(unpack(OutboxRow, item), target=target)

    return Plan(types=(int, int), key=lambda row: (row.seq, row.n), rows=rows)


def _threads(table: Table, query: Threads) -> Plan:
    in_one = query.workspace is not None
    find = _owned if query.owner is not None else _parked if query.status == "parked" else _listed

    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        start = None if behind is None else (query.workspace, *behind)[-2:]
        async for batch in batches(find(table, query, start, some), some):
            keys = [standing_key(address) for address in batch]
            items = await table.get_many(keys)
            for stood in (unpack_thread(items.get(key)) for key in keys):
                if stood is not None and _matches(stood.row, query):
                    yield stood.row

    return Plan(
        types=(str,) if in_one else (str, str),
        key=lambda row: (row.address.workspace, row.address.thread_id)[in_one:],
        rows=rows,
    )


def _matches(row: ThreadRow, query: Threads) -> bool:
    return (
        query.workspace in (None, row.address.workspace)
        and query.thread_id in (None, row.address.thread_id)
        and query.machine in (None, row.machine)
        and query.state in (None, row.standing.state)
        and query.status in (None, row.standing.status)
        and query.session in (None, row.session)
        and (query.owner is None or query.owner == row.owner)
    )


async def _listed(
    table: Table, query: Threads, start: tuple[Any, ...] | None, some: int
) -> AsyncIterator[Address]:
    """The addresses of threads in order, from behind one on."""
    async for workspace in workspaces(table, query.workspace, start, some):
        behind = None if start is None or start[0] != workspace else str(start[1])
        if query.thread_id is not None:
            if behind is None or query.thread_id > behind:
                yield Address(workspace=workspace, thread_id=query.thread_id)
            continue
        spans = [below(listed_pk(workspace, shard), after=behind) for shard in every_shard()]
        async for thread_id, _ in merged(table, spans, some):
            yield Address(workspace=workspace, thread_id=thread_id)


async def workspaces(
    table: Table, workspace: str | None, start: tuple[Any, ...] | None, some: int
) -> AsyncIterator[str]:
    if workspace is not None:
        yield workspace
        return
    span = Span(pk="workspaces", first=None if start is None else str(start[0]) or None)
    async for name, _ in walk(table, span, some):
        yield name


async def _parked(
    table: Table, query: Threads, start: tuple[Any, ...] | None, some: int
) -> AsyncIterator[Address]:
    parts = () if query.workspace is None else (query.workspace,)
    behind = None if start is None else joined(*start)
    spans = [below(parked_pk(shard), *parts, after=behind, index=GROUPS) for shard in every_shard()]
    async for _, entry in merged(table, spans, some):
        yield address_of(entry)


async def _owned(
    table: Table, query: Threads, start: tuple[Any, ...] | None, some: int
) -> AsyncIterator[Address]:
    """What a worker owns is not much: all of it is read, and put in order."""
    assert query.owner is not None
    found = [(address.workspace, address.thread_id) for address in await owned_by(table, query.owner)]
    for workspace, thread_id in sorted(found):
        if start is None or (workspace, thread_id) > start:
            yield Address(workspace=workspace, thread_id=thread_id)


async def owned_by(table: Table, owner: str, most: int | None = None) -> Sequence[Address]:
    """Threads that a worker owns, of every machine, as the index has them."""
    machines = [str(item["SK"]) for item in await table.query(Span(pk="machines"))]
    spans = [
        below(groups_pk("owned", machine, shard), owner, index=GROUPS)
        for machine in machines
        for shard in every_shard()
    ]
    found = await asyncio.gather(*(table.query(span, most) for span in spans))
    return [address_of(entry) for entries in found for entry in entries]


def _memory(table: Table, query: Memory) -> Plan:
    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        async for batch in batches(_facts(table, query, behind, some), some):
            history = query.history
            of_each = await asyncio.gather(
                *(_versions(table, query, name, behind, history) for name in batch)
            )
            for versions in of_each:
                for row in versions:
                    yield row

    return Plan(
        types=(str, str, int) if query.history else (str, str),
        key=lambda row: (row.namespace, row.key, *((row.version,) if query.history else ())),
        rows=rows,
    )


async def _facts(
    table: Table, query: Memory, behind: Sequence[Any] | None, some: int
) -> AsyncIterator[tuple[str, str]]:
    """Names of memory keys in order; the one that the cursor stands in is among them."""
    if query.namespace is not None and query.key is not None:
        yield query.namespace, query.key
        return
    parts = () if query.namespace is None else (query.namespace,)
    after = None if behind is None else joined(*behind[:2])
    spans = [below(facts_pk(query.workspace, shard), *parts) for shard in every_shard()]
    if after is not None:
        spans = [evolve(span, first=max(span.first or "", after)) for span in spans]
    async for place, _ in merged(table, spans, some):
        namespace, key = place.split(PART)
        if query.key in (None, key):
            yield namespace, key


async def _versions(
    table: Table, query: Memory, name: tuple[str, str], behind: Sequence[Any] | None, history: bool
) -> Sequence[MemoryRow]:
    if behind is not None and name < tuple(behind[:2]):
        return ()
    here = behind is not None and name == tuple(behind[:2])
    if not history:
        row = None if here else await newest(table, query.workspace, *name)
        return () if row is None else (row,)
    first = number(behind[2] + 1) if behind is not None and here else None
    items = await table.query(Span(pk=memory_pk(query.workspace, *name), first=first))
    return [unpack(MemoryRow, item) for item in items if not item.get("gone")]


def _artifacts(table: Table, query: Artifacts) -> Plan:
    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        async for place, item in _records(table, query, behind, some):
            row = unpack_artifact(item)
            # An entry of a record that was dropped and put again may stand beside the new one's.
            if _fits(row, query) and place == joined(number(row.created), row.id):
                yield row

    return Plan(types=(int, str), key=lambda row: (row.created, row.id), rows=rows)


async def _records(
    table: Table, query: Artifacts, behind: Sequence[Any] | None, some: int
) -> AsyncIterator[tuple[str, Item]]:
    after = None if behind is None else joined(number(behind[0]), behind[1])
    if query.id is not None:
        item = await table.get(artifact_key(query.workspace, query.id))
        if item is not None and (place := joined(number(item["created"]), query.id)) > (after or ""):
            yield place, item
        return
    by = (("source", query.derived_from), ("blob", query.sha256), ("thread", query.thread_id))
    kind, text = next(((kind, text) for kind, text in by if text is not None), ("created", ""))
    spans = [below(artifacts_pk(query.workspace, kind, text, shard), after=after) for shard in every_shard()]
    entries = merged(table, spans, some)
    async for found in looked_up(
        table, entries, lambda it: artifact_key(query.workspace, it.split(PART)[1]), some
    ):
        yield found


def _fits(row: ArtifactRow, query: Artifacts) -> bool:
    return (
        (query.thread_id is None or query.thread_id == row.thread_id)
        and query.sha256 in (None, row.sha256)
        and (query.derived_from is None or query.derived_from in row.derived_from)
    )


def _keys(table: Table, query: Keys) -> Plan:
    def key_of(key: str) -> Key:
        return effect_key(query.workspace, query.effect, key)

    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        after = None if behind is None else str(behind[0])
        if query.key is not None:
            item = await table.get(key_of(query.key))
            if item is not None and (after is None or query.key > after):
                yield unpack(KeyRow, item)
            return
        pks = [keys_pk(query.workspace, query.effect, shard) for shard in every_shard()]
        entries = merged(table, [below(pk, after=after) for pk in pks], some)
        async for _, item in looked_up(table, entries, key_of, some):
            yield unpack(KeyRow, item)

    return Plan(types=(str,), key=lambda row: (row.key,), rows=rows)


def _workers(table: Table, query: Workers) -> Plan:
    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        start = None if behind is None else (-behind[0], behind[1])
        if query.id is not None:
            one = await table.get(worker_key(query.id))
            items = [] if one is None else [one]
        else:
            shards = [Span(pk=workers_pk(shard)) for shard in every_shard()]
            items = [it for found in await asyncio.gather(*map(table.query, shards)) for it in found]
        known = [unpack(WorkerRow, item) for item in items if item.get("host") is not None]
        for row in sorted(known, key=lambda row: (-row.started, row.id)):
            if start is None or (-row.started, row.id) > start:
                yield row

    return Plan(types=(int, str), key=lambda row: (row.started, row.id), rows=rows)


def definitions(table: Table, query: Definitions) -> Plan:
    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        after = None if behind is None else definition_key(*behind).sk
        parts = () if query.machine is None else (query.machine,)
        async for _, item in walk(table, below("definitions", *parts, after=after), some):
            row = unpack(DefinitionRow, item)
            if query.version in (None, row.version):
                yield row

    return Plan(types=(str, int, str), key=lambda row: (row.machine, row.version, row.hash), rows=rows)
