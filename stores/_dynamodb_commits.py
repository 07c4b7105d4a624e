"""Commits to a DynamoDB store: each is one transaction, whose conditions are its fence.

A commit is tried over the thread as this handle last left it, and judged only by what the table says.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ._dynamodb_asks import Cancelled, Put, Update
from ._dynamodb_desk import Desk
from ._dynamodb_items import Stood, pack, pack_thread, unpack, unpack_thread
from ._dynamodb_keys import below, inbox_key, items_key, log_key, outbox_key, standing_key, thread_pk
from ._dynamodb_outside import Plan, count_of, plan_artifacts, plan_keys, plan_memory, plan_messages
from ._dynamodb_threads import PENDING, put_thread
from ._errors import KeyTaken, MemoryMoved, StaleClaim
from ._made import at_least, due_at_once, holds, said_of_stale
from ._records import Commit, InboxRow, ItemsRow, ThreadRow


async def commit(desk: Desk, commit: Commit) -> None:
    """One attempt; ``Cancelled`` where it is to be made again."""
    stood = desk.stood.pop(commit.address, None)
    if stood is not None and _fits(stood.row, commit):
        try:
            return await _land(desk, commit, stood)
        except (Cancelled, MemoryMoved, KeyTaken):
            pass  # somebody else may have changed the thread, which comes first
    stood = unpack_thread(await desk.table.get(standing_key(commit.address)))
    if stood is not None and _fits(stood.row, commit):
        return await _land(desk, commit, stood)
    if not await _landed(desk, commit, stood):
        raise StaleClaim(said_of_stale(commit, None if stood is None else stood.row))
    return None


def _fits(row: ThreadRow, commit: Commit) -> bool:
    return holds(row, commit.incarnation, commit.epoch) and row.n == commit.log.n


async def _landed(desk: Desk, commit: Commit, stood: Stood | None) -> bool:
    if stood is None or stood.row.incarnation != commit.incarnation or commit.log.n >= stood.row.n:
        return False
    row = await desk.table.get(log_key(commit.address, commit.log.n))
    return row is not None and (row["epoch"], row["head"]) == (commit.epoch, commit.log.head)


async def _land(desk: Desk, commit: Commit, before: Stood) -> None:
    plan = Plan(desk.clock())
    after = _after(commit, before, plan.now)
    if commit.consumed:
        after = evolve(after, low=await _low(desk, commit, before))
    plan.actions.append(put_thread(after, pack_thread(before)))
    _plan_rows(plan, commit)
    if commit.messages:
        plan_messages(plan, commit, await count_of(desk.table, commit.address.workspace, commit.session))
    await plan_memory(plan, desk.table, commit)
    await plan_keys(plan, desk.table, commit)
    await plan_artifacts(plan, desk.table, commit)
    await plan.land(desk.table)
    desk.keep(after)


def _after(commit: Commit, before: Stood, now: int) -> Stood:
    row = before.row
    standing = at_least(commit.standing, row.standing.version)
    row = evolve(
        row,
        standing=due_at_once(standing, commit.inbox_seen < row.inbox, now),
        n=row.n + 1,
        owner=None if commit.release else row.owner,
        head=commit.log.head,
        crashes=0,
        updated=commit.log.at,
    )
    return evolve(before, row=row, since=now if commit.release else before.since)


def _plan_rows(plan: Plan, commit: Commit) -> None:
    """The thread's own rows."""
    address, log = commit.address, commit.log
    plan.actions.append(Put(key=log_key(address, log.n), item=pack(log)))
    if commit.items is not None:
        plan.actions.append(
            Put(key=items_key(address, log.n), item=pack(ItemsRow(n=log.n, payload=commit.items)))
        )
    for taken in dict.fromkeys(commit.consumed):
        taken_in = Update(key=inbox_key(address, taken), item={"consumed": log.seq}, wanted={"number": taken})
        plan.actions.append(taken_in)
    for sent in commit.outbox:
        item = {**pack(sent), "target": [sent.target.workspace, sent.target.thread_id]}
        plan.actions.append(Put(key=outbox_key(address, sent.seq, sent.n), item=item))


async def _low(desk: Desk, commit: Commit, before: Stood) -> int:
    """Up to which number everything will have been taken in, so that no claim reads it again."""
    low, last = before.low, before.row.inbox
    while low + 1 in commit.consumed:
        low += 1
    while before.low < low < last:
        span = below(thread_pk(commit.address), "inbox", after=inbox_key(commit.address, low).sk)
        rows = [unpack(InboxRow, item) for item in await desk.table.query(span, PENDING)]
        taken = _taken(rows, commit.consumed)
        low += taken
        if taken < PENDING:
            break
    return low


def _taken(rows: Sequence[InboxRow], consumed: Sequence[int]) -> int:
    """How many of the first ones have been taken in."""
    count = 0
    for row in rows:
        if row.consumed is None and row.number not in consumed:
            break
        count += 1
    return count
