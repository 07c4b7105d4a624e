"""Collection: records that have had their time go, then blobs that nothing holds any more.

A blob is held by the artifact records of threads (those of unfinished steps too), by uploads that have not
expired, and by memory, history included, whose values cite its digest or lie in it. What nobody holds goes
once it has lain for longer than the grace.

It is safe beside puts. The moment that a blob must be older than is fixed before any root is looked for, and
a put writes its record before its blob becomes visible, stamped anew. So a put of the same bytes either had
its record when the roots were looked for, or stamps the blob after that moment, and the backend's deletion,
one with its look at the stamp, leaves it; where the blob had gone, the put makes it visible again. The grace
covers what the clocks of the runtime and of the backend differ by.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta

from attrs import evolve, frozen

from perdure.artifacts import ArtifactBackend, Blob
from perdure.stores import ArtifactRow, Artifacts, Expire, Expired, Memory, MemoryRow, Micros, Store

from ._bounds import check_span
from ._context import micros
from ._look import rows_of
from ._reliable import page_of, until_known
from ._spill import bare, with_body_of
from ._spilled import is_spilled
from ._step_memory import value_at

RECORDS_AT_ONCE = 1000
"""Records that one batch expires."""
COUNTED_AT_MOST = 1_000_000
"""How far a dry run counts records that would expire."""
BLOBS_A_PAGE = 500
FACTS_A_PAGE = 100
UNHELD_AT_ONCE = 10_000
"""Blobs without a record that are looked for in memory together: one pass over a workspace's memory each."""

_SHA256 = re.compile(rb'"([0-9a-f]{64})"')


@frozen(kw_only=True)
class Collected:
    """What a collection deleted, or would delete."""

    expired: Expired
    blobs: int = 0
    size_bytes: int = 0
    """Bytes of those blobs."""
    young: int = 0
    """Blobs that the grace left unexamined."""
    held: int = 0
    """Blobs that something holds."""


async def collect(
    store: Store,
    artifacts: ArtifactBackend,
    now: Callable[[], Micros],
    *,
    grace: timedelta,
    dry_run: bool = False,
) -> Collected:
    """Expire records, then delete blobs that nothing holds and that are older than ``grace``.

    Reads page by page; what it keeps in mind does not grow with the store. Several may run at once. With
    ``dry_run`` it counts and deletes nothing.
    """
    check_span("grace=", grace, zero=True)
    began = now()
    before = began - micros(grace)
    done = Collected(expired=await _expire(store, began, dry_run))
    async for blobs in _by_workspace(artifacts):
        old = [blob for blob in blobs if blob.modified < before]
        done = evolve(done, young=done.young + len(blobs) - len(old))
        unheld = await _unheld(store, old, began)
        gone = unheld if dry_run else await _delete(artifacts, unheld, before)
        done = evolve(
            done,
            blobs=done.blobs + len(gone),
            size_bytes=done.size_bytes + sum(blob.size_bytes for blob in gone),
            held=done.held + len(old) - len(gone),
        )
    return done


async def _expire(store: Store, at: Micros, dry_run: bool) -> Expired:
    limit = COUNTED_AT_MOST if dry_run else RECORDS_AT_ONCE
    request = Expire(at=at, limit=limit, dry_run=dry_run)
    total = Expired(memory=0, artifacts=0, keys=0)
    while True:
        some = await until_known(lambda: store.expire(request))
        total = Expired(
            memory=total.memory + some.memory,
            artifacts=total.artifacts + some.artifacts,
            keys=total.keys + some.keys,
        )
        if dry_run or some.total < limit:
            return total


async def _by_workspace(artifacts: ArtifactBackend) -> AsyncIterator[list[Blob]]:
    """All visible blobs, some thousands of one workspace at a time."""
    some: list[Blob] = []
    after: str | None = None
    while True:
        page = await artifacts.list(after=after, limit=BLOBS_A_PAGE)
        for blob in page.blobs:
            if some and (some[0].workspace != blob.workspace or len(some) >= UNHELD_AT_ONCE):
                yield some
                some = []
            some.append(blob)
        if page.next is None:
            break
        after = page.next
    if some:
        yield some


async def _unheld(store: Store, blobs: Sequence[Blob], now: Micros) -> list[Blob]:
    """Those of one workspace's blobs that neither a record nor memory holds."""
    without = {blob.sha256: blob for blob in blobs if not await _has_record(store, blob, now)}
    if without:
        workspace = next(iter(without.values())).workspace
        async for row in rows_of(bare(store), Memory(workspace=workspace, history=True), FACTS_A_PAGE):
            async for cited in _cited(store, row, now):
                without.pop(cited, None)
    return list(without.values())


async def _cited(store: Store, row: MemoryRow, now: Micros) -> AsyncIterator[str]:
    """The digests in a fact: of what lies outside of the store as a blob, that blob's and those in it."""
    value = value_at(row, now)
    if value is None:
        return
    values = [value]
    if is_spilled(value):  # what is gone cites nothing more
        values.append((await with_body_of(store, row, row.workspace)).value or b"")
    for each in values:
        for found in _SHA256.findall(each):
            yield found.decode()


async def _has_record(store: Store, blob: Blob, now: Micros) -> bool:
    query = Artifacts(workspace=blob.workspace, sha256=blob.sha256)
    page = await page_of(store, query, limit=1)
    if page.next is None:
        return any(_holds(row, now) for row in page.rows)
    async for row in rows_of(store, query):
        if _holds(row, now):
            return True
    return False


def _holds(row: ArtifactRow, now: Micros) -> bool:
    return row.thread_id is not None or row.expires is None or row.expires > now


async def _delete(artifacts: ArtifactBackend, blobs: Sequence[Blob], before: Micros) -> list[Blob]:
    return [
        blob
        for blob in blobs
        if await artifacts.delete(blob.workspace, blob.sha256, unless_modified_since=before)
    ]
