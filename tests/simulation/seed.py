"""Repeat seeds of the simulation: ``python tests/simulation/seed.py 17 [18 ...] [--trace]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from _run import run_seed


def main(arguments: list[str]) -> int:
    """Run each seed, say what became of it, and fail where an invariant does not hold."""
    trace = "--trace" in arguments
    failed = False
    for seed in [int(each) for each in arguments if each != "--trace"]:
        report = run_seed(seed, trace=trace)
        print(*report.trace, sep="\n")
        print(report, report.counts, f"{report.seconds:.0f} simulated seconds, digest {report.digest}")
        failed = failed or bool(report.broken)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
