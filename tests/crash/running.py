"""A sweep in a process of its own, which has no threads and can fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SWEEP = Path(__file__).with_name("sweep.py")


def sweep(store: str, job: str, mode: str, *options: str) -> dict[str, Any]:
    """Run it to its end; its report."""
    command = [sys.executable, str(SWEEP), "--store", store, "--job", job, "--mode", mode, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report
