"""Stores with one fault each, and the very check of the contract that must notice it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import pytest
from attrs import evolve
from attrs import fields as attrs_of

from perdure.stores import (
    ArtifactRow,
    Artifacts,
    Claimed,
    ClaimRequest,
    Commit,
    DefinitionRow,
    Delivered,
    Expire,
    Expired,
    InboxRow,
    KeyTaken,
    LogRow,
    MemoryMoved,
    MemoryRow,
    MemoryStore,
    Micros,
    Page,
    Query,
    Release,
    Remember,
    Signal,
    Standing,
    Start,
    Started,
    ThreadRow,
    WorkerRow,
)
from perdure.stores._made import remembered
from perdure.stores._memory_tables import Tables
from perdure.stores.contract import CHECKS, Clock, ContractBroken, Kit

CHECK = {check.name: check for check in CHECKS}


class IgnoresTheEpoch(MemoryStore):
    def _judge(self, commit: Commit) -> None:
        thread = self._tables.threads.get(commit.address)
        super()._judge(commit if thread is None else evolve(commit, epoch=thread.epoch))


class IgnoresTheEpochOfIntents(IgnoresTheEpoch):
    def _judge(self, commit: Commit) -> None:
        judge = super()._judge if commit.log.kind == "record" else super(IgnoresTheEpoch, self)._judge
        judge(commit)


class IgnoresThePosition(MemoryStore):
    def _judge(self, commit: Commit) -> None:
        thread = self._tables.threads.get(commit.address)
        n = commit.log.n if thread is None else thread.n
        super()._judge(evolve(commit, log=evolve(commit.log, n=n)))


class IgnoresTheIncarnation(MemoryStore):
    def _judge(self, commit: Commit) -> None:
        thread = self._tables.threads.get(commit.address)
        super()._judge(commit if thread is None else evolve(commit, incarnation=thread.incarnation))


class KeepsAClaimThatWasGivenUp(MemoryStore):
    def _judge(self, commit: Commit) -> None:
        threads = self._tables.threads
        row = threads.get(commit.address)
        if row is not None:
            threads[commit.address] = evolve(row, owner=row.owner or "somebody")
        try:
            super()._judge(commit)
        finally:
            if row is not None:
                threads[commit.address] = row


def copied(tables: Tables) -> Tables:
    """The tables as they are: a row is never changed, but a list or dict of them is."""
    twin = copy(tables)
    for name, table in vars(tables).items():
        rows = copy(table)
        for key, row in rows.items():
            rows[key] = copy(row) if isinstance(row, list) else row
        setattr(twin, name, rows)
    return twin


def tears(table: str) -> type[MemoryStore]:
    """A store that leaves one table of a refused commit written."""

    class Tears(MemoryStore):
        def _judge(self, commit: Commit) -> None:
            try:
                super()._judge(commit)
            except (MemoryMoved, KeyTaken):
                before = copied(self._tables)
                keys = tuple(write for write in commit.keys if write.key != "taken")
                self._apply(evolve(commit, keys=keys))
                setattr(before, table, getattr(self._tables, table))
                self._tables = before
                raise

    return Tears


def loses(table: str) -> type[MemoryStore]:
    """A store that forgets one table of an accepted commit."""

    class Loses(MemoryStore):
        def _apply(self, commit: Commit) -> None:
            before = copied(self._tables)
            super()._apply(commit)
            if commit.log.kind == "transition":
                setattr(self._tables, table, getattr(before, table))

    return Loses


class DropsDedupe(MemoryStore):
    async def deliver(self, signal: Signal, /) -> Delivered:
        row = self._accept(signal)
        return Delivered(row=row, new=True, thread=self._tables.threads.get(signal.address))


class DropsDedupeBeforeTheStart(DropsDedupe):
    async def deliver(self, signal: Signal, /) -> Delivered:
        if signal.address in self._tables.threads:
            return await MemoryStore.deliver(self, signal)
        return await super().deliver(signal)


class ForgetsConsumedSignals(DropsDedupe):
    async def deliver(self, signal: Signal, /) -> Delivered:
        if signal.id in [row.id for row in self._tables.pending(signal.address)]:
            return await MemoryStore.deliver(self, signal)
        return await super().deliver(signal)


class IgnoresTheDigest(MemoryStore):
    async def deliver(self, signal: Signal, /) -> Delivered:
        known = [row for row in self._tables.inbox[signal.address] if row.id == signal.id]
        return await super().deliver(evolve(signal, digest=known[0].digest) if known else signal)


class TakesSignalsAfterTheEnd(MemoryStore):
    def _known(self, signal: Signal) -> InboxRow | None:
        threads = self._tables.threads
        thread = threads.pop(signal.address, None)
        row = super()._known(signal)
        if thread is not None:
            threads[signal.address] = thread
        return row


class RepeatsARow(MemoryStore):
    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        whole = (await super().page(query, limit=1000)).rows
        first = 0 if after is None else int(after)
        more = first + limit < len(whole)
        return Page(rows=whole[max(0, first - 1) : first + limit], next=str(first + limit) if more else None)


class SkipsARow(MemoryStore):
    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        page = await super().page(query, after=after, limit=limit)
        return page if after is None else evolve(page, rows=page.rows[1:])


class LeadsOnToNothing(MemoryStore):
    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        page = await super().page(query, after=after, limit=limit)
        last = f"[{len(page.rows) + 1000}]"
        return evolve(page, next=last) if len(page.rows) == limit and page.next is None else page


class PagesByCount(MemoryStore):
    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        whole = (await super().page(query, limit=1000)).rows
        first = 0 if after is None else int(after)
        more = first + limit < len(whole)
        return Page(rows=whole[first : first + limit], next=str(first + limit) if more else None)


class TakesAnEmptyTextForNoFilter(MemoryStore):
    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        fields = {field.name: None for field in attrs_of(type(query)) if getattr(query, field.name) == ""}
        return await super().page(evolve(query, **fields), after=after, limit=limit)


class ForgetsWhatLanded(MemoryStore):
    def _landed(self, commit: Commit) -> bool:
        return False


class ForgetsWhatLandedAtAFormerEpoch(MemoryStore):
    def _landed(self, commit: Commit) -> bool:
        return super()._landed(commit) and self._tables.threads[commit.address].epoch == commit.epoch


class TakesAnyCommitForALandedOne(MemoryStore):
    def _landed(self, commit: Commit) -> bool:
        thread = self._tables.threads.get(commit.address)
        return thread is not None and commit.log.n < thread.n


class ForgetsWhoStarted(MemoryStore):
    async def start(self, start: Start, /) -> Started:
        there = start.address in self._tables.threads
        answer = await super().start(start)
        return evolve(answer, created=False, inbox=()) if there else answer


class OverwritesUploads(MemoryStore):
    async def upload(self, artifact: ArtifactRow, /) -> None:
        self._tables.artifacts[artifact.workspace, artifact.id] = artifact


class ListsTheInboxById(MemoryStore):
    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        page = await super().page(query, after=after, limit=limit)
        if page.rows and isinstance(page.rows[0], InboxRow):
            return evolve(page, rows=sorted(page.rows, key=lambda row: row.id))
        return page


class ClaimsTheInboxReversed(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        claimed = await super().claim(request)
        return evolve(claimed, claims=tuple(evolve(each, inbox=each.inbox[::-1]) for each in claimed.claims))


class ForgetsWhatCameMeanwhile(MemoryStore):
    def _due_at_once(self, standing: Standing, news: bool) -> Standing:
        return standing


class WithdrawsWhatIsCancelled(MemoryStore):
    async def commit(self, commit: Commit, /) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await super().commit(commit)


class FailsTheWholeBatch(MemoryStore):
    """Commits that arrive in one turn of the loop share one fate."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._batch: list[Commit] = []

    async def commit(self, commit: Commit, /) -> None:
        self._batch.append(commit)
        await asyncio.sleep(0)
        batch, self._batch = self._batch, []
        for each in batch:
            await super().commit(each)


