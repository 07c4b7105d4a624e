"""Checks: commits are fenced, repeatable, independent of each other and of their callers' patience."""

from __future__ import annotations

import asyncio

from attrs import evolve

from ._contract_kit import Check, Kit, check_of, refused, rows, same
from ._contract_make import (
    WORKSPACE,
    address_of,
    after,
    artifact_of,
    commit_of,
    committed,
    request_of,
    sealed,
    start_of,
    started,
    thread_at,
    worker_of,
    write_of,
)
from ._errors import KeyTaken, MemoryMoved, StaleClaim, TooLarge
from ._limits import MAX_BODY
from ._queries import Artifacts, Log, Memory, Messages
from ._records import Commit, KeyWrite, Release, ThreadRow
from ._store import Store


async def _taken_over(store: Store, by: str = "w2") -> ThreadRow:
    """Thread t1, claimed by another worker since its own is dead."""
    claimed = await store.claim(request_of(by, dead=("w1",)))
    same("the threads taken over", [claim.thread.address for claim in claimed.claims], [address_of()])
    return claimed.claims[0].thread


async def check_commit_at_a_stale_epoch(kit: Kit) -> None:
    """Once another worker has claimed a thread, nothing that the former one sends lands."""
    async with kit.open() as store:
        await store.beat(worker_of("w1"))
        former = await started(store)
        thread = await _taken_over(store)
        await refused(StaleClaim, "a transition of the former worker", store.commit(commit_of(former)))
        intent = commit_of(former, "record")
        await refused(StaleClaim, "an intent of the former worker", store.commit(intent))
        same("the thread after both", await thread_at(store), thread)
        thread = await committed(store, thread)
        mixed = commit_of(evolve(thread, epoch=former.epoch))
        await refused(StaleClaim, "a former epoch at the right position", store.commit(mixed))
        same("positions in the log", [row.n for row in await rows(store, Log(address=address_of()))], [0, 1])


async def check_commit_at_a_stale_position(kit: Kit) -> None:
    """Two commits for one position, at one epoch: the second is refused, and so is one that leaves a gap."""
    async with kit.open() as store:
        thread = await started(store)
        await store.commit(commit_of(thread, payload=b"first"))
        await refused(StaleClaim, "another commit there", store.commit(commit_of(thread, payload=b"second")))
        gap = commit_of(evolve(thread, n=3))
        await refused(StaleClaim, "a commit behind a gap", store.commit(gap))
        log = await rows(store, Log(address=address_of()))
        same("payloads in the log", [row.payload for row in log], [b"start", b"first"])


async def check_commit_of_another_incarnation(kit: Kit) -> None:
    """A commit for a thread that had this id before does not land on the one that has it now."""
    async with kit.open() as store:
        thread = await started(store)
        other = commit_of(evolve(thread, incarnation=b"x" * 16))
        await refused(StaleClaim, "another incarnation", store.commit(other))
        nowhere = evolve(other, address=address_of("nobody"))
        await refused(StaleClaim, "a thread that never started", store.commit(nowhere))
        same("the thread", await thread_at(store), thread)


async def check_commit_without_a_claim(kit: Kit) -> None:
    """A worker that gave its claim up, by a commit or a release, has none, also while nobody took it."""
    async with kit.open() as store:
        thread = await committed(store, await started(store), release=True)
        same("owner and epoch after a releasing commit", (thread.owner, thread.epoch), (None, 1))
        await refused(StaleClaim, "a commit after the claim was given up", store.commit(commit_of(thread)))
        other = await started(store, "t2")
        await store.release([_release(other)])
        await refused(StaleClaim, "a commit after a release", store.commit(commit_of(other)))
        unclaimed = await started(store, "t3", owner=None)
        await refused(StaleClaim, "a commit to a thread nobody claimed", store.commit(commit_of(unclaimed)))


def _release(thread: ThreadRow) -> Release:
    return Release(
        address=thread.address,
        incarnation=thread.incarnation,
        epoch=thread.epoch,
        status="running",
        wake=None,
        inbox_seen=thread.inbox,
    )


async def check_commit_sets_the_thread(kit: Kit) -> None:
    """After a commit the thread's row is what the commit said, one position further."""
    async with kit.open() as store:
        before = await started(store)
        commit = commit_of(before, status="waiting", wake=5, release=True)
        standing = evolve(
            commit.standing,
            state="review",
            version=2,
            definition="d2",
            base=1,
            reason="r",
            note="n",
            expires=9,
        )
        commit = sealed(evolve(commit, standing=standing))
        await store.commit(commit)
        wanted = evolve(
            before, standing=standing, n=2, owner=None, head=commit.log.head, updated=commit.log.at
        )
        same("the thread", await thread_at(store), wanted)
        log = await rows(store, Log(address=address_of()))
        same("the log row", log[1:], (commit.log,))
        same("log rows of the visit", await rows(store, Log(address=address_of(), seq=1)), (commit.log,))
        same("log rows of visit 0", await rows(store, Log(address=address_of(), seq=0)), log[:1])


