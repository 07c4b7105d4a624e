"""Checks: who gets which thread, when, and what is counted against it."""

from __future__ import annotations

import asyncio

from attrs import evolve

from ._contract_kit import SECOND, Check, Kit, check_of, rows, same
from ._contract_make import (
    MACHINE,
    address_of,
    committed,
    one_claimed,
    request_of,
    signal_of,
    start_of,
    started,
    thread_at,
    worker_of,
)
from ._queries import Items, Threads, Workers
from ._records import Claimed, Release, Status, ThreadRow

DAY = 24 * 3600 * SECOND
LEASE = 10 * SECOND
NOBODY: list[str] = []


def _names(claimed: Claimed) -> list[str]:
    return sorted(claim.thread.address.thread_id for claim in claimed.claims)


def _release(thread: ThreadRow, status: Status = "running", wake: int | None = None) -> Release:
    return Release(
        address=thread.address,
        incarnation=thread.incarnation,
        epoch=thread.epoch,
        status=status,
        wake=wake,
        inbox_seen=thread.inbox,
    )


async def check_claim_what_is_due(kit: Kit) -> None:
    """Claimed is what runs without an owner and what waits until now, not before its time, and not twice."""
    async with kit.open() as store:
        now = kit.clock()
        await started(store, "runs", owner=None)
        await started(store, "due", owner=None, status="waiting", wake=now)
        await started(store, "later", owner=None, status="waiting", wake=now + 5)
        await started(store, "signal-only", owner=None, status="waiting")
        await committed(store, await started(store, "parked"), "park", status="parked", release=True)
        await committed(store, await started(store, "ended"), status="ended", release=True)
        claimed = await store.claim(request_of())
        same("what was claimed", _names(claimed), ["due", "runs"])
        same("now and next_wake", (claimed.now, claimed.next_wake), (now, now + 5))
        same("what is claimed again", _names(await store.claim(request_of("w2", dead=()))), ["due", "runs"])
        await store.beat(worker_of("w2"))
        same("what a third gets", _names(await store.claim(request_of("w3"))), [])
        kit.clock.advance(5)
        same("what is due at its time", _names(await store.claim(request_of("w3"))), ["later"])
        same("next_wake in the end", (await store.claim(request_of("w3"))).next_wake, None)


async def check_claim_sets_the_thread(kit: Kit) -> None:
    """A claimed thread has a new owner, an epoch one higher and runs; what else stands on it stays."""
    async with kit.open() as store:
        thread = await started(store, owner=None, status="waiting", wake=kit.clock())
        claim = await one_claimed(store, request_of())
        standing = evolve(thread.standing, status="running")
        same("the thread", claim.thread, evolve(thread, owner="w1", epoch=1, standing=standing))
        same("the thread as stored", await thread_at(store), claim.thread)
        same("whom it was taken from", claim.taken_from, None)
        parked = await committed(store, claim.thread, "park", status="parked", release=True)
        parked_for = evolve(parked.standing, status="running")
        claim = await one_claimed(store, request_of(only=parked.address))
        same("a parked one", claim.thread, evolve(parked, owner="w1", epoch=2, standing=parked_for))


async def check_claim_brings_what_is_needed(kit: Kit) -> None:
    """A claim has the checkpoints from the newest base on, every row of the visit, and all items."""
    async with kit.open() as store:
        thread = (await store.start(start_of(items=b"i0"))).thread
        thread = await committed(store, thread, "record")
        thread = await committed(store, thread, items=b"i2")
        based = evolve(thread.standing, seq=2, base=3)
        thread = await committed(store, thread, standing=based)
        thread = await committed(store, thread, "record")
        thread = await committed(store, thread, items=b"i5")
        thread = await committed(store, thread, "record", items=b"i6")
        thread = await committed(store, thread, "record", release=True)
        claim = await one_claimed(store, request_of())
        same("positions and checkpoints", [(r.n, r.seq) for r in claim.log], [(3, 2), (5, 3), (6, 3), (7, 3)])
        same("items", claim.items, await rows(store, Items(address=address_of())))
        same("positions of items", [row.n for row in claim.items], [0, 2, 5, 6])


