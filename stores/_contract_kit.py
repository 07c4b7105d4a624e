"""What a check of the contract works with: a kit, a clock, and ways to say what was broken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from attrs import frozen

from ._errors import StoreError
from ._queries import Artifacts, Inbox, Items, Keys, Log, Memory, Messages, Outbox, Query, Threads
from ._records import (
    Address,
    ArtifactRow,
    InboxRow,
    ItemsRow,
    KeyRow,
    LogRow,
    MemoryRow,
    MessageRow,
    Micros,
    OutboxRow,
    ThreadRow,
)
from ._store import Store

R = TypeVar("R")
E = TypeVar("E", bound=BaseException)

SECOND = 1_000_000


class Clock:
    """A clock that stands still until a check moves it. Calling it gives microseconds since the epoch."""

    def __init__(self, now: Micros = 1_800_000_000 * SECOND) -> None:
        self._now = now

    def __call__(self) -> Micros:
        return self._now

    def advance(self, micros: Micros) -> None:
        """Move it, backwards too."""
        self._now += micros


@frozen(kw_only=True)
class Kit:
    """A store to be checked, with data of its own that is empty at first."""

    open: Callable[[], Store]
    """Makes a handle on the kit's data, which the check enters and leaves; several may be open at once."""
    clock: Clock
    """The clock that every handle reads."""


class ContractBroken(AssertionError):
    """The store under test does not keep the promise that the check is about."""


@frozen(kw_only=True)
class Check:
    """One promise of the store, as something to run."""

    name: str
    promise: str
    body: Callable[[Kit], Awaitable[None]]

    async def run(self, kit: Kit) -> None:
        """Put the kit's store to the test; ``ContractBroken`` where it does not keep the promise."""
        try:
            await self.body(kit)
        except StoreError as error:
            raise ContractBroken(f"the store refuses what it has to take: {error!r}") from error


def check_of(body: Callable[[Kit], Awaitable[None]]) -> Check:
    """A check named after its function, whose docstring is the promise."""
    name = getattr(body, "__name__", "").removeprefix("check_")
    return Check(name=name, promise=(body.__doc__ or "").strip(), body=body)


def same(what: str, got: object, wanted: object) -> None:
    """``got`` is what the contract wants."""
    if got != wanted:
        raise ContractBroken(f"{what}: the contract wants {_short(wanted)}, the store gave {_short(got)}")


async def refused(kind: type[E], what: str, call: Awaitable[object]) -> E:
    """The call raises ``kind``, which is returned."""
    try:
        answer = await call
    except kind as error:
        return error
    raise ContractBroken(f"{what}: the contract wants {kind.__name__}, the store gave {_short(answer)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 2000 else f"{text[:2000]}... ({len(text)} characters)"


@frozen(kw_only=True)
class Snapshot:
    """Everything that is stored in one workspace about some threads."""

    threads: tuple[ThreadRow, ...]
    log: tuple[LogRow, ...]
    items: tuple[ItemsRow, ...]
    inbox: tuple[InboxRow, ...]
    messages: tuple[MessageRow, ...]
    memory: tuple[MemoryRow, ...]
    artifacts: tuple[ArtifactRow, ...]
    keys: tuple[KeyRow, ...]
    outbox: tuple[OutboxRow, ...]


async def rows(store: Store, query: Query[R], limit: int = 100) -> tuple[R, ...]:
    """All rows of a query, page by page."""
    found: list[R] = []
    after: str | None = None
    while True:
        page = await store.page(query, after=after, limit=limit)
        found += page.rows
        if page.next is None:
            return tuple(found)
        if page.next == after or len(page.rows) != limit:
            raise ContractBroken(
                f"{query}: a page of {len(page.rows)} of {limit} rows leads on to {page.next!r}"
            )
        after = page.next


async def snapshot(
    store: Store, workspace: str, thread_ids: Sequence[str], session: str, effect: str
) -> Snapshot:
    """What is stored now."""
    of = [Address(workspace=workspace, thread_id=thread_id) for thread_id in thread_ids]

    async def each(query: Callable[..., Query[R]]) -> tuple[R, ...]:
        found: list[R] = []
        for address in of:
            found += await rows(store, query(address=address))
        return tuple(found)

    return Snapshot(
        threads=await rows(store, Threads(workspace=workspace)),
        log=await each(Log),
        items=await each(Items),
        inbox=await each(Inbox),
        messages=await rows(store, Messages(workspace=workspace, session=session)),
        memory=await rows(store, Memory(workspace=workspace, history=True)),
        artifacts=await rows(store, Artifacts(workspace=workspace)),
        keys=await rows(store, Keys(workspace=workspace, effect=effect)),
        outbox=await each(Outbox),
    )
