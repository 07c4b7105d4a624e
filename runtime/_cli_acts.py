"""The commands by which an operator moves threads on: resolve, retry."""

from __future__ import annotations

from typing import Annotated

import typer

from ._cli_options import AsJson, Code, StoreURL, ThreadId, Workspace, run_async


def register(app: typer.Typer) -> None:
    """Add them."""
    for name, command in (("resolve", resolve_command), ("retry", retry_command)):
        app.command(name)(command)


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
    from ._cli_look import place_of
    from ._cli_operate import operate, resolution_of
    from ._cli_text import Output

    said = resolution_of(done=done, not_done=not_done, adopt=adopt, run=run, ignore=ignore, effect=effect)
    place = place_of(workspace, store, runtime)
    run_async(operate(Output(as_json=as_json), place, thread, said))


def retry_command(
    thread: ThreadId,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Let a parked thread go on from its record."""
    from ._cli_look import place_of
    from ._cli_operate import operate
    from ._cli_text import Output

    place = place_of(workspace, store, runtime)
    run_async(operate(Output(as_json=as_json), place, thread, None))
