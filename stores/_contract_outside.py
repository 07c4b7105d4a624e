"""Checks: what a commit writes outside of its thread: messages, memory, artifacts, keys, outbox."""

from __future__ import annotations

import asyncio

from attrs import evolve

from ._contract_kit import SECOND, Check, Kit, check_of, refused, rows, same
from ._contract_make import (
    T0,
    WORKSPACE,
    address_of,
    after,
    artifact_of,
    commit_of,
    committed,
    start_of,
    started,
    thread_at,
    write_of,
)
from ._errors import KeyTaken, MemoryMoved
from ._queries import Artifacts, Keys, Memory, Messages, Outbox
from ._records import ArtifactRow, KeyWrite, MemoryCheck, MemoryRow, MessageRow, OutboxRow, ThreadRow
from ._store import Store

EFFECT = "publish"


async def check_session_numbers(kit: Kit) -> None:
    """Messages are numbered by the commit, from 1, without gaps, in the order of the commit that has them."""
    async with kit.open() as store:
        first = await store.start(start_of(messages=(b"a", b"b")))
        same("session_since of the first thread", first.thread.session_since, 0)
        second = await store.start(start_of("t2", messages=(b"c",)))
        same("session_since of the second", second.thread.session_since, 2)
        await committed(store, first.thread, messages=(b"d", b"e"))
        await started(store, "t3", session="another", messages=(b"x",))
        same("session_since of a thread later", (await started(store, "t4")).session_since, 5)
        talk = await rows(store, Messages(workspace=WORKSPACE, session="talk"))
        got = [(row.number, row.payload, row.thread_id) for row in talk]
        wanted = [(1, b"a", "t1"), (2, b"b", "t1"), (3, b"c", "t2"), (4, b"d", "t1"), (5, b"e", "t1")]
        same("the session", got, wanted)
        row = MessageRow(
            workspace=WORKSPACE,
            session="talk",
            number=4,
            thread_id="t1",
            incarnation=first.thread.incarnation,
            principal=first.thread.principal,
            payload=b"d",
            at=T0 + 1,
        )
        same("a row", talk[3], row)


async def check_session_as_a_thread_sees_it(kit: Kit) -> None:
    """A thread sees the session as it stood at its start, then its own messages, in order."""
    async with kit.open() as store:
        first = (await store.start(start_of(messages=(b"a",)))).thread
        second = (await store.start(start_of("t2", messages=(b"b",)))).thread
        await committed(store, first, messages=(b"c",))
        await committed(store, second, messages=(b"d",))
        for thread, wanted in ((first, [b"a", b"c"]), (second, [b"a", b"b", b"d"])):
            query = Messages(
                workspace=WORKSPACE,
                session="talk",
                since=thread.session_since,
                incarnation=thread.incarnation,
            )
            seen = [row.payload for row in await rows(store, query, 1)]
            same(f"what {thread.address.thread_id} sees", seen, wanted)


async def check_session_under_concurrent_commits(kit: Kit) -> None:
    """Commits of many threads to one session at once, on two handles, leave no gap and no number twice."""
    async with kit.open() as one, kit.open() as two:
        threads = [await started(one, f"t{number:02}") for number in range(20)]
        commits = [commit_of(row, messages=(row.incarnation, b"+" + row.incarnation)) for row in threads]
        calls = [(one, two)[number % 2].commit(commit) for number, commit in enumerate(commits)]
        await asyncio.gather(*calls)
        talk = await rows(one, Messages(workspace=WORKSPACE, session="talk"))
        same("numbers", [row.number for row in talk], list(range(1, 41)))
        pairs = [(talk[i].payload, talk[i + 1].payload) for i in range(0, 40, 2)]
        same("messages of a commit", [second for _, second in pairs], [b"+" + first for first, _ in pairs])


async def _memory(store: Store, *, history: bool = False) -> tuple[MemoryRow, ...]:
    return await rows(store, Memory(workspace=WORKSPACE, history=history))


async def check_memory_versions(kit: Kit) -> None:
    """A memory key counts versions from 1; the newest is the fact, the earlier ones its history."""
    async with kit.open() as store:
        thread = await committed(store, await started(store), memory=(write_of("k", b"1", 0),))
        write = evolve(write_of("k", b"2", 1), expires=77)
        thread = await committed(store, thread, "record", memory=(write, write_of("l", b"", 0)))
        newest = await _memory(store)
        same(
            "the newest",
            [(row.key, row.version, row.value) for row in newest],
            [("k", 2, b"2"), ("l", 1, b"")],
        )
        row = MemoryRow(
            workspace=WORKSPACE,
            namespace="customer",
            key="k",
            version=2,
            value=b"2",
            at=T0 + 2,
            thread_id="t1",
            seq=1,
            principal=thread.principal,
            expires=77,
        )
        same("a row", newest[0], row)
        history = [(row.key, row.version, row.value) for row in await _memory(store, history=True)]
        same("the history", history, [("k", 1, b"1"), ("k", 2, b"2"), ("l", 1, b"")])


async def check_memory_deletion(kit: Kit) -> None:
    """A deletion is a version; what is written behind it goes on counting, and history keeps all."""
    async with kit.open() as store:
        thread = await committed(store, await started(store), memory=(write_of("k", b"1", 0),))
        thread = await committed(store, thread, memory=(write_of("k", None, 1),))
        same("the newest", [(row.version, row.value) for row in await _memory(store)], [(2, None)])
        anew = commit_of(thread, memory=(write_of("k", b"3", 0),))
        error = await refused(MemoryMoved, "a write that knows of no version", store.commit(anew))
        same("what it is told", (error.rows, error.missing), (await _memory(store), ()))
        await committed(store, thread, memory=(write_of("k", b"3", 2),))
        history = [(row.version, row.value) for row in await _memory(store, history=True)]
        same("the history", history, [(1, b"1"), (2, None), (3, b"3")])


async def check_memory_expiry(kit: Kit) -> None:
    """An expired row is still the newest: the stamp is kept, and judging it is left to who reads."""
    async with kit.open() as store:
        write = evolve(write_of("k", b"1", 0), expires=kit.clock() + 1)
        thread = await committed(store, await started(store), memory=(write,))
        kit.clock.advance(SECOND)
        same("the newest", [(r.version, r.expires) for r in await _memory(store)], [(1, write.expires)])
        await committed(store, thread, memory=(write_of("k", b"2", 1),))
        same("the next", [(row.version, row.expires) for row in await _memory(store)], [(2, None)])


async def check_memory_moved(kit: Kit) -> None:
    """A write or check over another version than the newest refuses the commit and is told every such key."""
    async with kit.open() as store:
        thread = await started(store)
        thread = await committed(store, thread, memory=(write_of("k", b"1", 0), write_of("l", b"1", 0)))
        newest = await _memory(store)
        check = MemoryCheck(namespace="customer", key="l", version=2)
        gone = MemoryCheck(namespace="customer", key="n", version=1)
        fine = MemoryCheck(namespace="customer", key="k", version=1)
        commit = commit_of(
            thread, memory=(write_of("k", b"2", 0), write_of("m", b"1", 4)), checks=(check, gone)
        )
        error = await refused(MemoryMoved, "a commit over other versions", store.commit(commit))
        same("newest rows it is told", sorted(error.rows, key=lambda row: row.key), list(newest))
        same("keys that are not there", sorted(error.missing), [("customer", "m"), ("customer", "n")])
        early = commit_of(thread, memory=(write_of("k", b"2", 2),))
        error = await refused(MemoryMoved, "a commit over a version to come", store.commit(early))
        same("newest rows it is told", error.rows, newest[:1])
        none = MemoryCheck(namespace="customer", key="new", version=0)
        await committed(store, thread, "record", checks=(fine, none), memory=(write_of("k", b"2", 1),))
        same("versions", [row.version for row in await _memory(store)], [2, 1])


async def check_memory_namespaces(kit: Kit) -> None:
    """One key in two namespaces or workspaces is two keys."""
    async with kit.open() as store:
        memory = (
            write_of("k", b"1", 0),
            write_of("k", b"2", 0, "order"),
            write_of("/k", b"3", 0, "customer"),
        )
        await committed(store, await started(store), memory=memory)
        other = (await store.start(evolve(start_of(), address=address_of(workspace="other")))).thread
        await store.commit(commit_of(other, memory=(write_of("k", b"4", 0),)))
        newest = [(row.namespace, row.key, row.value) for row in await _memory(store)]
        wanted = [("customer", "/k", b"3"), ("customer", "k", b"1"), ("order", "k", b"2")]
        same("acme's memory", newest, wanted)
        same("the other's", [r.value for r in await rows(store, Memory(workspace="other"))], [b"4"])


