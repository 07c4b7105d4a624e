"""Kill a job at chosen points and see that nothing is lost or done twice.

Run as a process of its own (it forks a child a run, so it must not have threads):

    python tests/crash/sweep.py --mode points --every 1
    python tests/crash/sweep.py --mode distinct --every 2 --store postgres
    python tests/crash/sweep.py --mode named --at "after send" "after offer"
    python tests/crash/sweep.py --mode pairs --count 500 --seed 7
    python tests/crash/sweep.py --mode random --count 200 --seed 7

Prints one JSON object: runs, kills, the names of the points, and what was found wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio.lowlevel
from attrs import define, field

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from servers.rooms import FILES, room, server

from crash import everything_job, spilling_job, summary_job
from crash.killing import Points
from crash.mutants import MUTANTS

STUCK = 30
"""Seconds after which a child counts as stuck, and is killed by its own alarm."""
RESTARTS = 4
JOBS: dict[str, Any] = {"everything": everything_job, "spilling": spilling_job, "summary": summary_job}


@define
class Report:
    """What a sweep found."""

    runs: int = 0
    kills: int = 0
    points: list[str] = field(factory=list[str])
    faults: list[str] = field(factory=list[str])


@define
class Sweep:
    """One sweep over one job."""

    job: Any
    """A module: ``world``, ``run``, ``arrivals``, ``faults``."""
    root: Path
    server: str
    """Where each run has a store of its own."""
    moving: bool
    port: int = 0
    url: str = ""
    report: Report = field(factory=Report)
    expected: dict[str, Any] | None = None
    elapsed: float = 0.0

    def undisturbed(self) -> None:
        """The reference: every point's name, the data, and how long it takes."""
        folder = self._folder("undisturbed")
        with self._world(folder):
            began = time.monotonic()
            self._child(folder, "undisturbed", None)
            self.elapsed = time.monotonic() - began
            if self.report.faults:
                return
            result = json.loads((folder / "result.json").read_text())
            self.report.points = result["points"]
            self.expected = None if self.moving else result
            self._judge("undisturbed", folder)

    def killed_at(self, name: str, points: Sequence[int | str]) -> None:
        """Kill the first process at the first point, its successor at the second; then let it live."""
        folder = self._folder(name)
        with self._world(folder):
            for kill_at in [*points, *[None] * RESTARTS]:
                if self._child(folder, name, kill_at):
                    break
            self._judge(name, folder)

    def killed_after(self, name: str, seconds: float) -> None:
        """Kill the process from outside after a while; then let it live."""
        folder = self._folder(name)
        with self._world(folder):
            pid = self._fork(folder, name, None)
            threading.Event().wait(seconds)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            self.report.kills += os.WIFSIGNALED(status)
            for _ in range(RESTARTS):
                if self._child(folder, name, None):
                    break
            self._judge(name, folder)

    @contextmanager
    def _world(self, folder: Path) -> Iterator[None]:
        with self.job.world(folder) as self.port, room(self.server, folder) as self.url:
            yield

    def _folder(self, name: str) -> Path:
        self.report.runs += 1
        folder = self.root / name.replace(" ", "_")
        folder.mkdir()
        return folder

    def _child(self, folder: Path, run: str, kill_at: int | str | None) -> bool:
        _, status = os.waitpid(self._fork(folder, run, kill_at), 0)
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) == signal.SIGALRM:
                self.report.faults.append(f"{run}: stuck for {STUCK} s")
                return True
            self.report.kills += 1
            return False
        if os.WEXITSTATUS(status):
            self.report.faults.append(f"{run}: {(folder / 'error.txt').read_text()}")
        return True

    def _fork(self, folder: Path, run: str, kill_at: int | str | None) -> int:
        pid = os.fork()
        if pid:
            return pid
        signal.alarm(STUCK)
        try:
            points = Points(kill_at)
            result = asyncio.run(self.job.run(folder, self.url, self.port, run, points, moving=self.moving))
            (folder / "result.json").write_text(json.dumps({**result, "points": points.names}))
        except BaseException:
            (folder / "error.txt").write_text(traceback.format_exc()[-2000:])
            os._exit(1)
        os._exit(0)

    def _judge(self, name: str, folder: Path) -> None:
        path = folder / "result.json"
        if not path.exists():
            self.report.faults.append(f"{name}: it never came to its end")
            return
        arrived = asyncio.run(self.job.arrivals(self.port, name))
        wrong = self.job.faults(json.loads(path.read_text()), arrived, self.expected)
        self.report.faults += [f"{name}: {fault}" for fault in wrong]


def sweep(args: argparse.Namespace) -> Report:
    """Run what the arguments ask for."""
    if args.mutant is not None:
        MUTANTS[args.mutant]()
    asyncio.run(anyio.lowlevel.checkpoint())  # what anyio imports then, children need not
    with server(args.store) as at, tempfile.TemporaryDirectory() as root:
        made = Sweep(JOBS[args.job], Path(root), at, args.moving)
        made.undisturbed()
        _run(made, args)
        return made.report


def _run(made: Sweep, args: argparse.Namespace) -> None:
    chance, last = Random(args.seed), len(made.report.points)
    if args.mode == "points":
        chosen = range(1 + chance.randrange(args.every), last + 1, args.every)
        for n in chosen:
            made.killed_at(f"point {n}", [n])
    elif args.mode == "named":
        for name in args.at:
            made.killed_at(name, [name])
    elif args.mode == "distinct":
        names = [*dict.fromkeys(made.report.points)]
        for name in names[chance.randrange(args.every) :: args.every]:
            made.killed_at(name, [name])
    elif args.mode == "pairs":
        for n in range(args.count):
            first = chance.randint(1, last)
            made.killed_at(f"pair {n}", [first, chance.randint(1, max(1, last - first))])
    else:
        for n in range(args.count):
            made.killed_after(f"random {n}", chance.uniform(0, made.elapsed))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=sorted(JOBS), default="everything")
    parser.add_argument(
        "--mode", choices=("points", "named", "distinct", "pairs", "random"), default="points"
    )
    parser.add_argument("--store", default=FILES, help="a word or URL that servers/rooms.py knows")
    parser.add_argument("--every", type=int, default=1, help="take every n-th point")
    parser.add_argument("--at", nargs="*", default=[], help="take the first point of each of these names")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--moving", action="store_true", help="reads answer differently each time")
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    report = sweep(parser.parse_args())
    print(
        json.dumps(
            {
                "runs": report.runs,
                "kills": report.kills,
                "points": report.points,
                "faults": report.faults,
            }
        )
    )


if __name__ == "__main__":
    main()
