"""A store in a PostgreSQL database, for any number of workers on any number of machines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

import anyio

from ._errors import StoreUnavailable
from ._postgres_link import Link
from ._postgres_nudges import NOTIFY, channel_of, listen
from ._postgres_place import find_place
from ._postgres_schema import examine, find, prepare
from ._postgres_session import POSTGRES
from ._postgres_writer import Writer
from ._queries import Page, Query
from ._records import Micros
from ._sql_pages import plan
from ._sql_requests import Write
from ._sql_store import SQLStore

R = TypeVar("R")


class PostgresStore(SQLStore):
    """Threads, memory and records in a schema of a PostgreSQL database, which is created where it is missing.

    ``url`` is ``postgresql://user:password@host:port/database``, and behind it: ``schema`` (``perdure``),
    ``connections`` (at most so many at once: 10), ``timeout`` (seconds for a connection to be made and for a
    statement to be answered: 15), ``statement_cache_size`` (0 behind a pooler that keeps no prepared
    statements), and whatever asyncpg takes: ``sslmode``, ``passfile``, several hosts with
    ``target_session_attrs=read-write``.

    Every answer to a write is given after the database has it as durably as it is set up to
    (``synchronous_commit``). Commits that arrive together share a statement. Connections that are lost are
    made anew. ``BadStoreURL`` for what is no such URL, and where the database cannot be opened under it;
    ``StoreUnreadable`` where the schema is another program's or was written by a newer perdure.

    ``clock`` gives microseconds since the epoch, UTC; None: the server's clock, which is one for all workers.
    ``read_only``: nothing is created, migrated or written; ``StoreUnreadable`` where the schema is missing or
    an older perdure's, and ``StoreUnavailable`` from whatever would write. ``create`` False: ``BadStoreURL``
    where the schema is missing.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], Micros] | None = None,
        read_only: bool = False,
        create: bool = True,
    ) -> None:
        self._place = find_place(url)
        self._clock = clock
        self._read_only = read_only
        self._create = create
        self._link: Link | None = None
        self._writer: Writer | None = None

    @property
    def where(self) -> str:
        """The schema, database and host, for people: without user and password."""
        return self._place.where

    async def __aenter__(self) -> PostgresStore:
        link = Link(self._place)
        try:
            await link.open()
            if not self._create:
                await link.transact(find, opening=True)
            await link.transact(examine if self._read_only else prepare, opening=True)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await link.close()
            raise
        self._link = link
        if not self._read_only:
            self._writer = Writer(link, self._clock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            writer, self._writer = self._writer, None
            link, self._link = self._link, None
            try:
                if writer is not None:
                    await writer.close()
            finally:
                if link is not None:
                    await link.close()

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        if limit < 1:
            raise ValueError(f"a page of {limit} rows was asked for: limit must be at least 1")
        if self._link is None:
            raise StoreUnavailable(f"{self.where} is not open: use it inside `async with`")
        planned = plan(query, POSTGRES)
        statement, values = planned.statement(after, limit)
        rows = await self._link.read(statement, values)
        return planned.page(rows, limit)

    async def nudge(self, said: str, /) -> None:
        if self._link is None:
            raise StoreUnavailable(f"{self.where} is not open: use it inside `async with`")
        await self._link.read(NOTIFY, (channel_of(self._place.schema), said))

    async def listen(self, heard: Callable[[str], None], /) -> None:
        await listen(self._place, heard)

    def _write(self, write: Write) -> Awaitable[Any]:
        if self._writer is None:
            if self._read_only:
                raise StoreUnavailable(f"{self.where} was opened to be read: nothing is written")
            raise StoreUnavailable(f"{self.where} is not open: use it inside `async with`")
        return self._writer.write(write)
