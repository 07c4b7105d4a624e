"""How an attempt ends."""

from __future__ import annotations

from attrs import frozen

from perdure.machines import Fire
from perdure.stores import MemoryMoved

from ._context import Parking


@frozen
class Fired:
    fire: Fire


@frozen
class Raised:
    error: BaseException


@frozen
class MustPark:
    parking: Parking


@frozen
class Lost:
    """The claim or the lease is gone: nothing more may be written."""


@frozen
class Drained:
    """The worker leaves; calls were aborted."""


@frozen
class Preempted:
    """An event that may interrupt this state has come."""


@frozen
class Moved:
    """Memory that an intent rests on has changed: the visit runs again."""

    error: MemoryMoved


WEIGHT = (Fired, Raised, Preempted, Drained, Moved, MustPark, Lost)
End = Fired | Raised | MustPark | Lost | Drained | Preempted | Moved
"""From the lightest to the weightiest."""
