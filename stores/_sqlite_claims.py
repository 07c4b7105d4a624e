"""Claims: which threads a worker may go on with, and what it needs to do so."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from attrs import field, frozen

from ._fair import choose
from ._records import Claim, Claimed, ClaimRequest, Micros
from ._shares import without_full
from ._sql_claims import load, owners
from ._sql_fair import sources
from ._sql_rows import STATUS_CODES
from ._sql_steps import Row
from ._sqlite_commits import SQLITE, Transaction
from ._sqlite_fair import Index

FIT = "machine = ? AND version <= ?"
OWNED = "SELECT count(*) FROM standing WHERE owner = ? AND machine = ?"
SUSPECTS = f"""SELECT crashes, id, owner FROM standing WHERE {FIT} AND crashes >= ? AND crashes > 0
    AND (status = 0 OR status = 1 AND wake <= ?)"""
NEXT_FREE = f"""SELECT wake FROM standing INDEXED BY standing_due
    WHERE owner IS NULL AND status = 1 AND wake IS NOT NULL AND {FIT} AND wake >= ?
    AND NOT (wake <= ? AND crashes >= ?) ORDER BY wake LIMIT 1"""
NEXT_LEFT = f"""SELECT wake FROM standing INDEXED BY standing_held
    WHERE owner = ? AND status = 1 AND wake IS NOT NULL AND {FIT} AND wake >= ?
    AND NOT (wake <= ? AND crashes >= ?) ORDER BY wake LIMIT 1"""
ONLY = """SELECT s.id, s.owner, s.crashes FROM thread t JOIN standing s ON s.id = t.id
    WHERE t.workspace = ? AND t.thread_id = ? AND s.status <> 3 AND s.machine = ? AND s.version <= ?"""

CHOSEN = """SELECT id, owner, status, crashes, wake, epoch FROM standing
    WHERE id IN (SELECT value FROM json_each(?))"""
TAKE = "UPDATE standing SET owner = ?, status = 0, epoch = epoch + 1, crashes = ? WHERE id = ?"


@frozen(kw_only=True)
class Found:
    """Threads that may be claimed, and what was learnt on the way."""

    numbers: Sequence[int]
    suspects: bool
    orderly: Mapping[str, bool]
    """Owners that are dead, each with whether it ended in good order."""
    full: frozenset[str] = frozenset()
    """Machines of which no more may be owned."""
    late_left: bool = False
    """Late ones were left aside."""
    turn: Mapping[str, str] = field(factory=dict[str, str])
    """At which workspaces the next claim goes on, if this one takes what was found."""


def look(tx: Transaction, request: ClaimRequest) -> Found:
    """Find what can be claimed. Reads only."""
    orderly, living = tx.take(owners(request, tx.now))
    room = {name: most - _owned(tx, name, living) for name, most in request.at_once.items()}
    if request.only is not None:
        return _find_only(tx, without_full(request, room), orderly)
    suspects = _find_suspects(tx, without_full(request, room), orderly)
    if request.suspects:
        full = _full(room)
        return Found(numbers=suspects[:1], suspects=len(suspects) > 1, orderly=orderly, full=full)
    ways = sources(tuple(orderly), request, tx.now)
    choice = Index(tx.db, request).choose(choose(request, ways, room, tx.turn))
    return Found(
        numbers=choice.numbers,
        suspects=bool(suspects),
        orderly=orderly,
        full=_full(choice.room),
        late_left=choice.late_left,
        turn=choice.turn,
    )


def _full(room: Mapping[str, int]) -> frozenset[str]:
    return frozenset(name for name, left in room.items() if left < 1)


def claim(tx: Transaction, request: ClaimRequest) -> Claimed:
    found = look(tx, request)
    claims = _take(tx, request, found) if found.numbers else ()
    tx.turn.update(found.turn)
    wake = find_next_wake(tx, request, found) if request.only is None else None
    return Claimed(claims=claims, now=tx.now, next_wake=wake, suspects=found.suspects, late=found.late_left)


def _owned(tx: Transaction, machine: str, living: Iterable[str]) -> int:
    return sum(tx.db.execute(OWNED, (owner, machine)).fetchone()[0] for owner in living)


def _find_only(tx: Transaction, request: ClaimRequest, dead: Mapping[str, bool]) -> Found:
    assert request.only is not None
    name = (request.only.workspace, request.only.thread_id)
    rows = [row for fit in request.machines.items() for row in tx.db.execute(ONLY, (*name, *fit)).fetchall()]
    free = [row for row in rows if row[1] is None or row[1] in dead]
    fitting = [row[0] for row in free if (row[2] >= request.suspect_from) == request.suspects]
    left_aside = bool(free) and not fitting and not request.suspects
    return Found(numbers=fitting[: request.limit], suspects=left_aside, orderly=dead)


def _find_suspects(tx: Transaction, request: ClaimRequest, dead: Mapping[str, bool]) -> list[int]:
    found = [
        (crashes, number)
        for fit in request.machines.items()
        for crashes, number, owner in tx.db.execute(SUSPECTS, (*fit, request.suspect_from, tx.now))
        if owner is None or owner in dead
    ]
    return [number for _, number in sorted(found)]


def find_next_wake(tx: Transaction, request: ClaimRequest, found: Found) -> Micros | None:
    wakes: list[Micros] = []
    first = request.late_before if request.late_before is not None else -(2**63)
    for fit in request.machines.items():
        if fit[0] in found.full:
            continue
        bounds = (*fit, first, tx.now, request.suspect_from)
        rows = tx.db.execute(NEXT_FREE, bounds).fetchall()
        for owner in found.orderly:
            rows += tx.db.execute(NEXT_LEFT, (owner, *bounds)).fetchall()
        wakes += [wake for (wake,) in rows]
    return min(wakes, default=None)


def _take(tx: Transaction, request: ClaimRequest, found: Found) -> tuple[Claim, ...]:
    chosen = json.dumps(found.numbers)
    taken_from: dict[int, str | None] = {}
    changes: list[Row] = []
    for number, owner, status, crashes, wake, epoch in tx.db.execute(CHOSEN, (chosen,)).fetchall():
        taken_from[number] = owner
        crashed = owner is not None and status == STATUS_CODES["running"] and not found.orderly[owner]
        changes.append((request.worker, crashes + int(crashed), number))
        tx.note(number, epoch + 1, steady=not crashes and not crashed and wake is None)
    tx.db.executemany(TAKE, changes)
    claims = tx.take(load(found.numbers, chosen, taken_from, SQLITE))
    for number, claim in claims.items():
        tx.learn(claim.thread.address, claim.thread.incarnation, number)
    return tuple(claims.values())
