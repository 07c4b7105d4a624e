"""The store as processes reach it: requests that take their time, get lost, land late or unseen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Sequence
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from _loop import StoppableLoop
from attrs import define, frozen

from perdure.artifacts import ArtifactsUnavailable, Blob, BlobPage, MemoryArtifacts
from perdure.stores import (
    ArtifactRow,
    Claimed,
    ClaimRequest,
    Commit,
    DefinitionRow,
    Delivered,
    Expire,
    Expired,
    MemoryRow,
    MemoryStore,
    Micros,
    OutcomeUnknown,
    Page,
    Query,
    Release,
    Remember,
    Share,
    Shared,
    Signal,
    Start,
    Started,
    StoredRow,
    StoreUnavailable,
    ThreadRow,
    WorkerRow,
)

R = TypeVar("R")


@frozen(kw_only=True)
class Weather:
    """How bad the way to the store is to be: probabilities."""

    unavailable: float = 0.0
    lost: float = 0.0
    """The reply is lost; the write has landed, lands later, or never."""
    slow: float = 0.0
    stalled: float = 0.0
    dragging: float = 0.0
    """A heartbeat's reply is late, though its request was not."""

    @property
    def lapses(self) -> bool:
        """A worker may lose its lease although nothing happens to it."""
        return bool(self.unavailable or self.lost or self.stalled or self.dragging)


CLEAR = Weather()
LANDS_LATER = 2.0
"""Seconds by which a write lands later at most, after its reply was lost."""


class WatchedStore(MemoryStore):
    """Tells of each commit as it lands, with the thread's row before it."""

    def __init__(self, clock: Callable[[], Micros]) -> None:
        super().__init__(clock)
        self.landed: Callable[[ThreadRow, Commit], None] = lambda *_: None

    def _apply(self, commit: Commit) -> None:
        before = self._tables.threads[commit.address]
        super()._apply(commit)
        self.landed(before, commit)

    @property
    def tables(self) -> Any:
        return self._tables

    async def at_the_end(self) -> Sequence[str]:
        """What was wrong with it."""
        return ()


@define(eq=False)
class Shore:
    """Where requests land, and how the weather is."""

    loop: StoppableLoop
    store: WatchedStore
    rng: Random
    weather: Weather
    acknowledged: list[tuple[str, Any]]
    """Every start, commit and signal that was acknowledged."""

    def transit(self) -> float:
        rng, weather = self.rng, self.weather
        if rng.random() < weather.stalled:
            return 1 + 5 * rng.random()
        if rng.random() < weather.slow:
            return 0.5 * rng.random()
        return 0.0005 + 0.004 * rng.random()


