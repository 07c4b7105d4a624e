"""Copying a store: everything in one is put into another, and both are read side by side until they are one.

Nothing is kept of how far a copy came. Both stores list each kind in one order, so reading the two side by
side finds what is missing, what differs and what is too much: before the first write, to refuse a store that
holds something else; on the way, to write what is missing and nothing twice; at the end, to prove it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import anyio
from attrs import define, evolve, field, frozen

from perdure.stores import (
    MAX_RESTORED,
    MAX_WRITE,
    ROW_KINDS,
    RestoreConflict,
    RowKind,
    Rows,
    Store,
    StoredRow,
    ThreadRow,
    TooLarge,
    WorkerRow,
    bytes_of_row,
    key_of_row,
    kind_of_row,
)

from ._cli_text import counted
from ._env import Env
from ._errors import PerdureError
from ._look import living_workers
from ._reliable import until_known

PAGE_BYTES = 8 * 1024 * 1024
"""Bodies that a page is to bring, as far as the last one tells."""
MOST_ROWS = 1000
FIRST_ROWS = 100
"""Rows of a page, at most and at first."""
AT_ONCE = 8
"""Batches that are on their way together."""
NAMED = 3
"""Workers that are named."""
PATIENCE = 60.0
"""Seconds for which a batch without an answer is sent again."""

GO_ON = "run the same command again: it goes on from there"
LEFT = (
    "It was written before rows had that limit, and keeps this store from being copied; the source is as it "
    "was, and the target holds a part of it"
)


class CannotCopy(PerdureError):
    """The copy is refused, or went only so far; the message says why and what to do."""


@frozen(kw_only=True)
class Tally:
    """What became of one kind's rows."""

    kind: RowKind
    copied: int = 0
    there: int = 0
    """Rows that an earlier run had copied."""

    @property
    def total(self) -> int:
        """All rows of the kind."""
        return self.copied + self.there


@frozen(kw_only=True)
class Pair:
    """What the two stores have under one name; None: nothing."""

    source: StoredRow | None
    target: StoredRow | None

    @property
    def differs(self) -> bool:
        """They do not have the same."""
        return self.source != self.target

    def __str__(self) -> str:
        """A difference in words."""
        row = self.source or self.target
        assert row is not None
        what = f"{kind_of_row(row)} {'/'.join(map(str, key_of_row(row)))}"
        if self.target is None:
            return f"{what} is in the source alone"
        if self.source is None:
            return f"{what} is in the target alone"
        if isinstance(self.source, ThreadRow) and isinstance(self.target, ThreadRow):
            here, there = (f"{row.head.hex()[:12]} at {row.n}" for row in (self.source, self.target))
            return f"{what} differs: its journal's head is {here} in the source, {there} in the target"
        return f"{what} differs"


class Tell(Protocol):
    """Hears how a copy goes on."""

    def kind(self, tally: Tally, /) -> None:
        """All rows of one kind are in the target."""
        ...

    def verifying(self) -> None:
        """Everything is in the target, and is read again."""
        ...


async def copy_store(source: Store, target: Store, env: Env, tell: Tell) -> Sequence[Tally]:
    """Put everything in ``source`` into ``target``, both open, and see that it is there.

    Broken off at any point, it goes on from there when it is called again. ``CannotCopy`` where a worker
    lives on either store, where the target holds what the source does not, and where the source changes
    meanwhile.
    """
    await see_idle(source, "source", env)
    await see_idle(target, "target", env)
    await _see_mine(source, target)
    done: list[Tally] = []
    for kind in ROW_KINDS:
        done.append(await _copy_kind(source, target, kind))
        tell.kind(done[-1])
    tell.verifying()
    await see_idle(source, "source", env)
    await _see_same(source, target, done)
    return done


async def see_idle(store: Store, which: str, env: Env) -> None:
    """``CannotCopy`` where a worker lives on the store."""
    living = await living_workers(store, env)
    if living:
        named = [_said_of(row) for row in living[:NAMED]] + ["more"] * (len(living) > NAMED)
        workers = f"{counted(len(living), 'living worker')} ({', '.join(named)})"
        raise CannotCopy(
            f"the {which} has {workers}: end them, wait out the lease of one that was killed elsewhere, then "
            "copy"
        )


def _said_of(worker: WorkerRow) -> str:
    host = worker.host.partition("/")[0]
    return f"{worker.id} on {host}, process {worker.pid}" if host else f"{worker.id}, a command"


async def _see_mine(source: Store, target: Store) -> None:
    """Refuse a target that holds anything but a part of the source, before anything is written."""
    for kind in ROW_KINDS:
        async for pair in side_by_side(source, target, kind, to_the_end=False):
            if pair.target is not None and pair.differs:
                raise CannotCopy(
                    f"the target is not empty, and no part of this copy ({pair}): copy into an empty store; "
                    "where it is this copy's, the source has changed since, and the copy begins anew"
                )


