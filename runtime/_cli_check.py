"""The command that looks before a deploy: check."""

from __future__ import annotations

from typing import Annotated

import typer

from ._cli_options import AsJson, StoreURL


def register(app: typer.Typer) -> None:
    """Add it."""
    app.command("check")(check_command)


def check_command(
    runtime: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The code at hand.")],
    sample: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only so many, of each machine, state and version."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="How many look side by side.")
    ] = 1,
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """List the threads that this code would not go on with.

    Nothing is written, and no thread is claimed. Exit status 1 when there are any.
    """
    from ._check_said import look, tell
    from ._cli_text import Output

    report = look(runtime, store, sample, processes)
    tell(Output(as_json=as_json), report)
    raise typer.Exit(1 if report.stopped else 0)
