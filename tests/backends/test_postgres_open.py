"""Opening a store in PostgreSQL: an empty schema, a newer one, one that is only read, and what is no URL."""

from __future__ import annotations

import subprocess
import sys

import anyio
import asyncpg
import pytest

from perdure.stores import BadStoreURL, StoreUnavailable, StoreUnreadable, Threads, open_store
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import start_of
from perdure.stores._postgres import PostgresStore

pytestmark = pytest.mark.anyio

SECRET = "hunter2"


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url.partition("?")[0])
    await connection.execute(statement)
    await connection.close()


def schema_of(url: str) -> str:
    return url.rpartition("=")[2]


async def test_many_open_an_empty_schema_at_once(postgres_schema: str) -> None:
    async def start(number: int) -> None:
        async with open_store(postgres_schema) as store:
            await store.start(start_of(f"t{number}"))

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(start, number)
    async with open_store(postgres_schema, read_only=True) as store:
        assert len(await rows(store, Threads())) == 10


async def test_who_only_reads_creates_and_writes_nothing(postgres_schema: str) -> None:
    with pytest.raises(StoreUnreadable, match="holds no perdure store"):
        async with PostgresStore(postgres_schema, read_only=True):
            pass
    with pytest.raises(StoreUnreadable, match="holds no perdure store"):  # and the first one made none
        async with PostgresStore(postgres_schema, read_only=True):
            pass
    async with PostgresStore(postgres_schema) as store:
        await store.start(start_of("t1"))
    async with PostgresStore(postgres_schema, read_only=True) as reader:
        assert len(await rows(reader, Threads())) == 1
        with pytest.raises(StoreUnavailable, match="was opened to be read"):
            await reader.start(start_of("t2"))


async def test_a_newer_schema_is_refused(postgres_schema: str) -> None:
    async with PostgresStore(postgres_schema):
        pass
    await execute(postgres_schema, f"UPDATE {schema_of(postgres_schema)}.perdure SET version = 99")
    with pytest.raises(StoreUnreadable, match="written by a newer perdure"):
        async with PostgresStore(postgres_schema):
            pass


async def test_another_programs_tables_are_left_alone(postgres_schema: str) -> None:
    schema = schema_of(postgres_schema)
    await execute(postgres_schema, f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.log (line TEXT)")
    with pytest.raises(StoreUnreadable):
        async with PostgresStore(postgres_schema):
            pass
    await execute(postgres_schema, f"INSERT INTO {schema}.log VALUES ('still there')")


async def test_without_a_cache_of_statements_it_works_as_well(postgres_schema: str) -> None:
    async with open_store(f"{postgres_schema}&statement_cache_size=0") as store:
        await store.start(start_of("t1"))
        assert len(await rows(store, Threads())) == 1


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}@127.0.0.1:1/database",
        f"postgresql://user:{SECRET}/word@127.0.0.1/database",
        f"postgresql://user:{SECRET}@127.0.0.1:port/database",
        f"postgresql://user:{SECRET}@127.0.0.1/database?schema=",
        f"postgresql://user:{SECRET}@127.0.0.1/database?connections=many",
    ],
)
async def test_an_address_that_does_not_answer_or_is_none_is_told_without_the_password(url: str) -> None:
    with pytest.raises((BadStoreURL, StoreUnavailable)) as refused:
        async with open_store(url):
            pass
    assert SECRET not in f"{refused.value}"


async def test_a_database_that_is_not_there_is_named(postgres_server: str) -> None:
    url = f"{postgres_server.rpartition('/')[0]}/nowhere"
    with pytest.raises(BadStoreURL, match="nowhere"):
        async with open_store(url):
            pass


def test_a_driver_that_is_not_installed_is_named() -> None:
    program = """
import sys
sys.modules["asyncpg"] = None
from perdure.stores import BadStoreURL, open_store
try:
    open_store("postgresql://127.0.0.1/database")
except BadStoreURL as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "PostgreSQL needs its driver: pip install 'perdure[postgres]'\n"
