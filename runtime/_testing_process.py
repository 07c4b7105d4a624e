"""A simulated process with one runtime in it: it can be killed anywhere, and nothing of it runs on."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from ._runtime import Runtime
from ._testing_loop import PROCESS, SimLoop

R = TypeVar("R")
X = TypeVar("X")


class Process(Generic[X]):
    """One process of a simulation."""

    def __init__(self, loop: SimLoop, gone: set[str]) -> None:
        self.loop = loop
        self.died = asyncio.Event()
        self.runtime: Runtime[X]
        self._gone = gone
        """Ids of workers that are known to be dead."""
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, self)

    @property
    def id(self) -> str:
        """The worker's id."""
        worker = self.runtime._running._worker  # pyright: ignore[reportPrivateUsage]
        assert worker is not None
        return worker.worker

    def call(self, work: Callable[[], R]) -> R:
        """Call something as this process."""
        return self._context.run(work)

    async def inside(self, work: Callable[[], Awaitable[R]]) -> R:
        """Await something in this process; it dies with it."""

        async def run() -> R:
            return await work()

        task = self.loop.create_task(run(), context=self._context)
        return await asyncio.shield(task)

    async def unless_killed(self, work: Awaitable[Any]) -> None:
        """Wait for it, or for the death of this process."""
        task, death = asyncio.ensure_future(work), asyncio.ensure_future(self.died.wait())
        await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if task.done():
            task.result()
        else:
            task.cancel()

    async def end(self) -> None:
        """Leave in good order."""
        await self.inside(lambda: self.runtime.__aexit__(None, None, None))

    def kill(self, *, known: bool = True) -> None:
        """SIGKILL. ``known``: others can tell at once that the process is gone, and not only by its lease."""
        self.died.set()
        if known:
            self._gone.add(self.id)
        self.loop.kill(self)
