"""Processes that work on one SQLite store, as the tests start them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from subprocess import PIPE
from typing import Any

import aiosqlite

from perdure.stores import Log, SQLiteStore, Store, StoreError
from perdure.stores._contract_make import (
    address_of,
    after,
    commit_of,
    committed,
    signal_of,
    start_of,
    worker_of,
    write_of,
)
from perdure.stores._records import ThreadRow
from perdure.stores._sqlite_schema import TABLES

HERE = Path(__file__)


def spawn(act: str, database: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a process that does ``act`` on the store; its answers come line by line."""
    command = [sys.executable, str(HERE), act, str(database), *map(str, arguments)]
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def work(database: str, name: str, commits: str) -> None:
    """One thread of this process, with signals, claims and beats between its commits."""
    async with SQLiteStore(database) as store:
        await store.beat(worker_of(name))
        thread = (await store.start(start_of(name, owner=name))).thread
        for i in range(int(commits)):
            if i % 10 == 0:
                await store.deliver(signal_of(f"s{i}", name))
            thread = await go_on(store, thread)
    tell("done")


async def go_on(store: Store, thread: ThreadRow) -> ThreadRow:
    commit = commit_of(thread, payload=os.urandom(500))
    await store.commit(commit)
    return after(thread, commit)


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


async def open_empty(database: str, name: str) -> None:
    """Wait for the word, then open a file that nobody has filled yet, and write."""
    tell("ready")
    sys.stdin.readline()
    async with SQLiteStore(database) as store:
        thread = (await store.start(start_of(name))).thread
        await committed(store, thread)
        await store.page(Log(address=address_of(name)))
    tell("done")


async def stop_half_way(database: str) -> None:
    """Create half of the tables, and stay there with the lock."""
    execute = aiosqlite.Connection.execute

    async def stay(self: aiosqlite.Connection, statement: str, *values: Any) -> Any:
        if statement == TABLES[len(TABLES) // 2]:
            tell("half-way")
            await asyncio.sleep(60)
        return await execute(self, statement, *values)

    aiosqlite.Connection.execute = stay  # type: ignore[assignment,method-assign]
    async with SQLiteStore(database):
        pass


ACTS: dict[str, Callable[..., Coroutine[None, None, None]]] = {
    act.__name__: act for act in (work, write_until_killed, open_empty, stop_half_way)
}

if __name__ == "__main__":
    try:
        asyncio.run(ACTS[sys.argv[1]](*sys.argv[2:]))
    except StoreError as error:
        sys.exit(f"{type(error).__name__}: {error}")
