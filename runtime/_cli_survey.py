"""The commands that look at more than one record: graph, tail, stats, doctor."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ._cli_options import AsJson, Code, StoreURL, Workspace, run_async

SomeThread = Annotated[str | None, typer.Argument(metavar="[THREAD]", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add them."""
    for name, command in (
        ("graph", graph_command),
        ("tail", tail_command),
        ("stats", stats_command),
        ("doctor", doctor_command),
    ):
        app.command(name)(command)


def graph_command(
    runtime: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Where the runtime stands.")],
    machine: Annotated[str, typer.Argument(metavar="MACHINE")],
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Mark the way that it took.")] = None,
    form: Annotated[
        Literal["mermaid", "svg", "dot"], typer.Option("--format", help="SVG needs Graphviz.")
    ] = "mermaid",
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Draw a machine."""
    from ._cli_graph import draw
    from ._cli_text import Output

    draw(Output(as_json=as_json), runtime, machine, thread, form, workspace, store)


def tail_command(
    thread: SomeThread = None,
    machine: Annotated[str | None, typer.Option(help="Only of this machine.")] = None,
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Show rows of the journal as they come.

    A thread that is named ends it: exit status 0 when it has ended, 1 when it is parked.
    """
    from ._cli_look import place_of
    from ._cli_tail import tail_all, tail_thread
    from ._cli_text import Output

    out, place = Output(as_json=as_json), place_of(workspace, store)
    if thread is None:
        run_async(tail_all(out, place, machine))
    elif machine is not None:
        raise typer.BadParameter("--machine is for all threads: leave it away, or name no thread")
    else:
        raise typer.Exit(run_async(tail_thread(out, place, thread)))


def stats_command(
    thread: SomeThread = None,
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Count threads, or measure how one thread grows."""
    from ._cli_look import place_of
    from ._cli_stats import show_store_stats, show_thread_stats
    from ._cli_text import Output

    out, place = Output(as_json=as_json), place_of(workspace, store)
    if thread is None:
        run_async(show_store_stats(out, place))
    else:
        run_async(show_thread_stats(out, place, thread))


def doctor_command(
    store: StoreURL = None,
    artifacts: Annotated[
        str | None, typer.Option(metavar="URL", help="Where blobs are; else the runtime's own.")
    ] = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Look over installation, store, workers and threads.

    Exit status 1 when something is wrong.
    """
    from ._cli_doctor import examine
    from ._cli_text import Output

    raise typer.Exit(examine(Output(as_json=as_json), store, artifacts, runtime))
