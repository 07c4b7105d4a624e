"""``perdure cancel`` and ``terminate``: what ends a thread from outside. Neither needs the machine's code."""

from __future__ import annotations

import sys

import typer

from perdure.stores import ThreadRow

from ._cancel import cancel, terminate
from ._cli_load import BadInput, address_of
from ._cli_look import Place, row_json
from ._cli_operate import answered
from ._cli_text import Output, safe
from ._env import Env
from ._look import ended_words, find_thread
from ._reserved import said_by
from ._wakeup import Bell


async def cancel_thread(out: Output, place: Place, thread_id: str, by: str, reason: str) -> None:
    """Put a cancel into the thread's inbox, once a thread, and say whose words stand."""
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        await find_thread(store, address)
        with answered(f"whether the cancel of thread {thread_id!r} landed", "ask again: it counts once"):
            sent = await cancel(store, address, by=by, reason=reason)
        row = await find_thread(store, address)
        await Bell(store, Env()).ring(address, owner=row.owner)
    said = said_by(sent.row)
    if out.as_json:
        out.json({**row_json(row), "message": said, "new": sent.new, "taken": sent.row.consumed is not None})
    elif row.standing.status == "ended":
        out.line(f"thread {thread_id!r} has ended: {ended_words(row.standing)}")
    elif not sent.new:
        out.line(f"thread {thread_id!r} was asked to end before, and those words stand: {said}")
    else:
        out.line(
            f"thread {thread_id!r} is asked to end ({said}): a worker does it, and `perdure why "
            f"{thread_id}` says where it stands"
        )


def agreed(place: Place, row: ThreadRow, yes: bool) -> bool:
    """Whether the operator wants it: said beforehand, or asked on a terminal."""
    where = f"thread {row.address.thread_id!r} of {row.machine}, in state {row.standing.state!r}"
    if yes or row.standing.status == "ended":
        return True
    if not sys.stdin.isatty():
        raise BadInput(f"{where}: to terminate it ends it for good, without asking its code: say --yes")
    held = "" if row.owner is None else f", while {row.owner} runs it"
    question = f"terminate {where}{held}? It ends for good, and effects in doubt stay so"
    return typer.confirm(safe(question), err=True)


async def terminate_thread(out: Output, place: Place, thread_id: str, by: str, reason: str, yes: bool) -> int:
    """End the thread at once; status 1 where the operator says no."""
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        if not agreed(place, await find_thread(store, address), yes):
            out.line(f"thread {thread_id!r} is left as it is")
            return 1
        with answered(f"whether thread {thread_id!r} was terminated", "terminate it again: it ends once"):
            owner = await terminate(store, Env(), address, by=by, reason=reason)
        if owner is not None:  # it stops its handler
            await Bell(store, Env()).ring(address, owner=owner)
        row = await find_thread(store, address)
    if out.as_json:
        out.json(row_json(row))
    else:
        out.line(f"thread {thread_id!r} has ended: {ended_words(row.standing)}")
    return 0
