"""How many threads there are and where, and how one thread's record grows. The work is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec
from attrs import frozen

from perdure.stores import Items, ItemsRow, Log, LogRow, Messages, Page, Query, Store, ThreadRow, Threads

from ._journal import decode_body, is_checkpoint
from ._look import DAMAGE, rows_of
from ._stored_data import data_at

MOST_THREADS = 10_000
"""Threads that are counted at most."""
MOST_ROWS = 5_000
"""Rows of a thread's record that are measured at most, the newest ones."""
LARGEST = 5


@frozen(kw_only=True)
class Count:
    """Threads of a workspace by what they are."""

    threads: int
    sampled: bool
    """There are more: only the first ones, by id, were counted."""
    by_status: Mapping[str, int]
    by_machine: Mapping[str, int]
    by_state: Mapping[tuple[str, str, str], int]
    """By machine, state and status."""
    parked: Mapping[str, int]
    """By reason."""
    longest: Sequence[ThreadRow]
    """Those with the most journal rows."""


@frozen(kw_only=True)
class Growth:
    """What a thread's record takes, in bytes of payload."""

    rows: int
    measured: int
    """Journal rows that were looked at: the newest ones."""
    log_bytes: int
    snapshots: int
    snapshot_bytes: int
    items: int
    items_bytes: int
    messages: int
    message_bytes: int
    steps: int
    """Whole steps among the rows that were looked at."""
    median_step: float
    newest_step: int
    data_bytes: int
    largest: Sequence[tuple[str, int]]
    """Fields of the newest data, largest first."""


async def count_threads(store: Store, workspace: str | None, machine: str | None = None) -> Count:
    """Count threads, up to ``MOST_THREADS``."""
    status, machines, states, parked = Counter[str](), Counter[str](), Counter[Any](), Counter[str]()
    longest: list[ThreadRow] = []
    total, sampled = 0, False
    async for row in rows_of(store, Threads(workspace=workspace, machine=machine)):
        if total == MOST_THREADS:
            sampled = True
            break
        total += 1
        standing = row.standing
        status[standing.status] += 1
        machines[row.machine] += 1
        states[row.machine, standing.state, standing.status] += 1
        if standing.status == "parked":
            parked[standing.reason or ""] += 1
        longest = sorted([*longest, row], key=lambda each: -each.n)[:LARGEST]
    return Count(
        threads=total,
        sampled=sampled,
        by_status=status,
        by_machine=machines,
        by_state=states,
        parked=parked,
        longest=longest,
    )


async def growth(store: Store, row: ThreadRow) -> Growth:
    """Measure a thread's record, its newest ``MOST_ROWS`` rows."""
    first = max(0, row.n - MOST_ROWS)
    meter = _Meter()
    async for log in rows_of(store, Log(address=row.address, after=first - 1)):
        meter.take_row(log)
    async for item in rows_of(store, Items(address=row.address, first=first)):
        meter.take_items(item)
    own = Messages(workspace=row.address.workspace, session=row.session, incarnation=row.incarnation)
    said = [len(message.payload) async for message in _some(store, own, MOST_ROWS)]
    steps = [size for seq, size in sorted(meter.steps.items()) if 0 < seq <= row.standing.seq]
    steps = steps[1:] if first else steps  # the oldest one measured may have begun before
    fields = _sizes((await data_at(store, row, row.standing.seq)).values)
    return Growth(
        rows=row.n,
        measured=len(meter.visits),
        log_bytes=meter.log_bytes,
        snapshots=meter.snapshots,
        snapshot_bytes=meter.snapshot_bytes,
        items=meter.items,
        items_bytes=meter.items_bytes,
        messages=len(said),
        message_bytes=sum(said),
        steps=len(steps),
        median_step=median(steps) if steps else 0,
        newest_step=steps[-1] if steps else 0,
        data_bytes=sum(size for _, size in fields),
        largest=fields[:LARGEST],
    )


class _Meter:
    """Adds up what rows take, by the step that they led to."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.visits: dict[int, int] = {}
        self.log_bytes = self.snapshots = self.snapshot_bytes = self.items = self.items_bytes = 0

    def take_row(self, log: LogRow) -> None:
        """A record row belongs to the step that its visit ends with."""
        step = log.seq if is_checkpoint(log) else log.seq + 1
        size = len(log.payload)
        self.visits[log.n] = step
        self.log_bytes += size
        self.steps[step] = self.steps.get(step, 0) + size
        if _is_snapshot(log):
            self.snapshots += 1
            self.snapshot_bytes += size

    def take_items(self, row: ItemsRow) -> None:
        """Items count for the step whose row appended them."""
        self.items += 1
        self.items_bytes += len(row.payload)
        if row.n in self.visits:
            self.steps[self.visits[row.n]] += len(row.payload)


def _is_snapshot(log: LogRow) -> bool:
    if log.salt is None or not is_checkpoint(log):
        return False
    try:
        return decode_body(log.payload).base is not None
    except DAMAGE:
        return False


def _sizes(values: Mapping[str, Any]) -> list[tuple[str, int]]:
    sizes = [(name, len(msgspec.json.encode(value))) for name, value in values.items()]
    return sorted(sizes, key=lambda each: -each[1])


async def _some(store: Store, query: Query[Any], most: int) -> AsyncIterator[Any]:
    page: Page[Any] = await store.page(query, limit=most)
    for row in page.rows:
        yield row
