"""Spans of a DynamoDB table, walked in order, one or several at once, and lists that are looked up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from operator import itemgetter
from typing import TypeVar

from attrs import evolve

from ._dynamodb_asks import Item, Key, Span, Table
from ._dynamodb_keys import INDEXES, NEXT

T = TypeVar("T")


async def walk(table: Table, span: Span, some: int) -> AsyncIterator[tuple[str, Item]]:
    """A span's items with what orders them, read so many at a time."""
    sort = "SK" if span.index is None else INDEXES[span.index].sk
    while True:
        items = await table.query(span, some)
        for item in items:
            yield str(item[sort]), item
        if len(items) < some:
            return
        span = evolve(span, first=str(items[-1][sort]) + NEXT)


async def merged(table: Table, spans: Iterable[Span], some: int) -> AsyncIterator[tuple[str, Item]]:
    """The items of several spans in the order of their sort keys."""
    walks = [walk(table, span, some) for span in spans]
    firsts = await asyncio.gather(*(anext(each, None) for each in walks))
    heads = [(*first, one) for first, one in zip(firsts, walks, strict=True) if first is not None]
    while heads:
        heads.sort(key=itemgetter(0), reverse=True)
        place, item, one = heads.pop()
        yield place, item
        following = await anext(one, None)
        if following is not None:
            heads.append((*following, one))


async def batches(entries: AsyncIterator[T], some: int) -> AsyncIterator[Sequence[T]]:
    batch: list[T] = []
    async for entry in entries:
        batch.append(entry)
        if len(batch) == some:
            yield batch
            batch = []
    if batch:
        yield batch


async def looked_up(
    table: Table, entries: AsyncIterator[tuple[str, Item]], key_of: Callable[[str], Key], some: int
) -> AsyncIterator[tuple[str, Item]]:
    """What the entries of a list name, in their order, as it stands; what is not there is left out."""
    async for batch in batches(entries, some):
        items = await table.get_many(key_of(place) for place, _ in batch)
        for place, _ in batch:
            if (item := items.get(key_of(place))) is not None:
                yield place, item
