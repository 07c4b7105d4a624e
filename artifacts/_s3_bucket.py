"""The blobs of a bucket: their copies looked up, listed, published, deleted."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise

from attrs import frozen

from ._backend import ArtifactError, Blob
from ._common import check_digest, no_such_blob
from ._s3_keys import Copy, Keys, folder_of, is_cut, label_of
from ._s3_service import Service
from ._s3_upload import Staging

LONGEST_LINK = timedelta(days=7)
"""How long a link may be good for; S3 signs none for longer. So long is an older copy kept."""
STAGING_GRACE = timedelta(days=7)
"""How long staged bytes are left alone: nothing tells whether the process lives that put them."""

_MICROSECOND = timedelta(microseconds=1)


@frozen(kw_only=True)
class Bucket:
    """What lies below one prefix, and the clock that stamps it (microseconds since the Unix epoch)."""

    service: Service
    keys: Keys
    clock: Callable[[], int]

    async def publish(self, workspace: str, staging: Staging) -> None:
        folder = folder_of(workspace)
        if is_cut(folder):
            label = io.BytesIO(workspace.encode("utf-8", "surrogatepass"))
            encryption = self.service.place.encryption
            await self.service.call("put_object", Key=self.keys.label(folder), Body=label, **encryption)
        now = self.clock()
        await staging.copy_to(self.keys.new_copy(folder, staging.sha256, now))
        with suppress(ArtifactError):  # the blob is published, and the next time does it
            copies = await self._copies(workspace, staging.sha256)
            for older, newer in pairwise(copies):
                if newer.modified < now - LONGEST_LINK // _MICROSECOND:
                    await self.service.call("delete_object", Key=older.key)

    async def delete(self, workspace: str, sha256: str, unless_modified_since: int) -> bool:
        copies = await self._copies(workspace, sha256)
        if copies and copies[-1].modified >= unless_modified_since:
            return False
        for copy in copies:  # the oldest first: the blob never seems older than it is
            await self.service.call("delete_object", Key=copy.key)
        return True

    async def newest(self, workspace: str, sha256: str) -> Copy:
        copies = await self._copies(workspace, sha256)
        if not copies:
            raise no_such_blob(workspace, sha256)
        return copies[-1]

    async def _copies(self, workspace: str, sha256: str) -> tuple[Copy, ...]:
        """A blob's copies, the newest last."""
        check_digest(workspace, sha256)
        prefix = self.keys.copies(folder_of(workspace), sha256)
        found = [self.keys.copy_of(each.key, each.size_bytes) async for each in self.service.objects(prefix)]
        return tuple(copy for copy in found if copy is not None)

    async def walk(self, workspace: str | None, behind: str, page: int) -> AsyncGenerator[Blob, None]:
        prefix = self.keys.blobs(None if workspace is None else folder_of(workspace))
        labels: dict[str, str] = {}
        last: Copy | None = None
        async for found in self.service.objects(prefix, after=behind, page=min(page, 1000)):
            copy = self.keys.copy_of(found.key, found.size_bytes)
            if copy is None:
                continue
            if last is not None and (last.folder, last.sha256) != (copy.folder, copy.sha256):
                yield blob_of(await self._label(last.folder, labels), last)
            last = copy
        if last is not None:
            yield blob_of(await self._label(last.folder, labels), last)

    async def _label(self, folder: str, known: dict[str, str]) -> str:
        if folder not in known:
            label = await self._read_label(folder) if is_cut(folder) else label_of(folder)
            if label is None or folder_of(label) != folder:
                raise ArtifactError(
                    f"{self.keys.label(folder)} in {self.service.place} is missing or not the label of that "
                    "folder: put it back"
                )
            known[folder] = label
        return known[folder]

    async def _read_label(self, folder: str) -> str | None:
        async for found in self.service.objects(self.keys.label(folder)):
            content, _ = await self.service.read(found.key, 0, found.size_bytes, None)
            return content.decode("utf-8", "surrogatepass")
        return None

    async def clear_staging(self) -> None:
        """Remove what is too old to be anybody's; its first call shows whether the bucket can be used."""
        before = self.clock() - STAGING_GRACE // _MICROSECOND
        async for found in self.service.objects(self.keys.staging):
            if found.modified < before:
                await self.service.call("delete_object", Key=found.key)
        await self.service.abort_uploads(self.keys.root, before=before)


def blob_of(workspace: str, copy: Copy) -> Blob:
    return Blob(workspace=workspace, sha256=copy.sha256, size_bytes=copy.size_bytes, modified=copy.modified)
