"""Artifacts in memory: the readable model of the seam, and a backend for tests."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from types import TracebackType

from anyio.lowlevel import checkpoint
from attrs import frozen

from ._backend import ArtifactError, Blob, BlobDamaged, BlobPage
from ._common import (
    CHUNK,
    check_digest,
    check_limit,
    check_range,
    cursor_of,
    no_such_blob,
    place_of,
    system_clock,
)


@frozen(kw_only=True)
class _Held:
    content: bytes
    modified: int


class MemoryArtifacts:
    """Blobs held in this process's memory, gone with the object; entering it opens nothing.

    ``clock`` gives microseconds since the Unix epoch.
    """

    def __init__(self, *, clock: Callable[[], int] = system_clock) -> None:
        self._clock = clock
        self._blobs: dict[tuple[str, str], _Held] = {}

    async def __aenter__(self) -> MemoryArtifacts:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> MemoryStaged:
        content = bytearray()
        async for chunk in chunks:
            content += chunk
        return MemoryStaged(self._blobs, self._clock, workspace, bytes(content))

    async def open(
        self, workspace: str, sha256: str, /, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        check_range(start, end)
        content = self._held(workspace, sha256).content
        stop = len(content) if end is None else min(end, len(content))
        whole = (start, stop) == (0, len(content))
        for begin in range(start, max(stop, start + 1), CHUNK):
            await checkpoint()
            last = begin + CHUNK >= stop
            if whole and last and hashlib.sha256(content).hexdigest() != sha256:
                raise BlobDamaged(f"blob {sha256} of workspace {workspace!r} does not have its digest")
            if begin < stop:
                yield content[begin : min(begin + CHUNK, stop)]

    async def stat(self, workspace: str, sha256: str, /) -> Blob:
        await checkpoint()
        return _blob(workspace, sha256, self._held(workspace, sha256))

    async def list(
        self, workspace: str | None = None, /, *, after: str | None = None, limit: int = 100
    ) -> BlobPage:
        check_limit(limit)
        place = place_of(after)
        await checkpoint()
        found = sorted(at for at in self._blobs if at > place and workspace in (None, at[0]))
        page = tuple(_blob(*at, self._blobs[at]) for at in found[:limit])
        return BlobPage(blobs=page, next=cursor_of(*found[limit - 1]) if len(found) > limit else None)

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        check_digest(workspace, sha256)
        await checkpoint()
        held = self._blobs.get((workspace, sha256))
        if held is not None and held.modified >= unless_modified_since:
            return False
        self._blobs.pop((workspace, sha256), None)
        return True

    def _held(self, workspace: str, sha256: str) -> _Held:
        check_digest(workspace, sha256)
        held = self._blobs.get((workspace, sha256))
        if held is None:
            raise no_such_blob(workspace, sha256)
        return held


class MemoryStaged:
    """Bytes that were put and are not visible yet."""

    def __init__(
        self, blobs: dict[tuple[str, str], _Held], clock: Callable[[], int], workspace: str, content: bytes
    ) -> None:
        self._blobs = blobs
        self._clock = clock
        self._workspace = workspace
        self._content: bytes | None = content
        self._sha256 = hashlib.sha256(content).hexdigest()
        self._size_bytes = len(content)

    @property
    def sha256(self) -> str:
        return self._sha256

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def publish(self) -> None:
        await checkpoint()
        if self._content is None:
            raise ArtifactError(f"staged blob {self._sha256} was discarded: put the bytes again")
        self._blobs[self._workspace, self._sha256] = _Held(content=self._content, modified=self._clock())

    async def __aenter__(self) -> MemoryStaged:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._content = None


def _blob(workspace: str, sha256: str, held: _Held) -> Blob:
    return Blob(workspace=workspace, sha256=sha256, size_bytes=len(held.content), modified=held.modified)
