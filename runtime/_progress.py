"""Where a claimed thread stands in this process: its data, and what the next snapshot decision needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from attrs import define, field

from perdure.machines import Definition, FieldPlan, Merged, Replaced, Span, Unreadable, replace
from perdure.stores import SCHEMA, Claim, LogRow, Messages, Store

from ._book import Book
from ._due import Clocks
from ._journal import Body, decode_body, is_checkpoint
from ._reliable import page_of
from ._versions import check_standing, due_today, read_visit

DELTA_OVERHEAD = 200
"""Bytes that reading one more delta costs beside its own, against reading a snapshot."""
SNAPSHOT_SLACK = 4096
"""Bytes of deltas beyond the snapshot's own size before another is written."""


@define
class Progress:
    """A thread's data at its newest checkpoint."""

    data: Any
    """As it is stored: what guards and resumes see."""
    live: Any
    """As this process goes on with it: ephemeral fields included."""
    positions: Mapping[str, Span]
    base_size: int
    since_base: int
    clocks: Clocks
    version: int
    """Of the machine that wrote the snapshot and the deltas after it."""
    book: Book = field(factory=Book)

    def snapshot_due(self, delta_size: int) -> bool:
        """Whether deltas would cost more to read than a new snapshot costs to write."""
        return self.since_base + delta_size + DELTA_OVERHEAD > self.base_size + SNAPSHOT_SLACK

    def advanced(
        self, merged: Merged[Any], base: Mapping[str, Any] | None, clocks: Clocks, version: int
    ) -> Progress:
        """Where the thread stands after a transition of this version's, whose commit wrote a snapshot or only
        the changes."""
        if base is None:
            base_size, since_base = self.base_size, self.since_base + merged.size + DELTA_OVERHEAD
        else:
            base_size, since_base = sum(len(bytes(value)) for value in base.values()), 0
        return Progress(
            data=merged.data,
            live=merged.live,
            positions=merged.positions,
            base_size=base_size,
            since_base=since_base,
            clocks=clocks,
            version=version,
            book=Book(names=self.book.names),
        )


def owned_values(thread_id: str, seq: int) -> dict[str, object]:
    """What the runtime injects into runtime-owned fields."""
    return {"seq": seq, "thread_id": thread_id}


def current_names(definition: Definition) -> dict[str, str]:
    """Today's name of every call that had another."""
    return {old: call.name for old, call in definition.calls.items() if old != call.name}


async def load(store: Store, definition: Definition, claim: Claim) -> Progress:
    """Read a claimed thread back. ``Unreadable`` names what does not fit."""
    return loaded(definition, claim, await messages_of(store, definition, claim))


def loaded(definition: Definition, claim: Claim, messages: Sequence[bytes]) -> Progress:
    """The same, given those messages of the session that the thread sees."""
    thread = claim.thread
    check_standing(definition, thread.standing, f"thread {thread.address.thread_id!r}")
    try:
        bodies = [(row, _body(row)) for row in claim.log]
        progress = _read(definition, claim, bodies, messages)
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise Unreadable(
            f"thread {thread.address.thread_id!r}: a stored record cannot be read: {error}"
        ) from error
    return progress


def _body(row: LogRow) -> Body:
    if row.salt is None:
        raise Unreadable(f"row {row.n} of its journal was purged")
    if row.schema > SCHEMA:
        raise Unreadable(
            f"row {row.n} of its journal was written by a newer perdure (schema {row.schema}, this one reads "
            f"up to {SCHEMA}): upgrade perdure"
        )
    return decode_body(row.payload)


