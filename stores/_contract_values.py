"""Checks: what texts, bodies and handles a store must bear, and which limits hold everywhere."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from attrs import evolve

from ._contract_kit import Check, Kit, check_of, refused, rows, same, snapshot
from ._contract_make import (
    WORKSPACE,
    address_of,
    artifact_of,
    commit_of,
    committed,
    one_claimed,
    request_of,
    sealed,
    signal_of,
    standing_of,
    start_of,
    started,
    thread_at,
    worker_of,
    write_of,
)
from ._errors import StaleClaim, TooLarge
from ._limits import MAX_BODY, MAX_CONSUMED, MAX_ID, MAX_NAME, MAX_OUTSIDE, MAX_WORKSPACE, MAX_WRITE
from ._queries import Inbox, Items, Keys, Log, Memory, Messages, Threads
from ._records import Address, Commit, KeyWrite, OutboxRow, Start
from ._store import Store

NAMES = (
    "caf\u00e9",
    "cafe\u0301",
    "CAF\u00c9",
    "\U0001f600 \u2603",
    "\u202eabc",
    "\u4e2d\u6587/\u05d0",
    "\U00010ffff",
    "a'b\"c;--",
    "50%_[x]*?",
    "..",
    "../x",
    "x ",
    "x",
    " x",
    "X",
    "null",
    "0",
    "00",
    "\uffff",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
)
BODIES = (
    b"",
    b"\0",
    b"a\0b",
    "\U0001f600\0\u2603".encode(),
    b"\xff\xfe\x80",
    b"null",
    bytes(range(256)),
    b"\0" * MAX_BODY,
    sha256(b"x").digest() * (MAX_BODY // 32),
)


async def check_names(kit: Kit) -> None:
    """Names of any characters are kept as they are, tell threads apart, and order by code point."""
    async with kit.open() as store:
        for name in NAMES:
            await store.deliver(evolve(signal_of(name), address=address_of(name)))
            await started(store, name, session=name, principal=name, messages=(name.encode(),))
        threads = await rows(store, Threads(workspace=WORKSPACE), 3)
        same("ids", [row.address.thread_id for row in threads], sorted(NAMES))
        for name in NAMES:
            thread = await thread_at(store, name)
            same(
                "session, principal, since",
                (thread.session, thread.principal, thread.session_since),
                (name, name, 0),
            )
            inbox = await rows(store, Inbox(address=address_of(name)))
            same(f"signals of {name!r}", [row.id for row in inbox], [name])
            talk = await rows(store, Messages(workspace=WORKSPACE, session=name))
            same(f"messages of session {name!r}", [row.payload for row in talk], [name.encode()])


async def check_names_of_memory_and_keys(kit: Kit) -> None:
    """The same holds for memory keys, namespaces, effects, explicit keys and artifact ids."""
    async with kit.open() as store:
        thread = await started(store)
        memory = tuple(write_of(name, name.encode(), 0, name) for name in NAMES)
        keys = tuple(KeyWrite(effect="publish", key=name, action="claim") for name in NAMES)
        effects = tuple(KeyWrite(effect=name, key="k", action="claim") for name in NAMES)
        thread = await committed(store, thread, memory=memory, keys=keys)
        thread = await committed(
            store, thread, keys=effects, artifacts=tuple(artifact_of(name) for name in NAMES)
        )
        facts = await rows(store, Memory(workspace=WORKSPACE), 3)
        same("memory", [(row.namespace, row.key) for row in facts], [(name, name) for name in sorted(NAMES)])
        known = await rows(store, Keys(workspace=WORKSPACE, effect="publish"), 3)
        same("keys", [row.key for row in known], sorted(NAMES))
        for name in NAMES:
            exact = Memory(workspace=WORKSPACE, namespace=name, key=name)
            same(f"memory {name!r}", [row.value for row in await rows(store, exact)], [name.encode()])
            of_effect = await rows(store, Keys(workspace=WORKSPACE, effect=name))
            same(f"keys of effect {name!r}", [row.key for row in of_effect], ["k"])


async def check_bodies(kit: Kit) -> None:
    """Bodies of any bytes, empty ones, NUL and the largest among them, come back as they were given."""
    async with kit.open() as store:
        thread = await started(store)
        for number, body in enumerate(BODIES):
            await store.deliver(signal_of(f"s{number}", payload=body))
            key = KeyWrite(
                effect="publish", key=f"k{number}", action="claim", arguments=body[:32], salt=body[:16]
            )
            done = evolve(key, action="outcome", outcome=body)
            commit = commit_of(
                await thread_at(store),
                "record",
                payload=body,
                items=body,
                messages=(body,),
                memory=(write_of(f"k{number}", body, 0),),
                keys=(key, done),
            )
            await store.commit(commit)
        address = thread.address
        log = await rows(store, Log(address=address), 4)
        same("log", [sha256(row.payload or b"").digest() for row in log[1:]], _digests())
        items = await rows(store, Items(address=address), 4)
        same("items", [sha256(row.payload).digest() for row in items], _digests())
        inbox = await rows(store, Inbox(address=address), 4)
        same("inbox", [sha256(row.payload).digest() for row in inbox], _digests())
        talk = await rows(store, Messages(workspace=WORKSPACE, session="talk"), 4)
        same("messages", [sha256(row.payload).digest() for row in talk], _digests())
        facts = await rows(store, Memory(workspace=WORKSPACE), 4)
        same("memory", [row.value is not None and sha256(row.value).digest() for row in facts], _digests())
        keys = await rows(store, Keys(workspace=WORKSPACE, effect="publish"), 4)
        same(
            "outcomes", [row.outcome is not None and sha256(row.outcome).digest() for row in keys], _digests()
        )


def _digests() -> list[bytes]:
    return [sha256(body).digest() for body in BODIES]


async def check_no_salt(kit: Kit) -> None:
    """No salt, as after a purge, is not the same as an empty one, and an empty payload is one."""
    async with kit.open() as store:
        thread = await started(store)
        for payload, salt in ((b"digest", None), (b"", b"")):
            commit = commit_of(thread)
            log = evolve(commit.log, payload=payload, salt=salt)
            await store.commit(sealed(evolve(commit, log=log)))
            thread = await thread_at(store)
            row = (await rows(store, Log(address=thread.address)))[-1]
            same("payload and salt", (row.payload, row.salt), (payload, salt))


async def _look(store: Store) -> object:
    everything = await rows(store, Threads(), 1000)
    return everything, await snapshot(store, WORKSPACE, ("t1",), "talk", "publish")


def _fits(limit: int) -> tuple[str, ...]:
    """Names at the limit, in letters and in four-byte characters."""
    return "x" * (limit - 1), "x" * limit, "\U0001f600" * (limit // 4)


def _too_long(limit: int) -> tuple[str, ...]:
    return "x" * (limit + 1), "\u00e9" * (limit // 2 + 1), "\U0001f600" * 300, "x" * 3000


NO_NAMES = ("", "a\0b", "\n", "\x7f", "\ud800")
"""Empty, control characters, a lone surrogate."""


def _start_in(workspace: str) -> Start:
    return evolve(start_of(), address=Address(workspace=workspace, thread_id="t1"))


async def check_limits_of_a_start(kit: Kit) -> None:
    """A start's names fit up to one documented limit; over it, or of no valid text, nothing is written."""
    names: tuple[tuple[str, Callable[[str], Start], int], ...] = (
        ("workspace", _start_in, MAX_WORKSPACE),
        ("thread id", lambda text: start_of(text), MAX_ID),
        ("session", lambda text: start_of(session=text), MAX_ID),
        ("principal", lambda text: start_of(principal=text), MAX_NAME),
    )
    async with kit.open() as store:
        before = await _look(store)
        for what, named, limit in names:
            for text in _too_long(limit):
                await refused(TooLarge, f"a {what} of {len(text)} characters", store.start(named(text)))
            for text in NO_NAMES:
                await refused(ValueError, f"a {what} of {text!r}", store.start(named(text)))
            same(f"what is stored after a {what} was refused", await _look(store), before)
        for text in ("a\0b", "\ud800"):
            noted = start_of(standing=standing_of(note=text))
            await refused(ValueError, f"a note of {text!r}", store.start(noted))
        large = evolve(start_of().log, payload=bytes(MAX_BODY + 1))
        await refused(TooLarge, "data over the limit", store.start(evolve(start_of(), log=large)))
        many = start_of(messages=(bytes(MAX_BODY),) * (MAX_WRITE // MAX_BODY), items=b"more")
        await refused(TooLarge, "bodies over the limit", store.start(many))
        same("what is stored", await _look(store), before)


async def check_names_at_the_limit(kit: Kit) -> None:
    """Names that fill their limit are kept whole, in letters and in characters of four bytes."""
    async with kit.open() as store:
        for text in (*_fits(MAX_ID), "x" * 255, "x" * 256):
            await started(store, text, session=text, principal=text[:63])
            thread = await thread_at(store, text)
            same("id and session", (thread.address.thread_id, thread.session), (text, text))
        for text in _fits(MAX_WORKSPACE):
            await store.start(_start_in(text))
            found = await rows(store, Threads(workspace=text))
            same("workspaces", [row.address.workspace for row in found], [text])
        for text in _fits(MAX_NAME):
            same("the signal's id", (await store.deliver(signal_of(text))).row.id, text)
            commit = _named(commit_of(await thread_at(store, "x" * 255), "record"), text)[0]
            await store.commit(sealed(commit))
            known = Memory(workspace=WORKSPACE, namespace=text, key=text)
            same("the memory key", len(await rows(store, known)), 1)


async def check_limits_of_a_signal(kit: Kit) -> None:
    """The same for a signal: its id, its address and its payload."""
    async with kit.open() as store:
        await started(store)
        before = await _look(store)
        for text in _too_long(MAX_NAME):
            await refused(TooLarge, f"an id of {len(text)} characters", store.deliver(signal_of(text)))
        for text in _too_long(MAX_ID):
            await refused(TooLarge, "a long thread id", store.deliver(signal_of(thread_id=text)))
        for text in NO_NAMES:
            await refused(ValueError, f"the id {text!r}", store.deliver(signal_of(text)))
        large = evolve(signal_of(), payload=bytes(MAX_BODY + 1))
        await refused(TooLarge, "a payload over the limit", store.deliver(large))
        same("what is stored", await _look(store), before)


def _sent(count: int) -> tuple[OutboxRow, ...]:
    return tuple(OutboxRow(seq=1, n=n, target=address_of(), kind="k", payload=b"") for n in range(count))


async def check_limits_of_a_commit(kit: Kit) -> None:
    """The same for a commit: names, bodies, how many signals and outside writes; no memory key is written
    twice."""
    async with kit.open() as store:
        thread = await started(store)
        before = await _look(store)
        base = commit_of(thread)
        wrong: list[tuple[type[Exception], Commit]] = [
            (TooLarge, evolve(base, outbox=_sent(MAX_OUTSIDE + 1))),
            (TooLarge, evolve(base, outbox=_sent(MAX_OUTSIDE), messages=(b"",))),
            (TooLarge, evolve(base, consumed=tuple(range(1, MAX_CONSUMED + 2)))),
            (TooLarge, evolve(base, log=evolve(base.log, payload=bytes(MAX_BODY + 1)))),
            (TooLarge, evolve(base, items=bytes(MAX_BODY + 1))),
            (TooLarge, evolve(base, messages=(bytes(MAX_BODY + 1),))),
            (TooLarge, evolve(base, memory=(write_of("k", bytes(MAX_BODY + 1), 0),))),
            (TooLarge, evolve(base, messages=(bytes(MAX_BODY),) * (MAX_WRITE // MAX_BODY))),
            (ValueError, evolve(base, memory=(write_of("k", b"", 0), write_of("k", b"", 1)))),
        ]
        for text in _too_long(MAX_NAME):
            wrong += [(TooLarge, spoiled) for spoiled in _named(base, text)]
        for text in NO_NAMES:
            wrong += [(ValueError, spoiled) for spoiled in _named(base, text)]
        for text in ("a\0b", "\ud800"):
            wrong.append((ValueError, evolve(base, standing=evolve(base.standing, note=text))))
        for kind, commit in wrong:
            await refused(kind, "a commit over a limit", store.commit(commit))
        same("what is stored", await _look(store), before)
        thread = await committed(store, thread, outbox=_sent(MAX_OUTSIDE))
        half = bytes(MAX_BODY // 2)
        whole = commit_of(
            thread, payload=half, items=half, messages=(bytes(MAX_BODY),) * (MAX_WRITE // MAX_BODY - 1)
        )
        await store.commit(whole)
        await refused(StaleClaim, "one position twice", store.commit(commit_of(thread)))


def _named(commit: Commit, text: str) -> list[Commit]:
    """The commit with this name in each of the places that take one."""
    key = KeyWrite(effect="publish", key=text, action="claim")
    return [
        evolve(
            commit,
            memory=(write_of(text, b"", 0, text),),
            keys=(key, evolve(key, effect=text)),
            artifacts=(artifact_of(text),),
        ),
        evolve(commit, memory=(write_of(text, b"", 0),)),
        evolve(commit, memory=(write_of("k", b"", 0, text),)),
        evolve(commit, keys=(key,)),
        evolve(commit, keys=(evolve(key, effect=text, key="k"),)),
        evolve(commit, artifacts=(artifact_of(text),)),
    ]


async def check_limits_of_an_upload(kit: Kit) -> None:
    """The same for an artifact's record."""
    async with kit.open() as store:
        before = await _look(store)
        for text in _too_long(MAX_NAME):
            await refused(TooLarge, "a long id", store.upload(artifact_of(text, None)))
            await refused(TooLarge, "a long principal", store.upload(artifact_of("a", None, principal=text)))
            await refused(
                TooLarge, "a long media type", store.upload(artifact_of("a", None, media_type=text))
            )
        await refused(TooLarge, "a long workspace", store.upload(artifact_of("a", None, workspace="w" * 129)))
        await refused(ValueError, "an id with a NUL", store.upload(artifact_of("a\0", None)))
        same("what is stored", await _look(store), before)


async def check_handles_on_the_same_data(kit: Kit) -> None:
    """What one handle wrote, another on the same data sees when the write returns; both are fenced alike."""
    async with kit.open() as one, kit.open() as two:
        await one.beat(worker_of("w1"))
        thread = await started(one)
        same("the thread through the other handle", await thread_at(two), thread)
        again = await two.start(start_of())
        same("the same start there", (again.created, again.thread), (True, thread))
        await two.deliver(signal_of())
        same("the same signal here", (await one.deliver(signal_of())).new, False)
        commit = commit_of(await thread_at(one), consumed=(1,), memory=(write_of("k", b"1", 0),))
        await one.commit(commit)
        await two.commit(commit)
        same("claims there", (await two.claim(request_of("w2"))).claims, ())
        taken = (await one_claimed(two, request_of("w2", dead=("w1",)))).thread
        late = commit_of(evolve(taken, epoch=1))
        await refused(StaleClaim, "the former claim here", one.commit(late))
        await committed(two, taken)
        same("the thread through both", await thread_at(one), await thread_at(two))


async def check_reopen(kit: Kit) -> None:
    """Everything written is there, the same, when all handles were closed and the data is opened again."""
    async with kit.open() as store:
        await store.beat(worker_of("w1"))
        await store.deliver(signal_of())
        thread = (await store.start(start_of(items=b"i", messages=(b"m",)))).thread
        await committed(
            store,
            thread,
            memory=(write_of("k", b"1", 0),),
            artifacts=(artifact_of("a"),),
            keys=(KeyWrite(effect="publish", key="k", action="claim"),),
            outbox=_sent(1),
            consumed=(1,),
        )
        before = await _look(store)
    async with kit.open() as store:
        same("what is stored", await _look(store), before)
        await committed(store, await thread_at(store))
        claim = await one_claimed(store, request_of("w2", dead=("w1",)))
        same("taken from, positions", (claim.taken_from, [row.n for row in claim.log]), ("w1", [0, 1, 2]))


VALUES: tuple[Check, ...] = tuple(
    check_of(check)
    for check in (
        check_names,
        check_names_of_memory_and_keys,
        check_bodies,
        check_no_salt,
        check_limits_of_a_start,
        check_names_at_the_limit,
        check_limits_of_a_signal,
        check_limits_of_a_commit,
        check_limits_of_an_upload,
        check_handles_on_the_same_data,
        check_reopen,
    )
)
