"""What is too large for a row goes through a server's store into an object storage, and comes back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from crash.everything import World
from crash.spilling_job import WHERE, Heavy, Spilling, Told, digest, facts, large
from harness.copying import Silent
from s3_tools import outside

from perdure import Runtime
from perdure.artifacts import open_artifacts
from perdure.runtime._collect import collect
from perdure.runtime._copy import copy_store
from perdure.runtime._env import Env
from perdure.runtime._look import find_thread
from perdure.runtime._spill import SpillingStore, opened
from perdure.runtime._spilled import body_of, is_spilled, spilled_in
from perdure.runtime._verify import verify
from perdure.stores import Items, Log, SQLiteStore, open_store

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["postgres_schema", "dynamodb_url"])
def store_url(request: pytest.FixtureRequest) -> str:
    """A server's store of this test's own."""
    return str(request.getfixturevalue(request.param))


@attrs.frozen
class Here(World):
    """A receiver in this process."""

    arrived: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    async def arrive(self, effect: str, key: str, **args: Any) -> None:
        assert key not in self.arrived
        self.arrived[key] = args

    async def find(self, key: str) -> Mapping[str, Any] | None:
        return self.arrived.get(key)

    async def look(self, what: str) -> str:
        return what


async def test_every_body_goes_into_the_bucket_and_comes_back(
    store_url: str, s3_endpoint: str, tmp_path: Path
) -> None:
    deps = Here(port=0, run="", point=lambda name: None)
    async with outside(s3_endpoint) as bucket:
        artifacts = f"s3://{bucket.bucket}/deep/er?endpoint={s3_endpoint}&region=us-east-1"
        async with Runtime(machines=[Spilling], deps=deps, store=store_url, artifacts=artifacts) as first:
            start = Heavy(text=large("first"))
            thread = await first.start(Spilling, start, thread_id="job", session="s")
            await thread.signal(Spilling.tell, Told(text=large("told")), id="1")
            assert (await thread.result()).state == "done"
        async with Runtime(machines=[Spilling], deps=deps, store=store_url, artifacts=artifacts) as second:
            data = await second.thread(Spilling, thread_id="job").data()
            fact = await second.memory.get(facts, "k")
        assert (data.text, data.lines[0], data.sent) == (large("told"), large("thought"), large("thought"))
        assert fact is not None
        assert fact.value.text == large("told") + "m"
        assert [sent["sha256"] for sent in deps.arrived.values()] == [digest(large("thought"))]
        async with open_artifacts(artifacts) as blobs, open_store(store_url) as store:
            whole = SpillingStore(store, opened(blobs), Env().now)
            await _is_all_there(whole)
            assert (await collect(whole, blobs, Env().now, grace=timedelta(0))).blobs == 0
            async with SQLiteStore(tmp_path / "copy.db") as copy:
                await copy_store(store, copy, Env(), Silent())
                await _is_all_there(SpillingStore(copy, opened(blobs), Env().now))
            [item] = [row for row in (await store.page(Items(address=WHERE))).rows if is_spilled(row.payload)]
            await bucket.damage("default", spilled_in(item.payload).sha256)
            broken = (await verify(whole, await find_thread(whole, WHERE))).broken
            assert broken is not None
            assert (broken.n, spilled_in(item.payload).sha256 in broken.note) == (item.n, True)


async def _is_all_there(store: SpillingStore) -> None:
    """The record is as it was written, and its rows in the store are small."""
    thread = await find_thread(store, WHERE)
    verified = await verify(store, thread)
    assert (verified.broken, verified.rows) == (None, thread.n)
    rows = (await store.inner.page(Log(address=WHERE))).rows
    assert sum(is_spilled(body_of(row)) for row in rows) >= 3
    assert all(len(body_of(row) or b"") < 10_000 for row in rows)
