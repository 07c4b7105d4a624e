"""Failures that people met with systems like this one, tried here: artifacts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure.artifacts import ArtifactBackend, FileArtifacts, MemoryArtifacts, NoSuchBlob
from perdure.artifacts._common import CHUNK
from perdure.machines import ArtifactRef
from perdure.runtime._env import Env
from perdure.runtime._uploads import Uploads
from perdure.stores import Artifacts, MemoryStore

pytestmark = pytest.mark.anyio

CRAFTED = ("../../x", "/etc/x", "C:\\x", "%2e%2e/x", "a#/../x", "..", ".", "~", "con", "x\u202ey")


def backend_of(kind: str, folder: Path) -> ArtifactBackend:
    return MemoryArtifacts() if kind == "memory" else FileArtifacts(folder / "artifacts")


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def records(store: MemoryStore, workspace: str = "default") -> int:
    return len((await store.page(Artifacts(workspace=workspace))).rows)


@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_an_empty_file_and_sizes_around_a_part_are_stored_whole(kind: str, tmp_path: Path) -> None:
    """aioboto3#229, boto#3536: an empty file failed as a multipart upload."""
    store = MemoryStore()
    async with backend_of(kind, tmp_path) as backend:
        uploads = Uploads(store, backend, Env())
        for size in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1):
            data = bytes(range(256)) * (size // 256 + 1)
            data = data[:size]
            for given in (data, in_pieces(data, 100_000), in_pieces(data, CHUNK)):
                ref = await uploads.put(given, media_type="text/plain")
                assert (ref.size_bytes, ref.sha256) == (size, hashlib.sha256(data).hexdigest())
                assert await uploads.get(ref) == data


@pytest.mark.parametrize("kind", ["memory", "files"])
@pytest.mark.parametrize("how", ["raises", "is cancelled"])
async def test_a_put_that_breaks_half_way_leaves_nothing(kind: str, how: str, tmp_path: Path) -> None:
    """PyFilesystem/s3fs#95, aioboto3#209, smart_open#381: a short file was published, or parts stayed."""
    store, data = MemoryStore(), b"x" * (3 * CHUNK)
    reached = asyncio.Event()

    async def broken() -> AsyncIterator[bytes]:
        yield data[: 60 * len(data) // 100]
        reached.set()
        if how == "raises":
            raise OSError("the source broke")
        await asyncio.Event().wait()

    async with backend_of(kind, tmp_path) as backend:
        uploads = Uploads(store, backend, Env())
        task = asyncio.create_task(uploads.put(broken(), media_type="text/plain"))
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
        if kind == "files":
            assert await asyncio.to_thread(lambda: list((tmp_path / "artifacts/staging").iterdir())) == []


class Fails:
    """A backend whose last call, which makes the blob visible, fails."""

    def __init__(self, inner: ArtifactBackend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, workspace: str, chunks: Any, /) -> Any:
        staged = await self._inner.put(workspace, chunks)

        async def publish() -> None:
            raise OSError("the completing call returned an error")

        staged.publish = publish  # type: ignore[method-assign]
        return staged


async def test_where_the_completing_call_fails_the_error_is_raised_and_nothing_is_readable() -> None:
    store = MemoryStore()
    async with MemoryArtifacts() as backend:
        failing: Any = Fails(backend)
        with pytest.raises(OSError, match="the completing call"):
            await Uploads(store, failing, Env()).put(b"data", media_type="text/plain")
        assert (await backend.list()).blobs == ()
        ref = await Uploads(store, backend, Env()).put(b"data", media_type="text/plain")
        assert await Uploads(store, backend, Env()).get(ref) == b"data"


async def test_crafted_names_are_plain_labels_or_refused_and_touch_nothing_outside(tmp_path: Path) -> None:
    """mlflow CVE-2024-1483, #19260, #18964: crafted paths read or wrote outside of the artifact folder."""
    inside, store = tmp_path / "root", MemoryStore()
    await asyncio.to_thread(inside.mkdir)
    (secret,) = [tmp_path / "x"]
    await asyncio.to_thread(secret.write_bytes, b"secret")
    async with FileArtifacts(inside / "artifacts") as backend:
        uploads = Uploads(store, backend, Env())
        for name in CRAFTED:
            ref = await uploads.put(name.encode(), media_type=name, workspace=name)
            assert await uploads.get(ref, workspace=name) == name.encode()
            assert await records(store, name) == 1
        for name in (*CRAFTED, str(secret)):
            crafted = ArtifactRef(id=name, sha256=name, media_type=name, size_bytes=6)
            with pytest.raises(NoSuchBlob):
                await uploads.get(crafted)
        listed = {blob.workspace for blob in (await backend.list(limit=100)).blobs}
    assert listed == set(CRAFTED)

    def outside() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir()) + sorted(p.name for p in inside.iterdir())

    assert await asyncio.to_thread(outside) == ["root", "x", "artifacts"]
    assert await asyncio.to_thread(secret.read_bytes) == b"secret"
