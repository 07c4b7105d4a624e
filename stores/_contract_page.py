"""Checks: queries are paged, bounded and ordered, and their filters never let anything else through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import evolve, frozen

from ._contract_kit import Check, Kit, check_of, refused, rows, same
from ._contract_make import (
    MACHINE,
    T0,
    WORKSPACE,
    address_of,
    artifact_of,
    commit_of,
    committed,
    incarnation_of,
    signal_of,
    start_of,
    started,
    thread_at,
    worker_of,
    write_of,
)
from ._queries import Artifacts, Inbox, Items, Keys, Log, Memory, Messages, Outbox, Query, Threads, Workers
from ._records import KeyWrite, OutboxRow
from ._store import Store

COUNT = 5
ODD = (
    "",
    "absent",
    "a') OR 1=1--",
    '"',
    "'",
    "%",
    "_",
    "*",
    "T1",
    "t1 ",
    "\0",
    "t1\0",
    "\\",
    "NULL",
    "[]",
    "{}",
)
"""Texts that match nothing, though a store that builds them into a language of its own may think so."""


@frozen(kw_only=True)
class Listing:
    """A query over the stage, and the identities of its rows in order."""

    name: str
    query: Query[Any]
    wanted: tuple[tuple[object, ...], ...]


NAMES_OF_A_ROW = (
    ("address",),
    ("namespace", "key", "version"),
    ("seq", "n"),
    ("number",),
    ("n",),
    ("key",),
    ("id",),
)


def _identity(row: Any) -> tuple[object, ...]:
    """What tells rows of one listing apart."""
    for names in NAMES_OF_A_ROW:
        if all(hasattr(row, name) for name in names):
            return tuple(getattr(row, name) for name in names)
    raise TypeError(f"{row!r} is no row")


def _ones(values: Iterable[object]) -> tuple[tuple[object, ...], ...]:
    return tuple((value,) for value in values)


_N = range(COUNT)
_T1 = address_of("t1")
LISTINGS: tuple[Listing, ...] = (
    Listing(name="threads", query=Threads(workspace="w"), wanted=_ones(address_of(f"t{i}", "w") for i in _N)),
    Listing(
        name="threads_everywhere",
        query=Threads(machine="Other"),
        wanted=_ones(address_of("t0", f"w{i}") for i in _N),
    ),
    Listing(name="log", query=Log(address=_T1), wanted=tuple((max(0, i - 1), i) for i in _N)),
    Listing(name="log_of_visit", query=Log(address=_T1, seq=0), wanted=((0, 0), (0, 1))),
    Listing(name="items", query=Items(address=_T1), wanted=_ones(_N)),
    Listing(name="items_from_a_position", query=Items(address=_T1, first=2), wanted=_ones((2, 3, 4))),
    Listing(name="inbox", query=Inbox(address=_T1), wanted=_ones(i + 1 for i in _N)),
    Listing(name="inbox_pending", query=Inbox(address=_T1, pending=True, after=1), wanted=_ones((2, 4, 5))),
    Listing(name="messages", query=Messages(workspace=WORKSPACE, session="talk"), wanted=_ones(range(1, 6))),
    Listing(
        name="messages_seen",
        query=Messages(workspace=WORKSPACE, session="talk", since=2, incarnation=incarnation_of("t1")),
        wanted=_ones((1, 2, 4, 5)),
    ),
    Listing(
        name="memory",
        query=Memory(workspace=WORKSPACE),
        wanted=tuple(("customer", f"k{i}", 2 if i == 2 else 1) for i in _N),
    ),
    Listing(
        name="memory_history",
        query=Memory(workspace=WORKSPACE, history=True, namespace="customer"),
        wanted=tuple(("customer", f"k{i}", version) for i in _N for version in ((1, 2) if i == 2 else (1,))),
    ),
    Listing(
        name="artifacts", query=Artifacts(workspace=WORKSPACE), wanted=_ones(("a4", "a1", "a3", "a0", "a2"))
    ),
    Listing(
        name="artifacts_made_from",
        query=Artifacts(workspace=WORKSPACE, derived_from="source"),
        wanted=_ones(("a4", "a3", "a2")),
    ),
    Listing(
        name="keys", query=Keys(workspace=WORKSPACE, effect="publish"), wanted=_ones(f"k{i}" for i in _N)
    ),
    Listing(name="outbox", query=Outbox(address=_T1), wanted=((1, 0), (1, 1), (2, 0), (2, 1), (3, 0))),
    Listing(name="workers", query=Workers(), wanted=_ones(("w4", "w1", "w3", "w0", "w2"))),
)


async def _stage(store: Store) -> None:
    """Five rows, or a few more, for every listing; written out of order where the order is not theirs."""
    for number in (3, 0, 4, 2, 1):
        await store.start(evolve(start_of(owner=None), address=address_of(f"t{number}", "w")))
        other = start_of(owner=None, machine="Other", session="elsewhere")
        await store.start(evolve(other, address=address_of("t0", f"w{number}")))
        await store.deliver(signal_of(f"s{number}"))
    await _stage_thread(store)
    for age, number in enumerate((2, 0, 3, 1, 4)):
        moment = T0 - age // 2
        sources = ("other", "source") if number > 1 else ("sourc", "source ")
        await store.upload(artifact_of(f"a{number}", None, created=moment, derived_from=sources))
        await store.beat(worker_of(f"w{number}", started=T0 + age // 2))


async def _stage_thread(store: Store) -> None:
    thread = (await store.start(start_of(messages=(b"1", b"2"), items=b"0"))).thread
    await started(store, "t2", messages=(b"3",))
    keys = tuple(KeyWrite(effect="publish", key=f"k{i}", action="claim") for i in (4, 0, 3, 1, 2))
    memory = tuple(write_of(f"k{i}", b"", 0) for i in (4, 0, 3, 1, 2))
    thread = await committed(store, thread, "record", items=b"1", keys=keys, memory=memory)
    thread = await committed(
        store, thread, items=b"2", consumed=(1,), messages=(b"4", b"5"), outbox=_sent(1, 2)
    )
    thread = await committed(store, thread, items=b"3", memory=(write_of("k2", None, 1),), outbox=_sent(2, 2))
    await committed(store, thread, items=b"4", consumed=(3,), outbox=_sent(3, 1))


def _sent(seq: int, count: int) -> tuple[OutboxRow, ...]:
    target = address_of("t9")
    return tuple(OutboxRow(seq=seq, n=n, target=target, kind="signal", payload=b"") for n in range(count))


async def _walk(store: Store, query: Query[Any], limit: int) -> list[Sequence[Any]]:
    pages = [await store.page(query, limit=limit)]
    while (cursor := pages[-1].next) is not None and len(pages) < 20:
        pages.append(await store.page(query, after=cursor, limit=limit))
    return [page.rows for page in pages]


def _paging(listing: Listing) -> Check:
    async def body(kit: Kit) -> None:
        async with kit.open() as store:
            await _stage(store)
            count = len(listing.wanted)
            for limit in (1, 2, count - 1, count, count + 1, 1000):
                pages = await _walk(store, listing.query, limit)
                got = tuple(_identity(row) for page in pages for row in page)
                same(f"{listing.name} in pages of {limit}", got, listing.wanted)
                sizes = [min(limit, count - first) for first in range(0, count, limit)]
                same(f"sizes of pages of {limit}", [len(page) for page in pages], sizes)

    return Check(
        name=f"paging_{listing.name}",
        promise=f"Pages of {listing.name}, whatever their size, give each row once, in order, and then end.",
        body=body,
    )


async def check_pages_while_others_write(kit: Kit) -> None:
    """What is written between two pages repeats no row and leaves none out; the cursor's row may go."""
    async with kit.open() as store:
        for number in (1, 3, 5):
            await started(store, f"t{number}")
        page = await store.page(Threads(), limit=2)
        for number in (0, 2, 4):
            await started(store, f"t{number}")
        rest = await store.page(Threads(), after=page.next, limit=9)
        same("the rest of the threads", [row.address.thread_id for row in rest.rows], ["t4", "t5"])
        keys = [KeyWrite(effect="publish", key=f"k{number}", action="claim") for number in range(4)]
        thread = await committed(store, await thread_at(store), "record", keys=tuple(keys))
        first = await store.page(Keys(workspace=WORKSPACE, effect="publish"), limit=2)
        await committed(store, thread, "record", keys=(evolve(keys[1], action="free"),))
        left = await store.page(Keys(workspace=WORKSPACE, effect="publish"), after=first.next, limit=9)
        same("the rest of the keys", [row.key for row in left.rows], ["k2", "k3"])


