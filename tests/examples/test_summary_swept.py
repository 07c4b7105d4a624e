"""The example survives the kit's own sweep: its object storage is a receiver of the world."""

from __future__ import annotations

import hashlib

import attrs
import pytest

from examples._customers import load_customers
from examples._objects import ObjectStorage, StoredObject
from examples.summary import Brief, Deps, Summary
from perdure.runtime.testing import Receiver, World, assert_arrivals, crash_sweep

pytestmark = pytest.mark.anyio


@attrs.frozen
class Storage(ObjectStorage):
    """Sends its puts to the receiver, and asks it for them."""

    receiver: Receiver

    async def put(self, name: str, content: bytes, *, key: str) -> StoredObject:
        await self.receiver.send(key, name, content)
        return stored(key, name, content)

    async def find(self, key: str) -> StoredObject | None:
        if await self.receiver.find(key) is None:
            return None
        return next(stored(key, *each.args) for each in self.receiver.arrivals if each.key == key)


def stored(key: str, name: str, content: bytes) -> StoredObject:
    return StoredObject(
        name=name, key=key, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content)
    )


async def test_the_summary_survives_every_crash(world: World) -> None:
    deps = Deps(customers=load_customers(), storage=Storage(0, world.receiver("storage")))
    timed = ["remembered", "customer/cust_01"]  # both hold when it was
    sweep = await crash_sweep(Summary, Brief(customer_id="cust_01"), deps=deps, may_differ=timed)
    sweep.check()
    assert len(sweep.runs) == len(sweep.boundaries) >= 18
    assert any("an artifact's bytes were put" in run.boundary for run in sweep.runs)
    assert_arrivals(world, "storage", 1)
