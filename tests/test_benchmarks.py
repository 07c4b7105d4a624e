"""What a transition costs, in counts that do not depend on the machine, is at most what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_count_is_above_its_ceiling() -> None:
    """In a process of its own, whose calls are no test runner's."""
    command = [sys.executable, "-m", "benchmarks", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
