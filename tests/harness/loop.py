"""An event loop whose time is simulated: whatever sleeps is due at once, in order, and nothing really waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH = 1_800_000_000_000_000
"""Microseconds at which simulated wall clocks begin."""


class Deadlock(RuntimeError):
    """Nothing is ready and nothing is scheduled: whoever waits would wait for ever."""


class _Jumping(selectors.SelectSelector):
    """Instead of waiting, moves the loop's clock to the next timer."""

    loop: SimLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("nothing is ready and nothing is scheduled")
        self.loop.elapsed += max(timeout, 0)
        return super().select(0)


class SimLoop(asyncio.SelectorEventLoop):
    """``time()`` starts at 0 and jumps; use no threads in it."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.elapsed

    def now(self) -> int:
        """The simulated wall clock, in microseconds since the epoch."""
        return EPOCH + round(self.elapsed * 1_000_000)


def simulate(main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in simulated time."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        return runner.run(main(loop))
