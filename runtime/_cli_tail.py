"""``perdure tail``: rows of the journal as they come, by looking now and then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio

from perdure.stores import Address, Log, LogRow, Micros, Page, Store, ThreadRow, Threads

from ._cli_journal import read_body, row_line
from ._cli_journal import row_json as log_json
from ._cli_load import address_of
from ._cli_look import Place, row_json
from ._cli_text import STATUS_STYLES, Output, Styled
from ._env import Env
from ._look import ended_words, find_thread
from ._reliable import page_of

TICK = 0.5
"""Seconds between two looks, each of which is one query."""
PAGE = 500
"""Threads, or rows, that one query brings."""
FIRST_ROWS = 10
"""Rows shown of what was there before."""
CATCH_UP = 50
"""Rows shown at most of a thread that is seen to move for the first time."""


async def tail_thread(out: Output, place: Place, thread_id: str) -> int:
    """Follow one thread until it has ended (status 0) or is parked (status 1), as `perdure run` does."""
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        row = await find_thread(store, address)
        shown = max(-1, row.n - 1 - FIRST_ROWS)
        while True:
            async for log in _rows(store, row, shown):
                _tell(out, row, log, named=False)
                shown = log.n
            if row.standing.status in ("ended", "parked"):
                return _tell_end(out, row)
            await anyio.sleep(TICK)
            row = await _look(store, row)


async def _look(store: Store, row: ThreadRow) -> ThreadRow:
    query = Threads(workspace=row.address.workspace, thread_id=row.address.thread_id)
    page: Page[ThreadRow] = await page_of(store, query, limit=1)
    return page.rows[0] if page.rows else await find_thread(store, row.address)


async def _rows(store: Store, row: ThreadRow, shown: int) -> AsyncIterator[LogRow]:
    """Rows behind the one that was shown last, up to where the thread's row stands."""
    while shown + 1 < row.n:
        page: Page[LogRow] = await page_of(store, Log(address=row.address, after=shown), limit=PAGE)
        new = [log for log in page.rows if log.n < row.n]
        if not new:
            return
        for log in new:
            yield log
        shown = new[-1].n


async def tail_all(out: Output, place: Place, machine: str | None) -> None:
    """Follow all threads of a workspace from now on; each look is at one page of them, in turn."""
    async with place.store as store:
        follower = Follower(Env().now())
        async for row, log in follow(store, place.workspace, machine, follower, lambda: anyio.sleep(TICK)):
            _tell(out, row, log, named=True)


class Follower:
    """Up to where the rows of each thread that has moved were shown."""

    def __init__(self, since: Micros) -> None:
        self._since = since
        self._shown: dict[Address, tuple[bytes, int]] = {}

    async def news(self, store: Store, row: ThreadRow) -> AsyncIterator[LogRow]:
        """Rows of the thread that were not shown yet and came since this began."""
        if row.updated < self._since:
            return
        incarnation, shown = self._shown.get(row.address, (b"", -1))
        if incarnation != row.incarnation:
            shown = max(-1, row.n - 1 - CATCH_UP)
        if shown + 1 >= row.n:
            return
        async for log in _rows(store, row, shown):
            if log.at >= self._since:
                yield log
        self._shown[row.address] = (row.incarnation, row.n - 1)


async def follow(
    store: Store, workspace: str, machine: str | None, follower: Follower, pause: Callable[[], Any]
) -> AsyncIterator[tuple[ThreadRow, LogRow]]:
    """New rows of all threads, a page of threads at a time, for ever."""
    after: str | None = None
    query = Threads(workspace=workspace, machine=machine)
    while True:
        page: Page[ThreadRow] = await page_of(store, query, after=after, limit=PAGE)
        for row in page.rows:
            async for log in follower.news(store, row):
                yield row, log
        after = page.next
        await pause()


def _tell(out: Output, row: ThreadRow, log: LogRow, *, named: bool) -> None:
    body, damage = read_body(log)
    if out.as_json:
        where = {"thread": row.address.thread_id, "workspace": row.address.workspace, "machine": row.machine}
        out.json({**where, **log_json(log, body, damage)})
    else:
        name = [Styled(f"{row.address.thread_id}  ", "bold")] if named else []
        out.line(*name, *row_line(log, body, damage))
    out.flush()


def _tell_end(out: Output, row: ThreadRow) -> int:
    standing = row.standing
    if out.as_json:
        out.json(row_json(row))
    elif standing.status == "ended":
        out.line(f"thread {row.address.thread_id!r} has ended: {ended_words(standing)}")
    else:
        parked = Styled(f"parked ({standing.reason})", STATUS_STYLES["parked"])
        out.line(f"thread {row.address.thread_id!r} is ", parked, f": {standing.note}")
    return 1 if standing.status == "parked" else 0
