"""A store beside the model: whatever is called, both answer the same and hold the same in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import evolve
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from perdure.stores import (
    Address,
    Artifacts,
    Claim,
    Claimed,
    Commit,
    DefinitionRow,
    Definitions,
    Expire,
    Inbox,
    Items,
    Keys,
    KeyTaken,
    KeyWrite,
    Log,
    Memory,
    MemoryCheck,
    MemoryMoved,
    MemoryStore,
    Messages,
    Outbox,
    OutboxRow,
    Query,
    Release,
    Remember,
    Share,
    Start,
    Store,
    ThreadRow,
    Threads,
    Workers,
)
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import (
    MACHINE,
    WORKSPACE,
    address_of,
    artifact_of,
    commit_of,
    remember_of,
    request_of,
    sealed,
    signal_of,
    start_of,
    worker_of,
    write_of,
)
from perdure.stores.contract import Clock

THREADS = ("t0", "t1", "\u2603")
SESSIONS = ("talk", "other")
FACTS = Memory(workspace=WORKSPACE)
SECOND = 1_000_000

a_thread = st.sampled_from(THREADS)
a_worker = st.sampled_from(("w0", "w1", "w2"))
a_moment = st.one_of(st.none(), st.sampled_from((-SECOND, 0, SECOND)))
a_key = st.sampled_from(("k0", "k1"))
at_once = st.sampled_from(({}, {}, {MACHINE: 0}, {MACHINE: 9}))
"""Nothing between: which threads have the few places is the store's choice."""
a_body = st.sampled_from((b"", b"\0", b"x"))
a_status = st.sampled_from(("running",) * 6 + ("waiting",) * 4 + ("parked", "ended"))

an_error = st.sampled_from((0, 0, 0, 1))
"""How far a version that the writer expects is from the newest."""

memory_writes = st.lists(
    st.builds(write_of, a_key, st.one_of(st.none(), a_body), an_error),
    max_size=2,
    unique_by=lambda write: write.key,
)
memory_checks = st.lists(
    st.builds(MemoryCheck, namespace=st.just("customer"), key=a_key, version=an_error), max_size=1
)
key_writes = st.lists(
    st.builds(
        KeyWrite,
        effect=st.just("publish"),
        key=a_key,
        action=st.sampled_from(("claim", "outcome", "free")),
        arguments=a_body,
        outcome=st.one_of(st.none(), a_body),
        expires=a_moment,
    ),
    max_size=2,
)

Answer = Any


def by_id(claim: Claim) -> str:
    return claim.thread.address.thread_id


def settled(answer: Answer) -> Answer:
    """An answer without what the contract leaves open: the order of claims and of what moved."""
    if isinstance(answer, Claimed):
        return evolve(answer, claims=tuple(sorted(answer.claims, key=by_id)))
    if isinstance(answer, MemoryMoved):
        return MemoryMoved, sorted(answer.rows, key=lambda row: row.key), sorted(answer.missing)
    if isinstance(answer, KeyTaken):
        return KeyTaken, answer.row
    return type(answer) if isinstance(answer, Exception) else answer