def _key(action: str, **parts: object) -> KeyWrite:
    given = {"effect": EFFECT, "key": "invoice-7", "action": action, "arguments": b"a", "salt": b"s", **parts}
    return KeyWrite(**given)  # type: ignore[arg-type]


async def _keys(store: Store) -> list[tuple[str, bytes | None]]:
    return [(row.key, row.outcome) for row in await rows(store, Keys(workspace=WORKSPACE, effect=EFFECT))]


async def check_key_claim(kit: Kit) -> None:
    """A key is claimed once in a workspace; the visit that has it may claim it again, to no effect."""
    async with kit.open() as store:
        thread = await committed(store, await started(store), "record", keys=(_key("claim"),))
        row = (await rows(store, Keys(workspace=WORKSPACE, effect=EFFECT)))[0]
        got = (row.workspace, row.effect, row.key, row.arguments, row.salt, row.thread_id, row.incarnation)
        wanted = (WORKSPACE, EFFECT, "invoice-7", b"a", b"s", "t1", thread.incarnation)
        same("the key", got, wanted)
        same(
            "seq, outcome, at, expires", (row.seq, row.outcome, row.at, row.expires), (0, None, T0 + 1, None)
        )
        again = _key("claim", arguments=b"b", salt=b"t", expires=4)
        thread = await committed(store, thread, "record", keys=(again,))
        same("the key claimed again", await rows(store, Keys(workspace=WORKSPACE, effect=EFFECT)), (row,))
        other = commit_of(await started(store, "t2"), "record", keys=(_key("claim"),))
        error = await refused(KeyTaken, "a claim by another thread", store.commit(other))
        same("what it is told", error.row, row)
        thread = await committed(store, thread)
        later = commit_of(thread, "record", keys=(_key("claim"),))
        await refused(KeyTaken, "a claim by another visit", store.commit(later))
        free = _key("claim", effect="another")
        await committed(store, thread, "record", keys=(free, _key("claim", key="invoice-8")))


async def check_key_outcome(kit: Kit) -> None:
    """An outcome is set by the visit that has the key, by its last transition too, and by no other."""
    async with kit.open() as store:
        thread = await committed(store, await started(store), "record", keys=(_key("claim"),))
        stranger = await started(store, "t2")
        await committed(store, stranger, "record", keys=(_key("outcome", outcome=b"no"), _key("free")))
        same("the key after a stranger's outcome", await _keys(store), [("invoice-7", None)])
        outcome = _key("outcome", outcome=b"yes", expires=5)
        thread = await committed(store, thread, keys=(outcome,))
        row = (await rows(store, Keys(workspace=WORKSPACE, effect=EFFECT)))[0]
        same("outcome, expires, at, seq", (row.outcome, row.expires, row.at, row.seq), (b"yes", 5, T0 + 1, 0))
        same("its arguments", (row.arguments, row.salt), (b"a", b"s"))
        await committed(store, thread, "record", keys=(_key("outcome", outcome=b"no"), _key("free")))
        same("the key after another visit's outcome", await _keys(store), [("invoice-7", b"yes")])
        nothing = _key("outcome", key="unclaimed", outcome=b"yes")
        await committed(store, await thread_at(store), "record", keys=(nothing,))
        same("the keys after an outcome for none", await _keys(store), [("invoice-7", b"yes")])


async def check_key_free(kit: Kit) -> None:
    """A freed key may be claimed by anybody, in the same commit too: its writes take effect in order."""
    async with kit.open() as store:
        await committed(store, await started(store, "t0"), "record", keys=(_key("free"),))
        thread = await committed(store, await started(store), "record", keys=(_key("claim"),))
        thread = await committed(store, thread, "record", keys=(_key("free"),))
        same("keys after it was freed", await _keys(store), [])
        keys = (_key("claim"), _key("outcome", outcome=b"1"), _key("free"), _key("claim"))
        other = await committed(store, await started(store, "t2"), "record", keys=keys)
        same("keys after they were claimed anew", await _keys(store), [("invoice-7", None)])
        await refused(KeyTaken, "a claim now", store.commit(commit_of(thread, keys=(_key("claim"),))))
        await committed(store, other, keys=(_key("free"),))
        same("keys after the transition freed it", await _keys(store), [])


async def _artifacts(store: Store) -> tuple[ArtifactRow, ...]:
    return await rows(store, Artifacts(workspace=WORKSPACE))


async def check_artifact_records(kit: Kit) -> None:
    """An artifact's record comes back as it was given; an id that is there already is left as it is."""
    async with kit.open() as store:
        full = artifact_of(
            "a1", derived_from=("a0", "b,'\"\u2603", "a0"), expires=9, media_type="text/plain; charset=utf-8"
        )
        thread = await committed(store, await started(store), "record", artifacts=(full,))
        await committed(store, thread, artifacts=(evolve(full, size_bytes=99), artifact_of("a2")))
        await store.upload(evolve(full, size_bytes=98))
        same("the records", await _artifacts(store), (full, artifact_of("a2")))
        other = evolve(full, workspace="other")
        await store.upload(other)
        same("the record in another workspace", await rows(store, Artifacts(workspace="other")), (other,))


async def check_artifact_drop(kit: Kit) -> None:
    """A commit drops records that its own incarnation put, and leaves those of others."""
    async with kit.open() as store:
        await committed(store, await started(store, "t2"), artifacts=(artifact_of("theirs", "t2"),))
        await store.upload(artifact_of("uploaded", None))
        mine = (artifact_of("mine"), artifact_of("other"))
        thread = await committed(store, await started(store), "record", artifacts=mine)
        dropped = ("mine", "theirs", "uploaded", "none")
        thread = await committed(store, thread, dropped_artifacts=dropped)
        same("what is left", [row.id for row in await _artifacts(store)], ["other", "theirs", "uploaded"])
        await committed(store, thread, artifacts=(artifact_of("mine"),))
        same("records in the end", len(await _artifacts(store)), 4)


async def check_artifact_sources(kit: Kit) -> None:
    """What an artifact was made from finds it, by its record as it stands, not by one that was dropped."""
    async with kit.open() as store:

        async def made_from(source: str) -> list[str]:
            query = Artifacts(workspace=WORKSPACE, derived_from=source)
            return [row.id for row in await rows(store, query)]

        made = artifact_of("made", derived_from=("a", "read:b@0/main/0"))
        thread = await committed(store, await started(store), "record", artifacts=(made,))
        await store.upload(evolve(made, derived_from=("other",)))
        found = [await made_from(source) for source in ("a", "read:b@0/main/0", "other", "made")]
        same("what comes from each", found, [["made"], ["made"], [], []])
        thread = await committed(store, thread, "record", dropped_artifacts=("made",))
        same("what comes from it once it is dropped", await made_from("a"), [])
        await committed(store, thread, artifacts=(evolve(made, derived_from=("other",)),))
        found = [await made_from(source) for source in ("a", "other")]
        same("what comes from each in the end", found, [[], ["made"]])


def _sent(thread: ThreadRow, n: int) -> OutboxRow:
    seq = thread.standing.seq + 1
    return OutboxRow(seq=seq, n=n, target=address_of("other", "else"), kind="signal", payload=b"\0")


async def check_outbox(kit: Kit) -> None:
    """What a thread's commits sent is listed in order, once."""
    async with kit.open() as store:
        thread = await started(store)
        sent: list[OutboxRow] = []
        for _ in range(3):
            entries = (_sent(thread, 0), _sent(thread, 1))
            commit = commit_of(thread, outbox=entries)
            await store.commit(commit)
            await store.commit(commit)
            sent += entries
            thread = after(thread, commit)
        same("the outbox", await rows(store, Outbox(address=address_of()), 4), tuple(sent))
        same("another thread's", await rows(store, Outbox(address=address_of("other", "else"))), ())


OUTSIDE: tuple[Check, ...] = tuple(
    check_of(check)
    for check in (
        check_session_numbers,
        check_session_as_a_thread_sees_it,
        check_session_under_concurrent_commits,
        check_memory_versions,
        check_memory_deletion,
        check_memory_expiry,
        check_memory_moved,
        check_memory_namespaces,
        check_key_claim,
        check_key_outcome,
        check_key_free,
        check_artifact_records,
        check_artifact_drop,
        check_artifact_sources,
        check_outbox,
    )
)
