"""Failures that people met with artifacts in other systems, as any backend is put through them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

import pytest

from perdure.artifacts import ArtifactBackend, NoSuchBlob
from perdure.artifacts._common import CHUNK
from perdure.machines import ArtifactRef
from perdure.runtime._collect import collect
from perdure.runtime._env import Env
from perdure.runtime._uploads import Uploads
from perdure.stores import Artifacts, MemoryStore, Store

CRAFTED = ("../../x", "/etc/x", "C:\\x", "%2e%2e/x", "a#/../x", "..", ".", "~", "con", "x\u202ey")


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def records(store: MemoryStore, workspace: str = "default") -> int:
    return len((await store.page(Artifacts(workspace=workspace))).rows)


async def sizes_are_stored_whole(backend: ArtifactBackend, sizes: Iterable[int]) -> None:
    """aioboto3#229, boto#3536: an empty file failed as a multipart upload."""
    uploads = Uploads(MemoryStore(), backend, Env())
    for size in sizes:
        data = (bytes(range(256)) * (size // 256 + 1))[:size]
        for given in (data, in_pieces(data, 100_000), in_pieces(data, CHUNK)):
            ref = await uploads.put(given, media_type="text/plain")
            assert (ref.size_bytes, ref.sha256) == (size, hashlib.sha256(data).hexdigest())
            assert await uploads.get(ref) == data


async def a_broken_put_leaves_nothing(backend: ArtifactBackend, how: str, size: int) -> None:
    """PyFilesystem/s3fs#95, aioboto3#209, smart_open#381: a short file was published, or parts stayed."""
    store, data = MemoryStore(), b"x" * size
    reached = asyncio.Event()

    async def broken() -> AsyncIterator[bytes]:
        yield data[: 60 * len(data) // 100]
        reached.set()
        if how == "raises":
            raise OSError("the source broke")
        await asyncio.Event().wait()

    task = asyncio.create_task(Uploads(store, backend, Env()).put(broken(), media_type="text/plain"))
    await reached.wait()
    if how == "is cancelled":
        task.cancel()
    with pytest.raises((OSError, asyncio.CancelledError)):
        await task
    assert await records(store) == 0
    assert (await backend.list()).blobs == ()
    for part in (data, data[: 60 * len(data) // 100]):
        with pytest.raises(NoSuchBlob):
            await backend.stat("default", hashlib.sha256(part).hexdigest())


async def crafted_names_are_labels(backend: ArtifactBackend, *others: str) -> None:
    """mlflow CVE-2024-1483, #19260, #18964: crafted paths read or wrote outside of the artifact folder."""
    store = MemoryStore()
    uploads = Uploads(store, backend, Env())
    for name in CRAFTED:
        ref = await uploads.put(name.encode(), media_type=name, workspace=name)
        assert await uploads.get(ref, workspace=name) == name.encode()
        assert await records(store, name) == 1
    for name in (*CRAFTED, *others):
        crafted = ArtifactRef(id=name, sha256=name, media_type=name, size_bytes=6)
        with pytest.raises(NoSuchBlob):
            await uploads.get(crafted)
    assert {blob.workspace for blob in (await backend.list(limit=100)).blobs} == set(CRAFTED)


async def orphan(backend: ArtifactBackend, text: str, workspace: str = "w") -> None:
    """A blob that no record names."""
    async with await backend.put(workspace, in_pieces(text.encode(), CHUNK)) as staged:
        await staged.publish()


async def no_upload_is_lost_to_a_collection(store: Store, backend: ArtifactBackend, count: int) -> None:
    """quay#6318: a collection removed a blob between its upload and the record that names it.

    Each upload finds its bytes there already, held by nobody.
    """
    env = Env()
    uploads = Uploads(store, backend, env)

    async def forever() -> None:
        while True:
            await collect(store, backend, env.now, grace=timedelta(0))

    collecting = asyncio.create_task(forever())
    refs: list[ArtifactRef] = []
    for n in range(count):
        await orphan(backend, str(n))
        refs.append(await uploads.put(str(n).encode(), media_type="text/plain", workspace="w"))
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    for ref in refs:
        assert len(await uploads.get(ref, workspace="w")) == ref.size_bytes
