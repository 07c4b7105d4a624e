"""The indexes of DynamoDB may be behind, however far: what is claimed, the threads themselves decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest

from perdure.stores import Claimed, Threads, Workers
from perdure.stores._contract_kit import SECOND, rows
from perdure.stores._contract_make import (
    MACHINE,
    committed,
    request_of,
    signal_of,
    started,
    worker_of,
)
from perdure.stores._dynamodb import DynamoDBStore
from perdure.stores._dynamodb_asks import Item, Span
from perdure.stores._dynamodb_keys import PART
from perdure.stores._dynamodb_place import find_place
from perdure.stores._dynamodb_table import DynamoDBTable
from perdure.stores.contract import Clock

pytestmark = pytest.mark.anyio

LONG = 10**6 * SECOND
HOUR = 3600 * SECOND + 1


class BehindTable(DynamoDBTable):
    """Once it is ``stuck``, its indexes answer what they answered then, and of ``blind`` kinds nothing."""

    def __init__(self, url: str) -> None:
        super().__init__(find_place(url))
        self.stuck = False
        self.blind: Iterable[str] = ()
        self.asked: list[Span] = []
        self._answers: dict[Span, list[Item]] = {}

    async def query(self, span: Span, /, limit: int | None = None) -> list[Item]:
        self.asked.append(span)
        if span.index is None:
            return await super().query(span, limit)
        if span.pk.split(PART)[0] in self.blind:
            return []
        if not self.stuck or span not in self._answers:
            self._answers[span] = await super().query(span)
        return self._answers[span][:limit]


class BehindStore(DynamoDBStore):
    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock=clock)
        self.table = self._table = BehindTable(url)


def names(*claims: Claimed) -> list[str]:
    return [claim.thread.address.thread_id for claimed in claims for claim in claimed.claims]


@pytest.fixture
async def stores(dynamodb_url: str) -> AsyncIterator[Sequence[BehindStore]]:
    """Two on one table, and two workers that live."""
    clock = Clock()
    async with BehindStore(dynamodb_url, clock) as one, BehindStore(dynamodb_url, clock) as two:
        for worker in ("w1", "w2"):
            await one.beat(worker_of(worker, lease=LONG))
        yield one, two


async def test_claims_in_a_race_get_each_thread_once(stores: Sequence[BehindStore]) -> None:
    one, two = stores
    for number in range(24):
        await started(one, f"t{number:02}", owner=None)
    got: list[str] = []
    while len(got) < 24:
        claims = [one.claim(request_of("w1", limit=5)), two.claim(request_of("w2", limit=5))]
        found = names(*await asyncio.gather(*claims))
        assert found
        got += found
    assert sorted(got) == [f"t{number:02}" for number in range(24)]
    assert {row.epoch for row in await rows(one, Threads())} == {1}


async def test_an_index_that_still_shows_what_was_claimed_gives_it_to_nobody(
    stores: Sequence[BehindStore],
) -> None:
    one, two = stores
    for number in range(3):
        await started(one, f"t{number}", owner=None)
    two.table.stuck = True
    claims = [await two.claim(request_of(worker, limit=2)) for worker in ("w2", "w3", "w2")]
    assert sorted(names(*claims)) == ["t0", "t1", "t2"]
    assert {row.epoch for row in await rows(one, Threads())} == {1}


@pytest.mark.parametrize("kind", ["running", "due"])
async def test_what_an_index_does_not_show_yet_is_claimed_later(
    stores: Sequence[BehindStore], kind: str
) -> None:
    one, _ = stores
    parts: dict[str, Any] = {"status": "waiting"} if kind == "due" else {}
    await started(one, owner=None, **parts)
    await one.deliver(signal_of())
    one.table.blind = ("running", "waiting", "due")
    assert names(await one.claim(request_of("w1"))) == []
    one.table.blind = ()
    assert names(await one.claim(request_of("w1"))) == ["t1"]


async def test_what_a_dead_worker_owned_is_found_though_the_index_is_behind(
    dynamodb_url: str,
) -> None:
    """Also where the worker left in good order, and so is asked about no more once it owns nothing."""
    clock = Clock()
    async with BehindStore(dynamodb_url, clock) as store:
        await store.beat(worker_of("w1"))
        await started(store)
        await store.beat(worker_of("w1", ended=clock()))
        store.table.blind = ("owned",)
        for _ in range(3):
            assert names(await store.claim(request_of("w2"))) == []
            clock.advance(60 * SECOND)
        store.table.blind = ()
        assert names(await store.claim(request_of("w2"))) == ["t1"]


async def test_a_worker_that_owns_nothing_is_asked_about_no_more(dynamodb_url: str) -> None:
    """So that workers that left cost a claim nothing for good, and one that comes back is found again."""
    clock = Clock()
    async with BehindStore(dynamodb_url, clock) as store:
        await store.beat(worker_of("w1"))
        clock.advance(HOUR)
        await store.claim(request_of("w2"))
        clock.advance(HOUR)
        await store.claim(request_of("w2"))
        store.table.asked.clear()
        await store.claim(request_of("w2"))
        assert "w1" not in {(span.first or "").split(PART)[0] for span in store.table.asked}
        await started(store)
        assert names(await store.claim(request_of("w2"))) == ["t1"]


async def test_the_row_of_a_worker_that_is_asked_about_no_more_goes_in_the_end(dynamodb_url: str) -> None:
    clock = Clock()
    async with BehindStore(dynamodb_url, clock) as store:
        await store.beat(worker_of("w1"))
        clock.advance(2 * HOUR)
        await store.claim(request_of("w2"))
        for wait, left in ((22 * HOUR - 30, ["w1", "w2"]), (HOUR, ["w2"])):
            clock.advance(wait)
            await store.beat(worker_of("w2", lease=LONG))
            assert sorted(row.id for row in await rows(store, Workers())) == left


async def test_a_limited_machine_keeps_its_limit_though_the_index_is_behind(
    stores: Sequence[BehindStore],
) -> None:
    limited: dict[str, Any] = {"at_once": {MACHINE: 3}}
    for number in range(9):
        await started(stores[0], f"t{number}", owner=None)
    for store in stores:
        store.table.blind = ("owned",)
    got: list[Claimed] = []
    for _ in range(3):
        calls = [
            store.claim(request_of(worker, limit=2, **limited))
            for store, worker in zip(stores, ("w1", "w2"), strict=True)
        ]
        got += await asyncio.gather(*calls)
    assert len(names(*got)) == 3
    done = next(claim.thread for claimed in got for claim in claimed.claims)
    await committed(stores[0], done, status="ended", release=True)
    again = await stores[1].claim(request_of("w2", **limited))
    assert len(names(again)) == 1
