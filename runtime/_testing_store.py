"""One process's way to a store: it dies at any write, loses replies, or takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

from attrs import define, field

from perdure.stores import (
    ArtifactRow,
    Claimed,
    ClaimRequest,
    Commit,
    DefinitionRow,
    Delivered,
    Expire,
    Expired,
    MemoryRow,
    MemoryStore,
    Micros,
    OutcomeUnknown,
    Page,
    Query,
    Release,
    Remember,
    Share,
    Shared,
    Signal,
    Start,
    Started,
    StoredRow,
    StoreUnavailable,
    WorkerRow,
)

from ._journal import decode_body
from ._testing_loop import for_ever

R = TypeVar("R")

When = Callable[[str, Any], bool]
"""Judges one write: the method's name and its argument."""
At = Callable[[Literal["before", "after"], str, Any, Any], Awaitable[None]]
"""Is awaited before and after each write: the method's name, its argument, and its answer (before: None)."""
Deed = Literal["kill before", "kill after", "lose before", "lose after", "refuse", "delay"]


def carrying(*kinds: str) -> When:
    """Commits that carry a journal entry of one of these kinds, or are themselves of one ("transition")."""

    def judge(method: str, write: Any) -> bool:
        if method != "commit":
            return False
        found = {entry["k"] for entry in decode_body(write.log.payload).entries}
        return bool(found & set(kinds)) or write.log.kind in kinds

    return judge


def every(method: str) -> When:
    """Calls of one method of the store."""
    return lambda called, _: called == method


def _any(method: str, write: Any) -> bool:
    return True


@define
class _Fault:
    when: When
    deed: Deed
    skip: int
    times: int
    seconds: float


@define(eq=False)
class FaultyStore:
    """One process's way to a store. Each fault that fits the next write happens to it:

    "kill before" and "kill after" the write was applied: the process is dead; "lose before" and "lose after":
    ``OutcomeUnknown``; "refuse": ``StoreUnavailable``, not applied; "delay": it is applied ``seconds`` later.
    ``writes`` logs every write as it arrived.
    """

    inner: MemoryStore
    tell: Callable[[], None]
    """Called after each write."""
    kill: Callable[[], None] = field(default=lambda: None)
    at: At | None = None
    writes: list[tuple[str, Any]] = field(factory=list[tuple[str, Any]])
    pages: list[Query[Any]] = field(factory=list[Query[Any]])
    _faults: list[_Fault] = field(factory=list[_Fault])

    def fault(self, deed: Deed, when: When, *, skip: int = 0, times: int = 1, seconds: float = 0.0) -> None:
        """Do this to the next ``times`` writes that fit, after the first ``skip`` of them."""
        self._faults.append(_Fault(when, deed, skip, times, seconds))

    def kill_at(self, k: int, *, applied: bool) -> None:
        """Die at the k-th write of this process, counted from 0."""
        self.fault("kill after" if applied else "kill before", _any, skip=k)

    async def __aenter__(self) -> FaultyStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def _due(self, method: str, write: Any) -> _Fault | None:
        for fault in self._faults:
            if fault.times and fault.when(method, write):
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    async def _write(self, method: str, write: Any, *more: Any) -> Any:
        self.writes.append((method, write))
        if self.at is not None:
            await self.at("before", method, write, None)
        fault = self._due(method, write)
        deed = None if fault is None else fault.deed
        if deed == "kill before":
            self.kill()
            await for_ever()
        if deed == "lose before":
            raise OutcomeUnknown("the reply was lost")
        if deed == "refuse":
            raise StoreUnavailable("the store is out of reach")
        if fault is not None and deed == "delay":
            await asyncio.sleep(fault.seconds)
        answer = await getattr(self.inner, method)(write, *more)
        self.tell()
        if self.at is not None:
            await self.at("after", method, write, answer)
        if deed == "kill after":
            self.kill()
            await for_ever()
        if deed == "lose after":
            raise OutcomeUnknown("the reply was lost")
        return answer

    async def start(self, start: Start, /) -> Started:
        return await self._write("start", start)  # type: ignore[no-any-return]

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        return await self._write("claim", request)  # type: ignore[no-any-return]

    async def commit(self, commit: Commit, /) -> None:
        await self._write("commit", commit)

    async def release(self, releases: Sequence[Release], /) -> None:
        await self._write("release", releases)

    async def deliver(self, signal: Signal, /) -> Delivered:
        return await self._write("deliver", signal)  # type: ignore[no-any-return]

    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        return await self._write("beat", worker, definitions)  # type: ignore[no-any-return]

    async def share(self, request: Share, /) -> Shared:
        return await self._write("share", request)  # type: ignore[no-any-return]

    async def upload(self, artifact: ArtifactRow, /) -> None:
        await self._write("upload", artifact)

    async def remember(self, write: Remember, /) -> MemoryRow:
        return await self._write("remember", write)  # type: ignore[no-any-return]

    async def expire(self, request: Expire, /) -> Expired:
        return await self._write("expire", request)  # type: ignore[no-any-return]

    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        await self._write("restore", rows)

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        self.pages.append(query)
        return await self.inner.page(query, after=after, limit=limit)
