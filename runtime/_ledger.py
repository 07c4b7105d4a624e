"""The writer of one claimed thread: entries are packed into commits, one in flight, in order.

What arrives behind the handler's back (outcomes, kept reads) waits a few turns of the loop, so that it can
ride in the intent or transition that the handler makes of it; then it is written on its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import msgspec
from attrs import define, evolve, field
from typing_extensions import Unpack

from perdure.machines import Definition
from perdure.stores import (
    ArtifactRow,
    Commit,
    KeyWrite,
    LogKind,
    MemoryCheck,
    MemoryWrite,
    Micros,
    StaleClaim,
    Standing,
    Store,
    ThreadRow,
)

from ._book import EffectRecord
from ._env import Env
from ._journal import Body, Entry, encode_body, log_row
from ._keys import digest
from ._observe import Observers, logger, observation_of
from ._reliable import until_known

T = TypeVar("T")

TURNS_TO_RIDE = 7
"""Loop turns that a note waits for an intent or transition to ride in: a call's end reaches the
transition that its handler fires in four, a gather's in six."""
RIDE_AT_MOST = 2 * 1024 * 1024
"""Bytes of values that ride in one commit."""


class Parts(TypedDict, total=False):
    """What a commit writes beside its log row."""

    consumed: tuple[int, ...]
    items: bytes | None
    messages: tuple[bytes, ...]
    memory: tuple[MemoryWrite, ...]
    checks: tuple[MemoryCheck, ...]
    artifacts: tuple[ArtifactRow, ...]
    dropped_artifacts: tuple[str, ...]
    keys: tuple[KeyWrite, ...]


@define(kw_only=True)
class Conclusion:
    """What a commit says, and where it leaves the thread."""

    kind: LogKind
    standing: Standing
    release: bool
    at: Micros
    body: Body = field(factory=Body)
    entries: Sequence[Entry] = ()
    parts: Parts = field(factory=Parts)


