"""Ending a thread from outside: the two reserved messages, and the take-over that terminates.

A cancel asks: it lies in the inbox like a signal until a state takes it. A terminate tells: its message says
who and why, and then the thread is taken from whoever has it, under an epoch that fences that one out.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec
from attrs import evolve, frozen

from perdure.machines import Cancellation
from perdure.stores import (
    Address,
    Claim,
    ClaimRequest,
    InboxRow,
    Signal,
    StaleClaim,
    Store,
    ThreadEnded,
    ThreadRow,
    WorkerRow,
    check_name,
)

from ._book import Book
from ._env import Env
from ._errors import CannotResolve, SignalRefused
from ._journal import Entry, entries_of_visit, plain_text
from ._keys import digest
from ._ledger import Conclusion, Ledger
from ._look import DAMAGE, ended_words, find_thread
from ._reliable import released, until_known
from ._reserved import CANCEL, TERMINATE, words_of

OPERATOR_LEASE = 15_000_000
"""Microseconds for which an operator's claim holds where its process dies."""
ANY_CRASHES = 2**31
"""More crashes than a thread can have: an operator takes suspects too."""
TAKE_OVERS = 50
"""How often a thread that others claim, start and end meanwhile is taken over before that is given up."""
PAUSE = 0.1
"""Seconds between two of them."""


@frozen(kw_only=True)
class Sent:
    """A reserved message as it stands in the inbox: the first one's words, where it was sent before."""

    row: InboxRow
    new: bool
    thread: ThreadRow | None
    """As it stood then; None: it has not started yet."""


async def cancel(store: Store, address: Address, *, by: str, reason: str) -> Sent:
    """Put a cancel into the thread's inbox, once a thread. ``SignalRefused`` says how it has ended, if so."""
    return await _send(store, address, CANCEL, by, reason)


async def terminate(store: Store, env: Env, address: Address, *, by: str, reason: str) -> str | None:
    """End the thread at once, whoever has it: the worker that it was taken from, if any. ``NoSuchThread``;
    ``SignalRefused`` where it has ended otherwise, saying how; ``CannotResolve`` where others keep it from
    being claimed."""
    row = await find_thread(store, address)
    sent = await _send(store, address, TERMINATE, by, reason)
    async with operator(store, env) as worker:
        for _ in range(TAKE_OVERS):
            if row.standing.status == "ended":
                break
            if row.owner == worker:  # a claim whose reply was lost
                await _give_up(store, row)
            elif await _take_over_and_end(store, env, worker, row, sent.row):
                return row.owner
            else:
                await anyio.sleep(PAUSE)
            row = await find_thread(store, address)
    if row.standing.reason != "terminated":
        raise _refused(row) if row.standing.status == "ended" else _held(row)
    return None


async def _give_up(store: Store, row: ThreadRow) -> None:
    await until_known(lambda: store.release([released(row)]))


async def _send(store: Store, address: Address, event: str, by: str, reason: str) -> Sent:
    check_name("by", by)
    payload = msgspec.json.encode({"by": by, "reason": plain_text(reason)})
    # Whatever the words are, it is the same message: the first one's stand.
    signal = Signal(address=address, id=event, event=event, payload=payload, digest=digest(event))
    try:
        delivered = await until_known(lambda: store.deliver(signal))
    except ThreadEnded as error:
        raise _refused(await find_thread(store, address)) from error
    thread = delivered.thread
    if thread is not None and thread.standing.status == "ended" and delivered.row.consumed is None:
        raise _refused(thread)
    return Sent(row=delivered.row, new=delivered.new, thread=thread)


def _refused(row: ThreadRow) -> SignalRefused:
    return SignalRefused(f"thread {row.address.thread_id!r} has ended: {ended_words(row.standing)}")


def _held(row: ThreadRow) -> CannotResolve:
    return CannotResolve(
        f"thread {row.address.thread_id!r} could not be taken from {row.owner or 'whoever claims it'}: its "
        "message lies in the inbox, so terminate it again"
    )


# --- the take-over --------------------------------------------------------------------------------


async def _take_over_and_end(store: Store, env: Env, worker: str, row: ThreadRow, message: InboxRow) -> bool:
    """Whether this very take-over has ended the thread."""
    request = ClaimRequest(
        worker=worker,
        machines={row.machine: row.standing.version},
        limit=1,
        # Whether it lives or not: from this claim on nothing that it writes lands.
        dead=() if row.owner is None else (row.owner,),
        suspect_from=ANY_CRASHES,
        only=row.address,
    )
    claimed = await until_known(lambda: store.claim(request))
    if not claimed.claims:
        return False
    (claim,) = claimed.claims
    ledger = Ledger(store, env, claim.thread, worker)
    try:
        await end_in_place(ledger, message, "terminated", doubts_in(claim), env.now(), owner=row.owner)
    except StaleClaim:
        return False
    return True


async def end_in_place(
    ledger: Ledger,
    message: InboxRow,
    reason: str,
    doubts: Sequence[tuple[str, str]] | None,
    now: int,
    *,
    owner: str | None = None,
) -> None:
    """End a thread in the state in which it stands, without a transition, as a reserved message asks.

    ``doubts``: effects that stay without an outcome, each with its key; None: the record cannot be read.
    ``owner``: the worker that it was taken from.
    """
    words = words_of(message)
    entry: Entry = {"k": reason, "by": words.by, "reason": words.reason, "number": message.number, "at": now}
    if doubts is None:
        entry["unreadable"] = True
    elif doubts:
        entry["in_doubt"] = [list(doubt) for doubt in doubts]
    if owner is not None:
        entry["from"] = owner
    standing = evolve(
        ledger.standing, status="ended", reason=reason, note=_note(reason, words, doubts), wake=None
    )
    await ledger.conclude(
        Conclusion(
            kind="resolve",
            standing=standing,
            release=True,
            at=now,
            entries=[entry],
            parts={"consumed": (message.number,)},
        )
    )


def _note(reason: str, words: Cancellation, doubts: Sequence[tuple[str, str]] | None) -> str:
    said = f"{reason} by {words.by}" + (f": {words.reason}" if words.reason else "")
    if doubts is None:
        return plain_text(f"{said}; its record cannot be read, and may hold effects in doubt")
    left = ", ".join(f"{call} ({key})" for call, key in doubts[:10])
    more = f" and {len(doubts) - 10} more" if len(doubts) > 10 else ""
    return plain_text(f"{said}; in doubt stay: {left}{more}" if doubts else said)


def doubts_in(claim: Claim) -> list[tuple[str, str]] | None:
    """Effects of the visit that have no outcome; None where its rows cannot be read."""
    book = Book()
    try:
        for row in claim.log:
            book.apply_all(entries_of_visit(row, claim.thread.standing.seq))
    except DAMAGE:
        return None
    return [(record.call, record.key) for record in book.doubts()]


@asynccontextmanager
async def operator(store: Store, env: Env) -> AsyncGenerator[str]:
    """A worker's row for as long as an operator's claim lasts: without one it would count as a dead
    worker's."""
    now = env.now()
    row = WorkerRow(
        id=f"operator-{env.token(8).hex()}",
        host="",
        pid=os.getpid(),
        lock="",
        lease=OPERATOR_LEASE,
        started=now,
        beat=now,
    )
    await until_known(lambda: store.beat(row))
    try:
        yield row.id
    finally:
        await until_known(lambda: store.beat(evolve(row, ended=env.now())))
