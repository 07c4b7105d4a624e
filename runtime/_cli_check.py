"""The command that looks before a deploy: check."""

from __future__ import annotations

from pathlib import Path
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
    frozen: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Look at what `perdure freeze` wrote; at no store.")
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
    from ._freeze_said import look_at_folder

    if frozen is None:
        report = look(runtime, store, sample, processes)
    elif sample is None and processes == 1:
        report = look_at_folder(runtime, frozen)
    else:
        raise typer.BadParameter("--frozen looks at each file: leave --sample and --processes away")
    tell(Output(as_json=as_json), report)
    raise typer.Exit(1 if report.stopped else 0)