async def check_claim_brings_items_still_needed(kit: Kit) -> None:
    """A claim has items from the position on that the standing names; the others stay, and are listed."""
    async with kit.open() as store:
        thread = (await store.start(start_of(items=b"i0"))).thread
        same("items of a start", thread.standing.items, 0)
        thread = await committed(store, thread, items=b"i1")
        from_one = evolve(thread.standing, seq=2, items=1)
        thread = await committed(store, thread, items=b"i2", standing=from_one)
        same("items of the standing", thread.standing.items, 1)
        await store.release([_release(thread)])
        claim = await one_claimed(store, request_of())
        same("positions of items", [row.n for row in claim.items], [1, 2])
        same("items of the claim", claim.thread.standing.items, 1)
        thread = await committed(store, claim.thread, standing=evolve(from_one, seq=3, items=4))
        claim = await one_claimed(store, request_of("w2", dead=("w1",)))
        same("items where none is needed", claim.items, ())
        listed = await rows(store, Items(address=address_of()))
        same("positions of all items", [row.n for row in listed], [0, 1, 2])


async def check_take_over_by_lease(kit: Kit) -> None:
    """A worker silent for longer than its lease is dead; before that nobody gets its threads."""
    async with kit.open() as store:
        same("the beat's answer", await store.beat(worker_of("w1", lease=LEASE)), kit.clock())
        await started(store)
        kit.clock.advance(LEASE)
        same("what is claimed within the lease", _names(await store.claim(request_of("w2"))), [])
        kit.clock.advance(1)
        await store.beat(worker_of("w1", lease=LEASE))
        same("what is claimed after a beat", _names(await store.claim(request_of("w2"))), [])
        kit.clock.advance(LEASE + 1)
        claim = await one_claimed(store, request_of("w2"))
        got = (claim.taken_from, claim.thread.owner, claim.thread.epoch, claim.thread.crashes)
        same("taken from, owner, epoch, crashes", got, ("w1", "w2", 2, 1))


async def check_take_over_from_the_dead(kit: Kit) -> None:
    """A worker that the caller names dead, or without a row, is dead; its running threads count a crash."""
    async with kit.open() as store:
        await store.beat(worker_of("w1"))
        await started(store)
        same("what is claimed while it lives", _names(await store.claim(request_of("w2"))), [])
        claim = await one_claimed(store, request_of("w2", dead=("w0", "w1")))
        same("taken from, crashes", (claim.taken_from, claim.thread.crashes), ("w1", 1))
        claim = await one_claimed(store, request_of("w3"))
        same("taken from, crashes of one without a row", (claim.taken_from, claim.thread.crashes), ("w2", 2))


async def check_take_over_in_good_order(kit: Kit) -> None:
    """A worker that ended in good order is dead, and nothing counts against its threads."""
    async with kit.open() as store:
        await store.beat(worker_of("w1"))
        await started(store)
        await store.beat(worker_of("w1", ended=kit.clock()))
        await store.beat(worker_of("w1"))
        claim = await one_claimed(store, request_of("w2", dead=("w1",)))
        same("taken from, crashes", (claim.taken_from, claim.thread.crashes), ("w1", 0))


async def check_take_over_of_who_waits(kit: Kit) -> None:
    """A thread that waited in its dead worker's hands is taken when due, and no crash counts against it."""
    async with kit.open() as store:
        await committed(store, await started(store), status="waiting", wake=kit.clock() + 5)
        idle = await store.claim(request_of("w2"))
        same("what is claimed before it is due", (_names(idle), idle.next_wake), (NOBODY, kit.clock() + 5))
        await store.beat(worker_of("w1"))
        kit.clock.advance(5)
        busy = await store.claim(request_of("w2"))
        same("what is claimed while its owner lives", (_names(busy), busy.next_wake), (NOBODY, None))
        claim = await one_claimed(store, request_of("w2", dead=("w1",)))
        same("taken from, crashes", (claim.taken_from, claim.thread.crashes), ("w1", 0))


