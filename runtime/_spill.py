"""Large bodies of the record lie in the artifact backend: whatever the store, its rows stay small.

A body over ``MAX_BODY``, and of a write of more than ``MAX_WRITE`` each over ``SMALL``, is put as a blob
before the write, which then holds an envelope in its place: the blob's digest and size. Whoever reads through
the same wrapper sees the body. No JSON begins as an envelope does; a body that does so is put as a blob,
however short it is.

What holds such a blob: an artifact record of the thread, written before the blob is visible, for as long as
the thread has records. For memory it is the memory record, which collection reads; until that is written, a
record that expires after ``LEASE``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from perdure.artifacts import ArtifactBackend, ArtifactsUnavailable
from perdure.machines import Unreadable
from perdure.stores import (
    MAX_BODY,
    MAX_ID,
    MAX_WORKSPACE,
    MAX_WRITE,
    ArtifactRow,
    Claim,
    Claimed,
    ClaimRequest,
    Commit,
    DefinitionRow,
    Delivered,
    Expire,
    Expired,
    Inbox,
    InboxRow,
    Items,
    Keys,
    KeyTaken,
    Log,
    Memory,
    MemoryMoved,
    MemoryRow,
    Messages,
    Micros,
    Outbox,
    Page,
    Query,
    Release,
    Remember,
    Share,
    Shared,
    Signal,
    Start,
    Started,
    Store,
    StoredRow,
    StoreUnavailable,
    TooLarge,
    WorkerRow,
    check_name,
)

from ._keys import digest
from ._spilled import (
    Bodies,
    Spilled,
    Swap,
    bodies_of,
    body_of,
    commit_with,
    fitting,
    has_spilled,
    is_small,
    is_spilled,
    read_spilled,
    remember_with,
    signal_with,
    start_with,
    with_body,
    words_of_row,
)

R = TypeVar("R")
T = TypeVar("T", Commit, Start, Signal, Remember)

SMALL = 32 * 1024
"""Where a write's bodies are too much together, those over this size go."""
LARGEST = 20 * 1024 * 1024
"""Bytes of one body, wherever it lies."""
PAGE_AT_MOST = 16 * 1024 * 1024
"""Bytes of bodies that a page brings where some are blobs, unless its first row alone has more."""
LEASE = 3600 * 1_000_000
"""Microseconds for which a blob is held for the memory record that is to name it."""
MEDIA_TYPE = "application/vnd.perdure.body"
"""Of the records that hold these blobs."""
SENDER = "sender"
"""As whom a signal's body is put: a signal does not say who sends it."""

_OF_A_THREAD = (Log, Items, Inbox, Outbox)
_WITH_BODIES = (*_OF_A_THREAD, Messages, Memory, Keys)

Opening = Callable[[AsyncExitStack], Awaitable[ArtifactBackend]]


def opened(artifacts: ArtifactBackend) -> Opening:
    """A backend that is open already."""

    async def have(stack: AsyncExitStack) -> ArtifactBackend:
        return artifacts

    return have


def bare(store: Store) -> Store:
    """The store itself, whose rows hold envelopes where bodies lie outside of it."""
    return store.inner if isinstance(store, SpillingStore) else store


async def whole(store: Store, claim: Claim) -> Claim:
    """A claim with its bodies, which a claim leaves where they are. ``Unreadable`` names one that is gone."""
    return await store.whole(claim) if isinstance(store, SpillingStore) else claim


async def with_body_of(store: Store, row: R, workspace: str) -> R:
    """A row of the bare store with its body, or still with the envelope where that is gone."""
    return await store.body_read(row, workspace) if isinstance(store, SpillingStore) else row


