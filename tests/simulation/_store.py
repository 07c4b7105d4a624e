"""The store as processes reach it: requests that take their time, get lost, land late or unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from _loop import StoppableLoop
from attrs import define, frozen

from perdure.stores import (
    ArtifactRow,
    Claimed,
    ClaimRequest,
    Commit,
    Delivered,
    MemoryStore,
    Micros,
    OutcomeUnknown,
    Page,
    Query,
    Release,
    Signal,
    Start,
    Started,
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

    async def beat(self, worker: WorkerRow, /) -> Micros:
        at = await self._call(lambda: self.shore.store.beat(worker), write=True)
        if self.shore.rng.random() < self.shore.weather.dragging:
            await asyncio.sleep(3 * self.shore.rng.random())
        return at

    async def upload(self, artifact: ArtifactRow, /) -> None:
        await self._call(lambda: self.shore.store.upload(artifact), write=True)

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        return await self._call(lambda: self.shore.store.page(query, after=after, limit=limit), write=False)


async def _land(ask: Callable[[], Coroutine[Any, Any, Any]], after: float) -> tuple[Any, Exception | None]:
    """An error is an answer too, since whoever asked may not live to take it."""
    await asyncio.sleep(after)
    try:
        return await ask(), None
    except Exception as error:
        return None, error
