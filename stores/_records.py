"""What passes through the store's seam: frozen records of bytes and plain values.

Times are integers: microseconds since the Unix epoch, UTC. Bodies are bytes that the store keeps and
never reads. Every address begins with the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

Micros = int
"""Microseconds since the epoch, UTC."""
Status = Literal["running", "waiting", "parked", "ended"]
"""What becomes of a thread next: a worker runs it, an event or the clock wakes it, an operator moves it on,
or nothing does."""
LogKind = Literal["start", "transition", "record", "park", "resolve"]
"""What a row of the journal tells of."""

SCHEMA = 2
"""The version that every row written by this release carries."""


@frozen(kw_only=True)
class Address:
    """Where a thread is found."""

    workspace: str
    thread_id: str


@frozen(kw_only=True)
class LogRow:
    """One commit's journal row. Position ``n`` counts a thread's commits from 0, without gaps.

    A ``start`` or ``transition`` row *is* checkpoint ``seq``; every other row belongs to the visit that
    began with checkpoint ``seq``. ``head`` is the chain's hash up to and including this row, and the
    commit's digest: no two commits share one, since each payload is sealed with a salt of its own. Once the
    payload is purged, ``salt`` is None, and ``payload`` is the digest that the chain goes on with in its
    place.
    """

    seq: int
    n: int
    epoch: int
    kind: LogKind
    at: Micros
    head: bytes
    salt: bytes | None
    payload: bytes
    schema: int = SCHEMA


@frozen(kw_only=True)
class Standing:
    """What a commit leaves on the thread's row."""

    state: str
    seq: int
    version: int
    definition: str
    status: Status
    base: int
    """Position of the log row that holds the newest base snapshot."""
    reason: str | None = None
    """Why the thread is parked, or how it ended: one of the named reasons."""
    note: str | None = None
    """One line for people about ``reason``, without NUL."""
    wake: Micros | None = None
    """When a waiting thread is due; None: only a signal wakes it."""
    expires: Micros | None = None
    items: int = 0
    """Position of the first items row that the data still needs: a claim brings none before it."""


@frozen(kw_only=True)
class ThreadRow:
    """One thread as it stands."""

    address: Address
    incarnation: bytes
    """16 random bytes drawn when the thread was created."""
    machine: str
    standing: Standing
    n: int
    """How many log rows the thread has: the position of the next one."""
    epoch: int
    owner: str | None
    """The worker that holds the claim."""
    head: bytes
    """``head`` of the newest log row."""
    session: str
    session_since: int
    """Number of the session's last message when the thread started (0: none)."""
    principal: str
    parent: str | None
    started: bytes
    """Digest of what the thread was started with."""
    crashes: int
    """Take-overs from a dead worker since the thread last recorded anything."""
    inbox: int
    """Number of the last inbox entry (0: none)."""
    created: Micros
    """``at`` of the first log row."""
    updated: Micros
    """``at`` of the newest log row."""
    priority: int = 0
    """From -10 to 10: which of a workspace's threads a worker claims first. A point counts as a minute of
    waiting, so that a thread of a low one has its turn too."""
    schema: int = SCHEMA


@frozen(kw_only=True)
class InboxRow:
    """One accepted signal. ``number`` orders a thread's inbox from 1; ``at`` is the store's clock."""

    number: int
    id: str
    event: str
    payload: bytes
    digest: bytes
    at: Micros
    consumed: int | None = None
    """The checkpoint that took it in; None: pending."""
    version: int = 0
    """The machine's version whose types the payload was checked against; 0: none, a message of the
    runtime's own."""
    schema: int = SCHEMA


@frozen(kw_only=True)
class ItemsRow:
    """Items that the commit at position ``n`` appended to the thread's data, packed."""

    n: int
    payload: bytes
    schema: int = SCHEMA


@frozen(kw_only=True)
class MessageRow:
    """One message of a session. Numbers count from 1 within the session and are allotted by the commit.

    ``at`` is the log row's.
    """

    workspace: str
    session: str
    number: int
    thread_id: str
    incarnation: bytes
    principal: str
    payload: bytes
    at: Micros
    schema: int = SCHEMA


@frozen(kw_only=True)
class MemoryRow:
    """One version of one memory key, counted from 1. Earlier versions stay readable as history.

    A deletion is a version like any other, and the count goes on behind it. ``at`` is the log row's, and
    the store's clock where it was written outside of a thread. A store keeps the ``expires`` stamp and does
    not judge it: an expired row is still the newest, until ``Store.expire`` makes a deletion of it.
    """

    workspace: str
    namespace: str
    key: str
    version: int
    value: bytes | None
    """None: this version is a deletion."""
    at: Micros
    thread_id: str | None
    seq: int | None
    """``seq`` of the log row that it landed with."""
    principal: str
    expires: Micros | None = None
    request: str | None = None
    """``Remember.id`` of the write outside of any thread that made it; None: a thread's commit did."""
    schema: int = SCHEMA


