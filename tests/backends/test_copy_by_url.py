"""A store goes from SQLite into one on a server and back, and is the same to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from harness.copying import Silent

from perdure.runtime._copy import copy_store
from perdure.runtime._env import Env
from perdure.stores import ROW_KINDS, Rows, SQLiteStore, Store, StoredRow, open_store
from perdure.stores._contract_restore import _stage
from perdure.stores.contract import Clock


@pytest.fixture(params=["postgres_schema", "dynamodb_url"])
def store_url(request: pytest.FixtureRequest) -> str:
    """A server's store of this test's own."""
    return str(request.getfixturevalue(request.param))


async def everything(store: Store) -> list[Sequence[StoredRow]]:
    return [(await store.page(Rows(kind=kind), limit=1000)).rows for kind in ROW_KINDS]


@pytest.mark.anyio
async def test_there_and_back(tmp_path: Path, store_url: str) -> None:
    clock = Clock(0)  # its workers' heartbeats are long past
    async with SQLiteStore(tmp_path / "old.db", clock=clock) as old:
        await _stage(old)
        rows = await everything(old)
        assert all(rows)
        async with open_store(store_url) as there:
            await copy_store(old, there, Env(), Silent())
            assert await everything(there) == rows
            again = await copy_store(old, there, Env(), Silent())
            assert [tally.there for tally in again] == [len(some) for some in rows]
            async with SQLiteStore(tmp_path / "back.db") as back:
                await copy_store(there, back, Env(), Silent())
                assert await everything(back) == rows
