"""The tables of a PostgreSQL store, its versions, and how a schema comes to have them."""

from __future__ import annotations

from collections.abc import Sequence

from ._errors import BadStoreURL, StoreUnreadable, no_store
from ._postgres_session import Session, lock_key

Migration = Sequence[str]
"""The statements that lead from one version to the next."""

# The same tables, columns and indexes as SQLite's, so that one statement reads and writes both. Texts are
# ordered by code point, whatever the database's locale is. `standing` is the one row that every commit
# updates: room on its pages lets that happen without touching an index.
TABLES: Migration = (
    "CREATE TABLE perdure (version BIGINT NOT NULL)",
    "INSERT INTO perdure (version) VALUES (0)",
    """CREATE TABLE thread (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, workspace TEXT COLLATE "C" NOT NULL,
        thread_id TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C", session_since BIGINT,
        principal TEXT COLLATE "C", parent TEXT COLLATE "C", started BYTEA, created BIGINT, schema BIGINT)""",
    "CREATE UNIQUE INDEX thread_address ON thread (workspace, thread_id)",
    """CREATE TABLE standing (
        id BIGINT PRIMARY KEY, incarnation BYTEA NOT NULL, machine TEXT COLLATE "C" NOT NULL,
        state TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, version BIGINT NOT NULL,
        definition TEXT COLLATE "C" NOT NULL, status BIGINT NOT NULL, base BIGINT NOT NULL, n BIGINT NOT NULL,
        epoch BIGINT NOT NULL, owner TEXT COLLATE "C", crashes BIGINT NOT NULL, inbox BIGINT NOT NULL,
        wake BIGINT, expires BIGINT, reason TEXT COLLATE "C", note TEXT COLLATE "C", items BIGINT NOT NULL,
        schema BIGINT NOT NULL, workspace TEXT COLLATE "C" NOT NULL, priority BIGINT NOT NULL,
        since BIGINT NOT NULL) WITH (fillfactor = 50)""",
    """CREATE INDEX standing_owned ON standing (owner, machine, workspace, priority, since)
        WHERE owner IS NOT NULL""",
    """CREATE INDEX standing_runnable ON standing (machine, workspace, priority, since)
        WHERE owner IS NULL AND status = 0""",
    """CREATE INDEX standing_due ON standing (machine, wake)
        WHERE owner IS NULL AND status = 1 AND wake IS NOT NULL""",
    """CREATE INDEX standing_held ON standing (owner, machine, wake)
        WHERE owner IS NOT NULL AND status = 1 AND wake IS NOT NULL""",
    """CREATE INDEX standing_shared ON standing (machine, workspace, priority, wake)
        WHERE owner IS NULL AND status = 1 AND wake IS NOT NULL""",
    "CREATE INDEX standing_parked ON standing (machine) WHERE status = 2",
    "CREATE INDEX standing_crashed ON standing (machine, crashes) WHERE crashes > 0",
    """CREATE TABLE log (
        thread BIGINT NOT NULL, n BIGINT NOT NULL, seq BIGINT NOT NULL, epoch BIGINT NOT NULL,
        kind BIGINT NOT NULL, at BIGINT NOT NULL, head BYTEA NOT NULL, salt BYTEA, payload BYTEA NOT NULL,
        schema BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX log_position ON log (thread, n)",
    """CREATE TABLE items (
        thread BIGINT NOT NULL, n BIGINT NOT NULL, payload BYTEA NOT NULL, schema BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX items_position ON items (thread, n)",
    """CREATE TABLE inbox (
        thread BIGINT NOT NULL, number BIGINT NOT NULL, id TEXT COLLATE "C" NOT NULL,
        event TEXT COLLATE "C" NOT NULL, payload BYTEA NOT NULL, digest BYTEA NOT NULL, at BIGINT NOT NULL,
        consumed BIGINT, schema BIGINT NOT NULL, version BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX inbox_number ON inbox (thread, number)",
    "CREATE UNIQUE INDEX inbox_id ON inbox (thread, id)",
    "CREATE INDEX inbox_pending ON inbox (thread, number) WHERE consumed IS NULL",
    """CREATE TABLE message (
        workspace TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL, number BIGINT NOT NULL,
        thread_id TEXT COLLATE "C" NOT NULL, incarnation BYTEA NOT NULL, principal TEXT COLLATE "C" NOT NULL,
        payload BYTEA NOT NULL, at BIGINT NOT NULL, schema BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX message_number ON message (workspace, session, number)",
    "CREATE INDEX message_thread ON message (workspace, session, incarnation, number)",
    """CREATE TABLE memory (
        workspace TEXT COLLATE "C" NOT NULL, namespace TEXT COLLATE "C" NOT NULL,
        key TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL, newest BIGINT NOT NULL, value BYTEA,
        at BIGINT NOT NULL, thread_id TEXT COLLATE "C", seq BIGINT, principal TEXT COLLATE "C" NOT NULL,
        expires BIGINT, request TEXT COLLATE "C", schema BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX memory_version ON memory (workspace, namespace, key, version)",
    "CREATE UNIQUE INDEX memory_newest ON memory (workspace, namespace, key) WHERE newest = 1",
    """CREATE UNIQUE INDEX memory_request ON memory (workspace, namespace, key, request)
        WHERE request IS NOT NULL""",
    "CREATE INDEX memory_expires ON memory (expires) WHERE expires IS NOT NULL",
    """CREATE TABLE artifact (
        workspace TEXT COLLATE "C" NOT NULL, id TEXT COLLATE "C" NOT NULL, sha256 TEXT COLLATE "C" NOT NULL,
        size_bytes BIGINT NOT NULL, media_type TEXT COLLATE "C" NOT NULL,
        principal TEXT COLLATE "C" NOT NULL, thread_id TEXT COLLATE "C", incarnation BYTEA, seq BIGINT,
        derived_from JSONB NOT NULL, created BIGINT NOT NULL, expires BIGINT, schema BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX artifact_id ON artifact (workspace, id)",
    "CREATE INDEX artifact_created ON artifact (workspace, created, id)",
    "CREATE INDEX artifact_thread ON artifact (workspace, thread_id)",
    "CREATE INDEX artifact_blob ON artifact (workspace, sha256)",
    "CREATE INDEX artifact_expires ON artifact (expires) WHERE expires IS NOT NULL AND thread_id IS NULL",
    "CREATE INDEX artifact_sources ON artifact USING gin (derived_from)",
    """CREATE TABLE effect_key (
        workspace TEXT COLLATE "C" NOT NULL, effect TEXT COLLATE "C" NOT NULL, key TEXT COLLATE "C" NOT NULL,
        arguments BYTEA NOT NULL, salt BYTEA NOT NULL, thread_id TEXT COLLATE "C" NOT NULL,
        incarnation BYTEA NOT NULL, seq BIGINT NOT NULL, outcome BYTEA, at BIGINT NOT NULL, expires BIGINT,
        schema BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX effect_key_name ON effect_key (workspace, effect, key)",
    """CREATE INDEX effect_key_expires ON effect_key (expires)
        WHERE expires IS NOT NULL AND outcome IS NOT NULL""",
    """CREATE TABLE outbox (
        thread BIGINT NOT NULL, seq BIGINT NOT NULL, n BIGINT NOT NULL, workspace TEXT COLLATE "C" NOT NULL,
        thread_id TEXT COLLATE "C" NOT NULL, kind TEXT COLLATE "C" NOT NULL, payload BYTEA NOT NULL,
        schema BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX outbox_position ON outbox (thread, seq, n)",
    """CREATE TABLE worker (
        id TEXT COLLATE "C" PRIMARY KEY, host TEXT COLLATE "C" NOT NULL, pid BIGINT NOT NULL,
        lock TEXT COLLATE "C" NOT NULL, lease BIGINT NOT NULL, started BIGINT NOT NULL, beat BIGINT NOT NULL,
        ended BIGINT, schema BIGINT NOT NULL, hint TEXT COLLATE "C" NOT NULL)""",
    "CREATE INDEX worker_started ON worker (started DESC, id)",
    """CREATE TABLE definition (
        machine TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL, hash TEXT COLLATE "C" NOT NULL,
        document BYTEA NOT NULL, at BIGINT NOT NULL, schema BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX definition_name ON definition (machine, version, hash)",
    """CREATE TABLE slot (
        name TEXT COLLATE "C" NOT NULL, worker TEXT COLLATE "C" NOT NULL, held BIGINT NOT NULL,
        PRIMARY KEY (name, worker))""",
    'CREATE TABLE pace (name TEXT COLLATE "C" PRIMARY KEY, full_at BIGINT NOT NULL)',
)

MIGRATIONS: Sequence[Migration] = (TABLES,)
"""From version i to i + 1. What has been released is never changed: a new version is added behind."""

# Asked of the catalogue's own tables: a server process remembers which names it did not find, and a look by
# name may then miss what another process made meanwhile.
IS_THERE = """SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
    WHERE s.nspname = CAST(? AS TEXT) AND c.relname = 'perdure'), current_setting('server_encoding')"""
VERSION = "SELECT version FROM perdure"


async def prepare(session: Session, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the schema to the newest version, in a transaction. Any number of processes may do so at once.

    Where it has that version already nothing is written, so that a role without the right to create tables
    can open it. ``StoreUnreadable`` where a newer perdure wrote it, or where its tables are not perdure's.
    """
    if await _version(session, len(migrations)) == len(migrations):
        return
    await session.lock([lock_key(session.schema, "schema")])
    version = await _version(session, len(migrations))
    if version == len(migrations):
        return
    await session.run(f"CREATE SCHEMA IF NOT EXISTS {session.quoted}")
    for migration in migrations[version:]:
        for statement in migration:
            await session.run(statement)
    await session.run(f"UPDATE perdure SET version = {len(migrations)}")


async def find(session: Session) -> None:
    """Refuse, with ``BadStoreURL``, a schema that is not there."""
    if not await _version(session, len(MIGRATIONS)):
        raise no_store(f"in {session.where}")


async def examine(session: Session, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Refuse, with ``StoreUnreadable``, a schema that is not of the newest version; nothing is written."""
    version = await _version(session, len(migrations))
    if version < len(migrations):
        what = f"is of an older perdure (schema version {version})" if version else "holds no perdure store"
        raise StoreUnreadable(
            f"{session.where} {what}, and who only reads neither creates nor migrates it: open it once "
            "without read_only"
        )


async def _version(session: Session, newest: int) -> int:
    [(there, encoding)] = await session.fetch(IS_THERE, (session.schema,))
    if encoding != "UTF8":
        raise BadStoreURL(
            f"{session.where} keeps its texts in {encoding}: perdure needs a database with encoding UTF8"
        )
    if not there:
        return 0
    [(version,)] = await session.fetch(VERSION, ())
    if version > newest:
        raise StoreUnreadable(
            f"{session.where} was written by a newer perdure (schema version {version}, this one reads up to "
            f"{newest}): upgrade perdure, or name another schema"
        )
    return int(version)
