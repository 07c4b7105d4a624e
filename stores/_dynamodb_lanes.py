"""Writes that go on whatever becomes of their callers; those that concern one thing land in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Lanes:
    """Runs work that names what it concerns; work that shares a name runs one after the other."""

    def __init__(self) -> None:
        self._last: dict[Hashable, asyncio.Task[Any]] = {}
        self._running: set[asyncio.Task[Any]] = set()

    def run(self, names: Sequence[Hashable], work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Begin it behind what was begun under these names; its answer, or what it raises."""
        before = {self._last[name] for name in names if name in self._last}
        task = asyncio.create_task(_behind(before, work))
        self._running.add(task)
        self._last.update(dict.fromkeys(names, task))
        task.add_done_callback(lambda done: self._end(done, names))
        return asyncio.shield(task)

    async def close(self) -> None:
        """Wait for what was begun."""
        while self._running:
            await asyncio.wait(self._running)

    def _end(self, task: asyncio.Task[Any], names: Sequence[Hashable]) -> None:
        self._running.discard(task)
        for name in names:
            if self._last.get(name) is task:
                del self._last[name]
        if not task.cancelled():
            task.exception()  # it is told to the caller, who may be gone


async def _behind(before: set[asyncio.Task[Any]], work: Callable[[], Awaitable[T]]) -> T:
    if before:
        await asyncio.wait(before)
    return await work()
