"""Rows R110 to R113 of docs/protocol.md: memory that changes under a step."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from harness.engine import Note, Reply, Sim, World, for_ever, fresh, job, looked, simulated
from harness.loop import SimLoop

from perdure.machines import Call, Namespace, Retry, Step, present, read, record
from perdure.runtime import CallMisuse
from perdure.stores import Memory


def joined(stored: Note, put: Note) -> Note:
    return Note(text=put.text, lines=(*stored.lines, *put.lines))


facts = Namespace("facts", Note)
merging = Namespace("merging", Note, merge=joined)
counts = Namespace("counts", int)


async def run(sim: Sim, body: Any, **options: Any) -> Any:
    """Start a thread in a new process and wait until it ends or parks."""
    machine = job(body, **options)
    await (await sim.engine(machine)).start(machine)
    return await sim.until("ended", "parked")


class Runs:
    """Counts the runs of a handler, and changes memory behind the back of some of them."""

    def __init__(self, sim: Sim, change: Callable[[int], None], *, until: int = 1) -> None:
        self.sim = sim
        self.attempts: list[int] = []
        self._change = change
        self._until = until

    def begin(self, step: Step[World]) -> None:
        self.attempts.append(step.attempt)

    def others_write(self) -> None:
        if len(self.attempts) <= self._until:
            self._change(len(self.attempts))


# --- R110 -----------------------------------------------------------------------------------------


def decides(runs: Runs, touch: str = "get") -> Any:
    """Looks at a fact, and acts on it with an effect."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.begin(step)
        fact: Note | None = Note(text="put")
        if touch == "get":
            fact = await step.memory.get(facts, "k")
        elif touch == "put":
            await step.memory.put(facts, "k", Note(text="put"))
        else:
            await step.memory.update(counts, "k", lambda n: (n or 0) + 1)
        runs.others_write()
        return machine.finished(text=await step.call(looked, "none" if fact is None else fact.text or ""))

    return body


@simulated
async def test_r110_an_intent_that_rests_on_a_changed_version_is_refused_and_the_visit_runs_again(
    loop: SimLoop,
) -> None:
    sim = Sim(loop)
    sim.change_memory(facts, "k", Note(text="old"))
    runs = Runs(sim, lambda n: sim.change_memory(facts, "k", Note(text="new")))
    row = await run(sim, decides(runs), retry=Retry(attempts=1))
    assert row.standing.status == "ended"
    assert runs.attempts == [1, 1]
    assert [a.args for a in sim.world.arrivals] == [("new",)]
    assert await sim.commits() == ["start", "record: conflict", "record: read intent", "transition: done"]
    (conflict,) = await sim.entries("conflict")
    assert conflict["changed"] == [["facts", "k", 2]]


@simulated
async def test_r110_a_key_that_was_not_there_counts_as_a_version(loop: SimLoop) -> None:
    sim = Sim(loop)
    runs = Runs(sim, lambda n: sim.change_memory(facts, "k", Note(text="new")))
    await run(sim, decides(runs))
    assert [a.args for a in sim.world.arrivals] == [("new",)]
    assert runs.attempts == [1, 1]


@pytest.mark.parametrize(("touch", "namespace"), [("put", facts), ("update", counts)])
@simulated
async def test_r110_a_key_that_the_step_means_to_write_is_judged_by_an_intent_too(
    loop: SimLoop, touch: str, namespace: Namespace[Any]
) -> None:
    sim = Sim(loop)
    value: Any = Note(text="new") if touch == "put" else 7
    runs = Runs(sim, lambda n: sim.change_memory(namespace, "k", value))
    await run(sim, decides(runs, touch))
    assert runs.attempts == [1, 1]
    assert len(sim.world.arrivals) == 1
    assert await sim.memory(namespace, "k") == ([value, Note(text="put")] if touch == "put" else [7, 8])


