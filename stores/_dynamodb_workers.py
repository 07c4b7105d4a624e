"""Workers of a DynamoDB store: that they live, what they can run, and their parts of limits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from attrs import frozen

from ._dynamodb_asks import ABSENT, Action, Cancelled, Delete, Item, Key, Put, Span, Update
from ._dynamodb_desk import Desk
from ._dynamodb_items import pack
from ._dynamodb_keys import (
    DUE,
    INDEXES,
    definition_key,
    every_shard,
    joined,
    lease_pk,
    left_pk,
    number,
    shard_of,
    share_pk,
    worker_key,
)
from ._dynamodb_pages import owned_by
from ._errors import StoreError
from ._records import Micros
from ._shares import pace
from ._workers import DefinitionRow, Share, Shared, WorkerRow

DAY: Micros = 86_400_000_000
GRACE: Micros = 3_600_000_000
"""How long a dead worker that owns nothing is still asked about, now and then: far longer than the index is
behind, and than the service takes a request for once it is signed, so that none can still arrive."""
NOW_AND_THEN: Micros = 10_000_000
"""How often that is."""


@frozen(kw_only=True)
class Beat:
    worker: WorkerRow
    definitions: Sequence[DefinitionRow]


def _in_leases(worker: str, dead_from: Micros) -> Item:
    due = INDEXES[DUE]
    return {due.pk: lease_pk(shard_of(worker)), due.sk: number(dead_from)}


async def beat(desk: Desk, given: Beat) -> Micros:
    now, worker = desk.clock(), given.worker
    for row in given.definitions:
        key = definition_key(row.machine, row.version, row.hash)
        await desk.list_once(Put(key=key, item={**pack(row), "at": now}, wanted={"hash": ABSENT}))
    await _write_worker(desk, worker, now)
    with suppress(StoreError):  # the beat has landed
        await _clean_up(desk, now)
    return now


async def _write_worker(desk: Desk, worker: WorkerRow, now: Micros) -> None:
    """Who has left in good order stays so."""
    key, dead_from = worker_key(worker.id), now + worker.lease + 1
    item = {**pack(worker), "beat": now, **_in_leases(worker.id, dead_from)}
    if worker.ended is None:
        del item["ended"]
    else:
        item |= _in_leases(worker.id, 0)
    try:
        await desk.table.write(Update(key=key, item=item, wanted={"ended": ABSENT}))
    except Cancelled:
        item.pop("ended", None)
        await desk.table.write(Update(key=key, item={**item, **_in_leases(worker.id, 0)}))
    desk.registered[worker.id] = dead_from


async def register(desk: Desk, worker: str) -> None:
    """See to it that what a worker is about to own is found once it is dead, whether it ever beat or not.

    A handle knows that for a lease, or half an hour, and makes sure of it again then.
    """
    now = desk.clock()
    desk.idle.pop(worker, None)
    if desk.registered.get(worker, now) > now:
        return
    key, lease = worker_key(worker), _in_leases(worker, 0)
    try:
        await desk.table.write(
            Update(key=key, item={"id": worker, "beat": now, "lease": -1, **lease}, wanted={"id": ABSENT})
        )
    except Cancelled as cancelled:
        item = cancelled.reasons[0].item or {}
        if item.get(INDEXES[DUE].pk) != lease[INDEXES[DUE].pk]:  # it was found to own nothing
            await desk.table.write(Update(key=key, item=lease, wanted={"beat": item["beat"]}))
    desk.registered[worker] = now + GRACE // 2


def is_gone(item: Item | None, now: Micros) -> bool:
    """By a worker's row, if there is one, it is dead."""
    return item is None or item.get("ended") is not None or now - int(item["beat"]) > int(item["lease"])


async def find_dead(desk: Desk, now: Micros) -> dict[str, Item]:
    """Workers that may own something and are dead, with their rows, as these say."""
    spans = [Span(pk=lease_pk(shard), last=number(now), index=DUE) for shard in every_shard()]
    return await _find_gone(desk, spans, now)


async def _find_gone(desk: Desk, spans: Sequence[Span], now: Micros) -> dict[str, Item]:
    found = await asyncio.gather(*(desk.table.query(span, DEAD) for span in spans))
    names = [str(entry["SK"]) for entries in found for entry in entries]
    desk.idle = {name: until for name, until in desk.idle.items() if until > now}
    items = await desk.table.get_many(worker_key(name) for name in names if name not in desk.idle)
    return {key.sk: item for key, item in items.items() if is_gone(item, now)}


DEAD = 32
"""How many dead workers of a partition are looked at in one claim: those behind them have their turn once
these own nothing."""


async def forget(desk: Desk, item: Item, now: Micros) -> None:
    """Ask less often about a dead worker that owns nothing, and in the end no more."""
    worker = str(item["id"])
    if await owned_by(desk.table, worker, 1):
        return
    if now - int(item["beat"]) <= GRACE:
        desk.idle[worker] = now + NOW_AND_THEN
        return
    due = INDEXES[DUE]
    desk.registered.pop(worker, None)
    left = {due.pk: left_pk(shard_of(worker)), due.sk: number(int(item["beat"]))}
    wanted = {"beat": item["beat"], "ended": ABSENT if item.get("ended") is None else item["ended"]}
    await desk.try_to(Update(key=worker_key(worker), item=left, wanted=wanted))


async def _clean_up(desk: Desk, now: Micros) -> None:
    """Drop rows that were silent for more than a day and own no thread."""
    left = [Span(pk=left_pk(shard), last=number(now - DAY - 1), index=DUE) for shard in every_shard()]
    gone = await find_dead(desk, now) | await _find_gone(desk, left, now)
    for worker, item in gone.items():
        if now - int(item["beat"]) > DAY and not await owned_by(desk.table, worker, 1):
            desk.registered.pop(worker, None)
            await desk.try_to(Delete(key=worker_key(worker), wanted={"beat": item["beat"]}))


async def share(desk: Desk, request: Share) -> Shared:
    """One attempt; ``Cancelled`` where it is to be made again."""
    now, pk = desk.clock(), share_pk(request.limit)
    gate = Key(pk, "gate")
    items = {str(item["SK"]): item for item in await desk.table.query(Span(pk=pk))}
    before = items.pop(gate.sk, {"turn": 0, "full_at": 0})
    mine = joined("held", request.worker)
    held = request.held
    if request.at_once is not None:
        others = [item for name, item in items.items() if name != mine]
        held = min(held, max(request.at_once - await _held(desk, others, now), 0))
    paced = pace(request, int(before["full_at"]), now)
    turn = {"turn": int(before["turn"]) + 1, "full_at": paced.full_at}
    actions: list[Action] = [Put(key=gate, item=turn, wanted={"turn": before["turn"] or ABSENT})]
    slot = Key(pk, mine)
    if held:
        actions.append(Put(key=slot, item={"held": held, "worker": request.worker}))
    elif mine in items:
        actions.append(Delete(key=slot))
    await desk.table.transact(actions)
    return Shared(held=held, starts=paced.starts, again=paced.again)


async def _held(desk: Desk, slots: Sequence[Item], now: Micros) -> int:
    """How many slots are held by workers that live."""
    keys = [worker_key(str(slot["worker"])) for slot in slots]
    rows = await desk.table.get_many(keys) if keys else {}
    return sum(
        int(slot["held"]) for slot, key in zip(slots, keys, strict=True) if not is_gone(rows.get(key), now)
    )
