"""A store in one SQLite file, for any number of processes of one machine."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import aiosqlite
import anyio
import anyio.to_thread

from ._clock import system_clock
from ._errors import StoreUnavailable, no_store
from ._queries import Page, Query
from ._records import Micros
from ._sql_pages import plan
from ._sql_requests import Write
from ._sql_store import SQLStore
from ._sqlite_batches import PATIENCE
from ._sqlite_commits import SQLITE
from ._sqlite_files import connect, explain, find_place, is_busy
from ._sqlite_schema import examine, prepare
from ._sqlite_writer import Writer

R = TypeVar("R")


class SQLiteStore(SQLStore):
    """Threads, memory and records in the SQLite file at ``path``, which is created where it is missing.

    Every answer to a write is given after the disk has it. Writes that arrive together share a transaction.
    The file must lie on a local disk: ``BadStoreURL`` where it lies on a network file system, or where it can
    neither be opened nor created; ``StoreUnreadable`` where it is no perdure store, is damaged, or was
    written by a newer perdure. ``clock`` gives microseconds since the epoch, UTC; whichever thread writes
    calls it. ``read_only``: nothing is created, migrated or written; ``StoreUnreadable`` where the file is an
    older perdure's, and ``StoreUnavailable`` from whatever would write. ``create`` False: ``BadStoreURL``
    where the file is not there. ``inline``: a step's commit that comes alone is written in the event loop's
    own thread, which then stands still for as long as the disk takes, and not handed to another thread and
    back: for few threads at a time on a fast disk, where it saves about a third of a step's time.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], Micros] = system_clock,
        read_only: bool = False,
        create: bool = True,
        inline: bool = False,
    ) -> None:
        self._path = str(path)
        self._clock = clock
        self._read_only = read_only
        self._create = create
        self._inline = inline
        self._reads: aiosqlite.Connection | None = None
        self._writer: Writer | None = None

    @property
    def path(self) -> str:
        """The file, as it was named, and its real path once the store is open."""
        return self._path

    async def __aenter__(self) -> SQLiteStore:
        if not self._create and not await anyio.Path(self._path).exists():
            raise no_store(f"at {self._path!r}")
        self._path = await anyio.to_thread.run_sync(find_place, self._path)
        try:
            self._reads = await self._prepared()
            if not self._read_only:
                self._writer = Writer(self._path, self._clock, inline=self._inline)
                await self._writer.open()
        except BaseException as error:
            await self._close()
            if isinstance(error, sqlite3.Error | UnicodeDecodeError):
                raise explain(self._path, error, opening=True) from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        if limit < 1:
            raise ValueError(f"a page of {limit} rows was asked for: limit must be at least 1")
        if self._reads is None:
            raise StoreUnavailable(f"the store {self._path} is not open: use it inside `async with`")
        planned = plan(query, SQLITE)
        statement, values = planned.statement(after, limit)
        try:
            rows = await self._reads.execute_fetchall(statement, values)
        except (OverflowError, UnicodeEncodeError):
            return Page(rows=(), next=None)  # no row holds what no row can hold
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise explain(self._path, error) from error
        return planned.page(list(rows), limit)

    def _write(self, write: Write) -> Awaitable[Any]:
        if self._writer is None:
            if self._read_only:
                raise StoreUnavailable(f"the store {self._path} was opened to be read: nothing is written")
            raise StoreUnavailable(f"the store {self._path} is not open: use it inside `async with`")
        return self._writer.write(write)

    async def _prepared(self) -> aiosqlite.Connection:
        """A connection to the file in its newest version, however many processes open it at this moment."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return await _open_prepared(self._path, self._read_only)
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
            await anyio.sleep(0.01)

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            writer, self._writer = self._writer, None
            reads, self._reads = self._reads, None
            try:
                if writer is not None:
                    await writer.close()
            finally:  # asyncio's own cancel goes through the shield, and a thread left keeps the process
                if reads is not None:
                    await _shut(reads)


async def _open_prepared(path: str, read_only: bool) -> aiosqlite.Connection:
    # Opened before aiosqlite has it, whose thread would outlive a connection that cannot be opened.
    opened = await anyio.to_thread.run_sync(connect, path, PATIENCE, read_only)
    db = aiosqlite.Connection(lambda: opened, iter_chunk_size=64)
    try:
        with anyio.CancelScope(shield=True):
            await db
        await (examine if read_only else prepare)(db, path)
        await db.execute("PRAGMA query_only = ON")
    except BaseException:
        await _shut(db)
        raise
    return db


async def _shut(db: aiosqlite.Connection) -> None:
    with anyio.CancelScope(shield=True):
        await db.close()