async def check_bad_pages(kit: Kit) -> None:
    """A limit under 1 and a cursor that is none are refused with ValueError."""
    async with kit.open() as store:
        await _stage(store)
        for listing in LISTINGS:
            for limit in (0, -1):
                what = f"{listing.name} with limit {limit}"
                await refused(ValueError, what, store.page(listing.query, limit=limit))
            for cursor in ("", "no cursor", "0' OR '1'='1", "[", "{}", "null", '"x"', "\0"):
                what = f"{listing.name} behind {cursor!r}"
                await refused(ValueError, what, store.page(listing.query, after=cursor))


def _filtered(odd: str) -> list[Query[Any]]:
    nowhere = address_of(odd)
    own = WORKSPACE
    return [
        Threads(workspace=odd),
        Threads(thread_id=odd),
        Threads(machine=odd),
        Threads(state=odd),
        Threads(status=odd),  # type: ignore[arg-type]
        Threads(session=odd),
        Threads(owner=odd),
        *(
            query(address=address)
            for query in (Log, Items, Inbox, Outbox)
            for address in (nowhere, _else(odd))
        ),
        Messages(workspace=odd, session="talk"),
        Messages(workspace=WORKSPACE, session=odd),
        Messages(workspace=WORKSPACE, session="talk", incarnation=odd.encode()),
        *(Memory(workspace=odd, history=history) for history in (False, True)),
        *(Memory(workspace=own, namespace=odd, history=history) for history in (False, True)),
        *(Memory(workspace=own, key=odd, history=history) for history in (False, True)),
        Artifacts(workspace=odd),
        Artifacts(workspace=own, id=odd),
        Artifacts(workspace=own, thread_id=odd),
        Artifacts(workspace=own, sha256=odd),
        Artifacts(workspace=own, derived_from=odd),
        Keys(workspace=odd, effect="publish"),
        Keys(workspace=own, effect=odd),
        Keys(workspace=own, effect="publish", key=odd),
        Workers(id=odd),
    ]


