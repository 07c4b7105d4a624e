"""How commits land in SQLite: many at once where none is in question, and each alone where one is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field

from ._errors import KeyTaken, MemoryMoved, StaleClaim
from ._records import SCHEMA, Address, Commit, KeyWrite, MemoryRow, Micros, Standing, Start
from ._sqlite_rows import (
    ARTIFACT,
    KEY,
    MEMORY,
    MESSAGE,
    STATUS_CODES,
    Row,
    artifact_values,
    log_values,
    read_key,
    read_memory,
)

KNOWN_THREADS = 100_000
"""So many threads' numbers are remembered, some 300 bytes each."""

FENCE = "WHERE id = ? AND incarnation = ? AND epoch = ? AND n = ? AND owner IS NOT NULL"

STANDING = """state = ?, seq = ?, version = max(version, ?), definition = ?, base = ?, reason = ?, note = ?,
    expires = ?, items = ?, n = n + 1"""

GO_ON = f"""UPDATE standing SET {STANDING} {FENCE} AND status = 0 AND crashes = 0 AND wake IS NULL"""
"""For a thread that runs and goes on running: touches no column that an index has."""

SETTLE = f"""UPDATE standing SET {STANDING}, crashes = 0, status = ?,
    owner = iif(?, NULL, owner), since = iif(?, ?, since),
    wake = CASE WHEN ? AND inbox > ? THEN min(ifnull(?, ?), ?) ELSE ? END {FENCE}"""

INSERT_LOG = """INSERT INTO log (thread, n, seq, epoch, kind, at, head, salt, payload, schema)
    VALUES (?,?,?,?,?,?,?,?,?,?)"""
INSERT_ITEMS = "INSERT INTO items (thread, n, payload, schema) VALUES (?,?,?,?)"
CONSUME = "UPDATE inbox SET consumed = ? WHERE thread = ? AND number = ?"
INSERT_ARTIFACT = f"INSERT OR IGNORE INTO artifact ({ARTIFACT}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
DROP_ARTIFACT = "DELETE FROM artifact WHERE workspace = ? AND id = ? AND incarnation = ?"
INSERT_OUTBOX = """INSERT INTO outbox (thread, seq, n, workspace, thread_id, kind, payload, schema)
    VALUES (?,?,?,?,?,?,?,?)"""
INSERT_MESSAGE = f"""INSERT INTO message ({MESSAGE})
    SELECT ?, ?, ifnull(max(number), 0) + 1, ?, ?, ?, ?, ?, ? FROM message
    WHERE workspace = ? AND session = ?"""
NEWEST_MEMORY = (
    f"SELECT {MEMORY} FROM memory WHERE workspace = ? AND namespace = ? AND key = ? AND newest = 1"
)
OLD_MEMORY = "UPDATE memory SET newest = 0 WHERE workspace = ? AND namespace = ? AND key = ? AND newest = 1"
INSERT_MEMORY = f"INSERT INTO memory ({MEMORY}, newest) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,1)"
FIND_KEY = f"SELECT {KEY} FROM effect_key WHERE workspace = ? AND effect = ? AND key = ?"
INSERT_KEY = f"INSERT INTO effect_key ({KEY}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
THIS_KEY = "WHERE workspace = ? AND effect = ? AND key = ? AND incarnation = ? AND seq = ?"
FIND_STANDING = """SELECT s.id, s.incarnation, s.epoch, s.n, s.owner
    FROM thread t JOIN standing s ON s.id = t.id WHERE t.workspace = ? AND t.thread_id = ?"""


class Unfit(Exception):
    """What was tried for a whole batch does not hold for every write in it."""


@define
class Transaction:
    """The open transaction of a batch, and what is known from one batch to the next."""

    db: sqlite3.Connection
    now: Micros = 0
    """The store's clock when the batch began."""
    numbers: dict[tuple[str, str, bytes], int] = field(factory=dict[tuple[str, str, bytes], int])
    """The numbers of started threads. A wrong one does no harm: the fence has the incarnation too."""
    steady: dict[int, int] = field(factory=dict[int, int])
    """Epochs at which these threads ran, not due and without crashes, after their last write."""

    turn: dict[str, str] = field(factory=dict[str, str])
    """At which workspace a claim goes on that cannot serve all of them at once."""

    def learn(self, address: Address, incarnation: bytes, number: int) -> None:
        if len(self.numbers) >= KNOWN_THREADS:
            del self.numbers[next(iter(self.numbers))]
        self.numbers[address.workspace, address.thread_id, incarnation] = number

    def note(self, number: int, epoch: int, *, steady: bool) -> None:
        self.steady.pop(number, None)
        if steady:
            if len(self.steady) >= KNOWN_THREADS:
                del self.steady[next(iter(self.steady))]
            self.steady[number] = epoch


