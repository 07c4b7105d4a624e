"""Artifacts as files: the blocking work of ``_tree`` done in worker threads, in large pieces."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import TypeVar, TypeVarTuple

from anyio import CancelScope, to_thread

from . import _disk
from ._backend import ArtifactError, ArtifactsUnavailable, BadArtifactsURL, Blob, BlobDamaged, BlobPage
from ._common import CHUNK, check_digest, check_limit, check_range, cursor_of, place_of, system_clock
from ._tree import Tree

T = TypeVar("T")
Args = TypeVarTuple("Args")


class FileArtifacts:
    """Blobs as files below a folder, which is made where it is missing; several processes may share it.

    What is published survives a power cut: files and folders are synced before ``publish`` returns. No link
    inside the folder is followed. A put that a dead process left behind is removed when the folder is opened:
    a staging file that nobody holds a lock on and nobody wrote to for a minute (a living writer holds one).
    The file system must know locks and hard links.

    ``clock`` gives microseconds since the Unix epoch.
    """

    def __init__(self, root: str | os.PathLike[str], *, clock: Callable[[], int] = system_clock) -> None:
        # Absolute from the start: the process may change its folder later.
        self._tree = Tree(root=os.path.abspath(root), clock=clock)
        self._open = False

    async def __aenter__(self) -> FileArtifacts:
        try:
            await to_thread.run_sync(self._tree.prepare)
        except (OSError, ValueError) as error:
            raise BadArtifactsURL(
                f"cannot open the artifacts folder {self._tree.root!r}: {_reason(error)}; "
                "name a folder in which this process may make files"
            ) from error
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> FileStaged:
        staged = FileStaged(self._opened(), workspace)
        try:
            await staged.fill(chunks)
        except BaseException:
            await staged.discard()
            raise
        return staged

    async def open(
        self, workspace: str, sha256: str, /, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        check_range(start, end)
        check_digest(workspace, sha256)
        tree = self._opened()
        reading = _Reading(tree, workspace, sha256, start, end)
        try:
            while not reading.ended:
                if chunk := await _off_loop(tree, reading.next_chunk):
                    yield chunk
        finally:
            reading.close()

    async def stat(self, workspace: str, sha256: str, /) -> Blob:
        check_digest(workspace, sha256)
        tree = self._opened()
        return await _off_loop(tree, tree.stat, workspace, sha256)

    async def list(
        self, workspace: str | None = None, /, *, after: str | None = None, limit: int = 100
    ) -> BlobPage:
        check_limit(limit)
        place = place_of(after)
        tree = self._opened()
        found = await _off_loop(tree, lambda: tuple(islice(tree.walk(workspace, place), limit + 1)))
        more = len(found) > limit
        last = found[limit - 1] if more else None
        return BlobPage(blobs=found[:limit], next=cursor_of(last.workspace, last.sha256) if last else None)

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        check_digest(workspace, sha256)
        tree = self._opened()
        return await _off_loop(tree, tree.delete, workspace, sha256, unless_modified_since)

    def _opened(self) -> Tree:
        if not self._open:
            raise ArtifactError(f"the artifacts folder {self._tree.root!r} is not open: use `async with`")
        return self._tree


class FileStaged:
    """A staging file, locked for as long as it is open to tell others that its writer lives.

    The methods that block run in worker threads, and a cancelled task does not stop its thread. So each takes
    the lock, and none goes on after ``discard``: a descriptor is never used after it was closed.
    """

    def __init__(self, tree: Tree, workspace: str) -> None:
        self._tree = tree
        self._workspace = workspace
        self._name = uuid.uuid4().hex
        self._alone = threading.Lock()
        self._fd: int | None = None
        self._discarded = False
        self._digest = hashlib.sha256()
        self._size_bytes = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def fill(self, chunks: AsyncIterable[bytes]) -> None:
        """Write the stream, gathering small chunks, and sync it."""
        gathered = bytearray()
        async for chunk in chunks:
            if len(chunk) >= CHUNK:
                await _off_loop(self._tree, self._append, gathered, chunk)
                gathered = bytearray()
                continue
            gathered += chunk
            if len(gathered) >= CHUNK:
                await _off_loop(self._tree, self._append, gathered)
                gathered = bytearray()
        await _off_loop(self._tree, self._finish, gathered)

    async def publish(self) -> None:
        await _off_loop(self._tree, self._publish)

    async def discard(self) -> None:
        """Close and remove the staging file, whatever cancels the caller."""
        try:
            with CancelScope(shield=True):
                await to_thread.run_sync(self._discard)
        except BaseException:
            # asyncio's own cancel goes through the shield, and may take the work from its thread.
            threading.Thread(target=self._discard).start()
            raise

    async def __aenter__(self) -> FileStaged:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.discard()

    def _opened(self) -> int:
        if self._discarded:
            raise ArtifactError(f"staged blob {self.sha256} was discarded: put the bytes again")
        if self._fd is None:
            with self._tree.staging() as staging:
                self._fd = _disk.create(self._name, staging)
            _disk.claim(self._fd)
        return self._fd

    def _append(self, *pieces: bytes | bytearray) -> None:
        with self._alone:
            fd = self._opened()
            for piece in pieces:
                _disk.write_all(fd, piece)
                self._digest.update(piece)
                self._size_bytes += len(piece)

    def _finish(self, piece: bytearray) -> None:
        self._append(piece)
        with self._alone:
            _disk.sync(self._opened())

    def _publish(self) -> None:
        with self._alone:
            self._tree.publish(self._name, self._opened(), self._workspace, self.sha256)

    def _discard(self) -> None:
        with self._alone:
            self._discarded = True
            if self._fd is None:
                return
            os.close(self._fd)
            self._fd = None
            # What cannot be removed now goes when the folder is opened the next time.
            with suppress(OSError), self._tree.staging() as staging:
                os.unlink(self._name, dir_fd=staging)


class _Reading:
    """One pass over the bytes of a blob, verified where it is over all of them."""

    def __init__(self, tree: Tree, workspace: str, sha256: str, start: int, end: int | None) -> None:
        self._tree = tree
        self._workspace = workspace
        self._sha256 = sha256
        self._start = self._next = start
        self._end = end
        self._alone = threading.Lock()
        self._fd: int | None = None
        self._closed = False
        self._digest = hashlib.sha256()
        self.ended = False

    def next_chunk(self) -> bytes:
        """Empty where there are no more. A late call, after ``close``, reads nothing that anybody sees."""
        fd = self._opened()
        size = os.fstat(fd).st_size
        stop = size if self._end is None else min(self._end, size)
        chunk = _disk.read_exactly(fd, max(0, min(CHUNK, stop - self._next)), self._next)
        self._next += len(chunk)
        self.ended = not chunk or self._next >= stop
        if self._start == 0 and stop == size:
            self._verify(chunk)
        return chunk

    def _verify(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        if self.ended and self._digest.hexdigest() != self._sha256:
            of = f"{self._sha256} of workspace {self._workspace!r}"
            raise BlobDamaged(f"blob {of} does not have its digest: put it again")

    def close(self) -> None:
        with self._alone:
            self._closed = True
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _opened(self) -> int:
        if self._fd is None:
            fd = self._tree.open(self._workspace, self._sha256)
            with self._alone:
                if self._closed:
                    os.close(fd)
                    raise ArtifactError("the reader of this blob has gone")
                self._fd = fd
        return self._fd


async def _off_loop(tree: Tree, work: Callable[[*Args], T], *args: *Args) -> T:
    try:
        return await to_thread.run_sync(work, *args)
    except OSError as error:
        raise ArtifactsUnavailable(f"artifacts folder {tree.root!r}: {_reason(error)}") from error


def _reason(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    at = f" ({error.filename!r})" if error.filename is not None else ""
    return f"{error.strerror}{at}"
