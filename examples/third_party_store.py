"""A store of one's own: each write is a line of a journal, and the journal played again is the store.

    python -m examples.third_party_store        # puts it through the contract, in folders that it removes

A line holds what was asked, behind a checksum, and is on the disk before anything of it happens. Then a
`MemoryStore` judges and applies it. That one answers alike wherever it is given the same lines: after a
crash, or in another process that has the file open. The price: the file only grows, and is read whole when it
is opened. What a line comes to is the doing of the release that wrote it, so the first line names that.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from msgspec import Raw, json

from perdure.stores import (
    ArtifactRow,
    Claimed,
    ClaimRequest,
    Commit,
    DefinitionRow,
    Delivered,
    Expire,
    Expired,
    InboxRow,
    ItemsRow,
    KeyRow,
    LogRow,
    MemoryRow,
    MemoryStore,
    MessageRow,
    Micros,
    OutboxRow,
    OutcomeUnknown,
    Page,
    Query,
    Release,
    Remember,
    RowKind,
    Share,
    Shared,
    Signal,
    Start,
    Started,
    Store,
    StoredRow,
    StoreError,
    StoreUnavailable,
    StoreUnreadable,
    ThreadPart,
    ThreadRow,
    WorkerRow,
    kind_of_row,
    system_clock,
)
from perdure.stores.contract import CHECKS, Clock, Kit

R = TypeVar("R")

HEADER = f"journal of perdure {version('perdure')}\n".encode()
WRITES: dict[str, Any] = {
    "start": tuple[Start],
    "claim": tuple[ClaimRequest],
    "commit": tuple[Commit],
    "release": tuple[tuple[Release, ...]],
    "deliver": tuple[Signal],
    "beat": tuple[WorkerRow, tuple[DefinitionRow, ...]],
    "share": tuple[Share],
    "upload": tuple[ArtifactRow],
    "remember": tuple[Remember],
    "expire": tuple[Expire],
    "restore": tuple[tuple[tuple[RowKind, Raw], ...]],
}
"""Which calls a line may hold, and the types of their arguments: nothing else is made of what is read."""
ROWS: dict[RowKind, Any] = {
    "definition": DefinitionRow,
    "memory": MemoryRow,
    "artifact": ArtifactRow,
    "key": KeyRow,
    "message": MessageRow,
    "log": ThreadPart[LogRow],
    "items": ThreadPart[ItemsRow],
    "inbox": ThreadPart[InboxRow],
    "outbox": ThreadPart[OutboxRow],
    "thread": ThreadRow,
}
"""The types of rows that are restored, each of which stands behind its kind."""


class JournalStore(Store):
    """Threads, memory and records in one file, which several handles and processes may have open."""

    def __init__(self, path: Path, *, clock: Callable[[], Micros] = system_clock) -> None:
        self._path = path
        self._clock = clock
        self._now: Micros = 0  # of the line that is being applied
        self._memory = MemoryStore(lambda: self._now)
        self._seen = 0  # bytes of the file that are in the memory
        self._turn = asyncio.Lock()
        self._begun: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> JournalStore:
        try:
            self._file = await asyncio.to_thread(_open, self._path)
        except OSError as error:
            raise StoreUnavailable(f"the journal {self._path} cannot be opened: {error}") from error
        try:
            await self._in_turn(None)
        except BaseException:
            self._file.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun:
            await asyncio.wait(self._begun)
        self._file.close()

    async def start(self, start: Start, /) -> Started:
        return await self._write(MemoryStore.start, start)

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        return await self._write(MemoryStore.claim, request)

    async def commit(self, commit: Commit, /) -> None:
        await self._write(MemoryStore.commit, commit)

    async def release(self, releases: Sequence[Release], /) -> None:
        await self._write(MemoryStore.release, releases)

    async def deliver(self, signal: Signal, /) -> Delivered:
        return await self._write(MemoryStore.deliver, signal)

    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        return await self._write(MemoryStore.beat, worker, definitions)

    async def share(self, request: Share, /) -> Shared:
        return await self._write(MemoryStore.share, request)

    async def upload(self, artifact: ArtifactRow, /) -> None:
        await self._write(MemoryStore.upload, artifact)

    async def remember(self, write: Remember, /) -> MemoryRow:
        return await self._write(MemoryStore.remember, write)

    async def expire(self, request: Expire, /) -> Expired:
        return await self._write(MemoryStore.expire, request)

    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        await self._write(MemoryStore.restore, [(kind_of_row(row), row) for row in rows])

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        await self._in_turn(None)
        return await self._memory.page(query, after=after, limit=limit)

    async def _write(self, call: Callable[..., Awaitable[R]], *arguments: object) -> R:
        """Shielded, since a caller that is cancelled withdraws nothing that was begun."""
        given = json.encode(arguments)
        json.decode(given, type=WRITES[call.__name__])  # nobody could read a file with a line that is wrong
        task = asyncio.ensure_future(self._in_turn(f"{call.__name__} ".encode() + given))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return await asyncio.shield(task)

    async def _in_turn(self, asked: bytes | None) -> Any:
        """Apply what others wrote, then what is asked; the answer is the memory's, or its refusal."""
        async with self._turn:
            answer: object = None
            for line in await asyncio.to_thread(self._exchange, asked):
                answer = await self._applied(line)
                self._seen += len(line)
        if asked and isinstance(answer, Exception):
            raise answer
        return answer

    def _exchange(self, asked: bytes | None) -> list[bytes]:
        """In a thread, with the file to itself: what was not seen, and what is asked as the last line."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._file.seek(self._seen)
            found = self._file.readall()
            lines = found[: found.rfind(b"\n") + 1]  # behind it: what a process was killed in the middle of
            new = _sealed(b"%d %s" % (self._clock(), asked)) if asked else b""
            if not self._seen and HEADER.startswith(found):
                lines, new = b"", HEADER + new
            elif not self._seen and not found.startswith(HEADER):
                raise StoreUnreadable(
                    f"{self._path} is no {HEADER.decode().strip()}: where its first line names another "
                    "release, that one reads it; else give another path"
                )
            if new:
                self._append(new, self._seen + len(lines))
            return (lines + new).splitlines(keepends=True)
        except OSError as error:
            kind = OutcomeUnknown if asked else StoreUnavailable
            raise kind(f"the journal {self._path}: {error}: call again when that is mended") from error
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _append(self, new: bytes, end: int) -> None:
        self._file.truncate(end)
        try:
            if self._file.write(new) < len(new):
                raise OSError("the disk took a part of a line")
            os.fsync(self._file)
        except OSError:
            self._file.truncate(end)  # nobody else may take a line for written that may not be on the disk
            raise

    async def _applied(self, line: bytes) -> object:
        if not self._seen:
            return None  # the header
        call = line.partition(b" ")[2].rstrip(b"\n")
        if line != _sealed(call):
            raise StoreUnreadable(f"{self._path} is damaged at byte {self._seen}: take a copy that is whole")
        at, name, arguments = call.split(b" ", 2)
        self._now = int(at)
        values = json.decode(arguments, type=WRITES[name.decode()])
        if name == b"restore":
            values = ([json.decode(row, type=ROWS[kind]) for kind, row in values[0]],)
        try:
            return await getattr(self._memory, name.decode())(*values)
        except (StoreError, ValueError) as refusal:
            return refusal


def _open(path: Path) -> io.FileIO:
    file = io.FileIO(path, "a+")
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else the disk may have the lines and not the name
    finally:
        os.close(folder)
    return file


def _sealed(call: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(call), call)


def kit(folder: Path) -> Kit:
    """What the contract asks for: a store of its own, and the clock that it reads."""
    clock = Clock()
    return Kit(open=lambda: JournalStore(folder / "journal", clock=clock), clock=clock)


async def main() -> None:
    """Run each check of the contract; the first promise that is broken ends it with an error."""
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            await check.run(kit(Path(folder)))
        print(f"{check.name}: kept")
    print(f"all {len(CHECKS)} promises are kept")


if __name__ == "__main__":
    asyncio.run(main())
