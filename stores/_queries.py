"""What ``Store.page`` answers: queries, and the pages of rows that they find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

from attrs import field, frozen
from typing_extensions import TypeVar

from ._kinds import RowKind, StoredRow
from ._records import (
    Address,
    ArtifactRow,
    InboxRow,
    ItemsRow,
    KeyRow,
    LogRow,
    MemoryRow,
    MessageRow,
    OutboxRow,
    Status,
    ThreadRow,
)
from ._workers import DefinitionRow, WorkerRow

R = TypeVar("R", default=Any)


@frozen(kw_only=True)
class Page(Generic[R]):
    """Some rows of a query, in its order, and the cursor that continues it (None: no more)."""

    rows: Sequence[R]
    next: str | None


@frozen(kw_only=True)
class Query(Generic[R]):
    """Base of the queries that ``Store.page`` answers."""


@frozen(kw_only=True)
class Threads(Query[ThreadRow]):
    """Threads, ordered by workspace and id. A field that is None does not filter, in any query."""

    workspace: str | None = None
    thread_id: str | None = None
    machine: str | None = None
    state: str | None = None
    status: Status | None = None
    session: str | None = None
    owner: str | None = None


@frozen(kw_only=True)
class Log(Query[LogRow]):
    """A thread's log rows in order."""

    address: Address
    seq: int | None = None
    after: int = -1
    """Only rows at a greater position."""


@frozen(kw_only=True)
class Items(Query[ItemsRow]):
    """A thread's items rows in order."""

    address: Address
    first: int = 0
    """Only rows at this position and behind it."""


@frozen(kw_only=True)
class Inbox(Query[InboxRow]):
    """A thread's inbox in order, also before the thread exists."""

    address: Address
    pending: bool = False
    after: int = 0
    """Only entries with a greater number."""


@frozen(kw_only=True)
class Messages(Query[MessageRow]):
    """What a thread sees of a session: messages up to ``since``, and its own, in order.

    ``incarnation`` None: the whole session.
    """

    workspace: str
    session: str
    since: int = 0
    incarnation: bytes | None = None


@frozen(kw_only=True)
class Memory(Query[MemoryRow]):
    """Newest versions, ordered by namespace and key; with ``history`` every version, oldest first.

    Deletions and expired rows are among them, so that a writer knows which version to expect.
    """

    workspace: str
    namespace: str | None = None
    key: str | None = None
    history: bool = False


@frozen(kw_only=True)
class Artifacts(Query[ArtifactRow]):
    """Artifact records, ordered by creation time and id."""

    workspace: str
    id: str | None = None
    thread_id: str | None = None
    sha256: str | None = None
    derived_from: str | None = None
    """Only those that name this among what they were made from."""


@frozen(kw_only=True)
class Keys(Query[KeyRow]):
    """Explicit keys of one effect, ordered by key."""

    workspace: str
    effect: str
    key: str | None = None


@frozen(kw_only=True)
class Outbox(Query[OutboxRow]):
    """What a thread's commits sent, in order."""

    address: Address


@frozen(kw_only=True)
class Workers(Query[WorkerRow]):
    """Workers, newest start first, those of one moment by id."""

    id: str | None = field(default=None)


@frozen(kw_only=True)
class Definitions(Query[DefinitionRow]):
    """Versions of machines that workers had, ordered by machine, version and hash."""

    machine: str | None = None
    version: int | None = None


@frozen(kw_only=True)
class Rows(Query[StoredRow]):
    """Everything of one kind, over all workspaces, ordered by ``key_of_row``: as a copy reads a store.

    With a thread's parts come those of threads that have not started yet.
    """

    kind: RowKind
