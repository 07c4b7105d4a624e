"""``perdure ls``, ``history`` and ``why``: what stands in a store, with or without the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from perdure.machines import Definition
from perdure.stores import (
    MAX_WORKSPACE,
    Status,
    Store,
    ThreadRow,
    Threads,
    check_name,
)

from ._cli_load import BadInput, address_of, load_runtime, store_at
from ._cli_text import Output, Styled
from ._context import moment
from ._env import Env
from ._look import (
    CallSeen,
    StepSeen,
    find_thread,
    history,
    why,
)


@frozen(kw_only=True)
class Place:
    """Where a command looks: a workspace of a store, with the code that was named."""

    workspace: str
    store: Store
    code: str | None
    definitions: Mapping[str, Definition]


def place_of(workspace: str, url: str | None, code: str | None = None) -> Place:
    """What the options name; the store is not opened yet."""
    check_name("workspace", workspace, MAX_WORKSPACE)
    runtime = None if code is None else load_runtime(code)
    definitions: Mapping[str, Definition] = {} if runtime is None else runtime.definitions
    return Place(workspace=workspace, store=store_at(url, runtime), code=code, definitions=definitions)


# --- ls -------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Filter:
    """Which threads are listed."""

    machine: str | None
    state: str | None
    status: Status | None
    after: str | None
    limit: int


async def ls(out: Output, place: Place, asked: Filter) -> None:
    """One page of threads, and where the next begins."""
    query = Threads(workspace=place.workspace, machine=asked.machine, state=asked.state, status=asked.status)
    async with place.store as store:
        try:
            page = await store.page(query, after=asked.after, limit=asked.limit)
        except ValueError as error:
            raise BadInput(f"--after: {error}: give what `perdure ls` printed") from None
    if out.as_json:
        out.json({"threads": [row_json(row) for row in page.rows], "next": page.next})
        return
    out.table(
        ("thread", "machine", "state", "status", "seq", "updated"),
        [
            (
                row.address.thread_id,
                row.machine,
                row.standing.state,
                status_words(row),
                row.standing.seq,
                f"{moment(row.updated):%Y-%m-%d %H:%M:%S}Z",
            )
            for row in page.rows
        ],
    )
    if page.next is not None:
        out.line("more: perdure ls --after ", page.next)


def status_words(row: ThreadRow) -> str:
    """``ended``, or ``parked (in doubt)``."""
    standing = row.standing
    return f"{standing.status} ({standing.reason})" if standing.reason else standing.status


def row_json(row: ThreadRow) -> dict[str, Any]:
    """A thread's row for programs."""
    standing = row.standing
    return {
        "thread": row.address.thread_id,
        "workspace": row.address.workspace,
        "machine": row.machine,
        "version": standing.version,
        "state": standing.state,
        "status": standing.status,
        "reason": standing.reason,
        "note": standing.note,
        "seq": standing.seq,
        "wake": None if standing.wake is None else moment(standing.wake),
        "session": row.session,
        "principal": row.principal,
        "created": moment(row.created),
        "updated": moment(row.updated),
    }


# --- history --------------------------------------------------------------------------------------


async def show_history(out: Output, place: Place, thread_id: str) -> None:
    """One line a step, as they are read."""
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        row = await find_thread(store, address)
        async for step in history(store, row):
            if out.as_json:
                out.json(_step_json(step))
            else:
                out.line(*_step_line(step))


def _step_line(step: StepSeen) -> list[object]:
    moved = f"{step.state} -> {step.dest}" if step.state else f"-> {step.dest}"
    if step.event is None:
        moved = f"{step.state}, not over"
    line: list[object] = [
        Styled(f"{step.seq:>4}  ", "dim"),
        Styled(moved, "bold"),
        f"  {step.event or ''}".rstrip(),
    ]
    if step.attempts > 1:
        line.append(f"  {step.attempts} attempts")
    line += [f"  {_call(call)}" for call in step.calls]
    line += [f"  artifact {ref}" for ref in step.artifacts]
    line += [Styled(f"  failed: {error}", "red") for error in step.errors]
    line += [Styled(f"  [{said}]", "yellow") for said in step.decisions]
    return line


def _call(call: CallSeen) -> str:
    times = f" x{call.issues}" if call.issues > 1 else ""
    key = f" {call.key}" if call.key else ""
    return f"{call.name}{times}: {call.outcome}{key}"


def _step_json(step: StepSeen) -> dict[str, Any]:
    return {
        "seq": step.seq,
        "state": step.state or None,
        "event": step.event,
        "to": step.dest,
        "at": step.at,
        "attempts": step.attempts,
        "calls": [
            {"name": c.name, "kind": c.kind, "outcome": c.outcome, "key": c.key, "issues": c.issues}
            for c in step.calls
        ],
        "artifacts": step.artifacts,
        "decisions": step.decisions,
        "errors": step.errors,
    }


# --- why ------------------------------------------------------------------------------------------


async def show_why(out: Output, place: Place, thread_id: str) -> None:
    """Why the thread is where it is, and what moves it on."""
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        row = await find_thread(store, address)
        env = Env()
        said = await why(store, place.definitions.get(row.machine), row, env.now(), env.ended)
    if out.as_json:
        out.json({**row_json(row), "why": said})
    else:
        out.line(said)