def _full(thread: ThreadRow) -> Commit:
    return commit_of(
        thread,
        items=b"items",
        messages=(b"m",),
        memory=(write_of("k", b"v", 0),),
        artifacts=(artifact_of("a"),),
        keys=(KeyWrite(effect="publish", key="k", action="claim"),),
    )


async def _count(store: Store) -> tuple[int, int, int, int]:
    return (
        len(await rows(store, Log(address=address_of()))),
        len(await rows(store, Messages(workspace=WORKSPACE, session="talk"))),
        len(await rows(store, Memory(workspace=WORKSPACE, history=True))),
        len(await rows(store, Artifacts(workspace=WORKSPACE))),
    )


async def check_commit_sent_again(kit: Kit) -> None:
    """The identical commit sent again is a no-op: at once, after later commits, and after the epoch moved."""
    async with kit.open() as store:
        commit = _full(await started(store))
        await store.commit(commit)
        thread = await thread_at(store)
        await store.commit(commit)
        same("the thread after the commit was sent again", await thread_at(store), thread)
        thread = await committed(store, thread)
        await store.commit(commit)
        same("the thread after it was sent behind a later one", await thread_at(store), thread)
        taken = await _taken_over(store)
        await store.commit(commit)
        same("the thread after it was sent at a former epoch", await thread_at(store), taken)
        thread = await committed(store, taken)
        await store.commit(commit)
        same("the thread in the end", await thread_at(store), thread)
        same("rows in log, messages, memory and artifacts", await _count(store), (4, 1, 1, 1))


async def check_commit_that_never_landed(kit: Kit) -> None:
    """A commit that had not landed before the thread was taken over is refused, however often it is sent."""
    async with kit.open() as store:
        lost = _full(await started(store))
        thread = await committed(store, await _taken_over(store))
        for _ in range(2):
            await refused(StaleClaim, "a commit that came too late", store.commit(lost))
        same("the thread", await thread_at(store), thread)
        same("rows in log, messages, memory and artifacts", await _count(store), (2, 0, 0, 0))


async def check_start_sent_again(kit: Kit) -> None:
    """The identical start sent again changes nothing and is told that the thread is its own."""
    async with kit.open() as store:
        start = start_of(messages=(b"hello",), items=b"items")
        first = await store.start(start)
        same("the first answer", (first.created, first.inbox), (True, ()))
        same("the answer to the same start", await store.start(start), first)
        thread = await committed(store, first.thread)
        again = await store.start(start)
        same("the answer after the thread went on", (again.created, again.thread), (True, thread))
        other = await store.start(evolve(start, incarnation=b"y" * 16, started=b"else", machine="Other"))
        same("the answer to another start", (other.created, other.thread, other.inbox), (False, thread, ()))
        messages = await rows(store, Messages(workspace=WORKSPACE, session="talk"))
        same("messages", [row.payload for row in messages], [b"hello"])
        same("log rows", len(await rows(store, Log(address=address_of()))), 2)


async def check_start_sets_the_thread(kit: Kit) -> None:
    """A started thread is what the start said, at position 1; its epoch is 1 where it is claimed, or 0."""
    async with kit.open() as store:
        start = start_of(parent="p1", session="june", principal="agent:x")
        thread = (await store.start(start)).thread
        same("the answer", await thread_at(store), thread)
        same("what it was given", thread.standing, start.standing)
        got = (
            thread.incarnation,
            thread.machine,
            thread.session,
            thread.principal,
            thread.parent,
            thread.started,
        )
        given = (
            start.incarnation,
            start.machine,
            start.session,
            start.principal,
            start.parent,
            start.started,
        )
        same("what it was given", got, given)
        same("n, epoch, owner", (thread.n, thread.epoch, thread.owner), (1, 1, "w1"))
        same("head, created", (thread.head, thread.created), (start.log.head, start.log.at))
        same("crashes, inbox, session_since", (thread.crashes, thread.inbox, thread.session_since), (0, 0, 0))
        same("the log", await rows(store, Log(address=address_of())), (start.log,))
        free = await started(store, "t2", owner=None)
        same("epoch and owner of one that nobody claims", (free.epoch, free.owner), (0, None))


async def check_upload_sent_again(kit: Kit) -> None:
    """An upload sent again, by whomever, leaves the record that is there."""
    async with kit.open() as store:
        artifact = artifact_of("a1", None)
        await store.upload(artifact)
        await store.upload(artifact)
        await store.upload(evolve(artifact, principal="user:other"))
        same("the records", await rows(store, Artifacts(workspace=WORKSPACE)), (artifact,))


