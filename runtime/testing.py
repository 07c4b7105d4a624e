"""For tests of machines: a crash sweep, a world that counts what arrives, simulated time, paths, frozen
checkpoints.

Its pytest plug-in, loaded with pytest wherever perdure is installed, has one fixture: ``world``, a new
``World`` for each test.
"""

from ._testing_frozen import assert_resumes
from ._testing_paths import assert_arrivals, assert_path, paths
from ._testing_simulated import NeverEnds, Simulated, SimulatedThread, simulated
from ._testing_sweep import Killed, Sweep, crash_sweep
from ._testing_world import HANG, Arrival, Receiver, Reply, World

__all__ = [
    "HANG",
    "Arrival",
    "Killed",
    "NeverEnds",
    "Receiver",
    "Reply",
    "Simulated",
    "SimulatedThread",
    "Sweep",
    "World",
    "assert_arrivals",
    "assert_path",
    "assert_resumes",
    "crash_sweep",
    "paths",
    "simulated",
]
