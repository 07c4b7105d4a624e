"""The commands that read a thread's record: data, diff, journal."""

from __future__ import annotations

from typing import Annotated

import typer

from ._cli_options import AsJson, StoreURL, ThreadId, Workspace, run_async


def register(app: typer.Typer) -> None:
    """Add them."""
    for name, command in (("data", data_command), ("diff", diff_command), ("journal", journal_command)):
        app.command(name)(command)


def data_command(
    thread: ThreadId,
    at: Annotated[int | None, typer.Option(metavar="SEQ", help="The checkpoint; else the newest.")] = None,
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Show a thread's data as it was at a checkpoint."""
    from ._cli_data import show_data
    from ._cli_look import place_of
    from ._cli_text import Output

    run_async(show_data(Output(as_json=as_json), place_of(workspace, store), thread, at))


def diff_command(
    thread: ThreadId,
    first: Annotated[int, typer.Argument(metavar="SEQ")],
    second: Annotated[int, typer.Argument(metavar="SEQ")],
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed in a thread's data, field by field."""
    from ._cli_data import show_diff
    from ._cli_look import place_of
    from ._cli_text import Output

    run_async(show_diff(Output(as_json=as_json), place_of(workspace, store), thread, first, second))


def journal_command(
    thread: ThreadId,
    verify: Annotated[bool, typer.Option("--verify", help="Check that it is as it was written.")] = False,
    after: Annotated[int, typer.Option(min=-1, metavar="N", help="Only rows behind this one.")] = -1,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Rows a page.")] = 100,
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Show a thread's stored rows, or verify their chain.

    Exit status 1 when a link is broken.
    """
    from ._cli_journal import show_journal, verify_journal
    from ._cli_look import place_of
    from ._cli_text import Output

    out, place = Output(as_json=as_json), place_of(workspace, store)
    if verify:
        raise typer.Exit(run_async(verify_journal(out, place, thread)))
    run_async(show_journal(out, place, thread, after, limit))
