"""Collection: what has had its time goes, what something holds stays, also beside puts at the same moment."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import define, evolve, field
from harness.blobs import no_upload_is_lost_to_a_collection, orphan
from harness.engine import Note, Sim, World, carrying, for_ever, job, simulated
from harness.loop import SimLoop

from perdure.artifacts import BlobPage, FileArtifacts
from perdure.machines import ArtifactRef, Fire, Machine, Namespace, Retry, State, Step, record
from perdure.runtime import _collect
from perdure.runtime._collect import Collected, collect
from perdure.stores import Artifacts, Expire, Expired, Page, Query, SQLiteStore

HOUR = timedelta(hours=1)
NOTHING = Expired(memory=0, artifacts=0, keys=0)


@record
class Holding:
    """A fact that cites an artifact."""

    ref: ArtifactRef


holdings = Namespace("holding", Holding)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def upload(sim: Sim, text: str, days: float | None = None) -> ArtifactRef:
    expires = None if days is None else timedelta(days=days)
    uploads = sim.client().artifacts
    return await uploads.put(text.encode(), media_type="text/plain", workspace="w", expires=expires)


def texts(sim: Sim) -> list[str]:
    """What the blobs that are left hold."""
    return sorted(held.content.decode() for held in sim.artifacts._blobs.values())


async def gc(sim: Sim, grace: timedelta = HOUR, **more: Any) -> Collected:
    return await collect(sim.store, sim.artifacts, sim.loop.now, grace=grace, **more)


# --- what holds a blob ------------------------------------------------------------------------------


@simulated
async def test_a_blob_that_nothing_holds_goes_after_the_grace_and_not_before(loop: SimLoop) -> None:
    sim = Sim(loop)
    await orphan(sim.artifacts, "alone")
    await asyncio.sleep(3600)
    assert await gc(sim) == Collected(expired=NOTHING, young=1)
    assert texts(sim) == ["alone"]
    await asyncio.sleep(1)
    assert await gc(sim, dry_run=True) == Collected(expired=NOTHING, blobs=1, size_bytes=5)
    assert texts(sim) == ["alone"]
    assert await gc(sim) == Collected(expired=NOTHING, blobs=1, size_bytes=5)
    assert texts(sim) == []
    assert await gc(sim) == Collected(expired=NOTHING)


@simulated
async def test_an_upload_holds_its_blob_until_it_expires(loop: SimLoop) -> None:
    sim = Sim(loop)
    await upload(sim, "kept")
    await upload(sim, "month", days=30)
    await upload(sim, "shared", days=30)
    await upload(sim, "shared")
    await asyncio.sleep(30 * 86400 - 1)
    assert (await gc(sim)).held == 3
    await asyncio.sleep(1)
    expected = Collected(expired=Expired(memory=0, artifacts=2, keys=0), blobs=1, size_bytes=5, held=2)
    assert await gc(sim, dry_run=True) == expected
    assert (len(sim.artifacts._blobs), len(await sim.store_rows(Artifacts(workspace="w")))) == (3, 4)
    assert await gc(sim) == expected
    assert texts(sim) == ["kept", "shared"]
    assert len(await sim.store_rows(Artifacts(workspace="w"))) == 2


@simulated
async def test_a_thread_holds_what_it_put_also_when_it_has_ended_is_parked_or_was_killed(
    loop: SimLoop,
) -> None:
    async def ends(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.artifacts.put(b"ended", media_type="text/plain")
        return machine.finished()

    async def fails(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.artifacts.put(b"parked", media_type="text/plain")
        raise ValueError

    async def hangs(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.artifacts.put(b"killed", media_type="text/plain")
        await for_ever()

    sim = Sim(loop)
    for body, status in ((ends, "ended"), (fails, "parked"), (hangs, "running")):
        engine = await sim.engine(machine := job(body, name=status.title(), retry=Retry(attempts=1)))
        await engine.start(machine, thread_id=status)
        await asyncio.sleep(1)
        assert (await sim.row(status)).standing.status == status
        engine.kill()
    await asyncio.sleep(10 * 86400)
    assert (await gc(sim)).held == 3
    assert texts(sim) == ["ended", "killed", "parked"]


@simulated
async def test_what_a_thread_put_is_held_whatever_its_record_says_of_an_end(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.artifacts.put(b"kept", media_type="text/plain")
        return machine.finished()

    sim = Sim(loop)
    machine = job(body)
    await (await sim.engine(machine)).start(machine)
    await sim.until("ended")
    artifacts = sim.store._tables.artifacts
    for name, row in list(artifacts.items()):
        artifacts[name] = evolve(row, expires=loop.now())
    await asyncio.sleep(3700)
    assert await gc(sim) == Collected(expired=NOTHING, held=1)


@simulated
async def test_what_a_step_did_not_ask_for_in_the_end_is_held_by_nobody(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        if step.attempt == 1:
            await step.artifacts.put(b"dropped", media_type="text/plain")
            raise ValueError
        return machine.finished()

    sim = Sim(loop)
    machine = job(body)
    await (await sim.engine(machine)).start(machine)
    await sim.until("ended")
    await asyncio.sleep(3700)
    assert (await gc(sim)).blobs == 1


@simulated
async def test_memory_holds_what_its_versions_cite_until_they_expire(loop: SimLoop) -> None:
    sim = Sim(loop)
    memory = sim.client().memory
    for text in ("newest", "former", "deleted", "expires"):
        ref = await upload(sim, text, days=1)
        await memory.put(
            holdings,
            "k" if text == "former" else text,
            Holding(ref=ref),
            workspace="w",
            expires=timedelta(days=9) if text == "expires" else None,
        )
    await memory.put(holdings, "k", Holding(ref=await upload(sim, "latter", days=1)), workspace="w")
    await memory.delete(holdings, "deleted", workspace="w")
    await upload(sim, "uncited", days=1)
    await upload_elsewhere(sim, "newest")
    await asyncio.sleep(2 * 86400)
    assert await gc(sim) == Collected(
        expired=Expired(memory=0, artifacts=7, keys=0), blobs=2, size_bytes=13, held=5
    )
    assert texts(sim) == ["deleted", "expires", "former", "latter", "newest"]
    await asyncio.sleep(8 * 86400)
    expected = Collected(expired=Expired(memory=1, artifacts=0, keys=0), blobs=1, size_bytes=7, held=4)
    assert await gc(sim, dry_run=True) == expected
    assert await gc(sim) == expected
    assert texts(sim) == ["deleted", "former", "latter", "newest"]


async def upload_elsewhere(sim: Sim, text: str) -> None:
    """The same bytes in another workspace, whose memory does not cite them."""
    await sim.client().artifacts.put(
        text.encode(), media_type="text/plain", workspace="v", expires=timedelta(days=1)
    )


# --- bounded ----------------------------------------------------------------------------------------


@simulated
async def test_it_reads_page_by_page_and_keeps_no_more_than_it_looks_for_together(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_collect, "BLOBS_A_PAGE", 7)
    monkeypatch.setattr(_collect, "UNHELD_AT_ONCE", 10)
    monkeypatch.setattr(_collect, "RECORDS_AT_ONCE", 4)
    monkeypatch.setattr(_collect, "FACTS_A_PAGE", 3)
    sim = Sim(loop)
    memory = sim.client().memory
    for n in range(35):
        ref = await upload(sim, f"{n:02}", days=1)
        if n % 5 == 0:
            await memory.put(holdings, str(n), Holding(ref=ref), workspace="w")
    for workspace in ("a", "b", "x"):
        await orphan(sim.artifacts, "alone", workspace)
    await asyncio.sleep(2 * 86400)
    watched: Any = Watched(sim)
    done = await collect(watched, watched, loop.now, grace=HOUR)
    assert (done.expired.artifacts, done.blobs, done.held) == (35, 28 + 3, 7)
    assert texts(sim) == [f"{n:02}" for n in range(0, 35, 5)]
    assert watched.limits <= {7, 1, 3}
    assert watched.expired == [4] * 8 + [3]


@define
class Watched:
    """A store and a backend that note how much they are asked for."""

    sim: Sim
    limits: set[int] = field(factory=set[int])
    expired: list[int] = field(factory=list[int])

    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        self.limits.add(limit)
        return await self.sim.store.page(query, after=after, limit=limit)

    async def list(
        self, workspace: str | None = None, /, *, after: str | None = None, limit: int = 100
    ) -> BlobPage:
        self.limits.add(limit)
        return await self.sim.artifacts.list(workspace, after=after, limit=limit)

    async def expire(self, request: Expire, /) -> Expired:
        done = await self.sim.store.expire(request)
        self.expired.append(done.total)
        return done

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        return await self.sim.artifacts.delete(workspace, sha256, unless_modified_since=unless_modified_since)


# --- beside puts ------------------------------------------------------------------------------------


class Slowly:
    """A store or backend whose answers take their time, so that others act between any two of them."""

    def __init__(self, inner: Any, rng: Random) -> None:
        self._inner = inner
        self._rng = rng

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self.wait()
            answer = await method(*args, **kwargs)
            await self.wait()
            return answer

        return call

    async def wait(self) -> None:
        await asyncio.sleep(0.0002 * self._rng.random())


class OfLate(Slowly):
    """Lists the blobs of the last tenth of a second alone: all that came before are held for good."""

    async def list(self, after: str | None, limit: int) -> BlobPage:
        await self.wait()
        page: BlobPage = await self._inner.list(None, after=after, limit=1000)
        since = self._inner._clock() - 100_000
        return evolve(page, blobs=tuple(blob for blob in page.blobs if blob.modified > since))


class IgnoresTheStamp(OfLate):
    """Deletes whatever lay there when the roots were looked for."""

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        await self.wait()
        later = unless_modified_since + 10**15
        return bool(await self._inner.delete(workspace, sha256, unless_modified_since=later))


class StampsAfterTheRoots(OfLate):
    """Sets the moment that a blob must be older than once the roots have been looked for."""

    async def delete(self, workspace: str, sha256: str, /, *, unless_modified_since: int) -> bool:
        await self.wait()
        now = int(self._inner._clock())
        return bool(await self._inner.delete(workspace, sha256, unless_modified_since=now))


class LooksAtRootsBefore(Slowly):
    """Answers for an artifact's records as they stood before the collection began."""

    def __init__(self, inner: Any, rng: Random) -> None:
        super().__init__(inner, rng)
        self.known = dict(inner._tables.artifacts)

    async def page(self, query: Any, /, **options: Any) -> Page[Any]:
        if not isinstance(query, Artifacts):
            return await self._inner.page(query, **options)  # type: ignore[no-any-return]
        await self.wait()
        rows = [
            row for (w, _), row in self.known.items() if (w, row.sha256) == (query.workspace, query.sha256)
        ]
        return Page(rows=rows, next=None)