def _read(
    definition: Definition, claim: Claim, bodies: Sequence[tuple[LogRow, Body]], messages: Sequence[bytes]
) -> Progress:
    thread = claim.thread
    base_at = thread.standing.base
    checkpoints = [(row, body) for row, body in bodies if is_checkpoint(row)]
    base_row, base = next(((row, body) for row, body in checkpoints if row.n == base_at), (None, None))
    where = f"thread {thread.address.thread_id!r}"
    if base_row is None or base is None:
        raise Unreadable(f"{where}: log row {base_at}, which holds its newest snapshot, is not there")
    if base.base is None:
        raise Unreadable(f"{where}: log row {base_at} holds no snapshot")
    version = thread.standing.version if base.version is None else base.version
    definition.upcasts.check(version, where)
    older = definition.upcasts.changes_data(version)
    later = [(row, body) for row, body in checkpoints if row.n > base_at]
    try:
        found = definition.data.load(
            base.base,
            [(row.n, body.delta or {}) for row, body in later],
            [(item.n, item.payload) for item in claim.items],
            messages,
            owned_values(thread.address.thread_id, thread.standing.seq),
            partial(definition.upcasts.data, version=version, where=definition.data.where) if older else None,
        )
    except Unreadable as error:
        raise Unreadable(f"{where}: {error}") from error
    last_row, last = checkpoints[-1]
    book = Book(names=current_names(definition))
    for row, body in bodies:
        if row.n > last_row.n:
            read_visit(definition, book, row, body, version, where)
    book.set_aside(definition.removed_calls)
    return Progress(
        data=found.data,
        live=found.data,
        positions=found.positions,
        base_size=len(base_row.payload),
        since_base=sum(len(row.payload) + DELTA_OVERHEAD for row, _ in later),
        clocks=_clocks(definition, last, where),
        version=version,
        book=book,
    )


async def messages_of(store: Store, definition: Definition, claim: Claim) -> list[bytes]:
    """The session's messages that the thread sees, where its data has a field for them."""
    if conversation_field(definition) is None:
        return []
    thread = claim.thread
    query = Messages(
        workspace=thread.address.workspace,
        session=thread.session,
        since=thread.session_since,
        incarnation=thread.incarnation,
    )
    found: list[bytes] = []
    after: str | None = None
    while True:
        page = await page_of(store, query, after=after, limit=1000)
        found += [row.payload for row in page.rows]
        if page.next is None:
            return found
        after = page.next


def _clocks(definition: Definition, last: Body, where: str) -> Clocks:
    """Those of the visit that the newest checkpoint began, by the names that events have today."""
    events = {stored: definition.event_of(stored) for stored in last.fired}
    fired = {event.name: last.fired[stored] for stored, event in events.items() if event is not None}
    return Clocks(due=due_today(definition, last.due, where), fired=fired)


def conversation_field(definition: Definition) -> FieldPlan | None:
    """The field that holds the session's messages, if the machine has one."""
    return next((f for f in definition.data.fields.values() if f.kind == "conversation"), None)


def encode_updates(definition: Definition, updates: Mapping[str, object], where: str) -> bytes:
    """A finished branch's updates, so that it need not run again; one that replaces is told by a ``=``."""
    wire: dict[str, Any] = {}
    for name, value in updates.items():
        plan = definition.data.fields.get(name)
        if plan is None or plan.codec is None or plan.kind == "ephemeral":
            continue
        told = name
        if isinstance(value, Replaced):
            told, value = f"={name}", value.value
        if plan.kind in ("append", "conversation"):
            items: Any = value
            wire[told] = [msgspec.Raw(plan.codec.encode(item, f"{where}.{name}")) for item in items]
        else:
            wire[told] = msgspec.Raw(plan.codec.encode(value, f"{where}.{name}"))
    return msgspec.json.encode(wire)


def decode_updates(definition: Definition, stored: bytes, where: str) -> dict[str, object]:
    """The reverse."""
    updates: dict[str, object] = {}
    for told, value in msgspec.json.decode(stored, type=dict[str, msgspec.Raw]).items():
        name = told.removeprefix("=")
        plan = definition.data.fields.get(name)
        if plan is None or plan.codec is None:
            raise Unreadable(f"{where}: field {name!r} of a finished branch is gone")
        decoded: object
        if plan.kind in ("append", "conversation"):
            items = msgspec.json.decode(bytes(value), type=list[msgspec.Raw])
            decoded = [plan.codec.decode(bytes(item), f"{where}.{name}") for item in items]
        else:
            decoded = plan.codec.decode(bytes(value), f"{where}.{name}")
        updates[name] = decoded if told == name else replace(decoded)
    return updates