async def check_own_threads_are_not_claimed(kit: Kit) -> None:
    """Nobody takes its own threads over, whatever its lease says; their list shows what it holds."""
    async with kit.open() as store:
        await store.beat(worker_of("w1", lease=LEASE))
        thread = await started(store)
        await started(store, "t2", owner="w2")
        kit.clock.advance(LEASE + 1)
        claimed = await store.claim(request_of("w1", dead=("w1",), only=address_of()))
        same("what is claimed", _names(claimed), [])
        same("the threads of w1", await rows(store, Threads(owner="w1")), (thread,))


async def check_crashes_are_reset(kit: Kit) -> None:
    """Any commit sets the count of crashes to 0; a release does not."""
    async with kit.open() as store:
        await started(store)
        for worker, wanted in (("w2", 1), ("w3", 2)):
            claim = await one_claimed(store, request_of(worker))
            same("crashes", claim.thread.crashes, wanted)
        await store.release([_release(claim.thread)])
        same("crashes after a release", (await thread_at(store)).crashes, 2)
        claim = await one_claimed(store, request_of("w4", suspect_from=3))
        same("crashes after a claim that takes over from nobody", claim.thread.crashes, 2)
        same("crashes after a commit", (await committed(store, claim.thread, "record")).crashes, 0)


async def check_suspects_wait_their_turn(kit: Kit) -> None:
    """Suspects are left aside and named; asked for, one is claimed and nothing else."""
    async with kit.open() as store:
        for thread_id in ("bad1", "bad2"):
            await started(store, thread_id)
        for worker in ("w2", "w3"):
            await store.claim(request_of(worker))
        await started(store, "good")
        claimed = await store.claim(request_of("w4"))
        same(
            "what is claimed, and whether suspects are left",
            (_names(claimed), claimed.suspects),
            (["good"], True),
        )
        await store.beat(worker_of("w4"))
        one = await store.claim(request_of("w5", suspects=True))
        same(
            "how many suspects are claimed, and whether some are left",
            (len(one.claims), one.suspects),
            (1, True),
        )
        await store.beat(worker_of("w5"))
        two = await store.claim(request_of("w6", suspects=True))
        same("both suspects", sorted(_names(one) + _names(two)), ["bad1", "bad2"])
        same("whether suspects are left", two.suspects, False)
        same("crashes of a suspect", two.claims[0].thread.crashes, 3)
        await store.beat(worker_of("w6"))
        nothing = await store.claim(request_of("w7", suspects=True))
        same("what is left", (_names(nothing), nothing.suspects), (NOBODY, False))


async def check_suspects_with_the_fewest_crashes_first(kit: Kit) -> None:
    """The suspect that has met fewer crashes is tried first, whichever machine it is of."""
    machines = {"Often": 1, "Once": 1}
    async with kit.open() as store:
        await started(store, "often", machine="Often")
        await store.claim(request_of("w2", machines=machines))
        await started(store, "once", machine="Once")
        await store.claim(request_of("w3", machines=machines))
        claim = await one_claimed(store, request_of("w4", machines=machines, suspect_from=1, suspects=True))
        same("the suspect that is claimed", claim.thread.address.thread_id, "once")


async def check_suspect_asked_for_by_name(kit: Kit) -> None:
    """``only`` does not override the rule for suspects: it takes ``suspects`` as well."""
    async with kit.open() as store:
        await started(store)
        for worker in ("w2", "w3"):
            await store.claim(request_of(worker))
        claimed = await store.claim(request_of("w4", only=address_of()))
        same(
            "what is claimed, and whether suspects are left",
            (_names(claimed), claimed.suspects),
            (NOBODY, True),
        )
        claimed = await store.claim(request_of("w4", only=address_of(), suspects=True))
        same(
            "what is claimed, and whether suspects are left",
            (_names(claimed), claimed.suspects),
            (["t1"], False),
        )


