"""Repeat seeds of the simulation.

python tests/simulation/seed.py 17 [18 ...] [--trace] [--store postgres]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from _beside import reports
from _run import Report, run_seed
from servers.rooms import server


def run_seeds(seeds: Sequence[int], store: str | None, *, trace: bool) -> Iterator[Report]:
    """On the simulated store, or on a real one."""
    if store is None:
        yield from (run_seed(seed, trace=trace) for seed in seeds)
        return
    with server(store) as found, tempfile.TemporaryDirectory() as folder:
        yield from reports(found, Path(folder), seeds, trace=trace)


def main() -> int:
    """Run each seed, say what became of it, and fail where an invariant does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--trace", action="store_true", help="say all that happens")
    parser.add_argument("--store", help="a real one, by a word or URL that servers/rooms.py knows")
    asked = parser.parse_args()
    failed = False
    for report in run_seeds(asked.seeds, asked.store, trace=asked.trace):
        print(*report.trace, sep="\n")
        print(report, report.counts, f"{report.seconds:.0f} simulated seconds, digest {report.digest}")
        failed = failed or bool(report.broken)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
