"""Whether the event loop turns, as a thread beside it sees it, and what keeps it from turning."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import anyio

from ._observe import logger

TICK = 0.25
"""Seconds between ticks of the loop, and between looks for them."""
WARN_AFTER = 1.0
"""Seconds without a tick after which it is said."""

_OTHERS = (
    str(Path(__file__).parent.parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)
"""Where code lies that the user did not write."""


class LoopWatch:
    """Warns where the event loop is blocked, and calls ``on_stall`` once it was for ``limit`` seconds.

    Time in which the whole process was suspended does not count, since nothing of it was blocked.
    """

    def __init__(
        self,
        worker: str,
        limit: float,
        describe: Callable[[asyncio.Task[Any] | None], str],
        on_stall: Callable[[str], None] | None,
    ) -> None:
        self._worker = worker
        self._limit = limit
        self._describe = describe
        self._on_stall = on_stall
        self._ticks = 0
        self._seen = 0
        self._blocked = 0.0
        self._said = ""
        self._told_stall = False
        self._leaving = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._of_loop = 0

    def begin(self) -> None:
        """Watch the running loop."""
        self._loop, self._of_loop = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(target=self._look_on, name="perdure watch", daemon=True).start()

    async def tick(self) -> None:
        """What the loop does for as long as it turns."""
        while True:
            self._ticks += 1
            await anyio.sleep(TICK)

    def end(self) -> None:
        """Watch no more."""
        self._leaving.set()

    @property
    def blocked(self) -> float:
        """For how many seconds the loop has not turned; 0: it turns."""
        return self._blocked if self._blocked > WARN_AFTER else 0.0

    def stalled(self) -> bool:
        """Whether that is so long that others are to take this worker's threads."""
        return self._blocked > self._limit

    @property
    def said(self) -> str:
        """What blocks the loop, or did so last."""
        return self._said

    def _look_on(self) -> None:
        before = time.monotonic()
        while not self._leaving.wait(TICK):
            now = time.monotonic()
            self.look(now - before)
            before = now

    def look(self, elapsed: float) -> None:
        """Once a ``TICK``; ``elapsed``: seconds since the last time."""
        ticks = self._ticks
        if ticks != self._seen:
            self._seen = ticks
            if self._blocked > WARN_AFTER:
                logger.warning(
                    "worker %s: the event loop turns again after %.1f s; it was blocked by %s",
                    self._worker,
                    self._blocked,
                    self._said,
                )
            self._blocked, self._told_stall = 0.0, False
            return
        warned = self._blocked > WARN_AFTER
        self._blocked += min(elapsed, 2 * TICK)
        if self._blocked > WARN_AFTER and not warned:
            self._said = self._what_blocks()
            logger.warning(
                "worker %s: the event loop is blocked by %s; nothing else of this worker moves meanwhile: "
                "put what blocks into `await anyio.to_thread.run_sync(...)`",
                self._worker,
                self._said,
            )
        if self.stalled() and not self._told_stall:
            self._told_stall = True
            self._stall()

    def _stall(self) -> None:
        self._said = self._what_blocks()
        logger.error(
            "worker %s: the event loop has not turned for %.0f s, and its heartbeat stops: blocked by %s",
            self._worker,
            self._blocked,
            self._said,
        )
        if self._on_stall is not None:
            self._on_stall(self._said)

    def _what_blocks(self) -> str:
        task = None
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task(self._loop)
        at = _place(sys._current_frames().get(self._of_loop))  # pyright: ignore[reportPrivateUsage]
        return f"{self._describe(task)}{at}"


def _place(innermost: FrameType | None) -> str:
    """The innermost line of the user's own code."""
    frame = innermost
    while frame is not None and frame.f_code.co_filename.startswith(_OTHERS):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return ""
    code = frame.f_code
    return f", at {code.co_filename}:{frame.f_lineno} in {code.co_name}"