async def _copy_kind(source: Store, target: Store, kind: RowKind) -> Tally:
    tally = Tally(kind=kind)
    load = Load(target)
    async for pair in side_by_side(source, target, kind):
        if pair.source is not None and pair.target is None:
            await load.add(pair.source)
            tally = evolve(tally, copied=tally.copied + 1)
        elif pair.differs:
            raise _changed(str(pair))
        else:
            tally = evolve(tally, there=tally.there + 1)
    await load.send()
    return tally


async def _see_same(source: Store, target: Store, done: Sequence[Tally]) -> None:
    for tally in done:
        count = 0
        async for pair in side_by_side(source, target, tally.kind):
            if pair.differs:
                raise _changed(str(pair))
            count += 1
        if count != tally.total:
            raise _changed(f"{tally.total:,} {tally.kind} rows became {count:,}")


def _changed(what: str) -> CannotCopy:
    return CannotCopy(
        f"the source, or the target, changed while it was copied ({what}): see that nothing runs, signals or "
        "starts threads on either, and copy into an empty store"
    )


async def side_by_side(
    source: Store, target: Store, kind: RowKind, *, to_the_end: bool = True
) -> AsyncIterator[Pair]:
    """All rows of a kind, those of one name together, in order; ``to_the_end``: also behind the target's
    last."""
    ours, theirs = _Reader(source, kind), _Reader(target, kind)
    row, other = await ours.next(), await theirs.next()
    while other is not None or (row is not None and to_the_end):
        if other is None or (row is not None and key_of_row(row) < key_of_row(other)):
            yield Pair(source=row, target=None)
            row = await ours.next()
        elif row is None or key_of_row(other) < key_of_row(row):
            yield Pair(source=None, target=other)
            other = await theirs.next()
        else:
            yield Pair(source=row, target=other)
            row, other = await ours.next(), await theirs.next()


@define
class _Reader:
    """The rows of a kind, one after the other, in pages that grow and shrink with what the rows weigh."""

    _store: Store
    _kind: RowKind
    _rows: list[StoredRow] = field(factory=list[StoredRow], init=False)
    """Of the page, those to come, the next one last."""
    _after: str | None = field(default=None, init=False)
    _limit: int = field(default=FIRST_ROWS, init=False)
    _ended: bool = field(default=False, init=False)

    async def next(self) -> StoredRow | None:
        while not self._rows and not self._ended:
            page = await self._store.page(Rows(kind=self._kind), after=self._after, limit=self._limit)
            self._rows = list(reversed(page.rows))
            self._after, self._ended = page.next, page.next is None
            weight = sum(map(bytes_of_row, page.rows)) // max(len(page.rows), 1)
            self._limit = max(1, min(MOST_ROWS, PAGE_BYTES // max(weight, 1)))
        return self._rows.pop() if self._rows else None


@define
class Load:
    """Rows on their way to a store: in batches, several of which go together."""

    _target: Store
    _batches: list[list[StoredRow]] = field(factory=lambda: [[]], init=False)
    _bytes: int = field(default=0, init=False)
    """Bodies in the last batch."""

    async def add(self, row: StoredRow) -> None:
        """Take a row along, once there is room for it."""
        size = bytes_of_row(row)
        if len(self._batches[-1]) == MAX_RESTORED or self._bytes + size > MAX_WRITE:
            if len(self._batches) == AT_ONCE:
                await self.send()
            else:
                self._batches.append([])
                self._bytes = 0
        self._batches[-1].append(row)
        self._bytes += size

    async def send(self) -> None:
        """Restore what was taken."""
        batches, self._batches, self._bytes = self._batches, [[]], 0
        answers: list[CannotCopy] = []

        async def restore(batch: Sequence[StoredRow]) -> None:
            try:
                await _restore(self._target, batch)
            except TooLarge as error:
                answers.append(CannotCopy(f"{error}. {LEFT}"))
            except CannotCopy as error:
                answers.append(error)
            except RestoreConflict as error:
                answers.append(_changed(str(error)))

        async with anyio.create_task_group() as group:
            for batch in filter(None, batches):
                group.start_soon(restore, batch)
        for error in answers:
            raise error


async def _restore(target: Store, batch: Sequence[StoredRow]) -> None:
    try:
        with anyio.fail_after(PATIENCE):
            await until_known(lambda: target.restore(batch))
    except TimeoutError:
        raise CannotCopy(f"the target has not answered for {PATIENCE:.0f} seconds: {GO_ON}") from None
