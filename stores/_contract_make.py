"""Records for the checks of the contract: valid ones, which a check then spoils."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from uuid import uuid4

from attrs import evolve

from ._contract_kit import SECOND, ContractBroken, same
from ._outside import Remember
from ._queries import Threads
from ._records import (
    Address,
    ArtifactRow,
    Claim,
    ClaimRequest,
    Commit,
    LogKind,
    LogRow,
    MemoryWrite,
    Micros,
    Signal,
    Standing,
    Start,
    Status,
    ThreadRow,
)
from ._store import Store
from ._workers import WorkerRow

WORKSPACE = "acme"
MACHINE = "Summarise"
T0 = 1_800_000_000 * SECOND


def address_of(thread_id: str = "t1", workspace: str = WORKSPACE) -> Address:
    return Address(workspace=workspace, thread_id=thread_id)


def incarnation_of(thread_id: str) -> bytes:
    return sha256(thread_id.encode(errors="surrogatepass")).digest()[:16]


def standing_of(*, seq: int = 0, status: Status = "running", **parts: Any) -> Standing:
    given: dict[str, Any] = {"state": "loading", "version": 1, "definition": "d1", "base": 0, **parts}
    return Standing(seq=seq, status=status, **given)


def start_of(
    thread_id: str = "t1",
    *,
    owner: str | None = "w1",
    status: Status = "running",
    wake: Micros | None = None,
    version: int = 1,
    **parts: Any,
) -> Start:
    """The start of a thread, claimed by ``w1`` unless told otherwise."""
    log = LogRow(
        seq=0,
        n=0,
        epoch=0 if owner is None else 1,
        kind="start",
        at=T0,
        head=incarnation_of(f"start {thread_id}"),
        salt=b"salt",
        payload=b"start",
    )
    given: dict[str, Any] = {
        "address": address_of(thread_id),
        "incarnation": incarnation_of(thread_id),
        "machine": MACHINE,
        "standing": standing_of(status=status, wake=wake, version=version),
        "log": log,
        "items": None,
        "session": "talk",
        "principal": "agent:summaries",
        "parent": None,
        "started": b"started",
        **parts,
    }
    return Start(owner=owner, **given)


def commit_of(
    thread: ThreadRow,
    kind: LogKind = "transition",
    *,
    status: Status = "running",
    wake: Micros | None = None,
    payload: bytes = b"step",
    **parts: Any,
) -> Commit:
    """The next commit of a thread as it stands; ``parts`` replace what it writes."""
    seq = thread.standing.seq + (kind == "transition")
    log = LogRow(
        seq=seq,
        n=thread.n,
        epoch=thread.epoch,
        kind=kind,
        at=T0 + thread.n,
        head=b"",
        salt=b"s",
        payload=payload,
    )
    given: dict[str, Any] = {
        "address": thread.address,
        "incarnation": thread.incarnation,
        "epoch": thread.epoch,
        "log": log,
        "standing": evolve(thread.standing, seq=seq, status=status, wake=wake),
        "release": False,
        "inbox_seen": thread.inbox,
        "principal": thread.principal,
        "session": thread.session,
        **parts,
    }
    return sealed(Commit(**given))


def sealed(commit: Commit) -> Commit:
    """The commit with a head that covers what it writes."""
    log = evolve(commit.log, head=b"", payload=b"")
    digest = sha256(repr(evolve(commit, log=log, items=None)).encode())
    for body in (commit.log.payload, commit.items):
        digest.update(b"-" if body is None else body)
    return evolve(commit, log=evolve(commit.log, head=digest.digest()))


def after(thread: ThreadRow, commit: Commit) -> ThreadRow:
    """The thread as it stands once the commit has landed, to build the next one on."""
    return evolve(thread, standing=commit.standing, n=thread.n + 1, head=commit.log.head)


def signal_of(
    id_: str = "s1", thread_id: str = "t1", payload: bytes = b"{}", event: str = "approve"
) -> Signal:
    digest = sha256(event.encode() + payload).digest()
    return Signal(address=address_of(thread_id), id=id_, event=event, payload=payload, digest=digest)


def worker_of(id_: str = "w1", *, lease: Micros = 10 * SECOND, **parts: Any) -> WorkerRow:
    given: dict[str, Any] = {"host": "h1", "pid": 7, "lock": f"/run/{id_}", "started": T0, "beat": 0, **parts}
    return WorkerRow(id=id_, lease=lease, **given)


def request_of(worker: str = "w1", *, limit: int = 100, **parts: Any) -> ClaimRequest:
    given: dict[str, Any] = {"machines": {MACHINE: 1}, **parts}
    return ClaimRequest(worker=worker, limit=limit, **given)


def write_of(key: str, value: bytes | None, expected: int, namespace: str = "customer") -> MemoryWrite:
    return MemoryWrite(namespace=namespace, key=key, value=value, expected=expected)


def remember_of(key: str, value: bytes | None, expected: int | None, **parts: Any) -> Remember:
    """A memory write outside of any thread, each another one."""
    given: dict[str, Any] = {"id": f"write-{uuid4()}", "principal": "ada", "namespace": "customer", **parts}
    return Remember(workspace=WORKSPACE, key=key, value=value, expected=expected, **given)


def artifact_of(id_: str, thread_id: str | None = "t1", **parts: Any) -> ArtifactRow:
    given: dict[str, Any] = {
        "workspace": WORKSPACE,
        "sha256": incarnation_of(id_).hex(),
        "size_bytes": 3,
        "media_type": "text/plain",
        "principal": "agent:summaries",
        "incarnation": None if thread_id is None else incarnation_of(thread_id),
        "seq": None if thread_id is None else 0,
        "derived_from": (),
        "created": T0,
        **parts,
    }
    return ArtifactRow(id=id_, thread_id=thread_id, **given)


async def started(store: Store, thread_id: str = "t1", **parts: Any) -> ThreadRow:
    """A new thread."""
    return (await store.start(start_of(thread_id, **parts))).thread


async def thread_at(store: Store, thread_id: str = "t1") -> ThreadRow:
    """A thread as it stands."""
    page = await store.page(Threads(workspace=WORKSPACE, thread_id=thread_id))
    if len(page.rows) != 1:
        raise ContractBroken(f"thread {thread_id!r} was started, and {len(page.rows)} rows are there")
    return page.rows[0]


async def committed(store: Store, thread: ThreadRow, kind: LogKind = "transition", **parts: Any) -> ThreadRow:
    """A thread one commit further."""
    await store.commit(commit_of(thread, kind, **parts))
    return await thread_at(store, thread.address.thread_id)


async def one_claimed(store: Store, request: ClaimRequest) -> Claim:
    """The claim of the one thread that the request must get."""
    claimed = await store.claim(request)
    same("how many threads were claimed", len(claimed.claims), 1)
    return claimed.claims[0]
