"""The contract of the artifact seam, as checks that any backend can run against itself.

Each check is an ``async def check_x(kit)`` that returns, raises ``AssertionError`` with what went wrong, or
raises ``NotApplicable`` where the kit lacks what it takes. ``CHECKS`` lists them all. Give each check a kit
over storage that is empty, and run it under any test framework::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_contract(check, kit):
        await check(kit)
"""

from __future__ import annotations

import hashlib
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import pairwise
from typing import Any

from anyio import CancelScope, create_task_group
from anyio.lowlevel import checkpoint
from attrs import frozen

from ._backend import ArtifactBackend, ArtifactError, BlobDamaged, BlobPage, NoSuchBlob
from ._contract_tools import (
    StreamBroke,
    all_pages,
    breaks,
    cancels,
    content_of,
    cut_up,
    expect_absent,
    expect_equal,
    expect_same,
    expect_true,
    put_all,
    raises,
    read_back,
    sha256_of,
    stream,
    traced_peak,
)

__all__ = ["CHECKS", "ArtifactKit", "Check", "NotApplicable"]


class NotApplicable(Exception):
    """The kit says that this check is not for its backend."""


async def _no_time() -> None:
    return None


@frozen(kw_only=True)
class ArtifactKit:
    """A backend under test, over storage of its own that is empty."""

    handle: Callable[[], AbstractAsyncContextManager[ArtifactBackend]]
    """Another handle on the same storage."""

    leftovers: Callable[[], Awaitable[Sequence[str]]]
    """Names of whatever is stored, anywhere, for no visible blob: staged bytes, unfinished uploads."""

    damage: Callable[[str, str], Awaitable[None]] | None = None
    """Change stored bytes of a blob (workspace, sha256) behind the backend's back, not their number."""

    tick: Callable[[], Awaitable[None]] = _no_time
    """Return when the backend's clock stands at a later time than before."""

    boundaries: Sequence[int] = (1 << 20,)
    """Sizes in bytes at which the backend goes about it differently: the length of a chunk, of a part."""

    memory_bound: int | None = 16 << 20
    """Most bytes of memory that a put and a read of 64 MB may take; None where it holds blobs in memory."""


Check = Callable[[ArtifactKit], Awaitable[None]]

CRAFTED_WORKSPACES = (
    "acme",
    "Acme",
    "acme ",
    "acme.",
    "acme/",
    "",
    " ",
    ".",
    "..",
    "../../x",
    "/etc/x",
    "C:\\x",
    "%2e%2e/x",
    "a#/../x",
    "a?b=c&d",
    "con",
    "-rf",
    "a\x00b",
    "line\nbreak",
    "caf\u00e9",
    "cafe\u0301",
    "\U0001f980" * 300,
    "x" * 3000,
)


