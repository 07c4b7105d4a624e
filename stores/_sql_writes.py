"""What is written beside commits: each write judges first, then changes something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ._errors import SignalConflict, ThreadEnded
from ._made import entry_made
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
from ._sql_commits import INSERT_ARTIFACT, INSERT_ITEMS, INSERT_LOG, due, wake_values, write_messages
from ._sql_rows import (
    DEFINITION,
    INBOX,
    NEWEST,
    STATUS_CODES,
    THREAD,
    WORKER,
    artifact_values,
    log_values,
    read_inbox,
    read_thread,
)
from ._sql_steps import Steps
from ._workers import DefinitionRow, WorkerRow

INBOX_LIMIT = 100
"""So many pending entries come with a thread; further ones are read by page."""

DAY: Micros = 86_400_000_000

FIND_THREAD = f"""SELECT {THREAD} FROM standing s JOIN thread t ON t.id = s.id JOIN {NEWEST}
    WHERE t.workspace = ? AND t.thread_id = ?"""
FIND_NUMBER = "SELECT id FROM thread WHERE workspace = ? AND thread_id = ?"
INSERT_NUMBER = "INSERT INTO thread (workspace, thread_id) VALUES (?, ?) RETURNING id"
CAME_BEFORE = "SELECT coalesce(max(number), 0), coalesce(max(version), 0) FROM inbox WHERE thread = ?"
NAME_THREAD = """UPDATE thread SET session = ?, principal = ?, parent = ?, started = ?, created = ?,
    schema = ?, session_since = (
        SELECT coalesce(max(number), 0) FROM message WHERE workspace = ? AND session = ?)
    WHERE id = ?"""
INSERT_STANDING = """INSERT INTO standing (id, incarnation, machine, state, seq, version, definition, status,
    base, n, epoch, owner, crashes, inbox, wake, expires, reason, note, items, schema, workspace, priority,
    since)
    VALUES (?,?,?,?,?,?,?,?,?,1,?,?,0,?,?,?,?,?,?,?,?,?,?)"""
PENDING = f"""SELECT {INBOX} FROM inbox i WHERE i.thread = ? AND i.consumed IS NULL
    ORDER BY i.number LIMIT {INBOX_LIMIT}"""
KNOWN = f"SELECT {INBOX} FROM inbox i WHERE i.thread = ({FIND_NUMBER}) AND i.id = ?"
INSERT_INBOX = """INSERT INTO inbox (thread, number, id, event, payload, digest, at, schema, version)
    VALUES (?,?,?,?,?,?,?,?,?)"""
RECEIVE = """UPDATE standing SET inbox = ?,
    version = CASE WHEN version < ? THEN CAST(? AS BIGINT) ELSE version END,
    wake = CASE WHEN status = 1 AND (wake IS NULL OR wake > ?) THEN CAST(? AS BIGINT) ELSE wake END
    WHERE id = ?"""
RELEASE = """UPDATE standing SET owner = NULL, status = ?, since = ?,
    wake = CASE WHEN inbox > ? THEN CAST(? AS BIGINT) ELSE CAST(? AS BIGINT) END
    WHERE id = (SELECT id FROM thread WHERE workspace = ? AND thread_id = ?)
    AND incarnation = ? AND epoch = ? AND owner IS NOT NULL"""
BEAT = f"""INSERT INTO worker ({WORKER}) VALUES (?,?,?,?,?,?,?,?,?,?)
    ON CONFLICT (id) DO UPDATE SET host = excluded.host, pid = excluded.pid, lock = excluded.lock,
    lease = excluded.lease, started = excluded.started, beat = excluded.beat,
    ended = coalesce(worker.ended, excluded.ended), schema = excluded.schema, hint = excluded.hint"""
DEFINE = f"INSERT INTO definition ({DEFINITION}) VALUES (?,?,?,?,?,?) ON CONFLICT DO NOTHING"
DROP_WORKERS = """DELETE FROM worker WHERE beat < ?
    AND NOT EXISTS (SELECT 1 FROM standing WHERE owner = worker.id)"""


def find_thread(address: Address) -> Steps[ThreadRow | None]:
    rows = yield FIND_THREAD, (address.workspace, address.thread_id)
    return read_thread(rows[0]) if rows else None


def start(start: Start, now: Micros) -> Steps[tuple[Started, int | None]]:
    """What a start answers, and the number of the thread that it created."""
    number: int | None = None
    there = yield from find_thread(start.address)
    signals = start.signals if there is None or there.started == start.started else ()
    known: list[InboxRow | None] = []
    for signal in signals:  # raises before anything is written
        known.append((yield from _known(signal)))
    if there is None:
        number = yield from _create(start, now)
    rows: list[InboxRow] = []
    for row, signal in zip(known, signals, strict=True):
        rows.append(row or (yield from _accept(signal, now)))
    if there is None or rows:
        there = yield from find_thread(start.address)
        assert there is not None
    created = there.incarnation == start.incarnation
    inbox = (yield from _pending(start.address)) if created and start.owner is not None else ()
    delivered = [
        Delivered(row=row, new=before is None, thread=there) for row, before in zip(rows, known, strict=True)
    ]
    return Started(created=created, thread=there, inbox=inbox, delivered=tuple(delivered)), number


def _create(start: Start, now: Micros) -> Steps[int]:
    number = yield from _number(start.address)
    [(inbox, newest)] = yield CAME_BEFORE, (number,)
    stamps = (start.session, start.principal, start.parent, start.started, start.log.at, SCHEMA)
    yield NAME_THREAD, (*stamps, start.address.workspace, start.session, number)
    yield INSERT_STANDING, _standing_values(number, start, inbox, newest, now)
    yield INSERT_LOG, log_values(number, start.log)
    if start.items is not None:
        yield INSERT_ITEMS, (number, start.log.n, start.items, SCHEMA)
    yield from write_messages(start)
    return number


def _number(address: Address) -> Steps[int]:
    name = (address.workspace, address.thread_id)
    rows = (yield FIND_NUMBER, name) or (yield INSERT_NUMBER, name)
    return int(rows[0][0])


def _standing_values(number: int, start: Start, inbox: int, newest: int, now: Micros) -> Sequence[object]:
    standing = start.standing
    wake = due(standing.wake, now) if standing.status == "waiting" and inbox else standing.wake
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


def _pending(address: Address) -> Steps[tuple[InboxRow, ...]]:
    rows = yield PENDING, ((yield from _number(address)),)
    return tuple(read_inbox(row) for row in rows)


def deliver(signal: Signal, now: Micros) -> Steps[Delivered]:
    known = yield from _known(signal)
    row = known or (yield from _accept(signal, now))
    return Delivered(row=row, new=known is None, thread=(yield from find_thread(signal.address)))


def _known(signal: Signal) -> Steps[InboxRow | None]:
    """The entry with this signal's id; None where it may be put there."""
    rows = yield KNOWN, (signal.address.workspace, signal.address.thread_id, signal.id)
    if rows:
        there = read_inbox(rows[0])
        if there.digest != signal.digest:
            raise SignalConflict(
                f"signal {signal.id!r} of thread {signal.address.thread_id!r} was accepted before, as event "
                f"{there.event!r} or with another payload: send this one under an id of its own"
            )
        return there
    thread = yield from find_thread(signal.address)
    if thread is not None and thread.standing.status == "ended":
        raise ThreadEnded(f"thread {signal.address.thread_id!r} has ended: it takes no new signals")
    return None


