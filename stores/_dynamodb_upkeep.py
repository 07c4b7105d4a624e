"""What a DynamoDB store writes outside of threads: memory, uploads, and the end of what has had its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial

from attrs import frozen

from ._dynamodb_asks import ABSENT, Action, Delete, Item, Key, Update
from ._dynamodb_desk import Desk, persist, turn_on
from ._dynamodb_items import unpack
from ._dynamodb_keys import (
    EXPIRES,
    PART,
    artifact_key,
    effect_key,
    every_shard,
    expiry_pk,
    keys_pk,
    number,
    parse_number,
    request_key,
    shard_of,
    span_until,
    version_key,
)
from ._dynamodb_outside import Plan, newest, plan_artifact, plan_version, take_off_artifact
from ._dynamodb_walks import batches, merged
from ._errors import MemoryMoved, OutcomeUnknown, StoreError, StoreUnavailable
from ._made import remembered
from ._outside import Expire, Expired, Remember
from ._records import ArtifactRow, MemoryRow, Micros

BATCH = 90
"""How many records expire in one transaction."""
HOUR: Micros = 3_600_000_000
"""After so long nothing of a write can come any more that an entry was made for: the service takes a request
for minutes, once it is signed."""
SECONDS_KEPT = 86_400
"""For how long an earlier version that expired keeps its place, so that nobody takes it for one to come."""


async def upload(desk: Desk, artifact: ArtifactRow) -> None:
    """One attempt; ``Cancelled`` where it is to be made again."""
    if await desk.table.get(artifact_key(artifact.workspace, artifact.id)) is None:
        await desk.list_workspace(artifact.workspace)
        plan = Plan(desk.clock())
        plan_artifact(plan, artifact, {"id": ABSENT})
        await plan.land(desk.table)


async def remember(desk: Desk, write: Remember) -> MemoryRow:
    """One attempt; ``Cancelled`` where it is to be made again.

    The write's pointer names the version that it made, or the last one that it was to make; see
    ``find_signals``.
    """
    names = (write.workspace, write.namespace, write.key)
    before = await newest(desk.table, *names)
    pointer = await desk.table.get(request_key(*names, write.id))
    if pointer is not None:
        there = await desk.table.get(version_key(*names, int(pointer["number"])))
        if there is not None and there.get("request") == write.id and not there.get("gone"):
            return unpack(MemoryRow, there)
    version = 0 if before is None else before.version
    if write.expected not in (None, version):
        raise MemoryMoved(*(([], [names[1:]]) if before is None else ([before], [])))
    plan = Plan(desk.clock())
    row = remembered(write, version + 1, plan.now)
    plan_version(plan, row)
    await desk.list_workspace(write.workspace)
    await turn_on(desk.table, request_key(*names, write.id), row.version)
    await plan.land(desk.table)
    return row


@frozen(kw_only=True)
class Entry:
    """What a list says expires."""

    at: Micros
    kind: str
    names: Sequence[str]
    item: Item

    @property
    def key(self) -> Key:
        return Key(str(self.item["PK"]), str(self.item["SK"]))

    @property
    def record(self) -> Key:
        match self.kind:
            case "memory":
                workspace, namespace, key, version = self.names
                return version_key(workspace, namespace, key, parse_number(version))
            case "artifact":
                return artifact_key(self.names[0], self.names[1])
            case _:
                return effect_key(self.names[0], self.names[1], self.names[2])


async def expire(desk: Desk, request: Expire) -> Expired:
    """In batches, each of them whole."""
    counts = Counter[str]()
    while (left := request.limit - counts.total()) > 0:
        some = left if request.dry_run else min(left, BATCH)
        try:
            found = await persist(partial(_expire_some, desk, request, some), "what expires")
        except StoreUnavailable as error:
            if counts:
                raise OutcomeUnknown(f"some records have expired, and then: {error}") from error
            raise
        counts.update(found)
        if request.dry_run or len(found) < some:
            break
    return Expired(memory=counts["memory"], artifacts=counts["artifact"], keys=counts["key"])


async def _expire_some(desk: Desk, request: Expire, limit: int) -> Sequence[str]:
    """The kinds of the records that expired."""
    plan = Plan(desk.clock())
    kinds: list[str] = []
    done: list[Delete] = []
    async for entry, item in _due(desk, request.at):
        if item is None or item.get("expires") != entry.at:
            if plan.now - int(entry.item["made"]) > HOUR:
                done.append(Delete(key=entry.key))
        elif _may_go(entry, item):
            kinds.append(entry.kind)
            plan.actions.append(await _ending(desk, plan, entry, item))
            done.append(Delete(key=entry.key))
        if len(kinds) == limit:
            break
    if not request.dry_run:
        if plan.actions:
            await plan.land(desk.table)
        with suppress(StoreError):  # who expires what is listed once more finds nothing there
            await desk.table.write_many(done)
    return kinds


async def _due(desk: Desk, at: Micros) -> AsyncIterator[tuple[Entry, Item | None]]:
    """What is listed up to a moment, each with the record as it stands."""
    spans = [span_until(expiry_pk(shard), number(at + 1)) for shard in every_shard()]
    async for batch in batches(merged(desk.table, spans, BATCH), BATCH):
        entries: list[Entry] = []
        for place, item in batch:
            moment, kind, *names = place.split(PART)
            entries.append(Entry(at=parse_number(moment), kind=kind, names=names, item=item))
        items = await desk.table.get_many(entry.record for entry in entries)
        for entry in entries:
            yield entry, items.get(entry.record)


def _may_go(entry: Entry, item: Item) -> bool:
    return entry.kind != "key" or item.get("outcome") is not None


async def _ending(desk: Desk, plan: Plan, entry: Entry, item: Item) -> Action:
    wanted = {"expires": entry.at}
    if entry.kind == "memory":
        workspace, namespace, key, _ = entry.names
        last = await newest(desk.table, workspace, namespace, key)
        gone: dict[str, object] = {"value": None, "expires": None}
        if last is not None and last.version != item["version"]:
            gone |= {"gone": 1, EXPIRES: plan.now // 1_000_000 + SECONDS_KEPT}
        return Update(key=entry.record, item=gone, wanted=wanted)
    if entry.kind == "artifact":
        take_off_artifact(plan, item)
    else:
        workspace, effect, key = entry.names
        plan.take_off(Key(keys_pk(workspace, effect, shard_of(key)), key), item)
    return Delete(key=entry.record, wanted=wanted)
