"""``perdure stats``: how many threads there are and where, and what one of them takes."""

from __future__ import annotations

from typing import Any

from perdure.stores import StoreFacts, store_facts

from ._cli_load import address_of
from ._cli_look import Place, row_json
from ._cli_text import Output, Styled, counted
from ._cli_units import size_text
from ._look import find_thread
from ._spill import bare
from ._survey import Count, Growth, count_threads, growth


async def show_store_stats(out: Output, place: Place) -> None:
    """Threads by status, machine and state, and the store's files."""
    import anyio

    async with place.store as store:
        count = await count_threads(store, place.workspace)
        facts = await anyio.to_thread.run_sync(store_facts, bare(store))
    if out.as_json:
        out.json(_store_json(place, count, facts))
        return
    more = f" (there are more: these are the first {count.threads} by id)" if count.sampled else ""
    out.line(f"{counted(count.threads, 'thread')} in workspace {place.workspace!r}{more}")
    if count.by_state:
        rows = [(*key, number) for key, number in sorted(count.by_state.items(), key=lambda each: -each[1])]
        out.table(("machine", "state", "status", "threads"), rows[:50])
        if len(rows) > 50:
            out.line(f"and {len(rows) - 50} more kinds (--json has them all)")
    for reason, number in count.parked.items():
        out.line(Styled(f"parked ({reason})", "red"), f"  {number}: perdure ls --status parked")
    for row in count.longest:
        out.line(Styled("longest   ", "dim"), f"{row.address.thread_id}  {row.n} journal rows")
    for path, size in facts.files.items():
        out.line(Styled("file      ", "dim"), f"{path}  {size_text(size)}")
    if facts.files:
        out.line(Styled("store     ", "dim"), size_text(sum(facts.files.values())))
    elif facts.place:
        out.line(Styled("store     ", "dim"), facts.place)


def _store_json(place: Place, count: Count, facts: StoreFacts) -> dict[str, Any]:
    return {
        "workspace": place.workspace,
        "threads": count.threads,
        "sampled": count.sampled,
        "status": count.by_status,
        "machines": count.by_machine,
        "states": [
            {"machine": machine, "state": state, "status": status, "threads": number}
            for (machine, state, status), number in count.by_state.items()
        ],
        "parked": count.parked,
        "longest": [{"thread": row.address.thread_id, "rows": row.n} for row in count.longest],
        "store": facts.place,
        "files": facts.files,
        "bytes": sum(facts.files.values()) if facts.files else None,
    }


async def show_thread_stats(out: Output, place: Place, thread_id: str) -> None:
    """What one thread's record takes, and how it grows."""
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        row = await find_thread(store, address)
        found = await growth(store, row)
    if out.as_json:
        out.json({**row_json(row), **_growth_json(found)})
        return
    sampled = f", the newest {found.measured} measured" if found.measured < found.rows else ""
    for name, said in (
        ("thread", f"{thread_id}, {row.machine}, {row.standing.state} at seq {row.standing.seq}"),
        ("journal", f"{found.rows} rows{sampled}, {size_text(found.log_bytes)}"),
        ("snapshots", f"{found.snapshots}, {size_text(found.snapshot_bytes)} of that"),
        ("items", f"{found.items} rows, {size_text(found.items_bytes)}"),
        ("messages", f"{found.messages}, {size_text(found.message_bytes)}"),
        ("a step", _step_words(found)),
        ("data", size_text(found.data_bytes)),
    ):
        out.line(Styled(f"{name:<10}", "dim"), said)
    for name, size in found.largest:
        out.line(Styled("  field   ", "dim"), f"{name}  {size_text(size)}")


def _step_words(found: Growth) -> str:
    if not found.steps:
        return "none yet"
    middle, newest = size_text(found.median_step), size_text(found.newest_step)
    return f"median {middle} of {found.steps}, newest {newest}"


def _growth_json(found: Growth) -> dict[str, Any]:
    return {
        "rows": found.rows,
        "measured": found.measured,
        "log_bytes": found.log_bytes,
        "snapshots": found.snapshots,
        "snapshot_bytes": found.snapshot_bytes,
        "items": found.items,
        "items_bytes": found.items_bytes,
        "messages": found.messages,
        "message_bytes": found.message_bytes,
        "steps": found.steps,
        "median_step": found.median_step,
        "newest_step": found.newest_step,
        "data_bytes": found.data_bytes,
        "largest": [{"field": name, "bytes": size} for name, size in found.largest],
    }