@simulated
async def test_r110_five_times_at_the_most_then_it_parks_and_a_retry_counts_anew(loop: SimLoop) -> None:
    sim = Sim(loop)
    runs = Runs(sim, lambda n: sim.change_memory(facts, "k", Note(text=f"v{n}")), until=7)
    row = await run(sim, decides(runs), retry=Retry(attempts=1))
    assert (row.standing.status, row.standing.reason) == ("parked", "conflict")
    assert "it changed under 5 runs" in row.standing.note
    assert runs.attempts == [1] * 6
    assert await sim.commits() == ["start", *["record: conflict"] * 5, "park: park"]
    assert sim.world.arrivals == []
    await sim.thread(job(decides(runs))).retry()
    await sim.until("ended")
    assert len(runs.attempts) == 8
    assert [a.args for a in sim.world.arrivals] == [("v7",)]


@simulated
async def test_r110_an_effect_under_way_is_awaited_and_served_to_the_next_run(loop: SimLoop) -> None:
    """Its intent rested on nothing that changed."""
    runs = 0

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        nonlocal runs
        runs += 1

        async def decided() -> str:
            await sleep(1)
            fact = await step.memory.get(facts, "k")
            if runs == 1:
                sim.change_memory(facts, "k", Note(text="new"))
            return await step.call(looked, "none" if fact is None else fact.text or "")

        return machine.finished(lines=await asyncio.gather(step.call(looked, "first"), decided()))

    sim = Sim(loop)
    sim.world.reply("looked", Reply(takes=8.0))
    row = await run(sim, body)
    assert (row.standing.status, runs) == ("ended", 2)
    assert [a.args[0] for a in sim.world.arrivals] == ["first", "new"]
    assert loop.elapsed == 9


# --- R111 -----------------------------------------------------------------------------------------


def puts(runs: Runs, namespace: Namespace[Note]) -> Any:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.begin(step)
        fact = await step.memory.get(namespace, "k")
        seen = "none" if fact is None else fact.text
        await step.memory.put(namespace, "k", Note(text=f"after {seen}", lines=("mine",)))
        runs.others_write()
        return machine.finished(text=seen)

    return body


@simulated
async def test_r111_a_put_over_a_changed_version_runs_the_visit_again(loop: SimLoop) -> None:
    sim = Sim(loop)
    runs = Runs(sim, lambda n: sim.change_memory(facts, "k", Note(text="theirs")))
    row = await run(sim, puts(runs, facts), retry=Retry(attempts=1))
    assert (row.standing.status, runs.attempts) == ("ended", [1, 1])
    assert await sim.memory(facts, "k") == [
        Note(text="theirs"),
        Note(text="after theirs", lines=("mine",)),
    ]
    assert await sim.commits() == ["start", "record: conflict", "transition: read"]


@simulated
async def test_r111_a_put_that_always_meets_a_change_parks_after_five_runs(loop: SimLoop) -> None:
    sim = Sim(loop)
    runs = Runs(sim, lambda n: sim.change_memory(facts, "k", Note(text=str(n))), until=100)
    row = await run(sim, puts(runs, facts))
    assert (row.standing.reason, len(runs.attempts)) == ("conflict", 6)
    assert row.standing.seq == 0


