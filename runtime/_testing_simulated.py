"""A runtime in simulated time, driven from a test: time moves only when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from anyio import to_thread

from perdure.artifacts import MemoryArtifacts
from perdure.machines import Of, Signal
from perdure.stores import MemoryStore, Standing

from ._client import Ended, Thread
from ._context import moment
from ._env import Env
from ._liveness import Mark
from ._look import StepSeen
from ._runtime import Runtime
from ._testing_loop import SimLoop, at_once
from ._testing_run import LONGEST_RUN, PATIENCE
from ._testing_store import FaultyStore
from ._uploads import DEFAULT_PRINCIPAL, DEFAULT_WORKSPACE

M = TypeVar("M")
D = TypeVar("D")
R = TypeVar("R")


class NeverEnds(AssertionError):
    """A thread in simulated time waits for what only the test can send, or goes on for ever."""


class Simulated:
    """A runtime whose clock stands still until ``advance`` moves it: a day passes in no time.

    Whatever a thread does goes on while one of these methods is awaited, and waits otherwise.
    """

    def __init__(self, runtime: Runtime[Any]) -> None:
        self._loop = SimLoop()
        now = self._loop.now
        self._runtime: Runtime[Any] = Runtime(
            machines=[plan.machine for plan in runtime.definitions.values()],
            deps=runtime.deps,
            store=FaultyStore(MemoryStore(clock=now), self._tell),
            artifacts=MemoryArtifacts(clock=now),
            env=Env(now=now, mark=lambda _: Mark("simulated", "")),
            lease=PATIENCE,
            poll=PATIENCE,
            schedules=runtime.schedules,
        )
        self._changed = asyncio.Event()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, thread: Thread[Any, Any], rests: Callable[[Standing], bool]) -> None:
        """Wait, inside the simulation, until a thread has ended, is parked, or rests while it waits."""
        while True:
            await self._loop.quiet()
            changed, standing = self._changed, (await thread.row()).standing
            waits = standing.status == "waiting" and rests(standing)
            if waits or standing.status in ("ended", "parked"):
                return
            await changed.wait()

    @property
    def now(self) -> datetime:
        """The simulated time, in UTC."""
        return moment(self._loop.now())

    async def run(self, work: Callable[[Runtime[Any]], Awaitable[R]], /) -> R:
        """Await something of the runtime in simulated time, which jumps to whatever it waits for."""

        async def awaited() -> R:
            value = await work(self._runtime)
            await self._loop.quiet()
            return value

        return await to_thread.run_sync(lambda: self._drive(awaited))

    def _drive(self, work: Callable[[], Any]) -> Any:
        with at_once():
            return self._loop.run_until_complete(work())

    async def start(
        self,
        machine: Of[M, D],
        data: D,
        /,
        *,
        thread_id: str = "thread",
        workspace: str = DEFAULT_WORKSPACE,
        principal: str = DEFAULT_PRINCIPAL,
        session: str | None = None,
    ) -> SimulatedThread[M, D]:
        """Start a thread; see ``Client.start``. It runs until it needs time to pass."""

        async def started(runtime: Runtime[Any]) -> Thread[M, D]:
            return await runtime.start(
                machine, data, thread_id=thread_id, workspace=workspace, principal=principal, session=session
            )

        return SimulatedThread(self, await self.run(started))

    async def advance(self, by: timedelta, /) -> None:
        """Let time pass: what is due meanwhile happens, in order. ``ValueError`` for a negative time."""
        if by < timedelta(0):
            raise ValueError(f"time goes on, and not by {by}")
        await self.run(lambda _: asyncio.sleep(by.total_seconds()))

    async def close(self) -> None:
        """Leave the runtime in good order, and close the loop."""
        await self.run(lambda runtime: runtime.__aexit__(None, None, None))
        self._loop.close()


class SimulatedThread(Generic[M, D]):
    """A handle on a thread in simulated time: a ``Thread`` whose methods let time go on while they wait."""

    def __init__(self, simulated: Simulated, thread: Thread[M, D]) -> None:
        self._simulated = simulated
        self.thread = thread

    @property
    def thread_id(self) -> str:
        """Its id."""
        return self.thread.thread_id

    async def _run(self, work: Callable[[], Awaitable[R]]) -> R:
        return await self._simulated.run(lambda _: work())

    async def signal(self, signal: Signal[M, Any], payload: Any = None, /, *, id: str) -> None:
        """See ``Thread.signal``."""
        await self._run(lambda: self.thread.signal(signal, payload, id=id))

    async def cancel(self, *, reason: str = "", by: str = "operator") -> None:
        """See ``Thread.cancel``."""
        await self._run(lambda: self.thread.cancel(reason=reason, by=by))

    async def settled(self) -> str:
        """See ``Thread.settled``: what is due only later stays where it is."""

        async def rests() -> str:
            await self._simulated.until(self.thread, lambda _: True)
            return (await self.thread.row()).standing.status

        return await self._run(rests)

    async def result(self) -> Ended[D]:
        """See ``Thread.result``. Time jumps to whatever the thread waits for; ``NeverEnds`` where it waits
        for a signal alone, or goes on for more than a year."""
        return await self._run(self._ended)

    async def _ended(self) -> Ended[D]:
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_RUN.total_seconds()):
                await self._simulated.until(self.thread, lambda standing: standing.wake is None)
                if (await self.thread.row()).standing.status != "waiting":
                    return await self.thread.result()
        raise NeverEnds(f"thread {self.thread_id!r} does not end by itself: {await self.thread.why()}")

    async def state(self) -> str:
        """The state it is in."""
        return await self._run(self.thread.state)

    async def data(self) -> D:
        """Its data as of its newest checkpoint."""
        return await self._run(self.thread.data)

    async def history(self) -> list[StepSeen]:
        """Its steps so far, from the journal."""
        return await self._run(self.thread.history)

    async def why(self) -> str:
        """Why it is where it is, and what moves it on."""
        return await self._run(self.thread.why)


@asynccontextmanager
async def simulated(runtime: Runtime[Any], /) -> AsyncGenerator[Simulated]:
    """A runtime's machines and dependencies in simulated time, with a store and artifacts in memory.

    The runtime itself is not entered, and nothing is written to its store.
    """
    made = Simulated(runtime)
    await made.run(lambda running: running.__aenter__())
    try:
        yield made
    finally:
        await made.close()
