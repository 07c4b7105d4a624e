"""Python's garbage collector in a process that does nothing but run threads."""

from __future__ import annotations

import gc
from typing import Any

MOST = 50_000
"""The collector looks at new objects at the latest when there are so many more of them than before."""
SHARE = 4
"""It looks less often while it finds less than this part of what Python lets wait, more often while it finds
more."""


def spare_collector() -> None:
    """Look no more at what is loaded by now, and no more often than finds something at what comes and goes.

    A step leaves the collector nothing, and yet it looks through what a step has made, three times, whenever
    700 objects have come: with a thousand threads at once that was more than half of a process's work. So it
    looks half as often each time that it finds next to nothing, and twice as often, down to Python's own
    pace, once the users' handlers leave something. Of garbage that comes evenly no more waits than at
    Python's own pace; where handlers begin to leave some, up to ``MOST`` objects wait, once.
    """
    gc.collect()
    gc.freeze()
    least = gc.get_threshold()[0]

    def adapt(phase: str, info: dict[str, Any]) -> None:
        pace, *older = gc.get_threshold()
        if phase == "stop" and pace:
            gc.set_threshold(next_pace(pace, info["collected"], least), *older)

    if least:
        gc.callbacks.append(adapt)


def next_pace(pace: int, found: int, least: int) -> int:
    """After how many new objects to look again, where the look before, after ``pace``, found so many to free.

    Where garbage comes evenly, less than ``least`` waits, which is what Python lets wait.
    """
    if found * SHARE < least:
        return min(pace * 2, max(MOST, least))
    return max(pace // 2, least)
