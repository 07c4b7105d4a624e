"""A SQLite store that is opened to be read: nothing is created, migrated or written."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure.stores import (
    Memory,
    Remember,
    SQLiteStore,
    StoreError,
    StoreUnavailable,
    StoreUnreadable,
    open_store,
)

pytestmark = pytest.mark.anyio


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/perdure.db"


def write(value: bytes) -> Remember:
    return Remember(
        id=value.decode(), workspace="w", namespace="n", key="k", value=value, expected=None, principal="p"
    )


async def make(folder: Path) -> Path:
    async with open_store(url_of(folder)) as store:
        await store.remember(write(b"1"))
    return folder / "perdure.db"


def schema_of(path: Path, version: int | None = None) -> int:
    with closing(sqlite3.connect(path)) as db:
        if version is not None:
            db.execute(f"PRAGMA user_version = {version}")
        ((found,),) = db.execute("PRAGMA user_version").fetchall()
    return int(found)


async def test_it_reads_and_writes_nothing(tmp_path: Path) -> None:
    path = await make(tmp_path)
    before = path.read_bytes()
    async with open_store(url_of(tmp_path), read_only=True) as store:
        assert [row.value for row in (await store.page(Memory(workspace="w"))).rows] == [b"1"]
        with pytest.raises(StoreUnavailable, match="was opened to be read: nothing is written"):
            await store.remember(write(b"2"))
    assert path.read_bytes() == before


async def test_it_sees_what_a_writer_beside_it_writes(tmp_path: Path) -> None:
    path = await make(tmp_path)
    async with SQLiteStore(path) as writer, SQLiteStore(path, read_only=True) as reader:
        await writer.remember(write(b"2"))
        assert [row.value for row in (await reader.page(Memory(workspace="w"))).rows] == [b"2"]


async def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        async with open_store(url_of(tmp_path), read_only=True):
            pass
    assert os.listdir(tmp_path) == []


async def test_an_older_file_is_refused_and_not_migrated(tmp_path: Path) -> None:
    path = await make(tmp_path)
    newest = schema_of(path)
    schema_of(path, newest - 1)
    with pytest.raises(StoreUnreadable, match=rf"schema {newest - 1}, this one reads {newest}"):
        async with SQLiteStore(path, read_only=True):
            pass
    assert schema_of(path) == newest - 1
