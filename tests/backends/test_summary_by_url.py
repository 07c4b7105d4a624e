"""``examples/summary.py`` on servers: nothing of it changes but two URLs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
from s3_tools import outside

from examples._extractive import summarise
from examples._objects import ObjectStorage, object_storage
from examples.summary import Brief, Deps, Summary, customers, runtime
from perdure import Runtime, present
from perdure.runtime._verify import verify
from perdure.stores import Artifacts, Memory, Threads, open_store

pytestmark = pytest.mark.anyio

CUSTOMER = "cust_07"


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[ObjectStorage]:
    async with object_storage(tmp_path / "storage") as storage:
        yield storage


@pytest.fixture
def deps(storage: ObjectStorage) -> Deps:
    return attrs.evolve(runtime.deps, storage=storage)


@pytest.fixture(params=["postgres_schema", "dynamodb_url"])
def store_url(request: pytest.FixtureRequest) -> str:
    """A server's store of this test's own."""
    return str(request.getfixturevalue(request.param))


async def test_the_example_runs_unchanged(
    store_url: str, s3_endpoint: str, deps: Deps, storage: ObjectStorage
) -> None:
    async with outside(s3_endpoint) as bucket:
        artifacts = f"s3://{bucket.bucket}/deep/er?endpoint={s3_endpoint}&region=us-east-1"
        async with Runtime(machines=[Summary], deps=deps, store=store_url, artifacts=artifacts) as first:
            thread = await first.start(Summary, Brief(customer_id=CUSTOMER), thread_id=CUSTOMER)
            ended = await thread.result()
        assert ended.state == "done"
        async with Runtime(machines=[Summary], deps=deps, store=store_url, artifacts=artifacts) as second:
            text = await second.artifacts.get(present(ended.data.summary))
        assert text.decode() == summarise(present(ended.data.customer))
        assert any(present(ended.data.summary).sha256 in key for key in await bucket.keys())
        assert await bucket.leftovers() == []
    [arrival] = await storage.arrivals()
    assert arrival.sha256 == present(ended.data.summary).sha256
    async with open_store(store_url, read_only=True) as store:
        [row] = (await store.page(Threads())).rows
        assert (row.standing.status, (await verify(store, row)).broken) == ("ended", None)
        [fact] = (await store.page(Memory(workspace="default"))).rows
        [artifact] = (await store.page(Artifacts(workspace="default"))).rows
    assert customers.codec.decode(fact.value or b"", "memory").last_summary == ended.data.summary
    assert artifact.sha256 == arrival.sha256
