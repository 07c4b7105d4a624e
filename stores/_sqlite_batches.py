"""One transaction for many writes, of which each is judged alone."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast

from ._errors import OutcomeUnknown, StoreError, StoreUnavailable, TooLarge
from ._outside import Expire, Remember
from ._records import ArtifactRow, ClaimRequest, Commit, Micros, Signal, Start
from ._sql_outside import expire, remember
from ._sql_requests import Answer, Beat, Releases, Restore, Write
from ._sql_restore import restore
from ._sql_shares import share
from ._sql_writes import beat, deliver, release, upload
from ._sqlite_claims import claim
from ._sqlite_commits import SQLITE, Transaction, Unfit, is_plain, land_alone, land_together, start_thread
from ._sqlite_files import explain, is_busy
from ._workers import Share

T = TypeVar("T")


APPLY: dict[type[Any], Callable[[Transaction, Any], Answer]] = {
    Commit: land_alone,
    Start: start_thread,
    Signal: lambda tx, signal: tx.take(deliver(signal, tx.now)),
    Releases: lambda tx, given: tx.take(release(given.releases, tx.now)),
    ClaimRequest: claim,
    Beat: lambda tx, given: tx.take(beat(given.worker, given.definitions, tx.now)),
    Share: lambda tx, request: tx.take(share(request, tx.now)),
    ArtifactRow: lambda tx, artifact: tx.take(upload(artifact)),
    Remember: lambda tx, write: tx.take(remember(write, tx.now)),
    Expire: lambda tx, request: tx.take(expire(request, SQLITE)),
    Restore: lambda tx, given: tx.take(restore(given.rows, tx.now)),
}

PATIENCE = 60.0
"""Seconds that a batch waits for other processes to end theirs."""

ONE_WRITE = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    ValueError,
    TypeError,
)
"""Faults of one write's values, which say nothing about the others."""


class Occupied(Exception):
    """Another process has the file, and nobody is to wait for it."""


class Batches:
    """Runs batches on one connection, one at a time, whichever thread asks."""

    def __init__(self, db: sqlite3.Connection, path: str, clock: Callable[[], Micros]) -> None:
        self._tx = Transaction(db)
        self._db = db
        self._path = path
        self._clock = clock
        self._waits = True

    def run(self, writes: Sequence[Write]) -> Sequence[Answer]:
        """Land a batch durably and answer each of its writes, in order."""
        try:
            try:
                return self._transact(self._together, writes)
            except (Unfit, sqlite3.Error, *ONE_WRITE):
                return self._transact(self._apart, writes)
        except sqlite3.Error as error:
            return [explain(self._path, error) for _ in writes]
        except (OutcomeUnknown, StoreUnavailable) as error:
            return [type(error)(*error.args) for _ in writes]

    def run_at_once(self, writes: Sequence[Write]) -> Sequence[Answer]:
        """The same; ``Occupied``, and nothing was done, where another process writes at this moment."""
        self._waits = False
        try:
            return self.run(writes)
        finally:
            self._waits = True

    def _transact(
        self, apply: Callable[[Sequence[Write]], Sequence[Answer]], writes: Sequence[Write]
    ) -> Sequence[Answer]:
        if all(type(write) is ClaimRequest for write in writes):
            # Most find nothing, and are to leave other processes the file: they take it when they write.
            try:
                return self._land("BEGIN", apply, writes)
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
        return self._patiently(lambda: self._land("BEGIN IMMEDIATE", apply, writes))

    def _land(
        self, begin: str, apply: Callable[[Sequence[Write]], Sequence[Answer]], writes: Sequence[Write]
    ) -> Sequence[Answer]:
        self._db.execute(begin)
        try:
            self._tx.now = self._clock()
            answers = apply(writes)
        except BaseException:
            self._roll_back()
            raise
        self._finish()
        return answers

    def _finish(self) -> None:
        """Commit: when this returns, the disk has the batch."""
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise OutcomeUnknown(f"{self._path}: whether the write landed is not known ({error})") from error

    def _roll_back(self) -> None:
        # After some faults, such as a full disk, SQLite has rolled back by itself.
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _together(self, writes: Sequence[Write]) -> Sequence[Answer]:
        answers: list[Answer] = []
        for plain, group in groupby(writes, is_plain):
            run = list(group)
            if plain:
                land_together(self._tx, cast("Sequence[Commit]", run))
                answers += [None] * len(run)
            else:
                answers += [self._judge(write) for write in run]
        return answers

    def _judge(self, write: Write) -> Answer:
        """A refusal is raised before the write has changed anything, so there is nothing to take back."""
        try:
            return APPLY[type(write)](self._tx, write)
        except StoreError as error:
            return error

    def _apart(self, writes: Sequence[Write]) -> Sequence[Answer]:
        return [self._alone(write) for write in writes]

    def _alone(self, write: Write) -> Answer:
        self._db.execute("SAVEPOINT alone")
        try:
            answer = self._judge(write)
        except ONE_WRITE as error:
            self._db.execute("ROLLBACK TO alone")
            answer = _refusal(error)
        self._db.execute("RELEASE alone")
        return answer

    def _patiently(self, call: Callable[[], T]) -> T:
        """Waits for locks itself: the driver's own waits grow to 100 ms, and whoever waits longest loses."""
        deadline = time.monotonic() + PATIENCE
        pause = 0.0002
        while True:
            try:
                return call()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                if not self._waits:
                    raise Occupied from error
                if time.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"another process has kept {self._path} locked for {PATIENCE:.0f} seconds: end it, "
                        "or try again later"
                    ) from error
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 1.5, 0.005)


def _refusal(error: Exception) -> Exception:
    if isinstance(error, OverflowError | sqlite3.DataError):
        return TooLarge(f"a value is too large for a SQLite store: {error}")
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError(f"the write contradicts what is stored ({error}): nothing of it was written")
    if isinstance(error, sqlite3.Error):
        return StoreError(f"the write holds a value that SQLite cannot store ({error})")
    return error
