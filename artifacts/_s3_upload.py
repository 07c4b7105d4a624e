"""Bytes on their way into S3: staged in memory or under a key of their own, then published as a copy."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import AsyncIterable
from typing import Any

from anyio import to_thread

from ._backend import ArtifactError
from ._s3_service import Service

PART = 8 << 20
"""Bytes of an upload's part, and the most that a blob has which is kept in memory until it is published."""
EVEN_PARTS = 1000
"""Parts of that size; some services take no others. Each one behind them is a little longer than the last,"""
GROWTH = 1400
"""by this fraction of what went since: so 10,000 parts, the most there are, hold 6 TB."""
MOST_BYTES = 5 << 40
"""The largest blob."""
COPIED_AT_ONCE = 1 << 30
"""Bytes that the service copies in one call; S3's own limit is 5 GB, which takes it minutes."""


def part_size(sent: int) -> int:
    """How long the next part is after that many bytes."""
    return PART + max(0, sent - EVEN_PARTS * PART) // GROWTH


class Upload:
    """A multipart upload of one key: nothing of it is seen before ``finish``."""

    def __init__(self, service: Service, key: str) -> None:
        self._service = service
        self._key = key
        self._id = ""
        self._parts: list[dict[str, Any]] = []

    async def begin(self, **asked: str) -> None:
        encryption = self._service.place.encryption
        begun = await self._service.call("create_multipart_upload", Key=self._key, **encryption, **asked)
        self._id = begun["UploadId"]

    async def send(self, body: io.BytesIO, checksum: str) -> None:
        sent = await self._service.call("upload_part", Body=body, ChecksumSHA256=checksum, **self._next())
        self._parts.append(
            {"PartNumber": len(self._parts) + 1, "ETag": sent["ETag"], "ChecksumSHA256": checksum}
        )

    async def copy(self, source: str, start: int, stop: int) -> None:
        whence = {"Bucket": self._service.place.bucket, "Key": source}
        copied = await self._service.call(
            "upload_part_copy", CopySource=whence, CopySourceRange=f"bytes={start}-{stop - 1}", **self._next()
        )
        self._parts.append({"PartNumber": len(self._parts) + 1, "ETag": copied["CopyPartResult"]["ETag"]})

    async def finish(self) -> None:
        await self._service.call(
            "complete_multipart_upload",
            Key=self._key,
            UploadId=self._id,
            MultipartUpload={"Parts": self._parts},
        )

    def _next(self) -> dict[str, Any]:
        return {"Key": self._key, "UploadId": self._id, "PartNumber": len(self._parts) + 1}


class Staging:
    """The bytes of one put: up to ``PART`` of them in memory, more in an object under a staging key."""

    def __init__(self, service: Service, key: str) -> None:
        self._service = service
        self._key = key
        self._held = io.BytesIO()
        self._upload: Upload | None = None
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    async def fill(self, chunks: AsyncIterable[bytes]) -> None:
        async for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                room = part_size(self.size_bytes) - self._held.tell()
                if not room:
                    await self._send()
                    continue
                self._held.write(rest[:room])
                rest = rest[room:]
        if self._upload is None:
            await self._hash()
            return
        await self._send()
        await self._upload.finish()

    async def copy_to(self, key: str) -> None:
        """Store the bytes, whole, under another key."""
        if self._upload is None:
            checksum = base64.b64encode(self._digest.digest()).decode()
            encryption = self._service.place.encryption
            self._held.seek(0)
            await self._service.call(
                "put_object", Key=key, Body=self._held, ChecksumSHA256=checksum, **encryption
            )
        elif self.size_bytes <= COPIED_AT_ONCE:
            whence = {"Bucket": self._service.place.bucket, "Key": self._key}
            encryption = self._service.place.encryption
            await self._service.call("copy_object", Key=key, CopySource=whence, **encryption)
        else:
            await self._copy_in_parts(key)

    async def discard(self) -> None:
        """Forget the bytes, whatever cancels the caller."""
        self._held = io.BytesIO()
        if self._upload is not None:
            await self._service.undo(self._remove)

    async def _hash(self) -> str:
        """Take what is held into the digest; gives its own checksum as S3 writes it."""
        self.size_bytes += self._held.tell()
        if self.size_bytes > MOST_BYTES:
            raise ArtifactError(f"a blob in {self._service.place} has at most {MOST_BYTES} bytes")
        return await to_thread.run_sync(_hashed, self._digest, self._held)

    async def _send(self) -> None:
        checksum = await self._hash()
        if self._upload is None:
            self._upload = Upload(self._service, self._key)
            await self._upload.begin(ChecksumAlgorithm="SHA256")
        self._held.seek(0)
        await self._upload.send(self._held, checksum)
        self._held = io.BytesIO()

    async def _copy_in_parts(self, key: str) -> None:
        upload = Upload(self._service, key)
        try:
            await upload.begin()
            for start in range(0, self.size_bytes, COPIED_AT_ONCE):
                await upload.copy(self._key, start, min(start + COPIED_AT_ONCE, self.size_bytes))
            await upload.finish()
        except BaseException:
            await self._service.undo(lambda: self._service.abort_uploads(key))
            raise

    async def _remove(self) -> None:
        # Found by its key, since a call may have broken off before it told the upload's name.
        await self._service.call("delete_object", Key=self._key)
        await self._service.abort_uploads(self._key)


# A hash object: the standard library has no public name for its type.
def _hashed(digest: Any, held: io.BytesIO) -> str:
    with held.getbuffer() as content:
        digest.update(content)
        return base64.b64encode(hashlib.sha256(content).digest()).decode()
