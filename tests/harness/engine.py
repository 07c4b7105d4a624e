"""The engine in simulated time, in processes that can be killed anywhere, with its world and faulty store.

``Sim`` holds what outlives processes (store, artifacts, world, time); ``Sim.engine()`` is one process with
one ``Runtime`` in it, behind a ``FaultyStore`` of its own. Everything that a test asks is asked from outside
of any process, of the store itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

import msgspec

from perdure.artifacts import MemoryArtifacts
from perdure.machines import (
    Namespace,
)
from perdure.runtime import Runtime, Thread
from perdure.runtime._client import Client
from perdure.runtime._env import Env
from perdure.runtime._journal import Body, decode_body
from perdure.runtime._liveness import Mark
from perdure.runtime._spill import SpillingStore, opened
from perdure.runtime._testing_process import Process
from perdure.stores import (
    Address,
    Log,
    LogRow,
    Memory,
    MemoryRow,
    MemoryStore,
    Query,
    ThreadRow,
    Threads,
)

from .loop import SimLoop, simulate, simulated
from .store import FaultyStore, carrying, every
from .world import (
    CALLS,
    HANG,
    Arrival,
    Note,
    Refused,
    Reply,
    World,
    again,
    bare,
    both,
    brief,
    fading,
    for_ever,
    fresh,
    job,
    kept,
    looked,
    remembered,
)

__all__ = [
    "CALLS",
    "HANG",
    "Arrival",
    "Engine",
    "FaultyStore",
    "Note",
    "Refused",
    "Reply",
    "Sim",
    "World",
    "again",
    "bare",
    "both",
    "brief",
    "carrying",
    "every",
    "fading",
    "for_ever",
    "fresh",
    "job",
    "kept",
    "looked",
    "remembered",
    "simulate",
    "simulated",
]

R = TypeVar("R")


class Engine(Process[World]):
    """One process with one runtime in it."""

    def __init__(self, sim: Sim, machines: Sequence[Any], options: dict[str, Any]) -> None:
        super().__init__(sim.loop, sim.gone)
        self.sim = sim
        self.store = FaultyStore(sim.store, sim.tell, kill=self.kill)
        self.runtime = Runtime(
            machines=machines,
            deps=sim.world,
            store=self.store,
            artifacts=sim.artifacts,
            env=sim.env,
            **options,
        )

    async def begin(self) -> Engine:
        """Start the worker."""
        await self.inside(self.runtime.__aenter__)
        return self

    async def start(
        self, machine: Any, data: Any = None, /, *, thread_id: str = "t", **more: Any
    ) -> Thread[Any, Any]:
        """Start a thread in this process, and a handle on it that outlives the process."""
        given = Note() if data is None else data
        await self.unless_killed(
            self.inside(
                lambda: self.runtime.start(machine, given, thread_id=thread_id, workspace="w", **more)
            )
        )
        return self.sim.thread(machine, thread_id)


class Sim:
    """What outlives processes: the store, the artifacts, the world and the time."""

    def __init__(self, loop: SimLoop, *machines: Any, seed: int = 0, **options: Any) -> None:
        self.loop = loop
        self.machines = machines
        self.options = options
        self.world = World(loop)
        self.store = MemoryStore(clock=loop.now)
        self.artifacts = MemoryArtifacts(clock=loop.now)
        self.gone: set[str] = set()
        """Ids of workers that are known to be dead."""
        self.env = Env(
            now=loop.now,
            token=Random(seed).randbytes,
            mark=lambda _: Mark("sim", ""),
            ended=lambda row: row.ended is not None or row.id in self.gone,
        )
        self._changed = asyncio.Event()

    @property
    def whole(self) -> SpillingStore:
        """The store with the bodies that lie outside of it."""
        return SpillingStore(self.store, opened(self.artifacts), self.loop.now)

    async def engine(self, *machines: Any, **options: Any) -> Engine:
        """A new process that runs these machines (those of the simulation, where none are given)."""
        return await Engine(self, machines or self.machines, {**self.options, **options}).begin()

    def tell(self) -> None:
        """Something was written."""
        self._changed.set()
        self._changed = asyncio.Event()

    # --- looking, from outside of any process -------------------------------------------------------

    def client(self, *machines: Any) -> Client:
        """A client in no process, at the store itself."""
        known = {m._definition.name: m._definition for m in machines or self.machines}
        return Client(self.whole, self.artifacts, self.env, known, None)

    def thread(self, machine: Any, thread_id: str = "t") -> Thread[Any, Any]:
        """A handle that no kill reaches."""
        return self.client(machine).thread(machine, thread_id=thread_id, workspace="w")

    async def row(self, thread_id: str = "t") -> ThreadRow:
        """The thread as it stands."""
        page = await self.store.page(Threads(workspace="w", thread_id=thread_id), limit=1)
        return page.rows[0]

    async def exists(self, thread_id: str = "t") -> bool:
        """Whether the thread has been started."""
        return bool((await self.store.page(Threads(workspace="w", thread_id=thread_id), limit=1)).rows)

    async def store_rows(self, query: Query[R]) -> Sequence[R]:
        """Everything that a query finds."""
        return (await self.store.page(query, limit=1_000_000)).rows

    async def rows(self, thread_id: str = "t") -> list[tuple[LogRow, Body]]:
        """Its log, with each payload read."""
        page = await self.store.page(
            Log(address=Address(workspace="w", thread_id=thread_id)), limit=1_000_000
        )
        return [(row, decode_body(row.payload or b"")) for row in page.rows]

    async def commits(self, thread_id: str = "t") -> list[str]:
        """One word a commit: its kind, and the kinds of its entries, as in ``record: read intent``."""
        return [
            f"{row.kind}: {' '.join(e['k'] for e in body.entries)}" if body.entries else row.kind
            for row, body in await self.rows(thread_id)
        ]

    async def entries(self, kind: str | None = None, thread_id: str = "t") -> list[dict[str, Any]]:
        """Its journal's entries in order, of one kind or all, with their JSON read."""
        found = [entry for _, body in await self.rows(thread_id) for entry in body.entries]
        return [_read(entry) for entry in found if kind in (None, entry["k"])]

    def change_memory(self, namespace: Namespace[Any], key: str, value: Any) -> None:
        """Another thread's commit of a newer version."""
        history = self.store._tables.memory["w", namespace.name, key]
        history.append(
            MemoryRow(
                workspace="w",
                namespace=namespace.name,
                key=key,
                version=len(history) + 1,
                value=namespace.codec.encode(value, "test"),
                at=self.loop.now(),
                thread_id="other",
                seq=1,
                principal="owner",
            )
        )

    async def memory(self, namespace: Namespace[Any], key: str) -> list[Any]:
        """Every version of a key, oldest first."""
        query = Memory(workspace="w", namespace=namespace.name, key=key, history=True)
        page = await self.store.page(query)
        return [namespace.codec.decode(row.value or b"", "test") for row in page.rows]

    async def until(
        self, *statuses: str, thread_id: str = "t", within: timedelta = timedelta(hours=12)
    ) -> ThreadRow:
        """Wait until the thread has one of these statuses: "ended", "parked", "waiting", "running"."""
        return await self.until_row(lambda row: row.standing.status in statuses, thread_id, within)

    async def until_row(
        self,
        judge: Callable[[ThreadRow], bool],
        thread_id: str = "t",
        within: timedelta = timedelta(hours=12),
    ) -> ThreadRow:
        """Wait until the thread's row is as it should be."""
        async with asyncio.timeout(within.total_seconds()):
            while True:
                changed = self._changed
                page = await self.store.page(Threads(workspace="w", thread_id=thread_id), limit=1)
                if page.rows and judge(page.rows[0]):
                    return page.rows[0]
                await changed.wait()

    async def until_dead(self, engine: Engine, within: timedelta = timedelta(hours=12)) -> None:
        """Wait until a fault has killed the process."""
        async with asyncio.timeout(within.total_seconds()):
            await engine.died.wait()


def _read(entry: dict[str, Any]) -> dict[str, Any]:
    return {k: msgspec.json.decode(v) if isinstance(v, bytes) else v for k, v in entry.items()}
