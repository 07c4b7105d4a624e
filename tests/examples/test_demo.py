"""The demo, as its users run it: exit status 0, and the lines that say what happened."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.runtime import _cli_demo
from perdure.runtime._cli_load import BadInput

ROOT = Path(__file__).parents[2]
RIGHT = """\
  right one object, with the bytes of the summary
  right one arrival, with the key of the intent
  right checkpoints A to D, each once
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What it prints, started from a folder that is not the source's."""
    command = [sys.executable, "-c", "from perdure.runtime._cli import main; main()", "demo"]
    away = tmp_path_factory.mktemp("away")
    ran = subprocess.run(command, cwd=away, capture_output=True, text=True, check=False, timeout=100)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(away.iterdir()) == []
    return ran.stdout


def acts(said: str) -> tuple[str, str]:
    first, second = said.split("Act 2:")
    return first, second


def test_both_acts_are_right(said: str) -> None:
    for act in acts(said):
        assert RIGHT in act
    assert "WRONG" not in said
    assert said.endswith("All counts are right.\n")


@pytest.mark.parametrize(("act", "arrivals"), [(0, "1 arrival"), (1, "no arrivals")])
def test_it_says_what_survived_layer_by_layer(act: int, arrivals: str, said: str) -> None:
    told = acts(said)[act]
    assert re.search(rf"process \d+ was in step 3 and got SIGKILL: {arrivals} at the storage\n", told)
    fates = re.findall(
        r"^  (working state|checkpoint|journal|memory|artifacts) +(lost|survived) ", told, re.M
    )
    assert fates == [
        ("working state", "lost"),
        ("checkpoint", "survived"),
        ("journal", "survived"),
        ("memory", "survived"),
        ("artifacts", "survived"),
    ]
    assert "B (seq 2), in state storing" in told
    assert re.search(r"put_object is in doubt, its key pd_[0-9a-f]{32}\n", told)


@pytest.mark.parametrize(
    ("act", "call", "decision"),
    [
        (0, "put_object: done (adopted)", "put_object: looked up, found, adopted"),
        (1, "put_object x2: done", "put_object: looked up, absent, issued with the same key"),
    ],
)
def test_it_shows_the_recovery_decision_and_the_whole_history(
    act: int, call: str, decision: str, said: str
) -> None:
    told = acts(said)[act]
    assert f"  right recovery: {decision}\n" in told
    [in_doubt] = re.findall(r"its key (pd_\w+)", told)
    history = told.partition("$ perdure history cust_01\n")[2].splitlines()[:5]
    assert [line.split("  ")[1].strip() for line in (line.strip() for line in history)] == [
        "-> loading",
        "loading -> summarising",
        "summarising -> storing",
        "storing -> remembering",
        "remembering -> done",
    ]
    assert history[3].endswith(f"put  {call} {in_doubt}  [resumed after its worker died]  [{decision}]")


def test_it_fails_when_the_counts_are_wrong(tmp_path: Path) -> None:
    """With a lookup that never finds anything the object arrives twice, and the demo says so."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    machine = tmp_path / "examples" / "summary.py"
    source = machine.read_text()
    answer = "return ABSENT if stored is None else Found(Receipt(name=stored.name, sha256=stored.sha256))"
    assert answer in source
    machine.write_text(source.replace(answer, "return ABSENT"))
    command = [sys.executable, str(tmp_path / "examples" / "demo.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    first, second = acts(ran.stdout)
    assert ran.returncode == 1
    assert "  WRONG one arrival, with the key of the intent: [" in first
    assert "WRONG recovery: put_object: looked up, found, adopted" in first
    assert "WRONG" not in second
    assert ran.stdout.endswith("The counts are wrong.\n")


def test_without_the_examples_it_says_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cli_demo, "__file__", str(tmp_path / "perdure" / "runtime" / "_cli_demo.py"))
    with pytest.raises(BadInput, match="run `make demo` in a clone of it"):
        _cli_demo.demo()
