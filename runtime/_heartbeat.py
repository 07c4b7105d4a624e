"""Shows the others that this worker lives, and learns the store's clock from the answers.

Where the store can be opened a second time, a thread beats with a connection of its own: a handler that
blocks the event loop does not cost this worker its threads. It stops once the loop has stalled for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Thread

import anyio
from attrs import evolve

from perdure.stores import DefinitionRow, Micros, Store, StoreError, WorkerRow

from ._clock import StoreClock
from ._observe import logger
from ._reliable import until_known

BEATS_A_LEASE = 3
CLOSE_ENOUGH: Micros = 200_000
"""Microseconds within which a worker knows the store's clock before it begins, unless the store is slow."""
FIRST_BEATS = 3
"""Heartbeats that it takes for that at the most."""
REOPEN_PAUSE = 1.0
"""Seconds before the thread opens its store again."""


class Heartbeat:
    """Renews one worker's row, and with it the lease on all that the worker has claimed."""

    def __init__(
        self,
        store: Store,
        clock: StoreClock,
        row: WorkerRow,
        lease: timedelta,
        *,
        time: Callable[[], float],
        stalled: Callable[[], bool],
    ) -> None:
        self._store = store
        self._clock = clock
        self._row = row
        self._lease = lease.total_seconds()
        self._time = time
        self._stalled = stalled
        self._beaten = 0.0
        self.lapses = 0
        """How often others may have taken this worker for dead."""

    async def begin(self, definitions: Sequence[DefinitionRow] = ()) -> None:
        """Show that the process lives, and what it can run, until the store's clock is known well enough."""
        for _ in range(FIRST_BEATS):
            await self._beat(self._store, definitions)
            if self._clock.width <= CLOSE_ENOUGH:
                break

    async def keep(self, store: Store | None = None) -> None:
        """Renew the lease for as long as the event loop turns; ``store``: over this connection."""
        while True:
            await anyio.sleep(self._lease / BEATS_A_LEASE)
            if not self._stalled():
                await self.renew(store)

    async def renew(self, store: Store | None = None) -> None:
        """Show at once that the process lives, where its heartbeat came too late."""
        try:
            await self._beat(store or self._store)
        except StoreError as error:
            logger.warning("worker %s: heartbeat failed: %s", self._row.id, error)

    async def end(self) -> None:
        """Say that the worker has left."""
        row = evolve(self._row, ended=self._clock.now())
        await until_known(lambda: self._store.beat(row))

    def lease_holds(self) -> bool:
        """Whether others still take this worker for alive."""
        return self._time() < self._beaten + self._lease

    @property
    def age(self) -> float:
        """Seconds since the last heartbeat that the store has answered was sent."""
        return self._time() - self._beaten

    @property
    def late(self) -> bool:
        """Whether one was missed."""
        return self.age > self._lease * 2 / BEATS_A_LEASE

    async def _beat(self, store: Store, definitions: Sequence[DefinitionRow] = ()) -> None:
        before, sent = self._time(), self._clock.here()
        at = await store.beat(self._row, definitions)
        self._clock.heard(at, sent=sent)
        if not self.lease_holds():
            self.lapses += 1
        self._beaten = max(self._beaten, before)


class BeatingThread:
    """Keeps a heartbeat in a thread with an event loop of its own."""

    def __init__(self, heartbeat: Heartbeat, beside: Callable[[], Store]) -> None:
        self._heartbeat = heartbeat
        self._beside = beside
        self._leaving = False
        self._inside: tuple[asyncio.AbstractEventLoop, anyio.CancelScope] | None = None

    async def keep(self) -> None:
        """Run the thread until this is cancelled; what ends it otherwise is raised."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        self._leaving, self._inside = False, None
        Thread(target=self._live, args=(loop, over), name="perdure heartbeat", daemon=True).start()
        try:
            await asyncio.shield(over)
        finally:
            self._leave()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([over])

    def _live(self, outside: asyncio.AbstractEventLoop, over: asyncio.Future[None]) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._main())
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # that loop is closed
            outside.call_soon_threadsafe(_settle, over, error)

    async def _main(self) -> None:
        # A scope, and not the task, is cancelled: a store that opens or closes is left to finish that.
        with anyio.CancelScope() as scope:
            self._inside = (asyncio.get_running_loop(), scope)
            while not self._leaving:
                try:
                    async with self._beside() as store:
                        await self._heartbeat.keep(store)
                except (StoreError, OSError) as error:
                    logger.warning("the heartbeat's connection cannot be opened: %s", error)
                    await anyio.sleep(REOPEN_PAUSE)

    def _leave(self) -> None:
        self._leaving = True  # before the look: the thread looks the other way round
        if self._inside is not None:
            loop, scope = self._inside
            with contextlib.suppress(RuntimeError):  # it has left already
                loop.call_soon_threadsafe(scope.cancel)


def _settle(over: asyncio.Future[None], error: BaseException | None) -> None:
    if over.done():
        return
    if error is None:
        over.set_result(None)
    else:
        over.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
