"""Checks: signals count once, in order, also before the thread starts, and wake who waits."""

from __future__ import annotations

import asyncio
from typing import Any

from attrs import evolve

from ._contract_kit import SECOND, Check, Kit, check_of, refused, rows, same
from ._contract_make import (
    MACHINE,
    WORKSPACE,
    address_of,
    commit_of,
    committed,
    one_claimed,
    request_of,
    signal_of,
    start_of,
    started,
    thread_at,
    worker_of,
)
from ._errors import SignalConflict, ThreadEnded, TooLarge
from ._queries import Inbox, Messages, Threads
from ._records import InboxRow, Release
from ._store import Store


async def _inbox(store: Store, *, pending: bool = False, after: int = 0) -> tuple[InboxRow, ...]:
    return await rows(store, Inbox(address=address_of(), pending=pending, after=after))


async def check_signal_counts_once(kit: Kit) -> None:
    """One id counts once: sent again it gets the same acknowledgement, before and after it was taken in."""
    async with kit.open() as store:
        thread = await started(store)
        signal = signal_of()
        first = await store.deliver(signal)
        same("the row", (first.row.number, first.row.id, first.new), (1, "s1", True))
        same(
            "what it holds",
            (first.row.event, first.row.payload, first.row.at),
            ("approve", b"{}", kit.clock()),
        )
        kit.clock.advance(SECOND)
        again = await store.deliver(signal)
        same("the acknowledgement", (again.row, again.new), (first.row, False))
        await committed(store, await thread_at(store), consumed=(1,))
        again = await store.deliver(signal)
        same("the row once taken in", (again.row, again.new), (evolve(first.row, consumed=1), False))
        thread = await thread_at(store)
        same("the thread's inbox", (thread.inbox, len(await _inbox(store))), (1, 1))
        same("the thread that came with it", again.thread, thread)


async def check_signals_of_equal_body(kit: Kit) -> None:
    """Equal payloads under two ids count twice."""
    async with kit.open() as store:
        await started(store)
        answers = [await store.deliver(signal_of(id_)) for id_ in ("s1", "s2")]
        same("numbers and new", [(a.row.number, a.new) for a in answers], [(1, True), (2, True)])


async def check_signal_with_another_digest(kit: Kit) -> None:
    """An id that was accepted with another event or payload is a conflict; the first one stands."""
    async with kit.open() as store:
        await started(store)
        first = await store.deliver(signal_of(payload=b"1"))
        await refused(SignalConflict, "another payload", store.deliver(signal_of(payload=b"2")))
        await refused(SignalConflict, "another event", store.deliver(signal_of(payload=b"1", event="reject")))
        same("the inbox", await _inbox(store), (first.row,))
        early = signal_of(thread_id="later", payload=b"1")
        await store.deliver(early)
        other = evolve(early, payload=b"2", digest=b"other")
        await refused(SignalConflict, "another one before the start", store.deliver(other))


async def check_signal_before_the_start(kit: Kit) -> None:
    """Signals that come before the thread starts are kept, once, and are its inbox when it starts."""
    async with kit.open() as store:
        early = [await store.deliver(signal_of(id_)) for id_ in ("s1", "s2", "s1")]
        same("threads that came with them", [answer.thread for answer in early], [None] * 3)
        same("numbers", [answer.row.number for answer in early], [1, 2, 1])
        answer = await store.start(start_of())
        same("the inbox at the start", answer.inbox, (early[0].row, early[1].row))
        same("its last number", answer.thread.inbox, 2)
        again = await store.deliver(signal_of("s2"))
        same("the acknowledgement after the start", (again.row, again.new), (early[1].row, False))
        same("the next number", (await store.deliver(signal_of("s3"))).row.number, 3)
        unclaimed = await store.start(start_of("t2", owner=None))
        same("what a start without a claim is given", unclaimed.inbox, ())


async def check_signal_before_a_waiting_start(kit: Kit) -> None:
    """A thread that starts waiting with a signal in its inbox is due at once."""
    async with kit.open() as store:
        await store.deliver(signal_of())
        answer = await store.start(start_of(owner=None, status="waiting", wake=kit.clock() + SECOND))
        same("wake", answer.thread.standing.wake, kit.clock())
        claimed = await store.claim(request_of())
        same("the inbox of the claim", [row.id for claim in claimed.claims for row in claim.inbox], ["s1"])


