"""What stands in a row for a body that lies in the artifact backend, and what of a record is a body."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from perdure.artifacts import ArtifactBackend, ArtifactError, ArtifactsUnavailable
from perdure.machines import Unreadable
from perdure.stores import (
    Claim,
    Commit,
    InboxRow,
    ItemsRow,
    KeyRow,
    LogRow,
    MemoryRow,
    MessageRow,
    OutboxRow,
    Remember,
    Signal,
    Start,
    StoreUnavailable,
)

R = TypeVar("R")

MAGIC = b"\x00perdure:spilled\x00"
"""No JSON begins so."""
_ENVELOPE = re.compile(re.escape(MAGIC) + rb'"([0-9a-f]{64})" ([0-9]{1,12})')

PUT_BACK = "put it back from a backup (`perdure artifacts put` takes the same bytes)"
"""What mends a body that is gone."""

Swap = Callable[[bytes], bytes]


@frozen
class Spilled:
    """Where a body lies."""

    sha256: str
    size_bytes: int

    @property
    def envelope(self) -> bytes:
        """What a row holds in the body's place; the digest stands as it would in JSON that cites it."""
        return MAGIC + f'"{self.sha256}" {self.size_bytes}'.encode()


def is_spilled(body: bytes | None) -> bool:
    """Whether a row holds an envelope, rather than the body."""
    return body is not None and body.startswith(MAGIC)


def spilled_in(body: bytes, where: str = "a row") -> Spilled:
    """What an envelope says; ``Unreadable`` where it is none."""
    found = _ENVELOPE.fullmatch(body)
    if found is None:
        raise Unreadable(f"{where}: its body lies outside of the store, and what names it is damaged")
    return Spilled(found[1].decode(), int(found[2]))


class BodyLost(Unreadable):
    """What lies in the artifacts for a row is missing or damaged there. ``where``: which row that is."""

    def __init__(self, where: str, said: str) -> None:
        super().__init__(f"{where}: {said}: {PUT_BACK}")
        self.where = where
        self.said = said


def words_of_lost(body: bytes) -> str:
    """What is wrong with a row that holds an envelope still once it was read."""
    spilled = spilled_in(body)
    return (
        f"its {spilled.size_bytes:,} bytes lie in the artifacts as blob {spilled.sha256}, missing or "
        f"damaged there: {PUT_BACK}"
    )


async def read_spilled(artifacts: ArtifactBackend, workspace: str, body: bytes, where: str) -> bytes:
    """The body that an envelope stands for; ``Unreadable`` names its blob where that is gone or damaged."""
    spilled = spilled_in(body, where)
    try:
        return b"".join([chunk async for chunk in artifacts.open(workspace, spilled.sha256)])
    except ArtifactsUnavailable as error:
        raise StoreUnavailable(f"{where}: its body cannot be read now: {error}") from error
    except ArtifactError as error:
        said = (
            f"its body of {spilled.size_bytes:,} bytes lies in the artifacts, in workspace {workspace!r} as "
            f"blob {spilled.sha256}, and that cannot be read ({type(error).__name__}: {error})"
        )
        raise BodyLost(where, said) from error


# --- the bodies of rows ---------------------------------------------------------------------------

_NAMES: dict[type[Any], str] = {MemoryRow: "value", KeyRow: "outcome"}


def _field_of(row: object) -> str:
    return _NAMES.get(type(row), "payload")


def body_of(row: object) -> bytes | None:
    """What a row that a page brings holds as its body."""
    body: bytes | None = getattr(row, _field_of(row))
    return body


def with_body(row: R, body: bytes) -> R:
    """The row with its body in the envelope's place."""
    changes: dict[str, Any] = {_field_of(row): body}
    return evolve(row, **changes)  # type: ignore[misc]


