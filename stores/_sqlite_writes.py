"""What is written to a SQLite store beside commits: each write judges first, then changes something."""

from __future__ import annotations

from collections.abc import Sequence

from ._errors import SignalConflict, ThreadEnded
from ._records import (
    SCHEMA,
    Address,
    ArtifactRow,
    Delivered,
    InboxRow,
    Micros,
    Release,
    Signal,
    Start,
    Started,
    ThreadRow,
)
from ._sqlite_commits import (
    INSERT_ARTIFACT,
    INSERT_ITEMS,
    INSERT_LOG,
    Transaction,
    wake_values,
    write_messages,
)
from ._sqlite_rows import (
    DEFINITION,
    INBOX,
    STATUS_CODES,
    THREAD,
    THREADS,
    WORKER,
    artifact_values,
    log_values,
    read_inbox,
    read_thread,
)
from ._workers import DefinitionRow, WorkerRow

INBOX_LIMIT = 100
"""So many pending entries come with a thread; further ones are read by page."""

DAY: Micros = 86_400_000_000

FIND_THREAD = f"SELECT {THREAD} FROM {THREADS} WHERE t.workspace = ? AND t.thread_id = ?"
FIND_NUMBER = "SELECT id FROM thread WHERE workspace = ? AND thread_id = ?"
INSERT_NUMBER = "INSERT INTO thread (workspace, thread_id) VALUES (?, ?)"
NAME_THREAD = """UPDATE thread SET session = ?, principal = ?, parent = ?, started = ?, created = ?,
    schema = ?, session_since = (
        SELECT ifnull(max(number), 0) FROM message WHERE workspace = ? AND session = ?)
    WHERE id = ?"""
INSERT_STANDING = """INSERT INTO standing (id, incarnation, machine, state, seq, version, definition, status,
    base, n, epoch, owner, crashes, inbox, wake, expires, reason, note, items, schema, workspace, priority,
    since)
    VALUES (?,?,?,?,?,?,?,?,?,1,?,?,0,?,?,?,?,?,?,?,?,?,?)"""
PENDING = f"""SELECT {INBOX} FROM inbox i WHERE i.thread = ? AND i.consumed IS NULL
    ORDER BY i.number LIMIT {INBOX_LIMIT}"""
INSERT_INBOX = """INSERT INTO inbox (thread, number, id, event, payload, digest, at, schema, version)
    VALUES (?,?,?,?,?,?,?,?,?)"""
RECEIVE = """UPDATE standing SET inbox = ?, version = max(version, ?),
    wake = CASE WHEN status = 1 THEN min(ifnull(wake, ?), ?) ELSE wake END WHERE id = ?"""
RELEASE = """UPDATE standing SET owner = NULL, status = ?, since = ?,
    wake = CASE WHEN ? AND inbox > ? THEN min(ifnull(?, ?), ?) ELSE ? END
    WHERE id = (SELECT id FROM thread WHERE workspace = ? AND thread_id = ?)
    AND incarnation = ? AND epoch = ? AND owner IS NOT NULL"""
BEAT = f"""INSERT INTO worker ({WORKER}) VALUES (?,?,?,?,?,?,?,?,?,?)
    ON CONFLICT (id) DO UPDATE SET host = excluded.host, pid = excluded.pid, lock = excluded.lock,
    lease = excluded.lease, started = excluded.started, beat = excluded.beat,
    ended = ifnull(ended, excluded.ended), schema = excluded.schema, hint = excluded.hint"""
DEFINE = f"INSERT OR IGNORE INTO definition ({DEFINITION}) VALUES (?,?,?,?,?,?)"
DROP_WORKERS = """DELETE FROM worker WHERE beat < ?
    AND NOT EXISTS (SELECT 1 FROM standing WHERE owner = worker.id)"""


def find_thread(tx: Transaction, address: Address) -> ThreadRow | None:
    row = tx.db.execute(FIND_THREAD, (address.workspace, address.thread_id)).fetchone()
    return None if row is None else read_thread(row)


def start(tx: Transaction, start: Start) -> Started:
    there = find_thread(tx, start.address)
    signals = start.signals if there is None or there.started == start.started else ()
    known = [_known(tx, signal) for signal in signals]  # raises before anything is written
    if there is None:
        _create(tx, start)
        there = find_thread(tx, start.address)
        assert there is not None
    rows = [row or _accept(tx, signal) for row, signal in zip(known, signals, strict=True)]
    if rows:
        there = find_thread(tx, start.address)
        assert there is not None
    created = there.incarnation == start.incarnation
    inbox = _pending(tx, start.address) if created and start.owner is not None else ()
    delivered = [
        Delivered(row=row, new=before is None, thread=there) for row, before in zip(rows, known, strict=True)
    ]
    return Started(created=created, thread=there, inbox=inbox, delivered=tuple(delivered))


