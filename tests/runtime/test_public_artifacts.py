"""Failures that people met with systems like this one, tried here: artifacts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.blobs import a_broken_put_leaves_nothing, crafted_names_are_labels, sizes_are_stored_whole

from perdure.artifacts import ArtifactBackend, FileArtifacts, MemoryArtifacts
from perdure.artifacts._common import CHUNK
from perdure.runtime._env import Env
from perdure.runtime._uploads import Uploads
from perdure.stores import MemoryStore

pytestmark = pytest.mark.anyio


def backend_of(kind: str, folder: Path) -> ArtifactBackend:
    return MemoryArtifacts() if kind == "memory" else FileArtifacts(folder / "artifacts")


@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_an_empty_file_and_sizes_around_a_part_are_stored_whole(kind: str, tmp_path: Path) -> None:
    async with backend_of(kind, tmp_path) as backend:
        await sizes_are_stored_whole(backend, (0, 1, CHUNK - 1, CHUNK, CHUNK + 1))


@pytest.mark.parametrize("kind", ["memory", "files"])
@pytest.mark.parametrize("how", ["raises", "is cancelled"])
async def test_a_put_that_breaks_half_way_leaves_nothing(kind: str, how: str, tmp_path: Path) -> None:
    async with backend_of(kind, tmp_path) as backend:
        await a_broken_put_leaves_nothing(backend, how, 3 * CHUNK)
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
    inside, secret = tmp_path / "root", tmp_path / "x"
    await asyncio.to_thread(inside.mkdir)
    await asyncio.to_thread(secret.write_bytes, b"secret")
    async with FileArtifacts(inside / "artifacts") as backend:
        await crafted_names_are_labels(backend, str(secret))

    def outside() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir()) + sorted(p.name for p in inside.iterdir())

    assert await asyncio.to_thread(outside) == ["root", "x", "artifacts"]
    assert await asyncio.to_thread(secret.read_bytes) == b"secret"
