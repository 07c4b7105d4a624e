"""How the records of the seam stand in the rows of a SQL database."""

from __future__ import annotations

import json

from ._records import (
    Address,
    ArtifactRow,
    InboxRow,
    ItemsRow,
    KeyRow,
    LogKind,
    LogRow,
    MemoryRow,
    MessageRow,
    OutboxRow,
    Standing,
    Status,
    ThreadRow,
)
from ._sql_steps import Row
from ._workers import DefinitionRow, WorkerRow

STATUSES: tuple[Status, ...] = ("running", "waiting", "parked", "ended")
KINDS: tuple[LogKind, ...] = ("start", "transition", "record", "park", "resolve")
"""The codes in the rows are the positions in these tuples: new ones are added behind."""

STATUS_CODES: dict[str, int] = {status: code for code, status in enumerate(STATUSES)}
KIND_CODES: dict[str, int] = {kind: code for code, kind in enumerate(KINDS)}

THREAD = """t.workspace, t.thread_id, s.incarnation, s.machine, s.state, s.seq, s.version, s.definition,
    s.status, s.base, s.reason, s.note, s.wake, s.expires, s.n, s.epoch, s.owner, l.head, t.session,
    t.session_since, t.principal, t.parent, t.started, s.crashes, s.inbox, t.created, l.at, s.items,
    s.schema, s.priority"""
NEWEST = "log l ON l.thread = s.id AND l.n = s.n - 1"
"""The newest log row of a thread, to be joined."""
LOG = "l.seq, l.n, l.epoch, l.kind, l.at, l.head, l.salt, l.payload, l.schema"
ITEMS = "i.n, i.payload, i.schema"
INBOX = "i.number, i.id, i.event, i.payload, i.digest, i.at, i.consumed, i.schema, i.version"
MESSAGE = "workspace, session, number, thread_id, incarnation, principal, payload, at, schema"
MEMORY = """workspace, namespace, key, version, value, at, thread_id, seq, principal, expires, request,
    schema"""
ARTIFACT = """id, workspace, sha256, size_bytes, media_type, principal, thread_id, incarnation, seq,
    derived_from, created, expires, schema"""
KEY = """workspace, effect, key, arguments, salt, thread_id, incarnation, seq, outcome, at, expires, schema"""
OUTBOX = "o.seq, o.n, o.workspace, o.thread_id, o.kind, o.payload, o.schema"
WORKER = "id, host, pid, lock, lease, started, beat, ended, schema, hint"
DEFINITION = "machine, version, hash, document, at, schema"


def read_thread(row: Row) -> ThreadRow:
    return ThreadRow(
        address=Address(workspace=row[0], thread_id=row[1]),
        incarnation=row[2],
        machine=row[3],
        standing=Standing(
            state=row[4],
            seq=row[5],
            version=row[6],
            definition=row[7],
            status=STATUSES[int(row[8])],
            base=row[9],
            reason=row[10],
            note=row[11],
            wake=row[12],
            expires=row[13],
            items=row[27],
        ),
        n=row[14],
        epoch=row[15],
        owner=row[16],
        head=row[17],
        session=row[18],
        session_since=row[19],
        principal=row[20],
        parent=row[21],
        started=row[22],
        crashes=row[23],
        inbox=row[24],
        created=row[25],
        updated=row[26],
        schema=row[28],
        priority=row[29],
    )


def read_log(row: Row) -> LogRow:
    return LogRow(
        seq=row[0],
        n=row[1],
        epoch=row[2],
        kind=KINDS[int(row[3])],
        at=row[4],
        head=row[5],
        salt=row[6],
        payload=row[7],
        schema=row[8],
    )


def read_items(row: Row) -> ItemsRow:
    return ItemsRow(n=row[0], payload=row[1], schema=row[2])


def read_inbox(row: Row) -> InboxRow:
    return InboxRow(
        number=row[0],
        id=row[1],
        event=row[2],
        payload=row[3],
        digest=row[4],
        at=row[5],
        consumed=row[6],
        schema=row[7],
        version=row[8],
    )


def read_message(row: Row) -> MessageRow:
    return MessageRow(
        workspace=row[0],
        session=row[1],
        number=row[2],
        thread_id=row[3],
        incarnation=row[4],
        principal=row[5],
        payload=row[6],
        at=row[7],
        schema=row[8],
    )


def read_memory(row: Row) -> MemoryRow:
    return MemoryRow(
        workspace=row[0],
        namespace=row[1],
        key=row[2],
        version=row[3],
        value=row[4],
        at=row[5],
        thread_id=row[6],
        seq=row[7],
        principal=row[8],
        expires=row[9],
        request=row[10],
        schema=row[11],
    )


def read_artifact(row: Row) -> ArtifactRow:
    return ArtifactRow(
        id=row[0],
        workspace=row[1],
        sha256=row[2],
        size_bytes=row[3],
        media_type=row[4],
        principal=row[5],
        thread_id=row[6],
        incarnation=row[7],
        seq=row[8],
        derived_from=tuple(json.loads(row[9])),
        created=row[10],
        expires=row[11],
        schema=row[12],
    )


def read_key(row: Row) -> KeyRow:
    return KeyRow(
        workspace=row[0],
        effect=row[1],
        key=row[2],
        arguments=row[3],
        salt=row[4],
        thread_id=row[5],
        incarnation=row[6],
        seq=row[7],
        outcome=row[8],
        at=row[9],
        expires=row[10],
        schema=row[11],
    )


def read_outbox(row: Row) -> OutboxRow:
    target = Address(workspace=row[2], thread_id=row[3])
    return OutboxRow(seq=row[0], n=row[1], target=target, kind=row[4], payload=row[5], schema=row[6])


def read_worker(row: Row) -> WorkerRow:
    return WorkerRow(
        id=row[0],
        host=row[1],
        pid=row[2],
        lock=row[3],
        lease=row[4],
        started=row[5],
        beat=row[6],
        ended=row[7],
        schema=row[8],
        hint=row[9],
    )


def read_definition(row: Row) -> DefinitionRow:
    return DefinitionRow(
        machine=row[0], version=row[1], hash=row[2], document=row[3], at=row[4], schema=row[5]
    )


def log_values(thread: int, log: LogRow) -> Row:
    return (
        thread,
        log.n,
        log.seq,
        log.epoch,
        KIND_CODES[log.kind],
        log.at,
        log.head,
        log.salt,
        log.payload,
        log.schema,
    )


def artifact_values(artifact: ArtifactRow) -> Row:
    return (
        artifact.id,
        artifact.workspace,
        artifact.sha256,
        artifact.size_bytes,
        artifact.media_type,
        artifact.principal,
        artifact.thread_id,
        artifact.incarnation,
        artifact.seq,
        json.dumps(artifact.derived_from),
        artifact.created,
        artifact.expires,
        artifact.schema,
    )
