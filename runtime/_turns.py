"""Turns at memory keys: threads of one process that write the same key commit one after the other.

Each would be refused for every one that is faster: with hundreds at one counter most commits would fail, and
some thread all the time. Other processes take no part, so that a commit may still be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

MemoryKey = tuple[str, str, str]
"""Workspace, namespace, key."""


class Turns:
    """Who commits to a memory key next."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[MemoryKey, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def at(self, keys: Iterable[MemoryKey]) -> AsyncGenerator[None]:
        """Wait for a turn at all of these keys, in one order for all, so that nobody waits in a ring."""
        async with AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield
