"""Checks: everything is listed by kind, and put into another store as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from attrs import evolve

from ._contract_kit import SECOND, Check, Kit, check_of, refused, rows, same
from ._contract_make import (
    MACHINE,
    T0,
    WORKSPACE,
    address_of,
    artifact_of,
    commit_of,
    committed,
    one_claimed,
    remember_of,
    request_of,
    signal_of,
    start_of,
    started,
    thread_at,
    worker_of,
    write_of,
)
from ._errors import RestoreConflict, SignalConflict, TooLarge
from ._kinds import ROW_KINDS, RowKind, StoredRow, ThreadPart, key_of_row
from ._limits import MAX_BODY, MAX_NAME, MAX_RESTORED, MAX_WRITE
from ._memory import MemoryStore
from ._queries import Artifacts, Log, Memory, Messages, Rows, Threads
from ._records import (
    ArtifactRow,
    InboxRow,
    ItemsRow,
    KeyRow,
    KeyWrite,
    LogRow,
    MemoryRow,
    MessageRow,
    OutboxRow,
    ThreadRow,
)
from ._store import Store
from ._workers import DefinitionRow

Everything = dict[RowKind, tuple[StoredRow, ...]]


async def _stage(store: Store) -> None:
    """Some rows of every kind, in two workspaces; an inbox of a thread that has not started."""
    for number, workspace in enumerate((WORKSPACE, "b", "ä")):
        at = address_of(f"t{number}", workspace)
        await store.deliver(evolve(signal_of("early"), address=at))
        made = start_of(f"t{number}", address=at, messages=(b"hello",), items=b"i0", priority=number)
        thread = (await store.start(made)).thread
        send = OutboxRow(seq=1, n=0, target=address_of("t9"), kind="signal", payload=b"out")
        key = KeyWrite(effect="publish", key=f"k{number}", action="claim", arguments=b"a", salt=b"s")
        wide = commit_of(
            thread,
            items=b"i1",
            messages=(b"one", b"two"),
            memory=(write_of("k", b"1", 0), write_of("l", b"", 0)),
            artifacts=(artifact_of("made", f"t{number}", workspace=workspace, derived_from=("x", "é")),),
            keys=(key, evolve(key, action="outcome", outcome=b"", expires=T0)),
            outbox=(send, evolve(send, n=1)),
            consumed=(1,),
        )
        await store.commit(wide)
        [row] = await rows(store, Threads(workspace=workspace))
        await store.commit(commit_of(row, "record", memory=(write_of("k", b"2", 1),), payload=b"more"))
    await store.upload(artifact_of("free", None, expires=T0 + 1))
    await store.remember(remember_of("k", None, None))
    await store.deliver(signal_of("waiting", "t0"))
    await store.deliver(signal_of("first", "unborn"))
    await store.deliver(signal_of("second", "unborn"))
    known = DefinitionRow(machine=MACHINE, version=1, hash="h", document=b"{}", at=0)
    await store.beat(worker_of(), (known, evolve(known, version=2)))


async def _staged(kit: Kit) -> Everything:
    """The rows of a store that is not the one under test."""
    source = MemoryStore(kit.clock)
    await _stage(source)
    return await _everything(source)


async def _everything(store: Store) -> Everything:
    return {kind: await rows(store, Rows(kind=kind)) for kind in ROW_KINDS}


async def _put(store: Store, given: Iterable[StoredRow]) -> None:
    left = list(given)
    while left:
        await store.restore(left[:MAX_RESTORED])
        left = left[MAX_RESTORED:]


async def _put_all(store: Store, everything: Everything) -> None:
    for kind in ROW_KINDS:
        await _put(store, everything[kind])


async def check_rows_by_kind(kit: Kit) -> None:
    """All rows of a kind are listed, of every workspace, also before a thread starts, in key order."""
    wanted = await _staged(kit)
    async with kit.open() as store:
        await _stage(store)
        for kind in ROW_KINDS:
            if kind == "memory":  # the write outside of a thread has an id of its own in each store
                continue
            same(kind, await rows(store, Rows(kind=kind)), wanted[kind])
            keys = [key_of_row(row) for row in wanted[kind]]
            same(f"the order of {kind} rows", keys, sorted(keys))
        facts = await rows(store, Rows(kind="memory"))
        same("memory", list(map(key_of_row, facts)), list(map(key_of_row, wanted["memory"])))


async def check_paging_rows(kit: Kit) -> None:
    """Pages of any size of a kind's rows join without a gap; a cursor holds for a handle opened later."""
    async with kit.open() as store:
        await _stage(store)
        whole = await _everything(store)
        for kind in ROW_KINDS:
            for limit in (1, 2, 3):
                same(f"{kind} rows by {limit}", await rows(store, Rows(kind=kind), limit), whole[kind])
        cursors: dict[RowKind, str | None] = {}
        for kind in ROW_KINDS:
            cursors[kind] = (await store.page(Rows(kind=kind), limit=1)).next
        for wrong in ("", "x", "[1]"):
            await refused(ValueError, f"cursor {wrong!r}", store.page(Rows(kind="log"), after=wrong))
    async with kit.open() as later:
        for kind, cursor in cursors.items():
            page = await later.page(Rows(kind=kind), after=cursor)
            same(f"{kind} rows behind the first", tuple(page.rows), whole[kind][1:])