async def check_sizes(kit: ArtifactKit) -> None:
    """Nothing, one byte, and one byte around every boundary: stored whole, digest and size right."""
    sizes = {0, 1, 2, *(size + by for size in kit.boundaries for by in (-1, 0, 1))}
    async with kit.handle() as backend:
        for size in sorted(sizes):
            content = content_of(size)
            for cut in (max(size, 1), max(size // 3, 1)):
                sha256 = await put_all(backend, "acme", cut_up(content, cut))
                expect_equal(sha256, sha256_of(content), f"digest of {size} bytes in chunks of {cut}")
                expect_equal((await backend.stat("acme", sha256)).size_bytes, size, "size_bytes")
                expect_same(
                    await read_back(backend, "acme", sha256), content, f"{size} bytes in chunks of {cut}"
                )


async def check_odd_chunks(kit: ArtifactKit) -> None:
    """A stream of no chunks, of empty ones, and of single bytes between them."""
    async with kit.handle() as backend:
        for chunks in ([], [b"", b""], [b"", b"a", b"", b"b", b""], [b"x"] * 3000):
            content = b"".join(chunks)
            async with await backend.put("acme", stream(chunks)) as staged:
                expect_equal(staged.sha256, sha256_of(content), "digest of the staged bytes")
                expect_equal(staged.size_bytes, len(content), "size of the staged bytes")
                await staged.publish()
            expect_same(
                await read_back(backend, "acme", sha256_of(content)), content, f"{len(chunks)} odd chunks"
            )


async def check_invisible_until_published(kit: ArtifactKit) -> None:
    """Staged bytes are seen through no handle and by no method, and go when they are not published."""
    content = content_of(3000)
    async with kit.handle() as backend, kit.handle() as other:
        async with await backend.put("acme", stream([content])) as staged:
            for handle in (backend, other):
                await expect_absent(handle, "acme", staged.sha256)
        for handle in (backend, other):
            await expect_absent(handle, "acme", sha256_of(content))
        expect_equal(list(await kit.leftovers()), [], "what is left of staged bytes that were not published")
        with raises(ArtifactError, "publish after the context of the staged bytes was left"):
            await staged.publish()
        await expect_absent(backend, "acme", sha256_of(content))


async def check_published_stays(kit: ArtifactKit) -> None:
    """A published blob outlives its staging context and its handle; other handles see it at once."""
    content = content_of(3000)
    async with kit.handle() as other:
        async with kit.handle() as backend:
            async with await backend.put("acme", stream([content])) as staged:
                await staged.publish()
                expect_same(
                    await read_back(other, "acme", staged.sha256), content, "read through another handle"
                )
            expect_same(
                await read_back(backend, "acme", sha256_of(content)), content, "read after staging ended"
            )
        expect_same(
            await read_back(other, "acme", sha256_of(content)), content, "read after its handle was closed"
        )
        expect_equal(list(await kit.leftovers()), [], "what is left beside the published blob")


async def check_stream_that_raises(kit: ArtifactKit) -> None:
    """A stream that raises at 60 %: its own error comes out, nothing is readable, nothing is left."""
    for size in (1000, *kit.boundaries):
        content = content_of(3 * size)
        async with kit.handle() as backend:
            with raises(StreamBroke, "put of a stream that raises"):
                await backend.put("acme", breaks(content, at=len(content) * 6 // 10))
            await expect_absent(backend, "acme", sha256_of(content))
            await expect_absent(backend, "acme", sha256_of(content[: len(content) * 6 // 10]))
            expect_equal(list(await kit.leftovers()), [], "what is left of a stream that raised")


async def check_cancelled_put(kit: ArtifactKit) -> None:
    """A put that is cancelled at 60 %, and one cancelled before it began: nothing readable, nothing left."""
    content = content_of(3 * max(kit.boundaries))
    sent = content[: len(content) * 6 // 10]
    async with kit.handle() as backend:
        with CancelScope() as scope:
            await backend.put("acme", cancels(sent, scope))
        expect_equal(scope.cancelled_caught, True, "cancellation that went through put")
        with CancelScope() as scope:
            scope.cancel()
            async with await backend.put("acme", stream([content])) as staged:
                await staged.publish()
        for part in (sent, content):
            await expect_absent(backend, "acme", sha256_of(part))
        expect_equal(list(await kit.leftovers()), [], "what is left of a put that was cancelled")


async def check_publish_race(kit: ArtifactKit) -> None:
    """Many publish one blob at once through two handles; whoever reads meanwhile sees none of it or all."""
    content = content_of(3 * max(kit.boundaries) + 1)
    sha256 = sha256_of(content)
    seen: list[int] = []
    async with kit.handle() as one, kit.handle() as two:
        done = False

        async def publish(backend: ArtifactBackend) -> None:
            await put_all(backend, "acme", [content])
            expect_same(await read_back(backend, "acme", sha256), content, "read after publish")

        async def look(backend: ArtifactBackend) -> None:
            while not done:
                await checkpoint()
                try:
                    read = await read_back(backend, "acme", sha256)
                except NoSuchBlob:
                    continue
                expect_same(read, content, "read while others publish the same blob")
                seen.append(len(read))

        async with create_task_group() as readers:
            readers.start_soon(look, one)
            readers.start_soon(look, two)
            for _ in range(4):
                async with create_task_group() as writers:
                    for backend in (one, two, one):
                        writers.start_soon(publish, backend)
            done = True
        page = await one.list()
        expect_equal(
            [blob.sha256 for blob in page.blobs], [sha256], "blobs after one was published many times"
        )
        expect_equal(list(await kit.leftovers()), [], "what is left of racing puts")


async def check_published_twice(kit: ArtifactKit) -> None:
    """Publishing again, the same staged bytes or others, is harmless, and moves ``modified`` on."""
    content = content_of(5000)
    async with kit.handle() as backend:
        async with await backend.put("acme", stream([content])) as staged:
            await staged.publish()
            before = await backend.stat("acme", staged.sha256)
            await kit.tick()
            await staged.publish()
            between = await backend.stat("acme", staged.sha256)
        await kit.tick()
        sha256 = await put_all(backend, "acme", [content])
        after = await backend.stat("acme", sha256)
        expect_true(before.modified < between.modified < after.modified, "modified grows with each publish")
        expect_equal(await all_pages(backend, "acme", limit=10), [after], "blobs after three publishes")
        expect_same(await read_back(backend, "acme", sha256), content, "read after three publishes")
        expect_equal(list(await kit.leftovers()), [], "what is left of three publishes")


async def check_ranges(kit: ArtifactKit) -> None:
    """Every range gives the bytes from its start to before its end, cut off at the blob's size."""
    size = 2 * max(kit.boundaries) + 7
    content = content_of(size)
    marks = sorted(
        {0, 1, 5, size - 1, size, size + 1, size * 2, *(b + by for b in kit.boundaries for by in (-1, 0, 1))}
    )
    async with kit.handle() as backend:
        sha256 = await put_all(backend, "acme", [content])
        for start in marks:
            for end in [*(mark for mark in marks if mark >= start), None]:
                read = await read_back(backend, "acme", sha256, start=start, end=end)
                expect_same(read, content[start:end], f"bytes from {start} to {end}")
        for start, end in ((-1, None), (0, -1), (5, 4)):
            with raises(ValueError, f"range from {start} to {end}"):
                await read_back(backend, "acme", sha256, start=start, end=end)


async def check_damage(kit: ArtifactKit) -> None:
    """Damaged bytes are found before the last of them is handed out, and put right by another put."""
    if kit.damage is None:
        raise NotApplicable("its blobs cannot be damaged from outside")
    async with kit.handle() as backend:
        for size in (1, 1000, 3 * max(kit.boundaries)):
            content = content_of(size)
            sha256 = await put_all(backend, "acme", [content])
            await kit.damage("acme", sha256)
            received = 0
            with raises(BlobDamaged, f"read of {size} damaged bytes"):
                async for chunk in backend.open("acme", sha256):
                    received += len(chunk)
            expect_true(received < size, f"the last chunk of {size} damaged bytes is withheld")
            await put_all(backend, "acme", [content])
            expect_same(
                await read_back(backend, "acme", sha256), content, "read after the blob was put again"
            )


async def check_paging(kit: ArtifactKit) -> None:
    """Pages of every length give each blob once, in order, in one workspace and over all."""
    contents = [b"%d" % n for n in range(7)]
    async with kit.handle() as backend:
        expect_equal(await backend.list(), BlobPage(blobs=(), next=None), "page of an empty backend")
        expect_equal(await backend.list("acme"), BlobPage(blobs=(), next=None), "page of an empty workspace")
        for workspace in ("b", "a", "c"):
            for content in contents:
                await put_all(backend, workspace, [content])
        digests = sorted(sha256_of(content) for content in contents)
        everything = [(workspace, sha256) for workspace in "abc" for sha256 in digests]
        for limit in (1, 2, len(digests) - 1, len(digests), len(digests) + 1):
            blobs = await all_pages(backend, "b", limit=limit)
            expect_equal([blob.sha256 for blob in blobs], digests, f"one workspace in pages of {limit}")
        for limit in (1, 2, 7, 8, len(everything) - 1, len(everything), len(everything) + 1):
            blobs = await all_pages(backend, None, limit=limit)
            expect_equal(
                [(b.workspace, b.sha256) for b in blobs], everything, f"all workspaces in pages of {limit}"
            )
        for limit in (0, -1, 1001):
            with raises(ValueError, f"page of {limit}"):
                await backend.list(limit=limit)
        with raises(ValueError, "page after a cursor that is none"):
            await backend.list(after="x")


async def check_paging_meets_changes(kit: ArtifactKit) -> None:
    """What is deleted or added between two pages neither repeats nor hides another blob."""
    async with kit.handle() as backend:
        digests = sorted([await put_all(backend, "acme", [b"%d" % n]) for n in range(6)])
        page = await backend.list("acme", limit=2)
        await backend.delete("acme", digests[1], unless_modified_since=_LATE)
        await backend.delete("acme", digests[2], unless_modified_since=_LATE)
        rest = [blob.sha256 for blob in (await backend.list("acme", after=page.next, limit=10)).blobs]
        expect_equal(rest, digests[3:], "page after two deletions")


async def check_workspaces(kit: ArtifactKit) -> None:
    """Workspaces are plain labels: none reaches another's blobs, none reaches out of the storage."""
    async with kit.handle() as backend:
        own = {name: sha256_of(name.encode()) for name in CRAFTED_WORKSPACES}
        for name in CRAFTED_WORKSPACES:
            await put_all(backend, name, [name.encode()])
            await put_all(backend, name, [b"shared"])
        blobs = await all_pages(backend, None, limit=1000)
        expected = sorted((name, sha256) for name in own for sha256 in (own[name], sha256_of(b"shared")))
        expect_equal([(blob.workspace, blob.sha256) for blob in blobs], expected, "blobs of all workspaces")
        for name in CRAFTED_WORKSPACES:
            found = {blob.sha256 for blob in await all_pages(backend, name, limit=1000)}
            expect_equal(found, {own[name], sha256_of(b"shared")}, f"blobs of workspace {name[:20]!r}")
            expect_same(await read_back(backend, name, own[name]), name.encode(), f"read in {name[:20]!r}")
        for first, second in pairwise(CRAFTED_WORKSPACES):
            with raises(NoSuchBlob, f"blob of {second[:20]!r} looked for in {first[:20]!r}"):
                await backend.stat(first, own[second])
        await backend.delete("acme", sha256_of(b"shared"), unless_modified_since=_LATE)
        expect_same(
            await read_back(backend, "Acme", sha256_of(b"shared")),
            b"shared",
            "blob deleted in another workspace",
        )
        expect_equal(list(await kit.leftovers()), [], "what crafted workspaces left elsewhere")


async def check_crafted_digests(kit: ArtifactKit) -> None:
    """Strings that are no digest name no blob, whatever they would mean as a path or an address."""
    async with kit.handle() as backend:
        sha256 = await put_all(backend, "acme", [b"content"])
        digests = (
            "",
            ".",
            "..",
            "../" + sha256,
            sha256.upper(),
            sha256 + "\n",
            sha256[:-1],
            "a" * 65,
            "\x00" * 64,
        )
        for crafted in (*digests, "label", "lock", f"{sha256[:2]}/{sha256}", "%2e%2e/x", "é" * 64):
            with raises(NoSuchBlob, f"stat of {crafted!r}"):
                await backend.stat("acme", crafted)
            with raises(NoSuchBlob, f"read of {crafted!r}"):
                await read_back(backend, "acme", crafted)
            with raises(NoSuchBlob, f"delete of {crafted!r}"):
                await backend.delete("acme", crafted, unless_modified_since=_LATE)
        expect_same(await read_back(backend, "acme", sha256), b"content", "the blob that has a digest")


async def check_delete(kit: ArtifactKit) -> None:
    """A blob goes unless it was put at or after the time; what is not there is gone."""
    async with kit.handle() as backend, kit.handle() as other:
        sha256 = await put_all(backend, "acme", [b"content"])
        modified = (await backend.stat("acme", sha256)).modified
        for since in (modified, modified - 1, 0):
            gone = await backend.delete("acme", sha256, unless_modified_since=since)
            expect_equal(gone, False, f"delete unless modified since {since}, of a blob of {modified}")
            expect_same(
                await read_back(other, "acme", sha256), b"content", "read after a delete that was refused"
            )
        gone = await backend.delete("acme", sha256, unless_modified_since=modified + 1)
        expect_equal(gone, True, "delete of an older blob")
        for handle in (backend, other):
            await expect_absent(handle, "acme", sha256)
        expect_equal(
            await backend.delete("acme", sha256, unless_modified_since=0), True, "delete of what is gone"
        )
        expect_equal(
            await backend.delete("no one", sha256, unless_modified_since=0), True, "delete where nothing was"
        )


async def check_publish_after_delete(kit: ArtifactKit) -> None:
    """Bytes that were staged before a deletion are whole and visible when published after it."""
    content = content_of(5000)
    async with kit.handle() as backend:
        await put_all(backend, "acme", [content])
        async with await backend.put("acme", stream([content])) as staged:
            for _ in range(2):
                await backend.delete("acme", staged.sha256, unless_modified_since=_LATE)
                await expect_absent(backend, "acme", staged.sha256)
                await staged.publish()
                expect_same(
                    await read_back(backend, "acme", staged.sha256), content, "read after delete and publish"
                )


async def check_delete_meets_publish(kit: ArtifactKit) -> None:
    """A publish that meets the deletion of an older blob of its digest: the blob is there afterwards."""
    content = content_of(2000)
    sha256 = sha256_of(content)
    async with kit.handle() as backend, kit.handle() as other:
        await put_all(backend, "acme", [content])
        for round_ in range(40):
            old = (await backend.stat("acme", sha256)).modified
            await kit.tick()
            async with await backend.put("acme", stream([content])) as staged, create_task_group() as tasks:
                delete = partial(other.delete, "acme", sha256, unless_modified_since=old + 1)
                calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [staged.publish, delete]
                for call in calls if round_ % 2 else calls[::-1]:
                    tasks.start_soon(call)
            expect_same(
                await read_back(backend, "acme", sha256),
                content,
                f"round {round_}: read after publish and delete",
            )


async def check_flat_memory(kit: ArtifactKit) -> None:
    """64 MB are streamed in and out in memory that does not grow with them."""
    if kit.memory_bound is None:
        raise NotApplicable("it holds its blobs in memory")
    piece, count = content_of(256 << 10), 256
    digest = hashlib.sha256()
    async with kit.handle() as backend:
        with traced_peak() as peak:
            sha256 = await put_all(backend, "acme", (piece for _ in range(count)))
            async for chunk in backend.open("acme", sha256):
                digest.update(chunk)
        expect_equal(digest.hexdigest(), sha256, "digest of the 64 MB that were read")
        expect_true(
            peak[0] <= kit.memory_bound, f"64 MB took {peak[0]} bytes of memory, at most {kit.memory_bound}"
        )


CHECKS: tuple[Check, ...] = (
    check_sizes,
    check_odd_chunks,
    check_invisible_until_published,
    check_published_stays,
    check_stream_that_raises,
    check_cancelled_put,
    check_publish_race,
    check_published_twice,
    check_ranges,
    check_damage,
    check_paging,
    check_paging_meets_changes,
    check_workspaces,
    check_crafted_digests,
    check_delete,
    check_publish_after_delete,
    check_delete_meets_publish,
    check_flat_memory,
)

_LATE = 1 << 62
"""A time after every put."""
