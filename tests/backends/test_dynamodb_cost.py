"""What a store in DynamoDB asks of the service, and pays for, is counted by the service itself."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import pytest

from perdure.stores import Address
from perdure.stores._contract_make import (
    after,
    commit_of,
    remember_of,
    request_of,
    signal_of,
    started,
    worker_of,
    write_of,
)
from perdure.stores._dynamodb import DynamoDBStore
from perdure.stores._dynamodb_keys import SHARDS, shard_of, thread_pk

pytestmark = pytest.mark.anyio


class Bill:
    """What is asked of the service from now on, by what it charges for.

    Its local edition counts capacity in its own way, so the actions are counted, and the bytes of the largest
    item: one of up to a kilobyte costs a unit to write, and two in a transaction.
    """

    def __init__(self, store: DynamoDBStore) -> None:
        self._asked: Counter[str] = Counter()
        self.largest = 0
        events = store._table._link._client.meta.events
        events.register("provide-client-params.dynamodb", self._note)

    def _note(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        match model.name:
            case "TransactWriteItems":
                self._asked["in transactions"] += len(params["TransactItems"])
                self._weigh(part.get("Put", {}) for part in params["TransactItems"])
            case "BatchWriteItem":
                self._asked["writes"] += sum(map(len, params["RequestItems"].values()))
            case "PutItem" | "UpdateItem" | "DeleteItem":
                self._asked["writes"] += 1
                self._weigh([params])
            case "BatchGetItem":
                self._asked["reads"] += sum(len(each["Keys"]) for each in params["RequestItems"].values())
            case "Query" if "IndexName" in params:
                self._asked["looks into an index"] += 1
            case _:
                self._asked["reads"] += 1

    def _weigh(self, puts: Iterable[Mapping[str, Any]]) -> None:
        for put in puts:
            item = put.get("Item", {})
            texts = {name: next(iter(value.values())) for name, value in item.items()}
            size = sum(
                len(name) + len(it if isinstance(it, bytes) else str(it)) for name, it in texts.items()
            )
            self.largest = max(self.largest, size)

    def take(self) -> dict[str, int]:
        asked = dict(self._asked)
        self._asked.clear()
        return asked


@pytest.fixture
async def store(dynamodb_url: str) -> AsyncIterator[DynamoDBStore]:
    async with DynamoDBStore(dynamodb_url) as store:
        yield store


async def test_what_each_call_asks_for(store: DynamoDBStore) -> None:
    """What docs/how-to/use-dynamodb.md says; set it lower when the store needs less."""
    bill = Bill(store)
    await store.beat(worker_of())
    bill.take()
    await started(store, "first")  # which lists its workspace and machine
    bill.take()
    thread = await started(store)
    assert bill.take() == {"reads": 3, "in transactions": 3}

    plain = commit_of(thread, payload=bytes(300))
    await store.commit(plain)
    assert bill.take() == {"in transactions": 2}
    thread = after(thread, plain)
    more = commit_of(thread, messages=(b"hi",), memory=(write_of("k", b"v", 0),))
    await store.commit(more)
    assert bill.take() == {"reads": 2, "writes": 2, "in transactions": 5}
    thread = after(thread, more)
    await store.commit(commit_of(thread, status="waiting", release=True))
    assert bill.take() == {"in transactions": 2}
    assert bill.largest < 1024

    await store.deliver(signal_of())
    assert bill.take() == {"reads": 2, "writes": 1, "in transactions": 2}
    assert len((await store.claim(request_of())).claims) == 1
    assert bill.take() == {"looks into an index": 17, "reads": 4, "writes": 1}
    assert not (await store.claim(request_of())).claims
    assert bill.take() == {"looks into an index": 17}
    await store.remember(remember_of("r", b"v", None))
    assert bill.take() == {"reads": 2, "writes": 2, "in transactions": 1}
    await store.beat(worker_of())
    assert bill.take() == {"writes": 1, "looks into an index": 8}


@pytest.mark.parametrize(
    "names",
    [
        lambda n: ("acme", f"cust_{n}/june"),
        lambda n: (f"tenant-{n % 1000:04}", f"order-{n // 1000:08}"),
        lambda n: ("acme", f"2026-12-{n % 31:02}T{n:08}"),
        lambda n: ("acme", hashlib.md5(str(n).encode()).hexdigest()),
    ],
    ids=["customers", "tenants", "days", "random"],
)
def test_realistic_keys_spread_over_lists_and_partitions(names: Callable[[int], tuple[str, str]]) -> None:
    """Over the lists' shards by perdure, and over partitions by a hash of their keys as the service has one:
    the busiest gets little more than its part."""
    count = 40_000
    shards = Counter(shard_of(*names(n)) for n in range(count))
    assert len(shards) == SHARDS
    assert max(shards.values()) < 1.05 * count / SHARDS
    keys = (
        thread_pk(Address(workspace=workspace, thread_id=id_)) for workspace, id_ in map(names, range(count))
    )
    partitions = Counter(hashlib.md5(key.encode()).digest()[0] % 64 for key in keys)
    assert max(partitions.values()) < 1.2 * count / 64
