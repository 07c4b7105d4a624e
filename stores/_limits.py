"""One set of limits for every store, checked at the edge."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence, Sized

from ._errors import TooLarge
from ._kinds import StoredRow, ThreadPart, bytes_of_row, key_of_row, kind_of_row
from ._outside import Expire, Remember
from ._records import (
    ArtifactRow,
    Commit,
    InboxRow,
    KeyRow,
    MemoryRow,
    MessageRow,
    OutboxRow,
    Signal,
    Start,
    ThreadRow,
)

MAX_WORKSPACE = 128
"""Bytes of UTF-8 in a workspace."""
MAX_NAME = 255
"""Bytes of UTF-8 in a principal, namespace, memory key, signal id, effect, explicit key or artifact id."""
MAX_ID = 512
"""Bytes of UTF-8 in a thread id or session."""
MAX_BODY = 256 * 1024
"""Bytes of one body: a log payload, items, message, memory value, outcome or signal payload. What is larger
the runtime keeps in the artifacts."""
MAX_WRITE = 3 * 1024 * 1024
"""Bytes of all bodies of one start, commit or ``restore``."""
MAX_OUTSIDE = 64
"""Memory keys, checks, messages, artifacts, explicit keys and outbox entries that one commit may write."""
MAX_CONSUMED = 16
"""Inbox entries that one commit may take in."""
MAX_SOURCES = 64
"""Names in an artifact's ``derived_from``, each of at most ``MAX_ID`` bytes."""
MAX_RESTORED = 25
"""Rows of one ``restore``, whose bodies have together at most ``MAX_WRITE`` bytes."""
MAX_PRIORITY = 10
"""How far a thread's priority may be from 0, up and down."""


def check_name(what: str, value: str, limit: int = MAX_NAME) -> None:
    """Refuse a name that some store could not hold or show; ``TooLarge``, ``ValueError`` or, for what is no
    text, ``TypeError`` names it."""
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{what} is {value!r}, of type {type(value).__name__}: it must be text")  # pyright: ignore[reportUnreachable]
    if not value:
        raise ValueError(f"{what} is empty: give it at least one character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} {value!r} holds a lone surrogate: it is not valid Unicode") from None
    if size > limit:
        raise TooLarge(f"{what} {value[:40]!r}... has {size} bytes in UTF-8: at most {limit} are allowed")
    for character in value:
        if unicodedata.category(character) == "Cc":
            raise ValueError(f"{what} {value!r} holds the control character {character!r}: leave it out")


def check_priority(what: str, value: int) -> None:
    """Refuse what is no priority with ``ValueError``."""
    if type(value) is not int or not -MAX_PRIORITY <= value <= MAX_PRIORITY:
        raise ValueError(f"{what} is {value!r}: it is a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")


def check_body(what: str, body: bytes | None) -> None:
    """Refuse a body over the limit with ``TooLarge``."""
    if body is not None and len(body) > MAX_BODY:
        raise TooLarge(f"{what} has {len(body):,} bytes: at most {MAX_BODY:,} fit; put it into an artifact")


def _check_write(thread: str, bodies: Iterable[bytes | None]) -> None:
    """Refuse bodies that are too much together."""
    size = sum(len(body) for body in bodies if body is not None)
    if size > MAX_WRITE:
        raise TooLarge(
            f"one write of {thread} has bodies of {size:,} bytes: at most {MAX_WRITE:,} fit; put what is "
            "large into artifacts"
        )


def _check_note(thread: str, note: str | None) -> None:
    """Refuse a note that some store could not hold."""
    if note is None:
        return
    try:
        note.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the note of {thread} holds a lone surrogate: it is not valid Unicode") from None
    if "\0" in note:
        raise ValueError(f"the note of {thread} holds the character NUL: write it as an escape")


