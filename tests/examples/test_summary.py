"""The machine of ``examples/summary.py``: what each checkpoint holds, and what it leaves in the world."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from examples._customers import load_customers
from examples._extractive import summarise
from examples._objects import ObjectStorage, object_storage
from examples.summary import Brief, Deps, Summary, customers, runtime
from perdure import Parked, Runtime, present
from perdure.stores import Memory, MemoryStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[ObjectStorage]:
    async with object_storage(tmp_path / "storage") as storage:
        yield storage


def runtime_on(storage: ObjectStorage, store: MemoryStore) -> Runtime[Deps]:
    deps = Deps(customers=load_customers(), storage=storage)
    return Runtime(machines=[Summary], deps=deps, store=store, artifacts="memory:")


async def test_four_steps_one_object(storage: ObjectStorage) -> None:
    store = MemoryStore()
    async with runtime_on(storage, store) as running:
        thread = await running.start(Summary, Brief(customer_id="cust_07"), thread_id="t")
        ended = await thread.result()
        data = ended.data
        text = (await running.artifacts.get(present(data.summary))).decode()
        steps = [(step.state, step.event, step.dest) for step in await thread.history()]
    assert ended.state == "done"
    assert steps[1:] == [
        ("loading", "loaded", "summarising"),
        ("summarising", "summarised", "storing"),
        ("storing", "put", "remembering"),
        ("remembering", "remembered", "done"),
    ]
    assert data.customer == load_customers()["cust_07"]
    assert text == summarise(present(data.customer))
    [arrival] = await storage.arrivals()
    assert arrival.name == present(data.stored).name == "summaries/cust_07.txt"
    assert arrival.sha256 == present(data.stored).sha256 == present(data.summary).sha256
    assert await storage.get("summaries/cust_07.txt") == text.encode()
    async with store:
        [row] = (await store.page(Memory(workspace="default"))).rows
    facts = customers.codec.decode(row.value or b"", "memory")
    assert (row.namespace, row.key, row.version) == ("customer", "cust_07", 1)
    assert (facts.last_summary, facts.summarised, facts.summaries) == (data.summary, data.remembered, 1)


async def test_every_customer_is_summarised_once(storage: ObjectStorage) -> None:
    ids = list(load_customers())
    async with runtime_on(storage, MemoryStore()) as running, anyio.create_task_group() as tasks:

        async def summarised(customer_id: str) -> None:
            thread = await running.start(Summary, Brief(customer_id=customer_id), thread_id=customer_id)
            assert (await thread.result()).state == "done"

        for customer_id in ids:
            tasks.start_soon(summarised, customer_id)
    assert len(ids) == 50
    arrived = sorted(arrival.name for arrival in await storage.arrivals())
    assert arrived == sorted(f"summaries/{customer_id}.txt" for customer_id in ids)


async def test_a_second_thread_of_a_customer_counts_on(storage: ObjectStorage) -> None:
    store = MemoryStore()
    async with runtime_on(storage, store) as running:
        for thread_id in ("one", "two"):
            thread = await running.start(Summary, Brief(customer_id="cust_02"), thread_id=thread_id)
            await thread.result()
    async with store:
        [row] = (await store.page(Memory(workspace="default"))).rows
    assert customers.codec.decode(row.value or b"", "memory").summaries == 2
    keys = [arrival.key for arrival in await storage.arrivals()]
    assert len(set(keys)) == 2


async def test_an_unknown_customer_parks(storage: ObjectStorage) -> None:
    quick = Runtime(
        machines=[Summary],
        deps=Deps(customers={}, storage=storage),
        store=MemoryStore(),
        artifacts="memory:",
    )
    async with quick as running:
        thread = await running.start(Summary, Brief(customer_id="nobody"), thread_id="t")
        with pytest.raises(Parked, match=r"failed.*nobody"):
            await thread.result()
    assert await storage.arrivals() == []


def test_the_runtime_is_there_for_the_command_line() -> None:
    assert isinstance(runtime, Runtime)
    assert list(runtime.definitions) == ["Summary"]