class SpillingStore:
    """A store as the runtime uses it.

    ``opening`` is awaited when the first blob is needed, and is given what closes it with the store.
    """

    def __init__(self, inner: Store, opening: Opening, now: Callable[[], Micros]) -> None:
        self.inner = inner
        self._opening = opening
        self._now = now
        self._stack = AsyncExitStack()
        self._artifacts: ArtifactBackend | None = None

    async def __aenter__(self) -> SpillingStore:
        await self._stack.enter_async_context(self.inner)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._artifacts = None
        await self._stack.aclose()

    async def _backend(self) -> ArtifactBackend:
        if self._artifacts is None:
            self._artifacts = await self._opening(self._stack)
        return self._artifacts

    # --- what has no bodies, or is copied as it lies -------------------------------------------------

    async def release(self, releases: Sequence[Release], /) -> None:
        """See ``Store.release``."""
        await self.inner.release(releases)

    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        """See ``Store.beat``."""
        return await self.inner.beat(worker, definitions)

    async def share(self, request: Share, /) -> Shared:
        """See ``Store.share``."""
        return await self.inner.share(request)

    async def upload(self, artifact: ArtifactRow, /) -> None:
        """See ``Store.upload``."""
        await self.inner.upload(artifact)

    async def expire(self, request: Expire, /) -> Expired:
        """See ``Store.expire``."""
        return await self.inner.expire(request)

    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        """See ``Store.restore``."""
        await self.inner.restore(rows)

    # --- writes -------------------------------------------------------------------------------------

    async def commit(self, commit: Commit, /) -> None:
        """See ``Store.commit``."""
        if is_small(commit, MAX_BODY):
            await self.inner.commit(commit)
        else:
            await self._commit(commit)

    async def _commit(self, commit: Commit) -> None:
        holder = _Holder(
            address=(commit.address.workspace, commit.address.thread_id),
            incarnation=commit.incarnation,
            seq=commit.visit,
            principal=commit.principal,
        )
        try:
            await self.inner.commit(await self._put_large(commit, commit_with, holder))
        except MemoryMoved as moved:
            rows = [await self._read(row, row.workspace) for row in moved.rows]
            raise MemoryMoved(rows, moved.missing) from None
        except KeyTaken as taken:
            raise KeyTaken(await self._read(taken.row, taken.row.workspace)) from None

    async def start(self, start: Start, /) -> Started:
        """See ``Store.start``. What came in before, and is large, is left where it is: see ``whole``."""
        holder = _Holder(
            address=(start.address.workspace, start.address.thread_id),
            incarnation=start.incarnation,
            seq=0,
            principal=start.principal,
        )
        started = await self.inner.start(await self._put_large(start, start_with, holder))
        if not started.delivered:
            return started
        sent = {signal.id: signal.payload for signal in start.signals}
        delivered = [evolve(each, row=_as_sent(each.row, sent[each.row.id])) for each in started.delivered]
        return evolve(started, delivered=tuple(delivered))

    async def deliver(self, signal: Signal, /) -> Delivered:
        """See ``Store.deliver``."""
        address = (signal.address.workspace, signal.address.thread_id)
        holder = _Holder(address=address, principal=SENDER)
        delivered = await self.inner.deliver(await self._put_large(signal, signal_with, holder))
        return evolve(delivered, row=_as_sent(delivered.row, signal.payload))

    async def remember(self, write: Remember, /) -> MemoryRow:
        """See ``Store.remember``."""
        holder = _Holder(address=(write.workspace, None), principal=write.principal)
        row = await self.inner.remember(await self._put_large(write, remember_with, holder))
        return await self._read(row, row.workspace)

    async def _put_large(self, write: T, swapped: Callable[[T, Swap], T], holder: _Holder) -> T:
        """The write with envelopes for what is too large for a row. Their blobs are there from now on: made
        again, this stamps them anew."""
        bodies = bodies_of(write)
        large = _large(bodies)
        if not large:
            return write
        workspace, thread_id = holder.address
        check_name("workspace", workspace, MAX_WORKSPACE)
        if thread_id is not None:
            check_name("thread id", thread_id, MAX_ID)
        put: dict[bytes, bytes] = {}
        for body in large:
            put[body] = await self._put(body, holder, body in bodies.of_thread, body in bodies.of_memory)
        return swapped(write, lambda body: put.get(body, body))

    async def _put(self, body: bytes, holder: _Holder, of_thread: bool, of_memory: bool) -> bytes:
        try:
            artifacts = await self._backend()
            async with await artifacts.put(holder.address[0], _chunks(body)) as staged:
                spilled = Spilled(staged.sha256, staged.size_bytes)
                if of_thread:
                    await self.inner.upload(holder.record(spilled, self._now()))
                if of_memory:
                    await self.inner.upload(holder.lease(spilled, self._now()))
                await staged.publish()
        except ArtifactsUnavailable as error:
            raise StoreUnavailable(f"a large body cannot be put into the artifacts now: {error}") from error
        return spilled.envelope

    # --- reads --------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        """See ``Store.claim``. Bodies are left where they are, since one that is gone is its own thread's
        trouble alone; but what an operator claims has those that can be read."""
        claimed = await self.inner.claim(request)
        if request.only is None or not claimed.claims:
            return claimed
        return evolve(claimed, claims=tuple([await self._whole(c, strict=False) for c in claimed.claims]))

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        """See ``Store.page``. Large bodies make a page shorter. ``Unreadable`` names one that is gone; a log
        row keeps its envelope then, since whoever reads the journal goes on with the others."""
        page = await self.inner.page(query, after=after, limit=limit)
        if not (issubclass(type(query), _WITH_BODIES) and any(is_spilled(body_of(row)) for row in page.rows)):
            return page
        most = fitting(page.rows, PAGE_AT_MOST)
        if most < len(page.rows):
            page = await self.inner.page(query, after=after, limit=most)
        return await self._with_bodies(query, page)

    async def _with_bodies(self, query: Any, page: Page[Any]) -> Page[Any]:
        workspace, thread_id = None, None
        if isinstance(query, _OF_A_THREAD):
            workspace, thread_id = query.address.workspace, query.address.thread_id
        strict = not isinstance(query, Log)
        rows = [
            await self._read(row, workspace or row.workspace, thread_id, strict=strict) for row in page.rows
        ]
        return Page(rows=rows, next=page.next)

    async def whole(self, claim: Claim) -> Claim:
        """The claim with all its bodies. ``Unreadable`` names one that is gone."""
        return await self._whole(claim, strict=True)

    async def body_read(self, row: R, workspace: str) -> R:
        """A row of the store itself with its body, or with its envelope where that is gone."""
        return await self._read(row, workspace, strict=False)

    async def _whole(self, claim: Claim, *, strict: bool) -> Claim:
        if not has_spilled(claim):
            return claim
        address = claim.thread.address

        async def read(rows: Sequence[R]) -> tuple[R, ...]:
            args = (address.workspace, address.thread_id)
            return tuple([await self._read(row, *args, strict=strict) for row in rows])

        log, items, inbox = await read(claim.log), await read(claim.items), await read(claim.inbox)
        return evolve(claim, log=log, items=items, inbox=inbox)

    async def _read(self, row: R, workspace: str, thread_id: str | None = None, *, strict: bool = True) -> R:
        body = body_of(row)
        if body is None or not is_spilled(body):
            return row
        try:
            where = words_of_row(row, thread_id)
            return with_body(row, await read_spilled(await self._backend(), workspace, body, where))
        except Unreadable:
            if strict:
                raise
            return row


@frozen(kw_only=True)
class _Holder:
    """Whose records hold the blobs of a write."""

    address: tuple[str, str | None]
    principal: str
    incarnation: bytes | None = field(default=None)
    seq: int | None = field(default=None)

    def record(self, spilled: Spilled, now: Micros) -> ArtifactRow:
        """The thread's, the same whenever it puts the same."""
        workspace, thread_id = self.address
        named = digest("body", thread_id or "", self.incarnation or b"", spilled.sha256)
        return evolve(
            self._row(spilled, named, now),
            workspace=workspace,
            thread_id=thread_id,
            incarnation=self.incarnation,
            seq=self.seq,
        )

    def lease(self, spilled: Spilled, now: Micros) -> ArtifactRow:
        """Nobody's, for a while."""
        return evolve(self._row(spilled, digest("lease", spilled.sha256, now), now), expires=now + LEASE)

    def _row(self, spilled: Spilled, named: bytes, now: Micros) -> ArtifactRow:
        return ArtifactRow(
            id=f"body_{named.hex()}",
            workspace=self.address[0],
            sha256=spilled.sha256,
            size_bytes=spilled.size_bytes,
            media_type=MEDIA_TYPE,
            principal=self.principal,
            thread_id=None,
            incarnation=None,
            seq=None,
            derived_from=(),
            created=now,
        )


def _large(bodies: Bodies) -> list[bytes]:
    """The bodies that go: those over a row's limit and, where the others are too much together, those that
    are not small."""
    every = [body for body in (*bodies.of_thread, *bodies.of_memory) if body is not None]
    for limit in (MAX_BODY, SMALL):
        large = {body: None for body in every if len(body) > limit or is_spilled(body)}
        if sum(len(body) for body in every if body not in large) <= MAX_WRITE:
            break
    for body in large:
        if len(body) > LARGEST:
            raise TooLarge(
                f"a body of the record has {len(body):,} bytes: at most {LARGEST:,} fit; put it into an "
                "artifact"
            )
    return list(large)


def _as_sent(row: InboxRow, payload: bytes) -> InboxRow:
    """A signal is there once by id, and with the payload that was sent: it need not be read."""
    return evolve(row, payload=payload) if is_spilled(row.payload) else row


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body