def check_start(start: Start) -> None:
    """Refuse a start that is over a limit."""
    check_name("workspace", start.address.workspace, MAX_WORKSPACE)
    check_name("thread id", start.address.thread_id, MAX_ID)
    check_name("session", start.session, MAX_ID)
    check_name("principal", start.principal)
    thread = f"data of thread {start.address.thread_id!r}"
    check_body(thread, start.log.payload)
    check_body(thread, start.items)
    for message in start.messages:
        check_body(f"message of thread {start.address.thread_id!r}", message)
    _check_note(f"thread {start.address.thread_id!r}", start.standing.note)
    check_priority(f"thread {start.address.thread_id!r}: priority", start.priority)
    for signal in start.signals:
        check_signal(signal)
        if signal.address != start.address:
            raise ValueError(
                f"signal {signal.id!r} goes to thread {signal.address.thread_id!r}, and is to be put into "
                f"the inbox of thread {start.address.thread_id!r}: deliver it by itself"
            )
    if len({signal.id for signal in start.signals}) < len(start.signals):
        raise ValueError(
            f"thread {start.address.thread_id!r} starts with two signals of one id: give each its own"
        )
    if len(start.messages) + len(start.signals) > MAX_OUTSIDE:
        raise TooLarge(
            f"thread {start.address.thread_id!r} starts with {len(start.messages)} messages and "
            f"{len(start.signals)} signals: at most {MAX_OUTSIDE} fit; deliver the others by themselves"
        )
    signals = (signal.payload for signal in start.signals)
    bodies = (start.log.payload, start.items, *start.messages, *signals)
    _check_write(f"thread {start.address.thread_id!r}", bodies)


def check_commit(commit: Commit) -> None:
    """Refuse a commit that is over a limit, naming its thread."""
    thread = f"thread {commit.address.thread_id!r}"
    check_body(f"a step's record of {thread}", commit.log.payload)
    check_body(f"what a step of {thread} appended", commit.items)
    _check_note(thread, commit.standing.note)
    if len(commit.consumed) > MAX_CONSUMED:
        raise TooLarge(
            f"one commit of {thread} takes in {len(commit.consumed)} signals: at most {MAX_CONSUMED} fit; "
            "take in the others with the next one"
        )
    if not any(_outside(commit)):  # as of most steps
        return
    for message in commit.messages:
        check_body(f"message of {thread}", message)
    for write in commit.memory:
        check_name(f"{thread}: memory namespace", write.namespace)
        check_name(f"{thread}: memory key", write.key)
        check_body(f"{thread}: memory {write.namespace}/{write.key}", write.value)
    if len({(write.namespace, write.key) for write in commit.memory}) < len(commit.memory):
        raise ValueError(f"one commit of {thread} writes a memory key twice: write its last value only")
    for artifact in commit.artifacts:
        check_artifact(artifact)
    for key in commit.keys:
        check_name(f"{thread}: effect", key.effect)
        check_name(f"{thread}: key of effect {key.effect!r}", key.key)
        check_body(f"{thread}: outcome of {key.effect!r}", key.outcome)
    for sent in commit.outbox:
        check_name(f"{thread}: workspace written to", sent.target.workspace, MAX_WORKSPACE)
        check_name(f"{thread}: thread id written to", sent.target.thread_id, MAX_ID)
        check_body(f"what {thread} sends to {sent.target.thread_id!r}", sent.payload)
    check_outside(commit)
    outside = (
        *commit.messages,
        *(write.value for write in commit.memory),
        *(key.outcome for key in commit.keys),
        *(sent.payload for sent in commit.outbox),
    )
    _check_write(thread, (commit.log.payload, commit.items, *outside))


def check_outside(commit: Commit) -> None:
    """Refuse a commit that writes too many rows outside of its thread."""
    outside = sum(map(len, _outside(commit)))
    if outside > MAX_OUTSIDE:
        raise TooLarge(
            f"one step of thread {commit.address.thread_id!r} writes {outside} memory keys, messages and "
            f"other outside rows: at most {MAX_OUTSIDE} fit into a commit; split the step"
        )


def _outside(commit: Commit) -> tuple[Sized, ...]:
    return (
        commit.messages,
        commit.memory,
        commit.checks,
        commit.artifacts,
        commit.dropped_artifacts,
        commit.keys,
        commit.outbox,
    )


