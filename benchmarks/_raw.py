"""The limit: the very rows that perdure wrote, written again by sqlite3 alone, in batches as large."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from itertools import islice
from typing import Any

UPDATE = """UPDATE standing SET state = ?, seq = ?, status = ?, base = ?, n = ?
    WHERE id = ? AND n = ? AND epoch = ?"""
INSERT = "INSERT INTO log VALUES (?,?,?,?,?,?,?,?,?,?)"


def measure(source: str, path: str, batch: int) -> dict[str, Any]:
    """Write the rows of the store at ``source`` into a new file with the same tables and settings."""
    old = sqlite3.connect(source)
    new = _empty_copy(old, path)
    log = old.execute(
        "SELECT thread, n, seq, epoch, kind, at, head, salt, payload, schema FROM log"
    ).fetchall()
    by_thread: dict[int, list[tuple[Any, ...]]] = {}
    for row in log:
        by_thread.setdefault(row[0], []).append(row)
    rounds = _rounds(list(by_thread.values()), batch)
    began, cpu = time.perf_counter(), time.process_time()
    for rows in rounds:
        new.execute("BEGIN IMMEDIATE")
        changed = new.executemany(UPDATE, [("writing", r[2], 0, 0, r[1] + 1, r[0], r[1], 1) for r in rows])
        if changed.rowcount != len(rows):
            raise RuntimeError("the rows to update are not there")
        new.executemany(INSERT, rows)
        new.execute("COMMIT")
    return {
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "bytes": os.path.getsize(path),
    }


def _rounds(threads: list[list[tuple[Any, ...]]], batch: int) -> list[list[tuple[Any, ...]]]:
    """One row of each of ``batch`` threads at a time, since a thread's rows follow one another."""
    waiting = iter(threads)
    running = [iter(rows) for rows in islice(waiting, batch)]
    rounds: list[list[tuple[Any, ...]]] = []
    while running:
        rows: list[tuple[Any, ...]] = []
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
    new = sqlite3.connect(path, isolation_level=None)
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
