"""The worker processes: started, hit as the plan says, and started again when they have died."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
from attrs import define, field

from .plan import WORKERS, Hit

TESTS = Path(__file__).parents[1]
SERVE = ("serve", "soak.desk:runtime")
DRAINED = 15.0
"""Seconds within which a terminated worker has to be gone."""


@define
class Stopped:
    """A process that was suspended, and from when to when."""

    pid: int
    since: float
    until: float


@define
class Crew:
    """Four workers of one store, by number."""

    folder: Path
    environment: dict[str, str]
    processes: dict[int, subprocess.Popen[bytes]] = field(factory=dict[int, subprocess.Popen[bytes]])
    stops: list[Stopped] = field(factory=list[Stopped])
    happened: Counter[str] = field(factory=Counter[str])
    wrong: list[str] = field(factory=list[str])
    _logs: dict[int, Path] = field(factory=dict[int, Path])
    _awaits: set[int] = field(factory=set[int])
    """Were beginning while the server was away: they may find no store, and end."""
    _server_away: bool = False
    _killed: set[int] = field(factory=set[int])
    _twice: set[int] = field(factory=set[int])
    """Terminated while they drained already: they leave at once."""
    _ending: dict[int, float] = field(factory=dict[int, float])

    def begin(self) -> None:
        for worker in range(WORKERS):
            self._start(worker)

    def _start(self, worker: int) -> None:
        log = self.folder / f"worker-{worker}-{self.happened['started']}.log"
        self.happened["started"] += 1
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", "from perdure.runtime._cli import main; main()", *SERVE],
                env={**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
                cwd=TESTS,
                stdout=out,
                stderr=out,
            )
        self.processes[worker] = process
        self._logs[process.pid] = log
        if self._server_away:
            self._awaits.add(process.pid)

    @contextlib.contextmanager
    def without_server(self) -> Iterator[None]:
        """While the store's server is away: no worker that was there before may end by that."""
        self.happened["restart of the server"] += 1
        self._server_away = True
        self._awaits |= {pid for pid, log in self._logs.items() if not log.stat().st_size}
        try:
            yield
        finally:
            self._server_away = False

    async def watch(self) -> None:
        """Start again whoever is gone; an end that nobody asked for is a violation."""
        while True:
            for worker, process in self.processes.items():
                if process.poll() is not None:
                    self._ended(process)
                    self._start(worker)
                elif time.time() > self._ending.get(process.pid, time.time()):
                    self.wrong.append(f"worker {worker} was asked to end, and was there {DRAINED} s later")
                    self._ending.pop(process.pid)
                    process.kill()
            await anyio.sleep(0.1)

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        asked = self._ending.pop(process.pid, None)
        status = process.returncode
        if asked is not None and status == 0:
            self.happened["drained"] += 1
        elif asked is not None and status == -signal.SIGTERM and not self._logs[process.pid].stat().st_size:
            self.happened["terminated before it said that it was there"] += 1
        elif process.pid in self._twice and status in (-signal.SIGTERM, 128 + signal.SIGTERM):
            self.happened["left at a second signal"] += 1
        elif status == -signal.SIGKILL:
            self.happened["killed" if process.pid in self._killed else "killed by a thread"] += 1
        elif process.pid in self._awaits:
            self.happened["began without a server, and ended"] += 1
        else:
            said = self._logs[process.pid].read_text()[-500:]
            self.wrong.append(f"worker process {process.pid} ended with {status}: {said}")

    async def hit(self, hit: Hit) -> None:
        """Do to a worker what the plan says."""
        process = self.processes[hit.worker]
        self.happened[hit.what] += 1
        match hit.what:
            case "kill":
                self._killed.add(process.pid)
                process.kill()
            case "terminate":
                if process.pid in self._ending:
                    self._twice.add(process.pid)
                self._ending[process.pid] = time.time() + DRAINED
                process.terminate()
            case _:
                await self._stop(process, hit.seconds)

    async def _stop(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        stopped = Stopped(process.pid, time.time(), time.time() + seconds)
        self.stops.append(stopped)
        process.send_signal(signal.SIGSTOP)
        await anyio.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        stopped.until = time.time()

    async def end(self) -> None:
        """Terminate all; each has to drain."""
        for process in self.processes.values():
            if process.pid not in self._ending:  # a second signal would not let it drain
                self._ending[process.pid] = time.time() + DRAINED
                process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                await anyio.to_thread.run_sync(process.wait, DRAINED)
        for process in self.processes.values():
            if process.poll() is None:
                self.wrong.append(f"worker process {process.pid} did not drain at the end")
                process.kill()
                process.wait()
            else:
                self._ended(process)
