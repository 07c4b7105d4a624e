"""Where a SQLite store may lie, what it makes of files that are none, and its schema's versions."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import sys
from pathlib import Path

import aiosqlite
import pytest

from perdure.stores import (
    BadStoreURL,
    SQLiteStore,
    StoreUnreadable,
    Threads,
    _sqlite,
    _sqlite_files,
    _sqlite_schema,
)
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import committed, started
from perdure.stores._sqlite_files import find_file_system, parse_mount, parse_mountinfo
from perdure.stores._sqlite_schema import APPLICATION_ID, MIGRATIONS, prepare

pytestmark = pytest.mark.anyio


async def refusal(kind: type[Exception], path: str | Path) -> str:
    """The one line with which opening is refused."""
    with pytest.raises(kind) as caught:
        async with SQLiteStore(path):
            pass
    text = str(caught.value)
    assert text.count("\n") == 0
    return text


async def filled(path: Path, commits: int = 40) -> None:
    async with SQLiteStore(path) as store:
        thread = await started(store)
        for _ in range(commits):
            thread = await committed(store, thread, payload=os.urandom(4000))


async def test_a_file_is_made_as_it_should_be(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    async with SQLiteStore(str(path)):
        db = sqlite3.connect(path)
        values = [
            db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "page_size", "application_id", "user_version")
        ]
        db.close()
    assert values == ["wal", 8192, APPLICATION_ID, len(MIGRATIONS)]


def test_each_connection_waits_for_the_disk(tmp_path: Path) -> None:
    db = _sqlite_files.connect(str(tmp_path / "any.db"), 1.0)
    names = ("synchronous", "fullfsync", "checkpoint_fullfsync", "wal_autocheckpoint")
    values = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    db.close()
    assert values == [2, 1, 1, 128]


@pytest.mark.parametrize(
    "content", [b"no database, but longer than the sixteen bytes of its magic" * 40, b"x" * 50]
)
async def test_garbage_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    text = await refusal(StoreUnreadable, path)
    assert str(path) in text
    assert "restore it from a copy, or name another file" in text
    assert path.read_bytes() == content


@pytest.mark.parametrize("part", [0.3, 0.6, 0.97])
async def test_a_truncated_file_is_named(tmp_path: Path, part: float) -> None:
    path = tmp_path / "perdure.db"
    await filled(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    text = await refusal(StoreUnreadable, path)
    assert str(path) in text
    assert "damaged" in text


async def test_damage_that_shows_later_is_named_as_well(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    await filled(path)
    content = bytearray(path.read_bytes())
    content[8192 * 2 :] = os.urandom(len(content) - 8192 * 2)
    path.write_bytes(content)
    with pytest.raises(StoreUnreadable, match=rf"{path} is damaged"):  # noqa: PT012
        async with SQLiteStore(path) as store:
            await rows(store, Threads())
            await started(store, "t2")


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmark (url)")
    db.close()
    content = path.read_bytes()
    assert "another program" in await refusal(StoreUnreadable, path)
    assert path.read_bytes() == content


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    await filled(path, 1)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 7")
    db.close()
    content = path.read_bytes()
    text = await refusal(StoreUnreadable, path)
    assert f"{path} was written by a newer perdure (schema 7, this one reads up to 2): upgrade" in text
    assert path.read_bytes() == content


async def test_a_file_from_before_the_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    await filled(path, 1)
    db = sqlite3.connect(path)
    db.execute("ALTER TABLE standing DROP COLUMN items")
    db.close()
    content = path.read_bytes()
    text = await refusal(StoreUnreadable, path)
    assert f"{path} was written by a perdure from before" in text
    assert "its table standing has no items" in text
    assert path.read_bytes() == content


async def test_an_older_schema_is_migrated_in_one_transaction(tmp_path: Path) -> None:
    path = str(tmp_path / "perdure.db")
    await filled(Path(path), 1)
    more = ("ALTER TABLE worker ADD COLUMN label TEXT", "CREATE TABLE extra (id INTEGER PRIMARY KEY)")
    async with aiosqlite.connect(path, isolation_level=None) as db:
        with pytest.raises(sqlite3.OperationalError, match="no such table: nowhere"):
            await prepare(db, path, [*MIGRATIONS, more, ("INSERT INTO nowhere VALUES (1)",)])
        assert list(await db.execute_fetchall("PRAGMA user_version")) == [(len(MIGRATIONS),)]
        await prepare(db, path, [*MIGRATIONS, more])
        assert list(await db.execute_fetchall("PRAGMA user_version")) == [(len(MIGRATIONS) + 1,)]
        assert list(await db.execute_fetchall("SELECT label FROM worker")) == []
        assert list(await db.execute_fetchall("SELECT id FROM extra")) == []


def test_the_released_schema_is_as_it_was() -> None:
    db = sqlite3.connect(":memory:")
    for statement in _sqlite_schema.TABLES:
        db.execute(statement)
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    db.close()
    assert names == {
        *("thread", "standing", "log", "items", "inbox", "message", "memory", "artifact", "effect_key"),
        *("outbox", "worker", "derivation"),
    }


async def test_a_file_that_is_busy_at_opening_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    async def prepare_later(db: aiosqlite.Connection, path: str) -> None:
        tries.append(path)
        if len(tries) == 1:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        await prepare(db, path)

    monkeypatch.setattr(_sqlite, "prepare", prepare_later)
    async with SQLiteStore(tmp_path / "perdure.db"):
        assert len(tries) == 2


async def test_a_folder_is_no_store(tmp_path: Path) -> None:
    assert f"{tmp_path} is a folder: name a file in it" in await refusal(BadStoreURL, tmp_path)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    text = await refusal(BadStoreURL, tmp_path / "nowhere" / "perdure.db")
    assert text == f"{tmp_path / 'nowhere'} is no folder: create it, or correct the path of the store"


async def test_a_path_that_is_no_path_is_refused() -> None:
    assert "is no file name" in await refusal(BadStoreURL, "a\0b")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that nobody may write to, root included")
async def test_a_folder_that_takes_no_files_is_named() -> None:
    text = await refusal(BadStoreURL, "/proc/perdure.db")
    assert text.startswith("/proc/perdure.db cannot be opened for writing")
    assert "check the permissions" in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    assert "cannot be opened for writing" in await refusal(BadStoreURL, folder / "perdure.db")


async def test_odd_names_are_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:x?mode=memory", "percent%20 ü#.db"):
        async with SQLiteStore(name) as store:
            await started(store)
        assert (tmp_path / name).stat().st_size > 0


async def test_a_link_is_followed_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "perdure.db")
    async with SQLiteStore(tmp_path / "link.db") as store:
        await started(store)
    async with SQLiteStore(tmp_path / "real" / "perdure.db") as store:
        assert len(await rows(store, Threads())) == 1


async def test_a_copy_of_a_closed_store_is_a_store(tmp_path: Path) -> None:
    await filled(tmp_path / "perdure.db", 5)
    assert os.listdir(tmp_path) == ["perdure.db"]
    shutil.copy(tmp_path / "perdure.db", tmp_path / "copy.db")
    async with SQLiteStore(tmp_path / "copy.db") as store:
        assert [row.n for row in await rows(store, Threads())] == [6]


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
async def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(_sqlite_files, "read_mounts", lambda: [("/", "ext4"), (str(tmp_path), kind)])
    text = await refusal(BadStoreURL, tmp_path / "perdure.db")
    assert f"network file system ({kind})" in text
    assert "put the file on a local disk" in text
    assert os.listdir(tmp_path) == []


async def test_a_file_system_shared_with_a_host_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_sqlite_files, "read_mounts", lambda: [("/", "ext4"), (str(tmp_path), "virtiofs")])
    with caplog.at_level(logging.WARNING, "perdure.stores"):
        async with SQLiteStore(tmp_path / "perdure.db"):
            pass
    assert "shared with a host (virtiofs)" in caplog.text


def test_mounts_are_read_as_the_systems_write_them() -> None:
    linux = (
        "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "31 21 0:33 / /srv/data\\040one rw,relatime shared:2 master:1 - nfs4 host:/data rw,vers=4.2\n"
        "a line of another kind\n"
    )
    assert parse_mountinfo(linux) == [("/", "ext4"), ("/srv/data one", "nfs4")]
    mac = (
        "/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)\n"
        "//ada@host/share on /Volumes/on (1) (smbfs, nodev, nosuid, mounted by ada)\n"
    )
    assert parse_mount(mac) == [("/", "apfs"), ("/Volumes/on (1)", "smbfs")]


def test_the_innermost_mount_counts_and_of_two_the_later() -> None:
    mounts = [("/", "ext4"), ("/srv", "xfs"), ("/srv/data", "nfs4"), ("/srv", "btrfs")]
    assert find_file_system("/srv/data/perdure.db", mounts) == "nfs4"
    assert find_file_system("/srv/database/perdure.db", mounts) == "btrfs"
    assert find_file_system("/home/perdure.db", mounts) == "ext4"
    assert find_file_system("/home/perdure.db", []) is None


def test_this_systems_mounts_are_readable() -> None:
    assert find_file_system("/", _sqlite_files.read_mounts()) is not None


async def test_text_that_is_damaged_is_told_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    async with SQLiteStore(path) as store:
        await started(store)
        with sqlite3.connect(path) as other:
            other.execute("UPDATE standing SET machine = CAST(x'ff' AS TEXT)")
        other.close()
        with pytest.raises(StoreUnreadable, match=r"is damaged .*restore it from a copy"):
            await rows(store, Threads())


async def test_a_schema_that_is_damaged_is_told_as_damage(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    async with SQLiteStore(place):
        pass
    content = place.read_bytes()
    assert b"CREATE TABLE" in content
    place.write_bytes(content.replace(b"CREATE TABLE", b"CREATE T\xff\xfeLE"))
    with pytest.raises(StoreUnreadable, match=r"is damaged .*restore it from a copy"):
        async with SQLiteStore(place):
            pass
