"""What is written outside of any thread: memory, and the end of what has had its time."""

from __future__ import annotations

from ._errors import MemoryMoved
from ._outside import Expire, Expired, Remember
from ._records import SCHEMA, MemoryRow, Micros
from ._sql_commits import INSERT_MEMORY, NEWEST_MEMORY, OLD_MEMORY
from ._sql_rows import MEMORY, read_memory
from ._sql_steps import Dialect, Row, Steps

REMEMBERED = f"""SELECT {MEMORY} FROM memory
    WHERE workspace = ? AND namespace = ? AND key = ? AND request = ?"""
OLD_VERSIONS = "memory WHERE expires <= ? AND newest = 0"
NEWEST_VERSIONS = "memory WHERE expires <= ? AND newest = 1"
UPLOADS = "artifact WHERE expires <= ? AND thread_id IS NULL"
KEYS = "effect_key WHERE expires <= ? AND outcome IS NOT NULL"


def remember(write: Remember, now: Micros) -> Steps[MemoryRow]:
    name = (write.workspace, write.namespace, write.key)
    known = yield REMEMBERED, (*name, write.id)
    if known:
        return read_memory(known[0])
    found = yield NEWEST_MEMORY, name
    newest = read_memory(found[0]) if found else None
    version = 0 if newest is None else newest.version
    if write.expected not in (None, version):
        raise MemoryMoved(*(([], [name[1:]]) if newest is None else ([newest], [])))
    yield OLD_MEMORY, name
    stamps = (now, None, None, write.principal, write.expires, write.id, SCHEMA)
    values: Row = (*name, version + 1, write.value, *stamps)
    yield INSERT_MEMORY, values
    return read_memory(values)


def expire(request: Expire, dialect: Dialect) -> Steps[Expired]:
    left = request.limit
    counts: list[int] = []
    for found, change in (
        (OLD_VERSIONS, "DELETE FROM memory"),
        (NEWEST_VERSIONS, "UPDATE memory SET value = NULL, expires = NULL"),
        (UPLOADS, "DELETE FROM artifact"),
        (KEYS, "DELETE FROM effect_key"),
    ):
        some = f"SELECT {dialect.row} AS it FROM {found} LIMIT ?"
        changed = f"""WITH expired AS MATERIALIZED ({some} {dialect.lock})
            {change} WHERE {dialect.row} IN (SELECT it FROM expired) RETURNING 1"""
        gone = yield (some if request.dry_run else changed), (request.at, left)
        counts.append(len(gone))
        left -= len(gone)
    return Expired(memory=counts[0] + counts[1], artifacts=counts[2], keys=counts[3])
