"""A store in a table of Amazon DynamoDB, for any number of workers on any number of machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import anyio

from . import _dynamodb_claims as claims
from . import _dynamodb_commits as commits
from . import _dynamodb_threads as threads
from . import _dynamodb_upkeep as upkeep
from . import _dynamodb_workers as workers
from ._clock import system_clock
from ._dynamodb_desk import Desk, persist
from ._dynamodb_lanes import Lanes
from ._dynamodb_pages import answer
from ._dynamodb_place import find_place
from ._dynamodb_restore import restore
from ._dynamodb_rows import all_rows
from ._dynamodb_table import DynamoDBTable
from ._errors import OutcomeUnknown, StoreUnavailable
from ._kinds import StoredRow
from ._limits import (
    check_artifact,
    check_commit,
    check_expire,
    check_name,
    check_remember,
    check_restore,
    check_signal,
    check_start,
)
from ._outside import Expire, Expired, Remember
from ._queries import Page, Query, Rows
from ._records import (
    Address,
    ArtifactRow,
    Claimed,
    ClaimRequest,
    Commit,
    Delivered,
    MemoryRow,
    Micros,
    Release,
    Signal,
    Start,
    Started,
)
from ._shares import check_share
from ._workers import DefinitionRow, Share, Shared, WorkerRow

G = TypeVar("G")
R = TypeVar("R")
T = TypeVar("T")


class DynamoDBStore:
    """Threads, memory and records in one table of Amazon DynamoDB, which is made where it is missing.

    ``url`` is ``dynamodb://TABLE?region=eu-central-1``, and behind it: ``endpoint`` (another address than
    Amazon's), ``connections`` (at most so many at once: 32) and ``timeout`` (seconds that a call may take
    with all of its tries: 15). Credentials come by the usual chain of AWS, and stand in no URL. It needs
    ``perdure[aws]``.

    A commit is one transaction of DynamoDB, and lands by its conditions: sent again after any time it is a
    no-op. Which threads are due is found by secondary indexes, which may be behind for moments: a thread may
    be claimed that much later, and what ``Threads(owner=...)`` and ``Threads(status="parked")`` list may be
    that old. All else is read as it stands. ``expire`` takes up to 90 records in a transaction, and several
    transactions for a higher limit: ``OutcomeUnknown`` where one of them fails behind others.

    ``BadStoreURL`` for what is no such URL, and where whoever opens it is not let in; ``StoreUnreadable``
    where the table is another program's or was written by a newer perdure.

    ``clock`` gives microseconds since the epoch, UTC; None: this machine's, since DynamoDB has none to ask.
    So the machines of all workers have to agree on the time, as NTP lets them, to well below a lease: a clock
    that is ahead takes threads over too early, which costs work and never correctness, since each claim
    fences the former one off by its epoch. ``read_only``: nothing is made or written; ``StoreUnreadable``
    where there is no table, and ``StoreUnavailable`` from whatever would write. ``create`` False:
    ``BadStoreURL`` where there is no table yet.
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
        self._clock = clock or system_clock
        self._read_only = read_only
        self._create = create
        self._table = DynamoDBTable(self._place)
        self._desk: Desk | None = None
        self._lanes = Lanes()

    @property
    def where(self) -> str:
        """The table and its region, for people."""
        return self._place.where

    async def __aenter__(self) -> Self:
        try:
            await self._table.open(read_only=self._read_only, create=self._create)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._table.close()
            raise
        self._desk = Desk(table=self._table, clock=self._clock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._lanes.close()
            self._desk = None
            await self._table.close()

    async def start(self, start: Start, /) -> Started:
        check_start(start)
        check_name(f"machine of thread {start.address.thread_id!r}", start.machine)
        session = (start.address.workspace, start.session) if start.messages else None
        return await self._on_thread(start.address, threads.start, start, session)

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        what = f"what worker {request.worker!r} claims"
        return await self._write([("claim",)], claims.claim, request, what)

    async def commit(self, commit: Commit, /) -> None:
        check_commit(commit)
        session = (commit.address.workspace, commit.session) if commit.messages else None
        await self._on_thread(commit.address, commits.commit, commit, session)

    async def release(self, releases: Sequence[Release], /) -> None:
        calls = [self._on_thread(each.address, threads.release, each) for each in releases]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors and len(errors) < len(answers):
            raise OutcomeUnknown(f"some claims were given up, others not: {errors[0]}") from errors[0]
        if errors:
            raise errors[0]

    async def deliver(self, signal: Signal, /) -> Delivered:
        check_signal(signal)
        return await self._on_thread(signal.address, threads.deliver, signal)

    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        given = workers.Beat(worker=worker, definitions=definitions)
        return await self._write([("worker", worker.id)], workers.beat, given, f"worker {worker.id!r}")

    async def share(self, request: Share, /) -> Shared:
        check_share(request)
        what = f"limit {request.limit!r}"
        return await self._write([("limit", request.limit)], workers.share, request, what)

    async def upload(self, artifact: ArtifactRow, /) -> None:
        check_artifact(artifact)
        names = [("artifact", artifact.workspace, artifact.id)]
        await self._write(names, upkeep.upload, artifact, f"artifact {artifact.id!r}")

    async def remember(self, write: Remember, /) -> MemoryRow:
        check_remember(write)
        names = [("memory", write.workspace, write.namespace, write.key)]
        return await self._write(names, upkeep.remember, write, f"memory {write.namespace}/{write.key}")

    async def expire(self, request: Expire, /) -> Expired:
        check_expire(request)
        return await self._write([], upkeep.expire, request, "what expires")

    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        check_restore(rows)
        await self._write([("restore",)], restore, rows, "what is restored")

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        if limit < 1:
            raise ValueError(f"a page of {limit} rows was asked for: limit must be at least 1")
        table = self._opened().table
        if isinstance(query, Rows):
            return await all_rows(table, query.kind).page(after, limit)
        return await answer(table, query, after, limit)

    def _on_thread(
        self,
        address: Address,
        work: Callable[[Desk, G], Awaitable[T]],
        given: G,
        session: tuple[str, str] | None = None,
    ) -> Awaitable[T]:
        """What adds to a session waits for what this handle adds to it already, rather than meeting it."""
        names: list[Hashable] = [address] if session is None else [address, ("session", *session)]
        return self._write(names, work, given, f"thread {address.thread_id!r}")

    def _write(
        self, names: Sequence[Hashable], work: Callable[[Desk, G], Awaitable[T]], given: G, what: str
    ) -> Awaitable[T]:
        if self._read_only:
            raise StoreUnavailable(f"{self.where} was opened to be read: nothing is written")
        desk = self._opened()
        return self._lanes.run(names, lambda: persist(partial(work, desk, given), what))

    def _opened(self) -> Desk:
        if self._desk is None:
            raise StoreUnavailable(f"{self.where} is not open: use it inside `async with`")
        return self._desk
