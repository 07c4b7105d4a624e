"""``perdure gc``: ends what has had its time, and deletes blobs that nothing holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ._cli_options import AsJson, Code, StoreURL, run_async

if TYPE_CHECKING:
    from ._cli_text import Output
    from ._collect import Collected

ArtifactsURL = Annotated[
    str | None,
    typer.Option(
        "--artifacts",
        metavar="URL",
        envvar="PERDURE_ARTIFACTS",
        help="Where the blobs are; by default the runtime's own place, file:artifacts without one.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add it."""
    app.command("gc")(gc_command)


def gc_command(
    grace: Annotated[
        str, typer.Option(metavar="SPAN", help="Blobs younger than this stay, as in 15m, 1h or 2d.")
    ] = "1h",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")
    ] = False,
    store: StoreURL = None,
    artifacts: ArtifactsURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Delete expired records, then blobs that nothing holds, of every workspace.

    A blob is held by what a thread put, by an upload that has not expired, and by memory that cites it. It is
    safe beside running workers. The grace must be longer than clocks differ.
    """
    from ._cli_load import backend_at, load_runtime, store_at
    from ._cli_text import Output
    from ._cli_units import span_of
    from ._collect import collect
    from ._env import Env

    span = span_of(grace, "--grace")
    loaded = None if runtime is None else load_runtime(runtime)
    opened, backend = store_at(store, loaded, artifacts=artifacts), backend_at(artifacts, loaded)

    async def work() -> Collected:
        async with opened as records, backend as blobs:
            return await collect(records, blobs, Env().now, grace=span, dry_run=dry_run)

    _tell(Output(as_json=as_json), run_async(work()), dry_run=dry_run)


def _tell(out: Output, done: Collected, *, dry_run: bool) -> None:
    from ._cli_units import size_text

    expired = done.expired
    if out.as_json:
        out.json(
            {
                "dry_run": dry_run,
                "expired": {
                    "memory": expired.memory,
                    "uploads": expired.artifacts,
                    "keys": expired.keys,
                },
                "blobs": done.blobs,
                "size_bytes": done.size_bytes,
                "held": done.held,
                "young": done.young,
            }
        )
        return
    would = "would be " if dry_run else ""
    out.line(
        f"{would}expired: {_count(expired.memory, 'memory version')}, {_count(expired.artifacts, 'upload')}, "
        f"{_count(expired.keys, 'explicit key')}"
    )
    out.line(f"{would}deleted: {_count(done.blobs, 'blob')} ({size_text(done.size_bytes)})")
    out.line(f"left: {_count(done.held, 'blob')} held, {_count(done.young, 'blob')} younger than the grace")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
