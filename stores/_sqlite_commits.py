"""How commits land in SQLite: many at once where none is in question, and each alone where one is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import TypeVar

from attrs import define, field

from ._records import SCHEMA, Address, Commit, Micros, Start, Started
from ._sql_commits import (
    DROP_ARTIFACT,
    FIND_STANDING,
    INSERT_ARTIFACT,
    INSERT_ITEMS,
    INSERT_LOG,
    judge,
    standing_values,
    wake_values,
    write_outside,
)
from ._sql_rows import STATUS_CODES, artifact_values, log_values
from ._sql_steps import Dialect, Row, Steps
from ._sql_writes import start

T = TypeVar("T")

KNOWN_THREADS = 100_000
"""So many threads' numbers are remembered, some 300 bytes each."""

SQLITE = Dialect(
    join="CROSS JOIN",
    index="INDEXED BY {}",
    numbers="json_each(?) j",
    derived="id IN (SELECT artifact FROM derivation WHERE workspace = ? AND source = ?)",
    row="rowid",
    lock="",
)

FENCE = "WHERE id = ? AND incarnation = ? AND epoch = ? AND n = ? AND owner IS NOT NULL"

STANDING = """state = ?, seq = ?, version = max(version, ?), definition = ?, base = ?, reason = ?, note = ?,
    expires = ?, items = ?, n = n + 1"""

GO_ON = f"""UPDATE standing SET {STANDING} {FENCE} AND status = 0 AND crashes = 0 AND wake IS NULL"""
"""For a thread that runs and goes on running: touches no column that an index has."""

SETTLE = f"""UPDATE standing SET {STANDING}, crashes = 0, status = ?,
    owner = iif(?, NULL, owner), since = iif(?, ?, since),
    wake = CASE WHEN inbox > ? THEN ? ELSE ? END {FENCE}"""

CONSUME = "UPDATE inbox SET consumed = ? WHERE thread = ? AND number = ?"
INSERT_OUTBOX = """INSERT INTO outbox (thread, seq, n, workspace, thread_id, kind, payload, schema)
    VALUES (?,?,?,?,?,?,?,?)"""


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

    def take(self, steps: Steps[T]) -> T:
        """Run work to its end, and answer what it does."""
        try:
            ask = next(steps)
            while True:
                ask = steps.send(self.db.execute(*ask).fetchall())
        except StopIteration as done:
            answer: T = done.value
            return answer

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
            going_on.append((*standing_values(commit.standing), *_fence_values(number, commit)))
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
    number = tx.take(judge(commit))
    if number is None:
        return
    tx.learn(commit.address, commit.incarnation, number)
    _update_all(tx, SETTLE, [_settle_values(number, commit, tx.now)])
    tx.note(number, commit.epoch, steady=_goes_on(commit))
    tx.db.execute(INSERT_LOG, log_values(number, commit.log))
    _write_parts(tx, [number], [commit])
    tx.take(write_outside(commit))


def start_thread(tx: Transaction, given: Start) -> Started:
    started, number = tx.take(start(given, tx.now))
    if number is not None:
        tx.learn(given.address, given.incarnation, number)
        running = given.standing.status == "running" and given.standing.wake is None
        tx.note(number, 1, steady=running and given.owner is not None)
    return started


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


def _fence_values(number: int, commit: Commit) -> Row:
    return number, commit.incarnation, commit.epoch, commit.log.n


def _settle_values(number: int, commit: Commit, now: Micros) -> Row:
    standing = commit.standing
    return (
        *standing_values(standing),
        STATUS_CODES[standing.status],
        commit.release,
        commit.release,
        now,
        *wake_values(standing.status, commit.inbox_seen, standing.wake, now),
        *_fence_values(number, commit),
    )


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
