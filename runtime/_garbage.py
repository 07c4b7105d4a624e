"""Python's garbage collector in a process that does nothing but run threads."""

from __future__ import annotations

import gc

OBJECTS = 10_000
"""How many more containers than before are alive when the youngest generation is looked through. Python's
700 are there several times in the steps of a hundred threads that run side by side."""


def spare_collector() -> None:
    """Look no more at what is loaded by now, and less often at what comes and goes: a step that is over
    leaves nothing that only the collector could free."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, 20, 20)