@define(eq=False)
class Wire:
    """One process's way to the store; implements ``Store``."""

    shore: Shore
    lost_at: float = float("-inf")
    """When the last reply was lost: what it was about may land later."""

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def _call(self, ask: Callable[[], Coroutine[Any, Any, R]], *, write: bool) -> R:
        shore, rng = self.shore, self.shore.rng
        if rng.random() < shore.weather.unavailable:
            await asyncio.sleep(shore.transit())
            raise StoreUnavailable("the store is out of reach")
        lost = write and rng.random() < shore.weather.lost
        fate = rng.choice(("landed", "lands later", "never")) if lost else "landed"
        there = shore.transit()
        if fate == "never":
            await asyncio.sleep(there)
            raise self._unknown()
        later = LANDS_LATER * rng.random() if fate == "lands later" else 0.0
        landing = shore.loop.outside(_land(ask, there + later))
        if fate == "lands later":
            await asyncio.sleep(there)
            raise self._unknown()
        answer: Any
        try:
            answer, error = await asyncio.shield(landing)
        except asyncio.CancelledError:
            self.lost_at = shore.loop.time() + there  # it is on its way, and nobody waits for it any more
            raise
        await asyncio.sleep(shore.transit())
        if lost:
            raise self._unknown()
        if error is not None:
            raise error
        return answer  # type: ignore[no-any-return]

    def _unknown(self) -> OutcomeUnknown:
        self.lost_at = self.shore.loop.time()
        return OutcomeUnknown("the reply was lost")

    async def start(self, start: Start, /) -> Started:
        answer = await self._call(lambda: self.shore.store.start(start), write=True)
        self.shore.acknowledged.append(("start", start))
        return answer

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        return await self._call(lambda: self.shore.store.claim(request), write=True)

    async def commit(self, commit: Commit, /) -> None:
        await self._call(lambda: self.shore.store.commit(commit), write=True)
        self.shore.acknowledged.append(("commit", commit))

    async def release(self, releases: Sequence[Release], /) -> None:
        await self._call(lambda: self.shore.store.release(releases), write=True)

    async def deliver(self, signal: Signal, /) -> Delivered:
        answer = await self._call(lambda: self.shore.store.deliver(signal), write=True)
        self.shore.acknowledged.append(("signal", signal))
        return answer

    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        at = await self._call(lambda: self.shore.store.beat(worker, definitions), write=True)
        if self.shore.rng.random() < self.shore.weather.dragging:
            await asyncio.sleep(3 * self.shore.rng.random())
        return at

    async def share(self, request: Share, /) -> Shared:
        return await self._call(lambda: self.shore.store.share(request), write=True)

    async def upload(self, artifact: ArtifactRow, /) -> None:
        await self._call(lambda: self.shore.store.upload(artifact), write=True)

    async def remember(self, write: Remember, /) -> MemoryRow:
        return await self._call(lambda: self.shore.store.remember(write), write=True)

    async def expire(self, request: Expire, /) -> Expired:
        return await self._call(lambda: self.shore.store.expire(request), write=True)

    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        await self._call(lambda: self.shore.store.restore(rows), write=True)

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        return await self._call(lambda: self.shore.store.page(query, after=after, limit=limit), write=False)


@define(eq=False)
class Shelf:
    """One process's way to the artifacts: what is put and published takes its time, and may not get there."""

    shore: Shore
    inner: MemoryArtifacts

    async def __aenter__(self) -> Shelf:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def put(self, workspace: str, chunks: AsyncIterable[bytes], /) -> Laid:
        await asyncio.sleep(self.shore.transit())
        return Laid(self.shore, await self.inner.put(workspace, chunks))

    def open(
        self, workspace: str, sha256: str, /, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        return self.inner.open(workspace, sha256, start=start, end=end)

    async def stat(self, workspace: str, sha256: str, /) -> Blob:
        return await self.inner.stat(workspace, sha256)

    async def list(
        self, workspace: str | None = None, /, *, after: str | None = None, limit: int = 100
    ) -> BlobPage:
        return await self.inner.list(workspace, after=after, limit=limit)

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        return await self.inner.delete(workspace, sha256, unless_modified_since=unless_modified_since)


@define(eq=False)
class Laid:
    """A staged blob that takes its time to become visible."""

    shore: Shore
    inner: Any

    @property
    def sha256(self) -> str:
        return str(self.inner.sha256)

    @property
    def size_bytes(self) -> int:
        return int(self.inner.size_bytes)

    async def publish(self) -> None:
        await asyncio.sleep(self.shore.transit())
        if self.shore.rng.random() < self.shore.weather.unavailable:
            raise ArtifactsUnavailable("the artifacts are out of reach")
        await self.inner.publish()
        await asyncio.sleep(self.shore.transit())

    async def __aenter__(self) -> Laid:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)


async def _land(ask: Callable[[], Coroutine[Any, Any, Any]], after: float) -> tuple[Any, Exception | None]:
    """An error is an answer too, since whoever asked may not live to take it."""
    await asyncio.sleep(after)
    try:
        return await ask(), None
    except Exception as error:
        return None, error
