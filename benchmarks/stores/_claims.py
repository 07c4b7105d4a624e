"""What a claim costs among few threads and among many.

python -m benchmarks.stores._claims URL WAY THREADS

Copies of one thread are written by SQL, and then claimed, fifty at a time. The ways: threads that may run at
once (``runnable``), the same in a hundred workspaces (``workspaces``), threads that wait and are due
(``due``), and those that a dead worker left (``left``). Where all wait for a later day (``later``) a claim
finds none.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import asyncpg

from benchmarks._ours import Page, Ten, runtime_of
from perdure.stores import ClaimRequest, Store, open_store

CLAIMS = 10
LIMIT = 50
LEASE = 30_000_000
DAY = 86_400_000_000

WAYS: Mapping[str, Mapping[str, str]] = {
    "runnable": {},
    "workspaces": {"workspace": "'w' || (k % 100)"},
    "due": {"status": "1", "wake": "since - k"},
    "left": {"owner": "'dead'"},
    "later": {"status": "1", "wake": f"since + {DAY} + k"},
}
"""What the copies have otherwise than the first thread; ``k`` is a copy's number."""
TABLES = {"thread": "id", "standing": "id", "log": "thread"}
"""What is copied, and which column has the thread's number."""
NUMBERS = "WITH RECURSIVE numbers (k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM numbers WHERE k < {copies})"


def copying(table: str, columns: Sequence[str], way: str, copies: int, words: str = "") -> Sequence[str]:
    """The statements that replace the only thread's rows of this table by copies."""
    key = TABLES[table]
    other = {key: f"{key} + k", "thread_id": "thread_id || k", **WAYS[way]}
    values = ", ".join(other.get(name, name) for name in columns)
    numbers = NUMBERS.format(copies=copies)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) {words} {numbers} SELECT {values} FROM {table}, numbers",
        f"DELETE FROM {table} WHERE {key} = (SELECT min({key}) FROM {table})",
    )


def fill_sqlite(path: str, way: str, copies: int) -> None:
    """Copy the thread in a file."""
    with sqlite3.connect(path) as db:
        for table in TABLES:
            columns = [row[0] for row in db.execute(f"SELECT * FROM {table} LIMIT 0").description]
            for statement in copying(table, columns, way, copies):
                db.execute(statement)


async def fill_postgres(url: str, schema: str, way: str, copies: int) -> None:
    """Copy the thread in a schema."""
    connection = await asyncpg.connect(url, server_settings={"search_path": schema})
    for table in TABLES:
        looked = await connection.prepare(f"SELECT * FROM {table} LIMIT 0")
        columns = [each.name for each in looked.get_attributes()]
        for statement in copying(table, columns, way, copies, "OVERRIDING SYSTEM VALUE"):
            await connection.execute(statement)
    await connection.close()


async def fill(url: str, way: str, threads: int) -> None:
    """So many threads, none of which anybody runs."""
    async with runtime_of(Ten, url, 1).client() as client:
        await client.start(Ten, Page(), thread_id="t")
    scheme, _, path = url.partition(":///")
    if scheme == "sqlite":
        fill_sqlite(path, way, threads)
    else:
        server, _, schema = url.partition("?schema=")
        await fill_postgres(server, schema, way, threads)


async def claim(store: Store, way: str, limit: int) -> float:
    """Seconds of one claim, which has to find what there is to be found."""
    request = ClaimRequest(
        worker="bench",
        machines={"Ten": 1},
        limit=limit,
        late_before=time.time_ns() // 1000 - LEASE,
        late_limit=LIMIT,
    )
    began = time.perf_counter()
    claimed = await store.claim(request)
    seconds = time.perf_counter() - began
    if len(claimed.claims) != (0 if way == "later" else limit):
        raise RuntimeError(f"{len(claimed.claims)} of {limit} threads were claimed")
    return seconds


async def measure(url: str, way: str, threads: int) -> dict[str, Any]:
    """Seconds of the first claim of a process, and of those after it."""
    await fill(url, way, threads)
    async with open_store(url) as store:
        first = await claim(store, way, LIMIT)
        took = [await claim(store, way, LIMIT) for _ in range(CLAIMS)]
    return {"first": first, "claim": median(took), "longest": max(took)}


def main() -> None:
    url, way, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    print(json.dumps(asyncio.run(measure(url, way, threads))))


if __name__ == "__main__":
    main()
