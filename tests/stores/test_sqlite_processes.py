"""Several processes on one SQLite file: none sees a lock, none waits for a reader, one creates the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio import to_thread
from sqlite_child import open_at_once, spawn

from perdure.stores import Inbox, Log, SQLiteStore, Threads
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import address_of, committed, started

pytestmark = pytest.mark.anyio

COMMITS = 500
SHARED = 100


async def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    names = ("a", "b", "c", "d")
    async with SQLiteStore(path) as store:
        thread = await started(store, "history")
        for _ in range(4):
            thread = await committed(store, thread)
        # A reader that has begun with the history, and goes on when all the others are done.
        history = Log(address=thread.address)
        page = await store.page(history, limit=2)
        for number in range(SHARED):
            await started(store, f"shared-{number}", owner=None, machine="Shared")
        workers = [spawn("work", path, name, COMMITS) for name in names]
        claimed: list[str] = []
        for worker in workers:
            out, err = worker.communicate(timeout=60)
            assert (err, worker.returncode) == (b"", 0)
            claimed += out.decode().split()
        assert sorted(claimed) == sorted(f"shared-{number}" for number in range(SHARED))
        for name in names:
            assert [row.n for row in await rows(store, Log(address=address_of(name)))] == list(
                range(COMMITS + 1)
            )
            assert len(await rows(store, Inbox(address=address_of(name)))) == COMMITS // 10
        rest = await store.page(history, after=page.next)
        assert [row.n for row in (*page.rows, *rest.rows)] == list(range(5))


async def test_processes_that_open_an_empty_file_at_once_all_come_up(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    await to_thread.run_sync(open_at_once, path, 0)
    async with SQLiteStore(path) as store:
        assert [row.n for row in await rows(store, Threads())] == [2] * 9
