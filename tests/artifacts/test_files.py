"""What the contract cannot see from outside: links, the order of syncs, dead writers, full disks."""

import asyncio
import errno
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from perdure.artifacts import (
    ArtifactError,
    ArtifactsUnavailable,
    BlobDamaged,
    FileArtifacts,
    NoSuchBlob,
    Staged,
    _disk,
)

pytestmark = pytest.mark.anyio

CONTENT = b"content of a blob"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def put(backend: FileArtifacts, workspace: str = "acme", content: bytes = CONTENT) -> None:
    async with await backend.put(workspace, stream(content)) as staged:
        await staged.publish()


async def read(backend: FileArtifacts, workspace: str = "acme", sha256: str = SHA256) -> bytes:
    return b"".join([chunk async for chunk in backend.open(workspace, sha256)])


def below(root: Path, pattern: str) -> list[Path]:
    return sorted(root.rglob(pattern))


def blob_file(root: Path) -> Path:
    [path] = below(root, SHA256)
    return path


# Links


async def check_a_linked_blob(root: Path) -> None:
    """A link under a blob's name is neither read nor written through; putting the blob replaces it."""
    secret = root.parent / "secret"
    secret.write_bytes(CONTENT)
    async with FileArtifacts(root) as backend:
        await put(backend)
        blob_file(root).unlink()
        (root.joinpath(*blob_path(root))).symlink_to(secret)
        with pytest.raises(BlobDamaged):
            await backend.stat("acme", SHA256)
        with pytest.raises(BlobDamaged):
            await read(backend)
        assert (await backend.list()).blobs == ()
        await put(backend)
        assert await read(backend) == CONTENT
    assert not blob_file(root).is_symlink()
    assert secret.read_bytes() == CONTENT


async def check_a_linked_folder(root: Path, name: str) -> None:
    """A link in place of one of its folders is not followed, not to read and not to write."""
    async with FileArtifacts(root) as backend:
        await put(backend)
        folder = root.joinpath(*blob_path(root)[: {"blobs": 1, "workspace": 2, "shelf": 3}[name]])
        outside = root.parent / "outside"
        folder.rename(outside)
        folder.symlink_to(outside, target_is_directory=True)
        before = sorted(path.name for path in outside.rglob("*"))
        calls: list[Callable[[], Any]] = [
            lambda: put(backend),
            lambda: put(backend, content=b"other"),
            lambda: read(backend),
            lambda: backend.stat("acme", SHA256),
            backend.list,
            lambda: backend.delete("acme", SHA256, unless_modified_since=1 << 62),
        ]
        for call in calls[:1] + calls[2:] if name == "shelf" else calls:
            with pytest.raises(ArtifactsUnavailable, match="is a link or no folder and is not followed"):
                await call()
        assert sorted(path.name for path in outside.rglob("*")) == before


def blob_path(root: Path) -> tuple[str, ...]:
    return ("blobs", _disk.folder_name("acme"), SHA256[:2], SHA256)


async def test_a_linked_blob(tmp_path: Path) -> None:
    await check_a_linked_blob(tmp_path / "root")


@pytest.mark.parametrize("name", ["blobs", "workspace", "shelf"])
async def test_a_linked_folder(name: str, tmp_path: Path) -> None:
    await check_a_linked_folder(tmp_path / "root", name)


async def test_following_links_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(name: str, at: int, /) -> int:
        return os.open(name, os.O_RDONLY, dir_fd=at)

    with monkeypatch.context() as faulty:
        faulty.setattr(_disk, "open_regular", follow)
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            await check_a_linked_blob(tmp_path / "root")
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    for name in ("blobs", "workspace", "shelf"):
        (tmp_path / name).mkdir()
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            await check_a_linked_folder(tmp_path / name / "root", name)


async def test_the_root_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with FileArtifacts(tmp_path / "link") as backend:
        await put(backend)
        assert await read(backend) == CONTENT
    assert blob_file(tmp_path / "real").read_bytes() == CONTENT