class Beside(RuleBasedStateMachine):
    """Calls the model and the store under test alike. Subclasses say which store that is."""

    @staticmethod
    def make(folder: Path, clock: Clock) -> Store:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.model = MemoryStore(self.clock)
        self.store = self.make(Path(self.folder.name), self.clock)
        self.sent: list[Commit] = []
        self.starts: list[Start] = []
        self.releases: list[Release] = []
        self.remembered: list[Remember] = []

    @initialize()
    def open(self) -> None:
        self.runner.run(self.store.__aenter__())

    def teardown(self) -> None:
        try:
            self.look(limit=2)
            self.runner.run(self.store.__aexit__(None, None, None))
        finally:
            self.runner.close()
            self.folder.cleanup()

    def both(self, call: Callable[[Store], Awaitable[Answer]]) -> Answer:
        """The answer that both give."""

        async def ask(store: Store) -> Answer:
            try:
                return await call(store)
            except Exception as error:
                return error

        wanted, got = (settled(self.runner.run(ask(store))) for store in (self.model, self.store))
        assert got == wanted
        return wanted

    def row(self, thread_id: str) -> ThreadRow | None:
        query = Threads(workspace=WORKSPACE, thread_id=thread_id)
        found = self.runner.run(rows(self.model, query))
        return found[0] if found else None

    @rule(
        thread_id=a_thread,
        owner=st.one_of(st.none(), a_worker),
        status=st.sampled_from(("running", "waiting")),
        wake=a_moment,
        session=st.sampled_from(SESSIONS),
        said=st.lists(a_body, max_size=2),
        items=st.one_of(st.none(), a_body),
        signals=st.lists(st.tuples(st.sampled_from(("s0", "s1")), a_body), max_size=2),
        priority=st.sampled_from((0, 0, 5)),
    )
    def start(
        self,
        thread_id: str,
        owner: str | None,
        status: Any,
        wake: int | None,
        session: str,
        said: list[bytes],
        items: bytes | None,
        signals: list[tuple[str, bytes]],
        priority: int,
    ) -> None:
        start = start_of(
            thread_id,
            signals=tuple(evolve(signal_of(id_, thread_id, body), version=1) for id_, body in signals),
            priority=priority,
            owner=owner,
            status=status,
            wake=None if wake is None else self.clock() + wake,
            session=session,
            messages=tuple(said),
            items=items,
        )
        self.starts.append(start)
        self.both(lambda store: store.start(start))

    @rule(data=st.data())
    def start_again(self, data: st.DataObject) -> None:
        if self.starts:
            start = data.draw(st.sampled_from(self.starts))
            other = data.draw(st.booleans())
            again = evolve(start, incarnation=b"another".ljust(16)) if other else start
            self.both(lambda store: store.start(again))

    @rule(
        worker=a_worker,
        dead=st.lists(a_worker, max_size=1),
        version=st.integers(0, 1),
        at_once=at_once,
        late=a_moment,
        late_limit=st.sampled_from((0, 9)),
    )
    def claim(self, worker: str, dead: list[str], version: int, late: int | None, **limits: Any) -> None:
        before = None if late is None else self.clock() + late
        request = request_of(
            worker, dead=tuple(dead), machines={MACHINE: version}, late_before=before, **limits
        )
        self.both(lambda store: store.claim(request))

    @rule(
        worker=a_worker,
        dead=st.lists(a_worker, max_size=2),
        only=a_thread,
        suspects=st.booleans(),
        at_once=at_once,
    )
    def claim_one(self, worker: str, dead: list[str], only: str, **parts: Any) -> None:
        request = request_of(worker, dead=tuple(dead), only=address_of(only), **parts)
        self.both(lambda store: store.claim(request))

    @rule(
        worker=a_worker,
        limit=st.sampled_from(("l0", "l1")),
        at_once=st.one_of(st.none(), st.just(3)),
        per_minute=st.one_of(st.none(), st.sampled_from((1, 30))),
        held=st.integers(-1, 3),
        starts=st.integers(0, 3),
    )
    def share(self, **parts: Any) -> None:
        request = Share(**parts)
        self.both(lambda store: store.share(request))

    @rule(
        thread_id=a_thread,
        kind=st.sampled_from(("transition", "transition", "record", "park", "resolve")),
        status=a_status,
        wake=a_moment,
        release=st.sampled_from((False, False, True)),
        unseen=st.integers(0, 1),
        consumes=st.booleans(),
        items=st.one_of(st.none(), a_body),
        said=st.lists(a_body, max_size=2),
        memory=memory_writes,
        checks=memory_checks,
        keys=key_writes,
        artifacts=st.lists(st.sampled_from(("a0", "a1")), max_size=1),
        dropped=st.lists(st.sampled_from(("a0", "a1")), max_size=1),
        outbox=st.integers(0, 1),
        slip=st.sampled_from((None,) * 6 + ("epoch", "position", "incarnation", "base", "items")),
    )
    def commit(self, thread_id: str, kind: Any, slip: str | None, **drawn: Any) -> None:
        row = self.row(thread_id)
        if row is None:
            return
        pending = self.runner.run(rows(self.model, Inbox(address=row.address, pending=True)))
        versions = {fact.key: fact.version for fact in self.runner.run(rows(self.model, FACTS))}

        def newest(key: str) -> int:
            return versions.get(key, 0)

        wake = drawn["wake"]
        commit = commit_of(
            row,
            kind,
            status=drawn["status"],
            wake=None if wake is None else self.clock() + wake,
            release=drawn["release"],
            inbox_seen=max(0, row.inbox - drawn["unseen"]),
            consumed=tuple(entry.number for entry in pending[:1]) if drawn["consumes"] else (),
            items=drawn["items"],
            messages=tuple(drawn["said"]),
            memory=tuple(evolve(w, expected=w.expected + newest(w.key)) for w in drawn["memory"]),
            checks=tuple(evolve(c, version=c.version + newest(c.key)) for c in drawn["checks"]),
            keys=tuple(drawn["keys"]),
            artifacts=tuple(artifact_of(id_, thread_id) for id_ in drawn["artifacts"]),
            dropped_artifacts=tuple(drawn["dropped"]),
            outbox=tuple(
                OutboxRow(seq=row.n, n=n, target=address_of("t9"), kind="signal", payload=b"")
                for n in range(drawn["outbox"])
            ),
        )
        commit = sealed(slipped(commit, slip))
        self.sent.append(commit)
        self.both(lambda store: store.commit(commit))

    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        if self.sent:
            commit = data.draw(st.sampled_from(self.sent))
            self.both(lambda store: store.commit(commit))

    @rule(
        thread_id=a_thread,
        status=st.sampled_from(("running", "waiting")),
        wake=a_moment,
        unseen=st.integers(0, 1),
        stale=st.booleans(),
    )
    def release(self, thread_id: str, status: Any, wake: int | None, unseen: int, stale: bool) -> None:
        row = self.row(thread_id)
        if row is not None and row.standing.status == "running":
            release = Release(
                address=row.address,
                incarnation=row.incarnation,
                epoch=row.epoch - stale,
                status=status,
                wake=None if wake is None else self.clock() + wake,
                inbox_seen=max(0, row.inbox - unseen),
            )
            self.releases.append(release)
            self.both(lambda store: store.release([release]))

    @rule()
    def release_again(self) -> None:
        self.both(lambda store: store.release(self.releases))

    @rule(thread_id=a_thread, worker=a_worker)
    def go_on(self, thread_id: str, worker: str) -> None:
        """What a worker does all day: start, or claim, and commit."""
        row = self.row(thread_id) or self.both(lambda store: store.start(start_of(thread_id))).thread
        if row.owner is None:
            request = request_of(worker, only=row.address)
            claimed = self.both(lambda store: store.claim(request)).claims
            row = claimed[0].thread if claimed else row
        sent = OutboxRow(seq=row.n, n=0, target=address_of("t9"), kind="signal", payload=b"")
        commit = commit_of(row, items=b"i", messages=(b"m",), outbox=(sent,))
        self.sent.append(commit)
        self.both(lambda store: store.commit(commit))

    @rule(thread_id=a_thread, id_=st.sampled_from(("s2", "s1", "s0")), payload=a_body)
    def deliver(self, thread_id: str, id_: str, payload: bytes) -> None:
        self.both(lambda store: store.deliver(signal_of(id_, thread_id, payload)))

    @rule(
        worker=a_worker,
        ends=st.sampled_from((False, False, False, True)),
        hint=st.sampled_from(("", "unix:/run/w")),
        defined=st.lists(st.tuples(st.integers(1, 2), st.sampled_from(("h0", "h1"))), max_size=2),
    )
    def beat(self, worker: str, ends: bool, hint: str, defined: list[tuple[int, str]]) -> None:
        row = worker_of(worker, lease=2 * SECOND, ended=self.clock() if ends else None, hint=hint)
        definitions = [
            DefinitionRow(machine=MACHINE, version=version, hash=hash_, document=worker.encode(), at=0)
            for version, hash_ in defined
        ]
        self.both(lambda store: store.beat(row, definitions))

    @rule(id_=st.sampled_from(("a0", "a1", "a2")), size=st.integers(0, 2), expires=a_moment)
    def upload(self, id_: str, size: int, expires: int | None) -> None:
        stamp = None if expires is None else self.clock() + expires
        sources = ("a0", "a1", "a0")[:size]
        artifact = artifact_of(id_, None, size_bytes=size, expires=stamp, derived_from=sources)
        self.both(lambda store: store.upload(artifact))

    @rule(
        key=a_key,
        value=st.one_of(st.none(), a_body),
        off=st.sampled_from((None, None, 0, 0, 1)),
        expires=a_moment,
        again=st.booleans(),
    )
    def remember(
        self, key: str, value: bytes | None, off: int | None, expires: int | None, again: bool
    ) -> None:
        newest = {fact.key: fact.version for fact in self.runner.run(rows(self.model, FACTS))}.get(key, 0)
        expected = None if off is None else newest + off
        stamp = None if expires is None else self.clock() + expires
        write = remember_of(key, value, expected, expires=stamp)
        if again and self.remembered:
            write = self.remembered[-1]
        self.remembered.append(write)
        self.both(lambda store: store.remember(write))

    @rule(limit=st.sampled_from((1, 100, 100)), dry_run=st.booleans())
    def expire(self, limit: int, dry_run: bool) -> None:
        request = Expire(at=self.clock(), limit=100, dry_run=True)
        due = self.both(lambda store: store.expire(request)).total
        if due <= limit:  # else the store chooses which go first
            self.both(lambda store: store.expire(evolve(request, dry_run=dry_run)))

    @rule(seconds=st.sampled_from((1, 3, 24 * 3600)))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds * SECOND)

    @rule()
    def reopen(self) -> None:
        self.runner.run(self.store.__aexit__(None, None, None))
        if not isinstance(self.store, MemoryStore):
            self.store = self.make(Path(self.folder.name), self.clock)
        self.runner.run(self.store.__aenter__())

    @rule(limit=st.sampled_from((1, 3, 100)))
    def look(self, limit: int) -> None:
        for query in everything():
            self.both(partial(rows, query=query, limit=limit))


