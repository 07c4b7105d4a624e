"""A database that somebody edited by hand: the damaged thread stands still, and every other goes on."""

from __future__ import annotations

import sqlite3
from asyncio import sleep
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from harness.engine import FaultyStore, Note, Sim, World, simulated
from harness.loop import SimLoop

from perdure.machines import Fire, Machine, State, Step, Unreadable
from perdure.runtime import Parked, Runtime

OF_T0 = "(SELECT id FROM thread WHERE thread_id = 't0')"


class Going(Machine[Note, World], version=1):
    """Waits for a signal, then runs to its end."""

    waiting = State(initial=True)
    working = State()
    done = State(final=True)
    go = waiting.to(working).on_signal()
    finished = working.to(done)

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        return self.finished(text="went")


def runtime(url: str) -> Runtime[Any]:
    return Runtime(machines=[Going], store=url, artifacts="memory://", poll=timedelta(milliseconds=10))


async def damaged(tmp_path: Path, edit: str) -> Runtime[Any]:
    """Two waiting threads, the first of them damaged."""
    path = tmp_path / "p.db"
    async with runtime(f"sqlite:///{path}").client() as client:
        for name in ("t0", "t1"):
            await client.start(Going, Note(), thread_id=name)
    db = sqlite3.connect(path)
    db.execute(edit)
    db.commit()
    db.close()
    return runtime(f"sqlite:///{path}")


@pytest.mark.parametrize(
    "edit",
    [
        f"DELETE FROM log WHERE thread = {OF_T0}",
        f"UPDATE log SET kind = 99 WHERE thread = {OF_T0}",
        f"UPDATE log SET head = 'text' WHERE thread = {OF_T0}",
        f"UPDATE standing SET n = 44 WHERE id = {OF_T0}",
    ],
    ids=["no journal", "rows of an unknown kind", "a chain of text", "a newest row that is not there"],
)
@pytest.mark.anyio
async def test_a_thread_whose_rows_no_store_wrote_keeps_no_other_from_going_on(
    tmp_path: Path, edit: str
) -> None:
    async with await damaged(tmp_path, edit) as running:
        db = sqlite3.connect(tmp_path / "p.db")
        db.execute("UPDATE standing SET wake = 1")  # both are due, so that both are claimed together
        db.commit()
        db.close()
        other = running.thread(Going, thread_id="t1")
        await other.signal(Going.go, id="s")
        with anyio.fail_after(5):
            assert (await other.result()).data.text == "went"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            f"UPDATE standing SET base = 44 WHERE id = {OF_T0}",
            "log row 44, which holds its newest snapshot, is not there",
        ),
        (
            f"UPDATE log SET payload = CAST(replace(payload, '\"b\":{{', "
            f'\'"b":{{"deep":{"[" * 100_000}{"]" * 100_000},\') AS BLOB) WHERE thread = {OF_T0}',
            "a stored record cannot be read",
        ),
    ],
    ids=["its snapshot is not there", "its data is too deep"],
)
@pytest.mark.anyio
async def test_a_snapshot_that_cannot_be_read_parks_as_unreadable(
    tmp_path: Path, edit: str, said: str
) -> None:
    async with await damaged(tmp_path, edit) as running:
        thread = running.thread(Going, thread_id="t0")
        await thread.signal(Going.go, id="s")
        with pytest.raises(Parked) as parked:
            await thread.result()
        assert parked.value.reason == "unreadable"
        assert said in str(parked.value)
        with pytest.raises(Unreadable, match="t0"):
            await thread.data()


@simulated
async def test_a_worker_whose_claims_and_heartbeats_failed_unexpectedly_goes_on_with_both(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = Sim(loop, Going)
    await sim.engine()
    failures = {"claim": 3, "beat": 3}
    for name in failures:
        real = getattr(FaultyStore, name)

        async def broken(*args: Any, name: str = name, real: Any = real, **more: Any) -> Any:
            if failures[name]:
                failures[name] -= 1
                raise TypeError("a driver's fault")
            return await real(*args, **more)

        monkeypatch.setattr(FaultyStore, name, broken)
    await sleep(60)
    await sim.client().start(Going, Note(), thread_id="t", workspace="w")
    await sim.thread(Going).signal(Going.go, id="s")
    row = await sim.until("ended", "parked")
    assert (row.standing.status, failures) == ("ended", {"claim": 0, "beat": 0})
