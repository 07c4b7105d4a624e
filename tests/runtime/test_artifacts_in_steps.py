"""Artifacts that steps put: one ref a put whatever dies, and only what the transition asked for."""

from __future__ import annotations

import hashlib
from asyncio import sleep
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve
from harness.engine import HANG, Note, Sim, World, carrying, for_ever, job, looked, simulated
from harness.loop import EPOCH, SimLoop

from perdure.artifacts import BlobDamaged, NoSuchBlob
from perdure.machines import ArtifactRef, Fire, Machine, Retry, State, Step
from perdure.stores import ArtifactRow, Artifacts

BLOB = b"a summary"
SHA = hashlib.sha256(BLOB).hexdigest()


async def put(
    step: Step[World], data: Any = BLOB, media_type: str = "text/plain", **more: Any
) -> ArtifactRef:
    return await step.artifacts.put(data, media_type=media_type, **more)


async def records(sim: Sim) -> list[ArtifactRow]:
    return list((await sim.store.page(Artifacts(workspace="w"))).rows)


async def run(sim: Sim, body: Any, **options: Any) -> Any:
    """Start a thread in a new process and wait until it ends or parks."""
    machine = job(body, **options)
    await (await sim.engine(machine)).start(machine, principal="agent:x")
    return await sim.until("ended", "parked")


def blobs(sim: Sim) -> set[str]:
    return {sha256 for _, sha256 in sim.artifacts._blobs}


# --- one put ----------------------------------------------------------------------------------------


@simulated
async def test_a_put_is_recorded_with_its_provenance_before_the_blob_is_visible(loop: SimLoop) -> None:
    visible: list[int] = []

    def looks(method: str, write: Any) -> bool:
        if carrying("artifact")(method, write):
            visible.append(len(blobs(sim)))
        return False

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        source = await put(step, b"source")
        ref = await put(step, derived_from=[source])
        return machine.finished(lines=[source.id, ref.id])

    sim = Sim(loop)
    machine = job(body)
    engine = await sim.engine(machine)
    engine.store.fault("delay", looks)
    await engine.start(machine, principal="agent:x")
    row = await sim.until("ended")
    assert visible == [0, 1]
    source, made = (await sim.thread(machine).data()).lines
    rows = {record.id: record for record in await records(sim)}
    assert set(rows) == {source, made}
    assert rows[made] == ArtifactRow(
        id=made,
        workspace="w",
        sha256=SHA,
        size_bytes=len(BLOB),
        media_type="text/plain",
        principal="agent:x",
        thread_id="t",
        incarnation=row.incarnation,
        seq=0,
        derived_from=(source,),
        created=EPOCH,
    )
    assert await sim.commits() == ["start", "record: artifact", "record: artifact", "transition"]
    assert blobs(sim) == {SHA, hashlib.sha256(b"source").hexdigest()}


