"""The pages of the documentation as something that runs: files, scripts, and commands with what they print.

A python or json block whose sentence before it ends with a file's name and a colon is that file; another
python block is a script. A console block is run command by command, and what is shown below a command is what
it prints, with ``...`` for whatever may vary. A comment right above a block says what else it may be:
``<!-- not run: why -->``, ``<!-- from FILE -->`` (a part of that file, as it is there) or ``<!-- killed -->``
(its last command gets SIGKILL once it has printed what is shown).
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from perdure import record

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
LONGEST = 60
"""Seconds that one command may take before it counts as stuck."""

_BLOCK = re.compile(r"^(?:<!-- (.*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w/.-]+\.\w+)`[^`\n]*:\s*$")
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)


@record
class Block:
    """One fenced block: its language, what the comment above it says, the file that it is, and its text."""

    language: str
    mark: str
    file: str | None
    body: str

    @property
    def runs(self) -> bool:
        return self.language in ("python", "json", "console") and not self.mark.startswith("not run")


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found: list[Block] = []
    for match in _BLOCK.finditer(text):
        named = _FILE.search(text[: match.start()].rstrip())
        found.append(
            Block(
                language=match[2],
                mark=match[1] or "",
                file=named[1] if named and match[2] != "console" else None,
                body=match[3],
            )
        )
    return found


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it is shown to print."""
    parts = _COMMAND.split(block.body)
    assert parts[0] == "", f"a console block begins with a command, not with {parts[0]!r}"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def play(block: Block, folder: Path) -> None:
    """Do what the block says, in the folder; AssertionError tells what came out otherwise."""
    if block.mark.startswith("from "):
        source = (ROOT / block.mark.removeprefix("from ")).read_text()
        for part in block.body.split("\n\n\n"):
            assert part.strip() in source, f"{block.mark}: not there any more:\n{part}"
    elif block.file is not None:
        (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
        (folder / block.file).write_text(block.body)
    elif block.language == "console":
        shown = commands(block)
        for n, (command, output) in enumerate(shown, start=1):
            run(command, output, folder, kill=block.mark == "killed" and n == len(shown))
    else:
        script = folder / "script.py"
        script.write_text(block.body)
        run("python script.py", "", folder)


def run(command: str, shown: str, folder: Path, *, kill: bool = False) -> None:
    """Run a command. Where nothing is shown, it may print anything and has to end with status 0."""
    child = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        if kill:
            printed = _until(child.stdout, shown)
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(LONGEST)
        else:
            printed = child.communicate(timeout=LONGEST)[0].decode()
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        child.stdout.close()
    if shown.strip():
        assert same(shown, printed), f"$ {command}\nshown:\n{shown}\nprinted:\n{printed}"
    else:
        assert child.returncode == 0, f"$ {command}\nended with {child.returncode}:\n{printed}"


def same(shown: str, printed: str) -> bool:
    """Whether what was printed is what is shown, with ``...`` for anything."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("..."))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def _until(output: IO[bytes], shown: str) -> str:
    printed = b""
    while not same(shown, printed.decode(errors="replace")):
        more = os.read(output.fileno(), 4096)
        if not more:
            break
        printed += more
    return printed.decode()


def _environment() -> dict[str, str]:
    tools = Path(sys.executable).parent
    plain = {"PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1", "COLUMNS": "110"}
    return {**os.environ, **plain, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
