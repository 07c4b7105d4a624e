"""Processes that work on one SQLite store, as the tests start them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from subprocess import PIPE
from typing import Any

import aiosqlite

from perdure.stores import Log, SQLiteStore, StoreError
from perdure.stores._contract_make import (
    address_of,
    after,
    commit_of,
    committed,
    start_of,
    write_of,
)
from perdure.stores._sqlite_schema import MIGRATIONS

HERE = Path(__file__)


def spawn(act: str, database: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a process that does ``act`` on the store; its answers come line by line."""
    command = [sys.executable, str(HERE), act, str(database), *map(str, arguments)]
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)


def open_at_once(database: Path, version: int) -> None:
    """Ten processes open a file of this version at once; the first to migrate it is killed half-way."""
    killed = spawn("stop_half_way", database, version)
    openers = [spawn("open_and_write", database, f"t{i}") for i in range(9)]
    try:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"half-way\n"
        for opener in openers:
            assert opener.stdout is not None
            assert opener.stdout.readline() == b"ready\n"
        for opener in openers:
            assert opener.stdin is not None
            opener.stdin.write(b"go\n")
            opener.stdin.flush()
        killed.kill()
        killed.communicate()
        for opener in openers:
            out, err = opener.communicate(timeout=60)
            assert (out, err, opener.returncode) == (b"done\n", b"", 0)
    finally:
        for process in (killed, *openers):
            process.kill()
            process.communicate()
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def write_until_killed(database: str, threads: str) -> None:
    """Threads side by side, whose commits have several parts; each answer is told at once."""
    async with SQLiteStore(database) as store:

        async def write(name: str) -> None:
            thread = (await store.start(start_of(name))).thread
            while True:
                n = thread.n
                commit = commit_of(
                    thread,
                    payload=os.urandom(2000),
                    items=b"item %d" % n,
                    messages=(b"message %d" % n,),
                    memory=(write_of(name, b"%d" % n, n - 1),),
                    session=name,
                )
                await store.commit(commit)
                tell(f"{name} {n}")
                thread = after(thread, commit)

        await asyncio.gather(*(write(f"t{i}") for i in range(int(threads))))


async def open_and_write(database: str, name: str) -> None:
    """Wait for the word, then open a file that nobody has migrated yet, and write."""
    tell("ready")
    sys.stdin.readline()
    async with SQLiteStore(database) as store:
        thread = (await store.start(start_of(name))).thread
        await committed(store, thread)
        await store.page(Log(address=address_of(name)))
    tell("done")


async def stop_half_way(database: str, version: str) -> None:
    """Go half of the way from this version to the next, and stay there with the lock."""
    execute = aiosqlite.Connection.execute
    statements = MIGRATIONS[int(version)]

    async def stay(self: aiosqlite.Connection, statement: str, *values: Any) -> Any:
        if statement == statements[len(statements) // 2]:
            tell("half-way")
            await asyncio.sleep(60)
        return await execute(self, statement, *values)

    aiosqlite.Connection.execute = stay  # type: ignore[assignment,method-assign]
    async with SQLiteStore(database):
        pass


ACTS: dict[str, Callable[..., Coroutine[None, None, None]]] = {
    act.__name__: act for act in (write_until_killed, open_and_write, stop_half_way)
}

if __name__ == "__main__":
    try:
        asyncio.run(ACTS[sys.argv[1]](*sys.argv[2:]))
    except StoreError as error:
        sys.exit(f"{type(error).__name__}: {error}")
