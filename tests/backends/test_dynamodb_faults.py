"""A DynamoDB that is too busy, fails, cuts connections and loses answers: nothing is written twice, lost, or
told wrongly."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from attrs import evolve
from servers.http_faults import CUT, LOST, SILENT, Fault, HttpFaults, http_faults, refused

from perdure.stores import BadStoreURL, OutcomeUnknown, StoreError, StoreUnavailable, StoreUnreadable
from perdure.stores._dynamodb_asks import ABSENT, Cancelled, Check, Delete, Key, Put, Update
from perdure.stores._dynamodb_place import Place, find_place
from perdure.stores._dynamodb_table import DynamoDBTable

pytestmark = pytest.mark.anyio

ONE, TWO = Key("p", "1"), Key("p", "2")
NEW = Put(key=ONE, item={"a": 1}, wanted={"a": ABSENT})
BUSY = (
    refused("ProvisionedThroughputExceededException"),
    refused("ThrottlingException"),
    refused("RequestLimitExceeded"),
    refused("TransactionConflictException"),
    refused("TransactionInProgressException"),
    refused(
        "TransactionCanceledException",
        CancellationReasons=[{"Code": "TransactionConflict"}, {"Code": "None"}],
    ),
    refused("TransactionCanceledException", CancellationReasons=[{"Code": "ThrottlingError"}]),
)


@pytest.fixture
async def faults(dynamodb_endpoint: str) -> AsyncIterator[HttpFaults]:
    async with http_faults(dynamodb_endpoint) as faults:
        yield faults


@pytest.fixture
def place(dynamodb_url: str, faults: HttpFaults) -> Place:
    """The table of this test, through the faults."""
    return evolve(find_place(dynamodb_url), endpoint=f"http://127.0.0.1:{faults.port}", timeout=30.0)


@pytest.fixture
async def table(place: Place) -> AsyncIterator[DynamoDBTable]:
    async with opened(place) as table:
        yield table


class opened:  # noqa: N801
    """A table while it is open."""

    def __init__(self, place: Place, **options: Any) -> None:
        self._table = DynamoDBTable(place, **options)

    async def __aenter__(self) -> DynamoDBTable:
        await self._table.open()
        return self._table

    async def __aexit__(self, *_: object) -> None:
        await self._table.close()


@pytest.mark.parametrize("busy", BUSY, ids=lambda busy: str(busy.body)[40:90])
async def test_a_busy_service_is_asked_again(busy: Fault, table: DynamoDBTable, faults: HttpFaults) -> None:
    faults.plan("TransactWriteItems", busy, busy)
    faults.plan("PutItem", busy)
    faults.plan("GetItem", busy, busy)
    await table.transact([NEW])
    await table.write(Put(key=TWO, item={"a": 2}))
    assert await table.get(ONE) == {"PK": "p", "SK": "1", "a": 1}
    assert faults.seen[-8:] == [*3 * ["TransactWriteItems"], *2 * ["PutItem"], *3 * ["GetItem"]]


async def test_a_service_that_stays_busy_is_unavailable_and_nothing_is_written(
    table: DynamoDBTable, place: Place, faults: HttpFaults
) -> None:
    async with opened(place, jitter=lambda low, high: high if high < 0.1 else 60.0) as impatient:
        for operation in ("TransactWriteItems", "PutItem", "GetItem", "BatchWriteItem"):
            faults.plan(operation, *4 * [refused("ThrottlingException")])
        for call in (
            impatient.transact([NEW]),
            impatient.write(NEW),
            impatient.get(ONE),
            impatient.write_many([Put(key=ONE, item={})]),
        ):
            with pytest.raises(StoreUnavailable, match="ThrottlingException"):
                await call
    faults.planned.clear()
    assert await table.get(ONE) is None


@pytest.mark.parametrize(
    "lost", [LOST, refused("InternalServerError", 500, passed_on=True)], ids=["cut", "500"]
)
async def test_a_transaction_whose_answer_is_lost_lands_once(
    lost: Fault, table: DynamoDBTable, faults: HttpFaults
) -> None:
    """The tries of one call share their token, so that each is answered as the first would have been."""
    faults.plan("TransactWriteItems", lost, lost)
    await table.transact([NEW, Put(key=TWO, item={}, wanted={"PK": ABSENT})])
    tokens = [body["ClientRequestToken"] for body in faults.bodies if "ClientRequestToken" in body]
    assert len(tokens) == 3
    assert len(set(tokens)) == 1
    assert await table.get(ONE) is not None
    with pytest.raises(Cancelled):
        await table.transact([NEW])


@pytest.mark.parametrize(
    "lost", [LOST, refused("InternalServerError", 500, passed_on=True)], ids=["cut", "500"]
)
async def test_a_condition_that_an_own_lost_write_has_changed_is_no_refusal(
    lost: Fault, table: DynamoDBTable, faults: HttpFaults
) -> None:
    faults.plan("PutItem", lost)
    with pytest.raises(OutcomeUnknown):
        await table.write(NEW)
    assert await table.get(ONE) is not None
    with pytest.raises(Cancelled):
        await table.write(NEW)


@pytest.mark.parametrize("cut", [CUT, refused("ServiceUnavailable", 503)], ids=["cut", "503"])
async def test_what_never_arrived_is_sent_again(cut: Fault, table: DynamoDBTable, faults: HttpFaults) -> None:
    for operation in ("TransactWriteItems", "PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"):
        faults.plan(operation, cut)
    await table.transact([NEW, Check(key=TWO, wanted={"PK": ABSENT})])
    await table.write(Put(key=TWO, item={"b": 1}, wanted={"b": ABSENT}))
    assert await table.write(Update(key=TWO, item={"b": 2}, wanted={"b": 1})) is not None
    await table.write(Delete(key=TWO, wanted={"b": 2}))
    await table.write_many([Put(key=TWO, item={"b": 3})])
    assert await table.get(TWO) == {"PK": "p", "SK": "2", "b": 3}


async def test_a_service_that_falls_silent_is_given_up(
    table: DynamoDBTable, place: Place, faults: HttpFaults
) -> None:
    async with opened(place) as impatient:
        impatient._link.place = evolve(place, timeout=0.2)
        for operation in ("PutItem", "GetItem", "TransactWriteItems"):
            faults.plan(operation, *10 * [SILENT])
        with pytest.raises(OutcomeUnknown):
            await impatient.write(NEW)
        with pytest.raises(OutcomeUnknown):
            await impatient.transact([NEW])
        with pytest.raises(StoreUnavailable):
            await impatient.get(ONE)
    faults.planned.clear()
    assert await table.get(ONE) is None


async def test_what_a_batch_leaves_undone_is_done(table: DynamoDBTable, faults: HttpFaults) -> None:
    (name,) = {body["TableName"] for body in faults.bodies}

    def first_put(asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        puts = asked["RequestItems"][name]
        return {"RequestItems": {name: puts[:1]}}, {"UnprocessedItems": {name: puts[1:]}}

    def first_key(asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        left = asked["RequestItems"][name]
        one = {**left, "Keys": left["Keys"][:1]}
        rest = {**left, "Keys": left["Keys"][1:]}
        return {"RequestItems": {name: one}}, {"UnprocessedKeys": {name: rest}}

    faults.plan("BatchWriteItem", *2 * [Fault(rewrite=first_put)])
    faults.plan("BatchGetItem", *2 * [Fault(rewrite=first_key)])
    keys = [Key("p", str(n)) for n in range(10)]
    await table.write_many([Put(key=key, item={}) for key in keys])
    assert set(await table.get_many(keys)) == set(keys)
    assert faults.seen[-6:] == [*3 * ["BatchWriteItem"], *3 * ["BatchGetItem"]]


async def test_a_service_that_is_not_there_has_written_nothing(place: Place) -> None:
    async with opened(place) as table:
        nowhere = DynamoDBTable(evolve(place, endpoint="http://127.0.0.1:1", timeout=0.2))
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await nowhere.open()
        with pytest.raises(StoreUnavailable, match="not open"):
            await nowhere.write(NEW)
        assert await table.get(ONE) is None


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("UnrecognizedClientException", BadStoreURL),
        ("AccessDeniedException", BadStoreURL),
        ("ExpiredTokenException", BadStoreURL),
        ("ResourceNotFoundException", StoreUnreadable),
        ("ValidationException", StoreError),
    ],
)
async def test_a_refusal_is_told_in_its_own_words(
    code: str,
    error: type[StoreError],
    place: Place,
    faults: HttpFaults,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    caplog.set_level(logging.INFO)
    async with opened(place) as table:
        faults.plan("PutItem", refused(code))
        with pytest.raises(
            StoreError, match=code if code != "ResourceNotFoundException" else "no such table"
        ):
            await table.write(NEW)
        said = repr(table)
    faults.plan("DescribeTable", *2 * [refused(code)])
    with pytest.raises(error) as caught:
        await DynamoDBTable(place).open(read_only=True)
    assert "hunter2" not in f"{caught.value!r}{caught.value.__cause__!r}{said}{caplog.text}"