def slipped(commit: Commit, slip: str | None) -> Commit:
    """The commit with one thing that a faulty or late writer would have wrong."""
    log = commit.log
    match slip:
        case "epoch":
            return evolve(commit, epoch=commit.epoch - 1, log=evolve(log, epoch=log.epoch - 1))
        case "position":
            return evolve(commit, log=evolve(log, n=log.n + 1))
        case "incarnation":
            return evolve(commit, incarnation=b"another".ljust(16))
        case "base":
            return evolve(commit, standing=evolve(commit.standing, base=log.n))
        case "items":
            return evolve(commit, standing=evolve(commit.standing, items=log.n))
        case _:
            return commit


def everything() -> list[Query[Any]]:
    addresses = [address_of(thread_id) for thread_id in THREADS]
    of_threads: list[Callable[..., Query[Any]]] = [Log, Items, Inbox, Outbox]
    return [
        Threads(),
        Threads(status="waiting", owner="w1"),
        Workers(),
        Definitions(),
        Definitions(version=1),
        FACTS,
        Memory(workspace=WORKSPACE, history=True),
        Artifacts(workspace=WORKSPACE),
        Artifacts(workspace=WORKSPACE, derived_from="a0"),
        Keys(workspace=WORKSPACE, effect="publish"),
        *(Messages(workspace=WORKSPACE, session=session) for session in SESSIONS),
        *(query(address=address) for query in of_threads for address in addresses),
        *(of_pending(address) for address in addresses),
    ]


def of_pending(address: Address) -> Query[Any]:
    return Inbox(address=address, pending=True, after=1)


QUICK = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
)