def _else(odd: str) -> Any:
    return address_of("t1", odd)


async def check_filters_that_match_nothing(kit: Kit) -> None:
    """A filter that matches nothing gives nothing, never everything, whatever its text holds."""
    async with kit.open() as store:
        await _stage(store)
        for odd in ODD:
            for query in _filtered(odd):
                same(f"rows of {query}", await rows(store, query), ())
        same("visit 9", await rows(store, Log(address=_T1, seq=9)), ())
        same("the inbox after 9", await rows(store, Inbox(address=_T1, after=9)), ())


def _counted(own: str) -> list[tuple[Query[Any], int]]:
    """Queries over the stage, and how many rows each has."""
    return [
        (Threads(), 12),
        (Threads(thread_id="t0"), 6),
        (Threads(workspace="w", thread_id="t0"), 1),
        (Threads(machine=MACHINE), 7),
        (Threads(state="loading", session="elsewhere"), 5),
        (Threads(session="talk", machine="Other"), 0),
        (Threads(status="waiting"), 1),
        (Threads(owner="w1"), 2),
        (Threads(owner="w1", status="running"), 1),
        (Log(address=_T1, after=0), 4),
        (Log(address=_T1, after=1, seq=1), 1),
        (Log(address=_T1, after=4), 0),
        (Memory(workspace=own, namespace="customer", key="k2"), 1),
        (Memory(workspace=own, key="k2", history=True), 2),
        (Artifacts(workspace=own, id="a3"), 1),
        (Artifacts(workspace=own, sha256=artifact_of("a2").sha256), 1),
        (Artifacts(workspace=own, id="a3", sha256=artifact_of("a2").sha256), 0),
        (Artifacts(workspace=own, derived_from="sourc"), 2),
        (Artifacts(workspace=own, id="a3", derived_from="source"), 1),
        (Artifacts(workspace=own, id="a1", derived_from="source"), 0),
        (Artifacts(workspace="other", derived_from="source"), 0),
        (Items(address=_T1, first=5), 0),
        (Keys(workspace=own, effect="publish", key="k4"), 1),
        (Workers(id="w3"), 1),
    ]


async def check_filters(kit: Kit) -> None:
    """Each filter lets through what it names, and several what all of them name."""
    async with kit.open() as store:
        await _stage(store)
        await committed(store, await thread_at(store, "t2"), status="waiting")
        for query, count in _counted(WORKSPACE):
            same(f"how many rows {query} gives", len(await rows(store, query)), count)
        commit = commit_of(await thread_at(store), artifacts=(artifact_of("mine"),))
        await store.commit(commit)
        mine = await rows(store, Artifacts(workspace=WORKSPACE, thread_id="t1"))
        same("artifacts of t1", [row.id for row in mine], ["mine"])


PAGE: tuple[Check, ...] = (
    *(_paging(listing) for listing in LISTINGS),
    *(
        check_of(check)
        for check in (
            check_pages_while_others_write,
            check_bad_pages,
            check_filters_that_match_nothing,
            check_filters,
        )
    ),
)
