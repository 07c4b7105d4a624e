"""``perdure data`` and ``diff``: a thread's data at a checkpoint, and what changed between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perdure.stores import ThreadRow

from ._cli_load import BadInput, address_of
from ._cli_look import Place
from ._cli_text import Output, Styled, short
from ._context import moment
from ._look import find_thread
from ._stored_data import Change, StoredData, changes, data_at

SHOWN_ITEMS = 20


async def show_data(out: Output, place: Place, thread_id: str, seq: int | None) -> None:
    """The data at a checkpoint, by default the newest."""
    row, [data] = await _read(place, thread_id, [seq])
    if out.as_json:
        where = {"thread": thread_id, "workspace": place.workspace, "machine": row.machine}
        out.json({**where, **_where(data), "data": data.values})
        return
    led = "its start" if data.event is None else data.event
    out.line(
        f"thread {thread_id!r} at seq {data.seq} in {data.state}",
        Styled(f"  {led}, {moment(data.at):%Y-%m-%d %H:%M:%S}Z", "dim"),
    )
    out.pretty(data.values)


async def show_diff(out: Output, place: Place, thread_id: str, first: int, second: int) -> None:
    """What changed from one checkpoint to the other, field by field."""
    _, [before, after] = await _read(place, thread_id, [first, second])
    found = changes(before, after)
    if out.as_json:
        ends = {"from": _where(before), "to": _where(after)}
        changed = [_change_json(change) for change in found]
        out.json({"thread": thread_id, "workspace": place.workspace, **ends, "changes": changed})
        return
    out.line(
        f"thread {thread_id!r} from seq {before.seq} in {before.state} to seq {after.seq} in {after.state}"
    )
    if not found:
        out.line("  no field is different")
    for change in found:
        for line in _change_lines(change):
            out.line(*line)


async def _read(
    place: Place, thread_id: str, seqs: Sequence[int | None]
) -> tuple[ThreadRow, list[StoredData]]:
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        row = await find_thread(store, address)
        try:
            at = [row.standing.seq if seq is None else seq for seq in seqs]
            return row, [await data_at(store, row, seq) for seq in at]
        except ValueError as error:
            raise BadInput(f"{error}: `perdure history {thread_id}` lists them") from None


def _where(data: StoredData) -> dict[str, Any]:
    return {"seq": data.seq, "state": data.state, "event": data.event, "at": moment(data.at)}


def _change_json(change: Change) -> dict[str, Any]:
    said: dict[str, Any] = {"field": change.field, "change": change.kind}
    if change.kind in ("set", "gone"):
        said["before"] = change.before
    if change.kind in ("set", "new"):
        said["after"] = change.after
    if change.kind == "appended":
        said |= {"items": change.items, "dropped": change.dropped}
    return said


def _change_lines(change: Change) -> Iterator[list[object]]:
    name = Styled(f"  {change.field}", "bold")
    match change.kind:
        case "set":
            yield [name, f"  {short(change.before)} -> {short(change.after)}"]
        case "gone":
            yield [name, Styled(f"  gone, was {short(change.before)}", "red")]
        case "new":
            yield [name, Styled(f"  new, {short(change.after)}", "green")]
        case _:
            dropped = f", the oldest {change.dropped} dropped" if change.dropped else ""
            yield [name, f"  {len(change.items)} appended{dropped}"]
            for item in change.items[:SHOWN_ITEMS]:
                yield [Styled(f"    + {short(item)}", "green")]
            if len(change.items) > SHOWN_ITEMS:
                yield [f"    and {len(change.items) - SHOWN_ITEMS} more (--json has them all)"]
