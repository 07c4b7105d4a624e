"""``perdure serve``: a worker that runs until it is told to stop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from ._cli_options import StoreURL


def register(app: typer.Typer) -> None:
    """Add it."""
    app.command("serve")(serve_command)


def serve_command(
    runtime: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Where the runtime stands.")],
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Threads that run at once; else as the runtime says.")
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="How long running steps may go on after SIGTERM, as 10s or 2m."),
    ] = None,
    stall_limit: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="How long the event loop may be blocked; 30s if not given."),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Answer /healthz and /readyz on this port of 127.0.0.1; 0: any."),
    ] = None,
    store: StoreURL = None,
) -> None:
    """Run whatever there is to run, until SIGTERM.

    Then nothing new is begun, running steps go on until the grace ends, and the exit status is 0. A second
    signal leaves at once. Exit status 70 when the event loop has stalled.
    """
    from ._cli_load import load_runtime
    from ._cli_text import Output
    from ._cli_units import span_of
    from ._garbage import spare_collector
    from ._serve import serve

    out = Output(as_json=False)

    def tell(line: str) -> None:
        out.line(line)
        out.flush()

    work = serve(
        load_runtime(runtime),
        store=store,
        concurrency=concurrency,
        grace=None if grace is None else span_of(grace, "--grace"),
        stall_limit=None if stall_limit is None else span_of(stall_limit, "--stall-limit"),
        health_port=health_port,
        tell=tell,
    )
    spare_collector()
    raise typer.Exit(run_to_its_end(work))


def run_to_its_end(work: Coroutine[Any, Any, int]) -> int:
    """Run it, whatever other tasks raise: asyncio lets KeyboardInterrupt and SystemExit through to here, and
    one that a handler's own task has raised is that handler's failure."""
    import asyncio  # put off: `--help` needs no loop

    from ._observe import logger

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(work)
        while True:
            try:
                return loop.run_until_complete(task)
            except (KeyboardInterrupt, SystemExit) as error:
                if task.done():
                    raise
                logger.warning("a task raised %s: this worker goes on", type(error).__name__)
