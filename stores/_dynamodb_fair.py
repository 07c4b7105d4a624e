"""What a DynamoDB table answers to who shares threads out, from its indexes.

These may be behind: an entry is where a thread was, and whoever takes it looks at the thread itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from attrs import field, frozen

from ._dynamodb_asks import Item, Span, Table
from ._dynamodb_items import address_of
from ._dynamodb_keys import (
    BEHIND,
    DUE,
    GROUPS,
    INDEXES,
    NEXT,
    PART,
    below,
    due_pk,
    every_shard,
    groups_pk,
    joined,
    number,
    parse_number,
)
from ._fair import LOOKED_AT, POINT, Asking, Candidate, Choice, Group, Parts, Places, Some, Way
from ._limits import MAX_PRIORITY
from ._records import Address, ClaimRequest, Micros

PAGE = 25
"""How many entries are read at once where it is not known how many are of use."""


@frozen(kw_only=True)
class Source:
    """One way in which threads can be claimed: those that are free and run, that wait, or that a dead worker
    owns; those that wait from ``first`` to ``last``."""

    name: str
    kind: str
    owner: str | None = None
    first: Micros | None = None
    last: Micros
    most: int | None = None
    """So many are of use in one claim."""

    def at_most(self, limit: int) -> int:
        return limit if self.most is None else min(limit, self.most)

    def spans(self, machine: str, *parts: str, after: str | None = None) -> Sequence[Span]:
        """Everything of a machine, or of those parts of it, shard by shard."""
        owner = () if self.owner is None else (self.owner,)
        return [
            below(groups_pk(self.kind, machine, shard), *owner, *parts, after=after, index=GROUPS)
            for shard in every_shard()
        ]

    def bounds(self, entry: Entry) -> tuple[Micros | None, Micros | None] | None:
        """Between which moments entries like this one are to be claimed; None: at none."""
        match entry.kind:
            case "running":
                return None, None
            case "waiting":
                return self.first, self.last
            case _:
                return None


def sources(dead: Collection[str], request: ClaimRequest, now: Micros) -> list[Source]:
    """What the dead left behind, what runs and is nobody's, and what waits and is due, late ones apart."""
    found = [Source(name=f"left/{owner}", kind="owned", owner=owner, last=now) for owner in dead]
    found.append(Source(name="runnable", kind="running", last=now))
    before = request.late_before
    found.append(Source(name="due", kind="waiting", first=before, last=now))
    if before is not None:
        last = min(now, before - 1)
        found.append(Source(name="late", kind="waiting", last=last, most=request.late_limit + 1))
    return found


@frozen(kw_only=True)
class Entry:
    """A thread as the index has it."""

    address: Address
    machine: str
    kind: str
    priority: int
    moment: Micros
    section: str
    """What comes before the moment in its key."""
    place: str
    item: Item


def read_entry(item: Item) -> Entry:
    """An entry of the index over groups, of a thread that is free or owned."""
    index = INDEXES[GROUPS]
    place = str(item[index.sk])
    kind, machine, _ = str(item[index.pk]).split(PART)
    *section, moment, _ = place.split(PART)
    if kind == "owned":
        kind, priority = section[-1], section[-2]
    else:
        priority = section[-1]
    return Entry(
        address=address_of(item),
        machine=machine,
        kind=kind,
        priority=MAX_PRIORITY - int(priority),
        moment=parse_number(moment),
        section=joined(*section),
        place=place,
        item=item,
    )


