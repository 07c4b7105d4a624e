"""perdure beside other runtimes: threads of ten steps, 1 KB changed in each, full history, all durable.

    python -m benchmarks.peers [--runs 3] [--concurrency 1 100] [--peers NAME ...] [--json FILE]

A peer is measured in an environment of its own under `.venv-peers`, made on first use, with the fastest of
its settings that sync each step before the next. After a run, every step must be found on disk. Each peer
takes turns with perdure: both write files, or, where the peer's name ends with -postgres, into one PostgreSQL
server, which is started for it. Figures are medians, and the ratio is the median of the rounds' ratios. CPU
is that of all processes of a runtime, without a database server's. fsyncs are counted with strace, in a run
of their own, where it is installed, and by PostgreSQL itself.

The exit status is 1 where a peer could not be measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.stores._postgres import durable_server

from ._compare import OURS, Turns, measure_ours, rows_of
from ._install import PEERS, Failed, install
from ._server import Server

COLUMNS: dict[str, tuple[str, str]] = {
    "per_second": ("steps/s", ",.0f"),
    "ratio": ("ratio", ".2f"),
    "p50_ms": ("p50 ms", ",.1f"),
    "p99_ms": ("p99 ms", ",.1f"),
    "cpu_per_thousand": ("CPU s/1000", ".3f"),
    "bytes_per_step": ("bytes", ",.0f"),
    "syncs_per_step": ("fsyncs", ".3f"),
}
"""A figure's heading and format."""


class Comparison:
    """The rounds, and what went wrong; a peer that failed is left out of what follows."""

    def __init__(self, names: list[str], concurrencies: list[int]) -> None:
        self.failures: dict[str, str] = {}
        self.turns = [
            Turns(peer=peer, concurrency=concurrency)
            for concurrency in concurrencies
            for peer in PEERS
            if peer.name in names
        ]
        self.syncs: dict[int, float | None] = {}

    def start_server(self, stack: ExitStack) -> None:
        """For those who need one, until the stack is closed."""
        needing = [each for each in self.turns if each.peer.on_postgres]
        if needing:
            server = Server(stack.enter_context(durable_server()))
            for each in needing:
                each.server = server

    def run(self, rounds: int, *, trace: bool) -> None:
        """Install, measure and trace."""
        for peer in dict.fromkeys(each.peer for each in self.turns):
            self._attempt(peer.name, partial(install, peer))
        for _ in range(rounds):
            for each in self.turns:
                self._attempt(each.peer.name, each.take)
        if trace:
            for concurrency in dict.fromkeys(each.concurrency for each in self.turns if not each.server):
                self.syncs[concurrency] = measure_ours(concurrency, trace=True)[1]
            for each in self.turns:
                self._attempt(each.peer.name, each.count_syncs)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        if name not in self.failures:
            try:
                action()
            except (Failed, OSError, ValueError) as error:
                self.failures[name] = str(error)


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The table."""
    table = Table(
        title="ten steps a thread, 1 KB changed in each, full history, each step synced before the next"
    )
    for heading in ("at once", "store", "runtime", *(heading for heading, _ in COLUMNS.values())):
        table.add_column(heading, justify="right")
    for row in rows:
        values = ((row.get(name), form) for name, (_, form) in COLUMNS.items())
        cells = ("" if value is None else format(value, form) for value, form in values)
        table.add_row(
            str(row["concurrency"]), row["store"], row["runtime"], *cells, end_section=row is rows[-1]
        )
    console.print(table)


def better(rows: list[dict[str, Any]]) -> list[str]:
    """Each figure in which a peer is better than perdure."""
    ours = {(row["concurrency"], row["store"]): row for row in rows if row["runtime"] == OURS}
    found: list[str] = []
    for row in rows:
        mine = ours[row["concurrency"], row["store"]]
        for name, (heading, form) in COLUMNS.items():
            a, b = mine.get(name), row.get(name)
            if a is None or b is None or row is mine:
                continue
            if b > a if name == "per_second" else b < a:
                pair = f"{format(b, form)}, perdure {format(a, form)}"
                found.append(f"at {row['concurrency']}, {row['runtime']}: {heading} {pair}")
    return found


def explain(rows: list[dict[str, Any]], failures: dict[str, str], console: Console) -> None:
    """Below the table: how each peer was set, where one is better, and what failed."""
    kept: dict[str, list[str]] = {}
    for row in rows:
        if "ratio" in row:
            setting = f"{row['runtime']}: {row['versions']}; {row['settings']}"
            kept.setdefault(setting, []).append(str(row["concurrency"]))
    for setting, concurrencies in kept.items():
        console.print(f"{setting} (at {', '.join(concurrencies)})", highlight=False, soft_wrap=True)
    console.print("\nwhere a peer is better:")
    for line in better(rows) or ["nowhere"]:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    for name, error in failures.items():
        console.print(f"\n{name} FAILED: {error}", highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [peer.name for peer in PEERS]
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 100])
    parser.add_argument(
        "--peers", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--no-trace", action="store_true", help="count no fsyncs")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    comparison = Comparison(asked.peers, asked.concurrency)
    with ExitStack() as stack:
        comparison.start_server(stack)
        comparison.run(asked.runs, trace=not asked.no_trace)
    rows = rows_of(comparison.turns, comparison.syncs)
    console = Console(width=120)
    show(rows, console)
    explain(rows, comparison.failures, console)
    if asked.json is not None:
        found = {"rows": rows, "failures": comparison.failures}
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(1 if comparison.failures else 0)


if __name__ == "__main__":
    main()
