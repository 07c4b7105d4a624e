"""A store goes from SQLite into PostgreSQL and back, and is the same to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.runtime._copy import Tally, copy_store
from perdure.runtime._env import Env
from perdure.stores import ROW_KINDS, Rows, SQLiteStore, Store, StoredRow
from perdure.stores._contract_restore import _stage
from perdure.stores._postgres import PostgresStore
from perdure.stores.contract import Clock


class Silent:
    def kind(self, tally: Tally, /) -> None:
        pass

    def verifying(self) -> None:
        pass


async def everything(store: Store) -> list[Sequence[StoredRow]]:
    return [(await store.page(Rows(kind=kind), limit=1000)).rows for kind in ROW_KINDS]


@pytest.mark.anyio
async def test_there_and_back(tmp_path: Path, postgres_schema: str) -> None:
    clock = Clock(0)  # its workers' heartbeats are long past
    async with SQLiteStore(tmp_path / "old.db", clock=clock) as old:
        await _stage(old)
        rows = await everything(old)
        assert all(rows)
        async with PostgresStore(postgres_schema) as there:
            await copy_store(old, there, Env(), Silent())
            assert await everything(there) == rows
            again = await copy_store(old, there, Env(), Silent())
            assert [tally.there for tally in again] == [len(some) for some in rows]
            async with SQLiteStore(tmp_path / "back.db") as back:
                await copy_store(there, back, Env(), Silent())
                assert await everything(back) == rows
