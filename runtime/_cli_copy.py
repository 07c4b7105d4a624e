"""``perdure copy``: everything in one store, put into another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ._cli_options import AsJson, run_async

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.stores import Store

    from ._cli_text import Output
    from ._copy import Tally


def register(app: typer.Typer) -> None:
    """Add it."""
    app.command("copy")(copy_command)


def copy_command(
    source: Annotated[
        str, typer.Option("--from", metavar="URL", help="The store that is copied; only read.")
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="URL", help="An empty store; made if it is not there.")
    ],
    as_json: AsJson = False,
) -> None:
    """Copy threads, memory and records from one store into another, and verify that all is there.

    Broken off at any point, the same command goes on from there. Workers have to be ended first, and nothing
    may signal or start threads meanwhile. Artifacts' records are copied; their bytes stay where they are.
    """
    from ._cli_text import Output

    out = Output(as_json=as_json)
    tallies = run_async(_copy(out, *_places(source, target)))
    if as_json:
        out.json(
            {"rows": {t.kind: {"copied": t.copied, "there": t.there} for t in tallies}, "verified": True}
        )
    else:
        _tell(out, tallies)


def _places(source: str, target: str) -> tuple[Store, Store]:
    from pathlib import Path

    from perdure.stores import MemoryStore, SQLiteStore, open_store

    from ._cli_load import BadInput

    old, new = open_store(source, read_only=True), open_store(target)
    if isinstance(old, MemoryStore) or isinstance(new, MemoryStore):
        raise BadInput("memory:// is a new, empty store each time: name one that lasts")
    if source == target:
        raise BadInput("--from and --to name the same store: name another one with --to")
    if isinstance(old, SQLiteStore):
        if not Path(old.path).exists():
            raise BadInput(f"there is no store at {old.path!r}: name the one to be copied with --from")
        if isinstance(new, SQLiteStore) and Path(new.path).resolve() == Path(old.path).resolve():
            raise BadInput(f"--from and --to are one file, {old.path!r}: name another one with --to")
    return old, new


async def _copy(out: Output, source: Store, target: Store) -> Sequence[Tally]:
    from ._copy import copy_store, see_idle
    from ._env import Env

    env = Env()
    async with source as old:
        await see_idle(old, "source", env)  # before the target is made
        async with target as new:
            return await copy_store(old, new, env, Progress(out))


class Progress:
    """A line for each kind as soon as it is copied."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def kind(self, tally: Tally) -> None:
        """Say how many there were."""
        if not self._out.as_json:
            there = f", {tally.there:,} of them there already" if tally.there else ""
            self._out.line(f"{tally.kind:<12}{tally.total:>9,}{there}")
            self._out.flush()

    def verifying(self) -> None:
        """Say that what follows may take as long again."""
        if not self._out.as_json:
            self._out.line("verifying   every row, in both stores")
            self._out.flush()


def _tell(out: Output, tallies: Sequence[Tally]) -> None:
    from ._cli_text import counted

    rows = counted(sum(tally.total for tally in tallies), "row")
    threads = counted(next(tally.total for tally in tallies if tally.kind == "thread"), "thread")
    out.line(f"the same    {rows}, {threads} with their journals' heads")
    out.line("next        give workers and clients the new URL as their --store; nothing may use the old one")