@frozen(kw_only=True)
class MemoryWrite:
    """A memory key's next version, judged inside the commit. A commit writes a key at most once."""

    namespace: str
    key: str
    value: bytes | None
    expected: int
    """The newest version that the writer knows (0: none). Another one refuses the commit."""
    expires: Micros | None = None


@frozen(kw_only=True)
class MemoryCheck:
    """A version that this commit's decision rests on: another newest version refuses the commit."""

    namespace: str
    key: str
    version: int


@frozen(kw_only=True)
class ArtifactRow:
    """One put of one blob, with its provenance. The blob itself lies in the artifact backend."""

    id: str
    workspace: str
    sha256: str
    size_bytes: int
    media_type: str
    principal: str
    thread_id: str | None
    incarnation: bytes | None
    seq: int | None
    """The visit that put it. Pending until the thread's ``seq`` is greater."""
    derived_from: tuple[str, ...]
    """Ids of artifacts and names of calls that it was made from, at most ``MAX_SOURCES``."""
    created: Micros
    expires: Micros | None = None
    schema: int = SCHEMA


@frozen(kw_only=True)
class KeyRow:
    """An explicit effect key, in use over all threads of a workspace."""

    workspace: str
    effect: str
    key: str
    arguments: bytes
    """Salted digest of the canonical arguments."""
    salt: bytes
    thread_id: str
    incarnation: bytes
    seq: int
    outcome: bytes | None
    """None: issued, no outcome yet."""
    at: Micros
    """``at`` of the log row that claimed it."""
    expires: Micros | None
    """Kept and not judged by the store: an expired key is taken until ``Store.expire`` removes it."""
    schema: int = SCHEMA


@frozen(kw_only=True)
class KeyWrite:
    """What a commit does to an explicit key.

    ``claim`` inserts it and is refused with ``KeyTaken`` where another visit has it (the same thread,
    incarnation and visit may claim it again, which leaves the row as it is); ``outcome`` sets ``outcome``
    and ``expires``, and ``free`` removes the row, both only where this visit has it: elsewhere they do
    nothing. The visit, a row's ``seq``, is ``Commit.visit``. Several writes of a commit take effect in
    order.
    """

    effect: str
    key: str
    action: Literal["claim", "outcome", "free"]
    arguments: bytes = b""
    salt: bytes = b""
    outcome: bytes | None = None
    expires: Micros | None = None


@frozen(kw_only=True)
class OutboxRow:
    """What a commit sends to another thread, once, identified by (incarnation, seq, n)."""

    seq: int
    n: int
    target: Address
    kind: str
    payload: bytes
    schema: int = SCHEMA


@frozen(kw_only=True)
class Start:
    """A new thread: its row and its first log row (kind ``start``, seq 0, n 0)."""

    address: Address
    incarnation: bytes
    machine: str
    standing: Standing
    log: LogRow
    items: bytes | None
    session: str
    principal: str
    parent: str | None
    started: bytes
    owner: str | None
    """The worker that claims it at once, with epoch 1; None: any worker may."""
    messages: tuple[bytes, ...] = ()
    priority: int = 0
    """See ``ThreadRow.priority``."""
    signals: tuple[Signal, ...] = ()
    """For the thread's inbox, in the same transaction."""


@frozen(kw_only=True)
class Started:
    """The thread as it stands after a start: created by it, or the one that had this address before."""

    created: bool
    """The thread is this start's: it has its incarnation. True also when the identical start is made
    again; ``thread`` (epoch, owner, n) then says whether it went on meanwhile."""
    thread: ThreadRow
    inbox: tuple[InboxRow, ...]
    """What had come in before the thread started, and the start's own signals: the first pending entries in
    order, at most 100 (only where created and claimed)."""
    delivered: tuple[Delivered, ...] = ()
    """What became of each of the start's signals."""


