"""Threads of a DynamoDB store: how they start, what comes into their inboxes, and how claims are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from attrs import evolve, frozen

from ._dynamodb_asks import Item, Put, Table
from ._dynamodb_desk import Desk, turn_on
from ._dynamodb_items import Stood, pack, pack_thread, unchanged, unpack, unpack_thread
from ._dynamodb_keys import (
    below,
    inbox_key,
    items_key,
    listed_key,
    log_key,
    signal_key,
    standing_key,
    thread_pk,
)
from ._dynamodb_outside import Plan, count_of, plan_messages
from ._dynamodb_workers import register
from ._errors import SignalConflict, ThreadEnded
from ._made import at_least, due_at_once, entry_made, holds, thread_made
from ._records import (
    Address,
    Delivered,
    InboxRow,
    ItemsRow,
    Micros,
    Release,
    Signal,
    Start,
    Started,
)

PENDING = 100
"""How many pending inbox entries come with a thread."""


def put_thread(stood: Stood, before: Item | None) -> Put:
    """The thread as it is to stand, where it still stands as it did."""
    return Put(key=standing_key(stood.row.address), item=pack_thread(stood), wanted=unchanged(before))


async def pending(table: Table, address: Address, low: int) -> tuple[InboxRow, ...]:
    """The first pending entries of a thread's inbox, of those behind a number."""
    found: list[InboxRow] = []
    after = inbox_key(address, low).sk
    while len(found) < PENDING:
        span = below(thread_pk(address), "inbox", after=after)
        items = await table.query(span, PENDING)
        rows = [unpack(InboxRow, item) for item in items]
        found += [row for row in rows if row.consumed is None]
        if len(items) < PENDING:
            break
        after = str(items[-1]["SK"])
    return tuple(found[:PENDING])


@frozen(kw_only=True)
class Inbox:
    """A thread's inbox as some signals find it."""

    address: Address
    standing: Item | None
    """What was read before the signals were looked for: as long as it stands, none of them has come."""
    known: Sequence[InboxRow | None]
    """The entries of those that are there already."""
    signals: Sequence[Signal]

    @property
    def last(self) -> int:
        return 0 if self.standing is None else int(self.standing["inbox"])

    def rows(self, now: Micros) -> list[InboxRow]:
        """All of the signals' entries, new ones numbered behind the last."""
        rows: list[InboxRow] = []
        last = self.last
        for row, signal in zip(self.known, self.signals, strict=True):
            if row is None:
                last += 1
            rows.append(row or entry_made(signal, last, now))
        return rows


async def find_signals(table: Table, address: Address, item: Item | None, signals: Sequence[Signal]) -> Inbox:
    """``SignalConflict`` or ``ThreadEnded`` where one of the signals is refused.

    An id's pointer names the number that its signal has, or the last one that it was to have. It is never
    turned back, and whoever would turn it on has seen the inbox as it stands: so the entry, if there is one.
    """
    keys = {signal.id: signal_key(address, signal.id) for signal in signals}
    pointers = await table.get_many(keys.values()) if keys else {}
    at = {
        id_: inbox_key(address, int(pointers[key]["number"])) for id_, key in keys.items() if key in pointers
    }
    entries = await table.get_many(at.values()) if at else {}
    known: list[InboxRow | None] = []
    for signal in signals:
        entry = entries.get(at[signal.id]) if signal.id in at else None
        row = unpack(InboxRow, entry) if entry is not None and entry["id"] == signal.id else None
        _check(signal, row, item)
        known.append(row)
    return Inbox(address=address, standing=item, known=known, signals=signals)


def _check(signal: Signal, row: InboxRow | None, item: Item | None) -> None:
    if row is not None and row.digest != signal.digest:
        raise SignalConflict(
            f"signal {signal.id!r} of thread {signal.address.thread_id!r} was accepted before, as event "
            f"{row.event!r} or with another payload: send this one under an id of its own"
        )
    if row is None and item is not None and item.get("status") == "ended":
        raise ThreadEnded(f"thread {signal.address.thread_id!r} has ended: it takes no new signals")


async def point(table: Table, address: Address, rows: Sequence[InboxRow]) -> None:
    """Turn the pointers of new entries on to them, before they are there."""
    await asyncio.gather(*(turn_on(table, signal_key(address, row.id), row.number) for row in rows))


def put_entries(plan: Plan, address: Address, rows: Sequence[InboxRow]) -> None:
    plan.actions += [Put(key=inbox_key(address, row.number), item=pack(row)) for row in rows]