async def check_cancelled_commit_lands(kit: Kit) -> None:
    """Cancelling a caller does not withdraw its write: the next commit, one position on, finds it there."""
    async with kit.open() as store:
        thread = await started(store)
        commit = commit_of(thread)
        task = asyncio.create_task(store.commit(commit))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.commit(commit_of(after(thread, commit)))
        log = await rows(store, Log(address=address_of()))
        same("the log", [(row.n, row.head) for row in log[1:2]], [(1, commit.log.head)])


async def check_commits_land_in_order(kit: Kit) -> None:
    """Commits to one thread that are sent without waiting for each other land in the order of their calls."""
    async with kit.open() as store:
        thread = await started(store)
        commits: list[Commit] = []
        for _ in range(20):
            commits.append(commit_of(thread))
            thread = after(thread, commits[-1])
        await asyncio.gather(*(store.commit(commit) for commit in commits))
        log = await rows(store, Log(address=address_of()))
        same("the log", [row.head for row in log[1:]], [commit.log.head for commit in commits])


async def check_commits_together(kit: Kit) -> None:
    """Of 100 commits sent at once, a stale, oversize, conflicting or cancelled one harms no other."""
    async with kit.open() as store:
        threads = [await started(store, f"t{number:02}") for number in range(100)]
        await committed(
            store,
            await started(store, "before"),
            keys=(KeyWrite(effect="publish", key="taken", action="claim"),),
            memory=(write_of("taken", b"1", 0),),
        )
        commits = [
            commit_of(row, messages=(b"said",), memory=(write_of(row.address.thread_id, b"1", 0),))
            for row in threads
        ]
        stale, large, moved, taken, cancelled, twice = 10, 20, 30, 40, 50, 60
        commits[stale] = commit_of(evolve(threads[stale], epoch=0), messages=(b"stale",))
        commits[large] = commit_of(threads[large], payload=bytes(MAX_BODY + 1))
        commits[moved] = commit_of(threads[moved], messages=(b"moved",), memory=(write_of("taken", b"2", 0),))
        key = KeyWrite(effect="publish", key="taken", action="claim")
        commits[taken] = commit_of(threads[taken], messages=(b"taken",), keys=(key,))
        calls = [asyncio.create_task(store.commit(commit)) for commit in [*commits, commits[twice]]]
        await asyncio.sleep(0)
        calls[cancelled].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        errors: dict[int, type[BaseException]] = {
            stale: StaleClaim,
            large: TooLarge,
            moved: MemoryMoved,
            taken: KeyTaken,
            cancelled: asyncio.CancelledError,
        }
        for number, answer in enumerate(answers):
            wanted = errors.get(number, type(None))
            if not (number == cancelled and answer is None):
                same(f"the answer to commit {number}", type(answer), wanted)
        await _landed_but_for(store, threads, {stale, large, moved, taken})


async def _landed_but_for(store: Store, threads: list[ThreadRow], refused_ones: set[int]) -> None:
    for number, row in enumerate(threads):
        log = await rows(store, Log(address=row.address))
        same(f"log rows of commit {number}'s thread", len(log), 1 if number in refused_ones else 2)
    messages = await rows(store, Messages(workspace=WORKSPACE, session="talk"))
    same("messages", {row.payload for row in messages}, {b"said"})
    same("numbers of messages", [row.number for row in messages], list(range(1, 97)))
    memory = await rows(store, Memory(workspace=WORKSPACE, history=True))
    same("memory keys", len(memory), 97)


async def check_one_key_written_by_many(kit: Kit) -> None:
    """Of 20 threads that write one memory key over the same version at once, exactly one lands."""
    async with kit.open() as store:
        threads = [await started(store, f"t{number:02}") for number in range(20)]
        calls = [store.commit(commit_of(row, memory=(write_of("k", b"v", 0),))) for row in threads]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        same("who was refused", [type(a) for a in answers if a is not None], [MemoryMoved] * 19)
        same(
            "versions", [r.version for r in await rows(store, Memory(workspace=WORKSPACE, history=True))], [1]
        )


COMMIT: tuple[Check, ...] = tuple(
    check_of(check)
    for check in (
        check_commit_at_a_stale_epoch,
        check_commit_at_a_stale_position,
        check_commit_of_another_incarnation,
        check_commit_without_a_claim,
        check_commit_sets_the_thread,
        check_commit_sent_again,
        check_commit_that_never_landed,
        check_start_sent_again,
        check_start_sets_the_thread,
        check_upload_sent_again,
        check_cancelled_commit_lands,
        check_commits_land_in_order,
        check_commits_together,
        check_one_key_written_by_many,
    )
)
