"""What is asked of the one table of a DynamoDB store, on a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.stores import TooLarge
from perdure.stores._dynamodb_asks import ABSENT, PRESENT, Cancelled, Check, Delete, Key, Put, Span, Update
from perdure.stores._dynamodb_keys import GROUPS, INDEXES
from perdure.stores._dynamodb_place import find_place
from perdure.stores._dynamodb_table import DynamoDBTable

pytestmark = pytest.mark.anyio

ONE, TWO = Key("p", "1"), Key("p", "2")
FULL = {
    "text": "é\x1f",
    "empty": "",
    "number": -(2**63),
    "bytes": b"\x00\xff",
    "none": b"",
    "texts": ["a", ""],
}


@pytest.fixture
async def table(dynamodb_url: str) -> AsyncIterator[DynamoDBTable]:
    table = DynamoDBTable(find_place(dynamodb_url))
    await table.open()
    yield table
    await table.close()


def keys(key: Key) -> dict[str, str]:
    return {"PK": key.pk, "SK": key.sk}


async def test_what_is_put_is_read_as_it_was(table: DynamoDBTable) -> None:
    assert await table.write(Put(key=ONE, item={**FULL, "gone": None})) is None
    assert await table.get(ONE) == {**FULL, **keys(ONE)}
    assert await table.get(TWO) is None
    await table.write(Delete(key=ONE))
    await table.write(Delete(key=ONE))
    assert await table.get(ONE) is None


async def test_an_update_sets_and_removes_what_it_names_and_gives_the_whole(table: DynamoDBTable) -> None:
    assert await table.write(Update(key=ONE, item={"a": 1, "b": "x"})) == {"a": 1, "b": "x", **keys(ONE)}
    changed = await table.write(Update(key=ONE, item={"a": None, "c": 3}, wanted={"a": 1, "z": ABSENT}))
    assert changed == {"b": "x", "c": 3, **keys(ONE)} == await table.get(ONE)


async def test_a_condition_that_does_not_hold_shows_the_item(table: DynamoDBTable) -> None:
    await table.write(Put(key=ONE, item={"a": 1}))
    for refused in (
        Put(key=ONE, item={"a": 2}, wanted={"a": ABSENT}),
        Update(key=ONE, item={"a": 2}, wanted={"a": 3}),
        Delete(key=ONE, wanted={"b": PRESENT}),
    ):
        with pytest.raises(Cancelled) as cancelled:
            await table.write(refused)
        (reason,) = cancelled.value.reasons
        assert reason.failed
        assert reason.item == {"a": 1, **keys(ONE)}
    with pytest.raises(Cancelled) as cancelled:
        await table.write(Delete(key=TWO, wanted={"a": PRESENT}))
    assert cancelled.value.reasons[0].item is None
    assert await table.get(ONE) == {"a": 1, **keys(ONE)}


async def test_a_transaction_is_whole_or_nothing(table: DynamoDBTable) -> None:
    await table.write(Put(key=ONE, item={"a": 1}))
    with pytest.raises(Cancelled) as cancelled:
        await table.transact([Put(key=TWO, item={}), Check(key=ONE, wanted={"a": 2})])
    assert [reason.failed for reason in cancelled.value.reasons] == [False, True]
    assert cancelled.value.reasons[1].item == {"a": 1, **keys(ONE)}
    assert await table.get(TWO) is None
    many = [Put(key=Key("many", str(n)), item={"n": n}, wanted={"n": ABSENT}) for n in range(98)]
    await table.transact([*many, Check(key=ONE, wanted={"a": 1}), Delete(key=TWO)])
    assert len(await table.query(Span(pk="many"))) == 98
    with pytest.raises(Cancelled):
        await table.transact(many)


async def test_a_span_is_read_in_order_and_to_its_ends(table: DynamoDBTable) -> None:
    big = b"x" * 300_000  # four of them are more than a page of the service
    await table.write_many([Put(key=Key("p", f"{n:02}"), item={"n": n, "big": big}) for n in range(30)])

    async def found(limit: int | None = None, **span: object) -> list[int]:
        return [item["n"] for item in await table.query(Span(pk="p", **span), limit)]  # type: ignore[arg-type]

    assert await found() == list(range(30))
    assert await found(7, descending=True) == [29, 28, 27, 26, 25, 24, 23]
    assert await found(first="03", last="05") == [3, 4, 5]
    assert await found(first="28") == [28, 29]
    assert await found(last="01") == [0, 1]
    assert await found(first="05", last="03") == []
    assert await table.query(Span(pk="other")) == []


async def test_an_index_holds_items_with_its_keys(table: DynamoDBTable) -> None:
    pk, sk = INDEXES[GROUPS].pk, INDEXES[GROUPS].sk
    await table.write(Put(key=ONE, item={pk: "g", sk: "1", "version": 7, "other": "x"}))
    await table.write(Put(key=TWO, item={"version": 7}))
    assert await table.query(Span(pk="g", index=GROUPS)) == [{pk: "g", sk: "1", "version": 7, **keys(ONE)}]
    await table.write(Update(key=ONE, item={pk: None, sk: None}))
    assert await table.query(Span(pk="g", index=GROUPS)) == []


async def test_many_are_read_and_written(table: DynamoDBTable) -> None:
    every = [Key(f"p{n}", "s") for n in range(130)]
    await table.write_many([Put(key=key, item={"n": n}) for n, key in enumerate(every)])
    found = await table.get_many([*every, *every, ONE])
    assert found == {key: {"n": n, **keys(key)} for n, key in enumerate(every)}
    await table.write_many([Delete(key=key) for key in every[:60]])
    assert len(await table.get_many(every)) == 70
    assert await table.get_many([]) == {}


async def test_what_no_item_can_hold_is_refused(table: DynamoDBTable) -> None:
    with pytest.raises(ValueError, match="lone surrogate"):
        await table.write(Put(key=ONE, item={"a": "\ud800"}))
    with pytest.raises(TooLarge):
        await table.write(Put(key=ONE, item={"a": b"x" * 410_000}))
    with pytest.raises(TooLarge):
        await table.transact([Put(key=ONE, item={"a": b"x" * 410_000}), Put(key=TWO, item={})])
    assert await table.get_many([ONE, TWO]) == {}
