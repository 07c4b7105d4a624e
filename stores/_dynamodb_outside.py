"""What a write changes outside of its thread's own rows: messages, memory, explicit keys, artifacts.

A ``Plan`` rests on what was read for it, and its conditions see to it that this still holds. What only lists
things, so that a query finds them, is written before the transaction and by itself: an entry of something
that never came, or is gone, is looked up in vain and does no harm.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

from attrs import define, evolve, field

from ._dynamodb_asks import ABSENT, Action, Cancelled, Check, Delete, Item, Key, Put, Span, Table, Update
from ._dynamodb_items import pack, pack_artifact, unpack
from ._dynamodb_keys import (
    artifact_key,
    artifacts_pk,
    count_key,
    effect_key,
    expiry_pk,
    fact_key,
    joined,
    keys_pk,
    listed_effect_key,
    memory_pk,
    message_key,
    number,
    session_key,
    shard_of,
    version_key,
)
from ._errors import KeyTaken, MemoryMoved, StoreError
from ._made import key_claimed, message_made, version_made, visit_of
from ._records import ArtifactRow, Commit, KeyRow, KeyWrite, MemoryRow, Micros, Start


@define
class Plan:
    """One transaction, what lists its rows before it, and what is taken off the lists behind it."""

    now: Micros
    actions: list[Action] = field(factory=list[Action])
    lists: list[Put] = field(factory=list[Put])
    gone: list[Delete] = field(factory=list[Delete])
    mark: str = field(factory=lambda: os.urandom(9).hex())
    """Tells this plan's entries from those of earlier rows of the same names."""

    def list_at(self, key: Key) -> None:
        self.lists.append(Put(key=key, item={"mark": self.mark}))

    def take_off(self, key: Key, row: Item) -> None:
        self.gone.append(Delete(key=key, wanted={"mark": row.get("mark")}))

    def expires(self, at: Micros | None, *names: str | int) -> None:
        if at is not None:
            self.lists.append(expiry_entry(at, self.now, *names))

    async def land(self, table: Table) -> None:
        """``Cancelled`` where something that it rests on has changed: nothing has landed."""
        await table.write_many(list({put.key: put for put in self.lists}.values()))
        await table.transact(self.actions)
        await asyncio.gather(*(_take_off(table, delete) for delete in self.gone))


async def _take_off(table: Table, delete: Delete) -> None:
    # It is another row's by now, or stays: what it belongs to has landed, whatever becomes of this.
    with suppress(Cancelled, StoreError):
        await table.write(delete)


def expiry_entry(at: Micros, made: Micros, *names: str | int) -> Put:
    """Lists something that expires then; ``made`` is the store's clock."""
    texts = [name if isinstance(name, str) else number(name) for name in names]
    key = Key(expiry_pk(shard_of(*texts)), joined(number(at), *texts))
    return Put(key=key, item={"made": made})


async def count_of(table: Table, workspace: str, session: str) -> int:
    """The number of a session's last message."""
    item = await table.get(count_key(workspace, session))
    return 0 if item is None else int(item["count"])


def plan_messages(plan: Plan, write: Start | Commit, count: int) -> None:
    """Add messages behind the ``count`` that the session has."""
    workspace, session = write.address.workspace, write.session
    if write.messages:
        wanted = {"count": count or ABSENT}
        last = {"count": count + len(write.messages)}
        plan.actions.append(Update(key=count_key(workspace, session), item=last, wanted=wanted))
        if count == 0:
            plan.list_at(session_key(workspace, session))
    for place, payload in enumerate(write.messages, count + 1):
        row = message_made(write, place, payload)
        plan.actions.append(Put(key=message_key(workspace, session, place), item=pack(row)))


async def newest(table: Table, workspace: str, namespace: str, key: str) -> MemoryRow | None:
    found = await table.query(Span(pk=memory_pk(workspace, namespace, key), descending=True), 1)
    return unpack(MemoryRow, found[0]) if found else None


async def plan_memory(plan: Plan, table: Table, commit: Commit) -> None:
    """The next versions: each but by creating its row, which nobody can do twice.

    ``MemoryMoved`` where the newest are not those that are expected. Versions leave no gap and the newest
    always stays, so that one that is the newest is so until the next one is there.
    """
    wanted = [(write.namespace, write.key, write.expected) for write in commit.memory]
    wanted += [(check.namespace, check.key, check.version) for check in commit.checks]
    workspace = commit.address.workspace
    names = list(dict.fromkeys((namespace, key) for namespace, key, _ in wanted))
    rows = await asyncio.gather(*(newest(table, workspace, *name) for name in names))
    there = dict(zip(names, rows, strict=True))
    moved = dict.fromkeys(
        (namespace, key)
        for namespace, key, version in wanted
        if version != (0 if (row := there[namespace, key]) is None else row.version)
    )
    if moved:
        newer = [row for name in moved if (row := there[name]) is not None]
        raise MemoryMoved(newer, [name for name in moved if there[name] is None])
    for write in commit.memory:
        plan_version(plan, version_made(commit, write))
    written = {(write.namespace, write.key) for write in commit.memory}
    for name, version in {(check.namespace, check.key): check.version for check in commit.checks}.items():
        if name not in written:
            behind = version_key(workspace, *name, version + 1)
            plan.actions.append(Check(key=behind, wanted={"version": ABSENT}))


