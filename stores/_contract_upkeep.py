"""Checks: what is asked outside of any thread: memory written there, and the end of what has had its time."""

from __future__ import annotations

import asyncio
from typing import Any

from attrs import evolve

from ._contract_kit import SECOND, Check, Kit, Snapshot, check_of, refused, rows, same, snapshot
from ._contract_make import (
    T0,
    WORKSPACE,
    artifact_of,
    commit_of,
    committed,
    remember_of,
    started,
    thread_at,
    write_of,
)
from ._errors import MemoryMoved, TooLarge
from ._limits import MAX_BODY, MAX_ID, MAX_NAME, MAX_SOURCES, MAX_WORKSPACE
from ._outside import Expire, Expired
from ._queries import Artifacts, Keys, Memory
from ._records import KeyWrite, MemoryCheck, MemoryRow
from ._store import Store

EFFECT = "publish"


async def _history(store: Store) -> tuple[MemoryRow, ...]:
    return await rows(store, Memory(workspace=WORKSPACE, history=True))


async def _versions(store: Store) -> list[tuple[str, int, bytes | None]]:
    return [(row.key, row.version, row.value) for row in await _history(store)]


async def _look(store: Store) -> Snapshot:
    return await snapshot(store, WORKSPACE, ("t1", "t2"), "talk", EFFECT)


async def check_remember(kit: Kit) -> None:
    """A memory write outside of any thread is the key's next version, stamped by the store's clock."""
    async with kit.open() as store:
        await committed(store, await started(store), memory=(write_of("k", b"1", 0),))
        kit.clock.advance(SECOND)
        write = remember_of("k", b"2", 1, expires=99)
        row = MemoryRow(
            workspace=WORKSPACE,
            namespace="customer",
            key="k",
            version=2,
            value=b"2",
            at=kit.clock(),
            thread_id=None,
            seq=None,
            principal="ada",
            expires=99,
            request=write.id,
        )
        same("the answer", await store.remember(write), row)
        same("the newest", await rows(store, Memory(workspace=WORKSPACE)), (row,))
        await store.remember(remember_of("k", None, None))
        await store.remember(remember_of("k", b"4", None))
        await store.remember(remember_of("l", b"", None))
        wanted = [("k", 1, b"1"), ("k", 2, b"2"), ("k", 3, None), ("k", 4, b"4"), ("l", 1, b"")]
        same("the history", await _versions(store), wanted)
        await committed(store, await thread_at(store), memory=(write_of("l", b"x", 1),))


async def check_remember_over_another_version(kit: Kit) -> None:
    """Where the newest version is not the one that is expected, nothing is written and it is told."""
    async with kit.open() as store:
        first = await store.remember(remember_of("k", b"1", 0))
        for expected in (0, 2, -1):
            write = remember_of("k", b"2", expected)
            error = await refused(MemoryMoved, f"a write over {expected}", store.remember(write))
            same("what it is told", (error.rows, error.missing), ((first,), ()))
        error = await refused(MemoryMoved, "a write over none", store.remember(remember_of("n", b"", 1)))
        same("what it is told of none", (error.rows, error.missing), ((), (("customer", "n"),)))
        same("the history", await _history(store), (first,))
        await committed(store, await started(store), memory=(write_of("k", b"2", 1),))
        await refused(MemoryMoved, "a write after a commit", store.remember(remember_of("k", b"3", 1)))
        await store.remember(remember_of("k", b"3", 2))
        stale = commit_of(await thread_at(store), memory=(write_of("k", b"4", 2),))
        await refused(MemoryMoved, "a commit after a write", store.commit(stale))
        read = MemoryCheck(namespace="customer", key="k", version=2)
        stale = commit_of(await thread_at(store), checks=(read,))
        await refused(MemoryMoved, "a check after a write", store.commit(stale))


async def check_remember_sent_again(kit: Kit) -> None:
    """A write sent again is the version that it made, whatever came after it; another id is another write."""
    async with kit.open() as store:
        write, anyhow = remember_of("k", b"1", 0), remember_of("k", b"2", None)
        first, second = await store.remember(write), await store.remember(anyhow)
        await store.remember(remember_of("k", b"3", 2))
        kit.clock.advance(SECOND)
        same("the first sent again", await store.remember(write), first)
        same("the second sent again", await store.remember(anyhow), second)
        wanted = [("k", 1, b"1"), ("k", 2, b"2"), ("k", 3, b"3")]
        same("the history", await _versions(store), wanted)
        await store.remember(evolve(anyhow, id="another"))
        await store.remember(evolve(write, key="l"))
        await store.remember(evolve(write, namespace="order"))
        same("versions", [row.version for row in await _history(store)], [1, 2, 3, 4, 1, 1])


