"""The largest commit and start that the seam allows fit into one transaction of DynamoDB."""

from __future__ import annotations

import pytest
from attrs import evolve

from perdure.stores import (
    Artifacts,
    BadStoreURL,
    Inbox,
    Keys,
    KeyWrite,
    Log,
    Memory,
    MemoryCheck,
    Messages,
    Outbox,
    OutboxRow,
    StoreUnreadable,
    open_store,
)
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import (
    WORKSPACE,
    address_of,
    artifact_of,
    commit_of,
    signal_of,
    start_of,
    started,
    write_of,
)
from perdure.stores._dynamodb import DynamoDBStore
from perdure.stores._limits import MAX_CONSUMED, MAX_ID, MAX_NAME, MAX_OUTSIDE, MAX_SOURCES

pytestmark = pytest.mark.anyio

KIB = 1024
SOURCES = tuple(f"{number:02}".ljust(MAX_ID, "s") for number in range(MAX_SOURCES))
NAMES = tuple(f"{number:02}".ljust(MAX_NAME, "k") for number in range(12))


async def test_a_commit_of_as_many_and_as_large_parts_as_fit(dynamodb_url: str) -> None:
    """A body of 256 KiB, 3 MiB in all, 64 rows outside of the thread of every kind, each at its longest, and
    16 signals."""
    async with DynamoDBStore(dynamodb_url) as store:
        thread = await started(store)
        for number in range(MAX_CONSUMED):
            await store.deliver(signal_of(f"s{number}"))
        thread = evolve(thread, inbox=MAX_CONSUMED)
        commit = commit_of(
            thread,
            payload=bytes(256 * KIB),
            items=bytes(256 * KIB),
            consumed=tuple(range(1, MAX_CONSUMED + 1)),
            messages=(bytes(256 * KIB),) * 8,
            memory=tuple(
                write_of(f"{n:02}".ljust(MAX_NAME, "k"), bytes(KIB), 0, "n" * MAX_NAME) for n in range(12)
            ),
            checks=tuple(MemoryCheck(namespace="never", key=f"k{n}", version=0) for n in range(12)),
            artifacts=tuple(artifact_of(f"a{n}", derived_from=SOURCES) for n in range(8)),
            keys=tuple(KeyWrite(effect="publish", key=f"k{n}", action="claim") for n in range(12)),
            outbox=tuple(
                OutboxRow(seq=1, n=n, target=address_of("other"), kind="signal", payload=bytes(KIB))
                for n in range(12)
            ),
        )
        await store.commit(commit)
        await store.commit(commit)
        found = [
            len(await rows(store, Log(address=thread.address))),
            len(await rows(store, Messages(workspace=WORKSPACE, session="talk"), 3)),
            len(await rows(store, Memory(workspace=WORKSPACE))),
            len(await rows(store, Artifacts(workspace=WORKSPACE, derived_from=SOURCES[-1]))),
            len(await rows(store, Keys(workspace=WORKSPACE, effect="publish"))),
            len(await rows(store, Outbox(address=thread.address))),
        ]
        assert found == [2, 8, 12, 8, 12, 12]
        assert sum(found[1:]) + len(commit.checks) == MAX_OUTSIDE


async def test_a_start_of_as_many_signals_as_fit(dynamodb_url: str) -> None:
    async with DynamoDBStore(dynamodb_url) as store:
        signals = tuple(signal_of(f"s{n}", payload=bytes(40 * KIB)) for n in range(MAX_OUTSIDE))
        start = start_of(signals=signals, items=b"i")
        start = evolve(start, log=evolve(start.log, payload=bytes(256 * KIB)))
        await store.start(start)
        answer = await store.start(start)
        assert [each.row.number for each in answer.delivered] == list(range(1, MAX_OUTSIDE + 1))
        assert len(await rows(store, Inbox(address=start.address), 7)) == MAX_OUTSIDE


async def test_a_table_that_is_not_there_is_made_only_where_it_may_be(dynamodb_url: str) -> None:
    with pytest.raises(BadStoreURL, match="there is no such table"):
        async with open_store(dynamodb_url, create=False):
            pass
    with pytest.raises(StoreUnreadable, match="there is no such table"):
        async with open_store(dynamodb_url, read_only=True):
            pass
    async with open_store(dynamodb_url):
        pass
    async with open_store(dynamodb_url, create=False) as store:
        await started(store)
