"""The inner loops of a worker: one that ends or raises is started again, and is known to have done so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import anyio
from attrs import define

from ._observe import logger

RESTART_PAUSE = 1.0
"""Seconds before a loop that has died is started again."""


@define(kw_only=True)
class Loop:
    """What is known of one inner loop."""

    name: str
    task: asyncio.Task[None]
    restarts: int = 0
    """How often it was started again."""
    died_at: float | None = None
    """When it died last, on the event loop's clock."""
    error: str = ""
    """What it died of."""
    down: bool = False
    """It has died and was not yet started again."""


class Supervisor:
    """Keeps inner loops running until the worker leaves."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._draining = False
        self.loops: dict[str, Loop] = {}

    def supervise(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work``, which is to go on for as long as the worker lives, and again whenever it stops."""
        task = asyncio.get_running_loop().create_task(self._keep(name, work), name=f"perdure {name}")
        self.loops[name] = Loop(name=name, task=task)

    def known(self) -> Sequence[Loop]:
        """The loops, in the order in which they were begun; any thread may ask."""
        return list(self.loops.values())

    def runs(self, name: str) -> bool:
        """Whether a loop goes on now."""
        loop = self.loops.get(name)
        return loop is not None and not loop.down and not loop.task.done()

    def drain(self) -> None:
        """From now on a loop that returns has ended; one that dies is still started again."""
        self._draining = True

    async def ended(self, name: str) -> None:
        """Wait until one has ended."""
        await asyncio.wait([self.loops[name].task])

    async def end(self) -> None:
        """Stop whatever still runs."""
        await cancel(loop.task for loop in self.loops.values())

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
                error: BaseException | None = None
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as raised:
                if isinstance(raised, asyncio.CancelledError) and _is_cancelled():
                    raise
                error = raised
            if self._draining and error is None:
                return
            loop = self.loops[name]
            self._note(loop, error)
            await anyio.sleep(RESTART_PAUSE)
            loop.down = False

    def _note(self, loop: Loop, error: BaseException | None) -> None:
        loop.restarts += 1
        loop.down = True
        loop.died_at = asyncio.get_running_loop().time()
        loop.error = "it ended" if error is None else f"{type(error).__name__}: {error}"
        logger.error(
            "worker %s: the loop of %s died and is started again", self._worker, loop.name, exc_info=error
        )


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they have ended."""
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    if cancelled:
        await asyncio.wait(cancelled)
