"""Rounds in which a peer and perdure take turns, and their medians."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ._install import FEWEST, Failed, Peer, run
from ._server import Server
from ._workload import STEPS

PER_SLOT = 15
"""Threads of perdure's for each that runs at a time."""
SECONDS = 180.0
"""What one measured process may take."""
SYNCS = "fsync,fdatasync"
OURS = "perdure"

Result = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Turns:
    """What the rounds of one peer at one concurrency gave, ours beside the peer's."""

    peer: Peer
    concurrency: int
    ours: list[Result] = field(default_factory=list[Result])
    theirs: list[Result] = field(default_factory=list[Result])
    syncs: float | None = None
    """A step."""
    server: Server | None = None
    """Where both keep their steps, where that is not a file."""

    @property
    def store(self) -> str:
        """Of both."""
        return "PostgreSQL" if self.peer.on_postgres else ""

    def take(self) -> None:
        """One round: ours, then the peer's."""
        if self.server is not None:
            self.ours.append(_on_server(self.server, None, self.concurrency))
            self.theirs.append(_on_server(self.server, self.peer, self.concurrency))
            return
        self.ours.append(measure_ours(self.concurrency)[0])
        self.theirs.append(measure_peer(self.peer, self.concurrency)[0])

    def count_syncs(self) -> None:
        """One more run of the peer's, slow, since it is traced; a server counts them itself."""
        if self.server is None and shutil.which("strace"):
            self.syncs = measure_peer(self.peer, self.concurrency, trace=True)[1]


def threads_of_ours(concurrency: int) -> int:
    return max(FEWEST, PER_SLOT * concurrency)


def measure_ours(concurrency: int, *, trace: bool = False) -> tuple[Result, float | None]:
    """One run of perdure, and its syncs a step."""
    threads = threads_of_ours(concurrency)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "perdure.db")
        command = (sys.executable, "-m", "benchmarks._ours", str(path), str(threads), str(concurrency))
        result, syncs = _measured(command, Path(folder, "strace") if trace else None)
        [result["steps"]] = sqlite3.connect(path).execute("SELECT count(*) FROM log WHERE seq > 0").fetchone()
    return _verified(result, threads, syncs)


def measure_peer(peer: Peer, concurrency: int, *, trace: bool = False) -> tuple[Result, float | None]:
    """One run of the peer, and its syncs a step."""
    threads = peer.threads(concurrency)
    script = f"benchmarks.peers._{peer.script}"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
        command = (str(peer.python), "-m", script, folder, str(threads), str(concurrency))
        result, syncs = _measured(command, Path(beside, "strace") if trace else None)
    return _verified(result, threads, syncs)


def _on_server(server: Server, peer: Peer | None, concurrency: int) -> Result:
    """One run of the peer, or else of perdure, in a new database."""
    threads = threads_of_ours(concurrency) if peer is None else peer.threads(concurrency)
    with server.database() as url, tempfile.TemporaryDirectory() as folder:
        before = server.syncs()
        if peer is None:
            command = (sys.executable, "-m", "benchmarks.stores._transitions", url)
            result: Result = json.loads(run((*command, str(threads), str(concurrency)), SECONDS))
            result["steps"] = server.transitions(url)
        else:
            command = (str(peer.python), "-m", f"benchmarks.peers._{peer.script}", folder)
            result = json.loads(run((*command, str(threads), str(concurrency), url), SECONDS))
        result["bytes"] = server.bytes(url)
        return _verified(result, threads, server.syncs() - before)[0]


def _measured(command: tuple[str, ...], trace: Path | None) -> tuple[Result, int | None]:
    if trace is not None:
        command = ("strace", "-f", "-c", "-e", f"trace={SYNCS}", "-o", str(trace), *command)
    result: Result = json.loads(run(command, SECONDS))
    if trace is None:
        return result, None
    names = "|".join(SYNCS.split(","))
    calls = re.findall(rf"^\s*\S+\s+\S+\s+\S+\s+(\d+)\s+(?:\d+\s+)?(?:{names})", trace.read_text(), re.M)
    return result, sum(map(int, calls))


def _verified(result: Result, threads: int, syncs: int | None) -> tuple[Result, float | None]:
    """Figures a step, once every step has been found on disk."""
    steps = threads * STEPS
    if result["steps"] != steps:
        raise Failed(f"{result['steps']} steps were found on disk afterwards, not {steps}")
    figures = {
        "per_second": steps / result["seconds"],
        "cpu_per_thousand": result["cpu"] / steps * 1000,
        "bytes_per_step": result["bytes"] / steps,
        "p50_ms": result["p50"] * 1000,
        "p99_ms": result["p99"] * 1000,
    }
    if syncs is not None:
        figures["syncs_per_step"] = syncs / steps
    return {**result, **figures}, None if syncs is None else syncs / steps


FIGURES = ("per_second", "cpu_per_thousand", "bytes_per_step", "p50_ms", "p99_ms")


def summary(name: str, turns: Turns, results: list[Result], syncs: float | None) -> Result:
    """A row: the medians."""
    row = {"runtime": name, "store": turns.store, "concurrency": turns.concurrency, "syncs_per_step": syncs}
    figures = (*FIGURES, "syncs_per_step") if turns.store else FIGURES
    return {**row, **{figure: median(each[figure] for each in results) for figure in figures}}


def rows_of(turns: list[Turns], syncs_of_ours: dict[int, float | None]) -> list[Result]:
    """Ours and then each peer, for each concurrency and kind of store; the ratio is the median of the rounds'
    ratios."""
    rows: list[Result] = []
    for concurrency, store in dict.fromkeys((each.concurrency, each.store) for each in turns):
        some = [
            each for each in turns if (each.concurrency, each.store) == (concurrency, store) and each.theirs
        ]
        ours = [result for each in some for result in each.ours]
        if not ours:
            continue
        rows.append(summary(OURS, some[0], ours, syncs_of_ours.get(concurrency)))
        for each in some:
            pairs = zip(each.ours, each.theirs, strict=False)  # a round that failed has no second half
            row = summary(each.peer.name, each, each.theirs, each.syncs)
            row["ratio"] = median(mine["per_second"] / other["per_second"] for mine, other in pairs)
            row["settings"], row["versions"] = each.theirs[0]["settings"], each.peer.pins
            rows.append(row)
    return rows
