"""Several processes on one SQLite file: none sees a lock, none waits for a reader, one creates the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio import to_thread
from harness.writers import processes_that_write_at_once_lose_nothing
from sqlite_child import open_at_once

from perdure.stores import SQLiteStore, Threads
from perdure.stores._contract_kit import rows

pytestmark = pytest.mark.anyio


async def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    await processes_that_write_at_once_lose_nothing(f"sqlite:///{tmp_path}/perdure.db", commits=500)


async def test_processes_that_open_an_empty_file_at_once_all_come_up(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    await to_thread.run_sync(open_at_once, path, 0)
    async with SQLiteStore(path) as store:
        assert [row.n for row in await rows(store, Threads())] == [2] * 9
