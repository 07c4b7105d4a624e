"""How a commit that stands alone is judged, and what it writes beside its thread's rows."""

from __future__ import annotations

from ._errors import KeyTaken, MemoryMoved, StaleClaim
from ._records import SCHEMA, Commit, KeyWrite, MemoryRow, Micros, Standing, Start
from ._sql_rows import ARTIFACT, KEY, MEMORY, MESSAGE, read_key, read_memory
from ._sql_steps import Row, Steps

NO_NUMBER = 2**63 - 1
"""Greater than any number of an inbox entry."""

INSERT_LOG = """INSERT INTO log (thread, n, seq, epoch, kind, at, head, salt, payload, schema)
    VALUES (?,?,?,?,?,?,?,?,?,?)"""
INSERT_ITEMS = "INSERT INTO items (thread, n, payload, schema) VALUES (?,?,?,?)"
INSERT_ARTIFACT = (
    f"INSERT INTO artifact ({ARTIFACT}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING"
)
DROP_ARTIFACT = "DELETE FROM artifact WHERE workspace = ? AND id = ? AND incarnation = ?"
INSERT_MESSAGE = f"""INSERT INTO message ({MESSAGE})
    SELECT ?, ?, coalesce(max(number), 0) + 1, ?, ?, ?, ?, CAST(? AS BIGINT), CAST(? AS BIGINT) FROM message
    WHERE workspace = ? AND session = ?"""
NEWEST_MEMORY = (
    f"SELECT {MEMORY} FROM memory WHERE workspace = ? AND namespace = ? AND key = ? AND newest = 1"
)
OLD_MEMORY = "UPDATE memory SET newest = 0 WHERE workspace = ? AND namespace = ? AND key = ? AND newest = 1"
INSERT_MEMORY = f"INSERT INTO memory ({MEMORY}, newest) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,1)"
FIND_KEY = f"SELECT {KEY} FROM effect_key WHERE workspace = ? AND effect = ? AND key = ?"
INSERT_KEY = f"INSERT INTO effect_key ({KEY}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
THIS_KEY = "WHERE workspace = ? AND effect = ? AND key = ? AND incarnation = ? AND seq = ?"
SETTLE_KEY = f"UPDATE effect_key SET outcome = ?, expires = ? {THIS_KEY}"
FREE_KEY = f"DELETE FROM effect_key {THIS_KEY}"
FIND_STANDING = """SELECT s.id, s.incarnation, s.epoch, s.n, s.owner
    FROM thread t JOIN standing s ON s.id = t.id WHERE t.workspace = ? AND t.thread_id = ?"""
FIND_LOG = "SELECT epoch, head FROM log WHERE thread = ? AND n = ?"


def due(wake: Micros | None, now: Micros) -> Micros:
    """When a waiting thread wakes that something came for: at once, if it was not to wake before."""
    return now if wake is None else min(wake, now)


def wake_values(status: str, inbox_seen: int, wake: Micros | None, now: Micros) -> Row:
    """For ``wake = CASE WHEN inbox > ? THEN ? ELSE ? END``: only who waits is woken by an unseen entry."""
    return (inbox_seen if status == "waiting" else NO_NUMBER), due(wake, now), wake


def standing_values(standing: Standing) -> Row:
    """What every commit sets: the columns from ``state`` to ``items``, in the order of the fields."""
    return (
        standing.state,
        standing.seq,
        standing.version,
        standing.definition,
        standing.base,
        standing.reason,
        standing.note,
        standing.expires,
        standing.items,
    )


def judge(commit: Commit) -> Steps[int | None]:
    """The thread's number; None where this very commit has landed before. Raises what it is refused for."""
    address = commit.address
    rows = yield FIND_STANDING, (address.workspace, address.thread_id)
    if not rows:
        raise StaleClaim(f"there is no thread {address.thread_id!r} in workspace {address.workspace!r}")
    number, incarnation, epoch, n, owner = rows[0]
    if incarnation != commit.incarnation:
        raise StaleClaim(f"thread {address.thread_id!r} is another one by now: the id was used again")
    if (epoch, n) != (commit.epoch, commit.log.n) or owner is None:
        landed = yield FIND_LOG, (number, commit.log.n)
        if landed and tuple(landed[0]) == (commit.epoch, commit.log.head):
            return None
        raise StaleClaim(_stale(commit, epoch, n, owner))
    yield from _judge_memory(commit)
    yield from _judge_keys(commit)
    return int(number)


def write_outside(commit: Commit) -> Steps[None]:
    """What others read too: messages, explicit keys and memory."""
    yield from write_messages(commit)
    for key in commit.keys:
        yield from _write_key(commit, key)
    yield from _write_memory(commit)


def write_messages(write: Start | Commit) -> Steps[None]:
    """Append messages to a session, each under its next number."""
    name = (write.address.workspace, write.session)
    owner = (write.address.thread_id, write.incarnation, write.principal)
    for payload in write.messages:
        yield INSERT_MESSAGE, (*name, *owner, payload, write.log.at, SCHEMA, *name)


def _stale(commit: Commit, epoch: int, n: int, owner: str | None) -> str:
    held = f"it is at position {n}, epoch {epoch}, " + (f"held by {owner!r}" if owner else "held by nobody")
    return (
        f"a commit to thread {commit.address.thread_id!r} at position {commit.log.n}, epoch {commit.epoch}, "
        f"came too late: {held}"
    )


def _judge_memory(commit: Commit) -> Steps[None]:
    known = {(check.namespace, check.key): {check.version} for check in commit.checks}
    for write in commit.memory:
        known.setdefault((write.namespace, write.key), set()).add(write.expected)
    moved: list[MemoryRow] = []
    missing: list[tuple[str, str]] = []
    for (namespace, key), versions in known.items():
        rows = yield NEWEST_MEMORY, (commit.address.workspace, namespace, key)
        newest = read_memory(rows[0]) if rows else None
        if versions == {0 if newest is None else newest.version}:
            continue
        if newest is None:
            missing.append((namespace, key))
        else:
            moved.append(newest)
    if moved or missing:
        raise MemoryMoved(moved, missing)


def _judge_keys(commit: Commit) -> Steps[None]:
    for key in commit.keys:
        if key.action == "claim":
            rows = yield FIND_KEY, (commit.address.workspace, key.effect, key.key)
            if rows and not _is_mine(commit, rows[0]):
                raise KeyTaken(read_key(rows[0]))


def _is_mine(commit: Commit, row: Row) -> bool:
    return bool(row[6] == commit.incarnation and row[7] == commit.visit)


def _write_key(commit: Commit, key: KeyWrite) -> Steps[None]:
    name = (commit.address.workspace, key.effect, key.key)
    mine = (*name, commit.incarnation, commit.visit)
    if key.action == "outcome":
        yield SETTLE_KEY, (key.outcome, key.expires, *mine)
    elif key.action == "free":
        yield FREE_KEY, mine
    elif not (yield FIND_KEY, name):
        visit = (commit.address.thread_id, commit.incarnation, commit.visit)
        stamps = (key.outcome, commit.log.at, key.expires, SCHEMA)
        yield INSERT_KEY, (*name, key.arguments, key.salt, *visit, *stamps)


def _write_memory(commit: Commit) -> Steps[None]:
    for write in commit.memory:
        name = (commit.address.workspace, write.namespace, write.key)
        yield OLD_MEMORY, name
        stamps = (
            commit.log.at,
            commit.address.thread_id,
            commit.log.seq,
            commit.principal,
            write.expires,
            None,
            SCHEMA,
        )
        yield INSERT_MEMORY, (*name, write.expected + 1, write.value, *stamps)
