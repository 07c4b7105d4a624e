"""The PostgreSQL server that is measured, and what it counts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
from servers.postgres import URL, postgres

DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}

BYTES = """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c
    JOIN pg_namespace s ON s.oid = c.relnamespace WHERE c.relkind = 'r' AND s.nspname = $1"""
CHECKPOINTER = """SELECT pid, inet_server_addr() <<= '127.0.0.0/8' AS here FROM pg_stat_activity
    WHERE backend_type = 'checkpointer'"""
COUNTS = """SELECT
    (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()) AS transactions,
    (SELECT CAST(sum(fsyncs) AS BIGINT) FROM pg_stat_io WHERE object = 'wal') AS fsyncs"""


@contextlib.contextmanager
def durable_server() -> Generator[str]:
    """The URL of the server that the environment names, or else of a new one.

    ``SystemExit`` where it answers a commit before the disk has it.
    """
    with contextlib.ExitStack() as stack:
        url = os.environ.get(URL) or stack.enter_context(postgres(durable=True)).url
        for name, wanted in DURABLE.items():
            [row] = ask(url, f"SHOW {name}")
            if row[name] != wanted:
                raise SystemExit(f"{name} of the PostgreSQL server is {row[name]}: it has to be {wanted}")
        yield url


def ask(url: str, statement: str, *values: object) -> list[Mapping[str, Any]]:
    """The rows of one statement."""

    async def run() -> list[Mapping[str, Any]]:
        connection = await asyncpg.connect(url)
        try:
            return [dict(row) for row in await connection.fetch(statement, *values)]
        finally:
            await connection.close()

    return asyncio.run(run())


def version(url: str) -> str:
    """Of the server."""
    [row] = ask(url, "SHOW server_version")
    return str(row["server_version"])


def counts(url: str) -> dict[str, int]:
    """Transactions and flushes of the log so far, of all processes that have ended."""
    [row] = ask(url, COUNTS)
    return {name: int(value) for name, value in row.items() if value is not None}


def cpu(url: str) -> dict[str, float]:
    """Seconds that the server's processes have used so far; nothing where they are on another machine."""
    [row] = ask(url, CHECKPOINTER)
    if not row["here"]:
        return {}
    parent = _stat(row["pid"])[1]
    used = sum(_stat(parent)[11:15])  # its own, and that of those that have ended
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    for child in map(int, children.split()):
        with contextlib.suppress(OSError):
            used += sum(_stat(child)[11:13])
    return {"server_cpu": used / os.sysconf("SC_CLK_TCK")}


def _stat(pid: int) -> list[int]:
    """What the kernel tells of a process behind its name, from the state on, the state as 0."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return [0, *map(int, text.rpartition(")")[2].split()[1:])]


def size(url: str, schema: str) -> int:
    """Bytes of a schema's tables and indexes."""
    [row] = ask(url, BYTES, schema)
    return int(row["coalesce"])


def drop(url: str, schema: str) -> None:
    """Remove a schema with all that is in it."""
    ask(url, f"DROP SCHEMA IF EXISTS {schema} CASCADE")
