"""Checks: a commit lands whole or not at all, part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, frozen

from ._contract_kit import Check, Kit, Snapshot, check_of, refused, same, snapshot
from ._contract_make import (
    T0,
    WORKSPACE,
    address_of,
    artifact_of,
    commit_of,
    committed,
    sealed,
    signal_of,
    standing_of,
    started,
    thread_at,
    write_of,
)
from ._errors import KeyTaken, MemoryMoved, StaleClaim, StoreError, TooLarge
from ._limits import MAX_OUTSIDE
from ._records import Commit, KeyWrite, MemoryCheck, OutboxRow, ThreadRow
from ._store import Store

EFFECT = "publish"


@frozen(kw_only=True)
class Part:
    """One part of a commit: what to give, and where it is seen, before and after."""

    name: str
    give: Mapping[str, Any]
    look: Callable[[Snapshot], object]
    before: object
    after: object


def _sent(n: int = 0) -> OutboxRow:
    return OutboxRow(seq=1, n=n, target=address_of("t3"), kind="ended", payload=b"out")


def _new_state(snap: Snapshot) -> object:
    return [(row.standing.state, row.standing.note) for row in snap.threads if row.address == address_of()]


PARTS: tuple[Part, ...] = (
    Part(
        name="log",
        give={},
        look=lambda s: [(row.n, row.payload) for row in s.log if row.kind == "transition"],
        before=[],
        after=[(2, b"step")],
    ),
    Part(
        name="standing",
        give={"standing": standing_of(seq=1, state="drafting", version=1, note="on its way")},
        look=_new_state,
        before=[("loading", None)],
        after=[("drafting", "on its way")],
    ),
    Part(
        name="consumed",
        give={"consumed": (1,)},
        look=lambda s: [row.consumed for row in s.inbox],
        before=[None, None],
        after=[1, None],
    ),
    Part(
        name="items",
        give={"items": b"items"},
        look=lambda s: [(row.n, row.payload) for row in s.items],
        before=[],
        after=[(2, b"items")],
    ),
    Part(
        name="messages",
        give={"messages": (b"m1", b"m2")},
        look=lambda s: [(row.number, row.payload) for row in s.messages],
        before=[],
        after=[(1, b"m1"), (2, b"m2")],
    ),
    Part(
        name="memory",
        give={"memory": (write_of("new", b"fact", 0), write_of("old", None, 1))},
        look=lambda s: [(row.key, row.version, row.value) for row in s.memory],
        before=[("old", 1, b"known"), ("taken", 1, b"other")],
        after=[("new", 1, b"fact"), ("old", 1, b"known"), ("old", 2, None), ("taken", 1, b"other")],
    ),
    Part(
        name="artifacts",
        give={"artifacts": (artifact_of("a2"),)},
        look=lambda s: [row.id for row in s.artifacts],
        before=["a1"],
        after=["a1", "a2"],
    ),
    Part(
        name="dropped_artifacts",
        give={"dropped_artifacts": ("a1",)},
        look=lambda s: [row.id for row in s.artifacts],
        before=["a1"],
        after=[],
    ),
    Part(
        name="keys_claimed",
        give={"keys": (KeyWrite(effect=EFFECT, key="new", action="claim", arguments=b"a", salt=b"s"),)},
        look=lambda s: [row.key for row in s.keys],
        before=["ours", "taken"],
        after=["new", "ours", "taken"],
    ),
    Part(
        name="keys_outcome",
        give={"keys": (KeyWrite(effect=EFFECT, key="ours", action="outcome", outcome=b"done", expires=T0),)},
        look=lambda s: [(row.key, row.outcome, row.expires) for row in s.keys],
        before=[("ours", None, None), ("taken", None, None)],
        after=[("ours", b"done", T0), ("taken", None, None)],
    ),
    Part(
        name="keys_freed",
        give={"keys": (KeyWrite(effect=EFFECT, key="ours", action="free"),)},
        look=lambda s: [row.key for row in s.keys],
        before=["ours", "taken"],
        after=["taken"],
    ),
    Part(
        name="outbox",
        give={"outbox": (_sent(0), _sent(1))},
        look=lambda s: [(row.n, row.payload) for row in s.outbox],
        before=[],
        after=[(0, b"out"), (1, b"out")],
    ),
)


async def _stage(store: Store) -> ThreadRow:
    """Thread t1 in visit 0 with two signals, a key, an artifact and a fact; t2 with a key and a fact."""
    thread = await started(store)
    for id_ in ("s1", "s2"):
        await store.deliver(signal_of(id_))
    await committed(
        store,
        await thread_at(store),
        "record",
        keys=(KeyWrite(effect=EFFECT, key="ours", action="claim", arguments=b"a", salt=b"s"),),
        artifacts=(artifact_of("a1"),),
        memory=(write_of("old", b"known", 0),),
    )
    await committed(
        store,
        await started(store, "t2"),
        "record",
        keys=(KeyWrite(effect=EFFECT, key="taken", action="claim", arguments=b"a", salt=b"s"),),
        memory=(write_of("taken", b"other", 0),),
    )
    return await thread_at(store, thread.address.thread_id)


async def _look(store: Store) -> Snapshot:
    return await snapshot(store, WORKSPACE, ("t1", "t2"), "talk", EFFECT)


def _spoiled(commit: Commit) -> list[tuple[str, type[StoreError], Commit]]:
    """The commit with one thing wrong, and what refuses it."""
    taken = KeyWrite(effect=EFFECT, key="taken", action="claim", arguments=b"a", salt=b"s")
    too_many = tuple(_sent(n) for n in range(MAX_OUTSIDE + 1))
    log = commit.log
    wrong: list[tuple[str, type[StoreError], Commit]] = [
        ("an older epoch", StaleClaim, evolve(commit, epoch=commit.epoch - 1)),
        ("a later epoch", StaleClaim, evolve(commit, epoch=commit.epoch + 1)),
        ("a position that is taken", StaleClaim, evolve(commit, log=evolve(log, n=log.n - 1))),
        ("a position too far on", StaleClaim, evolve(commit, log=evolve(log, n=log.n + 1))),
        ("another incarnation", StaleClaim, evolve(commit, incarnation=b"another".ljust(16))),
        ("a thread that is not there", StaleClaim, evolve(commit, address=address_of("t9"))),
        (
            "a memory write over another version",
            MemoryMoved,
            evolve(commit, memory=(*commit.memory, write_of("taken", b"mine", 0))),
        ),
        (
            "a check of another version",
            MemoryMoved,
            evolve(commit, checks=(MemoryCheck(namespace="customer", key="taken", version=2),)),
        ),
        ("a key of another thread", KeyTaken, evolve(commit, keys=(*commit.keys, taken))),
        ("too many outside writes", TooLarge, evolve(commit, outbox=too_many)),
    ]
    return [
        (what, kind, sealed(evolve(spoiled, log=evolve(spoiled.log, epoch=spoiled.epoch))))
        for what, kind, spoiled in wrong
    ]


def _atomic(part: Part) -> Check:
    async def body(kit: Kit) -> None:
        async with kit.open() as store:
            commit = commit_of(await _stage(store), **part.give)
            before = await _look(store)
            same(f"{part.name} before the commit", part.look(before), part.before)
            for what, kind, spoiled in _spoiled(commit):
                await refused(kind, f"a commit with {what}", store.commit(spoiled))
                same(f"what is stored after a commit refused for {what}", await _look(store), before)
            await store.commit(commit)
            same(f"{part.name} after the commit", part.look(await _look(store)), part.after)

    return Check(
        name=f"atomic_{part.name}",
        promise=f"A refused commit leaves nothing of its {part.name}, and an accepted one all of it.",
        body=body,
    )


async def check_atomic_whole(kit: Kit) -> None:
    """A commit with every part at once leaves nothing when refused and everything when accepted."""
    give: dict[str, Any] = {}
    for part in PARTS:
        for name, value in part.give.items():
            give[name] = (
                value if name == "standing" else (*give.get(name, ()), *value) if name != "items" else value
            )
    async with kit.open() as store:
        commit = commit_of(await _stage(store), **give)
        before = await _look(store)
        for what, kind, spoiled in _spoiled(commit):
            await refused(kind, f"a whole commit with {what}", store.commit(spoiled))
            same(f"what is stored after a whole commit refused for {what}", await _look(store), before)
        await store.commit(commit)
        after = await _look(store)
        for part in PARTS:
            if part.name not in ("artifacts", "dropped_artifacts") and not part.name.startswith("keys"):
                same(f"{part.name} after the whole commit", part.look(after), part.after)
        same("artifacts after the whole commit", [row.id for row in after.artifacts], ["a2"])
        same("keys after the whole commit", [row.key for row in after.keys], ["new", "taken"])


ATOMIC: tuple[Check, ...] = (*(_atomic(part) for part in PARTS), check_of(check_atomic_whole))
