"""What a store may offer beside its seam: hints between processes that share nothing but the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class Nudging(Protocol):
    """A store through which processes can tell each other to look into it at once.

    A nudge is a hint and nothing else: one that is lost costs the time until the next poll. A store without
    these methods is as good a store; its workers on several machines poll.
    """

    async def nudge(self, said: str, /) -> None:
        """Tell whoever listens, in at most 7,000 bytes; ``StoreUnavailable`` where that cannot be sent."""
        ...

    async def listen(self, heard: Callable[[str], None], /) -> None:
        """Call ``heard`` for each nudge, also for one's own, until cancelled. It waits for a store that is
        out of reach, and for ever where nothing can be heard."""
        ...
