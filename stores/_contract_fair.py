"""Checks: who comes first where there is more to claim than one claim takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ._contract_kit import SECOND, Check, Kit, check_of, same
from ._contract_make import (
    MACHINE,
    address_of,
    commit_of,
    committed,
    request_of,
    start_of,
    thread_at,
    worker_of,
)
from ._records import Claimed, ClaimRequest
from ._store import Store

KINDS = ("runs", "due", "left")
"""A thread that runs and is nobody's, one that waits and is due, one that a dead worker left."""
LONG = 10**6 * SECOND


async def _make(
    store: Store, kit: Kit, name: str, workspace: str = "acme", kind: str = "runs", **parts: Any
) -> None:
    """A thread that can be claimed from now on; the clock moves on by a second."""
    if kind == "due":
        parts = {"status": "waiting", "wake": kit.clock(), **parts}
    owner = "dead" if kind == "left" else None
    await store.start(start_of(owner=owner, address=address_of(name, workspace), **parts))
    kit.clock.advance(SECOND)


async def _many(store: Store, kit: Kit, count: int, workspace: str, kind: str = "runs", **parts: Any) -> None:
    machine = parts.get("machine", MACHINE)
    for number in range(count):
        await _make(store, kit, f"{machine} {kind} {number}", workspace, kind, **parts)


def _request(worker: str = "w1", **parts: Any) -> ClaimRequest:
    given: dict[str, Any] = {"machines": {MACHINE: 1, "Other": 1}, "suspect_from": 9, **parts}
    return request_of(worker, **given)


def _groups(*claims: Claimed) -> dict[tuple[str, str], int]:
    threads = [claim.thread for claimed in claims for claim in claimed.claims]
    return dict(Counter((thread.machine, thread.address.workspace) for thread in threads))


def _names(*claims: Claimed) -> list[str]:
    return [claim.thread.address.thread_id for claimed in claims for claim in claimed.claims]


async def _living(store: Store, *workers: str) -> None:
    for worker in workers:
        await store.beat(worker_of(worker, lease=LONG))


async def check_parts_are_equal(kit: Kit) -> None:
    """Each workspace of each machine has an equal part of a claim, however many of its threads came first."""
    async with kit.open() as store:
        await _living(store, "w1", "w2")
        for kind in KINDS:
            await _many(store, kit, 30, "big", kind)
            await _many(store, kit, 5, "big", kind, machine="Other")
            await _many(store, kit, 5, "small", kind)
            got = _groups(await store.claim(_request(limit=9)))
            wanted = {(MACHINE, "big"): 3, ("Other", "big"): 3, (MACHINE, "small"): 3}
            same(f"what was claimed of those that are {kind}", got, wanted)
            await store.claim(_request("w2", limit=1000))


async def check_parts_left_over(kit: Kit) -> None:
    """What a workspace has too few for goes to the others: a claim is as full as it can be."""
    async with kit.open() as store:
        counts = {"a": 1, "b": 25, "c": 2, "d": 25}
        for workspace, count in counts.items():
            await _many(store, kit, count, workspace)
        got = _groups(await store.claim(_request(limit=23)))
        wanted = {"a": 1, "b": 10, "c": 2, "d": 10}
        same("what was claimed", got, {(MACHINE, name): count for name, count in wanted.items()})


async def check_all_have_their_turn(kit: Kit) -> None:
    """Where there are more workspaces than a claim takes, they take turns, and none is left out."""
    async with kit.open() as store:
        await _living(store, "w1")
        for workspace in range(7):
            await _many(store, kit, 12 if workspace else 30, f"workspace {workspace}")
            await _many(store, kit, 4, f"workspace {workspace}", machine="Other")
        got = _groups(*[await store.claim(_request(limit=2)) for _ in range(14)])
        same("how many had a turn, and whether one had many", (len(got), max(got.values()) < 5), (14, True))


async def check_turns_of_what_is_due(kit: Kit) -> None:
    """One that is due has its turn behind many of another workspace, and behind many where none is due."""
    async with kit.open() as store:
        await _living(store, "w1")
        for number in range(40):
            await _make(store, kit, "later", f"idle {number}", "due", wake=kit.clock() + LONG)
        await _many(store, kit, 60, "a", "due")
        await _make(store, kit, "one", "z", "due")
        got = _groups(*[await store.claim(_request(limit=2)) for _ in range(25)])
        same("whether it had its turn", (MACHINE, "z") in got, True)


async def check_priority(kit: Kit) -> None:
    """Within a workspace the longest claimable comes first, and a point of priority counts as a minute."""
    async with kit.open() as store:
        await _living(store, "w1")
        for kind in ("runs", "due"):
            await _make(store, kit, f"{kind} long", kind=kind)
            kit.clock.advance(118 * SECOND)
            await _make(store, kit, f"{kind} less", kind=kind, priority=-1)
            await _make(store, kit, f"{kind} even", kind=kind, priority=1)
            await _make(store, kit, f"{kind} more", kind=kind, priority=3)
            await _make(store, kit, f"{kind} last", kind=kind, priority=-10)
            got = _names(*[await store.claim(_request(limit=1)) for _ in range(5)])
            wanted = [f"{kind} {name}" for name in ("more", "long", "even", "less", "last")]
            same("the order in which they were claimed", got, wanted)
        row = await thread_at(store, "runs more")
        same("the priority that a thread has", row.priority, 3)


