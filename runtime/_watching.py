"""Looks after long work: whether others sent something that stops it, or took its thread."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from perdure.stores import Address, Inbox, Store, StoreError, ThreadRow, Threads

from ._look import rows_of
from ._observe import logger
from ._run import Run


class Watching:
    """Once a poll, also while the worker drains, looks at handlers that ran at the last look already."""

    def __init__(self, store: Store, worker: str, runs: Mapping[Address, Run], poll: float) -> None:
        self._store = store
        self._worker = worker
        self._runs = runs
        self._poll = poll
        self._at_work: dict[Address, object] = {}
        """What ran handlers at the last look."""

    async def keep(self) -> None:
        """Look until this is cancelled."""
        while True:
            await anyio.sleep(self._poll)
            try:
                await self._look()
            except StoreError as error:
                logger.warning("worker %s: cannot look after what it runs: %s", self._worker, error)

    async def _look(self) -> None:
        works = {run.address: run.works for run in self._runs.values() if run.works is not None}
        at_work, self._at_work = self._at_work, dict(works)
        long = [self._runs[address] for address, work in works.items() if at_work.get(address) is work]
        if not long:
            return
        query = Threads(owner=self._worker, status="running")
        rows: dict[Address, ThreadRow] = {row.address: row async for row in rows_of(self._store, query)}
        for run in long:
            row = rows.get(run.address)
            if row is None or row.epoch != run.ledger.epoch:
                run.lose()
            elif row.inbox > run.ledger.inbox_seen:
                seen = Inbox(address=run.address, pending=True, after=run.ledger.inbox_seen)
                for message in (await self._store.page(seen)).rows:
                    run.offer(message)
