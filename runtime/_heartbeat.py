"""Shows the others that this worker lives, and learns the store's clock from the answers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import anyio
from attrs import evolve

from perdure.stores import Micros, Store, StoreError, WorkerRow

from ._clock import StoreClock
from ._observe import logger
from ._reliable import until_known

BEATS_A_LEASE = 3
CLOSE_ENOUGH: Micros = 200_000
"""Microseconds within which a worker knows the store's clock before it begins, unless the store is slow."""
FIRST_BEATS = 3
"""Heartbeats that it takes for that at the most."""


class Heartbeat:
    """Renews one worker's row, and with it the lease on all that the worker has claimed."""

    def __init__(self, store: Store, clock: StoreClock, row: WorkerRow, lease: timedelta) -> None:
        self._store = store
        self._clock = clock
        self._row = row
        self._lease = lease.total_seconds()
        self._lease_until = 0.0

    async def begin(self) -> None:
        """Show that the process lives, until the store's clock is known well enough."""
        for _ in range(FIRST_BEATS):
            await self._beat()
            if self._clock.width <= CLOSE_ENOUGH:
                break

    async def keep(self) -> None:
        """Renew the lease for as long as the process lives."""
        while True:
            await anyio.sleep(self._lease / BEATS_A_LEASE)
            try:
                await self._beat()
            except StoreError as error:
                logger.warning("worker %s: heartbeat failed: %s", self._row.id, error)

    async def end(self) -> None:
        """Say that the worker has left."""
        row = evolve(self._row, ended=self._clock.now())
        await until_known(lambda: self._store.beat(row))

    def lease_holds(self) -> bool:
        """Whether others still take this worker for alive."""
        return asyncio.get_running_loop().time() < self._lease_until

    async def renew(self) -> None:
        """Show at once that the process lives, where its heartbeat came too late."""
        try:
            await self._beat()
        except StoreError as error:
            logger.warning("worker %s: heartbeat failed: %s", self._row.id, error)

    async def _beat(self) -> None:
        before, sent = asyncio.get_running_loop().time(), self._clock.here()
        at = await self._store.beat(self._row)
        self._clock.heard(at, sent=sent)
        self._lease_until = before + self._lease
