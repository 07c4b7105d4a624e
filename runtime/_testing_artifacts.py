"""A run's artifacts: what they do is what the memory backend does, with a boundary around each put."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from types import TracebackType

from perdure.artifacts import ArtifactBackend, Blob, BlobPage, Staged

At = Callable[[str], Awaitable[None]]


class WatchedArtifacts:
    """One process's way to the artifacts of a run."""

    def __init__(self, inner: ArtifactBackend, at: At) -> None:
        self._inner = inner
        self._at = at

    async def __aenter__(self) -> WatchedArtifacts:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> Staged:
        await self._at("before an artifact's bytes were put")
        return _Watched(await self._inner.put(workspace, chunks), self._at)

    def open(
        self, workspace: str, sha256: str, /, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        return self._inner.open(workspace, sha256, start=start, end=end)

    async def stat(self, workspace: str, sha256: str, /) -> Blob:
        return await self._inner.stat(workspace, sha256)

    async def list(
        self, workspace: str | None = None, /, *, after: str | None = None, limit: int = 100
    ) -> BlobPage:
        return await self._inner.list(workspace, after=after, limit=limit)

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        return await self._inner.delete(workspace, sha256, unless_modified_since=unless_modified_since)


class _Watched:
    def __init__(self, inner: Staged, at: At) -> None:
        self._inner = inner
        self._at = at

    @property
    def sha256(self) -> str:
        return self._inner.sha256

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    async def publish(self) -> None:
        await self._at("before an artifact's bytes were made visible")
        await self._inner.publish()
        await self._at("after an artifact's bytes were made visible")

    async def __aenter__(self) -> _Watched:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)