def check_artifact(artifact: ArtifactRow) -> None:
    """Refuse an artifact record that is over a limit."""
    check_name("workspace", artifact.workspace, MAX_WORKSPACE)
    check_name("artifact id", artifact.id)
    check_name(f"principal of artifact {artifact.id!r}", artifact.principal)
    check_name(f"media type of artifact {artifact.id!r}", artifact.media_type)
    for source in artifact.derived_from:
        check_name(f"a source of artifact {artifact.id!r}", source, MAX_ID)
    if len(artifact.derived_from) > MAX_SOURCES:
        raise TooLarge(
            f"artifact {artifact.id!r} names {len(artifact.derived_from)} sources: at most {MAX_SOURCES} "
            "fit; name those that matter"
        )


def check_remember(write: Remember) -> None:
    """Refuse a memory write that is over a limit."""
    check_name("workspace", write.workspace, MAX_WORKSPACE)
    check_name("memory namespace", write.namespace)
    check_name("memory key", write.key)
    check_name("principal", write.principal)
    check_name("id of a memory write", write.id)
    check_body(f"memory {write.namespace}/{write.key}", write.value)


def check_expire(request: Expire) -> None:
    """Refuse a limit that takes nothing."""
    if request.limit < 1:
        raise ValueError(f"{request.limit} records were to expire: limit must be at least 1")


def check_signal(signal: Signal) -> None:
    """Refuse a signal that is over a limit."""
    check_name("workspace", signal.address.workspace, MAX_WORKSPACE)
    check_name("thread id", signal.address.thread_id, MAX_ID)
    check_name("signal id", signal.id)
    check_body(f"signal {signal.id!r}", signal.payload)


def check_restore(rows: Sequence[StoredRow]) -> None:
    """Refuse a batch that is over a limit, or that names a row twice."""
    if len(rows) > MAX_RESTORED:
        raise TooLarge(f"{len(rows)} rows were to be restored: at most {MAX_RESTORED} fit into one batch")
    for row in rows:
        for what, name, limit in _names(row):
            check_name(f"{what} of a {kind_of_row(row)} row", name, limit)
    sizes = [bytes_of_row(row) for row in rows]
    for row, size in zip(rows, sizes, strict=True):
        if size > MAX_BODY:
            raise TooLarge(
                f"a {kind_of_row(row)} row, {key_of_row(row)}, has {size:,} bytes: at most {MAX_BODY:,} fit"
            )
    if sum(sizes) > MAX_WRITE:
        raise TooLarge(
            f"{len(rows)} rows of {sum(sizes):,} bytes were to be restored: at most {MAX_WRITE:,} fit into "
            "one batch; restore fewer at once"
        )
    if len({(kind_of_row(row), key_of_row(row)) for row in rows}) < len(rows):
        raise ValueError("a batch restores a row twice: give each row once")


def _names(row: StoredRow) -> Iterator[tuple[str, str, int]]:
    if isinstance(row, ThreadPart | ThreadRow):
        yield "workspace", row.address.workspace, MAX_WORKSPACE
        yield "thread id", row.address.thread_id, MAX_ID
    if isinstance(row, MemoryRow | ArtifactRow | KeyRow | MessageRow):
        yield "workspace", row.workspace, MAX_WORKSPACE
    if isinstance(row, MemoryRow | ArtifactRow | MessageRow | ThreadRow):
        yield "principal", row.principal, MAX_NAME
    if isinstance(row, MessageRow | ThreadRow):
        yield "session", row.session, MAX_ID
    match row:
        case MemoryRow():
            yield "namespace", row.namespace, MAX_NAME
            yield "key", row.key, MAX_NAME
        case ArtifactRow():
            yield "id", row.id, MAX_NAME
        case KeyRow():
            yield "effect", row.effect, MAX_NAME
            yield "key", row.key, MAX_NAME
        case ThreadPart(row=InboxRow(id=id_)):
            yield "signal id", id_, MAX_NAME
        case ThreadPart(row=OutboxRow(target=target)):
            yield "target workspace", target.workspace, MAX_WORKSPACE
            yield "target thread id", target.thread_id, MAX_ID
        case _:
            pass