async def check_signal_after_the_end(kit: Kit) -> None:
    """An ended thread takes no new signal, and still acknowledges one that it had accepted."""
    async with kit.open() as store:
        thread = await started(store)
        kept = await store.deliver(signal_of())
        thread = await committed(store, await thread_at(store), status="ended", release=True)
        await refused(ThreadEnded, "a new signal", store.deliver(signal_of("s2")))
        again = await store.deliver(signal_of())
        same("the acknowledgement", (again.row, again.new, again.thread), (kept.row, False, thread))
        await refused(SignalConflict, "a conflicting one", store.deliver(signal_of(payload=b"other")))
        same("the inbox", await _inbox(store), (kept.row,))


async def check_inbox_order(kit: Kit) -> None:
    """The inbox is in the order in which signals came, whatever their ids, clocks and fates."""
    async with kit.open() as store:
        thread = await started(store)
        for id_ in ("z", "a", "m", "b"):
            await store.deliver(signal_of(id_))
            kit.clock.advance(-SECOND)
        same(
            "the order",
            [(row.number, row.id) for row in await _inbox(store)],
            [(1, "z"), (2, "a"), (3, "m"), (4, "b")],
        )
        thread = await committed(store, await thread_at(store), consumed=(2, 3))
        same("what is pending", [row.id for row in await _inbox(store, pending=True)], ["z", "b"])
        same("what was consumed by which", [row.consumed for row in await _inbox(store)], [None, 1, 1, None])
        same("after number 2", [row.id for row in await _inbox(store, after=2)], ["m", "b"])
        same("pending after number 1", [row.id for row in await _inbox(store, pending=True, after=1)], ["b"])
        await committed(store, thread, status="waiting", wake=kit.clock(), release=True)
        claim = await one_claimed(store, request_of())
        same("the inbox of a claim", [row.id for row in claim.inbox], ["z", "b"])


async def check_signals_at_once(kit: Kit) -> None:
    """Of 50 signals with 25 ids delivered at once, each id counts once and numbers have no gap."""
    async with kit.open() as store:
        await started(store)
        calls = [store.deliver(signal_of(f"s{number % 25}")) for number in range(50)]
        answers = await asyncio.gather(*calls)
        same("how many were new", sum(answer.new for answer in answers), 25)
        inbox = await _inbox(store)
        same("numbers", [row.number for row in inbox], list(range(1, 26)))
        same("ids", len({row.id for row in inbox}), 25)


async def check_claim_brings_a_hundred_entries(kit: Kit) -> None:
    """A claim, and a claiming start, bring the first 100 pending entries."""
    async with kit.open() as store:
        for number in range(102):
            await store.deliver(signal_of(f"s{number:03}"))
        start = await store.start(start_of())
        wanted = [f"s{number:03}" for number in range(100)]
        same("the inbox of the start", [row.id for row in start.inbox], wanted)
        await committed(store, start.thread, consumed=(1,), release=True)
        claim = await one_claimed(store, request_of())
        same("the inbox of the claim", [row.number for row in claim.inbox], list(range(2, 102)))


async def check_signal_wakes_who_waits(kit: Kit) -> None:
    """A new signal makes a waiting thread due at once, and never later; one sent again does not."""
    async with kit.open() as store:
        now = kit.clock()
        for thread_id, wake in (("none", None), ("late", now + 9), ("early", now - 9)):
            await started(store, thread_id, owner=None, status="waiting", wake=wake)
        for thread_id, wanted in (("none", now), ("late", now), ("early", now - 9)):
            answer = await store.deliver(signal_of(thread_id=thread_id))
            thread = await thread_at(store, thread_id)
            same(f"wake of {thread_id}", thread.standing.wake, wanted)
            same("the thread in the answer", answer.thread, thread)
        claimed = await store.claim(request_of())
        threads = [claim.thread for claim in claimed.claims]
        await store.release(
            [_release(row.address.thread_id, row.incarnation, row.epoch, 1) for row in threads]
        )
        again = await store.deliver(signal_of(thread_id="none"))
        same("wake after a signal that was there already", again.thread, await thread_at(store, "none"))
        same("wake", (await thread_at(store, "none")).standing.wake, None)


def _release(thread_id: str, incarnation: bytes, epoch: int, seen: int) -> Release:
    return Release(
        address=address_of(thread_id),
        incarnation=incarnation,
        epoch=epoch,
        status="waiting",
        wake=None,
        inbox_seen=seen,
    )