def _accept(signal: Signal, now: Micros) -> Steps[InboxRow]:
    thread = yield from _number(signal.address)
    [(last, _)] = yield CAME_BEFORE, (thread,)
    row = entry_made(signal, last + 1, now)
    values = (thread, row.number, row.id, row.event, row.payload, row.digest, row.at)
    yield INSERT_INBOX, (*values, row.schema, row.version)
    yield RECEIVE, (row.number, row.version, row.version, now, now, thread)
    return row


def release(releases: Iterable[Release], now: Micros) -> Steps[None]:
    for given in releases:
        yield (
            RELEASE,
            (
                STATUS_CODES[given.status],
                now,
                *wake_values(given.status, given.inbox_seen, given.wake, now),
                given.address.workspace,
                given.address.thread_id,
                given.incarnation,
                given.epoch,
            ),
        )


def beat(worker: WorkerRow, definitions: Iterable[DefinitionRow], now: Micros) -> Steps[Micros]:
    stamps = (worker.lease, worker.started, now, worker.ended, worker.schema, worker.hint)
    yield BEAT, (worker.id, worker.host, worker.pid, worker.lock, *stamps)
    yield DROP_WORKERS, (now - DAY,)
    for row in definitions:
        yield DEFINE, (row.machine, row.version, row.hash, row.document, now, row.schema)
    return now


def upload(artifact: ArtifactRow) -> Steps[None]:
    yield INSERT_ARTIFACT, artifact_values(artifact)
