"""Whether a thread's record is as it was written: its journal's chain, and what lies beside each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, Literal, get_args

from attrs import evolve, field, frozen

from perdure.stores import (
    Artifacts,
    Inbox,
    InboxRow,
    Items,
    Log,
    LogKind,
    LogRow,
    Memory,
    MemoryRow,
    MemoryWrite,
    Messages,
    Store,
    ThreadRow,
)

from ._journal import Body, Entry, decode_body, holds, relinked
from ._keys import digest
from ._ledger import side_digest
from ._look import DAMAGE, rows_left, rows_of
from ._reserved import RESERVED
from ._spill import bare, with_body_of
from ._spilled import is_spilled, words_of_lost

Part = Literal["gap", "order", "kind", "seq", "epoch", "head", "content", "end", "beside", "inbox", "payload"]
MOST_ORDERS = 5
"""Memory writes of one commit whose order is tried out; nothing else says in which order they stood."""


@frozen(kw_only=True)
class Broken:
    """The first row that is not as it was written. ``part``: what of it does not match."""

    n: int
    seq: int
    part: Part
    note: str


@frozen(kw_only=True)
class Verified:
    """What a thread's journal was found to be."""

    rows: int
    """Rows whose links hold, from the incarnation on."""
    purged: int
    """Of these, rows whose payload was purged: the chain says that they were there, and goes on."""
    beside: int
    """Rows whose items, messages, memory, artifacts and inbox entries are those of their digest."""
    open: tuple[int, ...]
    """Rows that wrote beside them what leaves no trace to compare: explicit keys, memory checks, drops."""
    broken: Broken | None


@frozen(kw_only=True)
class _Beside:
    """What lies beside a thread's log rows."""

    thread: ThreadRow
    items: Mapping[int, bytes]
    inbox: Sequence[InboxRow]
    messages: Mapping[int, tuple[bytes, ...]]
    """By the moment of the log row."""
    artifacts: Mapping[str, Any]
    memory: Sequence[MemoryRow]
    """The versions that this thread wrote."""
    expired: bool = field(default=False)
    """Some of the workspace's memory is gone: what a row wrote of it cannot be told."""


async def verify(store: Store, thread: ThreadRow) -> Verified:
    """Check every link of a thread's journal, up to the first broken one."""
    beside = await _beside(store, thread)
    # What a worker writes meanwhile is not looked at: it came after what lies beside it was read.
    log = [row async for row in rows_of(store, Log(address=thread.address)) if row.n < thread.n]
    checker = _Checker(thread, log, beside)
    broken = checker.run()
    return Verified(
        rows=checker.rows,
        purged=checker.purged,
        beside=checker.beside,
        open=tuple(checker.open),
        broken=broken,
    )


async def _beside(store: Store, thread: ThreadRow) -> _Beside:
    address = thread.address
    workspace = address.workspace
    messages: dict[int, tuple[bytes, ...]] = {}
    query = Messages(workspace=workspace, session=thread.session, incarnation=thread.incarnation)
    async for message in rows_left(store, query, workspace):
        messages[message.at] = (*messages.get(message.at, ()), message.payload)
    memory, expired = await _memory(store, thread)
    owned = Artifacts(workspace=workspace, thread_id=address.thread_id)
    return _Beside(
        thread=thread,
        items={row.n: row.payload async for row in rows_left(store, Items(address=address), workspace)},
        inbox=[row async for row in rows_left(store, Inbox(address=address), workspace)],
        messages=messages,
        artifacts={row.id: row async for row in rows_of(store, owned)},
        memory=memory,
        expired=expired,
    )


