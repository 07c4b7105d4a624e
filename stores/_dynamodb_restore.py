"""How a DynamoDB store takes rows of another store as they are: one batch, one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from attrs import define, evolve, field

from ._dynamodb_asks import ABSENT, Check, Item, Key, Put, Update
from ._dynamodb_desk import Desk
from ._dynamodb_items import Stood, pack, unchanged, unpack, unpack_artifact, unpack_thread
from ._dynamodb_keys import (
    artifact_key,
    count_key,
    definition_key,
    effect_key,
    fact_key,
    inbox_key,
    items_key,
    keys_pk,
    listed_effect_key,
    listed_key,
    log_key,
    message_key,
    outbox_key,
    session_key,
    shard_of,
    standing_key,
    version_key,
)
from ._dynamodb_outside import Plan, plan_artifact, plan_version
from ._dynamodb_threads import point, put_thread
from ._dynamodb_workers import register
from ._errors import RestoreConflict
from ._kinds import StoredRow, ThreadPart, key_of_row, kind_of_row
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


def _key(row: StoredRow) -> Key:
    match row:
        case DefinitionRow():
            return definition_key(row.machine, row.version, row.hash)
        case MemoryRow():
            return version_key(row.workspace, row.namespace, row.key, row.version)
        case ArtifactRow():
            return artifact_key(row.workspace, row.id)
        case KeyRow():
            return effect_key(row.workspace, row.effect, row.key)
        case MessageRow():
            return message_key(row.workspace, row.session, row.number)
        case ThreadRow():
            return standing_key(row.address)
        case ThreadPart():
            return _part_key(row.address, row.row)


def _part_key(address: Address, row: LogRow | ItemsRow | InboxRow | OutboxRow) -> Key:
    match row:
        case LogRow():
            return log_key(address, row.n)
        case ItemsRow():
            return items_key(address, row.n)
        case InboxRow():
            return inbox_key(address, row.number)
        case OutboxRow():
            return outbox_key(address, row.seq, row.n)


def _read(row: StoredRow, item: Item) -> object:
    """What stands under a row's name, as a row of its kind."""
    match row:
        case ThreadRow():
            stood = unpack_thread(item)
            return None if stood is None else stood.row
        case ArtifactRow():
            return unpack_artifact(item)
        case ThreadPart(row=OutboxRow()):
            workspace, thread_id = item["target"]
            target = Address(workspace=workspace, thread_id=thread_id)
            return ThreadPart(address=row.address, row=evolve(unpack(OutboxRow, item), target=target))
        case ThreadPart():
            return ThreadPart(address=row.address, row=unpack(type(row.row), item))
        case _:
            return unpack(type(row), item)


