"""What looks at records for ``perdure artifacts``: ls, show, dangling, and what was made from what."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import msgspec
from attrs import frozen

from perdure.artifacts import ArtifactBackend, NoSuchBlob
from perdure.machines import Unreadable
from perdure.stores import ArtifactRow, Artifacts, Memory, Store, Threads

from ._cli_blobs import Depot, put_by, record_of
from ._cli_load import BadInput
from ._cli_text import Output, Styled
from ._cli_units import size_text, time_text
from ._context import moment
from ._env import Env
from ._look import rows_left, rows_of
from ._provenance import MORE
from ._spilled import is_spilled, words_of_lost
from ._step_memory import value_at
from ._stored_data import stored_data

MOST_NODES = 1000
"""Lines of one tree."""


def _json(row: ArtifactRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "sha256": row.sha256,
        "media_type": row.media_type,
        "size_bytes": row.size_bytes,
        "workspace": row.workspace,
        "principal": row.principal,
        "thread": row.thread_id,
        "seq": row.seq,
        "created": moment(row.created),
        "expires": None if row.expires is None else moment(row.expires),
        "derived_from": row.derived_from,
    }


async def ls(out: Output, depot: Depot, thread: str | None, after: str | None, limit: int) -> None:
    """One page of artifacts, and where the next begins."""
    query = Artifacts(workspace=depot.workspace, thread_id=thread)
    async with depot.store as store:
        try:
            page = await store.page(query, after=after, limit=limit)
        except ValueError as error:
            raise BadInput(f"--after: {error}: give what `perdure artifacts ls` printed") from None
    if out.as_json:
        out.json({"artifacts": [_json(row) for row in page.rows], "next": page.next})
        return
    out.table(
        ("artifact", "media type", "size", "put by", "created", "expires"),
        [
            (
                row.id,
                row.media_type,
                size_text(row.size_bytes),
                put_by(row),
                time_text(row.created),
                time_text(row.expires),
            )
            for row in page.rows
        ],
    )
    if page.next is not None:
        out.line("more: perdure artifacts ls --after ", page.next)


async def show(out: Output, depot: Depot, ref: str) -> None:
    """One record, and whether its bytes are there."""
    async with depot.opened() as (store, blobs):
        row = await record_of(store, depot.workspace, ref)
        there = await _is_there(blobs, row.workspace, row.sha256)
    if out.as_json:
        out.json({**_json(row), "bytes": "there" if there else "missing"})
        return
    said = [
        ("artifact  ", row.id),
        ("media type", f" {row.media_type}"),
        ("size      ", size_text(row.size_bytes)),
        ("sha256    ", row.sha256),
        ("bytes     ", "there" if there else "missing: putting the same bytes again mends it"),
        ("put by    ", put_by(row)),
        ("principal ", row.principal),
        ("created   ", time_text(row.created)),
        *([("expires   ", time_text(row.expires))] if row.expires is not None else []),
    ]
    for name, value in said:
        out.line(Styled(name, "dim"), value)
    for n, source in enumerate(row.derived_from):
        out.line(Styled("made from " if n == 0 else "          ", "dim"), _source_text(source))


def _source_text(source: str) -> str:
    return "others before, which are not kept" if source == MORE else source


# --- trees ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Node:
    """One line of a tree."""

    depth: int
    name: str
    row: ArtifactRow | None
    above: bool = False
    """It stands further up with what lies below it."""


async def show_tree(out: Output, depot: Depot, ref: str, *, back: bool) -> None:
    """Where an artifact came from, or what came from it."""
    async with depot.store as store:
        nodes = [node async for node in _walk(store, depot.workspace, ref, back=back)]
    cut = len(nodes) > MOST_NODES
    if out.as_json:
        tree = [
            {
                "depth": node.depth,
                "name": node.name,
                "above": node.above,
                "record": None if node.row is None else _json(node.row),
            }
            for node in nodes[:MOST_NODES]
        ]
        out.json({"tree": tree, "cut": cut})
        return
    for node in nodes[:MOST_NODES]:
        out.line("  " * min(node.depth, 40), *_node_line(node))
    if cut:
        out.line(f"... more than {MOST_NODES:,} lines: go on from one of these")


def _node_line(node: Node) -> Iterator[object]:
    yield Styled(_source_text(node.name), "bold" if node.row is not None else "")
    if node.row is not None:
        row = node.row
        yield f"  {row.media_type}, {size_text(row.size_bytes)}, {put_by(row)}, {time_text(row.created)}"
    elif node.name.startswith("art_"):
        yield Styled("  its record is gone", "yellow")
    if node.above:
        yield Styled("  (see above)", "dim")


async def _walk(store: Store, workspace: str, ref: str, *, back: bool) -> AsyncIterator[Node]:
    """Depth first, each artifact's own once, and one node more than are shown."""
    if back or ref.startswith("art_") or len(ref) == 64:
        row: ArtifactRow | None = await record_of(store, workspace, ref)
    else:
        row = None  # a call or a fact, of which something was made
    waiting = [Node(depth=0, name=ref if row is None else row.id, row=row)]
    seen: set[str] = set()
    for _ in range(MOST_NODES + 1):
        if not waiting:
            return
        node = waiting.pop()
        if node.name in seen:
            yield Node(depth=node.depth, name=node.name, row=node.row, above=node.row is not None)
            continue
        seen.add(node.name)
        yield node
        room = MOST_NODES + 1 - len(waiting)
        below = _sources(store, workspace, node) if back else _made_from(store, workspace, node, room)
        waiting += reversed([each async for each in below])


