"""The artifact seam: blobs by (workspace, sha256). Hashing and provenance sit above it."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from types import TracebackType
from typing import Protocol

from attrs import frozen


class ArtifactError(Exception):
    """Base of everything that an artifact backend raises; driver errors never pass the seam."""


class NoSuchBlob(ArtifactError):
    """No blob of this digest is visible in this workspace."""


class BlobDamaged(ArtifactError):
    """What is stored under a digest does not have that digest. Putting the blob again mends it."""


class ArtifactsUnavailable(ArtifactError):
    """The backend cannot be reached, or is full; nothing became visible. The call may be made again."""


class BadArtifactsURL(ArtifactError):
    """The URL names no artifact backend that is known here, or one that cannot be opened."""


@frozen(kw_only=True)
class Blob:
    """One visible blob."""

    workspace: str
    sha256: str
    size_bytes: int
    modified: int
    """Microseconds since the Unix epoch at which it became visible, or was put again."""


@frozen(kw_only=True)
class BlobPage:
    """Some blobs in the order of (workspace, sha256), and the cursor that continues (None: no more).

    A page is as long as its limit unless it is the last one.
    """

    blobs: tuple[Blob, ...]
    next: str | None


class Staged(Protocol):
    """Bytes that are whole and durable, and not visible yet.

    Leaving its context discards what was not published.
    """

    @property
    def sha256(self) -> str:
        """The digest of the bytes, in 64 lower-case hex digits."""
        ...

    @property
    def size_bytes(self) -> int:
        """How many bytes were staged."""
        ...

    async def publish(self) -> None:
        """Make the blob visible, create-if-absent: afterwards a whole blob of this digest is there.

        Published twice is harmless, also by others at the same moment: nobody ever sees a part of it, and who
        reads it meanwhile reads on. Where the blob was deleted meanwhile, it is visible again. After its
        context was left: ``ArtifactError``.
        """
        ...

    async def __aenter__(self) -> Staged: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ArtifactBackend(Protocol):
    """Blobs addressed by (workspace, sha256): immutable, visible only when whole.

    Every method may raise ``ArtifactsUnavailable``. Workspaces are plain labels: whatever characters they
    hold, nothing outside the backend's root is touched, and two workspaces never share a blob. A digest is
    64 lower-case hex digits; any other string names no blob (``NoSuchBlob``, from ``delete`` too).
    """

    async def __aenter__(self) -> ArtifactBackend: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> Staged:
        """Stage a stream of unknown length with flat memory; its digest is computed on the way.

        Where the stream raises or the caller is cancelled, nothing is left behind.
        """
        ...

    def open(
        self, workspace: str, sha256: str, /, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Stream the bytes from ``start`` to before ``end``, both cut off at the blob's size.

        Read whole, they are verified: ``BlobDamaged`` is raised before the last chunk is handed out. A part
        is not verified. ``NoSuchBlob`` where there is none, ``ValueError`` for a range that begins below 0 or
        ends before it begins. All are raised at the first chunk, not at the call.
        """
        ...

    async def stat(self, workspace: str, sha256: str, /) -> Blob:
        """What is known of a blob; ``NoSuchBlob`` where there is none."""
        ...

    async def list(
        self, workspace: str | None = None, /, *, after: str | None = None, limit: int = 100
    ) -> BlobPage:
        """Visible blobs, ordered by (workspace, sha256), of one workspace or of all.

        ``after`` is the ``next`` of the page before, and ``limit`` lies between 1 and 1000; ``ValueError``
        for others.
        """
        ...

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        """Delete a blob unless it was put at or after that time; says whether it is gone now.

        The time is in microseconds since the Unix epoch. True where there was none. The look at the blob's
        time and the deletion are one: a blob that is published meanwhile stays.
        """
        ...
