"""perdure beside raw SQLite and a bare group-commit loop: ten transitions a thread, 1 KB of data, full
history, everything durable.

    python -m benchmarks [--runs 3] [--concurrency 1 10 100 1000] [--json FILE]
                         [--interrupted 10000] [--waiting 100000] [--signals 1000]

The three take turns, and the other two write the very rows that perdure wrote: raw SQLite in batches as
large as the concurrency, the loop in those that come about. Figures are medians of the runs, ratios medians
of the runs' ratios, since shared machines drift. One at a time, raw SQLite is one commit a step; a thread's
p50 stands there beside the time of ten such commits. fsyncs are counted with strace, in a run of their own,
where it is installed.

Then a long-lived process: threads that a killed one left, threads that wait, and signals on their way; a size
of 0 leaves one out.
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

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

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


def compare(concurrency: int, runs: int) -> dict[str, Any]:
    """Medians for one concurrency."""
    threads = THREADS.get(concurrency, 10 * concurrency)
    steps = threads * TRANSITIONS
    ours: list[dict[str, Any]] = []
    raw: list[dict[str, Any]] = []
    group: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            path, copy = Path(folder, f"ours-{number}.db"), Path(folder, f"raw-{number}.db")
            ours.append(run("benchmarks._ours", path, threads, concurrency))
            raw.append(run("benchmarks._raw", path, copy, concurrency))
            group.append(run("benchmarks._group", path, Path(folder, f"group-{number}.db"), concurrency))
        syncs = _syncs(Path(folder), threads, concurrency) if shutil.which("strace") else None
    return {
        "measure": "transitions",
        "concurrency": concurrency,
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


def _syncs(folder: Path, threads: int, concurrency: int) -> int:
    counted = folder / "strace"
    run("benchmarks._ours", folder / "traced.db", threads, concurrency, trace=counted)
    calls = re.findall(r"^\s*\S+\s+\S+\s+\S+\s+(\d+)\s+(?:\d+\s+)?f(?:data)?sync", counted.read_text(), re.M)
    return sum(map(int, calls))


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    title = "ten transitions a thread, 1 KB changed in each, full history, synchronous=FULL"
    table = Table(title=title, box=SIMPLE_HEAD)
    names = (
        "at once",
        "steps/s",
        "raw/s",
        "ratio",
        "group/s",
        "ratio",
        "CPU s/1000",
        "bytes",
        "fsyncs",
        "p50",
        "p99",
        "p50/raw",
    )
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        syncs = row["fsyncs_per_transition"]
        table.add_row(
            f"{row['concurrency']}",
            f"{row['transitions_per_second']:,.0f}",
            f"{row['raw_per_second']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['group_per_second']:,.0f}",
            f"{row['group_ratio']:.2f}",
            f"{row['cpu_per_thousand']:.3f}",
            f"{row['bytes_per_transition']:,.0f}",
            "no strace" if syncs is None else f"{syncs:.3f}",
            f"{row['thread_p50_ms']:.1f} ms",
            f"{row['thread_p99_ms']:.1f} ms",
            "" if row["p50_ratio"] is None else f"{row['p50_ratio']:.2f}",
        )
    Console(width=120).print(table)


LONG_LIVED = {"interrupted": "_interrupted", "waiting": "_waiting", "signals": "_signals"}
UNITS = {"memory": (1e-6, "MB"), "cpu": (100, "% of a core"), "cpu_empty": (100, "% of a core")}
"""Of a figure that is not in seconds: what to multiply it with, and what it is then."""


def long_lived(measure: str, size: int, runs: int) -> dict[str, Any]:
    """Medians of one measure of a long-lived process."""
    found: list[dict[str, Any]] = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append(run(f"benchmarks.{LONG_LIVED[measure]}", folder, size))
    medians = {name: median(each[name] for each in found) for name in found[0]}
    return {"measure": measure, "size": size, **medians}


def show_long_lived(rows: list[dict[str, Any]]) -> None:
    """The table."""
    table = Table(title="a long-lived process")
    for name in ("measure", "size", "figure", "value"):
        table.add_column(name, justify="right")
    for row in rows:
        for name, value in row.items():
            if name not in ("measure", "size"):
                factor, unit = UNITS.get(name, (1000, "ms"))
                table.add_row(row["measure"], f"{row['size']:,}", name, f"{value * factor:,.2f} {unit}")
    Console(width=120).print(table)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--interrupted", type=int, default=10_000, metavar="THREADS")
    parser.add_argument("--waiting", type=int, default=100_000, metavar="THREADS")
    parser.add_argument("--signals", type=int, default=1000, metavar="SIGNALS")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = [compare(concurrency, asked.runs) for concurrency in asked.concurrency]
    show(rows)
    sizes = {measure: getattr(asked, measure) for measure in LONG_LIVED}
    others = [long_lived(measure, size, asked.runs) for measure, size in sizes.items() if size]
    show_long_lived(others)
    rows += others
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