@pytest.mark.parametrize("applied", [False, True])
@simulated
async def test_killed_at_its_record_no_blob_is_visible_and_the_next_put_gives_the_same_ref(
    loop: SimLoop, applied: bool
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        ref = await put(step)
        return machine.finished(text=await step.call(looked, ref.id))

    machine = job(body)
    sim = Sim(loop, machine)
    first = await sim.engine()
    first.store.fault("kill after" if applied else "kill before", carrying("artifact"))
    await first.start(machine)
    await sim.until_dead(first)
    assert (len(await records(sim)), blobs(sim)) == (applied, set())
    await sim.engine()
    await sim.until("ended")
    (row,) = await records(sim)
    assert [a.args for a in sim.world.arrivals] == [(row.id,)]
    assert blobs(sim) == {SHA}
    assert len(await sim.entries("artifact")) == 1


@simulated
async def test_a_put_again_gives_the_same_ref_and_with_it_the_effect_its_key(loop: SimLoop) -> None:
    """Killed while the effect that was given the ref is in doubt."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        ref = await put(step)
        return machine.finished(text=await step.call(looked, ref.id))

    machine = job(body)
    sim = Sim(loop, machine)
    sim.world.reply("looked", HANG)
    first = await sim.engine()
    await first.start(machine)
    await sleep(1)
    first.kill()
    await sim.engine()
    row = await sim.until("ended", "parked")
    assert row.standing.status == "ended"
    assert len(sim.world.arrivals) == 1
    assert [said for said, _ in sim.world.lookups] == ["Found"]


@simulated
async def test_equal_puts_of_one_step_are_several_refs_of_one_blob(loop: SimLoop) -> None:
    runs: list[list[str]] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        refs = [
            await put(step),
            await put(step),
            await put(step, media_type="text/html"),
            await put(step, b"other"),
            await step.lane("beside").artifacts.put(BLOB, media_type="text/plain"),
        ]
        runs.append([ref.id for ref in refs])
        if len(runs) == 1:
            raise ValueError
        return machine.finished()

    sim = Sim(loop)
    await run(sim, body)
    assert len(set(runs[0])) == 5
    assert runs[0] == runs[1]
    assert len(await sim.entries("artifact")) == 5
    assert blobs(sim) == {SHA, hashlib.sha256(b"other").hexdigest()}


@simulated
async def test_another_thread_and_another_visit_of_the_same_bytes_have_refs_of_their_own(
    loop: SimLoop,
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=(await put(step)).id)

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    for thread_id in ("a", "b"):
        await engine.start(machine, thread_id=thread_id)
        await sim.until("ended", thread_id=thread_id)
    assert len({(await sim.thread(machine, thread_id).data()).text for thread_id in ("a", "b")}) == 2
    assert len(blobs(sim)) == 1


@simulated
async def test_a_stream_is_put_and_one_that_breaks_leaves_nothing(loop: SimLoop) -> None:
    async def chunks(broken: bool) -> AsyncIterator[bytes]:
        yield b"a sum"
        if broken:
            raise OSError("the source broke")
        yield b"mary"

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        with pytest.raises(OSError, match="the source broke"):
            await put(step, chunks(True))
        ref = await put(step, chunks(False))
        return machine.finished(text=ref.sha256)

    sim = Sim(loop)
    await run(sim, body)
    assert (await sim.thread(job(body)).data()).text == SHA
    assert blobs(sim) == {SHA}
    assert len(await records(sim)) == 1


# --- what is not asked for --------------------------------------------------------------------------


@simulated
async def test_a_pending_record_that_the_committing_attempt_did_not_ask_for_is_dropped(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        kept = await put(step, b"in every attempt")
        if step.attempt == 1:
            await put(step, b"in the first attempt only")
            raise ValueError
        return machine.finished(text=kept.id)

    sim = Sim(loop)
    await run(sim, body)
    (row,) = await records(sim)
    assert row.id == (await sim.thread(job(body)).data()).text
    (dropped,) = await sim.entries("artifacts_dropped")
    assert dropped["ids"] == [e["id"] for e in await sim.entries("artifact") if e["id"] != row.id]


@simulated
async def test_what_a_killed_attempt_of_other_code_put_is_dropped(loop: SimLoop) -> None:
    async def before(machine: Any, data: Note, step: Step[World]) -> Any:
        await put(step, b"old")
        await for_ever()

    async def after(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=(await put(step, b"new")).id)

    old, new = job(before), job(after)
    sim = Sim(loop)
    first = await sim.engine(old)
    await first.start(old)
    await sleep(1)
    first.kill()
    assert [row.sha256 for row in await records(sim)] == [hashlib.sha256(b"old").hexdigest()]
    await sim.engine(new)
    await sim.until("ended")
    assert [row.sha256 for row in await records(sim)] == [hashlib.sha256(b"new").hexdigest()]


@simulated
async def test_more_than_one_commit_holds_are_dropped(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        if step.attempt == 1:
            for n in range(130):
                await put(step, str(n).encode())
            raise ValueError
        return machine.finished()

    sim = Sim(loop)
    row = await run(sim, body)
    assert row.standing.status == "ended"
    assert await records(sim) == []
    assert [len(e["ids"]) for e in await sim.entries("artifacts_dropped")] == [50, 50, 30]


@simulated
async def test_what_a_failed_visit_put_is_dropped_by_the_transition_that_leaves_it(loop: SimLoop) -> None:
    class Fails(Machine[Note, World], version=1, calls=()):
        """Puts and fails."""

        working = State(initial=True, retry=Retry(attempts=1))
        given_up = State(final=True)
        done = State(final=True)
        finished = working.to(done)
        gave_up = working.to(given_up).on_failure()

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            await put(step)
            raise ValueError

    sim = Sim(loop, Fails)
    await (await sim.engine()).start(Fails)
    row = await sim.until("ended")
    assert row.standing.state == "given_up"
    assert await records(sim) == []


@simulated
async def test_a_parked_visit_keeps_its_pending_records(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await put(step)
        raise ValueError

    sim = Sim(loop)
    row = await run(sim, body, retry=Retry(attempts=1))
    assert row.standing.status == "parked"
    assert len(await records(sim)) == 1


# --- reading ----------------------------------------------------------------------------------------


@simulated
async def test_a_blob_is_read_whole_and_verified(loop: SimLoop) -> None:
    read: list[bytes] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        ref = await put(step)
        read.append(await step.artifacts.get(ref))
        read.append(b"".join([chunk async for chunk in step.artifacts.open(ref)]))
        held = sim.artifacts._blobs["w", SHA]
        sim.artifacts._blobs["w", SHA] = evolve(held, content=b"tampered with")
        with pytest.raises(BlobDamaged, match=SHA):
            await step.artifacts.get(ref)
        return machine.finished(text="refused")

    sim = Sim(loop)
    row = await run(sim, body)
    assert row.standing.status == "ended"
    assert read == [BLOB, BLOB]


@simulated
async def test_another_workspaces_blob_is_not_to_be_had(loop: SimLoop) -> None:
    sim = Sim(loop)
    client = sim.client()
    ref = await client.artifacts.put(b"theirs", media_type="text/plain", workspace="v")

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        with pytest.raises(NoSuchBlob):
            await step.artifacts.get(ref)
        return machine.finished(text="refused")

    row = await run(sim, body)
    assert row.standing.status == "ended"


# --- outside a thread -------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [None, 7])
@simulated
async def test_an_upload_is_recorded_without_a_thread_and_with_its_expiry(
    loop: SimLoop, days: int | None
) -> None:
    sim = Sim(loop)
    uploads = sim.client().artifacts
    ref = await uploads.put(
        BLOB,
        media_type="application/pdf",
        workspace="w",
        principal="user:ada",
        expires=None if days is None else timedelta(days=days),
    )
    (row,) = await records(sim)
    assert (row.id, row.sha256, row.media_type, row.size_bytes) == (ref.id, SHA, "application/pdf", len(BLOB))
    assert (row.thread_id, row.seq, row.principal, row.created) == (None, None, "user:ada", EPOCH)
    assert row.expires == (None if days is None else EPOCH + days * 24 * 3600 * 1_000_000)
    assert await uploads.get(ref, workspace="w") == BLOB
    again = await uploads.put(BLOB, media_type="application/pdf", workspace="w")
    assert again.id != ref.id
    assert len(blobs(sim)) == 1


@simulated
async def test_a_step_uses_an_upload_by_its_ref_and_names_it_as_source(loop: SimLoop) -> None:
    sim = Sim(loop)
    uploaded = await sim.client().artifacts.put(BLOB, media_type="text/plain", workspace="w")

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        text = await step.artifacts.get(uploaded)
        ref = await put(step, text.upper(), derived_from=[uploaded])
        return machine.finished(text=ref.id)

    await run(sim, body)
    made = (await sim.thread(job(body)).data()).text
    (row,) = [row for row in await records(sim) if row.id == made]
    assert row.derived_from == (uploaded.id,)
    assert await sim.client().artifacts.get(uploaded, workspace="w") == BLOB


@pytest.mark.parametrize(("workspace", "principal"), [("", "x"), ("a\x00", "x"), ("w", ""), ("w", "p" * 256)])
@simulated
async def test_an_upload_under_a_name_that_no_store_could_hold_is_refused_before_anything_is_kept(
    loop: SimLoop, workspace: str, principal: str
) -> None:
    sim = Sim(loop)
    with pytest.raises(Exception, match=r"workspace|principal"):
        await sim.client().artifacts.put(
            BLOB, media_type="text/plain", workspace=workspace, principal=principal
        )
    assert (blobs(sim), sim.store._tables.artifacts) == (set(), {})