async def check_restore(kit: Kit) -> None:
    """What is restored is what it was, row by row, and so are the answers of other queries."""
    wanted = await _staged(kit)
    kit.clock.advance(SECOND)
    async with kit.open() as store:
        await _put_all(store, wanted)
        same("what is stored", await _everything(store), wanted)
    async with kit.open() as store:
        for kind in ROW_KINDS:
            same(f"{kind} rows later", await rows(store, Rows(kind=kind)), wanted[kind])
        same("threads", await rows(store, Threads()), wanted["thread"])
        log = await rows(store, Log(address=address_of("t0")))
        same("a log", tuple(ThreadPart(address=address_of("t0"), row=row) for row in log), wanted["log"][:3])
        talk = await rows(store, Messages(workspace=WORKSPACE, session="talk"))
        same("a session", [row.payload for row in talk], [b"hello", b"one", b"two"])
        newest = [(row.key, row.version) for row in await rows(store, Memory(workspace=WORKSPACE))]
        same("newest versions", newest, [("k", 3), ("l", 1)])
        made = await rows(store, Artifacts(workspace="b", derived_from="é"))
        same("what is made from a source", [row.id for row in made], ["made"])


async def check_restored_threads_go_on(kit: Kit) -> None:
    """A restored thread keeps its owner, who is dead here, and is taken over and goes on where it was."""
    wanted = await _staged(kit)
    async with kit.open() as store:
        await _put_all(store, wanted)
        same("a thread's owner", (await thread_at(store, "t0")).owner, "w1")
        only = request_of("w2", only=address_of("t0"))
        claim = await one_claimed(store, only)
        taken = (claim.taken_from, claim.thread.epoch, claim.thread.crashes)
        same("who had it, its epoch, its crashes", taken, ("w1", 2, 1))
        same("its log", [row.n for row in claim.log], [0, 1, 2])
        same("its items", [row.payload for row in claim.items], [b"i0", b"i1"])
        same("its inbox", [row.id for row in claim.inbox], ["waiting"])
        moved = (write_of("k", b"4", 3),)
        thread = await committed(store, claim.thread, messages=(b"next",), memory=moved, items=b"i2")
        talk = await rows(store, Messages(workspace=WORKSPACE, session="talk"))
        same("the session's last number", talk[-1].number, 4)
        same("the thread's position", (thread.n, thread.standing.seq), (4, 2))
        again = await store.deliver(signal_of("early", "t0"))
        same("a signal sent again", (again.new, again.row.number), (False, 1))
        other = signal_of("early", "t0", payload=b"other")
        await refused(SignalConflict, "another one under its id", store.deliver(other))
        same("the next signal's number", (await store.deliver(signal_of("new", "t0"))).row.number, 3)
        born = await store.start(start_of("unborn"))
        same("what waited for a start", [row.id for row in born.inbox], ["first", "second"])


