"""``perdure memory``: the facts of a workspace, read and written from the shell, their values as JSON."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ._cli_options import AsJson, Code, StoreURL, Workspace, run_async

if TYPE_CHECKING:
    from perdure.stores import MemoryRow, Store

    from ._cli_text import Output
    from ._client_memory import ClientMemory, Fact

T = TypeVar("T")

NamespaceName = Annotated[str, typer.Argument(metavar="NAMESPACE")]
Key = Annotated[str, typer.Argument(metavar="KEY")]
Principal = Annotated[str, typer.Option(help="As whom it is written.")]
IfVersion = Annotated[
    int | None,
    typer.Option("--if-version", min=0, metavar="N", help="Only over this version; 0: only where none is."),
]


def register(app: typer.Typer) -> None:
    """Add them."""
    group = typer.Typer(help="Read and write facts that outlive threads.", rich_markup_mode=None)
    for name, command in (
        ("get", get_command),
        ("put", put_command),
        ("ls", ls_command),
        ("history", history_command),
        ("rm", rm_command),
    ):
        group.command(name)(command)
    app.add_typer(group, name="memory")


def get_command(
    namespace: NamespaceName,
    key: Key,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Print a fact's value; exit status 1 where there is none."""
    from ._cli_text import Output

    out = Output(as_json=as_json)

    async def work(memory: ClientMemory) -> Fact[Any] | None:
        return await memory.get(namespace, key, workspace=workspace)

    fact = run_async(_inside(_store(store, runtime), work))
    if fact is None:
        Output(as_json=False, stream=sys.stderr).line(
            f"perdure: workspace {workspace!r} has no memory {namespace}/{key}"
        )
        raise typer.Exit(1)
    if out.as_json:
        out.json(_json(fact))
    else:
        out.pretty(fact.value)