async def check_due_suspects_do_not_wake(kit: Kit) -> None:
    """A suspect counts for ``next_wake`` until it is due, and then only for ``suspects``."""
    async with kit.open() as store:
        await started(store)
        for worker in ("w2", "w3"):
            claim = await one_claimed(store, request_of(worker))
        due = kit.clock() + 5
        await store.release([_release(claim.thread, "waiting", due)])
        early = await store.claim(request_of("w4"))
        same("next_wake, suspects before it is due", (early.next_wake, early.suspects), (due, False))
        kit.clock.advance(5)
        late = await store.claim(request_of("w4"))
        same("next_wake, suspects when it is due", (late.next_wake, late.suspects), (None, True))


async def check_claim_by_machine_and_version(kit: Kit) -> None:
    """Only threads of the machines asked for are claimed, and only versions that the worker can read."""
    async with kit.open() as store:
        now = kit.clock()
        await started(store, "v1", owner=None)
        await started(store, "v2", owner=None, version=2)
        await started(store, "v2-due", owner=None, version=2, status="waiting", wake=now)
        await started(store, "other", owner=None, machine="Other")
        none = await store.claim(request_of(machines={"summarise": 9, "": 9}))
        same("what is claimed for other machines", (_names(none), none.next_wake), (NOBODY, None))
        same("what is claimed for no machines", _names(await store.claim(request_of(machines={}))), [])
        old = await store.claim(request_of(machines={MACHINE: 1}))
        same("what an old worker gets, and when", (_names(old), old.next_wake), (["v1"], None))
        both = await store.claim(request_of(machines={MACHINE: 2, "Other": 1}))
        same("what a new worker gets", _names(both), ["other", "v2", "v2-due"])


async def check_claim_limit(kit: Kit) -> None:
    """At most ``limit`` threads are claimed, and by and by all are; ``next_wake`` says that more is due."""
    async with kit.open() as store:
        await store.beat(worker_of("w1"))
        for number in range(5):
            wake = kit.clock() - number
            await started(store, f"t{number}", owner=None, status="waiting", wake=wake)
        got: list[str] = []
        for wanted, more in ((2, True), (2, True), (1, False)):
            claimed = await store.claim(request_of(limit=2))
            same("how many were claimed", len(claimed.claims), wanted)
            late = claimed.next_wake is not None and claimed.next_wake <= claimed.now
            same("whether more is due", late, more)
            got += _names(claimed)
        same("all that were claimed", sorted(got), ["t0", "t1", "t2", "t3", "t4"])


async def check_claim_only_one(kit: Kit) -> None:
    """``only`` claims that thread alone, parked or not due as well, but not an ended or a foreign one."""
    async with kit.open() as store:
        await store.beat(worker_of("w1"))
        await started(store, "runs", owner=None)
        await started(store, "waits", owner=None, status="waiting")
        await started(store, "owned")
        await committed(store, await started(store, "parked"), "park", status="parked", release=True)
        await committed(store, await started(store, "ended"), status="ended", release=True)
        for thread_id, wanted in (
            ("waits", ["waits"]),
            ("parked", ["parked"]),
            ("runs", ["runs"]),
            ("owned", []),
            ("ended", []),
            ("nobody", []),
            ("", []),
        ):
            claimed = await store.claim(request_of("w2", only=address_of(thread_id)))
            same(f"what is claimed with only={thread_id!r}", _names(claimed), wanted)
            same("next_wake", claimed.next_wake, None)
        stranger = await store.claim(request_of("w3", only=address_of("runs", "another")))
        same("what is claimed in another workspace", _names(stranger), [])
        await started(store, "new", owner=None, version=2)
        same("what it cannot read", _names(await store.claim(request_of("w3", only=address_of("new")))), [])


