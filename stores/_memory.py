"""A store in plain dicts: the readable model of what every store does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from attrs import evolve

from ._clock import system_clock
from ._errors import KeyTaken, MemoryMoved, SignalConflict, StaleClaim, ThreadEnded
from ._kinds import StoredRow
from ._limits import (
    check_artifact,
    check_commit,
    check_expire,
    check_remember,
    check_restore,
    check_signal,
    check_start,
)
from ._made import (
    at_least,
    due_at_once,
    entry_made,
    holds,
    key_claimed,
    message_made,
    remembered,
    said_of_stale,
    thread_made,
    version_made,
    visit_of,
)
from ._memory_claims import PENDING, MemoryClaims
from ._memory_restore import restore
from ._memory_tables import newest_version
from ._outside import Expire, Expired, Remember
from ._queries import Page, Query
from ._records import (
    Address,
    ArtifactRow,
    Claimed,
    ClaimRequest,
    Commit,
    Delivered,
    InboxRow,
    ItemsRow,
    KeyRow,
    MemoryRow,
    Micros,
    Release,
    Signal,
    Standing,
    Start,
    Started,
)
from ._shares import check_share, pace
from ._workers import DefinitionRow, Share, Shared, WorkerRow

R = TypeVar("R")

DAY = 24 * 3600 * 1_000_000


class MemoryStore(MemoryClaims):
    """Threads, memory and records for as long as this object lives; several workers may share it.

    ``clock`` gives microseconds since the epoch, UTC. Every call is judged and applied before anything
    else runs, and gives way to others once before it returns.
    """

    def __init__(self, clock: Callable[[], Micros] = system_clock) -> None:
        super().__init__(clock)

    async def __aenter__(self) -> MemoryStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def start(self, start: Start, /) -> Started:
        check_start(start)
        tables = self._tables
        there = tables.threads.get(start.address)
        signals = start.signals if there is None or there.started == start.started else ()
        known = [self._known(signal) for signal in signals]  # raises before anything is written
        if start.address not in tables.threads:
            self._create(start)
        rows = [row or self._accept(signal) for row, signal in zip(known, signals, strict=True)]
        thread = tables.threads[start.address]
        created = thread.incarnation == start.incarnation
        inbox = tables.pending(start.address)[:PENDING] if created and start.owner is not None else []
        delivered = [
            Delivered(row=row, new=before is None, thread=thread)
            for row, before in zip(rows, known, strict=True)
        ]
        await _give_way()
        return Started(created=created, thread=thread, inbox=tuple(inbox), delivered=tuple(delivered))

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        claimed = self._claimed(request)
        await _give_way()
        return claimed

    async def commit(self, commit: Commit, /) -> None:
        check_commit(commit)
        if not self._landed(commit):
            self._judge(commit)
            self._apply(commit)
        await _give_way()

    async def release(self, releases: Sequence[Release], /) -> None:
        for release in releases:
            thread = self._tables.threads.get(release.address)
            if thread is None or not holds(thread, release.incarnation, release.epoch):
                continue
            standing = evolve(thread.standing, status=release.status, wake=release.wake)
            standing = self._due_at_once(standing, release.inbox_seen < thread.inbox)
            self._tables.since[release.address] = self._clock()
            self._tables.threads[release.address] = evolve(thread, owner=None, standing=standing)
        await _give_way()

    async def deliver(self, signal: Signal, /) -> Delivered:
        check_signal(signal)
        known = self._known(signal)
        row = known or self._accept(signal)
        thread = self._tables.threads.get(signal.address)
        await _give_way()
        return Delivered(row=row, new=known is None, thread=thread)

    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        now = self._clock()
        for made in definitions:
            name = (made.machine, made.version, made.hash)
            self._tables.definitions.setdefault(name, evolve(made, at=now))
        workers = self._tables.workers
        known = workers.get(worker.id)
        ended = worker.ended if known is None or known.ended is None else known.ended
        workers[worker.id] = evolve(worker, beat=now, ended=ended)
        owners = {thread.owner for thread in self._tables.threads.values()}
        for row in list(workers.values()):
            if now - row.beat > DAY and row.id not in owners:
                del workers[row.id]
        await _give_way()
        return now

    async def share(self, request: Share, /) -> Shared:
        check_share(request)
        tables, now = self._tables, self._clock()
        slots = tables.slots.setdefault(request.limit, {})
        others = [
            held
            for worker, held in slots.items()
            if worker != request.worker and not self._is_gone(worker, now)
        ]
        held = request.held
        if request.at_once is not None:
            held = min(held, max(request.at_once - sum(others), 0))
        slots[request.worker] = held
        paced = pace(request, tables.paces.get(request.limit, 0), now)
        tables.paces[request.limit] = paced.full_at
        await _give_way()
        return Shared(held=held, starts=paced.starts, again=paced.again)

    async def upload(self, artifact: ArtifactRow, /) -> None:
        check_artifact(artifact)
        self._tables.artifacts.setdefault((artifact.workspace, artifact.id), artifact)
        await _give_way()

    async def remember(self, write: Remember, /) -> MemoryRow:
        check_remember(write)
        history = self._tables.memory[write.workspace, write.namespace, write.key]
        row = next((row for row in history if row.request == write.id), None)
        if row is None:
            newest = newest_version(history)
            if write.expected not in (None, newest):
                moved = [] if history else [(write.namespace, write.key)]
                raise MemoryMoved(history[-1:], moved)
            row = remembered(write, newest + 1, self._clock())
            history.append(row)
        await _give_way()
        return row

    async def expire(self, request: Expire, /) -> Expired:
        check_expire(request)
        expired = self._tables.expire(request)
        await _give_way()
        return expired

    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        check_restore(rows)
        restore(self._tables, rows, self._clock())
        await _give_way()

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        page = self._tables.page(query, after, limit)
        await _give_way()
        return page

    def _create(self, start: Start) -> None:
        tables = self._tables
        before = tables.inbox[start.address]
        inbox, newest = len(before), max((row.version for row in before), default=0)
        tables.since[start.address] = self._clock()
        tables.threads[start.address] = thread_made(
            start,
            standing=self._due_at_once(at_least(start.standing, newest), inbox > 0),
            inbox=inbox,
            session_since=len(tables.messages[start.address.workspace, start.session]),
        )
        tables.log[start.address].append(start.log)
        self._add_items(start.address, start.log.n, start.items)
        self._add_messages(start)

    def _landed(self, commit: Commit) -> bool:
        thread = self._tables.threads.get(commit.address)
        log = self._tables.log[commit.address]
        if thread is None or thread.incarnation != commit.incarnation or commit.log.n >= len(log):
            return False
        row = log[commit.log.n]
        return row.epoch == commit.epoch and row.head == commit.log.head

    def _judge(self, commit: Commit) -> None:
        """Raise what stands against the commit; nothing has been written yet."""
        thread = self._tables.threads.get(commit.address)
        if thread is None or not holds(thread, commit.incarnation, commit.epoch) or thread.n != commit.log.n:
            raise StaleClaim(said_of_stale(commit, thread))
        self._judge_memory(commit)
        self._apply_keys(commit, dict(self._tables.keys))

    def _judge_memory(self, commit: Commit) -> None:
        workspace = commit.address.workspace
        wanted = [(write.namespace, write.key, write.expected) for write in commit.memory]
        wanted += [(check.namespace, check.key, check.version) for check in commit.checks]
        moved: dict[tuple[str, str], MemoryRow | None] = {}
        for namespace, key, version in wanted:
            history = self._tables.memory[workspace, namespace, key]
            if newest_version(history) != version:
                moved[namespace, key] = history[-1] if history else None
        if moved:
            rows = [row for row in moved.values() if row is not None]
            raise MemoryMoved(rows, [name for name, row in moved.items() if row is None])

    def _apply_keys(self, commit: Commit, keys: dict[tuple[str, str, str], KeyRow]) -> None:
        for write in commit.keys:
            name = (commit.address.workspace, write.effect, write.key)
            row = keys.get(name)
            ours = row is not None and visit_of(row) == visit_of(key_claimed(commit, write))
            if write.action == "claim" and row is None:
                keys[name] = key_claimed(commit, write)
            elif write.action == "claim" and row is not None and not ours:
                raise KeyTaken(row)
            elif write.action == "outcome" and row is not None and ours:
                keys[name] = evolve(row, outcome=write.outcome, expires=write.expires)
            elif write.action == "free" and ours:
                del keys[name]

    def _apply(self, commit: Commit) -> None:
        """Write the whole commit; nothing in here refuses."""
        tables, address, at = self._tables, commit.address, commit.log.at
        thread = tables.threads[address]
        if commit.release:
            tables.since[address] = self._clock()
        tables.threads[address] = evolve(
            thread,
            standing=self._due_at_once(
                at_least(commit.standing, thread.standing.version), commit.inbox_seen < thread.inbox
            ),
            n=thread.n + 1,
            owner=None if commit.release else thread.owner,
            head=commit.log.head,
            crashes=0,
            updated=at,
        )
        tables.log[address].append(commit.log)
        inbox = tables.inbox[address]
        for number in commit.consumed:
            inbox[number - 1] = evolve(inbox[number - 1], consumed=commit.log.seq)
        self._add_items(address, commit.log.n, commit.items)
        self._add_messages(commit)
        for write in commit.memory:
            history = tables.memory[address.workspace, write.namespace, write.key]
            history.append(version_made(commit, write))
        self._apply_artifacts(commit)
        self._apply_keys(commit, tables.keys)
        tables.outbox[address].extend(commit.outbox)

    def _apply_artifacts(self, commit: Commit) -> None:
        artifacts = self._tables.artifacts
        for id_ in commit.dropped_artifacts:
            row = artifacts.get((commit.address.workspace, id_))
            if row is not None and row.incarnation == commit.incarnation:
                del artifacts[row.workspace, row.id]
        for artifact in commit.artifacts:
            artifacts.setdefault((artifact.workspace, artifact.id), artifact)

    def _known(self, signal: Signal) -> InboxRow | None:
        """The entry with this signal's id; None where it may be put there."""
        row = next((row for row in self._tables.inbox[signal.address] if row.id == signal.id), None)
        if row is not None and row.digest != signal.digest:
            raise SignalConflict(
                f"signal {signal.id!r} of thread {signal.address.thread_id!r} was accepted before, as event "
                f"{row.event!r} or with another payload: give another signal another id"
            )
        thread = self._tables.threads.get(signal.address)
        if row is None and thread is not None and thread.standing.status == "ended":
            raise ThreadEnded(
                f"thread {signal.address.thread_id!r} has ended in state {thread.standing.state!r}: "
                f"it takes no new signal ({signal.id!r})"
            )
        return row

    def _accept(self, signal: Signal) -> InboxRow:
        thread = self._tables.threads.get(signal.address)
        inbox = self._tables.inbox[signal.address]
        row = entry_made(signal, len(inbox) + 1, self._clock())
        inbox.append(row)
        if thread is not None:
            standing = self._due_at_once(at_least(thread.standing, row.version), True)
            self._tables.threads[signal.address] = evolve(thread, inbox=row.number, standing=standing)
        return row

    def _due_at_once(self, standing: Standing, news: bool) -> Standing:
        return due_at_once(standing, news, self._clock())

    def _add_items(self, address: Address, n: int, items: bytes | None) -> None:
        if items is not None:
            self._tables.items[address].append(ItemsRow(n=n, payload=items))

    def _add_messages(self, write: Start | Commit) -> None:
        talk = self._tables.messages[write.address.workspace, write.session]
        for payload in write.messages:
            talk.append(message_made(write, len(talk) + 1, payload))


async def _give_way() -> None:
    """Let others run once, after the work is done: a caller cancelled here has written all the same."""
    await asyncio.sleep(0)
