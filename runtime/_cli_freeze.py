"""The command that copies checkpoints of real threads into a project's tests: freeze."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._cli_options import AsJson, StoreURL


def register(app: typer.Typer) -> None:
    """Add it."""
    app.command("freeze")(freeze_command)


def freeze_command(
    runtime: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Whose machines' threads.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go; made if it is not there.")],
    each: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Files of each shape, at most.")] = 1,
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Copy checkpoints of threads into files, for tests of later code.

    One for each machine, version, state, status, pending events and open effects. Nothing is written to the
    store. The files hold real data.
    """
    from ._cli_text import Output
    from ._freeze_said import freeze_into

    freeze_into(Output(as_json=as_json), runtime, store, out, each)
