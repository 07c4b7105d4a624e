"""Which threads a worker gets from a store in plain dicts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from attrs import evolve

from ._memory_tables import Tables, checkpoint
from ._records import Claim, Claimed, ClaimRequest, Micros, ThreadRow
from ._shares import without_full

POINT: Micros = 60_000_000
"""How much waiting a point of a thread's priority counts for."""
PENDING = 100
"""How many pending inbox entries come with a claim."""


class MemoryClaims:
    """The tables, and how claims are made on them."""

    def __init__(self, clock: Callable[[], Micros]) -> None:
        self._clock = clock
        self._tables = Tables()
        self._turn = ("", "")
        """Machine and workspace that a claim served last."""

    def _claimed(self, request: ClaimRequest) -> Claimed:
        now = self._clock()
        room = {name: most - self._owned(name, request, now) for name, most in request.at_once.items()}
        request = without_full(request, room)
        mine = [row for row in self._tables.threads.values() if self._eligible(row, request, now)]
        ready = [row for row in mine if _ready(row, request, now)]
        suspects = [row for row in ready if row.crashes >= request.suspect_from]
        others = [row for row in ready if row.crashes < request.suspect_from]
        chosen = _fewest_crashes(suspects) if request.suspects else self._share_out(others, request, room)
        late = [row for row in others if row not in chosen and _is_late(row, request)]
        claims = tuple(self._take(row, request, now) for row in chosen)
        left = [
            self._tables.threads[row.address]
            for row in mine
            if row not in suspects and row not in late and room.get(row.machine, 1) > 0
        ]
        wakes = [row.standing.wake for row in left if row.standing.status == "waiting"]
        return Claimed(
            claims=claims,
            now=now,
            next_wake=None
            if request.only
            else min((wake for wake in wakes if wake is not None), default=None),
            suspects=len(suspects) > (len(claims) if request.suspects else 0),
            late=bool(late) and request.only is None,
        )

    def _owned(self, machine: str, request: ClaimRequest, now: Micros) -> int:
        rows = (row for row in self._tables.threads.values() if row.machine == machine and row.owner)
        return sum(not self._is_dead(row.owner, request, now) for row in rows if row.owner is not None)

    def _share_out(
        self, ready: Iterable[ThreadRow], request: ClaimRequest, room: dict[str, int]
    ) -> list[ThreadRow]:
        """One thread of each workspace of each machine in turn, going on where the last claim stopped."""
        queues: dict[tuple[str, str], list[ThreadRow]] = {}
        for row in sorted(ready, key=self._rank):
            queues.setdefault((row.machine, row.address.workspace), []).append(row)
        last = self._turn
        groups = sorted(queues, key=lambda group: (group <= last, group))
        chosen: list[ThreadRow] = []
        late = 0
        for group in itertools.chain.from_iterable(itertools.repeat(groups, request.limit)):
            while queues[group] and len(chosen) < request.limit:
                row = queues[group].pop(0)
                if room.get(row.machine, 1) < 1 or (_is_late(row, request) and late >= request.late_limit):
                    continue
                late += _is_late(row, request)
                if row.machine in room:
                    room[row.machine] -= 1
                chosen.append(row)
                self._turn = group
                break
        return chosen

    def _rank(self, row: ThreadRow) -> Micros:
        wake = row.standing.wake
        waits = row.standing.status == "waiting"
        since = wake if waits and wake is not None else self._tables.since.get(row.address, 0)
        return since - row.priority * POINT

    def _eligible(self, row: ThreadRow, request: ClaimRequest, now: Micros) -> bool:
        """The request is about this thread, and nobody who lives has it."""
        newest = request.machines.get(row.machine)
        return (
            newest is not None
            and row.standing.version <= newest
            and request.only in (None, row.address)
            and (row.owner is None or self._is_dead(row.owner, request, now))
        )

    def _is_dead(self, owner: str, request: ClaimRequest, now: Micros) -> bool:
        return owner != request.worker and (owner in request.dead or self._is_gone(owner, now))

    def _is_gone(self, owner: str, now: Micros) -> bool:
        worker = self._tables.workers.get(owner)
        return worker is None or worker.ended is not None or now - worker.beat > worker.lease

    def _take(self, row: ThreadRow, request: ClaimRequest, now: Micros) -> Claim:
        worker = self._tables.workers.get(row.owner) if row.owner is not None else None
        left_in_order = row.owner is None or (worker is not None and worker.ended is not None)
        crashed = row.standing.status == "running" and not left_in_order
        thread = evolve(
            row,
            epoch=row.epoch + 1,
            owner=request.worker,
            crashes=row.crashes + crashed,
            standing=evolve(row.standing, status="running"),
        )
        self._tables.threads[row.address] = thread
        standing = thread.standing
        return Claim(
            thread=thread,
            log=tuple(
                entry
                for entry in self._tables.log[row.address]
                if entry.seq == standing.seq or (checkpoint(entry) and entry.n >= standing.base)
            ),
            items=tuple(items for items in self._tables.items[row.address] if items.n >= standing.items),
            inbox=tuple(self._tables.pending(row.address)[:PENDING]),
            taken_from=row.owner,
        )


def _ready(row: ThreadRow, request: ClaimRequest, now: Micros) -> bool:
    standing = row.standing
    if request.only is not None:
        return standing.status != "ended"
    due = standing.status == "waiting" and standing.wake is not None and standing.wake <= now
    return due or standing.status == "running"


def _fewest_crashes(suspects: Sequence[ThreadRow]) -> Sequence[ThreadRow]:
    return sorted(suspects, key=lambda row: row.crashes)[:1]


def _is_late(row: ThreadRow, request: ClaimRequest) -> bool:
    before, wake = request.late_before, row.standing.wake
    due = row.standing.status == "waiting" and wake is not None
    return due and before is not None and wake is not None and wake < before
