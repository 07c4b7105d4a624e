"""``perdure new``: what it writes runs at once, is green, and goes red where the machine is spoilt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def ran(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    program = [str(BIN / command[0]), *command[1:]]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    said = ran(folder, "perdure", "new", "expense_desk")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == SAID
    return folder / "expense_desk"


SAID = """\
expense_desk is written. Next:

  cd expense_desk
  pytest
  perdure run expense_desk:runtime Expense --data '{"amount": 50}'
"""


def test_it_writes_four_files(project: Path) -> None:
    written = {
        path.name for path in project.iterdir() if path.is_file() and path.suffix in (".py", ".md", ".toml")
    }
    assert written == {"expense_desk.py", "test_expense_desk.py", "README.md", "pyproject.toml"}
    assert "NAME" not in "".join((project / name).read_text() for name in written)


def test_its_tests_are_green(project: Path) -> None:
    said = ran(project, "pytest", "-p", "no:cacheprovider")
    assert said.returncode == 0, said.stdout
    assert "2 passed" in said.stdout


def test_its_machine_runs(project: Path) -> None:
    said = ran(project, "perdure", "run", "expense_desk:runtime", "Expense", "--data", '{"amount": 50}')
    assert (said.returncode, said.stderr) == (0, "")
    assert "has ended in done at seq 2" in said.stdout
    assert len((project / "payments.jsonl").read_text().splitlines()) == 1


def test_it_goes_red_as_its_readme_says(project: Path) -> None:
    module, readme = project / "expense_desk.py", (project / "README.md").read_text()
    before, after = (
        line.split("#")[0].strip() for line in readme.splitlines() if line.startswith("    return")
    )
    right = module.read_text()
    assert right.count(before) == 1
    module.write_text(right.replace(before, after))
    try:
        said = ran(project, "pytest", "-p", "no:cacheprovider")
    finally:
        module.write_text(right)
    assert said.returncode == 1
    assert "killed after `pay` was done by bank, before it answered" in said.stdout
    assert "bank: 2 arrivals of `pay` with key " in said.stdout


def test_what_is_there_stays(project: Path) -> None:
    held = sorted(project.iterdir())
    for folder in (project, project / "README.md"):
        said = ran(project.parent, "perdure", "new", "other", "--dir", str(folder))
        assert said.returncode == 2
        assert "is there and not an empty folder: choose another one with --dir" in said.stderr
    assert sorted(project.iterdir()) == held


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    assert ran(tmp_path, "perdure", "new", "other", "--dir", ".").returncode == 0
    assert (tmp_path / "other.py").is_file()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a-b", "cannot name a module"),
        ("1st", "cannot name a module"),
        ("_x", "cannot name a module"),
        ("../x", "cannot name a module"),
        ("class", "is a word of Python's own"),
        ("json", "is installed, and the project would hide it"),
        ("perdure", "is installed, and the project would hide it"),
    ],
)
def test_names_that_cannot_be_imported(tmp_path: Path, name: str, reason: str) -> None:
    said = ran(tmp_path, "perdure", "new", name)
    assert (said.returncode, said.stdout) == (2, "")
    assert reason in said.stderr
    assert list(tmp_path.iterdir()) == []
