"""One transition, one commit: updates merged, guard judged on what would be read back, everything written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from attrs import define, field

from perdure.machines import BadUpdate, Merged, NotStorable, Row, StatePlan
from perdure.stores import MemoryMoved, MemoryWrite, Micros, Standing

from ._context import Parking, Visit
from ._due import BadTime, Clocks, clocks_after
from ._errors import GuardRefused, PerdureError
from ._journal import Body, Entry, describe_error
from ._ledger import Conclusion
from ._progress import Progress, owned_values
from ._step_memory import PendingWrite, newest, value_at

MERGES = 100
"""How often one commit takes newer memory versions in before the thread parks as conflict: only other
processes are in its way, but each of them may be faster many times."""

Updates = list[tuple[str, Mapping[str, object]]]


@define(kw_only=True)
class Transition:
    """A transition about to be committed."""

    event: str
    updates: Updates = field(factory=list[tuple[str, Mapping[str, object]]])
    entries: list[Entry] = field(factory=list[Entry])
    consumed: tuple[int, ...] = ()
    memory: list[PendingWrite] = field(factory=list[PendingWrite])
    stored_memory: list[tuple[str, str, str, int]] = field(factory=list[tuple[str, str, str, int]])
    """Puts of branches that finished before a resume: namespace, key, encoded value, expected version."""
    asked_artifacts: set[str] = field(factory=set[str])


def judge(visit: Visit, event: str, data: Any) -> Row | None:
    """The first row of the event whose guard is true of the merged data. A raising guard parks the thread."""
    for row in visit.state.rows.get(event, ()):
        if row.guard is None:
            return row
        try:
            allowed = row.guard(visit.definition.data.shown(data))
        except BaseException as error:  # its own: nothing is awaited here
            said = describe_error(error)
            raise Parking(
                "failed",
                f"{visit.where}: guard {row.guard_name} of event {event!r} raised "
                f"{said['type']}: {said['message']}",
            ) from error
        if allowed:
            return row
    return None


def accepts(visit: Visit, progress: Progress, event: str, updates: Mapping[str, object]) -> bool:
    """Whether an event that is not the handler's would lead anywhere now; nothing is written. Updates that do
    not fit park the thread, as a raising guard does."""
    try:
        merged = merged_with(visit, progress, updates)
    except (BadUpdate, NotStorable) as error:
        raise Parking("failed", f"{visit.where}: event {event!r}: {error}") from error
    return judge(visit, event, merged.data) is not None


def merged_with(visit: Visit, progress: Progress, updates: Mapping[str, object]) -> Merged[Any]:
    """The data as these updates would leave it, for guards to judge. ``BadUpdate``, ``NotStorable``."""
    return visit.definition.data.merge(
        progress.live,
        [("main", updates)],
        owned_values(visit.row.address.thread_id, visit.seq + 1),
        n=visit.ledger.n,
        positions=progress.positions,
    )


def commit_transition(visit: Visit, progress: Progress, move: Transition) -> Awaitable[Progress]:
    """Commit it and return where the thread stands then. ``GuardRefused`` where no guard is true;
    ``MemoryMoved`` where memory that it puts over has changed and no rule merges it."""
    if move.memory or move.stored_memory or visit.book.artifacts:
        return _commit_with_parts(visit, progress, move)
    return visit.ledger.advance(partial(_build, visit, progress, move, ()))  # as of most transitions


async def _commit_with_parts(visit: Visit, progress: Progress, move: Transition) -> Progress:
    await drop_artifacts(visit, move.asked_artifacts)
    workspace = visit.row.address.workspace
    keys = [(workspace, write.namespace.name, write.key) for write in move.memory]
    keys += [(workspace, namespace, key) for namespace, key, _, _ in move.stored_memory]
    if not keys:
        return await visit.ledger.advance(partial(_build, visit, progress, move, ()))
    async with visit.memory_turns.at(keys):
        return await _commit_with_memory(visit, progress, move)


async def _commit_with_memory(visit: Visit, progress: Progress, move: Transition) -> Progress:
    restored = tuple(
        MemoryWrite(namespace=ns, key=key, value=value.encode(), expected=version)
        for ns, key, value, version in move.stored_memory
    )
    writes = [await _write_of(visit, pending) for pending in move.memory]
    for _ in range(MERGES):
        try:
            return await visit.ledger.advance(partial(_build, visit, progress, move, (*writes, *restored)))
        except MemoryMoved as moved:
            writes = await _take_in(visit, move.memory, moved)
    raise Parking("conflict", f"{visit.where}: memory changed under {MERGES} commits in a row")


def _build(
    visit: Visit, progress: Progress, move: Transition, memory: tuple[MemoryWrite, ...], n: int
) -> tuple[Conclusion, Progress]:
    definition, seq = visit.definition, visit.seq + 1
    merged = definition.data.merge(
        progress.live,
        move.updates,
        owned_values(visit.row.address.thread_id, seq),
        n=n,
        positions=progress.positions,
    )
    row = judge(visit, move.event, merged.data)
    if row is None:
        raise GuardRefused(_refusal(visit, move.event))
    at = visit.env.now()
    dest = definition.states[row.dest]
    # Deltas belong to their snapshot's version: other code's data does not mix into it.
    recoded = definition.version != progress.version
    snapshot = recoded or progress.snapshot_due(merged.size)
    base = definition.data.base(merged.data, merged.positions) if snapshot else None
    clocks = _clocks(visit, progress, row, merged.data, at)
    base_at = n if snapshot else visit.ledger.standing.base
    standing, release = _standing(visit, dest, clocks.due, seq=seq, base=base_at, items=merged.items_from)
    body = Body(
        event=move.event,
        source=visit.state.name,
        dest=dest.name,
        delta=None if snapshot else merged.delta,
        base=base,
        version=definition.version if snapshot else None,
        due=clocks.due,
        fired=clocks.fired,
    )
    conclusion = Conclusion(
        kind="transition",
        body=body,
        entries=move.entries,
        standing=standing,
        release=release,
        at=at,
    )
    if move.consumed:
        conclusion.parts["consumed"] = move.consumed
    if merged.items is not None:
        conclusion.parts["items"] = merged.items
    if merged.messages:
        conclusion.parts["messages"] = merged.messages
    if memory:
        conclusion.parts["memory"] = memory
    return conclusion, progress.advanced(merged, base, clocks, definition.version)


def _clocks(visit: Visit, progress: Progress, row: Row, data: Any, at: Micros) -> Clocks:
    try:
        return clocks_after(visit.definition, visit.state, row, data, progress.clocks, at)
    except BadTime as error:
        raise Parking("failed", f"{visit.where}: {error}") from error


def _standing(
    visit: Visit, dest: StatePlan, due: Mapping[str, Micros], *, seq: int, base: int, items: int
) -> tuple[Standing, bool]:
    waits = dest.waiting and not visit.has_pending()
    standing = Standing(
        state=dest.name,
        seq=seq,
        version=visit.definition.version,
        definition=visit.definition.hash,
        status="ended" if dest.final else "waiting" if waits else "running",
        base=base,
        wake=min(due.values(), default=None) if waits and not dest.final else None,
        expires=visit.ledger.standing.expires,
        items=items,
    )
    return standing, dest.final or waits


def _refusal(visit: Visit, event: str) -> str:
    rows = visit.state.rows.get(event, ())
    if not rows:
        return f"{visit.where}: event {event!r} does not leave this state"
    guards = ", ".join(row.guard_name or "?" for row in rows)
    return f"{visit.where}: event {event!r} was fired and its guard {guards} is false of the updated data"


async def drop_artifacts(visit: Visit, asked: AbstractSet[str]) -> None:
    """Records that earlier attempts left and this one did not ask for go, some dozens a commit."""
    gone = sorted(visit.book.artifacts - asked)
    for start in range(0, len(gone), 50):
        some = gone[start : start + 50]
        entry: Entry = {"k": "artifacts_dropped", "ids": some, "at": visit.env.now()}
        await visit.ledger.record([entry], dropped_artifacts=tuple(some))
        visit.book.apply(entry)


# --- memory ---------------------------------------------------------------------------------------


async def _write_of(visit: Visit, pending: PendingWrite) -> MemoryWrite:
    """What to write for a key: a put as it stands, updates applied to the newest version."""
    value, expected = pending.value, pending.expected
    if pending.updates:
        row = await newest(visit, pending.namespace.name, pending.key)
        value, expected = _value(visit, pending, row), row.version if row is not None else 0
        for fn in pending.updates:
            value = _pure(visit, pending, "the function given to update", fn, value)
    where = f"{visit.where}: memory {pending.namespace.name}/{pending.key}"
    encoded, _ = pending.namespace.codec.roundtrip(value, where)
    return MemoryWrite(namespace=pending.namespace.name, key=pending.key, value=encoded, expected=expected)


def _value(visit: Visit, pending: PendingWrite, row: Any) -> Any:
    value = value_at(row, visit.env.now())
    if value is None:
        return None
    where = f"{visit.where}: memory {pending.namespace.name}/{pending.key}"
    return pending.namespace.codec.decode(value, where)


def _pure(visit: Visit, write: PendingWrite, what: str, fn: Callable[..., Any], *values: Any) -> Any:
    """Call a user's function on memory's values; the attempt fails with what it raises."""
    try:
        return fn(*values)
    except BaseException as error:  # its own: nothing is awaited here
        said = describe_error(error)
        raise PerdureError(
            f"{visit.where}: memory {write.namespace.name}/{write.key}: {what} raised "
            f"{said['type']}: {said['message']}"
        ) from error


async def _take_in(visit: Visit, pending: Sequence[PendingWrite], moved: MemoryMoved) -> list[MemoryWrite]:
    """The writes again, over what has changed: updates re-applied, merge rules asked; else a conflict."""
    changed = {(row.namespace, row.key): row for row in moved.rows}
    mine = {(write.namespace.name, write.key) for write in pending}
    if moved.missing or not changed.keys() <= mine:
        raise moved
    writes: list[MemoryWrite] = []
    for write in pending:
        row = changed.get((write.namespace.name, write.key))
        if row is not None and not write.updates:
            if write.namespace.merge is None or write.exact:
                raise moved
            current = _value(visit, write, row)
            if current is not None:
                write.value = _pure(
                    visit, write, "its merge rule", write.namespace.merge, current, write.value
                )
            write.expected = row.version
        writes.append(await _write_of(visit, write))
    return writes


def merged_memory(
    visit: Visit, lanes: Sequence[tuple[str, Mapping[tuple[str, str], PendingWrite]]]
) -> list[PendingWrite]:
    """The memory writes of all branches in declared order."""
    together: dict[tuple[str, str], tuple[str, PendingWrite]] = {}
    for lane, writes in lanes:
        for where, write in writes.items():
            before = together.get(where)
            if before is None:
                together[where] = (lane, write)
            elif before[1].updates and write.updates:
                before[1].updates.extend(write.updates)
            elif write.namespace.merge is not None and not write.updates and not before[1].updates:
                before[1].value = _pure(
                    visit, write, "its merge rule", write.namespace.merge, before[1].value, write.value
                )
            else:
                raise PerdureError(
                    f"branches {before[0]!r} and {lane!r} both write memory {'/'.join(where)}: give the "
                    "namespace merge=, or use update in both"
                )
    return [write for _, write in together.values()]