@frozen(kw_only=True)
class Commit:
    """Everything that one commit writes. It lands whole or not at all.

    It lands only on the thread with this incarnation, at this ``epoch``, at position ``log.n``, while the
    claim has not been given up.
    """

    address: Address
    incarnation: bytes
    epoch: int
    log: LogRow
    standing: Standing
    release: bool
    """Gives up the claim."""
    inbox_seen: int
    """Number of the last inbox entry that the writer has examined. A thread left waiting with a later
    entry is due at once."""
    principal: str
    session: str
    consumed: tuple[int, ...] = ()
    """Inbox numbers taken in by this transition; their rows' ``consumed`` becomes ``log.seq``."""
    items: bytes | None = None
    messages: tuple[bytes, ...] = ()
    memory: tuple[MemoryWrite, ...] = ()
    checks: tuple[MemoryCheck, ...] = ()
    artifacts: tuple[ArtifactRow, ...] = ()
    """Artifact records; an id that is there already is left as it is."""
    dropped_artifacts: tuple[str, ...] = ()
    """Ids of records to drop, of those that this incarnation put; others are left."""
    keys: tuple[KeyWrite, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()

    @property
    def visit(self) -> int:
        """The visit that wrote this: ``log.seq``, and for a transition, which ends a visit, one less."""
        return self.log.seq - 1 if self.log.kind == "transition" else self.log.seq


@frozen(kw_only=True)
class Release:
    """Gives a claim up without a log row: sets ``status`` and ``wake``, and leaves the rest of the standing.

    A stale one is ignored: another incarnation or epoch, or a claim that was given up before. As in a
    commit, a thread left waiting with an inbox entry after ``inbox_seen`` is due at once.
    """

    address: Address
    incarnation: bytes
    epoch: int
    status: Status
    wake: Micros | None
    inbox_seen: int


@frozen(kw_only=True)
class ClaimRequest:
    """Which threads a worker wants to go on with."""

    worker: str
    machines: Mapping[str, int]
    """Machine names, each with the newest version that this worker can read."""
    limit: int
    dead: tuple[str, ...] = ()
    """Workers that the caller knows to have ended although their lease still runs. The caller itself
    counts as alive, whatever stands here: nobody takes its own threads over."""
    suspect_from: int = 2
    """A thread with at least so many crashes, as counted before this claim, is a suspect."""
    suspects: bool = False
    """False: leave suspects aside and say in ``Claimed.suspects`` whether there are any.
    True: claim one suspect, of those with the fewest crashes, and nothing else: whoever has been suspected
    longest is tried last, so that one that kills its worker does not keep the others from being cleared."""
    at_once: Mapping[str, int] = field(factory=dict[str, int])
    """For machines of which only so many threads may be owned by living workers at once: how many, those of
    this claim included. It holds for ``only`` and ``suspects`` too; what such a machine has no place for does
    not count for ``next_wake``."""
    late_before: Micros | None = None
    """Waiting threads that were due before this moment are late, and ..."""
    late_limit: int = 0
    """... at most so many of them are claimed."""
    only: Address | None = None
    """This thread alone, parked or not due as well; not one that has ended or whose owner lives.
    ``machines`` and ``suspects`` hold for it too."""


@frozen(kw_only=True)
class Claim:
    """One claimed thread and what is needed to go on with it.

    ``log`` has the checkpoints from the newest base on, then every row of the current visit: those with
    ``seq`` of the standing, and the ``start`` and ``transition`` rows from position ``base`` on, by ``n``.
    """

    thread: ThreadRow
    """As claimed: owner, epoch, crashes and status are new, the rest of its standing (the reason it was
    parked for, its ``wake``) is as it was."""
    log: tuple[LogRow, ...]
    items: tuple[ItemsRow, ...]
    """The thread's items rows from position ``standing.items`` on, in order."""
    inbox: tuple[InboxRow, ...]
    """The first pending entries, at most 100."""
    taken_from: str | None
    """The worker that had it and is dead; None: it was free."""


@frozen(kw_only=True)
class Claimed:
    """The answer to a claim request."""

    claims: tuple[Claim, ...]
    now: Micros
    next_wake: Micros | None
    """The earliest ``wake`` of the threads of these machines that still wait and that no living worker
    owns. Not after ``now``: more is due than the limit let through. A suspect that is due does not count
    here, nor a late thread, nor a machine of which no more may be owned. None where ``only`` was asked
    for."""
    suspects: bool
    """There are suspects that could be claimed now, left aside."""
    late: bool = False
    """There are late threads that could be claimed now, left aside for ``late_limit``."""


@frozen(kw_only=True)
class Signal:
    """Something for a thread's inbox, whether the thread exists yet or not."""

    address: Address
    id: str
    event: str
    payload: bytes
    digest: bytes
    """Digest of event and canonical payload: the same id with another one is a conflict."""
    version: int = 0
    """See ``InboxRow.version``."""


@frozen(kw_only=True)
class Delivered:
    """A signal's acknowledgement, the same however often it is sent (but for what happened meanwhile)."""

    row: InboxRow
    """As it stands: ``consumed`` says whether it was taken in."""
    new: bool
    """This call put it there."""
    thread: ThreadRow | None
    """The thread as it stands; None: it has not started yet."""