@define
class Batch:
    """Rows to be restored, and what stands where they are to stand."""

    desk: Desk
    plan: Plan
    items: dict[Key, Item]
    early: defaultdict[Address, list[InboxRow]] = field(
        factory=lambda: defaultdict[Address, list[InboxRow]](list), init=False
    )
    """New entries of inboxes."""
    parts: set[Address] = field(factory=set[Address], init=False)
    """Threads that parts come to, and that have not started."""
    said: defaultdict[tuple[str, str], int] = field(
        factory=lambda: defaultdict[tuple[str, str], int](int), init=False
    )

    def is_missing(self, row: StoredRow) -> bool:
        item = self.items.get(_key(row))
        there = None if item is None or item.get("gone") else _read(row, item)
        if there is not None and there != row:
            raise RestoreConflict(f"the {kind_of_row(row)} row {key_of_row(row)} is another one here")
        stands = isinstance(row, ThreadPart) and unpack_thread(self.items.get(standing_key(row.address)))
        if there is None and stands:
            raise RestoreConflict(
                f"a thread stands here without its {kind_of_row(row)} row {key_of_row(row)}"
            )
        return there is None

    def judge(self, row: ThreadRow) -> None:
        """A thread comes behind its log and inbox: it may be claimed from then on."""
        newest = self.items.get(log_key(row.address, row.n - 1), {})
        if (newest.get("head"), newest.get("at")) != (row.head, row.updated):
            raise RestoreConflict(
                f"thread {row.address.thread_id!r} comes before its newest log row: restore that first"
            )
        last = int(self.items.get(standing_key(row.address), {"inbox": 0})["inbox"])
        if last != row.inbox:
            raise RestoreConflict(
                f"thread {row.address.thread_id!r} has {row.inbox} inbox entries, and {last} are here"
            )

    async def add(self, row: StoredRow) -> None:
        plan, key = self.plan, _key(row)
        match row:
            case MemoryRow():
                plan_version(plan, row)
                plan.list_at(_fact(row))
            case ArtifactRow():
                plan_artifact(plan, row, {"id": ABSENT})
            case KeyRow():
                item = {**pack(row), "mark": plan.mark}
                plan.actions.append(Put(key=key, item=item, wanted={"effect": ABSENT}))
                plan.list_at(Key(keys_pk(row.workspace, row.effect, shard_of(row.key)), row.key))
                plan.list_at(listed_effect_key(row.workspace, row.effect))
                plan.expires(row.expires, "key", row.workspace, row.effect, row.key)
            case MessageRow():
                plan.actions.append(Put(key=key, item=pack(row), wanted={"number": ABSENT}))
                plan.list_at(session_key(row.workspace, row.session))
                session = (row.workspace, row.session)
                self.said[session] = max(self.said.get(session, 0), row.number)
            case DefinitionRow():
                plan.actions.append(Put(key=key, item=pack(row), wanted={"hash": ABSENT}))
            case ThreadRow():
                await self._add_thread(row)
            case ThreadPart():
                self._add_part(row, key)

    async def _add_thread(self, row: ThreadRow) -> None:
        await self.desk.list_thread(row.address.workspace, row.machine)
        if row.owner is not None:
            await register(self.desk, row.owner)
        self.plan.lists.append(Put(key=listed_key(row.address), item={"listed": 1}))
        stood = Stood(row=row, since=self.plan.now, low=0)
        self.plan.actions.append(put_thread(stood, self.items.get(standing_key(row.address))))

    def _add_part(self, part: ThreadPart[Any], key: Key) -> None:
        row, item = part.row, pack(part.row)
        if isinstance(row, OutboxRow):
            item["target"] = [row.target.workspace, row.target.thread_id]
        if isinstance(row, InboxRow):
            self.early[part.address].append(row)
        self.parts.add(part.address)
        self.plan.actions.append(Put(key=key, item=item, wanted={"schema": ABSENT}))
        self.plan.lists.append(Put(key=listed_key(part.address), item={"listed": 1}))

    async def close(self) -> None:
        """What counts rows, and what has to stay as it was read."""
        for address in self.parts:
            key = standing_key(address)
            item = self.items.get(key)
            if not (rows := self.early[address]):
                self.plan.actions.append(Check(key=key, wanted=unchanged(item)))
                continue
            before = item or {"inbox": 0, "version": 0}
            last = max(int(before["inbox"]), *(row.number for row in rows))
            version = max(int(before["version"]), *(row.version for row in rows))
            early = {"inbox": last, "version": version}
            self.plan.actions.append(Put(key=key, item=early, wanted=unchanged(item)))
            await point(self.desk.table, address, rows)
        for session, last in self.said.items():
            key = count_key(*session)
            item = await self.desk.table.get(key)
            before_count = 0 if item is None else int(item["count"])
            wanted = {"count": before_count or ABSENT}
            self.plan.actions.append(Update(key=key, item={"count": max(last, before_count)}, wanted=wanted))


def _fact(row: MemoryRow) -> Key:
    return fact_key(row.workspace, row.namespace, row.key)


async def restore(desk: Desk, rows: Sequence[StoredRow]) -> None:
    """One attempt; ``Cancelled`` where it is to be made again."""
    keys = [_key(row) for row in rows]
    keys += [standing_key(row.address) for row in rows if isinstance(row, ThreadPart)]
    keys += [log_key(row.address, row.n - 1) for row in rows if isinstance(row, ThreadRow)]
    items = await desk.table.get_many(keys) if keys else {}
    batch = Batch(desk, Plan(desk.clock()), items)
    missing = [row for row in rows if batch.is_missing(row)]
    for row in missing:
        if isinstance(row, ThreadRow):
            batch.judge(row)
    for row in missing:
        if (workspace := _workspace(row)) is not None:
            await desk.list_workspace(workspace)
        await batch.add(row)
    await batch.close()
    if batch.plan.actions:
        await batch.plan.land(desk.table)


def _workspace(row: StoredRow) -> str | None:
    if isinstance(row, DefinitionRow):
        return None
    return row.address.workspace if isinstance(row, ThreadPart | ThreadRow) else row.workspace
