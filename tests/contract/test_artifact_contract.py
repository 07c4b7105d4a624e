"""Every artifact backend against every check of the contract; faulty ones against checks meant for them."""

# The mutants reach into what they spoil.
# pyright: reportPrivateUsage=false

import contextlib
import hashlib
import itertools
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from pathlib import Path

import attrs
import pytest
from anyio import CancelScope, to_thread
from anyio.lowlevel import checkpoint

from perdure.artifacts import (
    Blob,
    BlobDamaged,
    BlobPage,
    FileArtifacts,
    MemoryArtifacts,
    NoSuchBlob,
    contract,
)
from perdure.artifacts._files import FileStaged
from perdure.artifacts._memory import MemoryStaged, _Held
from perdure.artifacts.contract import (
    CHECKS,
    ArtifactKit,
    Check,
    NotApplicable,
    check_cancelled_put,
    check_crafted_digests,
    check_damage,
    check_delete,
    check_delete_meets_publish,
    check_flat_memory,
    check_invisible_until_published,
    check_paging,
    check_paging_meets_changes,
    check_publish_after_delete,
    check_publish_race,
    check_published_twice,
    check_ranges,
    check_stream_that_raises,
    check_workspaces,
)

pytestmark = pytest.mark.anyio


def ticking() -> Callable[[], int]:
    """A clock of which no two readings are equal."""
    return itertools.count(1_700_000_000_000_000).__next__


def _strays(folder: Path, root: Path) -> list[str]:
    """What lies in the folder and is neither the root, nor below its blobs."""
    own = {root.parent, root, root / "staging", root / "blobs"}
    found = (path for path in folder.rglob("*") if path not in own and root / "blobs" not in path.parents)
    return [str(path) for path in found]


def files_kit(folder: Path, backend: type[FileArtifacts] = FileArtifacts) -> ArtifactKit:
    root = folder / "deep" / "root"
    clock = ticking()

    async def leftovers() -> list[str]:
        return await to_thread.run_sync(_strays, folder, root)

    async def damage(workspace: str, sha256: str) -> None:
        [path] = root.rglob(sha256)
        changed = bytearray(path.read_bytes())
        changed[-1] ^= 1
        path.write_bytes(changed)

    return ArtifactKit(handle=lambda: backend(root, clock=clock), leftovers=leftovers, damage=damage)


def memory_kit(kind: type[MemoryArtifacts] = MemoryArtifacts) -> ArtifactKit:
    backend = kind(clock=ticking())

    async def nothing() -> list[str]:
        return []

    async def damage(workspace: str, sha256: str) -> None:
        held = backend._blobs[workspace, sha256]
        changed = held.content[:-1] + bytes([held.content[-1] ^ 1])
        backend._blobs[workspace, sha256] = attrs.evolve(held, content=changed)

    return ArtifactKit(handle=lambda: backend, leftovers=nothing, damage=damage, memory_bound=None)


