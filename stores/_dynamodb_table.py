"""The one table of a DynamoDB store: what is asked of it, carried out."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from anyio import CancelScope
from attrs import define, field

from ._dynamodb_asks import Action, Delete, Item, Key, Put, Span, Update
from ._dynamodb_link import Link, Tries
from ._dynamodb_opening import examine, prepare
from ._dynamodb_place import Place
from ._dynamodb_values import asked, asked_span, key_of, pack_item, pack_key, unpack_item
from ._errors import StoreUnavailable

T = TypeVar("T")

MOST_READ, MOST_WRITTEN = 100, 25
"""How many items one call takes that reads or writes several, each by itself."""


@define
class DynamoDBTable:
    """See ``Table``: a table of DynamoDB, which is made where it is missing."""

    place: Place
    jitter: Callable[[float, float], float] = random.uniform
    _link: Link = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._link = Link(self.place, self.jitter)

    async def open(self, *, read_only: bool = False, create: bool = True) -> None:
        """Reach the table; ``read_only``: nothing is made. ``BadStoreURL`` where whoever opens it is not let
        in, or where there is none and none is to be made; ``StoreUnreadable`` where it is somebody else's."""
        await self._link.open()
        try:
            await (examine(self._link) if read_only else prepare(self._link, create))
        except BaseException:
            with CancelScope(shield=True):
                await self._link.close()
            raise

    async def close(self) -> None:
        await self._link.close()

    async def get(self, key: Key, /) -> Item | None:
        where = {"TableName": self.place.table, "Key": pack_key(key), "ConsistentRead": True}
        answer = await self._link.read("get_item", where)
        found = answer.get("Item")
        return unpack_item(found) if found else None

    async def get_many(self, keys: Iterable[Key], /) -> dict[Key, Item]:
        found: dict[Key, Item] = {}
        for some in _batches(dict.fromkeys(keys), MOST_READ):
            left: Mapping[str, Any] = {"Keys": [pack_key(key) for key in some], "ConsistentRead": True}
            tries = self._link.tries()
            while True:
                answer = await self._link.read("batch_get_item", {"RequestItems": {self.place.table: left}})
                items = answer["Responses"].get(self.place.table, ())
                found |= {key_of(item): unpack_item(item) for item in items}
                left = answer.get("UnprocessedKeys", {}).get(self.place.table, {})
                if not left:
                    break
                await self._another(tries)
        return found

    async def query(self, span: Span, /, limit: int | None = None) -> list[Item]:
        if span.first is not None and span.last is not None and span.first > span.last:
            return []  # the service takes that for a mistake
        where = {"TableName": self.place.table, **asked_span(span)}
        found: list[Item] = []
        start: Mapping[str, Any] = {}
        while True:
            most = {} if limit is None else {"Limit": limit - len(found)}
            answer = await self._link.read("query", {**where, **start, **most})
            found += map(unpack_item, answer["Items"])
            last = answer.get("LastEvaluatedKey")
            if not last or (limit is not None and len(found) >= limit):
                return found
            start = {"ExclusiveStartKey": last}

    async def write(self, action: Put | Update | Delete, /) -> Item | None:
        name, wire = asked(action, self.place.table)
        if isinstance(action, Update):
            wire["ReturnValues"] = "ALL_NEW"
        answer = await self._link.write(f"{name.lower()}_item", wire)
        return unpack_item(answer["Attributes"]) if isinstance(action, Update) else None

    async def transact(self, actions: Sequence[Action], /) -> None:
        # Tries of this call share a token: the service takes the second for the first that has landed. What
        # it forgets after ten minutes, and what another call repeats, is for the conditions to find out.
        await self._link.write(
            "transact_write_items",
            {
                "TransactItems": [dict([asked(action, self.place.table)]) for action in actions],
                "ClientRequestToken": uuid.uuid4().hex,
            },
        )

    async def write_many(self, actions: Sequence[Put | Delete], /) -> None:
        for some in _batches(actions, MOST_WRITTEN):
            left: Sequence[Any] = [_request(action) for action in some]
            tries = self._link.tries()
            while True:
                answer = await self._link.write(
                    "batch_write_item", {"RequestItems": {self.place.table: left}}
                )
                left = answer.get("UnprocessedItems", {}).get(self.place.table, ())
                if not left:
                    break
                await self._another(tries)

    async def _another(self, tries: Tries) -> None:
        if not await tries.another():
            raise StoreUnavailable(
                f"{self.place.where} is too busy: try again later, or give it more capacity"
            )


def _request(action: Put | Delete) -> Mapping[str, Any]:
    if isinstance(action, Put):
        return {"PutRequest": {"Item": pack_item(action.key, action.item)}}
    return {"DeleteRequest": {"Key": pack_key(action.key)}}


def _batches(all_: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(all_)
    while some := list(islice(left, size)):
        yield some
