"""The writes of a PostgreSQL store: what arrives together lands together, and one thread's in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from attrs import define, field

from ._errors import OutcomeUnknown, StoreUnavailable
from ._kinds import StoredRow, ThreadPart
from ._outside import Expire, Remember
from ._postgres_claims import claim
from ._postgres_commits import CLOCK, is_plain_commit, land_alone, land_together
from ._postgres_link import Link
from ._postgres_session import POSTGRES, Session, lock_key
from ._postgres_starts import is_plain_start, start_together, started
from ._records import (
    Address,
    ArtifactRow,
    ClaimRequest,
    Commit,
    KeyRow,
    MemoryRow,
    MessageRow,
    Micros,
    Signal,
    Start,
    ThreadRow,
)
from ._sql_outside import expire, remember
from ._sql_requests import (
    BATCH_BYTES,
    BATCH_WRITES,
    Answer,
    Beat,
    Releases,
    Restore,
    Write,
    settle,
    weight,
)
from ._sql_restore import restore
from ._sql_shares import share
from ._sql_steps import Row, Steps
from ._sql_writes import beat, deliver, release, start, upload
from ._workers import DefinitionRow, Share

BATCHES = 2
"""So many batches of a kind are on their way at once: while the server has one, the next is made."""

LOCK_THREAD = """SELECT 1 FROM standing s WHERE s.id = (
    SELECT id FROM thread WHERE workspace = ? AND thread_id = ?) FOR UPDATE"""


@define(eq=False)
class Pending:
    """A write that is waiting, or on its way."""

    write: Write
    future: asyncio.Future[Answer]
    threads: Sequence[Address]
    behind: int = 0
    """In how many threads another write goes before it."""


@define(eq=False)
class Batches:
    """Writes of one kind that may go now, several in one statement."""

    fits: Callable[[object], bool]
    ask: Callable[[Sequence[Any], str], tuple[str, Row]]
    """The statement that lands some of them in a schema, and its values but for the clock before them; its
    rows say which landed, counted from 1."""
    answer: Callable[[Any, Row], Answer]
    """What a write that landed answers to its row."""
    ready: deque[Pending] = field(factory=deque[Pending], init=False)
    on_their_way: int = field(default=0, init=False)

    def cut(self) -> list[Pending]:
        """The next batch."""
        batch: list[Pending] = []
        size = 0
        while self.ready and len(batch) < BATCH_WRITES:
            size += weight(self.ready[0].write)
            if batch and size > BATCH_BYTES:
                break
            batch.append(self.ready.popleft())
        return batch


def _kinds() -> tuple[Batches, ...]:
    return (
        Batches(is_plain_commit, lambda commits, _: land_together(commits), lambda _, __: None),
        Batches(
            is_plain_start,
            lambda starts, schema: start_together(
                starts, [key for each in starts for key in _locks(schema, each)]
            ),
            lambda start, row: started(start, row[1]),
        ),
    )


@define
class Writer:
    """Takes writes from one event loop and lands them; a write once taken is never withdrawn."""

    link: Link
    clock: Callable[[], Micros] | None
    turn: dict[str, str] = field(factory=dict[str, str])
    """At which workspace a claim goes on that cannot serve all of them at once."""
    _lanes: dict[Address, deque[Pending]] = field(factory=dict[Address, deque[Pending]], init=False)
    """The writes to each thread in the order of their calls: only the first one may be on its way."""
    _kinds: Sequence[Batches] = field(factory=_kinds, init=False)
    _others: deque[Pending] = field(factory=deque[Pending], init=False)
    """Writes that may go now, each by itself."""
    _tasks: set[asyncio.Task[None]] = field(factory=set[asyncio.Task[None]], init=False)
    _called: bool = field(default=False, init=False)
    _closing: bool = field(default=False, init=False)

    def write(self, write: Write) -> asyncio.Future[Answer]:
        """Land a write. Whoever is cancelled while waiting for the answer has written all the same."""
        if self._closing:
            raise StoreUnavailable(f"{self.link.place.where} is closed")
        loop = asyncio.get_running_loop()
        pending = Pending(write, loop.create_future(), _threads(write))
        for address in pending.threads:
            lane = self._lanes.setdefault(address, deque())
            pending.behind += bool(lane)
            lane.append(pending)
        if not pending.behind:
            self._ready(pending)
        if not self._called:  # at the end of this turn of the loop, with whatever comes in it
            self._called = True
            loop.call_soon(self._send)
        return pending.future

    async def close(self) -> None:
        """Finish what was begun."""
        self._closing = True
        self._send()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ready(self, pending: Pending) -> None:
        kind = self._kind(pending.write)
        (self._others if kind is None else kind.ready).append(pending)

    def _kind(self, write: Write) -> Batches | None:
        return next((kind for kind in self._kinds if kind.fits(write)), None)

    def _send(self) -> None:
        self._called = False
        while self._others and len(self._tasks) < self.link.place.connections:
            self._spawn(self._one(self._others.popleft()))
        for kind in self._kinds:
            while kind.ready and kind.on_their_way < BATCHES:
                kind.on_their_way += 1
                self._spawn(self._several(kind, kind.cut()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._send()

    async def _one(self, pending: Pending) -> None:
        try:
            answer = await self._alone(pending.write)
        finally:
            self._leave(pending)
        settle([pending.future], [answer])

    async def _several(self, kind: Batches, batch: Sequence[Pending]) -> None:
        try:
            answers = await self._together(kind, [pending.write for pending in batch])
        finally:
            kind.on_their_way -= 1
            for pending in batch:
                self._leave(pending)
        settle([pending.future for pending in batch], answers)

    def _leave(self, pending: Pending) -> None:
        """Let those go that are next in its threads."""
        for address in pending.threads:
            lane = self._lanes[address]
            lane.popleft()
            if not lane:
                del self._lanes[address]
                continue
            lane[0].behind -= 1
            if not lane[0].behind:
                self._ready(lane[0])

    async def _together(self, kind: Batches, writes: Sequence[Write]) -> Sequence[Answer]:
        """Land plain writes of different threads in one statement; what does not fit is judged alone."""
        now = None if self.clock is None else self.clock()
        statement, values = kind.ask(writes, self.link.place.schema)
        try:
            rows = await self.link.write(statement, (now, *values))
        except (OutcomeUnknown, StoreUnavailable) as error:
            return [type(error)(*error.args) for _ in writes]
        except Exception:  # of one of them, or of their being together
            rows = ()
        landed = {row[0]: row for row in rows}
        return [
            kind.answer(write, landed[i]) if i in landed else await self._alone(write)
            for i, write in enumerate(writes, 1)
        ]

    async def _alone(self, write: Write) -> Answer:
        """Judge a write in a transaction of its own."""

        async def work(session: Session) -> Answer:
            if keys := _locks(session.schema, write):
                await session.lock(keys)
            for address in _threads(write)[:1] if isinstance(write, Commit | Start | Signal) else ():
                await session.fetch(LOCK_THREAD, (address.workspace, address.thread_id))
            return await self._apply(session, write, await self._now(session))

        try:
            return await self.link.transact(work)
        except Exception as error:
            return error

    async def _now(self, session: Session) -> Micros:
        if self.clock is not None:
            return self.clock()
        [(now,)] = await session.fetch(f"SELECT {CLOCK}", ())
        return int(now)

    async def _apply(self, session: Session, write: Write, now: Micros) -> Answer:
        match write:
            case Commit():
                return await land_alone(session, write, now)
            case ClaimRequest():
                return await claim(session, write, self.turn, now)
            case Start():
                return (await session.take(start(write, now)))[0]
            case _:
                return await session.take(_steps(write, now))


def _steps(write: Write, now: Micros) -> Steps[Answer]:
    match write:
        case Signal():
            return deliver(write, now)
        case Releases(releases):
            return release(releases, now)
        case Beat(worker, definitions):
            return beat(worker, definitions, now)
        case Share():
            return share(write, now)
        case ArtifactRow():
            return upload(write)
        case Remember():
            return remember(write, now)
        case Expire():
            return expire(write, POSTGRES)
        case Restore(rows):
            return restore(rows, now)
        case _:
            raise TypeError(f"{type(write).__name__} is not made of steps")


def _threads(write: Write) -> Sequence[Address]:
    """The threads whose writes have to land in the order of their calls."""
    match write:
        case Commit() | Start() | Signal():
            return (write.address,)
        case Releases(releases):
            return list(dict.fromkeys(given.address for given in releases))
        case _:
            return ()


def _locks(schema: str, write: Write) -> list[int]:
    return [lock_key(schema, *name) for name in _names(write)]


def _names(write: Write) -> Iterable[tuple[str, ...]]:
    """What a write judges and then changes, or counts on, beside its thread's row: locked from before the one
    to behind the other."""
    match write:
        case Commit():
            workspace = write.address.workspace
            if write.messages:
                yield "session", workspace, write.session
            for memory in write.memory:
                yield "memory", workspace, memory.namespace, memory.key
            for check in write.checks:
                yield "memory", workspace, check.namespace, check.key
            for key in write.keys:
                yield "key", workspace, key.effect, key.key
        case Start():
            yield "thread", write.address.workspace, write.address.thread_id
            if write.messages:
                yield "session", write.address.workspace, write.session
        case Signal():
            yield "thread", write.address.workspace, write.address.thread_id
        case Remember():
            yield "memory", write.workspace, write.namespace, write.key
        case Share():
            yield "limit", write.limit
        case Restore(rows):
            for row in rows:
                yield _name_of(row)
        case ClaimRequest():
            for machine in write.at_once:
                yield "machine", machine
        case _:
            return


def _name_of(row: StoredRow) -> tuple[str, ...]:
    """What a row is locked by: by the same as where a commit or a signal writes it."""
    match row:
        case ThreadRow() | ThreadPart():
            return "thread", row.address.workspace, row.address.thread_id
        case MessageRow():
            return "session", row.workspace, row.session
        case MemoryRow():
            return "memory", row.workspace, row.namespace, row.key
        case KeyRow():
            return "key", row.workspace, row.effect, row.key
        case ArtifactRow():
            return "artifact", row.workspace, row.id
        case DefinitionRow():
            return "definition", row.machine