async def _memory(store: Store, thread: ThreadRow) -> tuple[list[MemoryRow], bool]:
    found: list[MemoryRow] = []
    before: tuple[str, str, int] = ("", "", 0)
    gaps = False
    workspace = thread.address.workspace
    async for row in rows_of(bare(store), Memory(workspace=workspace, history=True)):
        follows = (row.namespace, row.key, row.version - 1) == before
        gaps = gaps or not (follows or row.version == 1) or (row.value is None and row.thread_id is not None)
        before = (row.namespace, row.key, row.version)
        if row.thread_id == thread.address.thread_id:
            found.append(await with_body_of(store, row, workspace))
    return found, gaps


class _Checker:
    """Goes along the chain."""

    def __init__(self, thread: ThreadRow, log: Sequence[LogRow], beside: _Beside) -> None:
        self._thread = thread
        self._log = log
        self._beside = beside
        self.rows = self.purged = self.beside = 0
        self.open: list[int] = []
        self._said: Counter[int] = Counter()
        """Messages that rows were found to have written, by moment."""
        self._last = {row.at: row.n for row in log}
        """The last row of each moment: a clock that is coarse, or was set back, gives one to several."""

    def run(self) -> Broken | None:
        previous = self._thread.incarnation
        for at, row in enumerate(self._log):
            broken = self._link(at, previous, row) or self._content(row)
            if broken is not None:
                return broken
            previous = row.head
            self.rows += 1
        return self._end(previous) or self._inbox()

    def _link(self, at: int, previous: bytes, row: LogRow) -> Broken | None:
        if row.n != at:
            return Broken(n=at, seq=row.seq, part="gap", note=f"row {at} is missing: the next is row {row.n}")
        if is_spilled(row.payload):
            return Broken(n=at, seq=row.seq, part="payload", note=words_of_lost(row.payload))
        if holds(previous, row):
            self.purged += row.salt is None
            return None
        return _what(previous, row, self._log, self._thread)

    def _content(self, row: LogRow) -> Broken | None:
        if row.salt is None:
            return None
        try:
            body = decode_body(row.payload)
            lost = None if body.side is None else self._lost(row)
            if lost is not None:
                return Broken(n=row.n, seq=row.seq, part="beside", note=f"beside it: {words_of_lost(lost)}")
            side = self._side(row, body) if body.side is not None else None
        except DAMAGE as error:
            note = f"its payload is sealed, and cannot be read: {error}"
            return Broken(n=row.n, seq=row.seq, part="payload", note=note)
        if side is False:
            note = "items, messages, memory, artifacts or inbox entries beside it are not those that it wrote"
            return Broken(n=row.n, seq=row.seq, part="beside", note=note)
        self.beside += side is True
        if body.side is not None and side is None:
            self.open.append(row.n)
        return None

    def _side(self, row: LogRow, body: Body) -> bool | None:
        """Whether what lies beside the row has its digest; None: it cannot be told."""
        for messages in self._messages(row):
            parts = _parts(row, body, self._beside, messages)
            if any(side_digest(each) == body.side for each in parts):
                self._said[row.at] += len(messages)
                return True
        return None if _leaves_no_trace(row, body.entries) or self._beside.expired else False

    def _messages(self, row: LogRow) -> Iterator[tuple[bytes, ...]]:
        """What the row may have said: messages of its moment follow the rows' order."""
        left = self._beside.messages.get(row.at, ())[self._said[row.at] :]
        fewest = len(left) if self._last[row.at] == row.n else 0
        for count in range(len(left), fewest - 1, -1):
            yield left[:count]

    def _lost(self, row: LogRow) -> bytes | None:
        """The first envelope beside the row: its body is gone from the artifacts."""
        beside = self._beside
        written = (each.value for each in beside.memory if each.seq == row.seq)
        bodies = (beside.items.get(row.n), *beside.messages.get(row.at, ()), *written)
        return next(filter(is_spilled, bodies), None)

    def _end(self, head: bytes) -> Broken | None:
        thread, n = self._thread, len(self._log)
        if (thread.n, thread.head) == (n, head):
            return None
        note = f"the thread's row counts {thread.n} rows, and {n} are there"
        if thread.n == n:
            note = "the thread's row names another head than the last row's"
        return Broken(n=n, seq=thread.standing.seq, part="end", note=note)

    def _inbox(self) -> Broken | None:
        for row in self._beside.inbox:
            if is_spilled(row.payload):
                note = f"inbox entry {row.number} ({row.id}): {words_of_lost(row.payload)}"
                return Broken(n=len(self._log), seq=row.consumed or 0, part="inbox", note=note)
            wanted = digest(row.event) if row.event in RESERVED else digest(row.event, row.payload)
            if row.digest != wanted:
                note = f"inbox entry {row.number} ({row.id}) is not what its digest says"
                return Broken(n=len(self._log), seq=row.consumed or 0, part="inbox", note=note)
        return None