def is_plain(write: object) -> bool:
    """A commit that nothing but its own thread's standing can refuse."""
    return type(write) is Commit and not (write.memory or write.checks or write.keys or write.messages)


def land_together(tx: Transaction, commits: Sequence[Commit]) -> None:
    """Land plain commits, several of one thread among them, in order; ``Unfit`` where one does not fit."""
    numbers = [_number(tx, commit) for commit in commits]
    going_on: list[Row] = []
    settling: list[Row] = []
    unsteady: set[int] = set()
    for number, commit in zip(numbers, commits, strict=True):
        if number not in unsteady and tx.steady.get(number) == commit.epoch and _goes_on(commit):
            going_on.append((*_standing_values(commit.standing), *_fence_values(number, commit)))
        else:
            # All that goes on is written first, so what follows in the same thread is settled too.
            unsteady.add(number)
            settling.append(_settle_values(number, commit, tx.now))
    _update_all(tx, GO_ON, going_on)
    _update_all(tx, SETTLE, settling)
    for number, commit in zip(numbers, commits, strict=True):
        if number in unsteady:
            tx.note(number, commit.epoch, steady=_goes_on(commit))
    insert = [log_values(number, commit.log) for number, commit in zip(numbers, commits, strict=True)]
    tx.db.executemany(INSERT_LOG, insert)
    _write_parts(tx, numbers, commits)


def land_alone(tx: Transaction, commit: Commit) -> None:
    """Judge one commit, then land it. What it is refused for is raised before anything is written."""
    number = _judge(tx, commit)
    if number is None:
        return
    _update_all(tx, SETTLE, [_settle_values(number, commit, tx.now)])
    tx.note(number, commit.epoch, steady=_goes_on(commit))
    tx.db.execute(INSERT_LOG, log_values(number, commit.log))
    _write_parts(tx, [number], [commit])
    write_messages(tx, commit)
    for key in commit.keys:
        _write_key(tx, commit, key)
    _write_memory(tx, commit)


def _number(tx: Transaction, commit: Commit) -> int:
    address = commit.address
    number = tx.numbers.get((address.workspace, address.thread_id, commit.incarnation))
    if number is None:
        row = tx.db.execute(FIND_STANDING, (address.workspace, address.thread_id)).fetchone()
        if row is None or row[1] != commit.incarnation:
            raise Unfit
        number = int(row[0])
        tx.learn(address, commit.incarnation, number)
    return number


def _goes_on(commit: Commit) -> bool:
    return commit.standing.status == "running" and commit.standing.wake is None and not commit.release


def _update_all(tx: Transaction, statement: str, rows: Sequence[Row]) -> None:
    if rows and tx.db.executemany(statement, rows).rowcount != len(rows):
        raise Unfit


def _standing_values(standing: Standing) -> Row:
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


def _fence_values(number: int, commit: Commit) -> Row:
    return number, commit.incarnation, commit.epoch, commit.log.n


def _settle_values(number: int, commit: Commit, now: Micros) -> Row:
    standing = commit.standing
    return (
        *_standing_values(standing),
        STATUS_CODES[standing.status],
        commit.release,
        commit.release,
        now,
        *wake_values(standing.status, commit.inbox_seen, standing.wake, now),
        *_fence_values(number, commit),
    )


def wake_values(status: str, inbox_seen: int, wake: Micros | None, now: Micros) -> Row:
    """The values of a statement's ``wake``: a waiting thread with unseen entries is due at once."""
    return status == "waiting", inbox_seen, wake, now, now, wake


def _write_parts(tx: Transaction, numbers: Sequence[int], commits: Sequence[Commit]) -> None:
    pairs = list(zip(numbers, commits, strict=True))
    _insert(tx, INSERT_ITEMS, ((i, c.log.n, c.items, SCHEMA) for i, c in pairs if c.items is not None))
    _insert(tx, CONSUME, ((c.log.seq, i, taken) for i, c in pairs for taken in c.consumed))
    _insert(
        tx,
        DROP_ARTIFACT,
        ((c.address.workspace, name, c.incarnation) for _, c in pairs for name in c.dropped_artifacts),
    )
    _insert(tx, INSERT_ARTIFACT, (artifact_values(row) for _, c in pairs for row in c.artifacts))
    _insert(
        tx,
        INSERT_OUTBOX,
        (
            (i, o.seq, o.n, o.target.workspace, o.target.thread_id, o.kind, o.payload, o.schema)
            for i, c in pairs
            for o in c.outbox
        ),
    )


