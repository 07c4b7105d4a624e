"""The kit's loop with simulated time, and tests that run in it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from perdure.runtime._testing_loop import EPOCH, PROCESS, Deadlock, SimLoop, at_once, simulate

__all__ = ["EPOCH", "PROCESS", "Deadlock", "SimLoop", "at_once", "simulate", "simulated"]


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run ``async def test_it(loop, ...)`` in simulated time; pytest sees what follows ``loop``."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        simulate(lambda loop: test(loop, *args, **kwargs))

    seen = inspect.signature(test)
    run.__signature__ = seen.replace(parameters=[*seen.parameters.values()][1:])  # type: ignore[attr-defined]
    return run
