"""Records of workers: that they live, what they can run, and their parts of limits."""

from __future__ import annotations

from attrs import frozen

from ._records import SCHEMA, Micros


@frozen(kw_only=True)
class WorkerRow:
    """One running runtime process. ``id`` is new at every process start."""

    id: str
    host: str
    """Names the machine and its boot, so that only processes of the same boot judge the lock file."""
    pid: int
    lock: str
    """Path of a file that the process holds locked while it lives."""
    lease: Micros
    """How long after ``beat`` it counts as alive."""
    started: Micros
    beat: Micros
    ended: Micros | None = None
    """When it left in good order."""
    hint: str = ""
    """Where processes of the same host send a hint that something may be runnable: ``unix:`` and the path
    of a datagram socket. Empty: nowhere, and it finds out by asking the store."""
    schema: int = SCHEMA


@frozen(kw_only=True)
class DefinitionRow:
    """What one version of a machine accepts, for those who do not have its code."""

    machine: str
    version: int
    hash: str
    """The definition's. One version may have several, where it was changed without a new number."""
    document: bytes
    """JSON."""
    at: Micros
    """The store's clock when it was first recorded."""
    schema: int = SCHEMA


@frozen(kw_only=True)
class Share:
    """A worker's wish for its part of a limit that holds over all workers."""

    worker: str
    limit: str
    at_once: int | None
    """How many slots there are in all; None: any number."""
    per_minute: int | None
    """How many starts there may be in any 60 seconds; None: any number."""
    held: int
    """How many slots the worker wants to hold in all from now on."""
    starts: int
    """How many more starts it wants to make."""


@frozen(kw_only=True)
class Shared:
    """What a worker was granted of a limit, from now on."""

    held: int
    starts: int
    again: Micros | None
    """When it is worth asking again for starts that were not granted, by the store's clock; None: all were,
    or it is slots that are wanting, which nobody can foretell."""
