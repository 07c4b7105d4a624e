"""How commits land in PostgreSQL: those of several threads in one statement, and one that is judged alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from attrs import frozen

from ._postgres_session import Session
from ._records import SCHEMA, Commit, Micros
from ._sql_commits import DROP_ARTIFACT, NO_NUMBER, judge, standing_values, write_outside
from ._sql_rows import ARTIFACT, STATUS_CODES, artifact_values, log_values
from ._sql_steps import Ask, Row

CLOCK = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"
"""The server's, which is the same for workers on several machines."""

STANDING: Mapping[str, str] = {
    "state": "TEXT",
    "seq": "BIGINT",
    "version": "BIGINT",
    "definition": "TEXT",
    "base": "BIGINT",
    "reason": "TEXT",
    "note": "TEXT",
    "expires": "BIGINT",
    "items": "BIGINT",
}
"""The columns of ``standing_values``."""
LOG: Mapping[str, str] = {
    "n": "BIGINT",
    "visit": "BIGINT",
    "epoch": "BIGINT",
    "kind": "BIGINT",
    "at": "BIGINT",
    "head": "BYTEA",
    "salt": "BYTEA",
    "payload": "BYTEA",
    "schema": "BIGINT",
}
"""The columns of ``log_values``, without the thread's number."""
GIVEN: Mapping[str, str] = {
    "workspace": "TEXT",
    "thread_id": "TEXT",
    "incarnation": "BYTEA",
    **STANDING,
    "status": "BIGINT",
    "release": "BOOLEAN",
    "seen": "BIGINT",
    "wake": "BIGINT",
    "fence": "BIGINT",
    **LOG,
}
"""What each commit gives: its thread, its standing, its fence and its log row."""

LAND = """WITH clock AS MATERIALIZED (SELECT coalesce(CAST(? AS BIGINT), {CLOCK}) AS now),
    given AS MATERIALIZED (SELECT * FROM {given}),
    fenced AS (UPDATE standing s SET state = g.state, seq = g.seq, version = greatest(s.version, g.version),
        definition = g.definition, base = g.base, reason = g.reason, note = g.note, expires = g.expires,
        items = g.items, n = s.n + 1, crashes = 0, status = g.status,
        owner = CASE WHEN g.release THEN NULL ELSE s.owner END,
        since = CASE WHEN g.release THEN c.now ELSE s.since END,
        wake = CASE WHEN s.inbox > g.seen THEN least(g.wake, c.now) ELSE g.wake END
        FROM clock c, given g JOIN thread t ON t.workspace = g.workspace AND t.thread_id = g.thread_id
        WHERE s.id = t.id AND s.incarnation = g.incarnation AND s.epoch = g.fence AND s.n = g.n
            AND s.owner IS NOT NULL
        RETURNING s.id, g.i),
    logged AS (INSERT INTO log (thread, n, seq, epoch, kind, at, head, salt, payload, schema)
        SELECT f.id, g.n, g.visit, g.epoch, g.kind, g.at, g.head, g.salt, g.payload, g.schema
        FROM fenced f JOIN given g ON g.i = f.i){parts}
    SELECT i FROM fenced"""


@frozen
class Part:
    """Rows that some commits have and others have not."""

    columns: Mapping[str, str]
    """The first one says to which commit of the batch a row belongs."""
    statement: str
    rows: Callable[[Commit], Iterable[Row]]


