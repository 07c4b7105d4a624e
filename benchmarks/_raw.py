"""The limit: the very rows that perdure wrote, written again by sqlite3 alone, in batches as large.

python -m benchmarks._raw SOURCE PATH BATCH
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from itertools import islice
from statistics import median
from typing import Any

TEN = 10
"""Commits that a thread of the workload makes after its start."""

UPDATE = """UPDATE standing SET state = ?, seq = ?, status = ?, base = ?, n = ?
    WHERE id = ? AND n = ? AND epoch = ?"""
INSERT = "INSERT INTO log VALUES (?,?,?,?,?,?,?,?,?,?)"

Row = tuple[Any, ...]


def prepared(source: str, path: str) -> tuple[sqlite3.Connection, list[list[Row]]]:
    """A new file with the tables and settings of the store at ``source``, and the log rows of each thread,
    which are still to be written."""
    old = sqlite3.connect(source)
    log = old.execute("SELECT thread, n, seq, epoch, kind, at, head, salt, payload, schema FROM log")
    by_thread: dict[int, list[Row]] = {}
    for row in log:
        by_thread.setdefault(row[0], []).append(row)
    return _empty_copy(old, path), list(by_thread.values())


def land(db: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """One transaction, on the disk when this returns."""
    db.execute("BEGIN IMMEDIATE")
    changed = db.executemany(UPDATE, [("writing", r[2], 0, 0, r[1] + 1, r[0], r[1], 1) for r in rows])
    if changed.rowcount != len(rows):
        raise RuntimeError("the rows to update are not there")
    db.executemany(INSERT, rows)
    db.execute("COMMIT")


def measure(source: str, path: str, batch: int) -> dict[str, Any]:
    """Seconds for all rows, and for ten commits (p50)."""
    db, threads = prepared(source, path)
    rounds = rounds_of(threads, batch)
    moments = [time.perf_counter()]
    cpu = time.process_time()
    for rows in rounds:
        land(db, rows)
        moments.append(time.perf_counter())
    return {
        "seconds": moments[-1] - moments[0],
        "cpu": time.process_time() - cpu,
        "ten_commits": median(b - a for a, b in zip(moments, moments[TEN:], strict=False)),
        "bytes": os.path.getsize(path),
    }


def rounds_of(threads: list[list[Row]], batch: int) -> list[list[Row]]:
    """One row of each of ``batch`` threads at a time, since a thread's rows follow one another."""
    waiting = iter(threads)
    running = [iter(rows) for rows in islice(waiting, batch)]
    rounds: list[list[Row]] = []
    while running:
        rows: list[Row] = []
        going: list[Any] = []
        for thread in running:
            row = next(thread, None)
            if row is None:
                fresh = next(waiting, None)
                if fresh is None:
                    continue
                thread = iter(fresh)
                row = next(thread)
            rows.append(row)
            going.append(thread)
        running = going
        if rows:
            rounds.append(rows)
    return rounds


def _empty_copy(old: sqlite3.Connection, path: str) -> sqlite3.Connection:
    new = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in (
        "page_size = 8192",
        "journal_mode = WAL",
        "synchronous = FULL",
        "wal_autocheckpoint = 128",
    ):
        new.execute(f"PRAGMA {pragma}").fetchall()
    for (statement,) in old.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL"):
        new.execute(statement)
    new.execute("BEGIN")
    for table in ("thread", "standing"):
        rows = old.execute(f"SELECT * FROM {table}").fetchall()
        marks = ",".join("?" * len(rows[0]))
        new.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    new.execute("UPDATE standing SET n = 0, seq = 0, epoch = 1, status = 0")
    new.execute("COMMIT")
    return new


def main() -> None:
    source, path, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sys.stdout.write(json.dumps(measure(source, path, batch)) + "\n")


if __name__ == "__main__":
    main()
