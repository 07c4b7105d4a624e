"""Whether another process on this machine still lives: it holds a lock on a file while it does.

The kernel drops the lock when the process ends, however it ends, so a lock that can be taken proves the end.
A file that is not there proves nothing (another container has another folder), and only the lease counts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from pathlib import Path

from attrs import define

from perdure.stores import WorkerRow

try:
    import fcntl
except ImportError:  # no such locks here: leases alone decide
    fcntl = None  # type: ignore[assignment]

KEEP_MARKS = 24 * 3600
"""Seconds after which the mark of a process that was killed is cleared away."""


@define
class Mark:
    """This process's sign of life."""

    host: str
    path: str
    _descriptor: int | None = None

    def remove(self) -> None:
        """The process leaves in good order."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            os.close(self._descriptor)
            self._descriptor = None


def take_mark(worker: str) -> Mark:
    """Create and lock this process's file."""
    host = this_host()
    if fcntl is None:
        return Mark(host, "")
    try:
        folder = _folder()
        path = folder / f"{worker}.lock"
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return Mark(host, "")
    return Mark(host, str(path), descriptor)


def process_ended(worker: WorkerRow) -> bool:
    """Whether the worker's process is known to be gone."""
    if worker.ended is not None:
        return True
    return bool(worker.lock) and worker.host == this_host() and _free(worker.lock)


def this_host() -> str:
    """Names this machine and its boot."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}"


def _folder() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"perdure-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    old = time.time() - KEEP_MARKS
    for path in folder.glob("*.lock"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < old and _free(path):
                path.with_suffix(".sock").unlink(missing_ok=True)
                path.unlink()
    return folder


def _free(path: str | Path) -> bool:
    """Whether the file is there and nobody holds it locked."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
