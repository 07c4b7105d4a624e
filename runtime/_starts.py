"""Whether a start that is sent again is the one that made the thread."""

from __future__ import annotations

from functools import partial
from typing import Any

from perdure.machines import Definition, Merged, Unreadable
from perdure.stores import Items, ItemsRow, Log, LogRow, Start, Store, ThreadRow

from ._context import moment
from ._errors import StartConflict
from ._journal import Body, decode_body, encode_body
from ._keys import digest
from ._ledger import side_digest
from ._look import DAMAGE
from ._progress import owned_values
from ._reliable import page_of


def identity_of(plan: Definition, merged: Merged[Any]) -> bytes:
    """What two starts of one machine with the same data share."""
    base = plan.data.base(merged.data, merged.positions)
    side = side_digest({"items": merged.items, "messages": merged.messages})
    return digest(plan.name, encode_body(Body(base=base), (), side))


async def check_same(store: Store, plan: Definition, thread: ThreadRow, start: Start) -> None:
    """``StartConflict`` where the thread was started with another machine or other data."""
    if thread.machine == start.machine and (
        thread.started == start.started or await _began_alike(store, plan, thread, start)
    ):
        return
    created = moment(thread.created).isoformat(timespec="seconds")
    raise StartConflict(
        f"thread {start.address.thread_id!r} in workspace {start.address.workspace!r} was started "
        f"at {created} with machine {thread.machine!r} and other data: choose another thread_id, "
        "or start it with what it has"
    )


async def _began_alike(store: Store, plan: Definition, thread: ThreadRow, start: Start) -> bool:
    """Whether what other code started is, as this code reads it, what is started now."""
    first = (await page_of(store, Log(address=thread.address), limit=1)).rows
    if not first or first[0].salt is None:
        return False
    items = (await page_of(store, Items(address=thread.address, first=0), limit=1)).rows
    try:
        return _read_again(plan, first[0], [row for row in items if row.n == 0], start) == start.started
    except (Unreadable, *DAMAGE):
        return False


def _read_again(plan: Definition, row: LogRow, items: list[ItemsRow], start: Start) -> bytes | None:
    body = decode_body(row.payload)
    side = side_digest({"items": items[0].payload if items else None, "messages": start.messages})
    if body.base is None or body.side != side:
        return None  # it came with other messages
    owned = owned_values(start.address.thread_id, 0)
    version = plan.version if body.version is None else body.version
    run = partial(plan.upcasts.data, version=version, where=f"thread {start.address.thread_id!r}")
    loaded = plan.data.load(
        body.base,
        [],
        [(each.n, each.payload) for each in items],
        start.messages,
        owned,
        run if plan.upcasts.changes_data(version) else None,
    )
    return identity_of(plan, plan.data.started(loaded.data, owned))