@frozen
class Threads:
    """The threads, as one request at one moment sees them."""

    table: Table
    request: ClaimRequest
    without: Collection[Address]
    """Those that are left out."""
    found: dict[int, Address] = field(factory=dict[int, Address], init=False)
    numbers: dict[Address, int] = field(factory=dict[Address, int], init=False)

    async def choose(self, asking: Asking) -> Choice:
        """Answer each question, and give what the asker comes to."""
        try:
            question = next(asking)
            while True:
                question = asking.send(await self._answer(question))
        except StopIteration as done:
            choice: Choice = done.value
            return choice

    async def _answer(self, question: Some | Places | Parts) -> object:
        match question:
            case Some(ways, limit):
                return await asyncio.gather(*(self._some(way, limit) for way in ways))
            case Places(way, behind, limit):
                return await self._places(way, behind, limit)
            case Parts(groups, ways, limit):
                return await asyncio.gather(*(self._part(group, ways, limit) for group in groups))

    async def _some(self, way: Way, limit: int) -> list[Candidate]:
        machine, source = way
        some = source.at_most(limit)
        if source.kind == "waiting":
            found = await asyncio.gather(
                *(self._due(machine, source, shard, some) for shard in every_shard())
            )
        else:
            spans = source.spans(machine)
            found = await asyncio.gather(*(self._walk(source, span, some, some) for span in spans))
        return [candidate for each in found for candidate in each][:some]

    async def _due(self, machine: str, source: Source, shard: str, limit: int) -> list[Candidate]:
        """By the index that has what waits by its moment alone."""
        first = None if source.first is None else number(source.first)
        span = Span(pk=due_pk(machine, shard), first=first, last=number(source.last), index=DUE)
        found: list[Candidate] = []
        for item in await self.table.query(span, limit + len(self.without)):
            if self._fits(machine, item):
                moment = parse_number(str(item[INDEXES[DUE].sk]))
                rank = moment - int(item["priority"]) * POINT
                found.append(self._candidate(machine, address_of(item), rank, moment))
        return found

    async def _part(self, group: Group, ways: Sequence[Way], limit: int) -> list[Candidate]:
        """So many of each priority, of a group."""
        machine, workspace = group
        walks = [
            self._walk(source, span, source.at_most(limit), None)
            for of, source in ways
            if of == machine
            for span in source.spans(machine, workspace)
        ]
        return [candidate for found in await asyncio.gather(*walks) for candidate in found]

    async def _walk(self, source: Source, span: Span, each: int, most: int | None) -> list[Candidate]:
        """So many of each section of a span; what is not to be claimed now is leapt over."""
        found: list[Candidate] = []
        counts = Counter[str]()
        while True:
            items = await self.table.query(span, PAGE)
            leap: str | None = None
            for entry in map(read_entry, items):
                leap = _leap(source, entry, counts[entry.section] >= each)
                if leap is not None:
                    break
                if self._fits(entry.machine, entry.item):
                    counts[entry.section] += 1
                    found.append(self._from(entry))
                    if len(found) == most:
                        return found
            if leap is None:
                if len(items) < PAGE:
                    return found
                leap = str(items[-1][INDEXES[GROUPS].sk]) + NEXT
            span = Span(pk=span.pk, first=leap, last=span.last, index=span.index)

    async def _places(self, way: Way, behind: str, limit: int) -> tuple[list[str], str]:
        found: list[str] = []
        name, looked = behind, 0
        for first, last in ((behind, None), (None, behind)):
            async for name, claimable in self._workspaces(way, first):
                if last is not None and name > last:
                    break
                looked += 1
                if claimable or await self._part((way[0], name), [way], 1):
                    found.append(name)
                if len(found) == limit or looked == LOOKED_AT * limit:
                    return found, name
        return found, name

    async def _workspaces(self, way: Way, behind: str | None) -> AsyncIterator[tuple[str, bool]]:
        """Workspaces with threads of this kind, in order, and whether one to be claimed was seen there."""
        machine, source = way
        owner = () if source.owner is None else (source.owner,)
        after = joined(*owner, behind) + BEHIND if behind else None
        walks = [self._names(source, span) for span in source.spans(machine, after=after)]
        heads = [await anext(walk, None) for walk in walks]
        while any(heads):
            name = min(head[0] for head in heads if head is not None)
            here = [place for place, head in enumerate(heads) if head is not None and head[0] == name]
            yield name, any(head is not None and head[0] == name and head[1] for head in heads)
            for place in here:
                heads[place] = await anext(walks[place], None)

    async def _names(self, source: Source, span: Span) -> AsyncIterator[tuple[str, bool]]:
        """The workspaces of one shard."""
        while True:
            entries = [read_entry(item) for item in await self.table.query(span, PAGE)]
            seen: dict[str, bool] = {}
            for entry in entries:
                claimable = _leap(source, entry, False) is None and self._fits(entry.machine, entry.item)
                seen[entry.address.workspace] = claimable or seen.get(entry.address.workspace, False)
            for each in seen.items():
                yield each
            if len(entries) < PAGE:
                return
            owner = () if source.owner is None else (source.owner,)
            first = joined(*owner, entries[-1].address.workspace) + BEHIND
            span = Span(pk=span.pk, first=first, last=span.last, index=span.index)

    def _fits(self, machine: str, item: Item) -> bool:
        request = self.request
        return (
            int(item["version"]) <= request.machines[machine]
            and int(item["crashes"]) < request.suspect_from
            and address_of(item) not in self.without
        )

    def _from(self, entry: Entry) -> Candidate:
        due = entry.moment if entry.kind == "waiting" else None
        return self._candidate(entry.machine, entry.address, entry.moment - entry.priority * POINT, due)

    def _candidate(self, machine: str, address: Address, rank: Micros, due: Micros | None) -> Candidate:
        known = self.numbers.setdefault(address, len(self.numbers))
        self.found[known] = address
        return Candidate(known, machine, address.workspace, rank, due)


