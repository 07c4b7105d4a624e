"""What the engine takes from outside: time, chance, and whether a process lives. All can be simulated."""

from __future__ import annotations

import os
from collections.abc import Callable

from attrs import field, frozen

from perdure.stores import Micros, WorkerRow, system_clock

from ._liveness import Mark, process_ended, take_mark


@frozen(kw_only=True)
class Env:
    """Clock, randomness and knowledge of processes, as arguments."""

    now: Callable[[], Micros] = field(default=system_clock)
    unsure: Callable[[], Micros] = field(default=lambda: 0)
    """By how much ``now`` may be off the store's clock. What one worker records, and another judges, or
    itself once it knows better, allows for it."""
    token: Callable[[int], bytes] = field(default=os.urandom)
    mark: Callable[[str], Mark] = field(default=take_mark)
    """Leaves a sign, for as long as this process lives, by which others can tell that it does."""
    ended: Callable[[WorkerRow], bool] = field(default=process_ended)
    """Whether it is *known* that the worker's process is gone; False where nobody can tell."""