STEPS = 100
THREADS = 20


def putting(sim: Sim, chance: Random) -> Any:
    """Each of its steps puts bytes that lie there already, held by nobody, and commits."""

    class Puts(Machine[Note, World], version=1, calls=()):
        """Puts and goes on."""

        working = State(initial=True)
        done = State(final=True)
        again = working.to(working)
        finished = working.to(done)

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            text = f"{step.thread_id}/{step.seq}"
            await orphan(sim.artifacts, text)
            await asyncio.sleep(0.02 * chance.random())
            await step.artifacts.put(text.encode(), media_type="text/plain")
            return self.finished() if step.seq == STEPS - 1 else self.again()

    return Puts


async def race(loop: SimLoop, store_of: Any, artifacts_of: Any, seed: int, kills: int = 0) -> list[str]:
    """Collect in a tight loop without any grace while 2000 steps put and commit; what is missing then."""
    sim = Sim(loop, seed=seed)
    rng = Random(seed)
    sim.machines = (machine := putting(sim, rng),)
    engine = await sim.engine()
    for n in range(THREADS):
        await engine.start(machine, thread_id=str(n))
    collecting = loop.create_task(tight_loop(sim, store_of, artifacts_of, rng))
    for _ in range(kills):
        engine.store.fault("kill after", carrying("artifact"), skip=200 + rng.randrange(100))
        await sim.until_dead(engine)
        engine = await sim.engine()
    for n in range(THREADS):
        await sim.until("ended", thread_id=str(n))
    collecting.cancel()
    rows = await sim.store_rows(Artifacts(workspace="w"))
    assert len(rows) == STEPS * THREADS
    held = {sha256 for _, sha256 in sim.artifacts._blobs}
    return [row.id for row in rows if row.sha256 not in held]


