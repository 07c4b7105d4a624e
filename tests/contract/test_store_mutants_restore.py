"""Stores with one fault each in how rows are listed and restored, and the check that must notice it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve

from perdure.stores import (
    MemoryRow,
    MemoryStore,
    Page,
    Query,
    RestoreConflict,
    Rows,
    StoredRow,
    ThreadPart,
    ThreadRow,
    kind_of_row,
)
from perdure.stores._memory_restore import _find, _is_missing, _write
from perdure.stores.contract import CHECKS, Clock, ContractBroken, Kit

CHECK = {check.name: check for check in CHECKS}


class ListsOneWorkspace(MemoryStore):
    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        page = await super().page(query, after=after, limit=limit)
        if not isinstance(query, Rows):
            return page
        return evolve(page, rows=[row for row in page.rows if getattr(row, "workspace", "acme") == "acme"])


class ListsOnlyStartedThreads(MemoryStore):
    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        page = await super().page(query, after=after, limit=limit)
        if not isinstance(query, Rows):
            return page
        started = self._tables.threads
        left = [row for row in page.rows if not isinstance(row, ThreadPart) or row.address in started]
        return evolve(page, rows=left)


class SkipsARowOfAKind(MemoryStore):
    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        page = await super().page(query, after=after, limit=limit)
        return page if after is None or not isinstance(query, Rows) else evolve(page, rows=page.rows[1:])


class StampsWhatItRestores(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        await super().restore(
            [evolve(row, at=self._clock()) if isinstance(row, MemoryRow) else row for row in rows]
        )


class ClearsTheOwner(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        await super().restore(
            [evolve(row, owner=None) if isinstance(row, ThreadRow) else row for row in rows]
        )


class CountsTheWaitFromTheStart(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        await super().restore(rows)
        for row in rows:
            if isinstance(row, ThreadRow):
                self._tables.since[row.address] = row.created


class RefusesWhatIsThere(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        if any(_find(self._tables, row) is not None for row in rows):
            raise RestoreConflict("there is something already")
        await super().restore(rows)


class LeavesWhateverIsThere(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        await super().restore([row for row in rows if _find(self._tables, row) is None])


class JudgesRowByRow(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        for row in rows:
            await super().restore([row])


class RestoresInTwoSteps(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        missing = [row for row in rows if _is_missing(self._tables, row)]
        await asyncio.sleep(0)
        for row in missing:
            _write(self._tables, row, self._clock())


class TakesThreadsFirst(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        threads = [row for row in rows if isinstance(row, ThreadRow) and _is_missing(self._tables, row)]
        await super().restore([row for row in rows if not isinstance(row, ThreadRow)])
        for row in threads:
            _write(self._tables, row, self._clock())


class TakesThreadsBeforeTheirInbox(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        for row in rows:
            if isinstance(row, ThreadRow) and not self._tables.inbox[row.address]:
                await super().restore([evolve(row, inbox=0)])
                self._tables.threads[row.address] = row
        await super().restore(rows)


class TakesPartsForever(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        threads = self._tables.threads
        self._tables.threads = {} if all(kind_of_row(row) != "thread" for row in rows) else threads
        try:
            await super().restore(rows)
        finally:
            self._tables.threads = threads


class TakesTheLastForTheNewest(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        for row in rows:
            if isinstance(row, MemoryRow) and _is_missing(self._tables, row):
                self._tables.memory[row.workspace, row.namespace, row.key].append(row)
        await super().restore([row for row in rows if not isinstance(row, MemoryRow)])


class RestoresAnySize(MemoryStore):
    async def restore(self, rows: Sequence[StoredRow], /) -> None:
        for row in rows:
            _write(self._tables, row, self._clock())


MUTANTS: list[tuple[type[MemoryStore], str]] = [
    (ListsOneWorkspace, "rows_by_kind"),
    (ListsOnlyStartedThreads, "rows_by_kind"),
    (SkipsARowOfAKind, "paging_rows"),
    (StampsWhatItRestores, "restore"),
    (ClearsTheOwner, "restored_threads_go_on"),
    (CountsTheWaitFromTheStart, "restored_threads_wait_from_now"),
    (RefusesWhatIsThere, "restore_again"),
    (LeavesWhateverIsThere, "restore_over_another_row"),
    (JudgesRowByRow, "restore_over_another_row"),
    (RestoresInTwoSteps, "restore_at_once"),
    (TakesThreadsFirst, "restored_threads_come_last"),
    (TakesThreadsBeforeTheirInbox, "restored_threads_come_last"),
    (TakesPartsForever, "restored_threads_stay_whole"),
    (TakesTheLastForTheNewest, "restored_memory_in_any_order"),
    (RestoresAnySize, "limits_of_restore"),
]


def title(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", "")


@pytest.mark.anyio
@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=title)
async def test_a_faulty_store_is_caught_by_the_check_meant_for_it(
    mutant: type[MemoryStore], check: str
) -> None:
    clock = Clock()
    store = mutant(clock)
    with pytest.raises(ContractBroken):
        await CHECK[check].run(Kit(open=lambda: store, clock=clock))
