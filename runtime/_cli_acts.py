"""The commands by which an operator moves threads on, or ends them."""

from __future__ import annotations

from typing import Annotated

import typer

from ._cli_options import AsJson, Code, StoreURL, ThreadId, Workspace, run_async

Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the record.")]
By = Annotated[str, typer.Option(metavar="NAME", help="Who says so.")]


def register(app: typer.Typer) -> None:
    """Add them."""
    for name, command in (
        ("signal", signal_command),
        ("resolve", resolve_command),
        ("retry", retry_command),
        ("cancel", cancel_command),
        ("terminate", terminate_command),
    ):
        app.command(name)(command)


def signal_command(
    thread: ThreadId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which of its machine's signals.")],
    data: Annotated[str | None, typer.Option(metavar="JSON", help="The signal's payload.")] = None,
    id: Annotated[str | None, typer.Option(help="Once by id: the same again changes nothing.")] = None,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Put a signal into a thread's inbox."""
    from ._cli_look import place_of
    from ._cli_signal import send_signal
    from ._cli_text import Output

    place = place_of(workspace, store, runtime)
    run_async(send_signal(Output(as_json=as_json), place, thread, name, data, id))


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


def cancel_command(
    thread: ThreadId,
    reason: Reason = "",
    by: By = "operator",
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """Ask a thread to end, as its machine sees fit."""
    from ._cli_end import cancel_thread
    from ._cli_look import place_of
    from ._cli_text import Output

    run_async(cancel_thread(Output(as_json=as_json), place_of(workspace, store), thread, by, reason))


def terminate_command(
    thread: ThreadId,
    reason: Reason = "",
    by: By = "operator",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    workspace: Workspace = "default",
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """End a thread at once, whatever it is doing.

    Exit status 1 where you say no.
    """
    from ._cli_end import terminate_thread
    from ._cli_look import place_of
    from ._cli_text import Output

    out, place = Output(as_json=as_json), place_of(workspace, store)
    raise typer.Exit(run_async(terminate_thread(out, place, thread, by, reason, yes)))