def put_command(
    namespace: NamespaceName,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The value; - reads it from the input.")],
    if_version: IfVersion = None,
    expires: Annotated[
        str | None, typer.Option(metavar="SPAN", help="How long it is seen, as in 12h or 30d.")
    ] = None,
    principal: Principal = "owner",
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Write a fact's next version.

    The value is a JSON value in the form in which the machines' code stores it; nothing checks its type here.
    """
    from ._cli_load import parse
    from ._cli_text import Output
    from ._cli_units import span_of

    given = parse(sys.stdin.read() if value == "-" else value, "JSON", Any)
    span = None if expires is None else span_of(expires, "--expires")

    async def work(memory: ClientMemory) -> Fact[Any]:
        return await memory.put(
            namespace,
            key,
            given,
            workspace=workspace,
            principal=principal,
            if_version=if_version,
            expires=span,
        )

    fact = run_async(_inside(_store(store, runtime), work))
    out = Output(as_json=as_json)
    if out.as_json:
        out.json(_json(fact))
    else:
        out.line(f"memory {namespace}/{key} is at version {fact.version}")


def ls_command(
    namespace: Annotated[str | None, typer.Argument(metavar="NAMESPACE", help="Only of this one.")] = None,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Where the last page ended.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Records a page.")] = 50,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """List facts, a page at a time, without what was deleted or has expired."""
    from ._cli_text import Output

    opened = _store(store, runtime)
    run_async(_ls(Output(as_json=as_json), opened, workspace, namespace, after, limit))


async def _ls(
    out: Output, opened: Store, workspace: str, namespace: str | None, after: str | None, limit: int
) -> None:
    from perdure.stores import MAX_WORKSPACE, Memory, check_name

    from ._cli_load import BadInput
    from ._env import Env
    from ._spill import bare, with_body_of
    from ._step_memory import value_at

    check_name("workspace", workspace, MAX_WORKSPACE)
    async with opened as store:
        try:
            page = await bare(store).page(
                Memory(workspace=workspace, namespace=namespace), after=after, limit=limit
            )
        except ValueError as error:
            raise BadInput(f"--after: {error}: give what `perdure memory ls` printed") from None
        now = Env().now()
        rows = [row for row in page.rows if value_at(row, now) is not None]
        seen = [_seen(await with_body_of(store, row, workspace)) for row in rows]
    if out.as_json:
        out.json({"facts": [_json(*each) for each in seen], "next": page.next})
        return
    out.table(
        ("namespace", "key", "version", "written", "by", "expires", "value"), [_cells(*each) for each in seen]
    )
    if page.next is not None:
        out.line("more: perdure memory ls --after ", page.next)


def history_command(
    namespace: NamespaceName,
    key: Key,
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Show every version of a fact that is kept, oldest first: one line each."""
    from ._cli_text import Output

    run_async(_history(Output(as_json=as_json), _store(store, runtime), workspace, namespace, key))


async def _history(out: Output, opened: Store, workspace: str, namespace: str, key: str) -> None:
    from perdure.stores import MAX_WORKSPACE, Memory, check_name

    from ._look import rows_left

    check_name("workspace", workspace, MAX_WORKSPACE)
    query = Memory(workspace=workspace, namespace=namespace, key=key, history=True)
    async with opened as store:
        async for row in rows_left(store, query, workspace):
            if out.as_json:
                out.json(_json(*_seen(row)))
            else:
                _, _, version, written, by, expires, value = _cells(*_seen(row))
                until = f", until {expires}" if expires else ""
                out.line(f"{version:>4}  {written}  {by}{until}  {value}")


def rm_command(
    namespace: NamespaceName,
    key: Key,
    if_version: IfVersion = None,
    principal: Principal = "owner",
    workspace: Workspace = "default",
    store: StoreURL = None,
    runtime: Code = None,
    as_json: AsJson = False,
) -> None:
    """Delete a fact. Its earlier versions stay as history; one that is not there is no error."""
    from ._cli_text import Output

    async def work(memory: ClientMemory) -> bool:
        return await memory.delete(
            namespace, key, workspace=workspace, principal=principal, if_version=if_version
        )

    deleted = run_async(_inside(_store(store, runtime), work))
    out = Output(as_json=as_json)
    if out.as_json:
        out.json({"namespace": namespace, "key": key, "deleted": deleted})
    else:
        out.line(f"memory {namespace}/{key} " + ("is deleted" if deleted else "was not there"))


def _store(url: str | None, code: str | None) -> Store:
    from ._cli_load import load_runtime, store_at

    return store_at(url, None if code is None else load_runtime(code))


async def _inside(opened: Store, work: Callable[[ClientMemory], Awaitable[T]]) -> T:
    from ._client_memory import ClientMemory
    from ._env import Env

    async with opened as store:
        return await work(ClientMemory(store, Env()))


def _seen(row: MemoryRow) -> tuple[Fact[Any], str]:
    """A stored version, and what is wrong where its value cannot be read: the others are listed still."""
    from attrs import evolve

    from perdure.machines import Unreadable

    from ._client_memory import fact_of
    from ._spilled import is_spilled, words_of_lost

    if row.value is not None and is_spilled(row.value):
        wrong = words_of_lost(row.value)
    else:
        try:
            return fact_of(row.namespace, row), ""
        except Unreadable as error:
            wrong = str(error)
    return fact_of(row.namespace, evolve(row, value=None)), wrong


def _json(fact: Fact[Any], wrong: str = "") -> dict[str, Any]:
    said = {"wrong": wrong} if wrong else {}
    return {
        **said,
        "namespace": fact.namespace,
        "key": fact.key,
        "version": fact.version,
        "value": fact.value,
        "at": fact.at,
        "principal": fact.principal,
        "thread": fact.thread_id,
        "seq": fact.seq,
        "expires": fact.expires,
    }


def _cells(fact: Fact[Any], wrong: str) -> tuple[Any, ...]:
    """A fact's columns; its value on one line, cut where it is long."""
    from ._cli_text import as_json

    value = wrong or ("deleted" if fact.value is None else as_json(fact.value))
    return (
        fact.namespace,
        fact.key,
        fact.version,
        f"{fact.at:%Y-%m-%d %H:%M:%S}Z",
        fact.principal if fact.thread_id is None else f"{fact.thread_id}@{fact.seq}",
        "" if fact.expires is None else f"{fact.expires:%Y-%m-%d %H:%M:%S}Z",
        value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}...",
    )


LONGEST_VALUE = 200
"""Characters of a value in a list."""
