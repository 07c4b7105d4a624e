"""Claims in a DynamoDB table: what its indexes show is taken thread by thread, each only as it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from attrs import define, evolve, field

from ._dynamodb_asks import Cancelled, Item, Span
from ._dynamodb_desk import Desk
from ._dynamodb_fair import Threads, earliest_wake, sources
from ._dynamodb_items import Stood, address_of, unpack, unpack_thread
from ._dynamodb_keys import (
    SUSPECTS,
    below,
    items_key,
    joined,
    log_key,
    number,
    standing_key,
    suspects_pk,
    thread_pk,
    worker_key,
)
from ._dynamodb_room import Room
from ._dynamodb_threads import pending, put_thread
from ._dynamodb_workers import find_dead, forget, is_gone, register
from ._errors import OutcomeUnknown, StoreError
from ._fair import choose
from ._records import Address, Claim, Claimed, ClaimRequest, ItemsRow, LogRow, Micros, ThreadRow
from ._shares import without_full

ROUNDS = 5
"""How often a claim looks again where others took what it had found."""


Taken = tuple[Stood, str | None]


@define
class Search:
    """One claim, while it is made."""

    desk: Desk
    request: ClaimRequest
    now: Micros
    dead: dict[str, Item]
    """Workers that are dead, each with its row; of one that never beat it is empty."""
    room: Room
    taken: dict[Address, Taken] = field(factory=dict[Address, Taken], init=False)
    """What is claimed, each with whom it was taken from."""
    seen: set[Address] = field(factory=set[Address], init=False)
    """What was chosen before, whether it could be had or not."""
    suspects: bool = field(default=False, init=False)
    late: bool = field(default=False, init=False)
    late_taken: int = field(default=0, init=False)

    async def run(self) -> None:
        for _ in range(ROUNDS):
            chosen = [address for address in await self._look() if address not in self.seen]
            self.seen.update(chosen)
            if await self._take(chosen) == len(chosen):
                return

    async def _look(self) -> Sequence[Address]:
        """Find what can be claimed beside what was chosen before."""
        if self.request.only is not None:
            return await self._only(self.request.only)
        found = await self._find_suspects()
        if self.request.suspects:
            self.suspects = len(found) > 1
            left = self.request.limit - len(self.taken)
            return found[: min(1, left)]
        self.suspects = bool(found)
        return await self._shared_out()

    async def _only(self, address: Address) -> Sequence[Address]:
        stood = unpack_thread(await self.desk.table.get(standing_key(address)))
        request = without_full(self.request, self.room.left)
        if stood is None or stood.row.standing.status == "ended" or not self._is_readable(stood, request):
            return ()
        if (stood.row.crashes >= request.suspect_from) != request.suspects:
            self.suspects = not request.suspects
            return ()
        return (address,)[: request.limit]

    async def _find_suspects(self) -> Sequence[Address]:
        """Those that could be claimed now, the fewest crashes first."""
        request = without_full(self.request, self.room.left)
        first = number(max(1, request.suspect_from))
        spans = [Span(pk=suspects_pk(machine), first=first, index=SUSPECTS) for machine in request.machines]
        found = [it for items in await asyncio.gather(*map(self.desk.table.query, spans)) for it in items]
        keys = [standing_key(address_of(entry)) for entry in found]
        items = await self.desk.table.get_many(keys) if keys else {}
        stood = [thread for item in items.values() if (thread := unpack_thread(item)) is not None]
        fit = [
            each.row
            for each in stood
            if each.row.crashes >= request.suspect_from
            and self._is_readable(each, request)
            and self._is_ready(each)
            and each.row.address not in self.seen
        ]
        return [row.address for row in sorted(fit, key=lambda row: row.crashes)]

    async def _shared_out(self) -> Sequence[Address]:
        request = evolve(
            self.request,
            limit=self.request.limit - len(self.taken),
            late_limit=self.request.late_limit - self.late_taken,
        )
        threads = Threads(self.desk.table, request, self.seen)
        ways = sources(self.dead, request, self.now)
        choice = await threads.choose(choose(request, ways, self.room.left, self.desk.turn))
        self.late = choice.late_left
        self.desk.turn.update(choice.turn)
        return [threads.found[chosen] for chosen in choice.numbers]

    def _is_readable(self, stood: Stood, request: ClaimRequest) -> bool:
        """The request is about this thread, and nobody who lives has it."""
        row = stood.row
        version = request.machines.get(row.machine)
        free = row.owner is None or row.owner in self.dead
        return free and version is not None and row.standing.version <= version

    def _is_ready(self, stood: Stood) -> bool:
        standing = stood.row.standing
        due = standing.status == "waiting" and standing.wake is not None and standing.wake <= self.now
        return due or standing.status == "running"

    def _may_take(self, stood: Stood) -> bool:
        request = self.request
        ready = stood.row.standing.status != "ended" if request.only else self._is_ready(stood)
        suspect = stood.row.crashes >= request.suspect_from
        return ready and suspect == request.suspects and self._is_readable(stood, request)

    async def _take(self, chosen: Sequence[Address]) -> int:
        """Claim those of them that can still be claimed; how many there were."""
        if not chosen:
            return 0
        items = await self.desk.table.get_many(standing_key(address) for address in chosen)
        wanted: list[tuple[Item, Stood]] = []
        for address in chosen:
            item = items.get(standing_key(address), {})
            stood = unpack_thread(item)
            if stood is not None and self._may_take(stood):
                wanted.append((item, stood))
        admitted = await self.room.admit([stood for _, stood in wanted])
        some = [(item, stood) for item, stood in wanted if stood.row.address in admitted]
        answers = await asyncio.gather(*(self._take_one(*each) for each in some), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        unknown = [error for error in errors if isinstance(error, OutcomeUnknown)]
        if unknown or (errors and not self.taken):
            raise (unknown or errors)[0]
        return sum(answer is True for answer in answers)

    async def _take_one(self, item: Item, before: Stood) -> bool:
        row, worker = before.row, self.request.worker
        left = self.dead.get(row.owner) if row.owner is not None else None
        in_order = left is None or left.get("ended") is not None
        crashed = row.standing.status == "running" and not in_order
        after = evolve(
            row,
            epoch=row.epoch + 1,
            owner=worker,
            crashes=row.crashes + int(crashed),
            standing=evolve(row.standing, status="running"),
        )
        stood = evolve(before, row=after)
        try:
            await self.desk.table.write(put_thread(stood, item))
        except Cancelled:
            await self.room.give_back(after)
            return False
        except OutcomeUnknown as lost:
            if not await self._has_it(after, lost):
                return False
        self.taken[row.address] = (stood, row.owner)
        self.late_taken += int(_is_late(row, self.request.late_before))
        return True

    async def _has_it(self, after: ThreadRow, lost: OutcomeUnknown) -> bool:
        """Whether a claim landed of which the answer was lost."""
        try:
            there = unpack_thread(await self.desk.table.get(standing_key(after.address)))
        except StoreError:
            raise lost from None
        return there is not None and (there.row.owner, there.row.epoch) == (after.owner, after.epoch)


def _is_late(row: ThreadRow, before: Micros | None) -> bool:
    wake = row.standing.wake
    return row.standing.status == "waiting" and before is not None and wake is not None and wake < before


async def claim(desk: Desk, request: ClaimRequest) -> Claimed:
    """Claim what the request asks for."""
    await register(desk, request.worker)
    now = desk.clock()
    dead = await _find_dead(desk, request, now)
    room = Room(desk, request, now)
    await room.look()
    search = Search(desk, request, now, dead, room)
    try:
        await search.run()
        claims = await asyncio.gather(*(_load(desk, *taken) for taken in search.taken.values()))
        next_wake = None if request.only is not None else await _next_wake(search)
    except StoreError as error:
        if search.taken:
            raise OutcomeUnknown(f"threads were claimed, and then: {error}") from error
        raise
    if request.only is None:
        await _forget(desk, search, now)
    for stood, _ in search.taken.values():
        desk.keep(stood)
    return Claimed(
        claims=tuple(claim for claim in claims if claim is not None),
        now=now,
        next_wake=next_wake,
        suspects=search.suspects,
        late=search.late,
    )


async def _find_dead(desk: Desk, request: ClaimRequest, now: Micros) -> dict[str, Item]:
    if request.only is not None:
        stood = unpack_thread(await desk.table.get(standing_key(request.only)))
        owners = [] if stood is None or stood.row.owner is None else [stood.row.owner]
        keys = [worker_key(owner) for owner in owners]
        rows = await desk.table.get_many(keys) if keys else {}
        dead = {owner: rows.get(worker_key(owner), {}) for owner in owners}
        dead = {it: row for it, row in dead.items() if it in request.dead or is_gone(row or None, now)}
    else:
        dead = await find_dead(desk, now)
        named = {worker_key(worker): worker for worker in request.dead if worker not in dead}
        rows = await desk.table.get_many(named) if named else {}
        dead |= {worker: rows.get(key, {}) for key, worker in named.items()}
    dead.pop(request.worker, None)
    return dead


async def _forget(desk: Desk, search: Search, now: Micros) -> None:
    """Those of whom nothing was taken may own nothing."""
    owners = {owner for _, owner in search.taken.values()}
    idle = [row for worker, row in search.dead.items() if worker not in owners and row]
    with suppress(StoreError):  # the next claim comes by here too
        await asyncio.gather(*(forget(desk, row, now) for row in idle))


async def _next_wake(search: Search) -> Micros | None:
    request = without_full(search.request, search.room.left)
    return await earliest_wake(
        search.desk.table, request.machines, search.dead, request, search.now, search.taken.keys()
    )


async def _load(desk: Desk, stood: Stood, taken_from: str | None) -> Claim | None:
    """What is needed to go on with a thread; None where rows are there that no store wrote."""
    row, table = stood.row, desk.table
    pk, standing = thread_pk(row.address), row.standing
    later = below(pk, "log", after=log_key(row.address, standing.base - 1).sk)
    some = below(pk, "items", after=items_key(row.address, standing.items - 1).sk)
    log, items, inbox = await asyncio.gather(
        table.query(later), table.query(some), pending(table, row.address, stood.low)
    )
    try:
        rows = [unpack(LogRow, item) for item in log]
        if rows and rows[0].seq == standing.seq and not _is_checkpoint(rows[0]):
            rows = [*await _earlier(desk, row.address, standing.base, standing.seq), *rows]
        return Claim(
            thread=row,
            log=tuple(each for each in rows if each.seq == standing.seq or _is_checkpoint(each)),
            items=tuple(unpack(ItemsRow, item) for item in items),
            inbox=inbox,
            taken_from=taken_from,
        )
    except (LookupError, TypeError, ValueError):
        return None


def _is_checkpoint(row: LogRow) -> bool:
    return row.kind in ("start", "transition")


async def _earlier(desk: Desk, address: Address, base: int, seq: int) -> Sequence[LogRow]:
    """Rows of a visit before a base that is not where the visit begins."""
    span = Span(pk=thread_pk(address), first=joined("log", ""), last=log_key(address, base - 1).sk)
    rows = [unpack(LogRow, item) for item in await desk.table.query(span)]
    return [row for row in rows if row.seq == seq]