async def check_restored_threads_wait_from_now(kit: Kit) -> None:
    """A thread that runs without an owner has waited for a claim only since it was restored."""
    async with kit.open() as store:
        source = MemoryStore(kit.clock)
        await started(source, "a", owner=None)
        restored = await _everything(source)
        kit.clock.advance(SECOND)
        await started(store, "b", owner=None)
        kit.clock.advance(SECOND)
        await _put_all(store, restored)
        for thread_id in ("b", "a"):
            claim = await one_claimed(store, request_of(limit=1))
            same("who is claimed next", claim.thread.address.thread_id, thread_id)


async def check_restore_again(kit: Kit) -> None:
    """What is there identically is left, also where the rest of its batch is new."""
    wanted = await _staged(kit)
    async with kit.open() as store:
        for kind in ROW_KINDS[:-1]:
            await store.restore(wanted[kind][:1])
        await _put_all(store, wanted)
        await _put_all(store, wanted)
        await store.restore(())
        same("what is stored", await _everything(store), wanted)


async def check_restore_at_once(kit: Kit) -> None:
    """The same batches restored by two at the same moment are there once."""
    wanted = await _staged(kit)
    async with kit.open() as one, kit.open() as two:
        for kind in ROW_KINDS:
            await asyncio.gather(*(store.restore(wanted[kind]) for store in (one, two) * 3))
        same("what is stored", await _everything(one), wanted)


def _another(row: StoredRow) -> StoredRow:
    """Another row under the same name."""
    match row:
        case ThreadPart(row=LogRow() as inner):
            return evolve(row, row=evolve(inner, salt=b"another"))
        case ThreadPart(row=inner):
            return evolve(row, row=evolve(inner, payload=b"another"))
        case DefinitionRow():
            return evolve(row, document=b"another")
        case MemoryRow():
            return evolve(row, value=b"another")
        case MessageRow():
            return evolve(row, payload=b"another")
        case KeyRow():
            return evolve(row, salt=b"another")
        case ArtifactRow():
            return evolve(row, media_type="text/another")
        case ThreadRow():
            return evolve(row, epoch=row.epoch + 1)


async def check_restore_over_another_row(kit: Kit) -> None:
    """Where another row stands under one's name, of any kind, nothing of the batch is written."""
    wanted = await _staged(kit)
    async with kit.open() as store:
        await _put_all(store, wanted)
        for kind in ROW_KINDS:
            fresh = _fact(f"beside {kind}")
            for batch in ((fresh, _another(wanted[kind][0])), (_another(wanted[kind][-1]), fresh)):
                await refused(RestoreConflict, f"another {kind} row", store.restore(batch))
        same("what is stored", await _everything(store), wanted)


def _fact(key: str, version: int = 1) -> MemoryRow:
    return MemoryRow(
        workspace=WORKSPACE,
        namespace="customer",
        key=key,
        version=version,
        value=b"%d" % version,
        at=T0,
        thread_id=None,
        seq=None,
        principal="ada",
    )


async def check_restored_threads_come_last(kit: Kit) -> None:
    """Nobody can claim a thread whose row is not there, and that is refused before its log and inbox."""
    wanted = await _staged(kit)
    threads = [row for row in wanted["thread"] if isinstance(row, ThreadRow)]
    parts: tuple[RowKind, ...] = ("log", "items", "inbox", "outbox")
    async with kit.open() as store:
        await refused(RestoreConflict, "a thread without a log", store.restore(threads[:1]))
        await refused(RestoreConflict, "all of it at once", store.restore((*wanted["log"], *threads)))
        await _put(store, [row for row in wanted["log"] if key_of_row(row)[-1] != 2])
        await refused(RestoreConflict, "a thread before its newest log row", store.restore(threads))
        await _put(store, wanted["log"])
        await refused(RestoreConflict, "a thread before its inbox", store.restore(threads))
        for kind in parts:
            await _put(store, wanted[kind])
        for spoiled in (evolve(threads[0], head=b"another"), evolve(threads[0], updated=T0 + 99)):
            await refused(RestoreConflict, "a thread of another head", store.restore((spoiled,)))
        same("threads", await rows(store, Threads()), ())
        same("what is claimed", (await store.claim(request_of("w2"))).claims, ())
        await store.restore(threads)
        same("threads then", list(await rows(store, Threads())), threads)
        same("how many are claimed then", len((await store.claim(request_of("w2"))).claims), len(threads))


