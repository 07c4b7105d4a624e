"""What the stores of SQL databases write: checked at the edge, then handed to the one writer of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any

from ._kinds import StoredRow
from ._limits import (
    check_artifact,
    check_commit,
    check_expire,
    check_remember,
    check_restore,
    check_signal,
    check_start,
)
from ._outside import Expire, Expired, Remember
from ._records import (
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
from ._sql_requests import Beat, Releases, Restore, Write
from ._workers import DefinitionRow, Share, Shared, WorkerRow


class SQLStore(ABC):
    """The writes of ``Store``."""

    async def start(self, start: Start, /) -> Started:
        check_start(start)
        started: Started = await self._write(start)
        return started

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        claimed: Claimed = await self._write(request)
        return claimed

    async def commit(self, commit: Commit, /) -> None:
        check_commit(commit)
        await self._write(commit)

    async def release(self, releases: Sequence[Release], /) -> None:
        if releases:
            await self._write(Releases(releases))

    async def deliver(self, signal: Signal, /) -> Delivered:
        check_signal(signal)
        delivered: Delivered = await self._write(signal)
        return delivered

    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        now: Micros = await self._write(Beat(worker, definitions))
        return now

    async def share(self, request: Share, /) -> Shared:
        check_share(request)
        shared: Shared = await self._write(request)
        return shared

    async def upload(self, artifact: ArtifactRow, /) -> None:
        check_artifact(artifact)
        await self._write(artifact)

    async def remember(self, write: Remember, /) -> MemoryRow:
        check_remember(write)
        row: MemoryRow = await self._write(write)
        return row

    async def expire(self, request: Expire, /) -> Expired:
        check_expire(request)
        expired: Expired = await self._write(request)
        return expired

    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        check_restore(rows)
        if rows:
            await self._write(Restore(rows))

    @abstractmethod
    def _write(self, write: Write) -> Awaitable[Any]:
        """Land it, and give its answer. ``StoreUnavailable`` where the store is closed or only read."""
