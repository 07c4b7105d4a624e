"""How a worker fares: what it has noticed, and what it says of that to whoever asks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol

import anyio
from attrs import field, frozen

from perdure.stores import Claimed, Micros, Store, StoreError, Threads

from ._heartbeat import Heartbeat
from ._observe import logger
from ._stall import LoopWatch
from ._supervise import Supervisor

Level = Literal["ok", "degraded", "failing"]

LOOK_EVERY = 5.0
"""Seconds between looks into the store."""
REMEMBER = 300.0
"""Seconds for which it is told that a loop has died."""
OVERDUE: Micros = 60_000_000
"""Microseconds after which a thread that is due and that nobody runs is told."""
MOST_PARKED = 1000
"""Parked threads that are counted at most."""


@frozen(kw_only=True)
class Health:
    """What is told of a worker."""

    status: Level
    reasons: Sequence[str]
    live: bool
    """Its process and its event loop go on, and so does its heartbeat."""
    ready: bool
    """It claims, and the store is in reach."""
    facts: Mapping[str, object] = field(factory=dict[str, object])

    def document(self) -> dict[str, object]:
        """What health is as JSON."""
        return {"status": self.status, "reasons": list(self.reasons), **self.facts}


class Patient(Protocol):
    """The worker whose health it is."""

    @property
    def store(self) -> Store: ...
    @property
    def worker(self) -> str: ...
    @property
    def machines(self) -> Sequence[str]: ...
    @property
    def draining(self) -> bool: ...
    @property
    def heartbeat(self) -> Heartbeat: ...
    @property
    def watch(self) -> LoopWatch: ...
    @property
    def supervisor(self) -> Supervisor: ...
    @property
    def running(self) -> int: ...
    async def look_for_due(self) -> Claimed: ...


class Vitals:
    """Looks into the store now and then, and judges by that and by what the worker knows of itself."""

    def __init__(self, worker: Patient) -> None:
        self._worker = worker
        self._trouble = ""
        self._parked = Counter[str]()
        self._overdue: Micros = 0

    async def keep(self) -> None:
        """Look until this is cancelled."""
        while True:
            try:
                await self._look()
                self._trouble = ""
            except StoreError as error:
                self._trouble = str(error)
                logger.warning("worker %s: cannot look at its threads: %s", self._worker.worker, error)
            await anyio.sleep(LOOK_EVERY)

    async def _look(self) -> None:
        due = await self._worker.look_for_due()
        self._overdue = 0 if due.next_wake is None else max(due.now - due.next_wake, 0)
        parked = Counter[str]()
        for machine in self._worker.machines:
            room = MOST_PARKED - parked.total()
            if room > 0:
                query = Threads(machine=machine, status="parked")
                rows = (await self._worker.store.page(query, limit=room)).rows
                parked.update(row.standing.reason or "" for row in rows)
        self._parked = parked

    def judge(self) -> Health:
        """How the worker fares now; any thread may ask."""
        failing, degraded = list(self._failing()), list(self._degraded())
        worker = self._worker
        live = not worker.watch.stalled() and not worker.heartbeat.late
        claiming = worker.supervisor.runs("claiming") and not worker.draining
        return Health(
            status="failing" if failing else "degraded" if degraded else "ok",
            reasons=[*failing, *degraded],
            live=live,
            ready=live and claiming and not self._trouble and not worker.watch.blocked,
            facts={
                "worker": worker.worker,
                "draining": worker.draining,
                "running": worker.running,
                "heartbeat_seconds": round(worker.heartbeat.age, 1),
                "parked": dict(sorted(self._parked.items())),
                "restarts": {loop.name: loop.restarts for loop in worker.supervisor.known() if loop.restarts},
            },
        )

    def _failing(self) -> Iterator[str]:
        worker = self._worker
        if worker.watch.blocked:
            yield f"the event loop is blocked for {worker.watch.blocked:.0f} s by {worker.watch.said}"
        if worker.heartbeat.late:
            yield f"the last heartbeat was {worker.heartbeat.age:.0f} s ago"
        if self._trouble:
            yield f"the store is out of reach: {self._trouble}"

    def _degraded(self) -> Iterator[str]:
        now = time.monotonic()
        for loop in self._worker.supervisor.known():
            if loop.died_at is not None and now - loop.died_at < REMEMBER:
                ago = f"{now - loop.died_at:.0f} s ago"
                yield f"the loop of {loop.name} died {ago} and was started again: {loop.error}"
        for reason, count in sorted(self._parked.items()):
            yield f"{count} parked ({reason}): `perdure ls --status parked` lists them"
        if self._overdue > OVERDUE:
            yield f"a thread is due for {self._overdue / 1e6:.0f} s and no worker has room for it"
