"""Transitions on each store, in turns."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from attrs import define, field

from benchmarks.__main__ import THREADS, TRANSITIONS, run

from ._postgres import counts, cpu, drop, size

Result = dict[str, Any]

MEMORY, SQLITE, POSTGRES, FLOOR = "memory", "SQLite", "PostgreSQL", "asyncpg alone"
FIGURES = ("seconds", "cpu", "p50", "p99", "bytes", "transactions", "fsyncs", "server_cpu")


@define
class Rounds:
    """What was measured, by concurrency and store, in the order of the rounds."""

    server: str
    folder: Path
    found: dict[tuple[int, str], list[Result]] = field(factory=lambda: defaultdict(list), init=False)

    def take(self, number: int, concurrency: int) -> None:
        """Each store once."""
        threads = THREADS.get(concurrency, 10 * concurrency)
        self.found[concurrency, MEMORY].append(_transitions("memory://", threads, concurrency))
        path = self.folder / f"{concurrency}-{number}.db"
        result = _transitions(f"sqlite:///{path}", threads, concurrency)
        self.found[concurrency, SQLITE].append({**result, "bytes": path.stat().st_size})
        schema, copy = f"bench_{concurrency}_{number}", f"floor_{concurrency}_{number}"
        before = counts(self.server) | cpu(self.server)
        result = _transitions(f"{self.server}?schema={schema}", threads, concurrency)
        after = counts(self.server) | cpu(self.server)
        result |= {name: after[name] - before[name] for name in after}
        self.found[concurrency, POSTGRES].append({**result, "bytes": size(self.server, schema)})
        result = run("benchmarks.stores._floor", self.server, schema, copy, concurrency)
        if result["rows"] != threads * (1 + TRANSITIONS):  # the start is a row too
            raise SystemExit(f"{result['rows']} rows are in PostgreSQL, not {threads * (1 + TRANSITIONS)}")
        self.found[concurrency, FLOOR].append(result)
        drop(self.server, schema)
        drop(self.server, copy)

    def rows(self) -> list[Result]:
        """Medians, beside those of SQLite and of asyncpg."""
        return [self._row(*place) for place in self.found]

    def _row(self, concurrency: int, store: str) -> Result:
        results = self.found[concurrency, store]
        steps = THREADS.get(concurrency, 10 * concurrency) * TRANSITIONS
        middle = {name: median(r[name] for r in results) for name in FIGURES if name in results[0]}
        seconds, cpu = middle.pop("seconds"), middle.pop("cpu")
        row: Result = {"measure": "transitions", "at_once": concurrency, "store": store}
        row |= {"per_second": steps / seconds, "cpu_per_thousand": cpu / steps * 1000}
        row |= {f"{name}_ms": middle[name] * 1000 for name in ("p50", "p99") if name in middle}
        row |= {name: middle[name] / steps for name in ("bytes", "transactions", "fsyncs") if name in middle}
        if "server_cpu" in middle:
            row["server_cpu_per_thousand"] = middle["server_cpu"] / steps * 1000
        row["beside_sqlite"] = self._ratio(concurrency, SQLITE, store)
        if store == POSTGRES:
            row["beside_floor"] = self._ratio(concurrency, FLOOR, store)
        return row

    def _ratio(self, concurrency: int, one: str, other: str) -> float:
        pairs = zip(self.found[concurrency, one], self.found[concurrency, other], strict=True)
        ratios: list[float] = [a["seconds"] / b["seconds"] for a, b in pairs]
        return median(ratios)


def _transitions(url: str, threads: int, concurrency: int) -> Result:
    return run("benchmarks.stores._transitions", url, threads, concurrency)


def measure_stores(server: str, runs: int, concurrencies: list[int]) -> list[Result]:
    """Rows for all stores."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(server, Path(folder))
        for number in range(runs):
            for concurrency in concurrencies:
                rounds.take(number, concurrency)
    return rounds.rows()
