"""What a store raises. Driver errors never pass the seam: they arrive as one of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._records import KeyRow, MemoryRow


class StoreError(Exception):
    """Base of everything that a store raises."""


class BadStoreURL(StoreError):
    """The URL names no store that is known here, or one that cannot be opened by this process."""


def no_store(where: str) -> BadStoreURL:
    return BadStoreURL(f"there is no store {where}: name one that is there, or start a thread first")


class StoreUnreadable(StoreError):
    """What lies at the URL is not a perdure store, is damaged, or was written by a newer perdure."""


class StoreUnavailable(StoreError):
    """The store cannot be reached now; nothing was written. The same call may be made again."""


class OutcomeUnknown(StoreError):
    """The reply to a write was lost. Send the identical write again: it is a no-op where it had landed."""


class TooLarge(StoreError):
    """A name, body or batch is over a limit that holds on every store; nothing was written."""


class StaleClaim(StoreError):
    """The write carried an epoch or position that is no longer the thread's: another claim went on."""


class MemoryMoved(StoreError):
    """Memory keys that this commit read or wrote hold other versions now; nothing was written.

    ``rows`` has the newest row of each such key; a key that does not exist any more, or not yet, is
    named in ``missing`` as ``(namespace, key)``.
    """

    def __init__(self, rows: Sequence[MemoryRow], missing: Sequence[tuple[str, str]]) -> None:
        names = [f"{row.namespace}/{row.key} (now version {row.version})" for row in rows]
        names += [f"{namespace}/{key} (absent)" for namespace, key in missing]
        super().__init__(f"memory changed meanwhile: {', '.join(names)}")
        self.rows = tuple(rows)
        self.missing = tuple(missing)


class KeyTaken(StoreError):
    """An explicit effect key is already in use in this workspace; ``row`` is its record."""

    def __init__(self, row: KeyRow) -> None:
        super().__init__(f"key {row.key!r} of effect {row.effect!r} is taken by thread {row.thread_id!r}")
        self.row = row


class SignalConflict(StoreError):
    """A signal with this id was accepted before with another event or payload; the first one stands."""


class RestoreConflict(StoreError):
    """A row was to be restored where another row stands; nothing was written."""


class ThreadEnded(StoreError):
    """The thread has ended; it takes no new signals."""