async def _sources(store: Store, workspace: str, node: Node) -> AsyncIterator[Node]:
    for source in () if node.row is None else node.row.derived_from:
        page = await store.page(Artifacts(workspace=workspace, id=source), limit=1)
        yield Node(depth=node.depth + 1, name=source, row=page.rows[0] if page.rows else None)


async def _made_from(store: Store, workspace: str, node: Node, room: int) -> AsyncIterator[Node]:
    query = Artifacts(workspace=workspace, derived_from=node.name)
    page = await store.page(query, limit=max(1, room))
    for row in page.rows:
        yield Node(depth=node.depth + 1, name=row.id, row=row)


# --- dangling -------------------------------------------------------------------------------------


async def find_dangling(out: Output, depot: Depot) -> bool:
    """Tell each ref in threads' data and in memory whose record or bytes are missing; whether any are."""
    count = 0
    async with depot.opened() as (store, blobs):
        async for where, value in _values(store, depot.workspace):
            for ref in _refs_in(value):
                missing = await _missing(store, blobs, depot.workspace, ref)
                if missing:
                    count += 1
                    _tell_dangling(out, where, ref, missing)
    if not out.as_json:
        out.line(f"{count:,} dangling" if count else "nothing dangles")
    return count > 0


def _tell_dangling(out: Output, where: str, ref: dict[str, Any], missing: list[str]) -> None:
    if out.as_json:
        out.json({"where": where, "id": ref["id"], "sha256": ref["sha256"], "missing": missing})
    else:
        out.line(f"{where}: {ref['id']}: no {' and no '.join(missing)}")


async def _values(store: Store, workspace: str) -> AsyncIterator[tuple[str, Any]]:
    told = Output(as_json=False, stream=sys.stderr)
    async for thread in rows_of(store, Threads(workspace=workspace)):
        where = f"thread {thread.address.thread_id!r}"
        try:
            yield where, await stored_data(store, thread)
        except Unreadable as error:
            told.line(f"{where}: its data is passed over, since it cannot be read: {error}")
    now = Env().now()
    async for row in rows_left(store, Memory(workspace=workspace), workspace, 100):
        value, where = value_at(row, now), f"memory {row.namespace}/{row.key}"
        if value is None:
            continue
        if is_spilled(value):
            told.line(f"{where}: passed over, since it cannot be read: {words_of_lost(value)}")
        else:
            yield where, msgspec.json.decode(value)


def _refs_in(value: Any) -> Iterator[dict[str, Any]]:
    """The artifact refs in a plain JSON value, each once."""
    seen: set[str] = set()
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            found = cast("dict[str, Any]", each)
            waiting += found.values()
            named = (found.get("id"), found.get("sha256"))
            if (
                all(isinstance(part, str) for part in named)
                and "size_bytes" in found
                and named[0] not in seen
            ):
                seen.add(str(named[0]))
                yield found


async def _missing(store: Store, blobs: ArtifactBackend, workspace: str, ref: dict[str, Any]) -> list[str]:
    page = await store.page(Artifacts(workspace=workspace, id=ref["id"]), limit=1)
    missing = [] if page.rows else ["record"]
    if not await _is_there(blobs, workspace, ref["sha256"]):
        missing.append("bytes")
    return missing


async def _is_there(blobs: ArtifactBackend, workspace: str, sha256: str) -> bool:
    try:
        await blobs.stat(workspace, sha256)
    except NoSuchBlob:
        return False
    return True
