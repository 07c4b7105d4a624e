"""Writes and reads that are made again until the store has answered, and what gives a claim up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from perdure.stores import (
    OutcomeUnknown,
    Page,
    Query,
    Release,
    Status,
    Store,
    StoreUnavailable,
    ThreadRow,
)

T = TypeVar("T")

FIRST_PAUSE = 0.05
"""Seconds before a call without an answer is made again; doubled up to ``LONGEST_PAUSE``."""
LONGEST_PAUSE = 2.0


async def until_known(call: Callable[[], Awaitable[T]]) -> T:
    """Make the identical call until its outcome is known: where a write had landed before, it is a no-op."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await call()
        except (OutcomeUnknown, StoreUnavailable):
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


async def page_of(store: Store, query: Query[T], *, after: str | None = None, limit: int = 100) -> Page[T]:
    """One page of a query, however long the store is out of reach."""
    return await until_known(lambda: store.page(query, after=after, limit=limit))


def released(row: ThreadRow, status: Status = "running") -> Release:
    """What gives up the claim on a thread that nobody runs; whatever its inbox holds makes it due."""
    return Release(
        address=row.address,
        incarnation=row.incarnation,
        epoch=row.epoch,
        status=status,
        wake=None,
        inbox_seen=0,
    )