def _what(previous: bytes, row: LogRow, log: Sequence[LogRow], thread: ThreadRow) -> Broken:
    """Which part of a row keeps it from following the head before it, as far as that can be told."""

    def broken(part: Part, note: str) -> Broken:
        return Broken(n=row.n, seq=row.seq, part=part, note=note)

    following = log[row.n + 1] if row.n + 1 < len(log) else None
    expected = relinked(previous, row)
    goes_on = thread.head == expected if following is None else holds(expected, following)
    if goes_on:
        return broken("head", "its own head was changed: what it says and the row after it agree")
    for part, other in _variants(row, thread):
        if holds(previous, other):
            return broken(part, f"its {part} was changed: it was written as {getattr(other, part)!r}")
    for other_row in log:
        if other_row is not row and holds(previous, evolve(other_row, n=row.n)):
            return broken("order", f"row {other_row.n} stands where it belongs: their order was changed")
    or_head = " or head" if following is None else ""  # nothing behind it says which of them it was
    return broken("content", f"its payload, salt, time, schema{or_head} is not what was written")


def _variants(row: LogRow, thread: ThreadRow) -> Iterator[tuple[Part, LogRow]]:
    for kind in get_args(LogKind):
        yield "kind", evolve(row, kind=kind)
    for seq in range(thread.standing.seq + 1):
        yield "seq", evolve(row, seq=seq)
    for epoch in range(thread.epoch + 1):
        yield "epoch", evolve(row, epoch=epoch)


def _parts(row: LogRow, body: Body, beside: _Beside, messages: tuple[bytes, ...]) -> Iterator[dict[str, Any]]:
    """What the row may have written beside it, in each order that it may have had."""
    parts: dict[str, Any] = {}
    taken = {entry.number for entry in beside.inbox if entry.consumed == row.seq}
    if row.kind != "start":
        parts["consumed"] = tuple(e["number"] for e in body.entries if e.get("number") in taken)
    parts["items"] = beside.items.get(row.n)
    parts["messages"] = messages
    artifacts = [beside.artifacts.get(e["id"]) for e in body.entries if e["k"] == "artifact"]
    if artifacts:
        parts["artifacts"] = tuple(artifacts)
    memory = [each for each in beside.memory if each.seq == row.seq] if row.kind == "transition" else []
    if not memory or len(memory) > MOST_ORDERS:
        yield parts
        return
    for order in permutations(memory):
        yield {**parts, "memory": tuple(_write(each) for each in order)}


def _write(row: MemoryRow) -> MemoryWrite:
    return MemoryWrite(
        namespace=row.namespace,
        key=row.key,
        value=row.value,
        expected=row.version - 1,
        expires=row.expires,
    )


_UNTRACED = frozenset(("intent", "done", "not_done", "resolution", "resolved", "artifacts_dropped"))


def _leaves_no_trace(row: LogRow, entries: Sequence[Entry]) -> bool:
    """It may have written explicit keys, checked memory or dropped artifacts."""
    kinds = {entry["k"] for entry in entries}
    return bool(kinds & _UNTRACED) or (row.kind == "record" and "artifact" not in kinds)
