"""What an artifact was made from: inferred from what its step used, the same whatever dies on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from harness.engine import Note, Refused, Sim, World, brief, carrying, fresh, job, looked, simulated
from harness.loop import SimLoop
from hypothesis import given
from hypothesis import strategies as st

from perdure.machines import ArtifactRef, Namespace, NotDone, Retry, Step, record
from perdure.runtime._provenance import MORE, Trail, ids_in
from perdure.stores import MAX_ID, MAX_SOURCES, Artifacts


@record
class Holding:
    """A fact that cites an artifact."""

    ref: ArtifactRef


holdings = Namespace("holding", Holding)


async def put(step: Step[World], text: str, *sources: ArtifactRef) -> ArtifactRef:
    return await step.artifacts.put(text.encode(), media_type="text/plain", derived_from=sources)


async def upload(sim: Sim, text: str) -> ArtifactRef:
    return await sim.client().artifacts.put(text.encode(), media_type="text/plain", workspace="w")


async def sources(sim: Sim) -> list[tuple[str, ...]]:
    """What each artifact that a thread put was made from, in the order of the puts."""
    rows = [row for row in await sim.store_rows(Artifacts(workspace="w")) if row.thread_id is not None]
    put_first = [e["id"] for e in await sim.entries("artifact")]
    return [row.derived_from for row in sorted(rows, key=lambda row: put_first.index(row.id))]


async def run(sim: Sim, body: Any, **options: Any) -> str:
    machine = job(body, **options)
    await (await sim.engine(machine)).start(machine)
    return (await sim.until("ended", "parked")).standing.status


# --- what counts as used ----------------------------------------------------------------------------


@simulated
async def test_calls_that_were_answered_artifacts_and_facts_are_sources_in_the_order_of_their_use(
    loop: SimLoop,
) -> None:
    sim = Sim(loop)
    opened, given_, cited, kept, later = [await upload(sim, text) for text in "abcde"]
    await sim.client().memory.put(holdings, "x", Holding(ref=kept), workspace="w")
    sim.world.next_reads("brief", cited.id)

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        nothing = await put(step, "1")
        await step.artifacts.get(opened)
        await step.call(fresh, "a")
        await step.call(fresh, given_.id)
        await step.call(brief, "b")
        await step.memory.get(holdings, "x")
        await step.memory.get(holdings, "nobody")
        await step.now()
        await step.call(looked, nothing.id)
        await put(step, "2")
        await step.artifacts.get(later)
        return machine.finished()

    assert await run(sim, body) == "ended"
    first, second = await sources(sim)
    assert first == ()
    (key,) = sim.world.keys
    (nothing,) = [e["id"] for e in await sim.entries("artifact")][:1]
    assert second == (
        opened.id,
        "read:fresh@0/main/0",
        given_.id,
        "read:fresh@0/main/1",
        cited.id,
        "read:brief@0/main/0",
        kept.id,
        "memory:holding/x@1",
        nothing,
        f"effect:looked@{key}",
    )


@simulated
async def test_what_was_not_answered_is_no_source(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.next_reads("fresh", ConnectionError())
    sim.world.reply("looked", Refused())

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        with pytest.raises(ConnectionError):
            await step.call(fresh, "a")
        with pytest.raises(NotDone):
            await step.call(looked, "b")
        pending = step.call(fresh, "c")
        await put(step, "1")
        await pending
        return machine.finished()

    assert await run(sim, body) == "ended"
    assert await sources(sim) == [()]


@simulated
async def test_a_lane_has_what_the_lanes_around_it_used_and_not_what_others_did(loop: SimLoop) -> None:
    sim = Sim(loop)

    async def strand(step: Step[World], name: str) -> None:
        lane = step.lane(name)
        await lane.call(fresh, name)
        await put(lane, name)

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.call(fresh, "first")
        await asyncio.gather(strand(step, "x"), strand(step, "y"))
        await put(step, "last")
        return machine.finished()

    assert await run(sim, body) == "ended"
    assert await sources(sim) == [
        ("read:fresh@0/main/0", "read:fresh@0/main/x/0"),
        ("read:fresh@0/main/0", "read:fresh@0/main/y/0"),
        ("read:fresh@0/main/0",),
    ]


@simulated
async def test_sources_named_by_hand_come_first_and_once(loop: SimLoop) -> None:
    sim = Sim(loop)
    a, b = await upload(sim, "a"), await upload(sim, "b")

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.artifacts.get(a)
        await step.call(fresh, "x")
        await put(step, "1", b, a, b)
        return machine.finished()

    assert await run(sim, body) == "ended"
    assert await sources(sim) == [(b.id, a.id, "read:fresh@0/main/0")]


# --- the same whatever dies -------------------------------------------------------------------------


async def work(machine: Any, data: Note, step: Step[World]) -> Any:
    """Two puts, with calls before and between them."""
    await step.call(brief, "a")
    ref = await put(step, "made")
    await step.call(looked, ref.id)
    await step.call(fresh, "b")
    await put(step, "after")
    return machine.finished()


def writes(method: str, write: Any) -> bool:
    return method == "commit"


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(4))
@simulated
async def test_killed_at_any_write_the_sources_are_those_of_an_undisturbed_run(
    loop: SimLoop, write: int, applied: bool
) -> None:
    machine = job(work)
    sim = Sim(loop, machine)
    first = await sim.engine()
    first.store.fault("kill after" if applied else "kill before", writes, skip=write)
    await first.start(machine)
    await sim.until_dead(first)
    await sim.engine()
    await sim.until("ended")
    (made, _) = [e["id"] for e in await sim.entries("artifact")]
    key = sim.world.keys[0]
    assert await sources(sim) == [
        ("read:brief@0/main/0",),
        ("read:brief@0/main/0", made, f"effect:looked@{key}", "read:fresh@0/main/0"),
    ]


@simulated
async def test_the_id_of_a_ref_does_not_depend_on_its_sources(loop: SimLoop) -> None:
    sim = Sim(loop)

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        if step.attempt == 1:
            await step.call(fresh, "in the first attempt only")
        ref = await put(step, "the same")
        if step.attempt == 1:
            raise ValueError
        return machine.finished(text=ref.id)

    assert await run(sim, body, retry=Retry(attempts=2, delay=timedelta(seconds=1))) == "ended"
    (entry,) = await sim.entries("artifact")
    assert (await sim.thread(job(body)).data()).text == entry["id"]
    assert await sources(sim) == [("read:fresh@0/main/0",)]  # as it was recorded, before it was visible


@simulated
async def test_a_resumed_attempt_that_puts_for_the_first_time_names_what_it_was_served(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.call(fresh, "a")
        text = await step.call(looked, "b")
        await put(step, text)
        return machine.finished()

    machine = job(body)
    sim = Sim(loop, machine)
    first = await sim.engine()
    first.store.fault("kill before", carrying("artifact"))
    await first.start(machine)
    await sim.until_dead(first)
    await sim.engine()
    await sim.until("ended")
    assert await sources(sim) == [("read:fresh@0/main/0", f"effect:looked@{sim.world.keys[0]}")]
    assert sim.world.asked == ["fresh/a"]


# --- bounds -----------------------------------------------------------------------------------------


@simulated
async def test_past_the_limit_the_oldest_give_way_and_it_says_so(loop: SimLoop) -> None:
    sim = Sim(loop)
    refs = [await upload(sim, str(n)) for n in range(3)]

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        for n in range(MAX_SOURCES):
            await step.call(fresh, str(n))
        await put(step, "as many as fit")
        await step.call(fresh, "one more")
        await put(step, "one too many")
        await put(step, "more", *refs)
        return machine.finished()

    assert await run(sim, body) == "ended"
    names = [f"read:fresh@0/main/{n}" for n in range(MAX_SOURCES + 1)]
    by_hand = tuple(ref.id for ref in refs)
    assert await sources(sim) == [
        tuple(names[:MAX_SOURCES]),
        (*names[-(MAX_SOURCES - 1) :], MORE),
        (*by_hand, *names[-(MAX_SOURCES - 4) :], MORE),
    ]


@simulated
async def test_more_by_hand_than_are_kept_is_refused_before_anything_is_written(loop: SimLoop) -> None:
    sim = Sim(loop)
    refs = [await upload(sim, str(n)) for n in range(MAX_SOURCES + 1)]

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.call(fresh, "a")
        await put(step, "full", *refs[1:])
        await put(step, "over", *refs)
        return machine.finished()

    assert await run(sim, body, retry=Retry(attempts=1)) == "parked"
    note = (await sim.row()).standing.note or ""
    assert f"derived_from= names {MAX_SOURCES + 1} artifacts: at most {MAX_SOURCES}" in note
    assert await sources(sim) == [tuple(ref.id for ref in refs[1:])]


def test_a_long_name_is_cut_and_still_tells_itself_from_others() -> None:
    trail = Trail(3)
    names = ["memory:" + "\u2603" * 200 + "/" + "k" * 200 + f"{n}@1" for n in range(2)]
    trail.use("main", names)
    found = trail.sources("main", (), "art_x")
    assert len(set(found)) == 2
    for name, kept in zip(names, found, strict=True):
        assert len(kept.encode()) <= MAX_ID
        assert name.startswith(kept.partition("~")[0])


def test_ids_are_found_among_strings_alone() -> None:
    one, two = f"art_{'0' * 31}1", f"art_{'0' * 31}2"
    encoded = f'{{"a":[{{"id":"{two}"}},"{one}","{two}"],"b":"x {one}","c":"\\"{one}x\\""}}'.encode()
    assert ids_in(encoded) == (two, one)


lanes = st.sampled_from(["main", "main/x", "main/x/y", "main/z", "other"])
steps = st.lists(st.tuples(lanes, st.integers(0, 100)), max_size=200)


@given(steps, lanes, st.lists(st.integers(0, 100), max_size=MAX_SOURCES))
def test_sources_are_bounded_distinct_and_of_lanes_around(
    used: Sequence[tuple[str, int]], lane: str, by_hand: list[int]
) -> None:
    trail = Trail(0)
    for at, n in used:
        trail.use(at, [f"s{n}"])
    hand = tuple(f"s{n}" for n in by_hand)
    found = trail.sources(lane, hand, "s7")
    around = {f"s{n}" for at, n in used if lane == at or lane.startswith(f"{at}/")} - {"s7"}
    assert len(found) <= MAX_SOURCES
    assert len(set(found)) == len(found)
    assert set(hand) <= set(found)
    assert set(found) - {MORE} <= around | set(hand)
    if MORE not in found and len(hand) < MAX_SOURCES:
        assert set(found) == around | set(hand)