def _insert(tx: Transaction, statement: str, rows: Iterable[Row]) -> None:
    found = list(rows)
    if found:
        tx.db.executemany(statement, found)


def write_messages(tx: Transaction, write: Start | Commit) -> None:
    """Append messages to a session, each under its next number."""
    name = (write.address.workspace, write.session)
    owner = (write.address.thread_id, write.incarnation, write.principal)
    for payload in write.messages:
        tx.db.execute(INSERT_MESSAGE, (*name, *owner, payload, write.log.at, SCHEMA, *name))


def _judge(tx: Transaction, commit: Commit) -> int | None:
    """The thread's number; None where this very commit has landed before."""
    address = commit.address
    row = tx.db.execute(FIND_STANDING, (address.workspace, address.thread_id)).fetchone()
    if row is None:
        raise StaleClaim(f"there is no thread {address.thread_id!r} in workspace {address.workspace!r}")
    number, incarnation, epoch, n, owner = row
    if incarnation != commit.incarnation:
        raise StaleClaim(f"thread {address.thread_id!r} is another one by now: the id was used again")
    tx.learn(address, incarnation, number)
    if (epoch, n) != (commit.epoch, commit.log.n) or owner is None:
        if _has_landed(tx, number, commit):
            return None
        raise StaleClaim(_stale(commit, epoch, n, owner))
    _judge_memory(tx, commit)
    _judge_keys(tx, commit)
    return int(number)


def _has_landed(tx: Transaction, number: int, commit: Commit) -> bool:
    row = tx.db.execute(
        "SELECT epoch, head FROM log WHERE thread = ? AND n = ?", (number, commit.log.n)
    ).fetchone()
    return row is not None and tuple(row) == (commit.epoch, commit.log.head)


def _stale(commit: Commit, epoch: int, n: int, owner: str | None) -> str:
    held = f"it is at position {n}, epoch {epoch}, " + (f"held by {owner!r}" if owner else "held by nobody")
    return (
        f"a commit to thread {commit.address.thread_id!r} at position {commit.log.n}, epoch {commit.epoch}, "
        f"came too late: {held}"
    )


def _judge_memory(tx: Transaction, commit: Commit) -> None:
    known = {(check.namespace, check.key): {check.version} for check in commit.checks}
    for write in commit.memory:
        known.setdefault((write.namespace, write.key), set()).add(write.expected)
    moved: list[MemoryRow] = []
    missing: list[tuple[str, str]] = []
    for (namespace, key), versions in known.items():
        row = tx.db.execute(NEWEST_MEMORY, (commit.address.workspace, namespace, key)).fetchone()
        if versions == {0 if row is None else row[3]}:
            continue
        if row is None:
            missing.append((namespace, key))
        else:
            moved.append(read_memory(row))
    if moved or missing:
        raise MemoryMoved(moved, missing)


def _judge_keys(tx: Transaction, commit: Commit) -> None:
    for key in commit.keys:
        row = _find_key(tx, commit, key) if key.action == "claim" else None
        if row is not None and not _is_mine(commit, row):
            raise KeyTaken(read_key(row))


def _find_key(tx: Transaction, commit: Commit, key: KeyWrite) -> Any:
    return tx.db.execute(FIND_KEY, (commit.address.workspace, key.effect, key.key)).fetchone()


def _is_mine(commit: Commit, row: Row) -> bool:
    return bool(row[6] == commit.incarnation and row[7] == commit.visit)


def _write_key(tx: Transaction, commit: Commit, key: KeyWrite) -> None:
    name = (commit.address.workspace, key.effect, key.key)
    mine = (*name, commit.incarnation, commit.visit)
    if key.action == "outcome":
        tx.db.execute(
            f"UPDATE effect_key SET outcome = ?, expires = ? {THIS_KEY}", (key.outcome, key.expires, *mine)
        )
    elif key.action == "free":
        tx.db.execute(f"DELETE FROM effect_key {THIS_KEY}", mine)
    elif _find_key(tx, commit, key) is None:
        visit = (commit.address.thread_id, commit.incarnation, commit.visit)
        stamps = (key.outcome, commit.log.at, key.expires, SCHEMA)
        tx.db.execute(INSERT_KEY, (*name, key.arguments, key.salt, *visit, *stamps))


def _write_memory(tx: Transaction, commit: Commit) -> None:
    for write in commit.memory:
        name = (commit.address.workspace, write.namespace, write.key)
        tx.db.execute(OLD_MEMORY, name)
        stamps = (
            commit.log.at,
            commit.address.thread_id,
            commit.log.seq,
            commit.principal,
            write.expires,
            None,
            SCHEMA,
        )
        tx.db.execute(INSERT_MEMORY, (*name, write.expected + 1, write.value, *stamps))
