"""The workload on DBOS Transact, its system database in SQLite or PostgreSQL.

Plain functions, since on SQLite they are faster than coroutines: those hop between threads at each call.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy
from dbos import DBOS, SetWorkflowID

from ._workload import (
    BODY,
    STEPS,
    arguments,
    body,
    checked,
    database,
    drive,
    durable,
    durable_server,
    finish,
    on_disk,
)

POOL = 1
"""Connections: SQLite has one writer, and threads wait more cheaply for the pool than for SQLite's lock."""
POSTGRES_POOL = 20
"""Connections to PostgreSQL: more made it no faster at a hundred at once."""
SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")
seen: set[str] = set()


@sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
def _durable(connection: Any, _record: Any) -> None:
    if database():
        shown = {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in SETTINGS}
        connection.rollback()
        seen.add(durable_server(shown))
        return
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


RECORDED = "SELECT count(*) FROM {table} WHERE error IS NULL AND length(output) > {body}"
"""Steps on disk that hold what they returned."""


def recorded(url: str) -> int:
    table = "dbos.operation_outputs" if database() else "operation_outputs"
    query = sqlalchemy.text(RECORDED.format(table=table, body=BODY))
    with sqlalchemy.create_engine(url).connect() as connection:
        return int(connection.execute(query).scalar_one())


def main() -> None:
    folder, threads, concurrency = arguments()
    given = database()
    url = f"sqlite:///{folder / 'dbos.db'}" if given is None else f"postgresql+psycopg{given[10:]}"
    pool = POOL if given is None else POSTGRES_POOL
    DBOS(
        config={
            "name": "peers",
            "system_database_url": given or url,
            "sys_db_pool_size": pool,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    result = asyncio.run(measure(threads, concurrency))
    DBOS.destroy()
    result["bytes"] = on_disk(folder)
    finish(result, recorded(url), f"{' '.join(seen)}; {pool} connections, workflows in system threads")


if __name__ == "__main__":
    main()
