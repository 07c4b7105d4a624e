"""What the commands share: the options that several of them take, and the loop that they run in."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any, Literal, TypeVar

import typer

T = TypeVar("T")

Workspace = Annotated[str, typer.Option(help="Whom the threads belong to.")]
StoreURL = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="PERDURE_STORE",
        help="Where the threads are; else the store of the runtime that is named, or sqlite:///perdure.db.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on one line instead of text.")]
Code = Annotated[
    str | None,
    typer.Option("--runtime", metavar="MODULE:NAME", help="The runtime with the thread's machine."),
]
ThreadId = Annotated[str, typer.Argument(metavar="THREAD")]
Cases = Literal["running", "waiting", "parked", "ended"]


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run one command's work in a loop of its own."""
    import asyncio  # put off: `--help` needs no loop

    return asyncio.run(work)
