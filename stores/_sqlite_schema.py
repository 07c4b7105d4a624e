"""The tables of a SQLite store, its versions, and how a file comes to have them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence

import aiosqlite
from anyio import to_thread

from ._errors import BadStoreURL, StoreUnreadable

APPLICATION_ID = 0x70657264
"""Stands in the file's header ("perd" in ASCII) and tells it from other SQLite databases."""

PAGE_SIZE = 8192

Migration = Sequence[str]
"""The statements that lead from one version to the next."""

# `thread` says who a thread is and exists from its first signal on; `standing` says where a started thread
# stands, and is the one row that every commit updates. `log` and its index are kept in the order of
# commits: clustering it by thread costs a third of the speed.
# Codes are small integers: see STATUSES and KINDS in `_sql_rows`.
TABLES: Migration = (
    """CREATE TABLE thread (
        id INTEGER PRIMARY KEY, workspace TEXT NOT NULL, thread_id TEXT NOT NULL, session TEXT,
        session_since INTEGER, principal TEXT, parent TEXT, started BLOB, created INTEGER, schema INTEGER)""",
    "CREATE UNIQUE INDEX thread_address ON thread (workspace, thread_id)",
    """CREATE TABLE standing (
        id INTEGER PRIMARY KEY, incarnation BLOB NOT NULL, machine TEXT NOT NULL, state TEXT NOT NULL,
        seq INTEGER NOT NULL, version INTEGER NOT NULL, definition TEXT NOT NULL, status INTEGER NOT NULL,
        base INTEGER NOT NULL, n INTEGER NOT NULL, epoch INTEGER NOT NULL, owner TEXT,
        crashes INTEGER NOT NULL, inbox INTEGER NOT NULL, wake INTEGER, expires INTEGER, reason TEXT,
        note TEXT, items INTEGER NOT NULL, schema INTEGER NOT NULL)""",
    "CREATE INDEX standing_owned ON standing (owner, machine) WHERE owner IS NOT NULL",
    "CREATE INDEX standing_runnable ON standing (machine) WHERE owner IS NULL AND status = 0",
    """CREATE INDEX standing_due ON standing (machine, wake)
        WHERE owner IS NULL AND status = 1 AND wake IS NOT NULL""",
    "CREATE INDEX standing_parked ON standing (machine) WHERE status = 2",
    "CREATE INDEX standing_crashed ON standing (machine, crashes) WHERE crashes > 0",
    """CREATE TABLE log (
        thread INTEGER NOT NULL, n INTEGER NOT NULL, seq INTEGER NOT NULL, epoch INTEGER NOT NULL,
        kind INTEGER NOT NULL, at INTEGER NOT NULL, head BLOB NOT NULL, salt BLOB, payload BLOB NOT NULL,
        schema INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX log_position ON log (thread, n)",
    """CREATE TABLE items (
        thread INTEGER NOT NULL, n INTEGER NOT NULL, payload BLOB NOT NULL, schema INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX items_position ON items (thread, n)",
    """CREATE TABLE inbox (
        thread INTEGER NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL, event TEXT NOT NULL,
        payload BLOB NOT NULL, digest BLOB NOT NULL, at INTEGER NOT NULL, consumed INTEGER,
        schema INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX inbox_number ON inbox (thread, number)",
    "CREATE UNIQUE INDEX inbox_id ON inbox (thread, id)",
    "CREATE INDEX inbox_pending ON inbox (thread, number) WHERE consumed IS NULL",
    """CREATE TABLE message (
        workspace TEXT NOT NULL, session TEXT NOT NULL, number INTEGER NOT NULL, thread_id TEXT NOT NULL,
        incarnation BLOB NOT NULL, principal TEXT NOT NULL, payload BLOB NOT NULL, at INTEGER NOT NULL,
        schema INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX message_number ON message (workspace, session, number)",
    "CREATE INDEX message_thread ON message (workspace, session, incarnation, number)",
    """CREATE TABLE memory (
        workspace TEXT NOT NULL, namespace TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL,
        newest INTEGER NOT NULL, value BLOB, at INTEGER NOT NULL, thread_id TEXT, seq INTEGER,
        principal TEXT NOT NULL, expires INTEGER, request TEXT, schema INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX memory_version ON memory (workspace, namespace, key, version)",
    "CREATE UNIQUE INDEX memory_newest ON memory (workspace, namespace, key) WHERE newest = 1",
    """CREATE UNIQUE INDEX memory_request ON memory (workspace, namespace, key, request)
        WHERE request IS NOT NULL""",
    "CREATE INDEX memory_expires ON memory (expires) WHERE expires IS NOT NULL",
    """CREATE TABLE artifact (
        workspace TEXT NOT NULL, id TEXT NOT NULL, sha256 TEXT NOT NULL, size_bytes INTEGER NOT NULL,
        media_type TEXT NOT NULL, principal TEXT NOT NULL, thread_id TEXT, incarnation BLOB, seq INTEGER,
        derived_from TEXT NOT NULL, created INTEGER NOT NULL, expires INTEGER, schema INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX artifact_id ON artifact (workspace, id)",
    "CREATE INDEX artifact_created ON artifact (workspace, created, id)",
    "CREATE INDEX artifact_thread ON artifact (workspace, thread_id)",
    "CREATE INDEX artifact_blob ON artifact (workspace, sha256)",
    "CREATE INDEX artifact_expires ON artifact (expires) WHERE expires IS NOT NULL AND thread_id IS NULL",
    """CREATE TABLE derivation (
        workspace TEXT NOT NULL, source TEXT NOT NULL, artifact TEXT NOT NULL,
        PRIMARY KEY (workspace, source, artifact)) WITHOUT ROWID""",
    "CREATE INDEX derivation_artifact ON derivation (workspace, artifact)",
    """CREATE TRIGGER artifact_comes AFTER INSERT ON artifact WHEN new.derived_from <> '[]' BEGIN
        INSERT OR IGNORE INTO derivation
            SELECT new.workspace, value, new.id FROM json_each(new.derived_from); END""",
    """CREATE TRIGGER artifact_goes AFTER DELETE ON artifact WHEN old.derived_from <> '[]' BEGIN
        DELETE FROM derivation WHERE workspace = old.workspace AND artifact = old.id; END""",
    """CREATE TABLE effect_key (
        workspace TEXT NOT NULL, effect TEXT NOT NULL, key TEXT NOT NULL, arguments BLOB NOT NULL,
        salt BLOB NOT NULL, thread_id TEXT NOT NULL, incarnation BLOB NOT NULL, seq INTEGER NOT NULL,
        outcome BLOB, at INTEGER NOT NULL, expires INTEGER, schema INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX effect_key_name ON effect_key (workspace, effect, key)",
    """CREATE INDEX effect_key_expires ON effect_key (expires)
        WHERE expires IS NOT NULL AND outcome IS NOT NULL""",
    """CREATE TABLE outbox (
        thread INTEGER NOT NULL, seq INTEGER NOT NULL, n INTEGER NOT NULL, workspace TEXT NOT NULL,
        thread_id TEXT NOT NULL, kind TEXT NOT NULL, payload BLOB NOT NULL, schema INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX outbox_position ON outbox (thread, seq, n)",
    """CREATE TABLE worker (
        id TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, lock TEXT NOT NULL,
        lease INTEGER NOT NULL, started INTEGER NOT NULL, beat INTEGER NOT NULL, ended INTEGER,
        schema INTEGER NOT NULL)""",
    "CREATE INDEX worker_started ON worker (started DESC, id)",
)

# `since`: when a running thread came to have no owner. `workspace` and `priority` stand with it because
# claims are shared out by them.
SHARED_OUT: Migration = (
    "ALTER TABLE standing ADD COLUMN workspace TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE standing ADD COLUMN priority INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE standing ADD COLUMN since INTEGER NOT NULL DEFAULT 0",
    """UPDATE standing SET workspace = (SELECT workspace FROM thread t WHERE t.id = standing.id),
        since = (SELECT at FROM log l WHERE l.thread = standing.id AND l.n = standing.n - 1)""",
    "DROP INDEX standing_owned",
    """CREATE INDEX standing_owned ON standing (owner, machine, workspace, priority, since)
        WHERE owner IS NOT NULL""",
    "DROP INDEX standing_runnable",
    """CREATE INDEX standing_runnable ON standing (machine, workspace, priority, since)
        WHERE owner IS NULL AND status = 0""",
    """CREATE INDEX standing_held ON standing (owner, machine, wake)
        WHERE owner IS NOT NULL AND status = 1 AND wake IS NOT NULL""",
    """CREATE INDEX standing_shared ON standing (machine, workspace, priority, wake)
        WHERE owner IS NULL AND status = 1 AND wake IS NOT NULL""",
    "ALTER TABLE inbox ADD COLUMN version INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE worker ADD COLUMN hint TEXT NOT NULL DEFAULT ''",
    """CREATE TABLE definition (
        machine TEXT NOT NULL, version INTEGER NOT NULL, hash TEXT NOT NULL, document BLOB NOT NULL,
        at INTEGER NOT NULL, schema INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX definition_name ON definition (machine, version, hash)",
    """CREATE TABLE slot (
        name TEXT NOT NULL, worker TEXT NOT NULL, held INTEGER NOT NULL, PRIMARY KEY (name, worker)
        ) WITHOUT ROWID""",
    "CREATE TABLE pace (name TEXT PRIMARY KEY, full_at INTEGER NOT NULL) WITHOUT ROWID",
)

MIGRATIONS: Sequence[Migration] = (TABLES, SHARED_OUT)
"""From version i to i + 1. What has been released is never changed: a new version is added behind."""

IDENTITY = """SELECT (SELECT count(*) FROM sqlite_master), application_id, user_version
    FROM pragma_application_id, pragma_user_version"""

COLUMNS = """SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"""


async def prepare(db: aiosqlite.Connection, path: str, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the file to the newest version. Any number of processes may do so at once: one migrates.

    Raises ``StoreUnreadable`` for a file that is another program's, a newer perdure's, or of a perdure from
    before the release of its version, which is left as it is. A busy file is the driver's error; the whole
    call may be made again.
    """
    if await _version(db, path, len(migrations)) < len(migrations):
        await db.execute_fetchall(f"PRAGMA page_size = {PAGE_SIZE}")
    else:
        await _check_columns(db, path, migrations)
    await _write_ahead(db, path)
    if await _version(db, path, len(migrations)) < len(migrations):
        await _migrate(db, path, migrations)


async def examine(db: aiosqlite.Connection, path: str, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Refuse, with ``StoreUnreadable``, a file that is not of the newest version; nothing is written."""
    version = await _version(db, path, len(migrations))
    if version < len(migrations):
        raise StoreUnreadable(
            f"{path} is of an older perdure (schema {version}, this one reads {len(migrations)}), and who "
            f"only reads does not migrate it: copy it (`sqlite3 {path} '.backup COPY'`), open the copy once "
            "(`perdure ls --store sqlite:///COPY`), and look at that"
        )
    await _check_columns(db, path, migrations)


async def _version(db: aiosqlite.Connection, path: str, newest: int) -> int:
    tables, application, version = next(iter(await db.execute_fetchall(IDENTITY)))
    if application != APPLICATION_ID and (tables or application or version):
        raise StoreUnreadable(f"{path} is a database of another program: name a file of its own for perdure")
    if version > newest:
        raise StoreUnreadable(
            f"{path} was written by a newer perdure (schema {version}, this one reads up to {newest}): "
            "upgrade perdure, or name another file"
        )
    return int(version)


async def _check_columns(db: aiosqlite.Connection, path: str, migrations: Sequence[Migration]) -> None:
    """Until it is released, a version may change in place: a file that lacks something of it is refused."""
    wanted = await to_thread.run_sync(_columns_of, migrations)
    lacking = wanted - {(table, column) for table, column in await db.execute_fetchall(COLUMNS)}
    if lacking:
        table, column = min(lacking)
        raise StoreUnreadable(
            f"{path} was written by a perdure from before this version was released (its table {table} has "
            f"no {column}): open it with that perdure, or name another file"
        )


def _columns_of(migrations: Sequence[Migration]) -> set[tuple[str, str]]:
    db = sqlite3.connect(":memory:")
    try:
        for migration in migrations:
            for statement in migration:
                db.execute(statement)
        return {(table, column) for table, column in db.execute(COLUMNS)}
    finally:
        db.close()


async def _write_ahead(db: aiosqlite.Connection, path: str) -> None:
    ((mode,),) = await db.execute_fetchall("PRAGMA journal_mode = WAL")
    if mode != "wal":
        raise BadStoreURL(
            f"{path} lies where SQLite cannot keep a write-ahead log (no shared memory between processes): "
            "put the file on a local disk"
        )


async def _migrate(db: aiosqlite.Connection, path: str, migrations: Sequence[Migration]) -> None:
    await db.execute("BEGIN IMMEDIATE")
    try:
        for migration in migrations[await _version(db, path, len(migrations)) :]:
            for statement in migration:
                await db.execute(statement)
        await db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        await db.execute(f"PRAGMA user_version = {len(migrations)}")
        await db.execute("COMMIT")
    except BaseException:
        # Whoever is cancelled in its COMMIT comes here while that is still under way.
        with contextlib.suppress(sqlite3.OperationalError):
            await db.execute("ROLLBACK")
        raise
