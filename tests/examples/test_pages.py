"""README and tutorial: their code is the examples' or runs, and their commands print what they show."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.runtime import Parked, _cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
HOW_TO = (ROOT / "docs" / "how-to.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
START = [sys.executable, "-c", "from perdure.runtime._cli import main; main()"]
VARIES = re.compile(r"pd_[0-9a-f]{32}|worker [0-9a-f]{24}|\d{4}-\d\d-\d\dT[\d:.+]+")


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    assert found
    return [str(block) for block in found]


def commands(page: str) -> list[list[str]]:
    return [
        line.removeprefix("$ perdure ").split()
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("$ perdure ")
    ]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_readme_shows_the_example_as_it_is() -> None:
    example = (ROOT / "examples" / "summary.py").read_text()
    effect_and_machine, _ = blocks(README, "python")
    for part in effect_and_machine.split("\n\n\n"):
        assert part.strip() in example


def test_links_lead_somewhere() -> None:
    for page, folder in ((README, ROOT), (TUTORIAL, ROOT / "docs"), (HOW_TO, ROOT / "docs")):
        links = re.findall(r"\]\(([^)#]+)\)", page)
        assert links
        assert [link for link in links if not (folder / link).exists()] == []


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=["readme", "tutorial"])
def test_commands_and_options_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = commands(page)
    assert {command[0] for command in shown} >= {"run", "history", "why"}
    for command in shown:
        with pytest.raises(SystemExit) as left:
            _cli.main([command[0], "--help"])
        assert left.value.code == 0
        helped = capsys.readouterr().out
        assert [word for word in command if word.startswith("--") and word not in helped] == []


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    [code] = blocks(TUTORIAL, "python")
    kill = "__import__('os').kill(__import__('os').getpid(), 9)"
    slow = "await anyio.sleep(20)"
    assert slow in code
    killed, left, resumed, doubt, resolved = (
        steps for block in blocks(TUTORIAL, "console") if (steps := played(block))
    )

    def says(steps: list[tuple[list[str], str]], source: str, *, dies: bool = False) -> None:
        (tmp_path / "letter.py").write_text(source.replace(slow, kill) if dies else source)
        for command, shown in steps:
            ran = perdure(tmp_path, command)
            assert (ran.returncode == -9) is dies
            assert same(ran.stdout) == same(shown), command

    says(killed, code, dies=True)
    says(left, code)
    says(resumed, code)
    assert len((tmp_path / "outbox.txt").read_text().splitlines()) == 1
    before, _, rest = code.partition("@send.lookup")
    unasked = before + rest[rest.index("class Letters") :]
    bob = ["run", "letter:runtime", "Letters", "--data", '{"to": "Bob"}', "--thread", "bob"]
    (tmp_path / "letter.py").write_text(unasked.replace(slow, kill))
    assert perdure(tmp_path, bob).returncode == -9
    says(doubt, unasked)
    says(resolved, unasked)
    assert perdure(tmp_path, ["run", "letter:runtime", "Letters", "--thread", "bob"]).returncode == 0


def test_what_the_how_to_shows_runs(tmp_path: Path) -> None:
    for code in blocks(HOW_TO, "python"):
        [name] = re.findall(rf"`(\w+\.py)`:\n\n```python\n{re.escape(code[:60])}", HOW_TO)
        (tmp_path / name).write_text(code)
    # A signal that comes before its thread is kept for it.
    approved = subprocess.run([sys.executable, "approve.py"], cwd=tmp_path, capture_output=True, check=False)
    assert approved.returncode == 0, approved.stderr
    for machine, data, thread, states, holds in (
        ("expense:runtime Expense", {"amount": 500}, "june", "review -> paid", {"approved_by": "ada"}),
        ("expense:runtime Expense", {"amount": 5}, "may", "checking -> paid", {"approved_by": None}),
        (
            "mailer:runtime Mailer",
            {"question": "?"},
            "m",
            "thinking -> done",
            {"question": "?", "answer": "Sent."},
        ),
        (
            "research:runtime Research",
            {"name": "tea"},
            "r",
            "remembering -> done",
            {"notes": ["pros found", "cons found"]},
        ),
    ):
        options = ["--data", json.dumps(data), "--thread", thread]
        ran = perdure(tmp_path, ["run", *machine.split(), *options])
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert states in ran.stdout
        shown = json.loads(perdure(tmp_path, ["show", thread, "--json"]).stdout)["data"]
        assert {name: shown[name] for name in holds} == holds


def test_the_how_to_tells_of_each_reason_to_park() -> None:
    rows = re.findall(r"^\| ([a-z ]+?) \|", HOW_TO, re.MULTILINE)
    assert f"one of: {', '.join(rows[1:])}." in (Parked.__doc__ or "")


def played(block: str) -> list[tuple[list[str], str]]:
    """The commands of a block, each with what it is shown to print."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    steps = zip(parts[::2], parts[1::2], strict=True)
    quoted = re.compile(r"'([^']*)'|(\S+)")
    return [
        ([a or b for a, b in quoted.findall(command)][1:], shown)
        for command, shown in steps
        if command.startswith("perdure ")
    ]


def perdure(folder: Path, command: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*START, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def same(text: str) -> str:
    return VARIES.sub("...", text.replace("pd_…", "pd_" + "0" * 32))
