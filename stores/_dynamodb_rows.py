"""Everything of one kind in a DynamoDB table, over all workspaces, as a copy reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from ._dynamodb_asks import Span, Table
from ._dynamodb_items import unpack_artifact
from ._dynamodb_keys import artifact_key, artifacts_pk, below, effects_pk, every_shard, listed_pk, sessions_pk
from ._dynamodb_pages import Plan, definitions, plan, workspaces
from ._dynamodb_walks import looked_up, merged
from ._kinds import PARTS, RowKind, ThreadPart, key_of_row
from ._queries import Definitions, Inbox, Items, Keys, Log, Memory, Messages, Outbox, Query, Threads
from ._records import Address

Rows = AsyncIterator[Any]


def all_rows(table: Table, kind: RowKind) -> Plan:
    """Rows of a kind everywhere: those of one place after those of another."""
    if kind == "definition":
        return definitions(table, Definitions())
    depth, types, inner = PLACES[kind]

    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        start = None if behind is None else tuple(behind[:depth])
        async for place in places(table, kind, start, some):
            planned = inner(table, *place)
            within = behind[depth:] if behind is not None and place == start else None
            async for row in planned.rows(within, some):
                if kind in PART_KINDS:
                    address = Address(workspace=place[0], thread_id=place[1])
                    yield ThreadPart(address=address, row=row)
                else:
                    yield row

    return Plan(types=types, key=key_of_row, rows=rows)


async def places(
    table: Table, kind: RowKind, start: tuple[Any, ...] | None, some: int
) -> AsyncIterator[tuple[str, ...]]:
    """Where rows of a kind are, in order, from one place on."""
    async for workspace in workspaces(table, None, start, some):
        pk_of = LISTS.get(kind)
        if pk_of is None:
            yield (workspace,)
            continue
        first = str(start[1]) if start is not None and start[0] == workspace else None
        spans = [Span(pk=pk_of(workspace, shard), first=first) for shard in every_shard()]
        async for name, _ in merged(table, spans, some):
            yield workspace, name


def _artifacts_by_id(table: Table, workspace: str) -> Plan:
    async def rows(behind: Sequence[Any] | None, some: int) -> Rows:
        after = None if behind is None else str(behind[0])
        pks = [artifacts_pk(workspace, "id", "", shard) for shard in every_shard()]
        entries = merged(table, [below(pk, after=after) for pk in pks], some)
        async for _, item in looked_up(table, entries, lambda id_: artifact_key(workspace, id_), some):
            yield unpack_artifact(item)

    return Plan(types=(str,), key=lambda row: (row.id,), rows=rows)


def _within(query: Callable[..., Query[Any]], *names: str) -> Callable[..., Plan]:
    def planned(table: Table, *place: str) -> Plan:
        return plan(table, query(**dict(zip(names, place, strict=True))))

    return planned


def _of_thread(query: Callable[..., Query[Any]]) -> Callable[..., Plan]:
    def planned(table: Table, workspace: str, thread_id: str) -> Plan:
        return plan(table, query(address=Address(workspace=workspace, thread_id=thread_id)))

    return planned


def _every_version(table: Table, workspace: str) -> Plan:
    return plan(table, Memory(workspace=workspace, history=True))


PART_KINDS = frozenset(PARTS.values())
LISTS: dict[RowKind, Callable[[str, str], str]] = {
    **dict.fromkeys(PART_KINDS, listed_pk),
    "message": sessions_pk,
    "key": effects_pk,
}
PLACES: dict[RowKind, tuple[int, Sequence[type], Callable[..., Plan]]] = {
    "memory": (1, (str, str, str, int), _every_version),
    "artifact": (1, (str, str), _artifacts_by_id),
    "thread": (1, (str, str), _within(Threads, "workspace")),
    "key": (2, (str, str, str), _within(Keys, "workspace", "effect")),
    "message": (2, (str, str, int), _within(Messages, "workspace", "session")),
    "log": (2, (str, str, int), _of_thread(Log)),
    "items": (2, (str, str, int), _of_thread(Items)),
    "inbox": (2, (str, str, int), _of_thread(Inbox)),
    "outbox": (2, (str, str, int, int), _of_thread(Outbox)),
}
