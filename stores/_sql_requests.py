"""What a store of a SQL database is asked to write, as its writer passes it on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from ._kinds import StoredRow, bytes_of_row
from ._outside import Expire, Remember
from ._records import ArtifactRow, ClaimRequest, Commit, Release, Signal, Start
from ._workers import DefinitionRow, Share, WorkerRow

BATCH_WRITES = 1000
"""Most writes in one transaction, so that none waits long for the others."""
BATCH_BYTES = 4 * 1024 * 1024
"""Bodies in one transaction; a single write may have more."""


@frozen
class Releases:
    """Several releases, given in one call."""

    releases: Sequence[Release]


@frozen
class Beat:
    """A worker's row, and what it can run."""

    worker: WorkerRow
    definitions: Sequence[DefinitionRow]


@frozen
class Restore:
    """Rows of another store, put as they are in one call."""

    rows: Sequence[StoredRow]


Write = (
    Commit
    | Start
    | Signal
    | Releases
    | ClaimRequest
    | Beat
    | Share
    | ArtifactRow
    | Remember
    | Expire
    | Restore
)

Answer = Any
"""What a write's call returns, or the exception that it raises."""

Request = tuple[Write, "asyncio.Future[Any]"]


def settle(futures: Sequence[asyncio.Future[Any]], answers: Sequence[Answer]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def weight(write: Write) -> int:
    """Bytes of the bodies in a write, as far as they can be large."""
    if isinstance(write, Commit):
        size = len(write.log.payload) + len(write.items or b"")
        if write.messages or write.memory:
            size += sum(map(len, write.messages)) + sum(len(memory.value or b"") for memory in write.memory)
        return size
    if isinstance(write, Start):
        return len(write.log.payload) + len(write.items or b"") + sum(map(len, write.messages))
    if isinstance(write, Remember):
        return len(write.value or b"")
    if isinstance(write, Restore):
        return sum(map(bytes_of_row, write.rows))
    return len(write.payload) if isinstance(write, Signal) else 0