async def test_a_fifo_under_a_blobs_name_hangs_nobody(tmp_path: Path) -> None:
    async with FileArtifacts(tmp_path) as backend:
        await put(backend)
        path = blob_file(tmp_path)
        path.unlink()
        os.mkfifo(path)
        with anyio.fail_after(5), pytest.raises(BlobDamaged):
            await read(backend)
        await put(backend)
        assert await read(backend) == CONTENT


async def test_what_others_left_in_the_folders_is_not_listed(tmp_path: Path) -> None:
    async with FileArtifacts(tmp_path) as backend:
        await put(backend)
        home = blob_file(tmp_path).parents[1]
        for path in (home.parent / ".DS_Store", home / ".DS_Store", home / SHA256[:2] / f"{SHA256}.bak"):
            path.write_bytes(b"x")
        (home / SHA256[:2] / (SHA256[:2] + "0" * 62)).mkdir()
        assert [blob.sha256 for blob in (await backend.list()).blobs] == [SHA256]


async def test_a_label_that_is_not_its_folders_is_named(tmp_path: Path) -> None:
    async with FileArtifacts(tmp_path) as backend:
        await put(backend)
        [label] = below(tmp_path, "label")
        for wrong in ('"other"', "[]", "{", ""):
            label.write_text(wrong)
            with pytest.raises(ArtifactsUnavailable, match="label does not belong to its folder"):
                await backend.list()


@pytest.mark.parametrize(
    "label", ["", "..", "a/b", "A" * 5000, "\U0001f980" * 300, "\x00", "\ud800", "Ünïcode"]
)
def test_a_folder_name_is_bounded_and_plain(label: str) -> None:
    name = _disk.folder_name(label)
    assert len(name) <= 97
    assert _disk.is_folder_name(name)
    assert _disk.folder_name(label + " ") != name


async def test_a_workspace_with_a_lone_surrogate_is_a_label_too(tmp_path: Path) -> None:
    async with FileArtifacts(tmp_path) as backend:
        await put(backend, "\ud800")
        assert [blob.workspace for blob in (await backend.list()).blobs] == ["\ud800"]


# Syncs and locks


def trace(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """What is synced and named from now on, in order, as words."""
    done: list[str] = []
    names = {name: getattr(os, name) for name in ("fsync", "link", "rename", "unlink")}

    def word(path: Path) -> str:
        inside = path.relative_to(root).parts
        known = {0: "root", 1: inside[0] if inside else "", 2: "workspace", 3: "shelf"}
        return "staged" if inside[0:1] == ("staging",) and len(inside) == 2 else known[len(inside)]

    def fsync(fd: int) -> None:
        names["fsync"](fd)
        done.append(f"sync {word(Path(os.readlink(f'/proc/self/fd/{fd}')))}")

    def named(name: str) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            names[name](*args, **kwargs)
            done.append(
                f"{name} {'blob' if SHA256 in args else args[-1] if args[-1] == 'label' else 'staged'}"
            )

        return call

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("link", "rename", "unlink"):
        monkeypatch.setattr(os, name, named(name))
    return done


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files are read from /proc")
async def test_the_order_of_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FileArtifacts(tmp_path) as backend:
        done = trace(monkeypatch, tmp_path)
        folders = ["sync shelf", "sync workspace", "sync blobs"]
        async with await backend.put("acme", stream(CONTENT)) as staged:
            assert done == ["sync staged"]
            await staged.publish()
        label = ["sync staged", "rename label", "sync workspace"]
        assert done[1:] == [*label, "sync staged", "link blob", *folders, "unlink staged"]
        done.clear()
        await put(backend)
        again = ["link staged", "rename blob", *folders, "unlink staged"]
        assert done == ["sync staged", "sync staged", *again]
        done.clear()
        await backend.delete("acme", SHA256, unless_modified_since=1 << 62)
        assert done == ["unlink blob", "sync shelf"]


async def test_a_new_root_is_synced_into_the_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[os.stat_result] = []

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd))

    monkeypatch.setattr(os, "fsync", fsync)
    async with FileArtifacts(tmp_path / "a" / "b"):
        pass
    for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        assert any(os.path.samestat(each, os.stat(path)) for each in synced), path