async def check_two_claimers(kit: Kit) -> None:
    """Claims made at once, on one handle and on two, never get the same thread, and together get all."""
    async with kit.open() as one, kit.open() as two:
        workers = [f"w{number}" for number in range(6)]
        for worker in workers:
            await one.beat(worker_of(worker))
        for number in range(30):
            await started(one, f"t{number:02}", owner=None)
        calls = [(one, two)[number % 2].claim(request_of(w, limit=5)) for number, w in enumerate(workers)]
        got = [name for claimed in await asyncio.gather(*calls) for name in _names(claimed)]
        rest = await one.claim(request_of(workers[0]))
        same("what was claimed", sorted(got + _names(rest)), [f"t{number:02}" for number in range(30)])
        epochs = {row.epoch for row in await rows(two, Threads())}
        same("epochs", epochs, {1})


async def check_release(kit: Kit) -> None:
    """A release gives the claim up as it says; a stale one, or the same one again, is ignored."""
    async with kit.open() as store:
        await store.beat(worker_of("w1"))
        thread = await started(store)
        other = await started(store, "t2")
        stale = [evolve(_release(thread), epoch=0), evolve(_release(thread), incarnation=b"z" * 16)]
        stale.append(evolve(_release(thread), address=address_of("nobody")))
        await store.release([*stale, _release(other, "waiting", 7)])
        same("the thread after stale releases", await thread_at(store), thread)
        standing = evolve(other.standing, status="waiting", wake=7)
        same("the other one", await thread_at(store, "t2"), evolve(other, owner=None, standing=standing))
        await store.release([])
        release = _release(thread)
        await store.release([release])
        same("the thread", await thread_at(store), evolve(thread, owner=None))
        claimed = (await one_claimed(store, request_of("w1", only=thread.address))).thread
        await store.release([release])
        same("the thread claimed anew", await thread_at(store), claimed)


async def check_release_made_again(kit: Kit) -> None:
    """A release made again does not take back what a signal made of the thread meanwhile."""
    async with kit.open() as store:
        thread = await started(store)
        release = _release(thread, "waiting", kit.clock() + 5)
        await store.release([release])
        kit.clock.advance(1)
        await store.deliver(signal_of())
        due = await thread_at(store)
        kit.clock.advance(1)
        await store.release([release])
        same("the thread", await thread_at(store), due)


async def check_beats(kit: Kit) -> None:
    """A beat inserts or renews a row by the store's clock; those long silent that own nothing go."""
    async with kit.open() as store:
        await store.beat(worker_of("w1", beat=123))
        same("the row", await rows(store, Workers(id="w1")), (worker_of("w1", beat=kit.clock()),))
        await store.beat(worker_of("gone"))
        await store.beat(worker_of("left", ended=5))
        await started(store)
        await started(store, "t2", owner="left")
        await committed(store, await thread_at(store, "t2"), release=True)
        kit.clock.advance(DAY)
        await store.beat(worker_of("w2", started=9))
        names = [row.id for row in await rows(store, Workers())]
        same("workers after a day", sorted(names), ["gone", "left", "w1", "w2"])
        kit.clock.advance(1)
        await store.beat(worker_of("w2", started=9, pid=8))
        left = await rows(store, Workers())
        same(
            "workers after a day and a bit", sorted(row.id for row in left if row.id != "left"), ["w1", "w2"]
        )
        same("the renewed row", [row.pid for row in left if row.id == "w2"], [8])


CLAIM: tuple[Check, ...] = tuple(
    check_of(check)
    for check in (
        check_claim_what_is_due,
        check_claim_sets_the_thread,
        check_claim_brings_what_is_needed,
        check_claim_brings_items_still_needed,
        check_take_over_by_lease,
        check_take_over_from_the_dead,
        check_take_over_in_good_order,
        check_take_over_of_who_waits,
        check_own_threads_are_not_claimed,
        check_crashes_are_reset,
        check_suspects_wait_their_turn,
        check_suspects_with_the_fewest_crashes_first,
        check_suspect_asked_for_by_name,
        check_due_suspects_do_not_wake,
        check_claim_by_machine_and_version,
        check_claim_limit,
        check_claim_only_one,
        check_two_claimers,
        check_release,
        check_release_made_again,
        check_beats,
    )
)
