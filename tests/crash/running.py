"""A sweep in a process of its own, which has no threads and can fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def sweep(store: str, job: str, mode: str, *options: str) -> dict[str, Any]:
    """Kill a job's processes; the report."""
    return _report("sweep.py", "--store", store, "--job", job, "--mode", mode, *options)


def copied(every: int) -> dict[str, Any]:
    """Kill a copy at every so many of its writes; the report."""
    return _report("copied.py", "--every", str(every))


def _report(script: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report
