"""Artifacts in a bucket of S3, or of a service that speaks its language."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from datetime import timedelta
from types import TracebackType

from anyio import to_thread

from ._backend import ArtifactError, ArtifactsUnavailable, BadArtifactsURL, Blob, BlobDamaged, BlobPage
from ._common import check_limit, check_range, cursor_of, place_of, system_clock
from ._s3_bucket import LONGEST_LINK, Bucket, blob_of
from ._s3_keys import Copy, Keys, folder_of
from ._s3_place import Place
from ._s3_service import RESUMES, Changed, Gone, Service
from ._s3_upload import Staging

RANGE = 4 << 20
"""Bytes that a reader asks for at once and hands out as one chunk. No connection waits for whoever reads."""


class S3Artifacts:
    """Blobs as objects in a bucket, which is there already; processes on many machines may share it.

    ``S3Artifacts("bucket", "prefix")`` is Amazon's S3; ``endpoint``, as in ``https://host:port``, names
    another service, and ``addressing`` whether the bucket stands in the path or in the name of the host
    (``path``, ``virtual``, ``auto``). ``sse`` and ``kms_key`` say how objects are encrypted where they lie:
    ``AES256``, ``aws:kms`` or ``aws:kms:dsse``. Credentials, and the region where none is given, are found as
    in every program of Amazon's: environment, profile, role of the machine. What no service would take is
    ``BadArtifactsURL``.

    What is published stays, by what the service promises of an object that it has confirmed. Each upload
    carries its SHA-256 for the service to check. A blob up to 8 MB is kept in memory until it is published. A
    longer one is uploaded in parts of 8 MB, from 8 GB on of longer ones, since there may be 10,000: at 100 GB
    they are of 75 MB, and one is held in memory at a time. Publishing copies it within the service. At most 5
    TB.

    Each publish stores a copy under a key of its own. So a deletion, which deletes the copies that it has
    seen, never hits one that was published meanwhile, and the service need not know conditional requests: it
    must list what was written before, as Amazon's does. An older copy is kept for as long as a link to it may
    be good, and is deleted when the blob is published again or deleted.

    Bytes that a dead process left are removed when the bucket is opened, once they are a week old.

    ``clock`` gives microseconds since the Unix epoch and stamps what is published. Where several machines
    publish, their clocks decide: what they differ by belongs into the grace of a collection. Labels of more
    than 128 bytes that begin with the same 128 are listed in an order of their own.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        addressing: str = "auto",
        sse: str | None = None,
        kms_key: str | None = None,
        clock: Callable[[], int] = system_clock,
    ) -> None:
        place = Place(
            bucket=bucket,
            prefix=prefix,
            endpoint=endpoint,
            region=region,
            addressing=addressing,
            sse=sse,
            kms_key=kms_key,
        )
        place.check()
        self._service = Service(place)
        self._bucket = Bucket(service=self._service, keys=Keys(root=place.root), clock=clock)

    async def __aenter__(self) -> S3Artifacts:
        await self._service.connect()
        try:
            await self._bucket.clear_staging()
        except BaseException as error:
            await self._service.close()
            if isinstance(error, ArtifactError) and not isinstance(error, ArtifactsUnavailable):
                raise BadArtifactsURL(str(error)) from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._service.close()

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> S3Staged:
        self._service.check_open()
        staging = Staging(self._service, self._bucket.keys.new_staging())
        try:
            await staging.fill(chunks)
        except BaseException:
            await staging.discard()
            raise
        return S3Staged(self._bucket, workspace, staging)

    async def open(
        self, workspace: str, sha256: str, /, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        check_range(start, end)
        copy = await self._bucket.newest(workspace, sha256)
        stop = copy.size_bytes if end is None else min(end, copy.size_bytes)
        digest = hashlib.sha256() if (start, stop) == (0, copy.size_bytes) else None
        reading = _Reading(self._bucket, workspace, copy)
        at = start
        while at < stop or (digest is not None and not copy.size_bytes):
            chunk = await reading.read(at, min(at + RANGE, stop))
            at += len(chunk)
            if digest is not None:
                await to_thread.run_sync(digest.update, chunk)
                if at >= stop and digest.hexdigest() != sha256:
                    raise _damaged(workspace, sha256)
            if not chunk:
                return
            yield chunk

    async def stat(self, workspace: str, sha256: str, /) -> Blob:
        return blob_of(workspace, await self._bucket.newest(workspace, sha256))

    async def list(
        self, workspace: str | None = None, /, *, after: str | None = None, limit: int = 100
    ) -> BlobPage:
        check_limit(limit)
        place = place_of(after)
        behind = "" if after is None else self._bucket.keys.behind(folder_of(place[0]), place[1])
        blobs: list[Blob] = []
        async with aclosing(self._bucket.walk(workspace, behind, limit + 1)) as walk:
            async for blob in walk:
                if len(blobs) == limit:
                    last = blobs[-1]
                    return BlobPage(blobs=tuple(blobs), next=cursor_of(last.workspace, last.sha256))
                blobs.append(blob)
        return BlobPage(blobs=tuple(blobs), next=None)

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        return await self._bucket.delete(workspace, sha256, unless_modified_since)

    async def presign(self, workspace: str, sha256: str, /, *, expires: timedelta) -> str:
        """An address from which anybody who has it can fetch the blob, as a download, for that long.

        At most seven days, ``ValueError`` for others; made with credentials that end earlier, it ends with
        them. It is good until then unless the blob is deleted. ``NoSuchBlob`` where there is none. The
        address is a secret, and nobody verifies what is fetched from it.
        """
        if not timedelta(seconds=1) <= expires <= LONGEST_LINK:
            raise ValueError(f"expires={expires}: a link is good for between one second and {LONGEST_LINK}")
        copy = await self._bucket.newest(workspace, sha256)
        return await self._service.link(copy.key, int(expires.total_seconds()))


class S3Staged:
    """The bytes of one put, and where they are to be published."""

    def __init__(self, bucket: Bucket, workspace: str, staging: Staging) -> None:
        self._bucket = bucket
        self._workspace = workspace
        self._staging = staging
        self._discarded = False

    @property
    def sha256(self) -> str:
        return self._staging.sha256

    @property
    def size_bytes(self) -> int:
        return self._staging.size_bytes

    async def publish(self) -> None:
        if self._discarded:
            raise ArtifactError(f"staged blob {self.sha256} was discarded: put the bytes again")
        await self._bucket.publish(self._workspace, self._staging)

    async def __aenter__(self) -> S3Staged:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._discarded = True
        await self._staging.discard()


class _Reading:
    """The bytes of a blob, range by range, from its newest copy for as long as that is there."""

    def __init__(self, bucket: Bucket, workspace: str, copy: Copy) -> None:
        self._bucket = bucket
        self._workspace = workspace
        self._copy = copy
        self._etag: str | None = None

    async def read(self, start: int, stop: int) -> bytes:
        for _ in range(RESUMES):
            copy = self._copy
            try:
                chunk, self._etag = await self._bucket.service.read(copy.key, start, stop, self._etag)
            except Changed as error:
                raise _damaged(self._workspace, copy.sha256) from error
            except Gone:
                self._copy, self._etag = await self._bucket.newest(self._workspace, copy.sha256), None
                if self._copy.size_bytes != copy.size_bytes:
                    raise _damaged(self._workspace, copy.sha256) from None
            else:
                return chunk
        raise ArtifactsUnavailable(
            f"blob {self._copy.sha256} of workspace {self._workspace!r} is published and deleted all the time"
            ": read it again later"
        )


def _damaged(workspace: str, sha256: str) -> BlobDamaged:
    return BlobDamaged(f"blob {sha256} of workspace {workspace!r} does not have its digest: put it again")
