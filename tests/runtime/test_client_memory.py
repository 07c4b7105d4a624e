"""Memory from outside of any thread: typed, conditional, expiring, and the same to steps as to clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from harness.engine import Note, Sim, World, every, fresh, job, simulated
from harness.loop import EPOCH, SimLoop
from harness.store import FaultyStore

from perdure.machines import Namespace, NotStorable, Step, Unreadable, record
from perdure.runtime import Fact, MemoryConflict
from perdure.runtime._client_memory import ClientMemory
from perdure.stores import Memory, TooLarge

T = TypeVar("T")


@record
class Liking:
    """What is known of a customer."""

    colour: str
    since: int = 0


likings = Namespace("customer", Liking)
RED, BLUE = Liking(colour="red"), Liking(colour="blue")
NOW = datetime.fromtimestamp(EPOCH / 1e6, tz=UTC)


async def all_of(found: AsyncIterator[T]) -> list[T]:
    return [each async for each in found]


@simulated
async def test_a_fact_is_put_read_listed_and_deleted_with_every_version_kept(loop: SimLoop) -> None:
    memory = Sim(loop).client().memory
    assert await memory.get(likings, "ada", workspace="w") is None
    first = await memory.put(likings, "ada", RED, workspace="w", principal="user:bo")
    assert first == Fact(
        namespace="customer",
        key="ada",
        version=1,
        value=RED,
        at=NOW,
        principal="user:bo",
        thread_id=None,
        seq=None,
        expires=None,
    )
    assert await memory.get(likings, "ada", workspace="w") == first
    assert await memory.get(likings, "ada") is None
    second = await memory.put(likings, "ada", BLUE, workspace="w", expires=timedelta(days=30))
    assert (second.version, second.expires) == (2, NOW + timedelta(days=30))
    await memory.put(likings, "bo", RED, workspace="w")
    await memory.put("order", "7", {"lines": [1, 2.5, "\u2603", None]}, workspace="w")
    assert [(f.key, f.value) for f in await all_of(memory.list(likings, workspace="w"))] == [
        ("ada", BLUE),
        ("bo", RED),
    ]
    assert [(f.namespace, f.key, f.value) for f in await all_of(memory.list(workspace="w"))] == [
        ("customer", "ada", {"colour": "blue", "since": 0}),
        ("customer", "bo", {"colour": "red", "since": 0}),
        ("order", "7", {"lines": [1, 2.5, "\u2603", None]}),
    ]
    assert await memory.delete(likings, "ada", workspace="w") is True
    assert await memory.delete(likings, "ada", workspace="w") is False
    assert await memory.delete(likings, "nobody", workspace="w") is False
    assert await memory.get(likings, "ada", workspace="w") is None
    assert [f.key for f in await all_of(memory.list(likings, workspace="w"))] == ["bo"]
    kept = memory.history(likings, "ada", workspace="w")
    versions = await all_of(kept)
    assert [(f.version, f.value) for f in versions] == [(1, RED), (2, BLUE), (3, None)]
    assert await all_of(memory.history("customer", "nobody", workspace="w")) == []


@simulated
async def test_if_version_holds_a_write_to_the_version_that_was_looked_at(loop: SimLoop) -> None:
    sim = Sim(loop)
    memory = sim.client().memory
    await memory.put(likings, "ada", RED, workspace="w", if_version=0)
    with pytest.raises(MemoryConflict, match="version 0 was expected and version 1 is there, a record that"):
        await memory.put(likings, "ada", BLUE, workspace="w", if_version=0)
    with pytest.raises(MemoryConflict, match="customer/new: version 2 was expected and there is none"):
        await memory.put(likings, "new", BLUE, workspace="w", if_version=2)
    sim.change_memory(likings, "ada", BLUE)
    with pytest.raises(MemoryConflict, match="version 2 is there, a record that thread 'other' wrote"):
        await memory.delete(likings, "ada", workspace="w", if_version=1)
    assert len(await sim.memory(likings, "ada")) == 2
    assert await memory.delete(likings, "ada", workspace="w", if_version=2)
    with pytest.raises(MemoryConflict, match="version 3 is there, a deletion that owner wrote"):
        await memory.put(likings, "ada", RED, workspace="w", if_version=2)
    with pytest.raises(MemoryConflict, match="version 2 was expected"):
        await memory.delete(likings, "ada", workspace="w", if_version=2)
    anew = await memory.put(likings, "ada", RED, workspace="w", if_version=0)
    assert anew.version == 4  # there was no record, and its versions count on


@simulated
async def test_an_expired_fact_is_seen_by_nobody_and_a_put_over_it_counts_on(loop: SimLoop) -> None:
    sim = Sim(loop)
    memory = sim.client().memory
    await memory.put(likings, "ada", RED, workspace="w", expires=timedelta(seconds=10))
    seen: list[Any] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        seen.append(await step.memory.get(likings, "ada"))
        if len(seen) == 2:
            await step.memory.put(likings, "ada", BLUE)
        return machine.finished()

    machine = job(body)
    engine = await sim.engine(machine)
    await loop_to(loop, 9)
    await engine.start(machine, thread_id="before")
    await sim.until("ended", thread_id="before")
    assert (await memory.get(likings, "ada", workspace="w")) is not None
    await loop_to(loop, 10)
    assert await memory.get(likings, "ada", workspace="w") is None
    assert await all_of(memory.list(likings, workspace="w")) == []
    kept = memory.history(likings, "ada", workspace="w")
    assert [fact.value for fact in await all_of(kept)] == [RED]
    await engine.start(machine, thread_id="after")
    await sim.until("ended", thread_id="after")
    assert seen == [RED, None]
    newest = await memory.get(likings, "ada", workspace="w")
    assert newest is not None
    assert (newest.version, newest.value, newest.thread_id, newest.expires) == (2, BLUE, "after", None)
    await memory.put(likings, "ada", RED, workspace="w", expires=timedelta(seconds=1))
    await loop_to(loop, 60)
    assert (await memory.put(likings, "ada", BLUE, workspace="w", if_version=0)).version == 4


async def loop_to(loop: SimLoop, second: float) -> None:
    """Let the clock stand at so many seconds after the beginning."""

    await asyncio.sleep(second - (loop.now() - EPOCH) / 1e6)


@simulated
async def test_an_update_in_a_step_takes_an_expired_fact_for_none(loop: SimLoop) -> None:
    sim = Sim(loop)
    await sim.client().memory.put(likings, "ada", RED, workspace="w", expires=timedelta(seconds=1))

    def count(before: Liking | None) -> Liking:
        return BLUE if before is None else Liking(colour=before.colour, since=before.since + 1)

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.memory.update(likings, "ada", count)
        return machine.finished()

    machine = job(body)
    await loop_to(loop, 2)
    await (await sim.engine(machine)).start(machine)
    await sim.until("ended")
    assert await sim.memory(likings, "ada") == [RED, BLUE]


@simulated
async def test_a_step_that_rests_on_an_older_version_is_refused_by_a_put_from_outside(loop: SimLoop) -> None:
    sim = Sim(loop)
    memory = sim.client().memory
    await memory.put(likings, "ada", RED, workspace="w")
    seen: list[str] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        known = await step.memory.get(likings, "ada")
        assert known is not None
        seen.append(known.colour)
        if len(seen) == 1:
            await memory.put(likings, "ada", BLUE, workspace="w")
        await step.memory.put(likings, "ada", Liking(colour=known.colour, since=known.since + 1))
        return machine.finished(text=await step.call(fresh, known.colour))

    machine = job(body)
    await (await sim.engine(machine)).start(machine)
    row = await sim.until("ended", "parked")
    assert row.standing.status == "ended"
    assert seen == ["red", "blue"]
    assert await sim.memory(likings, "ada") == [RED, BLUE, Liking(colour="blue", since=1)]


@pytest.mark.parametrize("deed", ["lose before", "lose after", "refuse"])
@simulated
async def test_a_write_whose_reply_is_lost_is_written_once(loop: SimLoop, deed: Any) -> None:
    sim = Sim(loop)
    store = FaultyStore(sim.store, sim.tell)
    store.fault(deed, every("remember"), times=2)
    memory = ClientMemory(store, sim.env)
    assert (await memory.put(likings, "ada", RED, workspace="w")).version == 1
    assert await sim.memory(likings, "ada") == [RED]


@simulated
async def test_what_is_no_fact_is_refused_before_anything_is_written(loop: SimLoop) -> None:
    sim = Sim(loop)
    memory = sim.client().memory
    wrong: list[tuple[type[Exception], Any, str, Any]] = [
        (NotStorable, likings, "k", "red"),
        (NotStorable, likings, "k", None),
        (NotStorable, "customer", "k", None),
        (NotStorable, "customer", "k", float("nan")),
        (NotStorable, "customer", "k", object()),
        (NotStorable, "customer", "k", "\ud800"),
        (ValueError, likings, "", RED),
        (ValueError, "a\0", "k", 1),
        (TooLarge, likings, "k" * 256, RED),
    ]
    for kind, namespace, key, value in wrong:
        with pytest.raises(kind):
            await memory.put(namespace, key, value, workspace="w")
    for workspace in ("", "w" * 129):
        with pytest.raises((ValueError, TooLarge), match="workspace"):
            await memory.put(likings, "k", RED, workspace=workspace)
        with pytest.raises((ValueError, TooLarge), match="workspace"):
            await memory.get(likings, "k", workspace=workspace)
    assert await sim.store_rows(Memory(workspace="w", history=True)) == ()


@simulated
async def test_what_is_stored_otherwise_is_not_guessed(loop: SimLoop) -> None:
    memory = Sim(loop).client().memory
    await memory.put("customer", "ada", ["not", "a", "liking"], workspace="w")
    with pytest.raises(Unreadable, match="memory customer/ada, version 1"):
        await memory.get(likings, "ada", workspace="w")
