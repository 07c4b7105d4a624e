"""Claims and artifacts, each in turns."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

from benchmarks.__main__ import run

from ._postgres import drop
from ._rounds import POSTGRES, SQLITE, Result


def measure_claims(server: str, runs: int, sizes: list[int], ways: list[str]) -> list[Result]:
    """Milliseconds of a claim, for each way in which threads can be claimed and so many of them."""
    return [_claims(server, runs, way, size) for way in ways for size in sizes]


def _claims(server: str, runs: int, way: str, size: int) -> Result:
    found: dict[str, list[Result]] = {SQLITE: [], POSTGRES: []}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/claims.db"
            found[SQLITE].append(run("benchmarks.stores._claims", url, way, size))
        found[POSTGRES].append(run("benchmarks.stores._claims", f"{server}?schema=claims", way, size))
        drop(server, "claims")
    row: Result = {"measure": "claims", "threads": way, "so_many": f"{size:,}"}
    for store, results in found.items():
        row |= {f"{store} {name}": median(r[name] for r in results) * 1000 for name in results[0]}
    return row


def measure_artifacts(bucket: str, runs: int) -> list[Result]:
    """Milliseconds, in files and in S3."""
    found: dict[str, list[Result]] = {"files": [], "S3": []}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            found["files"].append(run("benchmarks.stores._artifacts", f"file://{Path(folder).absolute()}"))
        found["S3"].append(run("benchmarks.stores._artifacts", bucket))
    return [
        {"measure": "artifacts", "backend": name}
        | {figure: median(r[figure] for r in results) * 1000 for figure in results[0]}
        for name, results in found.items()
    ]