class Ledger:
    """Writes one thread's journal under one claim. ``StaleClaim`` from any method ends the claim."""

    def __init__(
        self,
        store: Store,
        env: Env,
        row: ThreadRow,
        worker: str,
        observers: Observers | None = None,
        code: Definition | None = None,
    ) -> None:
        self.store = store
        self.observers = observers
        self.code = code
        """The machine by which it is written; None: what is written is in no machine's words."""
        self.checkpoint_version = row.standing.version
        """Of the machine that wrote the checkpoint."""
        self.env = env
        self.worker = worker
        self.row = row
        self.standing = row.standing
        self.epoch = row.epoch
        self.n = row.n
        self.inbox_seen = 0
        self.lost = False
        self.effects: Mapping[int, EffectRecord] = {}
        """Effects of the visit by the ids that entries have, for those who look."""
        self._head = row.head
        self._pending: list[Entry] = []
        self._keys: list[KeyWrite] = []
        self._noted = 0
        self._durable = 0
        self._lock = asyncio.Lock()
        self._riding: int | None = None
        """How many of the pending entries the next write takes; None: all."""
        self._rides = 0
        self._flusher: asyncio.Task[None] | None = None

    @property
    def seq(self) -> int:
        return self.standing.seq

    def note(self, entry: Entry) -> None:
        """Add an entry to whatever is written next."""
        self._pending.append(entry)
        self._noted += 1

    def note_behind(self, entry: Entry, key: KeyWrite | None = None) -> None:
        """Add an entry, and what it does to an explicit key: written soon, also if nothing else is."""
        self.note(entry)
        if key is not None:
            self._keys.append(key)
        self._rides += 1
        self._ride(TURNS_TO_RIDE)

    def _ride(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._ride, turns - 1)
            return
        self._rides -= 1
        if self._pending and not self._rides and self._flusher is None and not self.lost:
            self._flusher = loop.create_task(self._flush_behind())

    async def _flush_behind(self) -> None:
        try:
            await self.flush()
        except StaleClaim:
            self.lost = True
        except Exception as error:  # what could not be written stays pending, and the next write raises it
            logger.debug("thread %r: %s", self.row.address.thread_id, error)
        finally:
            self._flusher = None

    def close(self) -> None:
        """The claim is over: nothing is written behind anybody's back any more."""
        self.lost = True
        if self._flusher is not None:
            self._flusher.cancel()

    async def flush(self) -> None:
        """Make every entry noted so far durable."""
        goal = self._noted
        if self._durable >= goal:
            return
        async with self._lock:
            if self._durable < goal:
                await self._write_riding(all_of_it=True)

    async def _write_riding(self, *, all_of_it: bool) -> None:
        """Write what waits to ride: large entries one by one, so that no commit passes a store's limit."""
        while self._pending and (all_of_it or self._riding_size() > RIDE_AT_MOST):
            self._riding = 1 if self._riding_size() > RIDE_AT_MOST else len(self._pending)
            await self._write(self._recorded((), {}))
        self._riding = None

    def _riding_size(self) -> int:
        return sum(len(memoryview(e["value"])) for e in self._pending if "value" in e)

    async def record(self, entries: Sequence[Entry], **parts: Unpack[Parts]) -> None:
        """Write entries durably, with what rides along; on a refused condition none of them is kept."""
        async with self._lock:
            await self._write_riding(all_of_it=False)
            await self._write(self._recorded(entries, parts))

    def _recorded(self, entries: Sequence[Entry], parts: Parts) -> Conclusion:
        return Conclusion(
            kind="record",
            standing=self.standing,
            release=False,
            at=self.env.now(),
            entries=entries,
            parts=parts,
        )

    async def conclude(self, end: Conclusion) -> None:
        """Write a commit that changes where the thread stands, and is no checkpoint."""
        async with self._lock:
            await self._write_riding(all_of_it=False)
            await self._write(end)

    async def advance(self, build: Callable[[int], tuple[Conclusion, T]]) -> T:
        """Write a transition; ``build`` is told its log position, and gives what is returned beside it."""
        async with self._lock:
            if self._pending:
                await self._write_riding(all_of_it=False)
            end, beside = build(self.n)
            version = end.body.version
            await self._write(end)
            if version is not None:
                self.checkpoint_version = version
            return beside

    async def _write(self, end: Conclusion) -> None:
        if self.lost:
            raise StaleClaim(f"thread {self.row.address.thread_id!r}: the claim was lost")
        if end.kind in ("record", "resolve") and self.code is not None:
            self._sign(end, self.code)
        riding, keys = self._pending[: self._riding], tuple(self._keys)
        if keys:
            end.parts["keys"] = (*end.parts.get("keys", ()), *keys)
        said = [*riding, *end.entries]
        commit = self._commit(end, encode_body(end.body, said, side_digest(end.parts) if end.parts else None))
        try:
            await until_known(lambda: self.store.commit(commit))
        except StaleClaim:
            self.lost = True
            raise
        if riding or keys:
            del self._pending[: len(riding)], self._keys[: len(keys)]
            self._durable += len(riding)
        if self.observers is not None and self.observers.wanted:
            names = {number: record.call for number, record in self.effects.items()}
            self.observers.tell(observation_of(end.kind, self.row, end.standing, end.body.event, said, names))
        self._head = commit.log.head
        self.n += 1
        self.standing = end.standing

    def _sign(self, end: Conclusion, code: Definition) -> None:
        """An older version must not meet what this one records; the entries say who wrote them, where that is
        not the checkpoint's version."""
        if code.version != self.checkpoint_version:
            end.body = evolve(end.body, version=code.version)
        if code.version > end.standing.version:
            end.standing = evolve(end.standing, version=code.version, definition=code.hash)

    def _commit(self, end: Conclusion, payload: bytes) -> Commit:
        log = log_row(
            self._head,
            seq=end.standing.seq,
            n=self.n,
            epoch=self.epoch,
            kind=end.kind,
            at=end.at,
            salt=self.env.token(16),
            payload=payload,
        )
        return Commit(
            address=self.row.address,
            incarnation=self.row.incarnation,
            epoch=self.epoch,
            log=log,
            standing=end.standing,
            release=end.release,
            inbox_seen=self.inbox_seen,
            principal=self.row.principal,
            session=self.row.session,
            **end.parts,
        )


def side_digest(parts: Mapping[str, Any]) -> str | None:
    """One digest over everything that a commit writes beside its log row; None where there is nothing."""
    if not any(parts.values()):
        return None
    return digest(msgspec.json.encode({k: _plain(v) for k, v in parts.items() if v})).hex()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if hasattr(value, "__attrs_attrs__"):
        return [_plain(getattr(value, a.name)) for a in value.__attrs_attrs__]
    return value
