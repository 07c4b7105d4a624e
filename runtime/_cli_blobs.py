"""What moves and checks bytes for ``perdure artifacts``: get, put and verify, with progress on a terminal."""

from __future__ import annotations

import errno
import mimetypes
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from anyio import CancelScope, to_thread
from attrs import frozen

from perdure.artifacts import ArtifactBackend, BlobDamaged, NoSuchBlob
from perdure.stores import ArtifactRow, Artifacts, Store

from ._cli_load import BadInput
from ._cli_text import Output, safe
from ._cli_units import size_text
from ._env import Env
from ._look import rows_of
from ._uploads import Uploads

CHUNK = 1 << 20
UNKNOWN_TYPE = "application/octet-stream"


@frozen(kw_only=True)
class Depot:
    """Where a command looks: a workspace, its records, and its blobs where they are needed."""

    workspace: str
    store: Store
    backend: ArtifactBackend | None

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[tuple[Store, ArtifactBackend]]:
        """Both, open."""
        assert self.backend is not None
        async with self.store as store, self.backend as blobs:
            yield store, blobs


async def record_of(store: Store, workspace: str, ref: str) -> ArtifactRow:
    """The record that an id names, or the one put of the bytes with this digest."""
    page = await store.page(Artifacts(workspace=workspace, id=ref), limit=1)
    if not page.rows:
        page = await store.page(Artifacts(workspace=workspace, sha256=ref.lower()), limit=10)
    if not page.rows:
        raise BadInput(
            f"workspace {workspace!r} has no artifact {ref!r}: `perdure artifacts ls` lists what it has"
        )
    if len(page.rows) > 1:
        ids = ", ".join(row.id for row in page.rows)
        more = " and more" if page.next is not None else ""
        raise BadInput(f"these bytes were put several times, as {ids}{more}: name one by its id")
    return page.rows[0]


# --- get ------------------------------------------------------------------------------------------


async def get(told: Output, depot: Depot, ref: str, file: str, *, force: bool) -> None:
    """Write the bytes to a temporary name beside ``file``, and rename it once they are verified."""
    async with depot.opened() as (store, blobs):
        row = await record_of(store, depot.workspace, ref)
        chunks = blobs.open(depot.workspace, row.sha256)
        with _progress(told, row.id, row.size_bytes) as advance:
            if file == "-":
                await _pour(chunks, sys.stdout.buffer, advance)
                await to_thread.run_sync(sys.stdout.buffer.flush)
                return
            await _save(chunks, Path(file), advance, force=force)
    told.line(f"{row.id} is in {file} ({size_text(row.size_bytes)})")


async def _save(
    chunks: AsyncIterator[bytes], target: Path, advance: Callable[[int], None], *, force: bool
) -> None:
    part, stream = await to_thread.run_sync(_begin, target, force)
    try:
        await _pour(chunks, stream, advance)
        await to_thread.run_sync(_finish, stream, part, target, force)
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(_clear, stream, part)


def _begin(target: Path, force: bool) -> tuple[Path, BinaryIO]:
    """Open the file that the bytes go to first; refused where they could not get their name then."""
    if target.is_dir():
        raise BadInput(f"{str(target)!r} is a folder: name a file in it")
    if not force and os.path.lexists(target):
        raise BadInput(f"{str(target)!r} is there already: name another file, or say --force to replace it")
    part = target.with_name(f".{target.name[:50]}.{os.urandom(6).hex()}.part")
    return part, part.open("xb")


def _finish(stream: BinaryIO, part: Path, target: Path, force: bool) -> None:
    """Give the whole file its name; without ``force`` in one step that a file made meanwhile refuses."""
    stream.flush()
    os.fsync(stream.fileno())
    if force:
        part.replace(target)
        return
    try:
        os.link(part, target)
    except FileExistsError:
        raise BadInput(f"{str(target)!r} has been made meanwhile: nothing was replaced") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        part.replace(target)  # a file system without links: it was looked at before


def _clear(stream: BinaryIO, part: Path) -> None:
    stream.close()
    part.unlink(missing_ok=True)


async def _pour(chunks: AsyncIterator[bytes], stream: BinaryIO, advance: Callable[[int], None]) -> None:
    async for chunk in chunks:
        await to_thread.run_sync(stream.write, chunk)
        advance(len(chunk))


# --- put ------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Deposit:
    """What is put, and how."""

    file: str
    media_type: str
    expires: timedelta | None
    principal: str