async def tight_loop(sim: Sim, store_of: Any, artifacts_of: Any, rng: Random) -> None:
    while True:
        store, artifacts = store_of(sim.store, rng), artifacts_of(sim.artifacts, rng)
        await asyncio.sleep(0.001)
        await collect(store, artifacts, sim.loop.now, grace=timedelta(0))


@simulated
async def test_no_artifact_is_lost_to_a_collection_beside_two_thousand_puts(loop: SimLoop) -> None:
    assert await race(loop, Slowly, OfLate, seed=1) == []


@simulated
async def test_nor_where_processes_die_between_the_record_and_the_commit(loop: SimLoop) -> None:
    assert await race(loop, Slowly, OfLate, seed=2, kills=3) == []


@pytest.mark.parametrize(
    ("store_of", "artifacts_of"),
    [(Slowly, IgnoresTheStamp), (Slowly, StampsAfterTheRoots), (LooksAtRootsBefore, OfLate)],
    ids=["stamp ignored", "stamp after the roots", "roots before the mark"],
)
@simulated
async def test_a_faulty_collection_loses_some(loop: SimLoop, store_of: Any, artifacts_of: Any) -> None:
    assert await race(loop, store_of, artifacts_of, seed=3) != []


@pytest.mark.anyio
async def test_no_upload_is_lost_to_a_collection_beside_it_on_a_disk(tmp_path: Path) -> None:
    store, artifacts = SQLiteStore(tmp_path / "perdure.db"), FileArtifacts(tmp_path / "artifacts")
    async with store, artifacts:
        await no_upload_is_lost_to_a_collection(store, artifacts, 150)


def test_the_sizes_of_the_race_are_the_ones_that_are_promised() -> None:
    sizes: Sequence[int] = (STEPS, THREADS)
    assert sizes[0] * sizes[1] == 2000
