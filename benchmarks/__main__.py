"""perdure beside raw SQLite and a bare group-commit loop: ten transitions a thread, 1 KB of data, full
history, everything durable.

    python -m benchmarks [--runs 3] [--concurrency 1 10 100 1000] [--json FILE]
                         [--effects 1000] [--reads 200] [--large 200000] [--growing 10000] [--bytes 20000]
                         [--interrupted 10000] [--waiting 100000] [--signals 1000]
    python -m benchmarks --check

The three take turns, and the other two write the very rows that perdure wrote: raw SQLite in batches as
large as the concurrency, the loop in those that come about. Figures are medians of the runs, ratios medians
of the runs' ratios, since shared machines drift. One at a time, raw SQLite is one commit a step; a thread's
p50 stands there beside the time of ten such commits, and a second row has its commits in the loop's thread.
fsyncs are counted with strace, in a run of their own, where it is installed.

Then other workloads: an effect in every step, reads, random threads of a large store, a thread whose data
grows, and the disk that a transition takes. Then a long-lived process: threads that a killed one left,
threads that wait, and signals on their way. A size of 0 leaves one out, `--concurrency` without a number the
first table.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from attrs import frozen

from benchmarks._check import check
from benchmarks._tables import show, show_figures

THREADS = {1: 100, 10: 400, 100: 1500, 1000: 2000}
TRANSITIONS = 10
SYNCS = "fsync,fdatasync"


def run(module: str, *arguments: object, trace: Path | None = None) -> dict[str, Any]:
    """One measured process."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    if trace is not None:
        command = ["strace", "-f", "-c", "-e", f"trace={SYNCS}", "-o", str(trace), *command]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def compare(concurrency: int, runs: int, *options: str) -> dict[str, Any]:
    """Medians for one concurrency, and a store with these options in its URL."""
    threads = THREADS.get(concurrency, 10 * concurrency)
    steps = threads * TRANSITIONS
    ours: list[dict[str, Any]] = []
    raw: list[dict[str, Any]] = []
    group: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            path, copy = Path(folder, f"ours-{number}.db"), Path(folder, f"raw-{number}.db")
            ours.append(run("benchmarks._ours", path, threads, concurrency, *options))
            raw.append(run("benchmarks._raw", path, copy, concurrency))
            group.append(run("benchmarks._group", path, Path(folder, f"group-{number}.db"), concurrency))
        syncs = _syncs(Path(folder), threads, concurrency, *options) if shutil.which("strace") else None
    return {
        "measure": "transitions",
        "concurrency": concurrency,
        "options": "".join(options),
        "transitions_per_second": steps / median(r["seconds"] for r in ours),
        "raw_per_second": steps / median(r["seconds"] for r in raw),
        "ratio": _ratio(raw, "seconds", ours, "seconds"),
        "group_per_second": steps / median(r["seconds"] for r in group),
        "group_ratio": _ratio(group, "seconds", ours, "seconds"),
        "cpu_per_thousand": median(r["cpu"] for r in ours) / steps * 1000,
        "bytes_per_transition": median(r["bytes"] for r in ours) / steps,
        "fsyncs_per_transition": None if syncs is None else syncs / steps,
        "thread_p50_ms": median(r["p50"] for r in ours) * 1000,
        "thread_p99_ms": median(r["p99"] for r in ours) * 1000,
        "p50_ratio": _ratio(ours, "p50", raw, "ten_commits") if concurrency == 1 else None,
    }


def _ratio(some: list[dict[str, Any]], name: str, others: list[dict[str, Any]], other_name: str) -> float:
    """The median of the runs' ratios."""
    ratios: list[float] = [a[name] / b[other_name] for a, b in zip(some, others, strict=True)]
    return median(ratios)


def _syncs(folder: Path, threads: int, concurrency: int, *options: str) -> int:
    counted = folder / "strace"
    run("benchmarks._ours", folder / "traced.db", threads, concurrency, *options, trace=counted)
    calls = re.findall(r"^\s*\S+\s+\S+\s+\S+\s+(\d+)\s+(?:\d+\s+)?f(?:data)?sync", counted.read_text(), re.M)
    return sum(map(int, calls))


@frozen
class Measure:
    """A module that prints its figures, given a folder and a size."""

    module: str
    size: int
    """Unless another is asked for."""
    unit: str
    same_folder: bool = False
    """The runs share a folder, because what is in it takes long to make."""


OTHER_WORKLOADS = {
    "effects": Measure("_effects", 1000, "THREADS"),
    "reads": Measure("_reads", 200, "THREADS"),
    "large": Measure("_large", 200_000, "THREADS", same_folder=True),
    "growing": Measure("_growing", 10_000, "STEPS"),
    "bytes": Measure("_bytes", 20_000, "TRANSITIONS"),
}
LONG_LIVED = {
    "interrupted": Measure("_interrupted", 10_000, "THREADS"),
    "waiting": Measure("_waiting", 100_000, "THREADS"),
    "signals": Measure("_signals", 1000, "SIGNALS"),
}


def figures_of(name: str, measure: Measure, size: int, runs: int) -> dict[str, Any]:
    """Medians of one measure."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            place = Path(folder, "0" if measure.same_folder else str(number))
            place.mkdir(exist_ok=True)
            found.append(run(f"benchmarks.{measure.module}", place, size))
    return {"measure": name, "size": size, **{key: median(each[key] for each in found) for key in found[0]}}


def show_measures(
    title: str, measures: dict[str, Measure], asked: argparse.Namespace
) -> list[dict[str, Any]]:
    """Take and print those that are asked for."""
    sizes = {name: getattr(asked, name) for name in measures}
    rows = [figures_of(name, measures[name], size, asked.runs) for name, size in sizes.items() if size]
    if rows:
        show_figures(title, rows)
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 10, 100, 1000])
    for name, measure in (OTHER_WORKLOADS | LONG_LIVED).items():
        parser.add_argument(f"--{name}", type=int, default=measure.size, metavar=measure.unit)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="counts beside ceilings, and no times")
    asked = parser.parse_args()
    if asked.check:
        sys.exit(check())
    rows = [compare(concurrency, asked.runs) for concurrency in asked.concurrency]
    if 1 in asked.concurrency:
        rows.insert(asked.concurrency.index(1) + 1, compare(1, asked.runs, "?commit=inline"))
    if rows:
        show(rows)
    rows += show_measures("other workloads", OTHER_WORKLOADS, asked)
    rows += show_measures("a long-lived process", LONG_LIVED, asked)
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