def _leap(source: Source, entry: Entry, enough: bool) -> str | None:
    """Where to go on where an entry is not to be claimed, and neither are those behind it; None: it is."""
    bounds = source.bounds(entry)
    past = entry.section + BEHIND
    if bounds is None or enough:
        return past
    first, last = bounds
    if last is not None and entry.moment > last:
        return past
    if first is not None and entry.moment < first:
        return joined(entry.section, number(first))
    return None


async def earliest_wake(
    table: Table,
    machines: Mapping[str, int],
    dead: Collection[str],
    request: ClaimRequest,
    now: Micros,
    without: Collection[Address],
) -> Micros | None:
    """The earliest moment of those that wait, from the first one on that is not late."""
    low = request.late_before
    calls = [
        _first_due(table, machine, shard, request, now, without)
        for machine in machines
        for shard in every_shard()
    ]
    calls += [
        _first_left(table, machine, shard, owner, request, now)
        for owner in dead
        for machine in machines
        for shard in every_shard()
    ]
    moments = [moment for moment in await asyncio.gather(*calls) if moment is not None]
    return min((moment for moment in moments if low is None or moment >= low), default=None)


def _counts(machine: str, item: Item, moment: Micros, request: ClaimRequest, now: Micros) -> bool:
    suspect = int(item["crashes"]) >= request.suspect_from
    return int(item["version"]) <= request.machines[machine] and not (moment <= now and suspect)


async def _first_due(
    table: Table,
    machine: str,
    shard: str,
    request: ClaimRequest,
    now: Micros,
    without: Collection[Address],
) -> Micros | None:
    first = None if request.late_before is None else number(request.late_before)
    span = Span(pk=due_pk(machine, shard), first=first, index=DUE)
    some = 1
    while True:
        items = await table.query(span, some)
        for item in items:
            moment = parse_number(str(item[INDEXES[DUE].sk]))
            if _counts(machine, item, moment, request, now) and address_of(item) not in without:
                return moment
        if len(items) < some:
            return None
        some *= 8  # several may have one moment, so the walk begins again


async def _first_left(
    table: Table, machine: str, shard: str, owner: str, request: ClaimRequest, now: Micros
) -> Micros | None:
    """What a dead worker owns is not much: all of it is read."""
    span = below(groups_pk("owned", machine, shard), owner, index=GROUPS)
    low = request.late_before
    moments = [
        entry.moment
        for entry in map(read_entry, await table.query(span))
        if entry.kind == "waiting"
        and _counts(machine, entry.item, entry.moment, request, now)
        and (low is None or entry.moment >= low)
    ]
    return min(moments, default=None)
