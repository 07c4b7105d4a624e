"""What only the memory store promises: no threads, no time, and one caller at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from perdure.stores import Log, MemoryStore, StaleClaim, Store, system_clock
from perdure.stores._contract_make import address_of, after, commit_of, request_of, signal_of, start_of
from perdure.stores.contract import CHECKS, Check, Clock, Kit


def driven(work: Coroutine[Any, Any, None]) -> None:
    """Drives the coroutine by hand: without a loop there are no timers and no threads."""
    while True:
        try:
            assert work.send(None) is None
        except StopIteration:
            return


HERE = [check for check in CHECKS if check.name.startswith(("atomic", "claim", "paging"))]


@pytest.mark.parametrize("check", HERE, ids=lambda check: check.name)
def test_it_needs_no_event_loop(check: Check) -> None:
    clock = Clock()
    store = MemoryStore(clock)
    before = threading.active_count()
    driven(check.run(Kit(open=lambda: store, clock=clock)))
    assert threading.active_count() == before


@pytest.mark.anyio
async def test_a_call_is_done_before_anything_else_runs() -> None:
    store = MemoryStore(Clock())
    thread = (await store.start(start_of())).thread
    call = store.commit(commit_of(thread))
    call.send(None)
    log = await store.page(Log(address=address_of()))
    assert [row.n for row in log.rows] == [0, 1]
    call.close()


@pytest.mark.anyio
async def test_every_call_lets_others_run() -> None:
    store: Store = MemoryStore(Clock())
    thread = (await store.start(start_of())).thread
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await asyncio.sleep(0)
    for call in (
        store.start(start_of("t2")),
        store.commit(commit_of(thread)),
        store.deliver(signal_of()),
        store.claim(request_of()),
        store.release([]),
        store.page(Log(address=address_of())),
    ):
        before = turns
        await call
        assert turns > before
    task.cancel()


@pytest.mark.anyio
async def test_its_data_outlives_its_opening() -> None:
    store = MemoryStore(Clock())
    async with store, store:
        thread = (await store.start(start_of())).thread
    async with store:
        await store.commit(commit_of(thread))
        with pytest.raises(
            StaleClaim, match=r"'t1' at epoch 1, position 4 is refused.*position 2, claimed by 'w1'"
        ):
            await store.commit(
                commit_of(
                    after(after(after(thread, commit_of(thread)), commit_of(thread)), commit_of(thread))
                )
            )


def test_the_system_clock_counts_microseconds() -> None:
    assert 1_700_000_000_000_000 < system_clock() < 10_000_000_000_000_000