async def put(out: Output, depot: Depot, asked: Deposit) -> None:
    """Put a file's bytes, and tell the ref."""
    told = Output(as_json=False, stream=sys.stderr)
    async with depot.opened() as (store, blobs), _source(asked.file) as (stream, size):
        with _progress(told, asked.file, size) as advance:
            ref = await Uploads(store, blobs, Env()).put(
                _chunks(stream, advance),
                media_type=asked.media_type,
                workspace=depot.workspace,
                principal=asked.principal,
                expires=asked.expires,
            )
    shown = {
        "id": ref.id,
        "sha256": ref.sha256,
        "media_type": ref.media_type,
        "size_bytes": ref.size_bytes,
    }
    if out.as_json:
        out.json(shown)
    else:
        out.line(f"{ref.id}  {ref.media_type}, {size_text(ref.size_bytes)}, sha256 {ref.sha256}")


def media_type_of(file: str) -> str:
    """What a file's name says of its bytes."""
    return mimetypes.guess_type(file)[0] or UNKNOWN_TYPE


@asynccontextmanager
async def _source(file: str) -> AsyncGenerator[tuple[BinaryIO, int | None]]:
    if file == "-":
        yield sys.stdin.buffer, None
        return
    stream, size = await to_thread.run_sync(_opened, Path(file))
    try:
        yield stream, size
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(stream.close)


def _opened(path: Path) -> tuple[BinaryIO, int]:
    if path.is_dir():
        raise BadInput(f"{str(path)!r} is a folder: put its files one by one, or an archive of it")
    stream = path.open("rb")
    return stream, os.fstat(stream.fileno()).st_size


async def _chunks(stream: BinaryIO, advance: Callable[[int], None]) -> AsyncIterator[bytes]:
    while chunk := await to_thread.run_sync(stream.read, CHUNK):
        yield chunk
        advance(len(chunk))


# --- verify ---------------------------------------------------------------------------------------


async def verify(out: Output, depot: Depot, refs: Sequence[str]) -> bool:
    """Tell every artifact whose bytes are missing or are not what they were; whether there are any."""
    good, bad = 0, 0
    told = Output(as_json=False, stream=sys.stderr)
    async with depot.opened() as (store, blobs):
        with _progress(told, "verified", None) as advance:
            before = ""
            async for row in _to_verify(store, depot.workspace, refs):
                if row.sha256 == before:
                    continue  # put again at once, as uploads are
                before = row.sha256
                wrong = await _what_is_wrong(blobs, row, advance)
                good, bad = good + (wrong is None), bad + (wrong is not None)
                if wrong is not None:
                    _tell_wrong(out, row, wrong)
    if out.as_json:
        out.json({"good": good, "bad": bad})
    else:
        out.line(f"{good:,} good, {bad:,} damaged or missing")
    return bad > 0


async def _to_verify(store: Store, workspace: str, refs: Sequence[str]) -> AsyncIterator[ArtifactRow]:
    if not refs:
        async for row in rows_of(store, Artifacts(workspace=workspace)):
            yield row
    for ref in refs:
        yield await record_of(store, workspace, ref)


def put_by(row: ArtifactRow) -> str:
    """Who put it: a step, whoever uploaded it, or a signal, which does not say who sends it."""
    if row.thread_id is None:
        return f"upload by {row.principal}"
    return f"signal to {row.thread_id}" if row.seq is None else f"{row.thread_id}@{row.seq}"


async def _what_is_wrong(
    blobs: ArtifactBackend, row: ArtifactRow, advance: Callable[[int], None]
) -> str | None:
    size = 0
    try:
        async for chunk in blobs.open(row.workspace, row.sha256):
            size += len(chunk)
            advance(len(chunk))
    except NoSuchBlob:
        return "missing"
    except BlobDamaged:
        return "damaged"
    return None if size == row.size_bytes else "damaged"


def _tell_wrong(out: Output, row: ArtifactRow, wrong: str) -> None:
    if out.as_json:
        out.json({"id": row.id, "sha256": row.sha256, "thread": row.thread_id, "wrong": wrong})
    else:
        out.line(
            f"{row.id}  {wrong}: {put_by(row)}, sha256 {row.sha256}; putting the same bytes again mends it"
        )


# --- progress -------------------------------------------------------------------------------------


@contextmanager
def _progress(told: Output, what: str, total: int | None) -> Generator[Callable[[int], None]]:
    """A bar on a terminal, and nothing elsewhere."""
    if not told.console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns: list[Any] = [TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn()]
    with Progress(*columns, TransferSpeedColumn(), console=told.console, transient=True) as bars:
        bar = bars.add_task(safe(what)[:60], total=total)
        yield lambda size: bars.advance(bar, size)
