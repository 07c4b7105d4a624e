"""The service unit of the documentation is one that the service manager takes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "run-in-production.md"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_the_service_manager_takes_the_unit(tmp_path: Path) -> None:
    [unit] = re.findall(r"^```ini\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert "/opt/app/.venv/bin/perdure" in unit
    file = tmp_path / "perdure.service"
    file.write_text(unit.replace("/opt/app/.venv/bin/perdure", sys.executable).replace("User=app\n", ""))
    verified = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
    said = [line for line in verified.stderr.splitlines() if "perdure.service" in line]
    assert (said, verified.returncode) == ([], 0)
    file.write_text(unit.replace("Restart=always", "Restart=ever"))
    verified = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
    assert "perdure.service" in verified.stderr