async def check_remember_by_many(kit: Kit) -> None:
    """Of writes over one version at once, on two handles, one wins; those over any version all land."""
    async with kit.open() as one, kit.open() as two:
        writes = [remember_of("k", b"%d" % n, 0) for n in range(8)]
        calls = [(one, two)[n % 2].remember(write) for n, write in enumerate(writes)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        won = [answer for answer in answers if isinstance(answer, MemoryRow)]
        same("how many won, and their version", [row.version for row in won], [1])
        same("the others", {type(answer) for answer in answers if answer not in won}, {MemoryMoved})
        more = [(one, two)[n % 2].remember(remember_of("k", b"", None)) for n in range(8)]
        versions = sorted(row.version for row in await asyncio.gather(*more))
        same("versions of those over any", versions, list(range(2, 10)))


async def check_limits_of_remember(kit: Kit) -> None:
    """A memory write's names and value fit up to the limits; over them nothing is written."""
    async with kit.open() as store:
        good = remember_of("k", b"", None)
        limits = {"workspace": MAX_WORKSPACE, "namespace": MAX_NAME, "key": MAX_NAME}
        limits |= {"principal": MAX_NAME, "id": MAX_NAME}
        for part, limit in limits.items():
            wrong: dict[str, Any] = {part: "x" * (limit + 1)}
            await refused(TooLarge, f"a long {part}", store.remember(evolve(good, **wrong)))
            for text in ("", "a\0", "\ud800"):
                wrong = {part: text}
                await refused(ValueError, f"{part} {text!r}", store.remember(evolve(good, **wrong)))
        large = evolve(good, value=bytes(MAX_BODY + 1))
        await refused(TooLarge, "a value over the limit", store.remember(large))
        same("what is stored", await _history(store), ())
        longest = evolve(good, namespace="n" * MAX_NAME, key="k" * MAX_NAME, id="i" * MAX_NAME)
        same("a write at the limit", (await store.remember(longest)).version, 1)


async def check_limits_of_sources(kit: Kit) -> None:
    """An artifact names at most so many sources, of at most so many bytes; over that nothing is written."""
    async with kit.open() as store:
        full = artifact_of("a", None, derived_from=tuple(f"s{n}" for n in range(MAX_SOURCES)))
        many = evolve(full, derived_from=(*full.derived_from, "one more"))
        await refused(TooLarge, "too many sources", store.upload(many))
        await refused(TooLarge, "a long source", store.upload(evolve(full, derived_from=("x" * 513,))))
        await refused(ValueError, "an empty source", store.upload(evolve(full, derived_from=("",))))
        commit = commit_of(await started(store), artifacts=(many,))
        await refused(TooLarge, "a commit of too many sources", store.commit(commit))
        same("what is stored", await rows(store, Artifacts(workspace=WORKSPACE)), ())
        longest = evolve(full, id="b", derived_from=("x" * MAX_ID,))
        await store.upload(full)
        await store.upload(longest)
        same("records at the limit", await rows(store, Artifacts(workspace=WORKSPACE)), (full, longest))


async def _stage(store: Store) -> None:
    """Of three kinds a record that expires at T0 + 5, one that expires later, and one that never does.

    Beside them what looks like them and stays: a thread's artifact, and a key without an outcome.
    """
    stamps = {"early": T0 + 5, "late": T0 + 6, "never": None}
    for name, expires in stamps.items():
        await store.remember(remember_of(name, b"1", 0, expires=expires))
        await store.upload(artifact_of(name, None, expires=expires, derived_from=("source",)))
    claims = tuple(
        KeyWrite(effect=EFFECT, key=name, action="claim", expires=T0) for name in (*stamps, "open")
    )
    outcomes = tuple(
        KeyWrite(effect=EFFECT, key=name, action="outcome", outcome=b"", expires=expires)
        for name, expires in stamps.items()
    )
    mine = artifact_of("mine", expires=T0 + 5)
    await committed(
        store, await started(store), "record", keys=(*claims, *outcomes), artifacts=(mine,), items=b"i"
    )


async def _names(store: Store) -> tuple[list[str], list[str], list[str]]:
    facts = [row.key for row in await rows(store, Memory(workspace=WORKSPACE)) if row.value is not None]
    files = [row.id for row in await rows(store, Artifacts(workspace=WORKSPACE))]
    keys = [row.key for row in await rows(store, Keys(workspace=WORKSPACE, effect=EFFECT))]
    return facts, files, keys


async def check_expire(kit: Kit) -> None:
    """What has had its time goes, kind by kind, at its time and not before; the rest stays as it is."""
    async with kit.open() as store:
        await _stage(store)
        before = await _look(store)
        none = Expired(memory=0, artifacts=0, keys=0)
        same("what expires early", await store.expire(Expire(at=T0 + 4, limit=100)), none)
        same("what is stored then", await _look(store), before)
        one = Expired(memory=1, artifacts=1, keys=1)
        dry = Expire(at=T0 + 5, limit=100, dry_run=True)
        same("what would expire", await store.expire(dry), one)
        same("what is stored then", await _look(store), before)
        same("what expires", await store.expire(Expire(at=T0 + 5, limit=100)), one)
        left = (["late", "never"], ["late", "never", "mine"], ["late", "never", "open"])
        same("what is left", tuple(sorted(names) for names in await _names(store)), _sorted(left))
        made = await rows(store, Artifacts(workspace=WORKSPACE, derived_from="source"))
        same("what is made from the source", sorted(row.id for row in made), ["late", "never"])
        after = await _look(store)
        same(
            "the thread", (after.threads, after.log, after.items), (before.threads, before.log, before.items)
        )
        same("what expires again", await store.expire(Expire(at=T0 + 5, limit=100)), none)
        same("what expires in the end", await store.expire(Expire(at=T0 + 10**9, limit=100)), one)


def _sorted(names: tuple[list[str], ...]) -> tuple[list[str], ...]:
    return tuple(sorted(some) for some in names)


async def check_expire_in_batches(kit: Kit) -> None:
    """One call takes at most its limit, of all kinds together, and several calls take all."""
    async with kit.open() as store:
        await _stage(store)
        for number in range(3):
            await store.remember(remember_of(f"k{number}", b"1", 0, expires=T0))
            await store.upload(artifact_of(f"a{number}", None, expires=T0))
        sizes = [(await store.expire(Expire(at=T0 + 5, limit=4))).total for _ in range(4)]
        same("how many each call took", sizes, [4, 4, 1, 0])
        left = (["late", "never"], ["late", "never", "mine"], ["late", "never", "open"])
        same("what is left", _sorted(await _names(store)), _sorted(left))
        for limit in (0, -1):
            await refused(ValueError, f"a limit of {limit}", store.expire(Expire(at=T0, limit=limit)))


async def check_expire_keeps_count(kit: Kit) -> None:
    """An expired version goes; a key's newest stays as a deletion, and what is put over it counts on."""
    async with kit.open() as store:
        for version, expires in enumerate((T0, None, T0)):
            await store.remember(remember_of("k", b"x", version, expires=expires))
        newest = (await _history(store))[-1]
        same("what expires", (await store.expire(Expire(at=T0, limit=100))).memory, 2)
        same("the history", await _versions(store), [("k", 2, b"x"), ("k", 3, None)])
        gone = evolve(newest, value=None, expires=None)
        same("the newest", await rows(store, Memory(workspace=WORKSPACE)), (gone,))
        anew = commit_of(await started(store), memory=(write_of("k", b"4", 0),))
        await refused(MemoryMoved, "a commit that knows of no version", store.commit(anew))
        await refused(MemoryMoved, "a write that knows of none", store.remember(remember_of("k", b"4", 0)))
        await store.remember(remember_of("k", b"4", 3))
        same("the history", await _versions(store), [("k", 2, b"x"), ("k", 3, None), ("k", 4, b"4")])


async def check_expire_beside_writes(kit: Kit) -> None:
    """A write over an expired version, and the end of that one at the same moment, leave the write newest."""
    async with kit.open() as one, kit.open() as two:
        for number in range(8):
            key = f"k{number}"
            await one.remember(remember_of(key, b"1", 0, expires=T0))
            write = remember_of(key, b"2", 1)
            await asyncio.gather(one.remember(write), two.expire(Expire(at=T0, limit=100)))
            newest = await rows(two, Memory(workspace=WORKSPACE, key=key))
            same("the newest", [(row.version, row.value) for row in newest], [(2, b"2")])


UPKEEP: tuple[Check, ...] = tuple(
    check_of(check)
    for check in (
        check_remember,
        check_remember_over_another_version,
        check_remember_sent_again,
        check_remember_by_many,
        check_limits_of_remember,
        check_limits_of_sources,
        check_expire,
        check_expire_in_batches,
        check_expire_keeps_count,
        check_expire_beside_writes,
    )
)