async def check_signal_to_who_runs_or_is_parked(kit: Kit) -> None:
    """A signal to a thread that runs or is parked is kept, and changes nothing but the inbox."""
    async with kit.open() as store:
        running = await started(store)
        parked = await committed(store, await started(store, "t2"), "park", status="parked", release=True)
        for thread in (running, parked):
            await store.deliver(signal_of(thread_id=thread.address.thread_id))
            wanted = evolve(thread, inbox=1)
            same("the thread", await thread_at(store, thread.address.thread_id), wanted)


async def check_inbox_seen(kit: Kit) -> None:
    """A thread left waiting with an entry that its writer has not examined is due at once."""
    async with kit.open() as store:
        now = kit.clock()
        for thread_id, seen, wake, wanted in (
            ("unseen", 0, None, now),
            ("unseen-late", 0, now + 9, now),
            ("unseen-early", 0, now - 9, now - 9),
            ("seen", 1, None, None),
            ("seen-late", 1, now + 9, now + 9),
        ):
            thread = await started(store, thread_id)
            await store.deliver(signal_of(thread_id=thread_id))
            await store.commit(commit_of(thread, status="waiting", wake=wake, release=True, inbox_seen=seen))
            same(f"wake of {thread_id}", (await thread_at(store, thread_id)).standing.wake, wanted)
        parked = await started(store, "parked")
        await store.deliver(signal_of(thread_id="parked"))
        await store.commit(commit_of(parked, "park", status="parked", release=True, inbox_seen=0))
        same("wake of a parked thread", (await thread_at(store, "parked")).standing.wake, None)


async def check_inbox_seen_by_a_release(kit: Kit) -> None:
    """The same holds for a release: what came meanwhile makes a waiting thread due at once."""
    async with kit.open() as store:
        await store.beat(worker_of("w1"))
        for thread_id, seen, wanted in (("unseen", 0, kit.clock()), ("seen", 1, None)):
            thread = await started(store, thread_id)
            await store.deliver(signal_of(thread_id=thread_id))
            await store.release([_release(thread_id, thread.incarnation, thread.epoch, seen)])
            same(f"wake of {thread_id}", (await thread_at(store, thread_id)).standing.wake, wanted)


async def check_signals_with_a_start(kit: Kit) -> None:
    """Signals of a start are the new thread's inbox from the first moment, each once, sent again too."""
    async with kit.open() as store:
        signals = (evolve(signal_of("s1"), version=3), signal_of("s2", payload=b"[]"))
        start = start_of(signals=signals, priority=2)
        begun = await store.start(start)
        inbox = await rows(store, Inbox(address=address_of()))
        same(
            "entries",
            [(row.number, row.id, row.version, row.at) for row in inbox],
            [(1, "s1", 3, kit.clock()), (2, "s2", 0, kit.clock())],
        )
        same("what the start answers", (begun.created, begun.inbox, begun.thread.inbox), (True, inbox, 2))
        same(
            "what became of the signals",
            [(each.row, each.new) for each in begun.delivered],
            [(row, True) for row in inbox],
        )
        again = await store.start(start)
        same(
            "what became of them again",
            [(each.row, each.new) for each in again.delivered],
            [(row, False) for row in inbox],
        )
        same("the thread", again.thread, await thread_at(store))
        same("entries after a second start", await rows(store, Inbox(address=address_of())), inbox)


async def check_signals_with_a_start_wake(kit: Kit) -> None:
    """A thread that starts waiting is due at once by its start's signals, and so is one already there."""
    async with kit.open() as store:
        for thread_id in ("t1", "t2"):
            later = kit.clock() + SECOND
            if thread_id == "t2":
                await started(store, "t2", owner=None, status="waiting", wake=later)
            start = start_of(
                thread_id, owner=None, status="waiting", wake=later, signals=(signal_of("s1", thread_id),)
            )
            other = evolve(start, incarnation=b"another".ljust(16)) if thread_id == "t2" else start
            answer = await store.start(other)
            same("whether it is new", answer.created, thread_id == "t1")
            same("when it wakes", answer.thread.standing.wake, kit.clock())
            same("whether its signal is", [each.new for each in answer.delivered], [True])
            same("the thread in the answer to the signal", answer.delivered[0].thread, answer.thread)


