"""A simulated loop whose processes can be suspended, and in which nothing depends on addresses in memory."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple, Unpack

from anyio._backends._asyncio import _task_states
from harness.loop import PROCESS, Deadlock, SimLoop, at_once

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class CountedTask(asyncio.Task[Any]):
    """Hashed by its number, so that a set of tasks has the same order in every run of a seed."""

    def __init__(
        self, coro: Any, *, loop: StoppableLoop, context: contextvars.Context, **options: Any
    ) -> None:
        self.number = next(loop.numbers)
        self.process = context.get(PROCESS, None)
        super().__init__(coro, loop=loop, context=context, **options)

    def __hash__(self) -> int:
        return self.number


class _Jump(selectors.BaseSelector):
    """Moves the loop's clock to the next timer. Nothing outside of the loop ever becomes ready."""

    loop: StoppableLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing is ready and nothing is scheduled")
        self.loop.elapsed += max(timeout, 0)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Any:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)


class StoppableLoop(SimLoop):
    """Beside ``kill``, what SIGSTOP and SIGCONT do: what a stopped process would run, it runs later."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Jump()
        self._selector.loop = self
        self._held: dict[object, list[asyncio.Handle]] = {}
        self.tasks: list[CountedTask] = []
        """Every task that was begun in a process."""
        self._nothing = asyncio.Handle(lambda: None, (), self, contextvars.Context())
        self.numbers = itertools.count(1)
        self.set_task_factory(_counted)  # type: ignore[arg-type]

    def stop_process(self, process: object) -> None:
        """Suspend it: not one of its callbacks runs from here on."""
        held = self._held.setdefault(process, [])
        ready: Any = self._ready  # type: ignore[attr-defined]
        for place, handle in enumerate(ready):
            if _of(handle) is process:  # the loop counts what is ready before it runs it
                ready[place] = self._nothing
                held.append(handle)
        timers: Any = self._scheduled  # type: ignore[attr-defined]
        held += sorted(each for each in timers if _of(each) is process)
        timers[:] = [each for each in timers if _of(each) is not process]
        heapq.heapify(timers)

    def go_on(self, process: object) -> None:
        """Let it run again: what became ready meanwhile first, then the timers that are overdue."""
        timers: Any = self._scheduled  # type: ignore[attr-defined]
        for handle in self._held.pop(process, ()):
            if handle.cancelled():
                continue
            if isinstance(handle, asyncio.TimerHandle):
                heapq.heappush(timers, handle)
            else:
                self._ready.append(handle)  # type: ignore[attr-defined]

    def kill(self, process: object) -> None:
        self._held.pop(process, None)
        super().kill(process)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        within = contextvars.copy_context() if context is None else context
        process = within.get(PROCESS, None)
        handle = asyncio.Handle(callback, args, self, within)
        if process in self._dead:
            handle.cancel()
        elif process in self._held:
            self._held[process].append(handle)
        else:
            self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def bury(self) -> None:
        for task in self.tasks:
            if task.process in self._dead:
                self.remember(task.process, task)
        super().bury()
        for task in self.tasks:  # anyio keeps what a task in a scope is in until it has left that
            _task_states.pop(task, None)

    def outside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something that belongs to no process, whoever begins it."""
        return self.create_task(work, context=contextvars.Context())

    def left_of(self, process: object) -> list[CountedTask]:
        """The tasks of a process that are not over."""
        return [task for task in self.tasks if task.process is process and not task.done()]


def _of(handle: asyncio.Handle) -> object:
    return handle._context.get(PROCESS, None)  # type: ignore[attr-defined]


def _counted(loop: StoppableLoop, coro: Any, **options: Any) -> Any:
    within = options.pop("context", None)
    context = contextvars.copy_context() if within is None else within
    task = CountedTask(coro, loop=loop, context=context, **options)
    if task.process is not None:
        loop.tasks.append(task)
    return task


def simulate(main: Callable[[StoppableLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in simulated time, and close what killed processes left."""

    async def buried(loop: StoppableLoop) -> T:
        try:
            return await main(loop)
        finally:
            loop.bury()

    runner = asyncio.Runner(loop_factory=StoppableLoop)
    with at_once(), runner:
        loop = runner.get_loop()
        assert isinstance(loop, StoppableLoop)
        return runner.run(buried(loop))
