"""The command line: its groups of commands, the process around them, and what it says of errors.

A group is a module ``_cli_*`` with ``register``; the commands import what they need when they run.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from . import (
    _cli_acts,
    _cli_artifacts,
    _cli_check,
    _cli_copy,
    _cli_freeze,
    _cli_gc,
    _cli_health,
    _cli_memory,
    _cli_new,
    _cli_record,
    _cli_schedules,
    _cli_serve,
    _cli_survey,
    _cli_threads,
)
from ._cli_text import safe

INTERRUPTED = 130
UNKNOWN = 75

app = typer.Typer(
    name="perdure",
    help="Runs machines whose every transition is a checkpoint, and shows where their threads stand.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(asked: bool) -> None:
    from importlib.metadata import version

    if asked:
        typer.echo(f"perdure {version('perdure')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Say which version this is."),
    ] = False,
) -> None:
    """What every command shares: nothing but this option."""


for group in (
    _cli_threads,
    _cli_serve,
    _cli_acts,
    _cli_record,
    _cli_survey,
    _cli_health,
    _cli_artifacts,
    _cli_check,
    _cli_copy,
    _cli_freeze,
    _cli_memory,
    _cli_gc,
    _cli_new,
    _cli_schedules,
):
    group.register(app)


def expected() -> tuple[type[Exception], ...]:
    """What is told in one line."""
    from perdure.artifacts import ArtifactError
    from perdure.machines import BadCall, BadUpdate, DefinitionError, NotStorable, Unreadable
    from perdure.stores import StoreError

    from ._errors import PerdureError

    perdure = (PerdureError, StoreError, ArtifactError, DefinitionError)
    return (*perdure, BadCall, BadUpdate, NotStorable, Unreadable, ValueError, OSError)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0; 1 (it is parked, broken or not well); 2 (bad input); 3 (it waits,
    and `run --no-wait` leaves it); 75 (a write without an answer: it may have landed); 130 (interrupted)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this; nothing else may get its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it is open while the process is
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # pyright: ignore
    log, warnings = logging.getLogger("perdure"), _OneLine()
    log.addHandler(warnings)
    try:
        status = _status(list(sys.argv[1:] if arguments is None else arguments))
    finally:
        log.removeHandler(warnings)
    sys.exit(status)


def _status(arguments: list[str]) -> int:
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except Exception as error:
        if isinstance(error, expected()):
            return _refuse(str(error) or type(error).__name__, _status_of(error))
        usage = getattr(error, "format_message", None)  # typer's own, wherever its version keeps them
        if usage is None:
            return _refuse(f"a fault of perdure's own: {type(error).__name__}: {error}", 70)
        command = getattr(getattr(error, "ctx", None), "command_path", "perdure")
        return _refuse(f"{usage()} (`{command} --help` says what there is)")
    if status == INTERRUPTED:
        return _refuse(
            "interrupted: what is recorded is kept, and a thread goes on when it is run again", status
        )
    return status


def _status_of(error: Exception) -> int:
    from ._cli_load import UnknownOutcome

    return UNKNOWN if isinstance(error, UnknownOutcome) else 2


def _run(arguments: list[str]) -> int:
    return cast("int | None", app(arguments or ["--help"], prog_name="perdure", standalone_mode=False)) or 0


def _refuse(message: str, status: int = 2) -> int:
    sys.stderr.write(f"perdure: {safe(message)}\n")
    return status


class _OneLine(logging.Handler):
    """The runtime's warnings in one line each, without what the progress shows anyway."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "perdure"):
            return
        error = record.exc_info[1] if record.exc_info else None
        cause = "" if error is None else f": {type(error).__name__}: {error}"
        sys.stderr.write(f"perdure: {safe(record.getMessage() + cause)}\n")


if __name__ == "__main__":
    main()
