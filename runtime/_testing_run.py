"""One run of one thread in simulated time, undisturbed or killed at one boundary and resumed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any, Literal

from attrs import field, frozen

from perdure.artifacts import MemoryArtifacts
from perdure.machines import Definition, Machine, Signal
from perdure.stores import Address, Inbox, Log, LogRow, Memory, MemoryStore, Standing, ThreadRow

from ._client import Client, Thread
from ._env import Env
from ._journal import decode_body, holds
from ._liveness import Mark
from ._look import find_thread, rows_of
from ._runtime import Runtime
from ._testing_artifacts import WatchedArtifacts
from ._testing_loop import SimLoop, for_ever
from ._testing_process import Process
from ._testing_store import FaultyStore
from ._testing_words import Words
from ._testing_world import World, WorldLog

PATIENCE = timedelta(days=1)
"""Simulated lease and poll: who looks up seldom makes a month's wait cheap, and what is due wakes it."""
AFTERWARDS = 3600.0
"""Simulated seconds that a run goes on after its end, so that late requests arrive."""
LONGEST_RUN = timedelta(days=400)
"""Simulated time after which a run counts as stuck."""
ADDRESS = Address(workspace="default", thread_id="swept")

Sent = tuple[Signal[Any, Any], Any]
"""A signal and its payload."""
Step = tuple[str, str, str]
"""Event, source, destination."""


@frozen(kw_only=True)
class Asked:
    """What each run of a sweep does."""

    plan: Definition
    machines: Sequence[type[Machine[Any, Any]]]
    data: Any
    deps: Any
    signals: Sequence[Sent]
    uploads: Sequence[bytes]
    seed: int

    def made_deps(self) -> Any:
        """The dependencies of one process: made anew where a function or class makes them."""
        makes = inspect.isroutine(self.deps) or inspect.isclass(self.deps)
        return self.deps() if makes else self.deps


@frozen(kw_only=True)
class Outcome:
    """What came of a run."""

    standing: Standing
    stuck: bool
    path: Sequence[Step]
    data: Mapping[str, Any]
    facts: Mapping[str, bytes | None]
    """Memory: what the newest version of each ``namespace/key`` holds."""
    broken: str | None
    """Where the journal is damaged."""
    worlds: Mapping[World, WorldLog]
    words: Words
    unsent: Sequence[Signal[Any, Any]]
    boundaries: Sequence[str] = field(factory=tuple)
    """Each one that the first process came to, in order."""


