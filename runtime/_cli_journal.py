"""``perdure journal``: a thread's rows as they are stored, and whether its chain holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from perdure.stores import Log, LogRow

from ._cli_load import address_of
from ._cli_look import Place
from ._cli_text import Output, Styled, short
from ._context import moment
from ._journal import RAW_KEYS, Body, Entry, decode_body
from ._look import DAMAGE, find_thread
from ._verify import Verified, verify

SHOWN_ENTRIES = 20


async def show_journal(out: Output, place: Place, thread_id: str, after: int, limit: int) -> None:
    """One page of rows, each in a line, and where the next begins."""
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        row = await find_thread(store, address)
        page = await store.page(Log(address=address, after=after), limit=limit)
    for log in page.rows:
        body, damage = read_body(log)
        if out.as_json:
            out.json(row_json(log, body, damage))
        else:
            out.line(*row_line(log, body, damage))
    if page.rows and page.rows[-1].n + 1 < row.n and not out.as_json:
        out.line(f"more: perdure journal {thread_id} --after {page.rows[-1].n}")


def read_body(log: LogRow) -> tuple[Body, str | None]:
    """What the row says, or why it cannot be told."""
    if log.salt is None:
        return Body(), "purged"
    try:
        body = decode_body(log.payload)
        if any("k" not in entry for entry in body.entries):
            raise ValueError("an entry of no kind")
        return body, None
    except DAMAGE as error:
        return Body(), f"cannot be read: {type(error).__name__}: {error}"


def row_json(log: LogRow, body: Body, damage: str | None) -> dict[str, Any]:
    """A log row for programs."""
    return {
        "n": log.n,
        "seq": log.seq,
        "kind": log.kind,
        "epoch": log.epoch,
        "at": moment(log.at),
        "bytes": len(log.payload),
        "purged": log.salt is None,
        "damage": damage,
        "event": body.event,
        "from": body.source,
        "to": body.dest,
        "snapshot": body.base is not None,
        "fields": sorted((body.base or body.delta or {}).keys()),
        "entries": [_plain(entry) for entry in body.entries],
    }


def _plain(entry: Entry) -> dict[str, Any]:
    return {name: _value(value) if name in RAW_KEYS else value for name, value in entry.items()}


def _value(value: Any) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError):
        return repr(value)


def row_line(log: LogRow, body: Body, damage: str | None) -> list[object]:
    """A log row for people."""
    line: list[object] = [
        Styled(f"{log.n:>5}  seq {log.seq:<4} ", "dim"),
        Styled(f"{log.kind:<10}", "bold"),
        Styled(f"  epoch {log.epoch}  {moment(log.at):%Y-%m-%d %H:%M:%S.%f}Z  {len(log.payload)} B", "dim"),
    ]
    if damage is not None:
        line.append(Styled(f"  {damage}", "red"))
    if body.dest is not None:
        line.append(f"  {body.source or ''}{' -> ' if body.source else '-> '}{body.dest}")
    if body.event is not None:
        line.append(f"  {body.event}")
    if body.base is not None:
        line.append("  snapshot")
    elif body.delta:
        line.append(f"  sets {', '.join(body.delta)}")
    line += [f"  {said}" for said in _entries(body)]
    return line


def _entries(body: Body) -> Iterator[str]:
    for entry in body.entries[:SHOWN_ENTRIES]:
        what = [entry.get(name) for name in ("call", "key", "event", "answer", "error", "reason", "id")]
        shown = [each if isinstance(each, str) else short(each) for each in what if each not in (None, "")]
        yield f"[{' '.join([str(entry['k']), *shown[:3]])}]"
    if len(body.entries) > SHOWN_ENTRIES:
        yield f"and {len(body.entries) - SHOWN_ENTRIES} entries more"


# --- verify ---------------------------------------------------------------------------------------


async def verify_journal(out: Output, place: Place, thread_id: str) -> int:
    """Check the chain; status 1 where a link is broken."""
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        found = await verify(store, await find_thread(store, address))
    broken = found.broken
    if out.as_json:
        out.json({"thread": thread_id, "workspace": place.workspace, **_found_json(found)})
    elif broken is not None:
        out.line(
            f"thread {thread_id!r}: ",
            Styled("broken", "red"),
            f" at row {broken.n} (seq {broken.seq}), {broken.part}: {broken.note}; the {found.rows} rows "
            "before it hold",
        )
    else:
        for line in _whole(thread_id, found):
            out.line(line)
    return 0 if broken is None else 1


def _found_json(found: Verified) -> dict[str, Any]:
    broken = found.broken
    return {
        "whole": broken is None,
        "rows": found.rows,
        "purged": found.purged,
        "beside": found.beside,
        "open": found.open,
        "broken": None
        if broken is None
        else {"n": broken.n, "seq": broken.seq, "part": broken.part, "note": broken.note},
    }


def _whole(thread_id: str, found: Verified) -> Iterator[str]:
    purged = f"; {found.purged} purged, as the chain says" if found.purged else ""
    yield f"thread {thread_id!r}: {found.rows} rows follow each other from its incarnation on{purged}"
    yield (
        f"beside them: what {found.beside} rows wrote is as it was (items, messages, memory, artifacts, "
        "inbox entries taken in)"
    )
    if found.open:
        rows = ", ".join(str(n) for n in found.open[:10]) + (" and more" if len(found.open) > 10 else "")
        yield (
            f"not covered: what rows {rows} wrote beside them (explicit keys, memory checks, dropped "
            "artifacts and expired memory leave nothing to compare)"
        )
