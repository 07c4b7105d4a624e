"""What the parts of one visit share, and the ways in which a visit stops short."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from anyio import to_thread
from attrs import define, field, frozen

from perdure.artifacts import ArtifactBackend
from perdure.machines import Definition, HandlerPlan, Limit, Read, StatePlan
from perdure.stores import Micros, Store, ThreadRow, WorkerRow

from ._book import Book
from ._env import Env
from ._journal import Entry, plain_text
from ._ledger import Ledger
from ._permits import Permits
from ._turns import Turns

R = TypeVar("R")

FOREVER = datetime.max.replace(tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def moment(at: Micros) -> datetime:
    """A store's time as people write it."""
    return EPOCH + at * MICROSECOND  # a float of seconds would round a far one


def micros(span: timedelta) -> Micros:
    """A span of time as the store counts it."""
    return span // MICROSECOND


def micros_at(when: datetime) -> Micros:
    """An aware moment as the store counts it."""
    return (when - EPOCH) // MICROSECOND


@frozen(kw_only=True)
class CallContext:
    """The ``call`` that reads, effects and lookups are given."""

    key: str
    deps: Any
    deadline: datetime
    attempt: int
    workspace: str
    principal: str
    thread_id: str


class Parking(Exception):
    """The thread must be parked; raised inside the engine only."""

    def __init__(self, reason: str, note: str, detail: Entry | None = None) -> None:
        super().__init__(note)
        self.reason = reason
        self.note = plain_text(note)
        self.detail = detail or {}


class LeaseLost(Exception):
    """The worker finds that its lease has run out: it sends nothing and writes nothing more."""


class Abandoned(Exception):
    """A drain's grace is over: the call was aborted, its effect stays in doubt."""


class KeyHeld(Exception):
    """Another thread has the explicit key in doubt: look again later."""


class Stopped(Exception):
    """The attempt is over: what was not issued by then is not issued."""


@define
class Visit:
    """One visit of one state under one claim."""

    store: Store
    artifacts: ArtifactBackend
    ledger: Ledger
    book: Book
    env: Env
    definition: Definition
    state: StatePlan
    row: ThreadRow
    deps: Any
    lease_holds: Callable[[], bool]
    renew_lease: Callable[[], Awaitable[None]]
    worker_of: Callable[[str], Any]
    """Awaitable look-up of a worker's row by id: ``WorkerRow | None``."""
    report: Callable[[Mapping[str, object]], None]
    has_pending: Callable[[], bool]
    """Whether inbox entries are known that the next state may accept."""
    memory_turns: Turns
    permits: Permits | None
    """What holds calls to their limits; None: none are made."""
    ended_seen: dict[str, Micros] = field(factory=dict[str, "Micros"])
    """When this process first knew that another worker's process was gone."""

    @property
    def seq(self) -> int:
        return self.ledger.seq

    @property
    def where(self) -> str:
        """The visit in the words of an error."""
        return f"thread {self.row.address.thread_id!r}, state {self.state.name!r}"

    @property
    def named(self) -> str:
        """The visit as tasks are named, so that one that blocks the event loop can be told."""
        return f"machine {self.definition.name!r}, {self.where}"

    def unfinished(self) -> Sequence[HandlerPlan]:
        """The handlers that have not finished: all of them, but for branches whose end is recorded."""
        if not self.book.ended:
            return self.state.handlers
        return [handler for handler in self.state.handlers if handler.lane not in self.book.ended]

    def call_context(self, key: str, deadline: datetime, attempt: int) -> CallContext:
        """What a call is told about itself."""
        return CallContext(
            key=key,
            deps=self.deps,
            deadline=deadline,
            attempt=attempt,
            workspace=self.row.address.workspace,
            principal=self.row.principal,
            thread_id=self.row.address.thread_id,
        )

    async def take_turn(self, limit: Limit, call: str) -> None:
        """Wait for a limit, and say so where that takes time; it is to be given back."""
        assert self.permits is not None
        await self.permits.take(limit, lambda: self.report({"call": call, "waits_for": limit.name}))

    def give_back(self, limit: Limit) -> None:
        """The call that took the turn has ended."""
        assert self.permits is not None
        self.permits.give_back(limit)

    async def limited(self, call: Read[Any, ..., Any], make: Callable[[], Awaitable[R]]) -> R:
        """Make a read within its limit, if it has one."""
        limit = call.limit
        if limit is None:
            return await make()
        await self.take_turn(limit, call.name)
        try:
            return await make()
        finally:
            self.give_back(limit)

    def note(self, entry: Entry) -> None:
        """Take an entry into the book, and write it with whatever is written next."""
        self.book.apply(entry)
        self.ledger.note(entry)

    def note_behind(self, entry: Entry, key: Any = None) -> None:
        """Take an entry into the book, and write it soon, behind the handler's back."""
        self.book.apply(entry)
        self.ledger.note_behind(entry, key)

    async def process_end(self, worker: str) -> Micros | None:
        """When the process that sent something is known to have gone; None: not known."""
        if worker == self.ledger.worker:
            return None
        seen = self.ended_seen.get(worker)
        if seen is None:
            row: WorkerRow | None = await self.worker_of(worker)
            if row is None or not await to_thread.run_sync(self.env.ended, row):  # it looks at files
                return None
            seen = self.ended_seen[worker] = self.env.now() + self.env.unsure()
        return seen
