"""The command line. Each command is a few lines here; what it does stands in ``_cli_*``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Literal, cast

import typer

from perdure.artifacts import ArtifactError
from perdure.machines import BadCall, BadUpdate, DefinitionError, NotStorable, Unreadable
from perdure.stores import StoreError

from ._cli_demo import demo as run_demo
from ._cli_look import Filter, ls, place_of, show, show_history, show_why
from ._cli_operate import operate, resolution_of
from ._cli_run import asked_run, run
from ._cli_text import Output, safe
from ._errors import PerdureError

EXPECTED = (
    PerdureError,
    StoreError,
    ArtifactError,
    DefinitionError,
    BadCall,
    BadUpdate,
    NotStorable,
    Unreadable,
    ValueError,
    OSError,
)
"""What is told in one line."""

INTERRUPTED = 130

app = typer.Typer(
    name="perdure",
    help="Runs machines whose every transition is a checkpoint, and shows where their threads stand.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Workspace = Annotated[str, typer.Option(help="Whom the threads belong to.")]
StoreURL = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where the threads are; by default the runtime's own store, sqlite:///perdure.db without one.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on one line instead of text.")]
Code = Annotated[
    str | None,
    typer.Option("--runtime", metavar="MODULE:NAME", help="The runtime with the thread's machine."),
]
ThreadId = Annotated[str, typer.Argument(metavar="THREAD")]
Cases = Literal["running", "waiting", "parked", "ended"]


@app.command("demo")
def demo_command() -> None:
    """Kill a machine beside a side effect; resume it."""
    raise typer.Exit(run_demo())


@app.command("run")
def run_command(
    runtime: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Where the runtime stands.")],
    machine: Annotated[str, typer.Argument(metavar="MACHINE")],
    data: Annotated[str | None, typer.Option(metavar="JSON", help="The fields to start with.")] = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="A thread that is there goes on.")] = None,
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Start a thread, or go on with one.

    Exit status 0 when it has ended, 1 when it is parked.
    """
    out = Output(as_json=as_json)
    told = Output(as_json=False, stream=sys.stderr) if as_json else out
    asked = asked_run(runtime, machine, data, thread, workspace)
    raise typer.Exit(asyncio.run(run(out, told, asked, store)))


@app.command("ls")
def ls_command(
    machine: Annotated[str | None, typer.Option(help="Only of this machine.")] = None,
    state: Annotated[str | None, typer.Option(help="Only in this state.")] = None,
    status: Annotated[Cases | None, typer.Option(help="Only with this status.")] = None,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Where the last page ended.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Threads a page.")] = 50,
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """List threads, a page at a time."""
    asked = Filter(machine=machine, state=state, status=status, after=after, limit=limit)
    asyncio.run(ls(Output(as_json=as_json), place_of(workspace, store), asked))


@app.command("show")
def show_command(
    thread: ThreadId,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Show a thread's state, data and next events."""
    asyncio.run(show(Output(as_json=as_json), place_of(workspace, store, runtime), thread))


@app.command("history")
def history_command(
    thread: ThreadId, workspace: Workspace = "default", store: StoreURL = None, as_json: AsJson = False
) -> None:
    """Show what happened to a thread, one line a step."""
    asyncio.run(show_history(Output(as_json=as_json), place_of(workspace, store), thread))


@app.command("why")
def why_command(
    thread: ThreadId,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Say why a thread is where it is, and what moves it on."""
    place = place_of(workspace, store, runtime)
    asyncio.run(show_why(Output(as_json=as_json), place, thread))


@app.command("resolve")
def resolve_command(
    thread: ThreadId,
    done: Annotated[str | None, typer.Option(metavar="JSON", help="It happened, with this result.")] = None,
    not_done: Annotated[bool, typer.Option("--not-done", help="It did not happen and will not.")] = False,
    adopt: Annotated[bool, typer.Option("--adopt", help="Take the recorded effect for the new one.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Let the new code's effect run beside it.")] = False,
    ignore: Annotated[bool, typer.Option("--ignore", help="Go on without the recorded effect.")] = False,
    effect: Annotated[str | None, typer.Option(metavar="KEY", help="Which, where there are several.")] = None,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Settle a thread that is parked in doubt or diverged."""
    said = resolution_of(done=done, not_done=not_done, adopt=adopt, run=run, ignore=ignore, effect=effect)
    place = place_of(workspace, store, runtime)
    asyncio.run(operate(Output(as_json=as_json), place, thread, said))


@app.command("retry")
def retry_command(
    thread: ThreadId,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Let a parked thread go on from its record."""
    place = place_of(workspace, store, runtime)
    asyncio.run(operate(Output(as_json=as_json), place, thread, None))


# --- the process ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 (parked, or the demo's counts are wrong), 2 (bad input)."""
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
    except EXPECTED as error:
        return _refuse(str(error) or type(error).__name__)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # typer's own, wherever its version keeps them
        if usage is None:
            return _refuse(f"a fault of perdure's own: {type(error).__name__}: {error}", 70)
        return _refuse(f"{usage()} (`perdure --help` says what there is)")
    if status == INTERRUPTED:
        return _refuse(
            "interrupted: what is recorded is kept, and a thread goes on when it is run again", status
        )
    return status


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