def words_of_row(row: object, thread_id: str | None) -> str:
    """Which record it is, in the words of an error."""
    thread = "" if thread_id is None else f"thread {thread_id!r}: "
    match row:
        case LogRow():
            return f"{thread}row {row.n} of its journal"
        case ItemsRow():
            return f"{thread}what row {row.n} of its journal appended"
        case InboxRow():
            return f"{thread}signal {row.id!r}"
        case OutboxRow():
            return f"{thread}what it sent to {row.target.thread_id!r} at seq {row.seq}"
        case MessageRow():
            return f"session {row.session!r}: message {row.number}"
        case MemoryRow():
            return f"memory {row.namespace}/{row.key}, version {row.version}"
        case KeyRow():
            return f"key {row.key!r} of effect {row.effect!r}"
        case _:
            return f"a {type(row).__name__}"


def fitting(rows: Sequence[object], most: int) -> int:
    """How many of a page's first rows have no more than so many bytes of bodies; at least one."""
    size = 0
    for at, row in enumerate(rows):
        body = body_of(row) or b""
        size += spilled_in(body).size_bytes if is_spilled(body) else len(body)
        if size > most and at:
            return at
    return len(rows)


def has_spilled(claim: Claim) -> bool:
    """Whether any of a claim's rows holds an envelope."""
    rows: Iterable[LogRow | ItemsRow | InboxRow]
    for rows in (claim.log, claim.items, claim.inbox):
        for row in rows:
            if row.payload.startswith(MAGIC):
                return True
    return False


# --- the bodies of writes -------------------------------------------------------------------------


@frozen
class Bodies:
    """A write's bodies, by what they live as long as."""

    of_thread: Sequence[bytes | None]
    of_memory: Sequence[bytes | None] = field(default=())


def is_small(commit: Commit, limit: int) -> bool:
    """Whether a commit has nothing but a payload of at most so many bytes, as most have."""
    payload = commit.log.payload
    return (
        len(payload) <= limit
        and not payload.startswith(MAGIC)
        and commit.items is None
        and not (commit.messages or commit.memory or commit.checks or commit.keys or commit.outbox)
    )


def bodies_of(write: Commit | Start | Signal | Remember) -> Bodies:
    """What a write holds that a store never reads."""
    match write:
        case Signal():
            return Bodies([write.payload])
        case Remember():
            return Bodies([], [write.value])
        case Start():
            signals = [signal.payload for signal in write.signals]
            return Bodies([write.log.payload, write.items, *write.messages, *signals])
        case Commit():
            keys = [key.outcome for key in write.keys]
            sent = [row.payload for row in write.outbox]
            of_thread = [write.log.payload, write.items, *write.messages, *keys, *sent]
            return Bodies(of_thread, [each.value for each in write.memory])


def commit_with(commit: Commit, swap: Swap) -> Commit:
    """The commit with each of its bodies swapped."""
    return evolve(
        commit,
        log=evolve(commit.log, payload=swap(commit.log.payload)),
        items=_maybe(commit.items, swap),
        messages=tuple(map(swap, commit.messages)),
        memory=tuple(evolve(each, value=_maybe(each.value, swap)) for each in commit.memory),
        keys=tuple(evolve(each, outcome=_maybe(each.outcome, swap)) for each in commit.keys),
        outbox=tuple(evolve(each, payload=swap(each.payload)) for each in commit.outbox),
    )


def start_with(start: Start, swap: Swap) -> Start:
    """The same of a start."""
    return evolve(
        start,
        log=evolve(start.log, payload=swap(start.log.payload)),
        items=_maybe(start.items, swap),
        messages=tuple(map(swap, start.messages)),
        signals=tuple(signal_with(signal, swap) for signal in start.signals),
    )


def signal_with(signal: Signal, swap: Swap) -> Signal:
    """The same of a signal."""
    return evolve(signal, payload=swap(signal.payload))


def remember_with(write: Remember, swap: Swap) -> Remember:
    """The same of a memory write."""
    return evolve(write, value=_maybe(write.value, swap))


def _maybe(body: bytes | None, swap: Swap) -> bytes | None:
    return None if body is None else swap(body)
