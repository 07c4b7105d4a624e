"""``perdure new``: a small project that runs at once."""

from __future__ import annotations

import importlib.util
import keyword
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add it."""
    app.command("new")(new_command)


def new_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project's name, and its module's.")],
    dir: Annotated[str | None, typer.Option("--dir", help="Where it goes; by default ./NAME.")] = None,
) -> None:
    """Write a small project: a machine, a test that kills it everywhere, a README."""
    folder = Path(name if dir is None else dir)
    check_project_name(name)
    check_folder(folder)
    write_project(folder, name)
    sys.stdout.write(f"{folder} is written. Next:\n\n{_next(folder, name)}")


def check_project_name(name: str) -> None:
    """``ValueError`` where the project's module could not be imported by that name."""
    if not name.isidentifier() or not name.isascii() or name.strip("_") != name:
        raise ValueError(
            f"{name!r} cannot name a module: use letters, digits and underscores, as in expense_desk"
        )
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} is a word of Python's own: choose another name")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise ValueError(
            f"a module {name!r} is installed, and the project would hide it: choose another name"
        )


def check_folder(folder: Path) -> None:
    """``ValueError`` where there is something already."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise ValueError(f"{folder} is there and not an empty folder: choose another one with --dir")


def write_project(folder: Path, name: str) -> None:
    """Write its files."""
    from ._cli_new_files import FILES

    folder.mkdir(parents=True, exist_ok=True)
    for file, text in FILES.items():
        filled = text.replace("NAME", name).replace("DIST", name.replace("_", "-"))
        (folder / file.replace("NAME", name)).write_text(filled, encoding="utf-8")


def _next(folder: Path, name: str) -> str:
    run = f"perdure run {name}:runtime Expense --data '{{\"amount\": 50}}'"
    # A pytest found elsewhere on the path would not find perdure.
    install = [] if importlib.util.find_spec("pytest") else ["pip install pytest"]
    lines = [f"cd {shlex.quote(str(folder))}", *install, "pytest", run]
    return "".join(f"  {line}\n" for line in lines)
