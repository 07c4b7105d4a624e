"""Where a process may be killed: at every durable write, and at every boundary of a call and its record."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from attrs import define, field

from perdure.stores import (
    ArtifactRow,
    Claimed,
    ClaimRequest,
    Commit,
    DefinitionRow,
    Delivered,
    Expire,
    Expired,
    MemoryRow,
    Micros,
    Page,
    Query,
    Release,
    Remember,
    Share,
    Shared,
    Signal,
    Start,
    Started,
    Store,
    StoredRow,
    WorkerRow,
)

T = TypeVar("T")


@define
class Points:
    """Counts the points that this process passes, and kills it at one of them."""

    kill_at: int | str | None = None
    """The point to die at: its number, counted from 1, or the first of a name; None: live."""
    names: list[str] = field(factory=list[str])

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if self.kill_at in {len(self.names), name}:
            os.kill(os.getpid(), signal.SIGKILL)


class KillingStore:
    """A store with a point before and after everything durable that it does."""

    def __init__(self, store: Store, point: Points) -> None:
        self._store = store
        self._point = point

    async def __aenter__(self) -> KillingStore:
        await self._store.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.__aexit__(kind, error, trace)

    async def start(self, start: Start, /) -> Started:
        return await self._around("start", self._store.start(start))

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        claimed = await self._store.claim(request)
        if claimed.claims:
            self._point("after claim")
        return claimed

    async def commit(self, commit: Commit, /) -> None:
        await self._around(f"{commit.log.kind} in {commit.standing.state}", self._store.commit(commit))

    async def release(self, releases: Sequence[Release], /) -> None:
        await self._around("release", self._store.release(releases))

    async def deliver(self, signal: Signal, /) -> Delivered:
        return await self._around("deliver", self._store.deliver(signal))

    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        return await self._store.beat(worker, definitions)

    async def share(self, request: Share, /) -> Shared:
        return await self._around("share", self._store.share(request))

    async def upload(self, artifact: ArtifactRow, /) -> None:
        await self._around("upload", self._store.upload(artifact))

    async def remember(self, write: Remember, /) -> MemoryRow:
        return await self._around("remember", self._store.remember(write))

    async def expire(self, request: Expire, /) -> Expired:
        return await self._around("expire", self._store.expire(request))

    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        await self._around("restore", self._store.restore(rows))

    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        return await self._store.page(query, after=after, limit=limit)

    async def _around(self, what: str, write: Awaitable[T]) -> T:
        self._point(f"before {what}")
        answer = await write
        self._point(f"after {what}")
        return answer