class SweptProcess(Process[Any]):
    """One process of a run: its boundaries are the run's while nothing has been killed."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.loop, run.gone)
        self._run = run
        self.runtime = Runtime(
            machines=run.asked.machines,
            deps=run.asked.made_deps(),
            store=FaultyStore(run.store, run.tell, at=self._at_write),
            artifacts=WatchedArtifacts(run.artifacts, self._at_artifact),
            env=run.env,
            lease=PATIENCE,
            poll=PATIENCE,
        )

    def log_of(self, world: World) -> WorldLog:
        """See ``Visitor``."""
        return self._run.log_of(world)

    async def at(self, words: str) -> None:
        """See ``Visitor``."""
        await self._run.at(self, self._run.words.named(words))

    async def _at_write(self, side: Literal["before", "after"], method: str, write: Any, answer: Any) -> None:
        words = self._run.words.write(side, method, write, answer)
        if words is not None:
            await self._run.at(self, words)

    async def _at_artifact(self, words: str) -> None:
        await self._run.at(self, words)


class Run:
    """What outlives the processes of one run, and the run."""

    def __init__(self, loop: SimLoop, asked: Asked, kill_at: int | None) -> None:
        self.loop = loop
        self.asked = asked
        self.store = MemoryStore(clock=loop.now)
        self.artifacts = MemoryArtifacts(clock=loop.now)
        self.words = Words()
        self.gone: set[str] = set()
        self.env = Env(
            now=loop.now,
            token=Random(asked.seed).randbytes,
            mark=lambda _: Mark("simulated", ""),
            ended=lambda row: row.ended is not None or row.id in self.gone,
        )
        self._kill_at = kill_at
        self._killed = False
        self._boundaries: list[str] = []
        self._worlds: dict[World, WorldLog] = {}
        self._left = list(asked.signals)
        self._changed = asyncio.Event()
        self._process: SweptProcess | None = None

    # --- what its processes ask ----------------------------------------------------------------------

    def log_of(self, world: World) -> WorldLog:
        """What became of a world in this run."""
        if world not in self._worlds:
            self._worlds[world] = world.untouched()
        return self._worlds[world]

    def tell(self) -> None:
        """Something was written."""
        self.loop.moved()
        self._changed.set()
        self._changed = asyncio.Event()

    async def at(self, process: SweptProcess, words: str) -> None:
        """A process has come to a boundary."""
        if self._killed or process.died.is_set():
            return
        self._boundaries.append(words)
        if len(self._boundaries) - 1 == self._kill_at:
            self._killed = True
            process.kill()
            await for_ever()

    # --- the run -------------------------------------------------------------------------------------

    async def go(self) -> Outcome:
        """From the start to where nothing moves any more, or for ``LONGEST_RUN``."""
        known = {self.asked.plan.name: self.asked.plan}
        client = Client(self.store, self.artifacts, self.env, known, None)
        for content in self.asked.uploads:
            await client.artifacts.put(content, media_type="application/octet-stream")
        machine, data = self.asked.plan.machine, self.asked.data
        thread = await client.start(machine, data, thread_id=ADDRESS.thread_id, workspace=ADDRESS.workspace)
        stuck = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_RUN.total_seconds()):
                await self._until_it_rests(client)
                stuck = False
        if self._process is not None:
            self._process.kill()
        await asyncio.sleep(AFTERWARDS)
        return await self._outcome(thread, stuck)

    async def _until_it_rests(self, client: Client) -> None:
        process = await self._begin()
        while True:
            if process.died.is_set():
                process = await self._begin()
            changed, row = self._changed, await find_thread(self.store, ADDRESS)
            standing = row.standing
            if standing.status in ("ended", "parked"):
                break
            if await self._sent_next(client, row, process):
                continue
            if standing.status == "waiting" and standing.wake is None:
                break
            await _first(changed, process.died)

    async def _begin(self) -> SweptProcess:
        process = self._process = SweptProcess(self)
        await process.unless_killed(process.inside(process.runtime.__aenter__))
        await self.loop.quiet()
        return process

    async def _sent_next(self, client: Client, row: ThreadRow, process: SweptProcess) -> bool:
        """Send the next signal, where the thread waits for it or can be interrupted by it."""
        state = self.asked.plan.states[row.standing.state]
        if not (self._left and self._left[0][0].name in state.signals):
            return False
        if not state.waiting:
            await self.loop.quiet()
            if not state.interruptible or (await find_thread(self.store, ADDRESS)).n != row.n:
                return False
        signal, payload = self._left.pop(0)
        number = len(self.asked.signals) - len(self._left)
        await client.send(self.asked.plan, ADDRESS, signal.name, payload, f"signal-{number}")
        worker = process.runtime._running._worker  # pyright: ignore[reportPrivateUsage]
        if worker is not None and not process.died.is_set():
            [message] = (await self.store.page(Inbox(address=ADDRESS, after=row.inbox))).rows
            process.call(lambda: worker.offer(ADDRESS, message))
        await self.loop.quiet()
        return True

    # --- what came of it -----------------------------------------------------------------------------

    async def _outcome(self, thread: Thread[Any, Any], stuck: bool) -> Outcome:
        row = await find_thread(self.store, ADDRESS)
        rows = [each async for each in rows_of(self.store, Log(address=ADDRESS))]
        memory = rows_of(self.store, Memory(workspace=ADDRESS.workspace))
        facts = {f"{fact.namespace}/{fact.key}": fact.value async for fact in memory}
        return Outcome(
            standing=row.standing,
            stuck=stuck,
            path=path_of(rows),
            data=await thread.stored_data(),
            facts=facts,
            broken=broken_link(row.incarnation, rows),
            worlds=dict(self._worlds),
            words=self.words,
            unsent=[signal for signal, _ in self._left],
            boundaries=tuple(self._boundaries),
        )


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def path_of(rows: Sequence[LogRow]) -> Sequence[Step]:
    """A thread's transitions, from its journal."""
    bodies = [decode_body(row.payload) for row in rows if row.kind == "transition"]
    return [(body.event or "", body.source or "", body.dest or "") for body in bodies]


def broken_link(incarnation: bytes, rows: Sequence[LogRow]) -> str | None:
    """The first row of a journal that does not follow the one before it, in chain, position or seq."""
    previous, seq = incarnation, 0
    for n, row in enumerate(rows):
        seq += row.kind == "transition"
        if (row.n, row.seq) != (n, seq):
            return f"row {row.n} (seq {row.seq}) stands where row {n} (seq {seq}) should"
        if not holds(previous, row):
            return f"row {n} (seq {seq}) does not continue the chain"
        previous = row.head
    return None