class LetsEverybodyWin(MemoryStore):
    async def commit(self, commit: Commit, /) -> None:
        if not self._landed(commit):
            self._judge(commit)
            await asyncio.sleep(0)
            self._apply(commit)


class ClaimsInTwoSteps(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        before = copied(self._tables)
        claimed = await super().claim(request)
        if request.limit < 100:
            self._tables.threads = before.threads
        return claimed


class IgnoresTheLease(MemoryStore):
    def _is_dead(self, owner: str, request: ClaimRequest, now: Micros) -> bool:
        return super()._is_dead(owner, request, 0)


class StealsFromTheLiving(MemoryStore):
    def _is_dead(self, owner: str, request: ClaimRequest, now: Micros) -> bool:
        return True


class CountsNoCrash(MemoryStore):
    def _take(self, row: ThreadRow, request: ClaimRequest, now: Micros) -> Any:
        claim = super()._take(row, request, now)
        thread = evolve(claim.thread, crashes=0)
        self._tables.threads[row.address] = thread
        return evolve(claim, thread=thread)


class CountsADrainAsACrash(MemoryStore):
    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        if worker.ended is not None:
            self._tables.workers.pop(worker.id)
            return self._clock()
        return await super().beat(worker, definitions)


class KeepsCrashesThroughACommit(MemoryStore):
    def _apply(self, commit: Commit) -> None:
        crashes = self._tables.threads[commit.address].crashes
        super()._apply(commit)
        threads = self._tables.threads
        threads[commit.address] = evolve(threads[commit.address], crashes=crashes)


class ClaimsAllSuspects(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        from_ = 1000 if request.suspects else request.suspect_from
        return await super().claim(evolve(request, suspects=False, suspect_from=from_))


class ClaimsTheOldestSuspect(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        if not request.suspects:
            return await super().claim(request)
        oldest = min(self._tables.threads.values(), key=lambda row: row.created)
        return await super().claim(evolve(request, only=oldest.address))


class ClaimsWhatItCannotRead(MemoryStore):
    async def claim(self, request: ClaimRequest, /) -> Claimed:
        return await super().claim(evolve(request, machines=dict.fromkeys(request.machines, 1000)))


class BringsTheWholeLog(MemoryStore):
    def _take(self, row: ThreadRow, request: ClaimRequest, now: Micros) -> Any:
        claim = super()._take(row, request, now)
        log: Sequence[LogRow] = self._tables.log[row.address]
        return evolve(claim, log=tuple(log))


class TakesStaleReleases(MemoryStore):
    async def release(self, releases: Sequence[Release], /) -> None:
        known = self._tables.threads
        fresh = [
            evolve(each, epoch=known[each.address].epoch, incarnation=known[each.address].incarnation)
            for each in releases
            if each.address in known
        ]
        await super().release(fresh)


class NumbersMessagesByThread(MemoryStore):
    def _add_messages(self, write: Start | Commit) -> None:
        super()._add_messages(write)
        talk = self._tables.messages[write.address.workspace, write.session]
        own = [row for row in talk if row.incarnation == write.incarnation]
        if talk and write.messages:
            talk[-1] = evolve(talk[-1], number=len(own))


class RestartsVersionsAfterADeletion(MemoryStore):
    def _apply(self, commit: Commit) -> None:
        super()._apply(commit)
        for name, history in self._tables.memory.items():
            if history and history[-1].value is None:
                self._tables.memory[name] = []


class FoldsCase(MemoryStore):
    async def start(self, start: Start, /) -> Started:
        name = start.address.thread_id.casefold()
        return await super().start(evolve(start, address=evolve(start.address, thread_id=name)))


class TakesAnySize(MemoryStore):
    async def commit(self, commit: Commit, /) -> None:
        if not self._landed(commit):
            self._judge(commit)
            self._apply(commit)


class BringsAllItems(MemoryStore):
    def _take(self, row: ThreadRow, request: ClaimRequest, now: Micros) -> Any:
        claim = super()._take(row, request, now)
        return evolve(claim, items=tuple(self._tables.items[row.address]))


class RemembersOverAnything(MemoryStore):
    async def remember(self, write: Remember, /) -> MemoryRow:
        return await super().remember(evolve(write, expected=None))


class RemembersTwice(MemoryStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._number = 0

    async def remember(self, write: Remember, /) -> MemoryRow:
        self._number += 1
        return await super().remember(evolve(write, id=f"{write.id} {self._number}"))


class RemembersOnceByTheNewest(RemembersTwice):
    async def remember(self, write: Remember, /) -> MemoryRow:
        history = self._tables.memory[write.workspace, write.namespace, write.key]
        return history[-1] if history and history[-1].value == write.value else await super().remember(write)


class RemembersInTwoSteps(MemoryStore):
    async def remember(self, write: Remember, /) -> MemoryRow:
        before = copied(self._tables)
        await asyncio.sleep(0)
        self._tables.memory = before.memory
        return await super().remember(write)


class RemembersAnySize(MemoryStore):
    async def remember(self, write: Remember, /) -> MemoryRow:
        return remembered(write, 1, self._clock())


class ForgetsTheCount(MemoryStore):
    async def expire(self, request: Expire, /) -> Expired:
        expired = await super().expire(request)
        for name, history in self._tables.memory.items():
            if history and history[-1].value is None:
                self._tables.memory[name] = []
        return expired


class ExpiresTooEarly(MemoryStore):
    async def expire(self, request: Expire, /) -> Expired:
        return await super().expire(evolve(request, at=request.at + 1))


class ExpiresWithoutEnd(MemoryStore):
    async def expire(self, request: Expire, /) -> Expired:
        return await super().expire(evolve(request, limit=max(1000, request.limit)))


class ExpiresInADryRun(MemoryStore):
    async def expire(self, request: Expire, /) -> Expired:
        return await super().expire(evolve(request, dry_run=False))


class ExpiresWhatThreadsPut(MemoryStore):
    async def expire(self, request: Expire, /) -> Expired:
        artifacts = self._tables.artifacts
        for name, row in list(artifacts.items()):
            if row.expires is not None and row.expires <= request.at and not request.dry_run:
                del artifacts[name]
        return await super().expire(request)


class ExpiresKeysInDoubt(MemoryStore):
    async def expire(self, request: Expire, /) -> Expired:
        keys = self._tables.keys
        for name, row in list(keys.items()):
            if row.outcome is None and not request.dry_run:
                del keys[name]
        return await super().expire(request)


class FindsWhatIsMadeFromAnything(MemoryStore):
    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        plain = evolve(query, derived_from=None) if isinstance(query, Artifacts) else query
        return await super().page(plain, after=after, limit=limit)


Make = Callable[[Clock], MemoryStore]

ATOMIC = {
    "log": "log",
    "threads": "standing",
    "inbox": "consumed",
    "items": "items",
    "messages": "messages",
    "memory": "memory",
    "artifacts": "artifacts",
    "keys": "keys_claimed",
    "outbox": "outbox",
}
"""Each table that a commit writes, and the part whose check watches it."""

MUTANTS: list[tuple[Make, str]] = [
    (IgnoresTheEpoch, "commit_at_a_stale_epoch"),
    (IgnoresTheEpochOfIntents, "commit_at_a_stale_epoch"),
    (IgnoresThePosition, "commit_at_a_stale_position"),
    (IgnoresTheIncarnation, "commit_of_another_incarnation"),
    (KeepsAClaimThatWasGivenUp, "commit_without_a_claim"),
    (DropsDedupe, "signal_counts_once"),
    (DropsDedupe, "signals_at_once"),
    (DropsDedupeBeforeTheStart, "signal_before_the_start"),
    (ForgetsConsumedSignals, "signal_counts_once"),
    (IgnoresTheDigest, "signal_with_another_digest"),
    (TakesSignalsAfterTheEnd, "signal_after_the_end"),
    (RepeatsARow, "paging_threads"),
    (SkipsARow, "paging_memory_history"),
    (LeadsOnToNothing, "paging_log"),
    (PagesByCount, "pages_while_others_write"),
    (TakesAnEmptyTextForNoFilter, "filters_that_match_nothing"),
    (ForgetsWhatLanded, "commit_sent_again"),
    (ForgetsWhatLandedAtAFormerEpoch, "commit_sent_again"),
    (TakesAnyCommitForALandedOne, "commit_that_never_landed"),
    (ForgetsWhoStarted, "start_sent_again"),
    (OverwritesUploads, "upload_sent_again"),
    (ListsTheInboxById, "inbox_order"),
    (ClaimsTheInboxReversed, "inbox_order"),
    (ForgetsWhatCameMeanwhile, "inbox_seen"),
    (ForgetsWhatCameMeanwhile, "inbox_seen_by_a_release"),
    (ForgetsWhatCameMeanwhile, "signal_wakes_who_waits"),
    (WithdrawsWhatIsCancelled, "cancelled_commit_lands"),
    (FailsTheWholeBatch, "commits_together"),
    (LetsEverybodyWin, "one_key_written_by_many"),
    (ClaimsInTwoSteps, "two_claimers"),
    (IgnoresTheLease, "take_over_by_lease"),
    (StealsFromTheLiving, "take_over_from_the_dead"),
    (StealsFromTheLiving, "own_threads_are_not_claimed"),
    (CountsNoCrash, "take_over_by_lease"),
    (CountsADrainAsACrash, "take_over_in_good_order"),
    (KeepsCrashesThroughACommit, "crashes_are_reset"),
    (ClaimsAllSuspects, "suspects_wait_their_turn"),
    (ClaimsTheOldestSuspect, "suspects_with_the_fewest_crashes_first"),
    (ClaimsWhatItCannotRead, "claim_by_machine_and_version"),
    (BringsTheWholeLog, "claim_brings_what_is_needed"),
    (BringsAllItems, "claim_brings_items_still_needed"),
    (RemembersOverAnything, "remember_over_another_version"),
    (RemembersTwice, "remember_sent_again"),
    (RemembersOnceByTheNewest, "remember_sent_again"),
    (RemembersInTwoSteps, "remember_by_many"),
    (RemembersAnySize, "limits_of_remember"),
    (ForgetsTheCount, "expire_keeps_count"),
    (ExpiresTooEarly, "expire"),
    (ExpiresWithoutEnd, "expire_in_batches"),
    (ExpiresInADryRun, "expire"),
    (ExpiresWhatThreadsPut, "expire"),
    (ExpiresKeysInDoubt, "expire"),
    (FindsWhatIsMadeFromAnything, "artifact_sources"),
    (FindsWhatIsMadeFromAnything, "paging_artifacts_made_from"),
    (TakesStaleReleases, "release"),
    (NumbersMessagesByThread, "session_numbers"),
    (RestartsVersionsAfterADeletion, "memory_deletion"),
    (FoldsCase, "names"),
    (TakesAnySize, "limits_of_a_commit"),
    *((tears(table), f"atomic_{part}") for table, part in ATOMIC.items()),
    *((loses(table), f"atomic_{part}") for table, part in ATOMIC.items()),
]


def title(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", "")


@pytest.mark.anyio
@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=title)
async def test_a_faulty_store_is_caught_by_the_check_meant_for_it(mutant: Make, check: str) -> None:
    clock = Clock()
    store = mutant(clock)
    with pytest.raises(ContractBroken):
        await CHECK[check].run(Kit(open=lambda: store, clock=clock))