async def test_full_sync_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full: list[int] = []
    plain: list[int] = []

    def accept(fd: int, command: int) -> None:
        full.append(command)

    monkeypatch.setattr(_disk, "_FULLFSYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", accept)
    monkeypatch.setattr(os, "fsync", plain.append)
    async with FileArtifacts(tmp_path) as backend:
        await put(backend)
    assert set(full) == {51}
    assert plain == []


async def test_plain_sync_where_the_file_system_knows_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, command: int) -> int:
        raise OSError(errno.ENOTSUP, "not supported")

    plain: list[int] = []
    monkeypatch.setattr(_disk, "_FULLFSYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", plain.append)
    async with FileArtifacts(tmp_path) as backend:
        await put(backend)
    assert plain


async def test_publishing_and_deleting_hold_the_workspaces_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []

    def spy(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> None:
            if SHA256 in args:
                [lock] = below(tmp_path, "lock")
                fd = os.open(lock, os.O_RDWR)
                held.append(f"{name} {'alone' if not _disk.claim(fd) else 'beside others'}")
                os.close(fd)
            real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    async with FileArtifacts(tmp_path) as backend:
        for name in ("link", "rename", "unlink"):
            spy(name)
        await put(backend)
        await put(backend)
        await backend.delete("acme", SHA256, unless_modified_since=1 << 62)
    assert held == ["link alone", "link alone", "rename alone", "unlink alone"]


# Crashes and failures

WRITER = """
import sys, anyio
from perdure.artifacts import FileArtifacts

async def main(root, publish):
    async def stream():
        yield b"content of "
        yield b"a blob"
    async with FileArtifacts(root) as backend:
        async with await backend.put("acme", stream()) as staged:
            if publish:
                await staged.publish()
            print(staged.sha256, flush=True)
            await anyio.sleep_forever()

anyio.run(main, sys.argv[1], sys.argv[2] == "publish")
"""


async def writer(root: Path, then: str) -> subprocess.Popen[str]:
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WRITER, str(root), then]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == f"{SHA256}\n"
        return child

    return await to_thread.run_sync(start)


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