async def check_age_is_counted_from_the_release(kit: Kit) -> None:
    """A thread that was given up while it runs, by a commit too, waits for its turn from then on."""
    async with kit.open() as store:
        await _living(store, "w1")
        thread = (await store.start(start_of("again"))).thread
        kit.clock.advance(SECOND)
        await _make(store, kit, "waited")
        await committed(store, thread, release=True)
        got = _names(*[await store.claim(_request(limit=1)) for _ in range(2)])
        same("the order in which they were claimed", got, ["waited", "again"])


async def check_at_once(kit: Kit) -> None:
    """Of a machine that is limited, living workers own no more than that, and the rest wakes nobody."""
    async with kit.open() as store:
        await _living(store, "w2")
        await store.beat(worker_of("w1", lease=90 * SECOND))
        for kind in KINDS:
            await _many(store, kit, 4, "a", kind)
        parts: dict[str, Any] = {"machines": {MACHINE: 1}, "at_once": {MACHINE: 3}}
        one = await store.claim(_request("w1", limit=2, **parts))
        two = await store.claim(_request("w2", **parts))
        same("how many two workers got", (len(one.claims), len(two.claims)), (2, 1))
        same("when more is due", two.next_wake, None)
        owned = {*_names(one), *_names(two)}
        free = next(name for name in (f"{MACHINE} runs {n}" for n in range(4)) if name not in owned)
        by_name = {"only": address_of(free, "a")}
        for asked in ({}, {"suspects": True, "suspect_from": 0}, by_name):
            none = await store.claim(_request("w2", **parts, **{"suspect_from": 9, **asked}))
            same(
                f"what is claimed beyond the limit with {asked}",
                (_names(none), none.suspects),
                (list[str](), False),
            )
        kit.clock.advance(91 * SECOND)
        rest = await store.claim(_request("w2", **parts))
        same("how many are claimed after the death of a worker", len(rest.claims), 2)


async def check_at_once_in_turns(kit: Kit) -> None:
    """Where a machine has one place, its workspaces take turns at it."""
    async with kit.open() as store:
        await _living(store, "w1")
        await _many(store, kit, 9, "a")
        await _many(store, kit, 2, "b")
        turns: list[tuple[str, str]] = []
        for _ in range(4):
            claimed = await store.claim(_request(at_once={MACHINE: 1}))
            turns += _groups(claimed)
            for claim in claimed.claims:
                await store.commit(commit_of(claim.thread, status="ended", release=True))
        same("how often it was the turn of each", Counter(turns), {(MACHINE, "a"): 2, (MACHINE, "b"): 2})


async def check_late(kit: Kit) -> None:
    """Of those that were due before a moment only so many are claimed, and that some are left is said."""
    async with kit.open() as store:
        await _living(store, "w1")
        await _many(store, kit, 5, "a", "due")
        before = kit.clock()
        await _many(store, kit, 3, "b", "due")
        await _many(store, kit, 2, "a", "runs")
        await _many(store, kit, 2, "a", "left")
        some = await store.claim(_request(late_before=before, late_limit=2))
        wakes = [claim.thread.standing.wake for claim in some.claims]
        due = [wake for wake in wakes if wake is not None]
        late = [wake for wake in due if wake < before]
        same("how many are claimed, due and late ones", (len(some.claims), len(due), len(late)), (9, 5, 2))
        same("whether late ones are left, and when more is due", (some.late, some.next_wake), (True, None))
        none = await store.claim(_request(late_before=before, late_limit=0))
        same("what is claimed where none may be late", (_names(none), none.late), (list[str](), True))
        rest = await store.claim(_request(late_before=before, late_limit=3))
        same("how many come then, and whether some are left", (len(rest.claims), rest.late), (3, False))


async def check_late_in_turns(kit: Kit) -> None:
    """Workspaces share the few late ones of a claim out as they do all others."""
    async with kit.open() as store:
        await _living(store, "w1")
        await _many(store, kit, 20, "a", "due")
        await _many(store, kit, 2, "b", "due")
        got = _groups(await store.claim(_request(late_before=kit.clock(), late_limit=4)))
        same("what was claimed", got, {(MACHINE, "a"): 2, (MACHINE, "b"): 2})


FAIR: tuple[Check, ...] = tuple(
    check_of(check)
    for check in (
        check_parts_are_equal,
        check_parts_left_over,
        check_all_have_their_turn,
        check_turns_of_what_is_due,
        check_priority,
        check_age_is_counted_from_the_release,
        check_at_once,
        check_at_once_in_turns,
        check_late,
        check_late_in_turns,
    )
)
