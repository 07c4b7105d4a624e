"""A store that an earlier release wrote is migrated, reads as it did, and each of its threads goes on."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from anyio import to_thread
from released.desk import Approval, Desk, Order, World
from sqlite_child import open_at_once

from perdure.runtime import Runtime
from perdure.stores import (
    Artifacts,
    Inbox,
    Items,
    Keys,
    Log,
    Memory,
    Messages,
    Outbox,
    SQLiteStore,
    ThreadRow,
    Threads,
    Workers,
)
from perdure.stores._contract_kit import rows
from perdure.stores._sqlite_schema import MIGRATIONS

pytestmark = pytest.mark.anyio

RELEASED = sorted((Path(__file__).parent / "released").glob("schema*.db"))
STANDING = {
    "ends": ("done", "ended", None, 5),
    "fails": ("reading", "parked", "failed", 2),
    "in-doubt": ("posting", "running", None, 4),
    "runs": ("reading", "running", None, 1),
    "unowned": ("reading", "running", None, 1),
    "waits": ("review", "waiting", None, 3),
}
"""State, status, reason and number of log rows of each thread, as its release left it."""


@pytest.fixture(params=RELEASED, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copy(request.param, tmp_path / "perdure.db"))


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[tuple[Runtime[World], World]]:
    world = World()
    artifacts = f"file://{path.parent}/artifacts"
    async with Runtime(
        machines=[Desk], deps=world, store=f"sqlite:///{path}", artifacts=artifacts
    ) as runtime:
        yield runtime, world


def test_each_schema_that_was_released_is_kept() -> None:
    assert [path.stem for path in RELEASED] == [f"schema{i}" for i in range(1, len(MIGRATIONS))]
    assert max(path.stat().st_size for path in RELEASED) < 200_000


async def test_everything_is_read_as_it_was(path: Path) -> None:
    async with SQLiteStore(path) as store:
        threads = {row.address.thread_id: row for row in await rows(store, Threads())}
        assert {name: _stands(row) for name, row in threads.items()} == STANDING
        for row in threads.values():
            log = await rows(store, Log(address=row.address))
            assert [entry.n for entry in log] == list(range(row.n))
            assert (log[-1].head, log[0].at, log[-1].at) == (row.head, row.created, row.updated)
            assert (row.priority, row.schema) == (0, 1)
            assert await rows(store, Outbox(address=row.address)) == ()
        ends = threads["ends"]
        assert [entry.n for entry in await rows(store, Items(address=ends.address))] == [2, 4]
        (entry,) = await rows(store, Inbox(address=threads["runs"].address, pending=True))
        assert (entry.id, entry.event, entry.version) == ("approval-1", "approve", 0)
        said = await rows(store, Messages(workspace="default", session="ends"))
        assert [row.thread_id for row in said] == ["ends"]
        assert [row.key for row in await rows(store, Memory(workspace="default"))] == [
            "ends",
            "in-doubt",
            "waits",
        ]
        assert len(await rows(store, Artifacts(workspace="default"))) == 3
        keys = {
            row.key: row.outcome is None
            for row in await rows(store, Keys(workspace="default", effect="post"))
        }
        assert keys == {"ends": False, "in-doubt": True}
        (worker,) = await rows(store, Workers())
        assert worker.id == threads["runs"].owner == threads["in-doubt"].owner
        assert worker.hint == ""


def _stands(row: ThreadRow) -> tuple[str, str, str | None, int]:
    return row.standing.state, row.standing.status, row.standing.reason, row.n


async def test_each_thread_goes_on(path: Path) -> None:
    async with running(path) as (runtime, world):
        doubt = await runtime.thread(Desk, thread_id="in-doubt").result()
        assert (doubt.state, doubt.data.posted) == ("done", "posted in-doubt")
        fails = runtime.thread(Desk, thread_id="fails")
        await fails.retry()
        unowned = runtime.thread(Desk, thread_id="unowned", workspace="acme")
        for thread in (fails, unowned, runtime.thread(Desk, thread_id="waits")):
            await thread.signal(Desk.approve, Approval(by="ada"), id="approval-2")
        early = await runtime.start(Desk, Order(name="early"), thread_id="early")
        runs = runtime.thread(Desk, thread_id="runs")
        for thread in (fails, unowned, early, runs, runtime.thread(Desk, thread_id="waits")):
            ended = await thread.result()
            assert (ended.state, ended.data.notes[-1]) == ("done", "posted")
            assert len(ended.data.talk) == 1
    assert sorted(world.posted) == ["early", "fails", "in-doubt", "runs", "unowned", "waits"]


async def test_processes_that_open_it_at_once_all_come_up(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        ((version,),) = db.execute("PRAGMA user_version").fetchall()
    await to_thread.run_sync(open_at_once, path, version)
    async with SQLiteStore(path) as store:
        assert len(await rows(store, Threads())) == len(STANDING) + 9
