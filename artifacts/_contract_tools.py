"""What the checks of the artifact contract are written with."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import (
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import contextmanager

from anyio import CancelScope, sleep_forever
from anyio.lowlevel import checkpoint

from ._backend import ArtifactBackend, Blob, NoSuchBlob


class StreamBroke(Exception):
    pass


def content_of(size: int) -> bytes:
    """Bytes without a period that a chunk could hide."""
    blocks = (hashlib.sha256(b"%d" % n).digest() for n in range(size // 32 + 1))
    return b"".join(blocks)[:size]


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def cut_up(content: bytes, length: int) -> Iterator[bytes]:
    return (content[at : at + length] for at in range(0, len(content), length))


async def stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await checkpoint()
        yield chunk


async def breaks(content: bytes, *, at: int) -> AsyncIterator[bytes]:
    for chunk in cut_up(content[:at], 1000 if at < 10_000 else 100_000):
        yield chunk
    raise StreamBroke


async def cancels(content: bytes, scope: CancelScope) -> AsyncIterator[bytes]:
    for chunk in cut_up(content, 100_000):
        yield chunk
    scope.cancel()
    await sleep_forever()


async def put_all(backend: ArtifactBackend, workspace: str, chunks: Iterable[bytes]) -> str:
    async with await backend.put(workspace, stream(chunks)) as staged:
        await staged.publish()
        return staged.sha256


async def read_back(
    backend: ArtifactBackend, workspace: str, sha256: str, *, start: int = 0, end: int | None = None
) -> bytes:
    return b"".join([chunk async for chunk in backend.open(workspace, sha256, start=start, end=end)])


async def all_pages(backend: ArtifactBackend, workspace: str | None, *, limit: int) -> list[Blob]:
    blobs: list[Blob] = []
    after: str | None = None
    while True:
        page = await backend.list(workspace, after=after, limit=limit)
        blobs += page.blobs
        if page.next is None:
            expect_true(len(page.blobs) > 0 or after is None, "a last page that is empty follows none")
            return blobs
        expect_equal(len(page.blobs), limit, "blobs on a page that is not the last")
        expect_true(page.next != after, "a cursor moves on")
        after = page.next


async def expect_absent(backend: ArtifactBackend, workspace: str, sha256: str) -> None:
    with raises(NoSuchBlob, f"stat of {sha256}, which must not be visible"):
        await backend.stat(workspace, sha256)
    with raises(NoSuchBlob, f"read of {sha256}, which must not be visible"):
        await read_back(backend, workspace, sha256)
    listed = [blob.sha256 for blob in await all_pages(backend, workspace, limit=100)]
    expect_true(sha256 not in listed, f"{sha256}, which must not be visible, is not listed")


@contextmanager
def raises(kind: type[BaseException], what: str) -> Generator[None]:
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{what}: {kind.__name__} was not raised")


@contextmanager
def traced_peak() -> Generator[list[int]]:
    """The most memory that was taken beyond what was held before, in the one item of the list, afterwards."""
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    peak = [0]
    try:
        yield peak
        peak[0] = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()


def expect_true(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"does not hold: {what}")


def expect_equal(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, expected {expected!r}")


def expect_same(found: bytes, expected: bytes, what: str) -> None:
    """Equal bytes; a message names their lengths, since megabytes do not fit into it."""
    if found != expected:
        raise AssertionError(f"{what}: {len(found)} other bytes than the {len(expected)} expected")
