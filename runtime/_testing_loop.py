"""An event loop whose time is simulated: whatever sleeps is due at once, in order, and nothing really waits.

A process is simulated too: whatever is begun in a context that carries one belongs to it, and ``kill`` stops
all of that where it is. Like SIGKILL it runs no ``except`` and no ``finally``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar
from unittest import mock

from anyio._backends._asyncio import AsyncIOBackend
from typing_extensions import TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_800_000_000_000_000
"""Microseconds at which simulated wall clocks begin."""

TURNS = 100_000
"""Turns of the loop after which whoever is still busy counts as busy for ever."""

BUSY = 500_000
"""Turns without time passing or anything written after which a simulation is given up."""

PROCESS: ContextVar[object] = ContextVar("process")
"""The simulated process that code runs in; unset for the test itself and for the world outside."""


class Deadlock(RuntimeError):
    """Nothing is ready and nothing is scheduled: whoever waits would wait for ever."""


async def for_ever() -> Any:
    """A reply that never comes."""
    await asyncio.get_running_loop().create_future()


class Busy(RuntimeError):
    """Something polls without ever waiting, so that simulated time stands still."""


class _Jumping(selectors.SelectSelector):
    """Instead of waiting, moves the loop's clock to the next timer."""

    loop: SimLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("nothing is ready and nothing is scheduled")
        if timeout > 0:
            self.loop.moved()
        self.loop.turn()
        self.loop.elapsed += max(timeout, 0)
        return super().select(0)


class SimLoop(asyncio.SelectorEventLoop):
    """``time()`` starts at 0 and jumps; what would run in a thread runs at once."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self._turns = 0
        self._dead: set[object] = set()
        self._of: dict[object, list[asyncio.Task[Any]]] = {}
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-6  # asyncio adds it to a time to see what is due: less is lost in months
        self.set_task_factory(_remember)

    def time(self) -> float:
        return self.elapsed

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override] # pyright: ignore
        """At once: a thread would run on in real time."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def now(self) -> int:
        """The simulated wall clock, in microseconds since the epoch."""
        return EPOCH + round(self.elapsed * 1_000_000)

    def moved(self) -> None:
        """Time has passed, or something was written."""
        self._turns = 0

    def turn(self) -> None:
        """Count one turn of the loop; ``Busy`` where too many came to nothing."""
        self._turns += 1
        if self._turns > BUSY:
            self._turns = 0  # what is cancelled now has turns to end in
            raise Busy(
                f"{BUSY:,} turns of the loop, and no time has passed: a handler or call polls without "
                "waiting, as in a loop around asyncio.sleep(0); let it await what it waits for"
            )

    async def quiet(self) -> None:
        """Wait until nothing can go on without time passing."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if not self._ready:  # type: ignore[attr-defined] # pyright: ignore
                return

    # --- processes --------------------------------------------------------------------------------

    def remember(self, process: object, task: asyncio.Task[Any]) -> None:
        """A task was begun in a process."""
        tasks = self._of.setdefault(process, [])
        tasks[:] = [each for each in tasks if not each.done()]
        tasks.append(task)

    def kill(self, process: object) -> None:
        """Nothing of the process runs from here on, but the caller's own code up to its next await."""
        self._dead.add(process)
        handles: list[Any] = [*self._ready, *self._scheduled]  # type: ignore[attr-defined]
        for handle in handles:
            if handle._context.get(PROCESS, None) is process:
                handle.cancel()

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        within = copy_context() if context is None else context
        if self._dead and within.get(PROCESS, None) in self._dead:
            handle = asyncio.Handle(callback, args, self, within)
            handle.cancel()
            return handle
        return super().call_soon(callback, *args, context=within)

    def bury(self) -> None:
        """Close what killed processes left standing, so that the loop can end; the dead say nothing."""
        log = logging.getLogger("perdure")
        before, log.disabled = log.disabled, True
        try:
            for process in self._dead:
                for task in self._of.get(process, ()):
                    if not task.done():
                        _close(task)
        finally:
            log.disabled = before


def _close(task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    with contextlib.suppress(RuntimeError):  # it awaits in a finally: dead all the same
        if coroutine is not None:  # pyright: ignore[reportUnnecessaryComparison]
            coroutine.close()
    asyncio.tasks._unregister_task(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def _remember(loop: Any, coro: Any, **options: Any) -> Any:
    task = asyncio.Task(coro, loop=loop, **options)
    context = options.get("context")
    process = PROCESS.get(None) if context is None else context.get(PROCESS, None)
    if process is not None:
        loop.remember(process, task)
    return task


_ONE_AT_A_TIME = threading.RLock()
"""Simulations in several threads would undo each other's patch."""


@contextlib.contextmanager
def at_once() -> Generator[None]:
    """What code in a simulated loop gives to anyio's threads runs at once; other loops have their threads."""
    with _ONE_AT_A_TIME, mock.patch.object(AsyncIOBackend, "run_sync_in_worker_thread", _runner()):
        yield


def _runner() -> Callable[..., Any]:
    real = AsyncIOBackend.run_sync_in_worker_thread

    async def run(fn: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> Any:
        if isinstance(asyncio.get_running_loop(), SimLoop):
            return fn(*args)
        return await real(fn, args, **options)

    return run


def simulate(main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in simulated time, and close what killed processes left."""

    async def buried(loop: SimLoop) -> T:
        try:
            return await main(loop)
        finally:
            loop.bury()

    with at_once(), asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        return runner.run(buried(loop))