def _create(tx: Transaction, start: Start) -> None:
    address = start.address
    number = _number(tx, address)
    inbox, newest = tx.db.execute(
        "SELECT ifnull(max(number), 0), ifnull(max(version), 0) FROM inbox WHERE thread = ?", (number,)
    ).fetchone()
    stamps = (start.session, start.principal, start.parent, start.started, start.log.at, SCHEMA)
    tx.db.execute(NAME_THREAD, (*stamps, address.workspace, start.session, number))
    tx.db.execute(INSERT_STANDING, _standing_values(number, start, inbox, newest, tx.now))
    tx.db.execute(INSERT_LOG, log_values(number, start.log))
    if start.items is not None:
        tx.db.execute(INSERT_ITEMS, (number, start.log.n, start.items, SCHEMA))
    write_messages(tx, start)
    tx.learn(address, start.incarnation, number)
    running = start.standing.status == "running" and start.standing.wake is None
    tx.note(number, 1, steady=running and start.owner is not None)


def _number(tx: Transaction, address: Address) -> int:
    name = (address.workspace, address.thread_id)
    row = tx.db.execute(FIND_NUMBER, name).fetchone()
    if row is not None:
        return int(row[0])
    number = tx.db.execute(INSERT_NUMBER, name).lastrowid
    assert number is not None
    return number


def _standing_values(number: int, start: Start, inbox: int, newest: int, now: Micros) -> Sequence[object]:
    standing = start.standing
    wake = standing.wake
    if standing.status == "waiting" and inbox:
        wake = now if wake is None else min(wake, now)
    return (
        number,
        start.incarnation,
        start.machine,
        standing.state,
        standing.seq,
        max(standing.version, newest),
        standing.definition,
        STATUS_CODES[standing.status],
        standing.base,
        0 if start.owner is None else 1,
        start.owner,
        inbox,
        wake,
        standing.expires,
        standing.reason,
        standing.note,
        standing.items,
        SCHEMA,
        start.address.workspace,
        start.priority,
        now,
    )


def _pending(tx: Transaction, address: Address) -> tuple[InboxRow, ...]:
    rows = tx.db.execute(PENDING, (_number(tx, address),)).fetchall()
    return tuple(read_inbox(row) for row in rows)


def deliver(tx: Transaction, signal: Signal) -> Delivered:
    known = _known(tx, signal)
    row = known or _accept(tx, signal)
    return Delivered(row=row, new=known is None, thread=find_thread(tx, signal.address))


def _known(tx: Transaction, signal: Signal) -> InboxRow | None:
    """The entry with this signal's id; None where it may be put there."""
    name = (signal.address.workspace, signal.address.thread_id)
    row = tx.db.execute(
        f"SELECT {INBOX} FROM inbox i WHERE i.thread = ({FIND_NUMBER}) AND i.id = ?", (*name, signal.id)
    ).fetchone()
    if row is not None:
        there = read_inbox(row)
        if there.digest != signal.digest:
            raise SignalConflict(
                f"signal {signal.id!r} of thread {signal.address.thread_id!r} was accepted before, as event "
                f"{there.event!r} or with another payload: send this one under an id of its own"
            )
        return there
    thread = find_thread(tx, signal.address)
    if thread is not None and thread.standing.status == "ended":
        raise ThreadEnded(f"thread {signal.address.thread_id!r} has ended: it takes no new signals")
    return None


def _accept(tx: Transaction, signal: Signal) -> InboxRow:
    thread = _number(tx, signal.address)
    (last,) = tx.db.execute("SELECT ifnull(max(number), 0) FROM inbox WHERE thread = ?", (thread,)).fetchone()
    row = InboxRow(
        number=last + 1,
        id=signal.id,
        event=signal.event,
        payload=signal.payload,
        digest=signal.digest,
        at=tx.now,
        version=signal.version,
    )
    values = (thread, row.number, row.id, row.event, row.payload, row.digest, row.at)
    tx.db.execute(INSERT_INBOX, (*values, row.schema, row.version))
    tx.db.execute(RECEIVE, (row.number, row.version, tx.now, tx.now, thread))
    return row


def release(tx: Transaction, releases: Sequence[Release]) -> None:
    tx.db.executemany(
        RELEASE,
        [
            (
                STATUS_CODES[given.status],
                tx.now,
                *wake_values(given.status, given.inbox_seen, given.wake, tx.now),
                given.address.workspace,
                given.address.thread_id,
                given.incarnation,
                given.epoch,
            )
            for given in releases
        ],
    )


def beat(tx: Transaction, worker: WorkerRow, definitions: Sequence[DefinitionRow]) -> Micros:
    stamps = (worker.lease, worker.started, tx.now, worker.ended, worker.schema, worker.hint)
    tx.db.execute(BEAT, (worker.id, worker.host, worker.pid, worker.lock, *stamps))
    tx.db.execute(DROP_WORKERS, (tx.now - DAY,))
    for row in definitions:
        tx.db.execute(DEFINE, (row.machine, row.version, row.hash, row.document, tx.now, row.schema))
    return tx.now


def upload(tx: Transaction, artifact: ArtifactRow) -> None:
    tx.db.execute(INSERT_ARTIFACT, artifact_values(artifact))
