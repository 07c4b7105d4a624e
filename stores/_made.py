"""The rows that writes make, and what becomes of a thread by them: the same on every store that keeps records
whole."""

from __future__ import annotations

from attrs import evolve

from ._outside import Remember
from ._records import (
    Commit,
    InboxRow,
    KeyRow,
    KeyWrite,
    MemoryRow,
    MemoryWrite,
    MessageRow,
    Micros,
    Signal,
    Standing,
    Start,
    ThreadRow,
)


def thread_made(start: Start, *, standing: Standing, inbox: int, session_since: int) -> ThreadRow:
    """A thread as it begins, with what came for it before."""
    return ThreadRow(
        address=start.address,
        incarnation=start.incarnation,
        machine=start.machine,
        standing=standing,
        n=1,
        epoch=0 if start.owner is None else 1,
        owner=start.owner,
        head=start.log.head,
        session=start.session,
        session_since=session_since,
        principal=start.principal,
        parent=start.parent,
        started=start.started,
        crashes=0,
        inbox=inbox,
        created=start.log.at,
        updated=start.log.at,
        priority=start.priority,
    )


def entry_made(signal: Signal, number: int, at: Micros) -> InboxRow:
    return InboxRow(
        number=number,
        id=signal.id,
        event=signal.event,
        payload=signal.payload,
        digest=signal.digest,
        at=at,
        version=signal.version,
    )


def message_made(write: Start | Commit, number: int, payload: bytes) -> MessageRow:
    return MessageRow(
        workspace=write.address.workspace,
        session=write.session,
        number=number,
        thread_id=write.address.thread_id,
        incarnation=write.incarnation,
        principal=write.principal,
        payload=payload,
        at=write.log.at,
    )


def version_made(commit: Commit, write: MemoryWrite) -> MemoryRow:
    return MemoryRow(
        workspace=commit.address.workspace,
        namespace=write.namespace,
        key=write.key,
        version=write.expected + 1,
        value=write.value,
        at=commit.log.at,
        thread_id=commit.address.thread_id,
        seq=commit.log.seq,
        principal=commit.principal,
        expires=write.expires,
    )


def remembered(write: Remember, version: int, at: Micros) -> MemoryRow:
    return MemoryRow(
        workspace=write.workspace,
        namespace=write.namespace,
        key=write.key,
        version=version,
        value=write.value,
        at=at,
        thread_id=None,
        seq=None,
        principal=write.principal,
        expires=write.expires,
        request=write.id,
    )


def key_claimed(commit: Commit, write: KeyWrite) -> KeyRow:
    return KeyRow(
        workspace=commit.address.workspace,
        effect=write.effect,
        key=write.key,
        arguments=write.arguments,
        salt=write.salt,
        thread_id=commit.address.thread_id,
        incarnation=commit.incarnation,
        seq=commit.visit,
        outcome=write.outcome,
        at=commit.log.at,
        expires=write.expires,
    )


def visit_of(row: KeyRow) -> tuple[str, bytes, int]:
    """Which visit has the key."""
    return row.thread_id, row.incarnation, row.seq


def holds(thread: ThreadRow, incarnation: bytes, epoch: int) -> bool:
    """The claim of this epoch is still the thread's."""
    return thread.incarnation == incarnation and thread.epoch == epoch and thread.owner is not None


def said_of_stale(commit: Commit, thread: ThreadRow | None) -> str:
    """Why a commit is not this thread's any more."""
    what = f"a commit to thread {commit.address.thread_id!r} at epoch {commit.epoch}, position {commit.log.n}"
    if thread is None or thread.incarnation != commit.incarnation:
        return f"{what} is refused: there is no such thread any more, or another one under its id"
    held = f"claimed by {thread.owner!r}" if thread.owner is not None else "claimed by nobody"
    return f"{what} is refused: the thread is at epoch {thread.epoch}, position {thread.n}, {held}"


def at_least(standing: Standing, version: int) -> Standing:
    """Its version never falls."""
    return evolve(standing, version=max(standing.version, version))


def due_at_once(standing: Standing, news: bool, now: Micros) -> Standing:
    """A waiting thread with something in its inbox that nobody has examined is due now."""
    if standing.status != "waiting" or not news:
        return standing
    return evolve(standing, wake=now if standing.wake is None else min(standing.wake, now))