async def check_restored_threads_stay_whole(kit: Kit) -> None:
    """A thread that stands takes no more parts: what it lacks then is another thread's."""
    wanted = await _staged(kit)
    async with kit.open() as store:
        await _put_all(store, wanted)
        before = await _everything(store)
        added = (
            LogRow(seq=9, n=9, epoch=1, kind="record", at=T0, head=b"h", salt=b"s", payload=b""),
            ItemsRow(n=9, payload=b""),
            InboxRow(number=9, id="nine", event="e", payload=b"", digest=b"", at=T0),
            OutboxRow(seq=9, n=9, target=address_of("t9"), kind="signal", payload=b""),
        )
        for row in added:
            part = ThreadPart(address=address_of("t0"), row=row)
            batch = (_fact("beside"), part)
            await refused(RestoreConflict, f"a {type(row).__name__} more", store.restore(batch))
        same("what is stored", await _everything(store), before)


async def check_restored_memory_in_any_order(kit: Kit) -> None:
    """A memory key's newest version is its highest, in whatever order its versions come."""
    async with kit.open() as store:
        for versions in ((3,), (5, 2), (4,), (6,), (1,)):
            await store.restore([_fact("k", version) for version in versions])
            highest = 5 if versions in ((5, 2), (4,)) else 6 if versions in ((6,), (1,)) else 3
            newest = await rows(store, Memory(workspace=WORKSPACE))
            same("the newest", [row.version for row in newest], [highest])
        history = await rows(store, Memory(workspace=WORKSPACE, history=True))
        same("the history", [row.version for row in history], [1, 2, 3, 4, 5, 6])
        same("the next", (await store.remember(remember_of("k", b"", 6))).version, 7)


async def check_limits_of_restore(kit: Kit) -> None:
    """A batch fits up to its limits of rows and bytes; over them, or with a bad name, nothing is written."""
    async with kit.open() as store:
        full = [_fact(f"k{number}") for number in range(MAX_RESTORED)]
        await refused(TooLarge, "too many rows", store.restore([*full, _fact("more")]))
        large = evolve(full[0], value=bytes(MAX_BODY))
        many = [evolve(large, key=f"large{number}") for number in range(MAX_WRITE // MAX_BODY + 1)]
        await refused(TooLarge, "too many bytes", store.restore(many))
        await refused(TooLarge, "a large row", store.restore([evolve(large, value=bytes(MAX_BODY + 1))]))
        await refused(ValueError, "a row twice", store.restore([full[0], full[0]]))
        wrong: tuple[tuple[type[Exception], StoredRow], ...] = (
            (TooLarge, evolve(full[0], key="x" * (MAX_NAME + 1))),
            (ValueError, evolve(full[0], namespace="a\0")),
            (ValueError, evolve(full[0], principal="\ud800")),
            (TooLarge, artifact_of("x" * (MAX_NAME + 1), None)),
            (ValueError, ThreadPart(address=address_of(""), row=ItemsRow(n=0, payload=b""))),
        )
        for error, row in wrong:
            await refused(error, "a bad name", store.restore([full[0], row]))
        same("what is stored", await rows(store, Rows(kind="memory")), ())
        await store.restore(full)
        await store.restore(many[1:])
        stored = len(await rows(store, Rows(kind="memory")))
        same("how many are stored", stored, MAX_RESTORED + len(many) - 1)


RESTORE: tuple[Check, ...] = tuple(
    check_of(check)
    for check in (
        check_rows_by_kind,
        check_paging_rows,
        check_restore,
        check_restored_threads_go_on,
        check_restored_threads_wait_from_now,
        check_restore_again,
        check_restore_at_once,
        check_restore_over_another_row,
        check_restored_threads_come_last,
        check_restored_threads_stay_whole,
        check_restored_memory_in_any_order,
        check_limits_of_restore,
    )
)
