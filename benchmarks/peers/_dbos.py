"""The workload on DBOS Transact, its system database in SQLite.

Plain functions, since on SQLite they are faster than coroutines: those hop between threads at each call.
"""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sqlalchemy
from dbos import DBOS, SetWorkflowID

from ._workload import BODY, STEPS, arguments, body, checked, drive, durable, finish, on_disk

POOL = 1
"""Connections: SQLite has one writer, and threads wait more cheaply for the pool than for SQLite's lock."""
seen: set[str] = set()


@sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
def _durable(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    [journal] = connection.execute("PRAGMA journal_mode").fetchone()
    [synchronous] = connection.execute("PRAGMA synchronous").fetchone()
    seen.add(durable(journal, synchronous))


@DBOS.step()
def write(number: int) -> dict[str, Any]:
    return {"number": number + 1, "body": body(number)}


@DBOS.workflow()
def ten() -> int:
    number = 0
    for _ in range(STEPS):
        number = write(number)["number"]
    return number


def named(number: int) -> None:
    with SetWorkflowID(f"thread-{number}"):
        checked(number, ten())


async def measure(threads: int, concurrency: int) -> dict[str, Any]:
    """Run the workflows, each in a thread of the system's; a single one needs none."""
    with ThreadPoolExecutor(concurrency) as pool:
        loop = asyncio.get_running_loop()

        async def one(number: int) -> None:
            if concurrency == 1:
                named(number)
            else:
                await loop.run_in_executor(pool, contextvars.Context().run, named, number)

        return await drive(one, threads, concurrency)


def recorded(path: Path) -> int:
    """Steps on disk that hold what they returned."""
    query = "SELECT count(*) FROM operation_outputs WHERE error IS NULL AND length(output) > ?"
    [count] = sqlite3.connect(path).execute(query, (BODY,)).fetchone()
    return int(count)


def main() -> None:
    folder, threads, concurrency = arguments()
    path = folder / "dbos.db"
    url = f"sqlite:///{path}"
    DBOS(
        config={
            "name": "peers",
            "system_database_url": url,
            "sys_db_pool_size": POOL,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    result = asyncio.run(measure(threads, concurrency))
    DBOS.destroy()
    result["bytes"] = on_disk(folder)
    finish(result, recorded(path), f"{' '.join(seen)}; {POOL} connection, workflows in system threads")


if __name__ == "__main__":
    main()
