"""The peers, and an environment of its own for each of them, made on first use."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".venv-peers"
INSTALLING = 900.0
"""Seconds that an installation may take."""
FEWEST = 100
"""Threads of a run, however small the concurrency."""
LAST = 1500
"""Characters of what a failed process said."""


class Failed(Exception):
    """A process did not do what it was for; the message is what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Where a peer comes from, and how many threads a run gives it."""

    name: str
    pip: tuple[str, ...]
    npm: tuple[str, ...] = ()
    per_slot: int
    """Threads for each that runs at a time: few for a slow peer, so that a run takes seconds."""
    on_postgres: bool = False
    """Its store is a PostgreSQL server, as is perdure's beside it."""

    @property
    def script(self) -> str:
        """The module that runs the workload, in an environment of the same name."""
        return self.name.removesuffix("-postgres")

    @property
    def home(self) -> Path:
        return PLACE / self.script

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def pins(self) -> str:
        return " ".join((*self.pip, *self.npm))

    def threads(self, concurrency: int) -> int:
        return max(FEWEST, self.per_slot * concurrency)


PEERS = (
    Peer(name="burr", pip=("apache-burr==0.43.0", "aiosqlite==0.22.1"), per_slot=15),
    Peer(
        name="restate",
        pip=("restate_sdk==1.3.0", "granian==2.8.9", "uvloop==0.23.0", "psutil==7.2.2"),
        npm=("@restatedev/restate-server@1.7.12",),
        per_slot=10,
    ),
    Peer(
        name="langgraph",
        pip=("langgraph==1.2.24", "langgraph-checkpoint-sqlite==3.1.2", "aiosqlite==0.22.1"),
        per_slot=2,
    ),
    Peer(name="dbos", pip=("dbos==3.4.0",), per_slot=2),
    Peer(name="dbos-postgres", pip=("dbos==3.4.0",), per_slot=2, on_postgres=True),
)


def run(command: Sequence[str], seconds: float) -> str:
    """What a process printed. One that fails or takes longer ends with all that it started.

    Raises:
        Failed: with the end of what it said.
    """
    environment = {**os.environ, "LANGSMITH_TRACING": "false"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            out, said = process.communicate(timeout=seconds)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"{command[0]} took more than {seconds:.0f} s") from error
            raise
    if process.returncode:
        raise Failed(f"exit status {process.returncode}: {said.strip()[-LAST:]}")
    return out


def install(peer: Peer) -> None:
    """Make the peer's environment, unless it is there with the very versions that are asked for.

    Raises:
        Failed: with what pip or npm said.
    """
    made = peer.home / "pins"
    if made.is_file() and made.read_text() == peer.pins:
        return
    print(f"installing {peer.pins} into {peer.home.relative_to(ROOT)}", file=sys.stderr)
    shutil.rmtree(peer.home, ignore_errors=True)
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "install")
    try:
        run((sys.executable, "-m", "venv", str(peer.home)), INSTALLING)
        run((str(peer.python), *pip, *peer.pip), INSTALLING)
        if peer.npm:
            npm = ("npm", "install", "--prefix", str(peer.home), "--no-audit", "--no-fund")
            run((*npm, "--ignore-scripts", *peer.npm), INSTALLING)
    except OSError as error:
        raise Failed(str(error)) from error
    made.write_text(peer.pins)
