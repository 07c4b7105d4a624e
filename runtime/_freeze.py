"""Checkpoints of real threads as readable files, so that a project's tests can load them without the store.

A file holds what a claim of the thread brings: its row, its log from the newest snapshot on, items, pending
messages and the session's messages. What the log rows say is kept byte for byte, but for blanks.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from anyio import to_thread
from attrs import define, evolve, field, frozen

from perdure.machines import Definition, Unreadable
from perdure.stores import (
    Claim,
    InboxRow,
    ItemsRow,
    LogKind,
    LogRow,
    MemoryStore,
    Messages,
    Store,
    ThreadRow,
)

from ._book import Book
from ._check import Checked, Checker, claim_of
from ._check_store import Report, live_threads
from ._env import Env
from ._journal import entries_of_visit
from ._look import DAMAGE, rows_of

FORMAT = 1
HOLDS = "real data of one thread: look it over before you commit it"
LONGEST = 120
"""Characters of a file's name, at most."""


class _Log(msgspec.Struct):
    n: int
    seq: int
    epoch: int
    kind: LogKind
    at: int
    schema: int
    payload: msgspec.Raw


class _Items(msgspec.Struct):
    n: int
    schema: int
    payload: msgspec.Raw


class _Message(msgspec.Struct):
    number: int
    id: str
    event: str
    at: int
    schema: int
    payload: msgspec.Raw
    version: int = 0


_T = TypeVar("_T", LogRow, ItemsRow, InboxRow)
_W = TypeVar("_W", _Log, _Items, _Message)


class _File(msgspec.Struct):
    frozen: int
    holds: str
    shape: dict[str, msgspec.Raw]
    thread: msgspec.Raw
    log: list[_Log]
    items: list[_Items]
    inbox: list[_Message]
    messages: list[msgspec.Raw]


