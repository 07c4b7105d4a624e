"""What is written to a SQLite store outside of any thread: memory, and the end of what has had its time."""

from __future__ import annotations

from ._errors import MemoryMoved
from ._outside import Expire, Expired, Remember
from ._records import SCHEMA, MemoryRow
from ._sqlite_commits import INSERT_MEMORY, NEWEST_MEMORY, OLD_MEMORY, Transaction
from ._sqlite_rows import MEMORY, Row, read_memory

REMEMBERED = f"""SELECT {MEMORY} FROM memory
    WHERE workspace = ? AND namespace = ? AND key = ? AND request = ?"""
OLD_VERSIONS = "memory WHERE expires <= ? AND newest = 0"
NEWEST_VERSIONS = "memory WHERE expires <= ? AND newest = 1"
UPLOADS = "artifact WHERE expires <= ? AND thread_id IS NULL"
KEYS = "effect_key WHERE expires <= ? AND outcome IS NOT NULL"


def remember(tx: Transaction, write: Remember) -> MemoryRow:
    name = (write.workspace, write.namespace, write.key)
    known = tx.db.execute(REMEMBERED, (*name, write.id)).fetchone()
    if known is not None:
        return read_memory(known)
    found = tx.db.execute(NEWEST_MEMORY, name).fetchone()
    newest = None if found is None else read_memory(found)
    version = 0 if newest is None else newest.version
    if write.expected not in (None, version):
        raise MemoryMoved(*(([], [name[1:]]) if newest is None else ([newest], [])))
    tx.db.execute(OLD_MEMORY, name)
    stamps = (tx.now, None, None, write.principal, write.expires, write.id, SCHEMA)
    values: Row = (*name, version + 1, write.value, *stamps)
    tx.db.execute(INSERT_MEMORY, values)
    return read_memory(values)


def expire(tx: Transaction, request: Expire) -> Expired:
    old = _expire(tx, request, OLD_VERSIONS, "DELETE FROM memory", request.limit)
    left = request.limit - old
    newest = _expire(tx, request, NEWEST_VERSIONS, "UPDATE memory SET value = NULL, expires = NULL", left)
    left -= newest
    artifacts = _expire(tx, request, UPLOADS, "DELETE FROM artifact", left)
    keys = _expire(tx, request, KEYS, "DELETE FROM effect_key", left - artifacts)
    return Expired(memory=old + newest, artifacts=artifacts, keys=keys)


def _expire(tx: Transaction, request: Expire, found: str, change: str, limit: int) -> int:
    bounds = (request.at, limit)
    if request.dry_run:
        (count,) = tx.db.execute(f"SELECT count(*) FROM (SELECT 1 FROM {found} LIMIT ?)", bounds).fetchone()
        return int(count)
    some = f"{change} WHERE rowid IN (SELECT rowid FROM {found} LIMIT ?)"
    return tx.db.execute(some, bounds).rowcount
