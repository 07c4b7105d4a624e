"""``perdure artifacts``: the commands. What they do stands in ``_cli_blobs`` and ``_cli_lineage``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ._cli_gc import ArtifactsURL
from ._cli_options import AsJson, Code, StoreURL, Workspace, run_async

if TYPE_CHECKING:
    from ._cli_blobs import Depot

Ref = Annotated[str, typer.Argument(metavar="REF", help="An artifact's id, or its bytes' SHA-256.")]


def register(app: typer.Typer) -> None:
    """Add them."""
    group = typer.Typer(help="Look at artifacts, and move their bytes.", rich_markup_mode=None)
    for name, command in (
        ("ls", ls_command),
        ("show", show_command),
        ("from", from_command),
        ("into", into_command),
        ("dangling", dangling_command),
        ("verify", verify_command),
        ("get", get_command),
        ("put", put_command),
    ):
        group.command(name)(command)
    app.add_typer(group, name="artifacts")


def ls_command(
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Only what this thread put.")] = None,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Where the last page ended.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Artifacts a page.")] = 50,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """List artifacts in the order in which they were put, a page at a time."""
    from ._cli_lineage import ls
    from ._cli_text import Output

    depot = _depot(workspace, store, None, runtime, blobs=False)
    run_async(ls(Output(as_json=as_json), depot, thread, after, limit))


def show_command(
    ref: Ref,
    workspace: Workspace = "default",
    store: StoreURL = None,
    artifacts: ArtifactsURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Show an artifact's record: who put it, where and when, what from, and whether its bytes are there."""
    from ._cli_lineage import show
    from ._cli_text import Output

    run_async(show(Output(as_json=as_json), _depot(workspace, store, artifacts, runtime), ref))


def from_command(
    ref: Ref,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Where did it come from: what it was made from, and what that was made from, as a tree."""
    from ._cli_lineage import show_tree
    from ._cli_text import Output

    depot = _depot(workspace, store, None, runtime, blobs=False)
    run_async(show_tree(Output(as_json=as_json), depot, ref, back=True))


def into_command(
    ref: Annotated[str, typer.Argument(metavar="REF", help="An artifact, or a source as `show` names it.")],
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """What came from it: what was made from it, and what was made from that, as a tree."""
    from ._cli_lineage import show_tree
    from ._cli_text import Output

    depot = _depot(workspace, store, None, runtime, blobs=False)
    run_async(show_tree(Output(as_json=as_json), depot, ref, back=False))


def dangling_command(
    workspace: Workspace = "default",
    store: StoreURL = None,
    artifacts: ArtifactsURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Find refs in threads' data and in memory whose record or bytes are missing. Exit status 1: some are."""
    from ._cli_lineage import find_dangling
    from ._cli_text import Output

    depot = _depot(workspace, store, artifacts, runtime)
    raise typer.Exit(1 if run_async(find_dangling(Output(as_json=as_json), depot)) else 0)


def verify_command(
    refs: Annotated[
        list[str] | None, typer.Argument(metavar="[REF]...", help="Only these; by default all.")
    ] = None,
    workspace: Workspace = "default",
    store: StoreURL = None,
    artifacts: ArtifactsURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Read artifacts whole and compare them with their digests.

    Exit status 1: some are damaged or missing.
    """
    from ._cli_blobs import verify
    from ._cli_text import Output

    depot = _depot(workspace, store, artifacts, runtime)
    raise typer.Exit(1 if run_async(verify(Output(as_json=as_json), depot, refs or [])) else 0)


def get_command(
    ref: Ref,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; - is the output.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    workspace: Workspace = "default",
    store: StoreURL = None,
    artifacts: ArtifactsURL = None,
    runtime: Code = None,
) -> None:
    """Write an artifact's bytes to a file, which appears once they are whole and verified."""
    from ._cli_blobs import get
    from ._cli_text import Output

    told = Output(as_json=False, stream=sys.stderr)
    run_async(get(told, _depot(workspace, store, artifacts, runtime), ref, file, force=force))


def put_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What to put; - is the input.")],
    media_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="By default what the file's name says.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="SPAN", help="How long it is kept, as in 12h or 30d.")
    ] = None,
    principal: Annotated[str, typer.Option(help="As whom it is put.")] = "owner",
    workspace: Workspace = "default",
    store: StoreURL = None,
    artifacts: ArtifactsURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Put a file as an artifact, and print its ref."""
    from ._cli_blobs import Deposit, media_type_of, put
    from ._cli_text import Output
    from ._cli_units import span_of

    depot = _depot(workspace, store, artifacts, runtime, make=True)
    span = None if expires is None else span_of(expires, "--expires")
    kind = media_type_of(file) if media_type is None else media_type
    asked = Deposit(file=file, media_type=kind, expires=span, principal=principal)
    run_async(put(Output(as_json=as_json), depot, asked))


def _depot(
    workspace: str,
    store: str | None,
    artifacts: str | None,
    runtime: str | None,
    *,
    blobs: bool = True,
    make: bool = False,
) -> Depot:
    from perdure.stores import MAX_WORKSPACE, check_name

    from ._cli_blobs import Depot
    from ._cli_load import backend_at, load_runtime, store_at

    check_name("workspace", workspace, MAX_WORKSPACE)
    loaded = None if runtime is None else load_runtime(runtime)
    return Depot(
        workspace=workspace,
        store=store_at(store, loaded, artifacts=artifacts),
        backend=backend_at(artifacts, loaded, make=make) if blobs else None,
    )