async def start(desk: Desk, start: Start) -> Started:
    """One attempt; ``Cancelled`` where it is to be made again."""
    now, address, table = desk.clock(), start.address, desk.table
    item = await table.get(standing_key(address))
    there = unpack_thread(item)
    ours = there is None or there.row.started == start.started
    inbox = await find_signals(table, address, item, start.signals if ours else ())
    rows = inbox.rows(now)
    new = [row for row in rows if row.number > inbox.last]
    came: Sequence[InboxRow] = ()
    if start.owner is not None and start.incarnation == (start if there is None else there.row).incarnation:
        came = [*await pending(table, address, 0 if there is None else there.low), *new]
    plan = Plan(now)
    if there is None:
        await desk.list_thread(address.workspace, start.machine)
        if start.owner is not None:
            await register(desk, start.owner)
        count = await count_of(table, address.workspace, start.session)
        there = _created(start, inbox, rows, count, now)
        _plan_start(plan, start, there, item, count)
    elif new:
        there = _received(there, new, now)
        plan.actions.append(put_thread(there, item))
    if plan.actions:
        await point(table, address, new)
        put_entries(plan, address, new)
        await plan.land(table)
    desk.keep(there)
    return Started(
        created=there.row.incarnation == start.incarnation,
        thread=there.row,
        inbox=tuple(came[:PENDING]),
        delivered=tuple(Delivered(row=row, new=row in new, thread=there.row) for row in rows),
    )


def _created(start: Start, inbox: Inbox, rows: Sequence[InboxRow], count: int, now: Micros) -> Stood:
    newest = 0 if inbox.standing is None else int(inbox.standing["version"])
    newest = max([newest, *(row.version for row in rows)])
    last = max([inbox.last, *(row.number for row in rows)])
    standing = due_at_once(at_least(start.standing, newest), last > 0, now)
    row = thread_made(start, standing=standing, inbox=last, session_since=count)
    return Stood(row=row, since=now, low=0)


def _plan_start(plan: Plan, start: Start, stood: Stood, item: Item | None, count: int) -> None:
    address = start.address
    plan.actions.append(put_thread(stood, item))
    plan.actions.append(Put(key=log_key(address, start.log.n), item=pack(start.log)))
    plan.actions.append(Put(key=listed_key(address), item={"listed": 1}))
    if start.items is not None:
        row = ItemsRow(n=start.log.n, payload=start.items)
        plan.actions.append(Put(key=items_key(address, row.n), item=pack(row)))
    plan_messages(plan, start, count)


def _received(stood: Stood, rows: Sequence[InboxRow], now: Micros) -> Stood:
    version = max(row.version for row in rows)
    standing = due_at_once(at_least(stood.row.standing, version), True, now)
    return evolve(stood, row=evolve(stood.row, inbox=rows[-1].number, standing=standing))


async def deliver(desk: Desk, signal: Signal) -> Delivered:
    """One attempt; ``Cancelled`` where it is to be made again."""
    now, address, table = desk.clock(), signal.address, desk.table
    item = await table.get(standing_key(address))
    inbox = await find_signals(table, address, item, [signal])
    [row] = inbox.rows(now)
    stood, new = unpack_thread(item), inbox.known[0] is None
    if new:
        plan = Plan(now)
        if stood is None:
            version = max(row.version, 0 if item is None else int(item["version"]))
            early = {"inbox": row.number, "version": version}
            plan.actions.append(Put(key=standing_key(address), item=early, wanted=unchanged(item)))
            if item is None:
                await desk.list_workspace(address.workspace)
                plan.lists.append(Put(key=listed_key(address), item={"listed": 1}))
        else:
            stood = _received(stood, [row], now)
            plan.actions.append(put_thread(stood, item))
        await point(table, address, [row])
        put_entries(plan, address, [row])
        await plan.land(table)
    if stood is not None:
        desk.keep(stood)
    return Delivered(row=row, new=new, thread=None if stood is None else stood.row)


async def release(desk: Desk, given: Release) -> None:
    """One attempt; ``Cancelled`` where it is to be made again."""
    now = desk.clock()
    item = await desk.table.get(standing_key(given.address))
    stood = unpack_thread(item)
    if stood is None or not holds(stood.row, given.incarnation, given.epoch):
        return
    standing = evolve(stood.row.standing, status=given.status, wake=given.wake)
    standing = due_at_once(standing, given.inbox_seen < stood.row.inbox, now)
    stood = evolve(stood, row=evolve(stood.row, owner=None, standing=standing), since=now)
    await desk.table.write(put_thread(stood, item))
    desk.keep(stood)
