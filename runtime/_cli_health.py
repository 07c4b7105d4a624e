"""``perdure health``: of all workers, from their store; or of one process, from its port."""

from __future__ import annotations

from typing import Annotated

import typer

from ._cli_options import AsJson, StoreURL, run_async


def register(app: typer.Typer) -> None:
    """Add it."""
    app.command("health")(health_command)


def health_command(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Ask the process that serves with this --health-port."),
    ] = None,
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Say whether workers are alive and threads move on.

    Exit status 0 when all is well, else 1. Of a process, with --port: 0 while it lives, also degraded.
    """
    from ._cli_fares import tell_of_process, tell_of_store
    from ._cli_load import store_at
    from ._cli_text import Output

    out = Output(as_json=as_json)
    if port is not None:
        raise typer.Exit(tell_of_process(out, port))
    raise typer.Exit(run_async(tell_of_store(out, store_at(store))))
