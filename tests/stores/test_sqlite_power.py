"""A power cut loses nothing that was acknowledged: shown on images of what the disk then holds.

A VFS of apsw records each write and sync of the database and its write-ahead log. An image of a moment has
all that was synced by then and any part of the rest, sectors of a write one by one.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.stores import Log, SQLiteStore, _sqlite, _sqlite_files, _sqlite_writer
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import address_of, after, commit_of, start_of
from perdure.stores._sqlite_batches import Batches

SECTOR = 512
THREADS = 12
COMMITS = 50

Event = tuple[Any, ...]
"""``("write", suffix, offset, bytes)``, ``("size", suffix, bytes)``, ``("sync", suffix)`` or
``("answer", thread, position)``; the suffix names the file."""


class Recorder(apsw.VFS):
    """Passes everything on to the system's VFS, and keeps what happened to the files."""

    def __init__(self, database: Path) -> None:
        super().__init__("recorder", "")
        self.database = str(database)
        self.events: list[Event] = []

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return RecordedFile(self, name, flags)


class RecordedFile(apsw.VFSFile):
    def __init__(self, recorder: Recorder, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        path = name if isinstance(name, str) else name.filename()
        self.suffix = path.removeprefix(recorder.database)
        self.events = recorder.events

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self.events.append(("write", self.suffix, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self.events.append(("size", self.suffix, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self.events.append(("sync", self.suffix))


class Result:
    def __init__(self, cursor: Any, rowcount: int, lastrowid: int) -> None:
        self.rowcount, self.lastrowid = rowcount, lastrowid
        self.fetchall, self.fetchone = cursor.fetchall, cursor.fetchone
        self._cursor = cursor

    def __iter__(self) -> Any:
        return iter(self._cursor)


class Connection:
    """An apsw connection in the shape of ``sqlite3``'s, as far as the store uses it."""

    def __init__(self, path: str) -> None:
        self._db = apsw.Connection(path, vfs="recorder")
        for pragma in (f"PRAGMA synchronous = {_sqlite_files.SYNCHRONOUS}", *_sqlite_files.PRAGMAS):
            self._db.execute(pragma)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        return self._result(self._db.execute, statement, values)

    def executemany(self, statement: str, rows: Sequence[Any]) -> Result:
        return self._result(self._db.executemany, statement, rows)

    def _result(self, call: Any, statement: str, values: Any) -> Result:
        before = self._db.total_changes()
        cursor = call(statement, values)
        return Result(cursor, self._db.total_changes() - before, self._db.last_insert_rowid())

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    def close(self) -> None:
        self._db.close()


async def record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, bytes], list[Event]]:
    """The files when some threads had started, and what happened to them while the threads went on."""
    database = folder / "perdure.db"
    recorder = Recorder(database)
    for module in (_sqlite, _sqlite_writer):
        monkeypatch.setattr(module, "connect", lambda path, *given: Connection(path))
    async with SQLiteStore(database) as store:
        threads = [(await store.start(start_of(f"t{i}"))).thread for i in range(THREADS)]
        files = _read(database)
        recorder.events.clear()

        async def go_on(number: int) -> None:
            thread = threads[number]
            for _ in range(COMMITS):
                commit = commit_of(thread, payload=os.urandom(3000))
                await store.commit(commit)
                recorder.events.append(("answer", number, commit.log.n))
                thread = after(thread, commit)

        await asyncio.gather(*map(go_on, range(THREADS)))
        events = list(recorder.events)
    monkeypatch.undo()
    return files, events


def _read(database: Path) -> dict[str, bytes]:
    return {suffix: Path(f"{database}{suffix}").read_bytes() for suffix in ("", "-wal")}


class Disk:
    """What the files hold for sure, and what was written since their last sync."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.safe = {suffix: bytearray(content) for suffix, content in files.items()}
        self.loose: dict[str, list[Event]] = {suffix: [] for suffix in files}
        self.answered = dict.fromkeys(range(THREADS), 0)

    def happen(self, event: Event) -> None:
        kind, where = event[:2]
        if kind == "answer":
            self.answered[where] = event[2]
        elif kind == "sync":
            for loose in self.loose[where]:
                _apply(self.safe[where], loose)
            self.loose[where] = []
        else:
            self.loose[where].append(event)

    def image(self, database: Path, dice: random.Random, kept: float) -> None:
        """Write the files as a power cut may leave them: each unsynced sector is there by chance."""
        for suffix, content in self.safe.items():
            held = bytearray(content)
            for event in self.loose[suffix]:
                for part in _sectors(event):
                    if dice.random() < kept:
                        _apply(held, part)
            Path(f"{database}{suffix}").write_bytes(held)


def _sectors(event: Event) -> list[Event]:
    if event[0] == "size":
        return [event]
    kind, where, offset, data = event
    ends = [*range(SECTOR - offset % SECTOR, len(data), SECTOR), len(data)]
    return [
        (kind, where, offset + begin, data[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)
    ]


def _apply(content: bytearray, event: Event) -> None:
    if event[0] == "size":
        del content[event[2] :]
        return
    _, _, offset, data = event
    content.extend(bytes(max(0, offset + len(data) - len(content))))
    content[offset : offset + len(data)] = data


async def what_is_lost(database: Path, answered: dict[int, int]) -> list[str]:
    """Answers whose commit is not in an image, and what SQLite says against it."""
    lost: list[str] = []
    async with SQLiteStore(database) as store:
        for number, position in answered.items():
            log = await rows(store, Log(address=address_of(f"t{number}")))
            if [row.n for row in log] != list(range(len(log))) or len(log) <= position:
                lost.append(f"t{number}: position {position} was answered, {len(log)} rows are there")
    db = sqlite3.connect(database)
    lost += [row for (row,) in db.execute("PRAGMA integrity_check") if row != "ok"]
    db.close()
    return lost


async def cut_the_power(
    folder: Path, files: dict[str, bytes], events: Sequence[Event], seed: int
) -> list[str]:
    """Cut it after answers and at any other moment; the first losses, if there are any."""
    dice = random.Random(seed)
    answers = [i for i, event in enumerate(events) if event[0] == "answer"]
    moments = sorted(dice.sample(answers, 25) + dice.sample(range(len(events)), 25))
    disk, done = Disk(files), 0
    for moment in moments:
        for event in events[done : moment + 1]:
            disk.happen(event)
        done = moment + 1
        image = folder / f"image{moment}" / "perdure.db"
        image.parent.mkdir(exist_ok=True)
        disk.image(image, dice, kept=dice.choice((0.0, 0.5, 0.95)))
        lost = await what_is_lost(image, disk.answered)
        if lost:
            return [f"seed {seed}, moment {moment} of {len(events)}", *lost]
        shutil.rmtree(image.parent)
    return []


@pytest.mark.anyio
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_power_cut_loses_nothing_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    files, events = await record(tmp_path, monkeypatch)
    kinds = [(event[0], event[1]) for event in events]
    assert kinds.count(("sync", "")) >= 2, "the run is too short for the log to be carried over into the file"
    assert [event[2] for event in events if event[:2] == ("write", "-wal")].count(0) >= 1, "never begun anew"
    assert await cut_the_power(tmp_path, files, events, seed) == []


@pytest.mark.anyio
@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
async def test_a_disk_that_is_not_waited_for_loses_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: str
) -> None:
    monkeypatch.setattr(_sqlite_files, "SYNCHRONOUS", synchronous)
    files, events = await record(tmp_path, monkeypatch)
    assert "was answered" in str(await cut_the_power(tmp_path, files, events, seed=1))


def answer_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a batch is committed when the next one begins."""
    land = Batches._land

    def commit_late(self: Batches, *given: Any) -> Any:
        self._roll_back = lambda: None  # type: ignore[method-assign]
        if self._db.in_transaction:
            self._db.execute("COMMIT")
        return land(self, *given)

    monkeypatch.setattr(Batches, "_land", commit_late)
    monkeypatch.setattr(Batches, "_finish", lambda self: None)


@pytest.mark.anyio
async def test_an_answer_before_the_commit_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_before_the_commit(monkeypatch)
    files, events = await record(tmp_path, monkeypatch)
    assert "was answered" in str(await cut_the_power(tmp_path, files, events, seed=1))


CHILD = """
import asyncio, os, sys
from perdure.stores import SQLiteStore, _sqlite_files
from perdure.stores._contract_make import after, commit_of, start_of
_sqlite_files.SYNCHRONOUS = sys.argv[2]
async def main():
    async with SQLiteStore(sys.argv[1]) as store:
        thread = (await store.start(start_of())).thread
        for _ in range(20):
            commit = commit_of(thread)
            await store.commit(commit)
            os.write(1, b"answered")
            thread = after(thread, commit)
asyncio.run(main())
"""


def trace(folder: Path, synchronous: str) -> list[str]:
    """System calls of a process whose commits are answered one by one."""
    calls = folder / "calls"
    watch = ("strace", "-f", "-y", "-o", str(calls), "-e", "trace=pwrite64,fdatasync,fsync,write")
    command = (sys.executable, "-c", CHILD, str(folder / "perdure.db"), synchronous)
    done = subprocess.run([*watch, *command], capture_output=True, timeout=60)
    if b"ptrace" in done.stderr or not calls.exists():
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr.decode()
    return calls.read_text().splitlines()


def unsynced_answers(calls: Sequence[str]) -> list[bool]:
    """Of each answer, whether something in the write-ahead log was not synced when it was given."""
    answers: list[bool] = []
    loose = False
    syncing: set[str] = set()
    for line in calls:
        process = line.split()[0]
        if "pwrite64" in line and "-wal>" in line:
            loose = True
        elif re.search(r"f(data)?sync\(.*-wal>", line):
            syncing.add(process)
        elif '"answered"' in line:
            answers.append(loose)
        if process in syncing and re.search(r"sync.*= 0$", line):
            syncing.discard(process)
            loose = False
    return answers


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(("synchronous", "late"), [("FULL", False), ("NORMAL", True)])
def test_the_system_is_asked_to_sync_before_each_answer(tmp_path: Path, synchronous: str, late: bool) -> None:
    assert unsynced_answers(trace(tmp_path, synchronous)) == [late] * 20
