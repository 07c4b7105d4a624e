"""Many threads that want the same thing at once."""

from __future__ import annotations

from asyncio import gather
from pathlib import Path
from typing import Any

import pytest
from harness.engine import Note, World, job

from perdure.machines import Namespace, Step
from perdure.runtime import Runtime
from perdure.stores import Memory, SQLiteStore

counts = Namespace("count", int)


@pytest.mark.anyio
async def test_a_hundred_threads_that_count_at_once_in_two_workers_are_all_counted(tmp_path: Path) -> None:
    """On SQLite the commits of one batch all rest on the same version, and only one of them can land."""
    crowd = 100

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.memory.update(counts, "k", lambda n: (n or 0) + 1)
        return machine.finished()

    machine = job(body)
    url = f"sqlite:///{tmp_path}/p.db"
    here, there = (Runtime(machines=[machine], store=url, artifacts="memory://") for _ in range(2))
    async with here, there:
        workers = [here, there]
        threads = await gather(
            *(workers[n % 2].start(machine, Note(), thread_id=str(n)) for n in range(crowd))
        )
        await gather(*(thread.result() for thread in threads))
    async with SQLiteStore(tmp_path / "p.db") as store:
        page = await store.page(Memory(workspace="default", namespace="count", key="k"), limit=1)
    assert (page.rows[0].value, page.rows[0].version) == (b"%d" % crowd, crowd)