PARTS = (
    Part(
        {"i": "BIGINT", "n": "BIGINT", "payload": "BYTEA", "schema": "BIGINT"},
        """INSERT INTO items (thread, n, payload, schema) SELECT f.id, p.n, p.payload, p.schema
            FROM {part} JOIN fenced f ON f.i = p.i""",
        lambda commit: () if commit.items is None else ((commit.log.n, commit.items, SCHEMA),),
    ),
    Part(
        {"i": "BIGINT", "number": "BIGINT", "seq": "BIGINT"},
        """UPDATE inbox SET consumed = p.seq FROM {part} JOIN fenced f ON f.i = p.i
            WHERE inbox.thread = f.id AND inbox.number = p.number""",
        lambda commit: ((number, commit.log.seq) for number in commit.consumed),
    ),
    Part(
        {
            "i": "BIGINT",
            "id": "TEXT",
            "workspace": "TEXT",
            "sha256": "TEXT",
            "size_bytes": "BIGINT",
            "media_type": "TEXT",
            "principal": "TEXT",
            "thread_id": "TEXT",
            "incarnation": "BYTEA",
            "seq": "BIGINT",
            "derived_from": "JSONB",
            "created": "BIGINT",
            "expires": "BIGINT",
            "schema": "BIGINT",
        },
        f"""INSERT INTO artifact ({ARTIFACT}) SELECT p.id, p.workspace, p.sha256, p.size_bytes, p.media_type,
            p.principal, p.thread_id, p.incarnation, p.seq, p.derived_from, p.created, p.expires, p.schema
            FROM {{part}} JOIN fenced f ON f.i = p.i ON CONFLICT DO NOTHING""",
        lambda commit: map(artifact_values, commit.artifacts),
    ),
    Part(
        {
            "i": "BIGINT",
            "seq": "BIGINT",
            "n": "BIGINT",
            "workspace": "TEXT",
            "thread_id": "TEXT",
            "kind": "TEXT",
            "payload": "BYTEA",
            "schema": "BIGINT",
        },
        """INSERT INTO outbox (thread, seq, n, workspace, thread_id, kind, payload, schema)
            SELECT f.id, p.seq, p.n, p.workspace, p.thread_id, p.kind, p.payload, p.schema
            FROM {part} JOIN fenced f ON f.i = p.i""",
        lambda commit: (
            (o.seq, o.n, o.target.workspace, o.target.thread_id, o.kind, o.payload, o.schema)
            for o in commit.outbox
        ),
    ),
)


def is_plain_commit(write: object) -> bool:
    """A commit that nothing but its own thread's standing can refuse, and whose parts may be written in any
    order."""
    return type(write) is Commit and not (
        write.memory or write.checks or write.keys or write.messages or write.dropped_artifacts
    )


def land_together(commits: Sequence[Commit]) -> Ask:
    """The one statement that lands commits of different threads, each if its fence holds; its rows say which
    landed, counted from 1. Before its values stands the clock, None for the server's."""
    arrays: list[Sequence[object]] = list(zip(*map(_values, commits), strict=True))
    having: list[int] = []
    for number, part in enumerate(PARTS):
        rows = [(i, *row) for i, commit in enumerate(commits, 1) for row in part.rows(commit)]
        if rows:
            having.append(number)
            arrays += zip(*rows, strict=True)
    return _statement(tuple(having)), arrays


async def land_alone(session: Session, commit: Commit, now: Micros) -> None:
    """Judge one commit, whose thread's row is locked, then land it."""
    if await session.take(judge(commit)) is None:
        return
    for name in commit.dropped_artifacts:
        await session.fetch(DROP_ARTIFACT, (commit.address.workspace, name, commit.incarnation))
    statement, values = land_together([commit])
    landed = await session.fetch(statement, (now, *values))
    assert landed, "the row that was judged is locked"
    await session.take(write_outside(commit))


@cache
def _statement(having: tuple[int, ...]) -> str:
    parts = [
        f",\n    part{number} AS ({PARTS[number].statement.format(part=table(PARTS[number].columns, 'p'))})"
        for number in having
    ]
    given = table(GIVEN, "g", "i")
    return LAND.format(CLOCK=CLOCK, given=given, parts="".join(parts))


def table(columns: Mapping[str, str], name: str, number: str = "") -> str:
    """Arrays as a table of this name, its rows numbered where a column for that is named."""
    arrays = ", ".join(f"CAST(? AS {kind}[])" for kind in columns.values())
    if number:
        return f"unnest({arrays}) WITH ORDINALITY AS {name} ({', '.join(columns)}, {number})"
    return f"unnest({arrays}) AS {name} ({', '.join(columns)})"


def _values(commit: Commit) -> Row:
    standing, log = commit.standing, commit.log
    waits = standing.status == "waiting"
    return (
        commit.address.workspace,
        commit.address.thread_id,
        commit.incarnation,
        *standing_values(standing),
        STATUS_CODES[standing.status],
        commit.release,
        commit.inbox_seen if waits else NO_NUMBER,
        standing.wake,
        commit.epoch,
        *log_values(0, log)[1:],
    )