async def check_signals_with_a_start_that_are_refused(kit: Kit) -> None:
    """Where one of a start's signals is refused, nothing at all is written, not the others either."""
    async with kit.open() as store:
        await store.deliver(signal_of("s2"))
        before = await rows(store, Inbox(address=address_of()))
        bad = start_of(signals=(signal_of("s1"), signal_of("s2", payload=b"another")), messages=(b"m",))
        await refused(SignalConflict, "a start with a conflict", store.start(bad))
        same("threads", await rows(store, Threads()), ())
        same("messages", await rows(store, Messages(workspace=WORKSPACE, session="talk")), ())
        same("entries", await rows(store, Inbox(address=address_of())), before)
        thread = await started(store)
        await refused(SignalConflict, "a start of what is there", store.start(bad))
        same("the thread", await thread_at(store), thread)
        other = start_of(signals=(signal_of("s4"),), incarnation=b"another", started=b"with other data")
        same("what another start brings", (await store.start(other)).delivered, ())
        same("entries after another start", await rows(store, Inbox(address=address_of())), before)
        await committed(store, thread, status="ended", release=True)
        good = start_of(signals=(signal_of("s2"), signal_of("s3")))
        await refused(ThreadEnded, "a new signal with the start of an ended thread", store.start(good))
        same("entries in the end", await rows(store, Inbox(address=address_of(), pending=True)), before)
        known = await store.start(evolve(good, signals=(signal_of("s2"),)))
        same("a signal that was there before the end", [each.new for each in known.delivered], [False])


async def check_signals_for_newer_code(kit: Kit) -> None:
    """A thread whose inbox holds what only a newer version reads is claimed by that one, whoever writes."""
    async with kit.open() as store:
        for thread_id in ("early", "there", "held"):
            signal = evolve(signal_of("s1", thread_id), version=3)
            if thread_id == "early":
                await store.deliver(signal)
                thread = await started(store, thread_id, owner=None, status="waiting")
            else:
                thread = await started(store, thread_id, owner=None if thread_id == "there" else "w1")
                await store.deliver(signal)
            if thread_id == "held":  # by a worker that knows nothing of it yet
                await committed(store, thread, release=True)
            same(f"the version of {thread_id}", (await thread_at(store, thread_id)).standing.version, 3)
        older = await store.claim(request_of("w2", machines={MACHINE: 2}))
        same("what an older version claims", len(older.claims), 0)
        newer = await store.claim(request_of("w2", machines={MACHINE: 3}))
        same("what the newer one claims", len(newer.claims), 3)


async def check_limits_of_signals_with_a_start(kit: Kit) -> None:
    """Priorities past 10, signals to another thread or twice by one id, over 64 with messages: refused."""
    async with kit.open() as store:
        many = tuple(signal_of(f"s{number}") for number in range(65))
        spoilt: tuple[dict[str, Any], ...] = (
            {"priority": 11},
            {"priority": -11},
            {"signals": (signal_of("s1", "t2"),)},
            {"signals": (signal_of("s1"), signal_of("s1"))},
        )
        for parts in spoilt:
            await refused(ValueError, f"a start with {parts}", store.start(start_of(**parts)))
        for signals in (many, (signal_of("s" * 256),)):
            await refused(
                TooLarge, "a start with signals over a limit", store.start(start_of(signals=signals))
            )
        said = start_of(signals=many[:32], messages=(b"",) * 33)
        await refused(TooLarge, "a start with too many messages and signals", store.start(said))
        same("threads", await rows(store, Threads()), ())
        whole = await store.start(start_of(signals=many[:64], priority=-10))
        same("what became of 64", len(whole.delivered), 64)


INBOX: tuple[Check, ...] = tuple(
    check_of(check)
    for check in (
        check_signal_counts_once,
        check_signals_of_equal_body,
        check_signal_with_another_digest,
        check_signal_before_the_start,
        check_signal_before_a_waiting_start,
        check_signal_after_the_end,
        check_inbox_order,
        check_signals_at_once,
        check_claim_brings_a_hundred_entries,
        check_signal_wakes_who_waits,
        check_signal_to_who_runs_or_is_parked,
        check_inbox_seen,
        check_inbox_seen_by_a_release,
        check_signals_with_a_start,
        check_signals_with_a_start_wake,
        check_signals_with_a_start_that_are_refused,
        check_signals_for_newer_code,
        check_limits_of_signals_with_a_start,
    )
)