KITS: dict[str, Callable[[Path], ArtifactKit]] = {
    "files": files_kit,
    "memory": lambda _: memory_kit(),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("backend", KITS)
async def test_contract(check: Check, backend: str, tmp_path: Path) -> None:
    if (backend, check) == ("memory", check_flat_memory):
        with pytest.raises(NotApplicable):
            await check(KITS[backend](tmp_path))
    else:
        await check(KITS[backend](tmp_path))


class Seen(MemoryArtifacts):
    """Makes the bytes visible when they are staged."""

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> MemoryStaged:
        staged = await super().put(workspace, chunks)
        await staged.publish()
        return staged


class KeepsParts(MemoryArtifacts):
    """Publishes what came before the stream broke."""

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> MemoryStaged:
        came = bytearray()

        async def noted() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                came.extend(chunk)
                yield chunk

        async def again() -> AsyncIterator[bytes]:
            yield bytes(came)

        try:
            return await super().put(workspace, noted())
        except BaseException:
            with CancelScope(shield=True):
                await (await super().put(workspace, again())).publish()
            raise


class FaultyStaged(MemoryStaged):
    """Does what a mutant says where the bytes are published."""

    def __init__(self, staged: MemoryStaged, publish: Callable[[bytes], Awaitable[None]]) -> None:
        assert staged._content is not None
        super().__init__(staged._blobs, staged._clock, staged._workspace, staged._content)
        self._publish = publish

    async def publish(self) -> None:
        assert self._content is not None
        await self._publish(self._content)


class InPlace(MemoryArtifacts):
    """Writes a published blob over the one that is there, piece by piece."""

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> MemoryStaged:
        staged = await super().put(workspace, chunks)
        at = (workspace, staged.sha256)

        async def publish(content: bytes) -> None:
            for size in (len(content) // 2, len(content)):
                self._blobs[at] = _Held(content=content[:size], modified=self._clock())
                await checkpoint()

        return FaultyStaged(staged, publish)


class OnceOnly(MemoryArtifacts):
    """Refuses to publish a blob that is there."""

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> MemoryStaged:
        staged = await super().put(workspace, chunks)

        async def publish(_: bytes) -> None:
            if (workspace, staged.sha256) in self._blobs:
                raise FileExistsError(staged.sha256)
            await staged.publish()

        return FaultyStaged(staged, publish)


class KeepsTime(MemoryArtifacts):
    """Leaves the time of a blob that is put again as it was."""

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> MemoryStaged:
        staged = await super().put(workspace, chunks)
        at = (workspace, staged.sha256)

        async def publish(_: bytes) -> None:
            if at not in self._blobs:
                await staged.publish()

        return FaultyStaged(staged, publish)


class PublishesOnce(MemoryArtifacts):
    """Does nothing when the same staged bytes are published again, also after a deletion."""

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> MemoryStaged:
        staged = await super().put(workspace, chunks)
        done = False

        async def publish(_: bytes) -> None:
            nonlocal done
            if not done:
                await staged.publish()
            done = True

        return FaultyStaged(staged, publish)


class NoEnd(MemoryArtifacts):
    """Ignores the end of a range."""

    def open(
        self, workspace: str, sha256: str, /, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        return super().open(workspace, sha256, start=start)


class Unverified(MemoryArtifacts):
    """Hands out what it holds without looking at it."""

    async def open(
        self, workspace: str, sha256: str, /, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        yield self._held(workspace, sha256).content[start:end]


class LateVerified(MemoryArtifacts):
    """Finds the damage after it has handed out the last chunk."""

    async def open(
        self, workspace: str, sha256: str, /, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        content = self._held(workspace, sha256).content
        yield content[start:end]
        if hashlib.sha256(content).hexdigest() != sha256:
            raise BlobDamaged(sha256)


class SkipsOne(MemoryArtifacts):
    """Loses the first blob of every page but the first."""

    async def list(
        self, workspace: str | None = None, /, *, after: str | None = None, limit: int = 100
    ) -> BlobPage:
        page = await super().list(workspace, after=after, limit=limit)
        return page if after is None else attrs.evolve(page, blobs=page.blobs[1:])


class EmptyLast(MemoryArtifacts):
    """Promises another page behind a full one, though there is nothing on it."""

    async def list(
        self, workspace: str | None = None, /, *, after: str | None = None, limit: int = 100
    ) -> BlobPage:
        page = await super().list(workspace, after=after, limit=limit)
        if page.next is None and len(page.blobs) == limit:
            return attrs.evolve(page, next=page.blobs[-1].sha256 + page.blobs[-1].workspace)
        return page


class Offsets(MemoryArtifacts):
    """Continues a listing at a number instead of behind a blob."""

    async def list(
        self, workspace: str | None = None, /, *, after: str | None = None, limit: int = 100
    ) -> BlobPage:
        skip = int(after or 0)
        blobs = (await super().list(workspace, limit=1000)).blobs[skip:]
        return BlobPage(blobs=blobs[:limit], next=str(skip + limit) if len(blobs) > limit else None)


class FoldsCase(MemoryArtifacts):
    """Takes two workspaces for one, as a folder on some file systems would."""

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> MemoryStaged:
        return await super().put(workspace.lower(), chunks)


class AnyDigest(MemoryArtifacts):
    """Takes a digest in upper case for the same."""

    async def stat(self, workspace: str, sha256: str, /) -> Blob:
        return await super().stat(workspace, sha256.lower())


class DeletesAll(MemoryArtifacts):
    """Deletes without a look at the time."""

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        return await super().delete(workspace, sha256, unless_modified_since=1 << 62)


class LooksThenDeletes(MemoryArtifacts):
    """Lets go between the look at the time and the deletion."""

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        if (await self.stat(workspace, sha256)).modified >= unless_modified_since:
            return False
        return await super().delete(workspace, sha256, unless_modified_since=1 << 62)


class Littering(FileArtifacts):
    """Leaves the staging file of a put that failed."""

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> FileStaged:
        staged = FileStaged(self._tree, workspace)
        try:
            await staged.fill(chunks)
        except BaseException:
            if staged._fd is not None:
                os.close(staged._fd)
            raise
        return staged


class Gathering(FileArtifacts):
    """Collects a stream before it writes it."""

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> FileStaged:
        content = b"".join([chunk async for chunk in chunks])

        async def one() -> AsyncIterator[bytes]:
            yield content

        return await super().put(workspace, one())


class RawNames(FileArtifacts):
    """Makes a folder of the workspace's own name."""

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> FileStaged:
        with contextlib.suppress(OSError, ValueError):
            os.makedirs(os.path.join(self._tree.root, "blobs", workspace))
        return await super().put(workspace, chunks)


MUTANTS: list[tuple[type[MemoryArtifacts] | type[FileArtifacts], Check, type[Exception]]] = [
    (Seen, check_invisible_until_published, AssertionError),
    (KeepsParts, check_stream_that_raises, AssertionError),
    (KeepsParts, check_cancelled_put, AssertionError),
    (InPlace, check_publish_race, BlobDamaged),
    (OnceOnly, check_publish_race, FileExistsError),
    (OnceOnly, check_published_twice, FileExistsError),
    (KeepsTime, check_published_twice, AssertionError),
    (PublishesOnce, check_publish_after_delete, NoSuchBlob),
    (NoEnd, check_ranges, AssertionError),
    (Unverified, check_damage, AssertionError),
    (LateVerified, check_damage, AssertionError),
    (SkipsOne, check_paging, AssertionError),
    (EmptyLast, check_paging, AssertionError),
    (Offsets, check_paging_meets_changes, AssertionError),
    (FoldsCase, check_workspaces, AssertionError),
    (AnyDigest, check_crafted_digests, AssertionError),
    (DeletesAll, check_delete, AssertionError),
    (LooksThenDeletes, check_delete_meets_publish, NoSuchBlob),
    (Littering, check_stream_that_raises, AssertionError),
    (Littering, check_cancelled_put, AssertionError),
    (Gathering, check_flat_memory, AssertionError),
    (RawNames, check_workspaces, AssertionError),
]


@pytest.mark.parametrize(
    ("mutant", "check", "error"), MUTANTS, ids=[f"{each[0].__name__}-{each[1].__name__}" for each in MUTANTS]
)
async def test_a_faulty_backend_is_caught(
    mutant: type[MemoryArtifacts] | type[FileArtifacts], check: Check, error: type[Exception], tmp_path: Path
) -> None:
    kit = files_kit(tmp_path, mutant) if issubclass(mutant, FileArtifacts) else memory_kit(mutant)
    with pytest.raises((error, ExceptionGroup)) as caught:
        await check(kit)
    if isinstance(caught.value, ExceptionGroup):
        assert caught.group_contains(error)


def test_every_check_is_listed() -> None:
    named = [getattr(contract, name) for name in vars(contract) if name.startswith("check_")]
    assert sorted(named, key=repr) == sorted(CHECKS, key=repr)