@simulated
async def test_r111_with_a_merge_rule_it_is_merged_and_committed_at_once(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.change_memory(merging, "k", Note(text="old"))
    runs = Runs(sim, lambda n: sim.change_memory(merging, "k", Note(text="theirs", lines=("theirs",))))
    row = await run(sim, puts(runs, merging))
    assert (row.standing.status, runs.attempts) == ("ended", [1])
    assert (await sim.memory(merging, "k"))[-1] == Note(text="after old", lines=("theirs", "mine"))
    assert await sim.commits() == ["start", "transition: read"]


@simulated
async def test_r111_a_merge_rule_that_raises_fails_the_attempt_by_name(loop: SimLoop) -> None:
    def picky(stored: Note, put: Note) -> Note:
        raise ValueError("cannot be joined")

    sim = Sim(loop)
    namespace = Namespace("picky", Note, merge=picky)
    runs = Runs(sim, lambda n: sim.change_memory(namespace, "k", Note(text="theirs")))
    row = await run(sim, puts(runs, namespace))
    assert (row.standing.status, runs.attempts) == ("ended", [1, 2])
    (failed,) = await sim.entries("failed")
    assert "memory picky/k: its merge rule raised ValueError: cannot be joined" in failed["error"]["message"]


# --- R112 -----------------------------------------------------------------------------------------


@simulated
async def test_r112_an_update_is_applied_again_to_the_newest_version(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.change_memory(counts, "k", 1)
    runs = Runs(sim, lambda n: sim.change_memory(counts, "k", 10))

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.begin(step)
        first = await step.memory.update(counts, "k", lambda n: (n or 0) + 1)
        second = await step.memory.update(counts, "k", lambda n: (n or 0) * 2)
        runs.others_write()
        return machine.finished(text=f"{first} {second}")

    await run(sim, body)
    assert runs.attempts == [1]
    assert await sim.memory(counts, "k") == [1, 10, 22]
    assert (await sim.thread(job(body)).data()).text == "2 4"


@simulated
async def test_r112_threads_that_count_together_lose_nothing(loop: SimLoop) -> None:
    runs = 0

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        nonlocal runs
        runs += 1
        await step.memory.update(counts, "k", lambda n: (n or 0) + 1)
        await step.call(fresh, "r")
        return machine.finished()

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    for n in range(20):
        await engine.start(machine, thread_id=str(n))
    for n in range(20):
        await sim.until("ended", thread_id=str(n))
    assert await sim.memory(counts, "k") == list(range(1, 21))
    assert runs == 20


@simulated
async def test_r112_a_key_that_never_stands_still_parks(loop: SimLoop) -> None:
    applied = 0

    def restless(n: int | None) -> int:
        nonlocal applied
        applied += 1
        sim.change_memory(counts, "k", (n or 0) + 100)
        return (n or 0) + 1

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.memory.update(counts, "k", restless)
        return machine.finished()

    sim = Sim(loop)
    row = await run(sim, body)
    assert (row.standing.reason, row.standing.seq) == ("conflict", 0)
    assert "100 commits in a row" in row.standing.note
    assert 100 <= applied < 110


@simulated
async def test_r112_an_update_that_raises_on_the_newest_version_fails_the_attempt(loop: SimLoop) -> None:
    def careful(n: int | None) -> int:
        if n == 13:
            raise ValueError("not that one")
        return (n or 0) + 1

    sim = Sim(loop)
    runs = Runs(sim, lambda n: sim.change_memory(counts, "k", 13))

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.begin(step)
        if len(runs.attempts) > 1:
            return machine.finished(text="without")
        await step.memory.update(counts, "k", careful)
        runs.others_write()
        return machine.finished()

    row = await run(sim, body)
    assert (row.standing.status, runs.attempts) == ("ended", [1, 2])
    (failed,) = await sim.entries("failed")
    assert "memory counts/k: the function given to update raised ValueError" in failed["error"]["message"]


# --- R113 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("ends_with", ["put", "effect"])
@simulated
async def test_r113_a_stale_version_that_an_intent_has_pinned_parks_with_both_versions(
    loop: SimLoop, ends_with: str, killed: bool
) -> None:
    runs: list[str] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        fact = await step.memory.get(facts, "k")
        runs.append((fact or Note()).text or "")
        await step.call(looked, "first")
        if len(runs) == 1:
            sim.change_memory(facts, "k", Note(text="new"))
            if killed:
                await for_ever()
        if ends_with == "put":
            await step.memory.put(facts, "k", Note(text="mine"))
            return machine.finished()
        return machine.finished(text=await step.call(looked, "second"))

    sim = Sim(loop)
    sim.change_memory(facts, "k", Note(text="old"))
    machine = job(body)
    first = await sim.engine(machine)
    await first.start(machine)
    if killed:
        await sleep(1)
        first.kill()
        await sim.engine(machine)
    row = await sim.until("ended", "parked")
    assert (row.standing.status, row.standing.reason) == ("parked", "conflict")
    assert "facts/k version 1" in (row.standing.note or "")
    (park,) = await sim.entries("park")
    assert park["detail"]["changed"] == [["facts", "k", 2]]
    assert set(runs) == {"old"}
    assert [a.args for a in sim.world.arrivals] == [("first",)]
    assert await sim.entries("conflict") == []
    assert await sim.memory(facts, "k") == [Note(text="old"), Note(text="new")]


@pytest.mark.parametrize("way", ["update", "merge"])
@simulated
async def test_r113_after_an_effect_an_update_or_a_merge_rule_goes_through(loop: SimLoop, way: str) -> None:
    namespace: Namespace[Any] = counts if way == "update" else merging
    theirs: Any = 5 if way == "update" else Note(lines=("theirs",))

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.memory.get(namespace, "k")
        await step.call(looked, "first")
        sim.change_memory(namespace, "k", theirs)
        if way == "update":
            await step.memory.update(counts, "k", lambda n: (n or 0) + 1)
        else:
            await step.memory.put(merging, "k", Note(lines=("mine",)))
        return machine.finished()

    sim = Sim(loop)
    row = await run(sim, body)
    assert row.standing.status == "ended"
    assert (await sim.memory(namespace, "k"))[-1] == (
        6 if way == "update" else Note(lines=("theirs", "mine"))
    )
    assert len(sim.world.arrivals) == 1


# --- what a step sees ------------------------------------------------------------------------------


@simulated
async def test_a_step_sees_its_own_puts_and_others_only_once_it_has_committed(loop: SimLoop) -> None:
    seen: list[Any] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        seen.append(await step.memory.get(facts, "k"))
        await step.memory.put(facts, "k", Note(text="one"))
        seen.append(await step.memory.get(facts, "k"))
        seen.append(list((await sim.store.page(Memory(workspace="w"))).rows))
        return machine.finished()

    sim = Sim(loop)
    await run(sim, body)
    assert seen == [None, Note(text="one"), []]
    (row,) = (await sim.store.page(Memory(workspace="w"))).rows
    assert (row.thread_id, row.seq, row.principal, row.version) == ("t", 1, "owner", 1)


@simulated
async def test_if_version_refuses_a_put_over_another_version(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.memory.put(facts, "k", Note(text="mine"), if_version=step.attempt - 1)
        return machine.finished()

    sim = Sim(loop)
    sim.change_memory(facts, "k", Note(text="theirs"))
    await run(sim, body)
    (failed,) = await sim.entries("failed")
    assert failed["error"]["type"] == "MemoryConflict"
    assert "version 0 was expected and version 1 is there" in failed["error"]["message"]
    assert [note.text for note in await sim.memory(facts, "k")] == ["theirs", "mine"]


@simulated
async def test_if_version_is_no_matter_for_a_merge_rule(loop: SimLoop) -> None:
    """What is put over one version alone is not merged into another: the visit runs again, and sees it."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.begin(step)
        there = await step.memory.get(merging, "k")
        version = 0 if there is None else 1
        await step.memory.put(merging, "k", Note(text="mine", lines=["x"]), if_version=version)
        await step.memory.put(merging, "k", Note(text="mine"))
        runs.others_write()
        return machine.finished(text=None if there is None else there.text)

    sim = Sim(loop)
    runs = Runs(sim, lambda _: sim.change_memory(merging, "k", Note(text="theirs", lines=["y"])))
    await run(sim, body)
    assert runs.attempts == [1, 1]
    assert [(note.text, list(note.lines)) for note in await sim.memory(merging, "k")] == [
        ("theirs", ["y"]),
        ("mine", []),
    ]


@simulated
async def test_if_version_is_judged_by_the_version_that_a_put_before_it_found(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.memory.put(facts, "k", Note(text="first"))
        await step.memory.put(facts, "k", Note(text="second"), if_version=7)
        return machine.finished()

    sim = Sim(loop)
    await run(sim, body, retry=Retry(attempts=1))
    (failed,) = await sim.entries("failed")
    assert "version 7 was expected and version 0 is there" in failed["error"]["message"]


@pytest.mark.parametrize("way", ["put", "update"])
@simulated
async def test_what_is_written_once_the_handler_has_fired_is_refused(loop: SimLoop, way: str) -> None:
    """A strand that goes on while the runtime waits for an effect writes nothing into the transition."""
    errors: list[BaseException] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.memory.get(counts, "k")

        async def late() -> None:
            await sleep(1)
            try:
                if way == "put":
                    await step.memory.put(counts, "k", 7)
                else:
                    await step.memory.update(counts, "k", lambda n: 7)
            except CallMisuse as error:
                errors.append(error)

        async def under_way() -> None:
            await step.call(looked, "a")

        strands = [asyncio.ensure_future(under_way()), asyncio.ensure_future(late())]
        await sleep(0.5)
        return machine.finished(text=str(len(strands)))

    sim = Sim(loop)
    sim.world.reply("looked", Reply(takes=5))
    await run(sim, body)
    assert ["this attempt is over" in str(error) for error in errors] == [True]
    assert await sim.memory(counts, "k") == []


@record
class Rate:
    """A fact that goes out of date."""

    value: str
    verified_at: datetime


rates = Namespace("rates", Rate)


def moment_of(loop: SimLoop, ago: int = 0) -> datetime:
    return datetime.fromtimestamp(loop.now() / 1e6 - ago, tz=UTC)


@read
async def current_rate(call: Call[World], key: str) -> Rate | None:
    value = await call.deps.read("rate", key)
    return Rate(value=value, verified_at=moment_of(present(call.deps.loop)))


@pytest.mark.parametrize(("age", "asked"), [(59, 0), (61, 1)])
@simulated
async def test_a_fact_verified_too_long_ago_is_checked_again_and_put(
    loop: SimLoop, age: int, asked: int
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        rate = await step.memory.get(rates, "eur", max_age=timedelta(minutes=1), verify=current_rate)
        return machine.finished(text="" if rate is None else rate.value)

    sim = Sim(loop)
    sim.change_memory(rates, "eur", Rate(value="old", verified_at=moment_of(loop, age)))
    await run(sim, body, calls=[current_rate])
    assert len(sim.world.asked) == asked
    assert [rate.value for rate in await sim.memory(rates, "eur")] == ["old", "rate#1"][: 1 + asked]


@pytest.mark.parametrize("key", ["", "a\x00b", "\ud800", "k" * 256])
@simulated
async def test_a_key_that_no_store_could_hold_is_refused_before_anything_is_written(
    loop: SimLoop, key: str
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        with pytest.raises(Exception, match=r"memory key") as raised:
            await step.memory.put(facts, key, Note(text="x"))
        return machine.finished(text=type(raised.value).__name__)

    sim = Sim(loop)
    row = await run(sim, body)
    assert row.standing.status == "ended"
    assert await sim.commits() == ["start", "transition"]


@simulated
async def test_a_value_that_cannot_be_stored_is_refused_where_it_is_put(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        with pytest.raises(Exception, match=r"memory facts/k.*text") as raised:
            await step.memory.put(facts, "k", Note(text="\ud800"))
        return machine.finished(text=type(raised.value).__name__)

    sim = Sim(loop)
    await run(sim, body)
    assert (await sim.thread(job(body)).data()).text == "NotStorable"
    assert list((await sim.store.page(Memory(workspace="w"))).rows) == []
