"""``perdure demo``: runs the demo of the source tree that this perdure was installed from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ._cli_load import BadInput


def demo() -> int:
    """The demo's exit status: 0 only if the counts are right."""
    script = Path(__file__).resolve().parents[1] / "examples" / "demo.py"
    if not script.is_file():
        raise BadInput(
            "the demo runs the examples, which are part of perdure's source and not of the installed "
            "package: run `make demo` in a clone of it"
        )
    return subprocess.call([sys.executable, str(script)])