@frozen(kw_only=True)
class Shape:
    """What threads have in common of which one is kept."""

    machine: str
    version: int
    state: str
    status: str
    reason: str | None
    pending: tuple[str, ...]
    """Events of the messages in the inbox."""
    calls: tuple[str, ...]
    """Effects of the unfinished visit, with what became of them."""

    @property
    def file_name(self) -> str:
        """Its parts, as far as a file's name can hold them, and a digest that no other shape has."""
        said = [self.machine, f"v{self.version}", self.state, self.reason or self.status]
        said += [f"{event.lstrip(':')} pending" for event in self.pending] + list(self.calls)
        plain = "-".join(re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") for part in said)
        digest = blake2b(msgspec.json.encode(self), digest_size=3).hexdigest()
        return f"{plain[:LONGEST]}-{digest}"


def shape_of(claim: Claim) -> Shape:
    """A thread's shape. What reading its log raises, where that is damaged."""
    standing, book = claim.thread.standing, Book()
    for row in claim.log:
        book.apply_all(entries_of_visit(row, standing.seq))
    return Shape(
        machine=claim.thread.machine,
        version=standing.version,
        state=standing.state,
        status=standing.status,
        reason=standing.reason,
        pending=tuple(sorted({message.event for message in claim.inbox})),
        calls=tuple(sorted({f"{record.call} {record.outcome}" for record in book.effects.values()})),
    )


@frozen(kw_only=True)
class Kept:
    """One checkpoint as a file holds it."""

    claim: Claim
    messages: Sequence[bytes] = field(default=())
    """Those of the session that the thread sees, encoded."""

    def encoded(self, shape: Shape) -> bytes:
        """The file, indented. ``ValueError`` where the thread's record is purged or is no JSON."""
        claim = self.claim
        if any(row.salt is None for row in claim.log):
            raise ValueError("its log was purged")
        wire = _File(
            frozen=FORMAT,
            holds=HOLDS,
            shape=msgspec.json.decode(msgspec.json.encode(shape), type=dict[str, msgspec.Raw]),
            thread=_raw(msgspec.json.encode(evolve(claim.thread, started=b"", head=b""))),
            log=[_to_wire(_Log, row) for row in claim.log],
            items=[_to_wire(_Items, row) for row in claim.items],
            inbox=[_to_wire(_Message, row) for row in claim.inbox],
            messages=[_raw(message) for message in self.messages],
        )
        return msgspec.json.format(msgspec.json.encode(wire), indent=2) + b"\n"

    @classmethod
    def decoded(cls, stored: bytes, name: str) -> Kept:
        """The reverse. ``Unreadable`` names the file, where it is none of these."""
        try:
            wire = msgspec.json.decode(stored, type=_File)
            if wire.frozen != FORMAT:
                raise ValueError(f"it is of format {wire.frozen}, and this perdure reads {FORMAT}")
            return cls(claim=_claim(wire), messages=[_plain(message) for message in wire.messages])
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unreadable(f"{name} is no frozen checkpoint: {error}") from error


def _claim(wire: _File) -> Claim:
    return Claim(
        thread=msgspec.json.decode(wire.thread, type=ThreadRow),
        log=tuple(_from_wire(LogRow, row, head=b"", salt=b"") for row in wire.log),
        items=tuple(_from_wire(ItemsRow, row) for row in wire.items),
        inbox=tuple(_from_wire(InboxRow, row, digest=b"") for row in wire.inbox),
        taken_from=None,
    )


def _raw(encoded: bytes) -> msgspec.Raw:
    return msgspec.Raw(encoded or b"null")


def _plain(indented: msgspec.Raw) -> bytes:
    """As it was stored: nothing but blanks between its parts was added."""
    return msgspec.json.format(bytes(indented), indent=-1)


def _to_wire(kind: type[_W], row: object) -> _W:
    """The fields that both have."""
    make = cast("Callable[..., _W]", kind)
    fields = {name: getattr(row, name) for name in kind.__struct_fields__}
    return make(**{**fields, "payload": _raw(fields["payload"])})


def _from_wire(kind: type[_T], row: _Log | _Items | _Message, **more: Any) -> _T:
    """The reverse; ``more``: what a file does not hold."""
    make = cast("Callable[..., _T]", kind)
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    return make(**{**fields, "payload": _plain(row.payload), **more})


# --- from a store to a folder, and back -----------------------------------------------------------


@frozen(kw_only=True)
class Copy:
    """One thread's checkpoint, encoded."""

    thread: ThreadRow
    name: str
    """Its file's."""
    shape: Shape
    content: bytes


@frozen(kw_only=True)
class Refused:
    """A thread whose record cannot be copied, and why."""

    thread: ThreadRow
    why: str


@define(kw_only=True)
class Written:
    """What was frozen."""

    files: dict[str, Shape] = field(factory=dict[str, Shape])
    threads: int = 0
    """Threads that were looked at."""
    skipped: list[str] = field(factory=list[str])
    """Threads whose record cannot be copied, each with the reason."""


async def freeze(store: Store, definitions: Mapping[str, Definition], folder: Path, each: int) -> Written:
    """Write a file for each copy. Those that are there already stay, unless one has the same name."""
    written = Written()
    async for found in copies(store, definitions, each):
        written.threads += 1
        if isinstance(found, Refused):
            address = found.thread.address
            written.skipped.append(f"{address.workspace}/{address.thread_id}: {found.why}")
        elif found is not None:
            await to_thread.run_sync((folder / found.name).write_bytes, found.content)
            written.files[found.name] = found.shape
    return written


async def copies(
    store: Store, definitions: Mapping[str, Definition], each: int
) -> AsyncIterator[Copy | Refused | None]:
    """What becomes of each thread of these machines that has not ended: the first ones of each shape are
    copied, ``each`` at most, by workspace and id; of the others it is None."""
    counts: Counter[Shape] = Counter()
    async for row in live_threads(store):
        if row.machine in definitions:
            try:
                yield await _copy(store, row, counts, each)
            except DAMAGE as error:
                yield Refused(thread=row, why=str(error))


async def _copy(store: Store, row: ThreadRow, counts: Counter[Shape], each: int) -> Copy | None:
    claim = await claim_of(store, row)
    shape = shape_of(claim)
    if counts[shape] == each:
        return None
    kept = Kept(claim=claim, messages=await _messages(store, row))
    content = kept.encoded(shape)
    counts[shape] += 1
    number = f"-{counts[shape]}" if counts[shape] > 1 else ""
    return Copy(thread=row, name=f"{shape.file_name}{number}.json", shape=shape, content=content)


async def _messages(store: Store, row: ThreadRow) -> Sequence[bytes]:
    query = Messages(
        workspace=row.address.workspace,
        session=row.session,
        since=row.session_since,
        incarnation=row.incarnation,
    )
    return [message.payload async for message in rows_of(store, query)]


def kept_in(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a folder, by name. ``ValueError`` where there are none."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"no frozen checkpoints are in {str(folder)!r}: `perdure freeze` writes them")
    for path in paths:
        yield str(path), path.read_bytes()


def judge(definitions: Mapping[str, Definition], path: str, stored: bytes) -> Checked:
    """Look at what a file holds as at a store's thread. ``Unreadable`` names one that is no checkpoint."""
    kept = Kept.decoded(stored, path)
    # At the moment of its last commit: what fits today fits next year.
    then = kept.claim.thread.updated
    checker = Checker(MemoryStore(), definitions, Env(now=partial(int, then)))
    return evolve(checker.claim(kept.claim, kept.messages), source=os.path.basename(path))


def check_folder(definitions: Mapping[str, Definition], folder: Path) -> Report:
    """Look at the checkpoints in a folder; no loop is needed."""
    report = Report()
    for path, stored in kept_in(folder):
        report.take(judge(definitions, path, stored))
    return report
