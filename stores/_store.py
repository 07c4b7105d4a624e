"""The store's seam: a claim in, one commit out."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, TypeVar

from ._kinds import StoredRow
from ._outside import Expire, Expired, Remember
from ._queries import Page, Query
from ._records import (
    ArtifactRow,
    Claimed,
    ClaimRequest,
    Commit,
    Delivered,
    MemoryRow,
    Micros,
    Release,
    Signal,
    Start,
    Started,
)
from ._workers import DefinitionRow, Share, Shared, WorkerRow

R = TypeVar("R")


class Store(Protocol):
    """Where threads, memory and records live.

    ``async with store`` opens it; calls outside of that are the caller's mistake.

    Atomic: each ``start``, ``commit``, ``deliver``, ``remember`` and ``expire`` lands whole or not at all,
    and is durable before it returns. Ordered: writes to one thread land in the order in which they were
    called. Repeatable: the identical call made again, whatever became of the first, changes nothing more and
    answers the same (``expire`` but for what it counts, since what is gone is not counted again).
    Independent: where several writes share a transaction, each is judged alone. Cancelling a caller never
    withdraws a write that was begun.

    Every method may raise ``StoreUnavailable`` (nothing was written), and those that write ``TooLarge`` and,
    for a name that no store can hold, ``ValueError`` (nothing was written in both cases) and
    ``OutcomeUnknown`` (send the identical write again). ``claim`` and ``share`` alone are not repeatable:
    where its reply was lost, ``Threads(owner=...)`` finds what a claim has taken, to be released.

    Names are compared by their characters as they are: case, accents and spaces count. Texts are ordered
    by code point.
    """

    async def __aenter__(self) -> Store:
        """Open the store, create or migrate its schema under a lock; ``StoreUnreadable`` where it cannot."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the writes that were begun, and close."""
        ...

    async def start(self, start: Start, /) -> Started:
        """Create a thread; where its address is taken, leave that thread as it is and answer with it.

        ``start.signals`` are put into its inbox in the same transaction, as by ``deliver``, also where the
        thread is there already and has the same ``started``; of another thread they stay away.
        ``SignalConflict`` and ``ThreadEnded`` leave nothing written. Signals that came before are its inbox,
        and where it starts waiting they make it due at once.
        ``session_since`` is set to the session's last number before this start's own messages. The epoch
        is 1 where ``start.owner`` claims it and 0 where nobody does.
        """
        ...

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        """Claim runnable and due threads for a worker, each with its epoch one higher.

        Where more could be claimed than ``limit``, each workspace of each machine that has some gets an equal
        part, as far as it has that many; within one, those that could be claimed longest come first, each
        point of a thread's ``priority`` counting as 60 s. Where there are more workspaces than ``limit``, or
        than ``at_once`` has places for, they take turns from claim to claim; where many have threads that are
        not due yet, a claim may look at some of them alone, and the next one at those behind. What a claim
        costs does not grow with how many threads or workspaces there are.

        Runnable: running without an owner, or owned by a worker that is dead, that is, one named in
        ``request.dead``, without a row, ended, or silent for longer than its lease by the store's clock.
        Due: waiting with ``wake`` not after now, and nobody who lives owns it. A claimed thread is
        ``running``. Each take-over of a *running* thread from a dead worker that did not end in good order
        adds one to ``crashes``. No thread is left out for good. Two claims never get one thread at one epoch.
        """
        ...

    async def commit(self, commit: Commit, /) -> None:
        """Land one commit, set ``crashes`` to 0, and append its log row.

        ``StaleClaim`` where incarnation, epoch or position is not the thread's, where there is no such
        thread, or where the claim was given up; but a commit whose log row (incarnation, position, epoch,
        head) is already there is a no-op, also after the epoch moved. ``MemoryMoved`` and ``KeyTaken`` where
        a condition fails. Judged in this order; nothing is written then.

        The standing is what the commit says, but its version never falls, and a thread left waiting with an
        inbox entry after ``inbox_seen`` is due at once: its ``wake`` is the store's clock where it would be
        later or None.
        """
        ...

    async def release(self, releases: Sequence[Release], /) -> None:
        """Give claims up as they stand. Stale ones are ignored."""
        ...

    async def deliver(self, signal: Signal, /) -> Delivered:
        """Put a signal into an inbox, once by id, and make a waiting thread due at once.

        Due at once: its ``wake`` becomes the store's clock, where it is later or None. The version of its
        standing becomes the signal's, where that is newer. A signal that is there already changes nothing.

        ``SignalConflict`` where the id holds another digest; ``ThreadEnded`` where the thread has ended and
        the id is new.
        """
        ...

    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        """Insert or renew a worker's row, with ``beat`` set to the store's clock, which is returned.

        ``definitions``, what the worker can run, are recorded, each once by machine, version and hash.

        A row with ``ended`` set stays as a sign that the process left in good order, and a late beat
        without it does not take it back. Rows, ended ones too, that were silent for more than a day and own
        no thread are dropped.
        """
        ...

    async def share(self, request: Share, /) -> Shared:
        """Give a worker its part of a limit.

        Slots: as many of the ``held`` that it wants as other living workers leave of ``at_once``; what it
        held before counts as given back. Workers that are dead, as in ``claim``, hold none. Starts: as many
        as ``per_minute`` lets through, counted when they are granted: in any 60 seconds never more than that,
        a tenth of them at once and the others evenly spaced, by the store's clock. Not repeatable: where a
        reply was lost, the starts in it are. ``ValueError`` for limits under 1 and wishes under 0.
        """
        ...

    async def upload(self, artifact: ArtifactRow, /) -> None:
        """Record an artifact that no thread's commit records. An id that is there already is left alone."""
        ...

    async def remember(self, write: Remember, /) -> MemoryRow:
        """Write a memory key's next version outside of any thread, and return it.

        ``MemoryMoved`` where ``expected`` is given and is not the newest version; nothing is written then. A
        write whose id is among the key's versions already changes nothing and returns that version, whatever
        came after it. ``at`` is the store's clock.
        """
        ...

    async def expire(self, request: Expire, /) -> Expired:
        """Delete records that have had their time, in one batch that lands whole or not at all.

        Memory versions, artifact records that no thread put, and explicit keys with an outcome, each by its
        ``expires``; nothing else: no thread's row, log, messages or artifacts, and no key that is in doubt.
        A memory key's newest version loses its value and its ``expires`` instead: it stays as a deletion, so
        that no version is counted twice. Which go first where there are more than ``limit`` is the store's
        choice. ``ValueError`` for a limit under 1.
        """
        ...

    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        """Put rows of another store as they are: epochs, heads, numbers and times are kept to the byte.

        One batch of at most ``MAX_RESTORED`` rows, in any order. A row that is there identically is left
        alone. ``RestoreConflict`` where another row stands under one's name; for a thread whose newest log
        row, with the thread's ``head`` and ``updated``, or whose last inbox entry is not there before this
        batch; and for a part of a thread that stands already, but without this part. Nothing is written
        then. ``ValueError`` where a row is named twice.

        So a thread comes behind everything that belongs to it, and until then nobody can claim it: without
        its row there is nothing that runs or waits. It keeps its owner: that worker has no row here, counts
        as dead, and its threads are taken over as from any dead worker. A thread that runs without an owner
        waits for a claim from now on.
        """
        ...

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        """Answer a query, at most ``limit`` rows, from behind the cursor ``after``. Never blocks writers.

        What other calls write between two pages neither repeats a row nor leaves out one that was there
        all along. A filter that matches nothing gives no rows, an empty text too. ``ValueError`` for a
        limit under 1 and for an ``after`` that is no cursor.
        """
        ...