def plan_version(plan: Plan, row: MemoryRow) -> None:
    names = (row.workspace, row.namespace, row.key)
    put = Put(key=version_key(*names, row.version), item=pack(row), wanted={"version": ABSENT})
    plan.actions.append(put)
    plan.expires(row.expires, "memory", *names, row.version)
    if row.version == 1:
        plan.list_at(fact_key(*names))


async def plan_keys(plan: Plan, table: Table, commit: Commit) -> None:
    """What comes of a commit's explicit keys, one write after the other; ``KeyTaken`` for another visit's."""
    workspace = commit.address.workspace
    names = dict.fromkeys((write.effect, write.key) for write in commit.keys)
    at = {name: effect_key(workspace, *name) for name in names}
    items = await table.get_many(at.values()) if at else {}
    for name, key in at.items():
        item = items.get(key)
        before = None if item is None else unpack(KeyRow, item)
        row = before
        for write in commit.keys:
            if (write.effect, write.key) == name:
                row = _written(row, commit, write)
        if row != before:
            _plan_key(plan, key, before, item or {}, row)


def _written(row: KeyRow | None, commit: Commit, write: KeyWrite) -> KeyRow | None:
    mine = key_claimed(commit, write)
    ours = row is not None and visit_of(row) == visit_of(mine)
    if write.action == "claim":
        if row is not None and not ours:
            raise KeyTaken(row)
        return row or mine
    if row is None or not ours:
        return row
    return None if write.action == "free" else evolve(row, outcome=write.outcome, expires=write.expires)


def _plan_key(plan: Plan, key: Key, before: KeyRow | None, item: Item, row: KeyRow | None) -> None:
    either = row or before
    assert either is not None
    entry = Key(keys_pk(either.workspace, either.effect, shard_of(either.key)), either.key)
    wanted: dict[str, object] = {"effect": ABSENT}
    if before is not None:
        wanted = {"thread_id": before.thread_id, "incarnation": before.incarnation, "seq": before.seq}
    if row is None:
        plan.actions.append(Delete(key=key, wanted=wanted))
        plan.take_off(entry, item)
        return
    mark = item["mark"] if before is not None else plan.mark
    plan.actions.append(Put(key=key, item={**pack(row), "mark": mark}, wanted=wanted))
    plan.expires(row.expires, "key", row.workspace, row.effect, row.key)
    if before is None:
        plan.list_at(entry)
        plan.list_at(listed_effect_key(either.workspace, either.effect))


async def plan_artifacts(plan: Plan, table: Table, commit: Commit) -> None:
    """Drop this incarnation's own, then add those that are not there."""
    workspace = commit.address.workspace
    ids = [*commit.dropped_artifacts, *(artifact.id for artifact in commit.artifacts)]
    at = {id_: artifact_key(workspace, id_) for id_ in ids}
    items = await table.get_many(at.values()) if at else {}
    added: dict[str, ArtifactRow] = {}
    for artifact in commit.artifacts:
        added.setdefault(artifact.id, artifact)
    for id_, key in at.items():
        item = items.get(key)
        ours = item is not None and item.get("incarnation") == commit.incarnation
        dropped = item if ours and id_ in commit.dropped_artifacts else None
        wanted: dict[str, object] = {"id": ABSENT}
        if dropped is not None:
            wanted = {"incarnation": commit.incarnation}
            take_off_artifact(plan, dropped)
        if id_ in added and (item is None or dropped is not None):
            plan_artifact(plan, added[id_], wanted)
        elif dropped is not None:
            plan.actions.append(Delete(key=key, wanted=wanted))


def plan_artifact(plan: Plan, artifact: ArtifactRow, wanted: dict[str, object]) -> None:
    item = {**pack_artifact(artifact), "mark": plan.mark}
    key = artifact_key(artifact.workspace, artifact.id)
    plan.actions.append(Put(key=key, item=item, wanted=wanted))
    for entry in _entries(item):
        plan.list_at(entry)
    if artifact.thread_id is None:
        plan.expires(artifact.expires, "artifact", artifact.workspace, artifact.id)


def take_off_artifact(plan: Plan, item: Item) -> None:
    for entry in _entries(item):
        plan.take_off(entry, item)


def _entries(item: Item) -> Sequence[Key]:
    """Where an artifact is listed."""
    common = [
        ("created", ""),
        ("blob", item["sha256"]),
        *(("source", it) for it in set(item["derived_from"])),
    ]
    if item.get("thread_id") is not None:
        common.append(("thread", item["thread_id"]))
    place = joined(number(item["created"]), item["id"])
    shard = shard_of(item["id"])
    by_id = Key(artifacts_pk(item["workspace"], "id", "", shard), item["id"])
    return [by_id, *(Key(artifacts_pk(item["workspace"], by, text, shard), place) for by, text in common)]
