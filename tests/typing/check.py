"""The typing contract: what mypy and pyright, both strict, must accept and refuse of a machine's code.

Run as a script. Both checkers look at ``right.py`` and ``wrong.py``, at the oldest target and at the first
one whose ``__replace__`` types updates. Exits with 1, naming every line that is wrongly accepted or refused.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGETS = ("3.11", "3.13")
FILES = ("right.py", "wrong.py")
MARK = re.compile(r"# WRONG(?: from 3\.(\d+))?$")
MYPY_LINE = re.compile(r"^(\w+\.py):(\d+): error: (.*)$")

Line = tuple[str, int]


def main() -> int:
    wrong = marked()
    runs = [(checker, target) for target in TARGETS for checker in (mypy, pyright)]
    with ThreadPoolExecutor(len(runs)) as pool:
        found = [pool.submit(checker, target) for checker, target in runs]
    faults = [
        f"{checker.__name__} at {target}: {fault}"
        for (checker, target), errors in zip(runs, found, strict=True)
        for fault in differences(errors.result(), wrong, int(target.split(".")[1]))
    ]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"typing contract: {len(wrong)} wrong lines, {len(faults)} faults")
    return 1 if faults or not wrong else 0


def marked() -> dict[Line, int]:
    """Every wrong line, and the minor version of Python from which on it must be refused."""
    lines = (HERE / "wrong.py").read_text(encoding="utf-8").splitlines()
    marks = ((number, MARK.search(line)) for number, line in enumerate(lines, 1))
    return {("wrong.py", number): int(mark[1] or 0) for number, mark in marks if mark}


def differences(errors: dict[Line, str], wrong: dict[Line, int], minor: int) -> Iterator[str]:
    for (name, line), since in wrong.items():
        if since <= minor and (name, line) not in errors:
            yield f"{name}:{line} is accepted, and is wrong"
    for (name, line), message in sorted(errors.items()):
        if (name, line) not in wrong:
            yield f"{name}:{line} is refused, and is right: {message}"


def mypy(target: str) -> dict[Line, str]:
    command = ["-m", "mypy", "--strict", "--config-file=", "--python-version", target, "--no-pretty"]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache" / "typing")]
    output = run([*command, *cache, *FILES], MYPYPATH=str(ROOT / "src"))
    matches = (MYPY_LINE.match(line) for line in output.splitlines())
    errors = {(match[1], int(match[2])): match[3] for match in matches if match}
    if not errors and "Success" not in output:
        raise SystemExit(f"mypy did not finish:\n{output}")
    return errors


def pyright(target: str) -> dict[Line, str]:
    output = run(["-m", "pyright", "--project", str(HERE), "--pythonversion", target, "--outputjson"])
    try:
        found = json.loads(output)["generalDiagnostics"]
    except (ValueError, KeyError):
        raise SystemExit(f"pyright did not finish:\n{output}") from None
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"].splitlines()[0]
        for each in found
        if each["severity"] == "error"
    }


def run(arguments: list[str], **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=HERE,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