async def opened_at(root: Path, age: int) -> list[str]:
    """What is left in the staging folder when it is opened this many microseconds after the last write."""
    latest = max((path.stat().st_mtime_ns // 1000 for path in below(root, "staging/*")), default=0)
    async with FileArtifacts(root, clock=lambda: latest + age):
        return [path.name for path in below(root, "staging/*")]


async def test_killed_between_stage_and_publish(tmp_path: Path) -> None:
    child = await writer(tmp_path, "stop")
    try:
        assert len(await opened_at(tmp_path, 10**12)) == 1, "the writer lives, however old its file"
    finally:
        kill(child)
    async with FileArtifacts(tmp_path) as backend:
        with pytest.raises(NoSuchBlob):
            await backend.stat("acme", SHA256)
        assert (await backend.list()).blobs == ()
    assert len(await opened_at(tmp_path, 59_999_999)) == 1, "it may be about to be locked"
    assert await opened_at(tmp_path, 60_000_000) == []


async def test_killed_after_publish(tmp_path: Path) -> None:
    kill(await writer(tmp_path, "publish"))
    assert await opened_at(tmp_path, 10**12) == []
    async with FileArtifacts(tmp_path) as backend:
        assert await read(backend) == CONTENT


async def test_what_is_no_file_in_the_staging_folder_stays(tmp_path: Path) -> None:
    async with FileArtifacts(tmp_path):
        (tmp_path / "staging" / "folder").mkdir()
        (tmp_path / "staging" / "link").symlink_to(tmp_path / "mine")
        (tmp_path / "mine").write_bytes(b"mine")
    assert len(await opened_at(tmp_path, 10**15)) == 2
    assert (tmp_path / "mine").read_bytes() == b"mine"


FAILING = ["write", "fsync", "utime", "link", "mkdir", "open"]


@pytest.mark.parametrize("call", FAILING)
@pytest.mark.parametrize("at", range(4))
async def test_a_failing_disk(call: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever call fails: its error is ours, nothing of the blob is seen before all of it is durable."""
    real = getattr(os, call)
    count = 0

    def fail(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == at + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    async with FileArtifacts(tmp_path) as backend:
        with monkeypatch.context() as failing:
            failing.setattr(os, call, fail)
            try:
                await put(backend)
                said = ""
            except ArtifactsUnavailable as error:
                said = str(error)
        assert ("No space left on device" in said) == (count > at)
        assert below(tmp_path, "staging/*.again") == []
        await put(backend)
        assert await read(backend) == CONTENT
        assert [blob.sha256 for blob in (await backend.list()).blobs] == [SHA256]


async def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def short(fd: int, content: memoryview) -> int:
        return real(fd, content[:3])

    monkeypatch.setattr(os, "write", short)
    async with FileArtifacts(tmp_path) as backend:
        await put(backend)
        assert await read(backend) == CONTENT


async def test_cut_off_while_it_is_read(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    sha256 = hashlib.sha256(content).hexdigest()
    async with FileArtifacts(tmp_path) as backend:
        await put(backend, content=content)
        chunks = backend.open("acme", sha256)
        assert len(await anext(chunks)) == 1 << 20
        [path] = below(tmp_path, sha256)
        os.truncate(path, 1 << 20)
        with pytest.raises(BlobDamaged):
            await anext(chunks)


async def test_an_own_error_of_the_stream_is_not_ours(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"a"
        raise ConnectionResetError("the sender has gone")

    async with FileArtifacts(tmp_path) as backend:
        with pytest.raises(ConnectionResetError):
            await backend.put("acme", broken())
        assert below(tmp_path, "staging/*") == []


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
async def test_cancelled_by_asyncio_while_a_thread_works(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's cancel leaves the thread at its work: its file is not closed below it, and nothing stays."""
    real = getattr(os, call)
    working, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []

    def slow(*args: Any, **kwargs: Any) -> Any:
        loop.call_soon_threadsafe(working.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
        try:
            return real(*args, **kwargs)
        except OSError as error:
            errors.append(error)
            raise

    async with FileArtifacts(tmp_path) as backend:
        await put(backend, content=b"so that its folders are there")
        monkeypatch.setattr(os, call, slow)
        task = asyncio.ensure_future(put(backend))
        await working.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        assert errors == []
        assert below(tmp_path, "staging/*") == []
        try:
            assert await read(backend) == CONTENT
        except NoSuchBlob:
            assert call != "link"


async def test_a_reader_that_stops_early_leaves_no_open_file(tmp_path: Path) -> None:
    async with FileArtifacts(tmp_path) as backend:
        await put(backend, content=bytes(3 << 20))
        before = len(os.listdir("/dev/fd"))
        for _ in range(20):
            chunks = backend.open("acme", hashlib.sha256(bytes(3 << 20)).hexdigest())
            await anext(chunks)
            await chunks.aclose()
        assert len(os.listdir("/dev/fd")) == before


async def test_not_open(tmp_path: Path) -> None:
    backend = FileArtifacts(tmp_path / "root")
    with pytest.raises(ArtifactError, match="is not open: use `async with`"):
        await put(backend)
    async with backend:
        staged: Staged = await backend.put("acme", stream(CONTENT))
        async with staged:
            pass
        with pytest.raises(ArtifactError, match="was discarded: put the bytes again"):
            await staged.publish()
    with pytest.raises(ArtifactError, match="is not open"):
        await backend.list()


async def test_a_root_that_has_gone(tmp_path: Path) -> None:
    async with FileArtifacts(tmp_path / "root") as backend:
        (tmp_path / "root" / "blobs").rmdir()
        (tmp_path / "root" / "staging").rmdir()
        (tmp_path / "root").rmdir()
        for call in (lambda: put(backend), lambda: read(backend), backend.list):
            with pytest.raises(ArtifactsUnavailable, match="No such file or directory"):
                await call()
