"""Python's garbage collector in a process that does nothing but run threads."""

from __future__ import annotations

import gc


def spare_collector() -> None:
    """Look no more at what is loaded by now. How often it looks at what comes and goes stays as it is: the
    engine's steps leave it nothing, and users' may leave a lot."""
    gc.collect()
    gc.freeze()
