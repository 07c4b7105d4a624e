"""Making a table for a store, and telling one of perdure's from another program's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio

from ._dynamodb_asks import ABSENT, Cancelled, Key, Put
from ._dynamodb_errors import said
from ._dynamodb_keys import EXPIRES, INDEXES
from ._dynamodb_link import Link
from ._dynamodb_values import PK, SK, asked, pack_key
from ._errors import BadStoreURL, StoreError, StoreUnavailable, StoreUnreadable

LAYOUT = 1
"""Grows with each change of what is where in the table."""
MARK = Key("perdure", "layout")
"""Where the table says which layout it has."""
MAKING, LOOKING = 600, 1.0
"""Seconds that the service has to make a table, and between two looks at it."""


async def examine(link: Link) -> None:
    """Look at a table that is only read."""
    found = await _description(link)
    if found is None:
        raise StoreUnreadable(
            f"{link.place.where}: there is no such table, and it was opened to be read only"
        )
    _check_shape(link, found)
    await _check_layout(link)


async def prepare(link: Link, create: bool) -> None:
    """Make the table where it is missing, and mark it; many may do so at once."""
    found = await _description(link)
    if found is None:
        if not create:
            raise BadStoreURL(f"{link.place.where}: there is no such table: name one that is there")
        await _make(link)
        found = await _description(link)
    tries = 0
    while found is None or found["TableStatus"] == "CREATING":
        tries += 1
        if tries > MAKING / LOOKING:
            raise StoreUnavailable(f"{link.place.where} is still being made: try again later")
        await anyio.sleep(LOOKING)
        found = await _description(link)
    _check_shape(link, found)
    await _mark(link)
    await _check_layout(link)


async def _description(link: Link) -> Mapping[str, Any] | None:
    try:
        answer = await link.read("describe_table", {"TableName": link.place.table}, opening=True)
    except StoreUnreadable:
        return None
    found: Mapping[str, Any] = answer["Table"]
    return found


async def _make(link: Link) -> None:
    """What is asked for costs by use, and nothing while nothing is asked of it."""
    keys = [PK, SK, *(name for index in INDEXES.values() for name in (index.pk, index.sk))]
    wanted = {
        "TableName": link.place.table,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": _schema(PK, SK),
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in keys],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": name,
                "KeySchema": _schema(index.pk, index.sk),
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(index.holds)},
            }
            for name, index in INDEXES.items()
        ],
    }
    try:
        await link.write("create_table", wanted, opening=True)
    except StoreError as error:
        if _code(error) != "ResourceInUseException":  # somebody else makes it at this moment
            raise


async def _mark(link: Link) -> None:
    """Say that the table is perdure's, unless it says so."""
    if await _layout(link) is not None:
        return
    some = await link.read("scan", {"TableName": link.place.table, "Limit": 1}, opening=True)
    if some["Count"] and await _layout(link) is None:
        raise StoreUnreadable(
            f"{link.place.where} is another program's: it holds items, and none of perdure's"
        )
    await _let_expire(link)
    _, mark = asked(Put(key=MARK, item={"version": LAYOUT}, wanted={PK: ABSENT}), link.place.table)
    with suppress(Cancelled):
        await link.write("put_item", mark, opening=True)


async def _let_expire(link: Link) -> None:
    """The service clears up by itself then; where it must not, ``expire`` alone does."""
    how = {"Enabled": True, "AttributeName": EXPIRES}
    wanted = {"TableName": link.place.table, "TimeToLiveSpecification": how}
    try:
        await link.write("update_time_to_live", wanted, opening=True)
    except StoreError as error:
        # It is set already, or not for these credentials to set.
        if _code(error) not in ("ValidationException", "AccessDeniedException"):
            raise


async def _layout(link: Link) -> int | None:
    where = {"TableName": link.place.table, "Key": pack_key(MARK), "ConsistentRead": True}
    answer = await link.read("get_item", where, opening=True)
    return int(answer["Item"]["version"]["N"]) if answer.get("Item") else None


async def _check_layout(link: Link) -> None:
    layout = await _layout(link)
    if layout is None:
        raise StoreUnreadable(f"{link.place.where} is another program's, or was never opened to be written")
    if layout > LAYOUT:
        raise StoreUnreadable(
            f"{link.place.where} has layout {layout}, of a newer perdure; this one knows {LAYOUT}: update it"
        )


def _check_shape(link: Link, found: Mapping[str, Any]) -> None:
    """The keys and indexes are those that perdure makes."""
    if found["TableStatus"] == "DELETING":
        raise StoreUnavailable(f"{link.place.where} is being deleted")
    types = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}
    there = {each["IndexName"]: each["KeySchema"] for each in found.get("GlobalSecondaryIndexes", ())}
    wanted = {name: (index.pk, index.sk) for name, index in INDEXES.items()}
    if found["KeySchema"] != _schema(PK, SK) or not types.items() >= {PK: "S", SK: "S"}.items():
        raise StoreUnreadable(f"{link.place.where} is another program's: its keys are not {PK} and {SK}")
    wrong = sorted(name for name, keys in wanted.items() if there.get(name) != _schema(*keys))
    if wrong:
        raise StoreUnreadable(
            f"{link.place.where} lacks the index {', '.join(wrong)}, or it has other keys: let perdure make "
            "the table"
        )


def _code(error: StoreError) -> str:
    """The service's word for why it refused."""
    return said(error.__cause__) if isinstance(error.__cause__, Exception) else ""


def _schema(pk: str, sk: str) -> list[dict[str, str]]:
    return [{"AttributeName": pk, "KeyType": "HASH"}, {"AttributeName": sk, "KeyType": "RANGE"}]
