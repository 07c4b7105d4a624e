"""How new threads are written in PostgreSQL: several in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ._made import thread_made
from ._postgres_commits import CLOCK, LOG, STANDING, table
from ._records import Start, Started
from ._sql_commits import standing_values
from ._sql_rows import STATUS_CODES, log_values
from ._sql_steps import Row

GIVEN: Mapping[str, str] = {
    "workspace": "TEXT",
    "thread_id": "TEXT",
    "incarnation": "BYTEA",
    "machine": "TEXT",
    **STANDING,
    "status": "BIGINT",
    "wake": "BIGINT",
    "owner": "TEXT",
    "priority": "BIGINT",
    "session": "TEXT",
    "principal": "TEXT",
    "parent": "TEXT",
    "started": "BYTEA",
    "appended": "BYTEA",
    **LOG,
}
"""What each start gives: its thread, its standing and its log row."""

START = f"""WITH clock AS MATERIALIZED (SELECT coalesce(CAST(? AS BIGINT), {CLOCK}) AS now),
    locked AS MATERIALIZED (SELECT pg_advisory_xact_lock(key) FROM unnest(CAST(? AS BIGINT[])) AS key),
    given AS MATERIALIZED (SELECT g.* FROM {table(GIVEN, "g", "i")}, (SELECT count(*) FROM locked) AS turn),
    fresh AS (INSERT INTO thread
            (workspace, thread_id, session, principal, parent, started, created, schema, session_since)
        SELECT g.workspace, g.thread_id, g.session, g.principal, g.parent, g.started, g.at, g.schema, (
            SELECT coalesce(max(m.number), 0) FROM message m
            WHERE m.workspace = g.workspace AND m.session = g.session)
        FROM given g ON CONFLICT DO NOTHING RETURNING id, workspace, thread_id, session_since),
    made AS MATERIALIZED (SELECT f.id, f.session_since, g.* FROM given g
        JOIN fresh f ON f.workspace = g.workspace AND f.thread_id = g.thread_id),
    standings AS (INSERT INTO standing (id, incarnation, machine, state, seq, version, definition, status,
            base, n, epoch, owner, crashes, inbox, wake, expires, reason, note, items, schema, workspace,
            priority, since)
        SELECT id, incarnation, machine, state, seq, version, definition, status, base, 1,
            CASE WHEN owner IS NULL THEN 0 ELSE 1 END, owner, 0, 0, wake, expires, reason, note, items,
            schema, workspace, priority, now
        FROM made, clock),
    logged AS (INSERT INTO log (thread, n, seq, epoch, kind, at, head, salt, payload, schema)
        SELECT id, n, visit, epoch, kind, at, head, salt, payload, schema FROM made),
    appended AS (INSERT INTO items (thread, n, payload, schema)
        SELECT id, n, appended, schema FROM made WHERE appended IS NOT NULL)
    SELECT i, session_since FROM made"""


def is_plain_start(write: object) -> bool:
    """A start that writes its own thread's rows alone."""
    return type(write) is Start and not (write.messages or write.signals)


def start_together(starts: Sequence[Start], locks: Sequence[int]) -> tuple[str, tuple[object, ...]]:
    """The one statement that makes threads where nothing is at their address; its rows say which, counted
    from 1, and each one's ``session_since``. Before its values stands the clock, None for the server's.

    The locks, which any other start of these threads and any signal to them takes too, are taken by the
    statement itself: what somebody wrote while it waited for them, it finds as a conflict.
    """
    return START, (sorted(set(locks)), *zip(*map(_values, starts), strict=True))


def started(start: Start, session_since: int) -> Started:
    """What a start answers that made its thread."""
    thread = thread_made(start, standing=start.standing, inbox=0, session_since=session_since)
    return Started(created=True, thread=thread, inbox=())


def _values(start: Start) -> Row:
    standing = start.standing
    return (
        start.address.workspace,
        start.address.thread_id,
        start.incarnation,
        start.machine,
        *standing_values(standing),
        STATUS_CODES[standing.status],
        standing.wake,
        start.owner,
        start.priority,
        start.session,
        start.principal,
        start.parent,
        start.started,
        start.items,
        *log_values(0, start.log)[1:],
    )
