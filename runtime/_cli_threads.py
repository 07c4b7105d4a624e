"""The commands that run threads and look at them: demo, run, ls, show, history, why."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ._cli_options import AsJson, Cases, Code, StoreURL, ThreadId, Workspace, run_async


def register(app: typer.Typer) -> None:
    """Add them."""
    for name, command in (
        ("demo", demo_command),
        ("run", run_command),
        ("start", start_command),
        ("ls", ls_command),
        ("show", show_command),
        ("history", history_command),
        ("why", why_command),
    ):
        app.command(name)(command)


def demo_command() -> None:
    """Kill a machine beside a side effect; resume it."""
    from ._cli_demo import demo

    raise typer.Exit(demo())


def run_command(
    runtime: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Where the runtime stands.")],
    machine: Annotated[str, typer.Argument(metavar="MACHINE")],
    data: Annotated[str | None, typer.Option(metavar="JSON", help="The fields to start with.")] = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="A thread that is there goes on.")] = None,
    workspace: Workspace = "default",
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Leave a thread that waits for an event: exit status 3.")
    ] = False,
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Start a thread, or go on with one.

    Exit status 0 when it has ended, 1 when it is parked.
    """
    from ._cli_run import asked_run, run
    from ._cli_text import Output

    out = Output(as_json=as_json)
    told = Output(as_json=False, stream=sys.stderr) if as_json else out
    asked = asked_run(runtime, machine, data, thread, workspace)
    raise typer.Exit(run_async(run(out, told, asked, store, no_wait=no_wait)))


def start_command(
    runtime: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Where the runtime stands.")],
    machine: Annotated[str, typer.Argument(metavar="MACHINE")],
    data: Annotated[str, typer.Option(metavar="JSON", help="The fields to start with.")] = "{}",
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Once by id; else one is drawn.")] = None,
    priority: Annotated[
        int, typer.Option(min=-10, max=10, help="Each point counts as a minute of waiting.")
    ] = 0,
    signal: Annotated[str | None, typer.Option(metavar="EVENT", help="In its inbox from the start.")] = None,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="That signal's payload.")] = None,
    id: Annotated[str | None, typer.Option(help="That signal's id: once by id.")] = None,
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Start a thread and leave it to the workers."""
    from ._cli_run import asked_run
    from ._cli_start import With, start
    from ._cli_text import Output

    asked = asked_run(runtime, machine, data, thread, workspace)
    given = With(priority=priority, signal=signal, payload=payload, id=id)
    run_async(start(Output(as_json=as_json), asked, store, given))


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
    from ._cli_look import Filter, ls, place_of
    from ._cli_text import Output

    asked = Filter(machine=machine, state=state, status=status, after=after, limit=limit)
    run_async(ls(Output(as_json=as_json), place_of(workspace, store), asked))


def show_command(
    thread: ThreadId,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Show a thread's state, data and next events."""
    from ._cli_look import place_of
    from ._cli_show import show
    from ._cli_text import Output

    run_async(show(Output(as_json=as_json), place_of(workspace, store, runtime), thread))


def history_command(
    thread: ThreadId, workspace: Workspace = "default", store: StoreURL = None, as_json: AsJson = False
) -> None:
    """Show what happened to a thread, one line a step."""
    from ._cli_look import place_of, show_history
    from ._cli_text import Output

    run_async(show_history(Output(as_json=as_json), place_of(workspace, store), thread))


def why_command(
    thread: ThreadId,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Say why a thread is where it is, and what moves it on."""
    from ._cli_look import place_of, show_why
    from ._cli_text import Output

    run_async(show_why(Output(as_json=as_json), place_of(workspace, store, runtime), thread))
