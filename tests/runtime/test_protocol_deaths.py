"""Rows R60 to R70 of docs/protocol.md: where the process dies, and what the next claim makes of it."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from datetime import timedelta
from typing import Any

import pytest
from harness.engine import (
    CALLS,
    Engine,
    Note,
    Reply,
    Sim,
    World,
    again,
    bare,
    carrying,
    every,
    fresh,
    job,
    kept,
    looked,
    remembered,
    simulated,
)
from harness.loop import EPOCH, SimLoop

from perdure.artifacts import NoSuchBlob
from perdure.machines import ArtifactRef, Fire, Machine, Retry, State, Step, record
from perdure.stores import Artifacts

SECOND = 1_000_000


def calls(effect: Any, *, first: Any = None) -> Any:
    """A handler that reads, and calls an effect with what it has read."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        what = "a" if first is None else await step.call(first, "r")
        return machine.finished(text=await step.call(effect, what), more=what)

    return job(body)


async def dies(sim: Sim, machine: Any, deed: Any = None, when: Any = None, **more: Any) -> Engine:
    """Start the thread in a process that a fault kills, and wait for its death."""
    engine = await sim.engine(machine)
    if deed is not None:
        engine.store.fault(deed, when, **more)
    await engine.start(machine)
    await sim.until_dead(engine)
    return engine


async def resumed(sim: Sim, machine: Any) -> Any:
    """Another process, which runs until the thread ends or parks."""
    await sim.engine(machine)
    return await sim.until("ended", "parked")


def arrived(sim: Sim) -> list[float]:
    return [(arrival.at - EPOCH) / SECOND for arrival in sim.world.arrivals]


async def data_of(sim: Sim, machine: Any) -> Any:
    return await sim.thread(machine).data()


# --- R60 to R62 -----------------------------------------------------------------------------------


@simulated
async def test_r60_between_a_claim_and_its_first_commit_nothing_is_lost(loop: SimLoop) -> None:
    attempts: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        attempts.append(step.attempt)
        return machine.finished(text=await step.call(looked, "a"))

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await sleep(0.1)
    engine.store.fault("kill after", every("claim"))
    await sim.client(machine).start(machine, Note(), thread_id="t", workspace="w")
    await sim.until_dead(engine)
    claimed = await sim.row()
    assert (claimed.epoch, claimed.owner, claimed.n, claimed.crashes) == (1, engine.id, 1, 0)
    await resumed(sim, machine)
    assert attempts == [1]
    assert len(sim.world.arrivals) == 1
    assert (await sim.row()).epoch == 2


@simulated
async def test_r61_a_plain_read_that_no_intent_carried_is_asked_again(loop: SimLoop) -> None:
    machine = calls(looked, first=fresh)
    sim = Sim(loop, machine)
    await dies(sim, machine, "kill before", carrying("intent"))
    assert await sim.commits() == ["start"]
    await resumed(sim, machine)
    assert sim.world.asked == ["fresh/r", "fresh/r"]
    assert [a.args for a in sim.world.arrivals] == [("fresh#2",)]
    data = await data_of(sim, machine)
    assert (data.text, data.more) == ("looked-1", "fresh#2")  # what the data says arrived


@pytest.mark.parametrize(("deed", "asked"), [("kill before", 2), ("kill after", 1)])
@simulated
async def test_r62_a_kept_read_is_paid_for_twice_only_between_its_answer_and_its_commit(
    loop: SimLoop, deed: str, asked: int
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        text = await step.call(kept, "r")
        await sleep(5)
        return machine.finished(text=text)

    machine = job(body)
    sim = Sim(loop, machine)
    await dies(sim, machine, deed, carrying("read"))
    assert loop.now() == EPOCH  # written at once, while the handler sleeps
    await resumed(sim, machine)
    assert len(sim.world.asked) == asked
    assert (await data_of(sim, machine)).text == f"kept#{asked}"


# --- R63, R64 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "status", "times"),
    [
        (looked, "ended", [1.0]),
        (remembered, "ended", [0.0]),
        (again, "ended", [1.0]),
        (bare, "parked", []),
    ],
    ids=["lookup", "idempotent", "repeatable", "neither"],
)
@simulated
async def test_r63_between_intent_and_send(
    loop: SimLoop, effect: Any, status: str, times: list[float]
) -> None:
    machine = calls(effect, first=fresh)
    sim = Sim(loop, machine)
    await dies(sim, machine, "kill after", carrying("intent"))
    assert await sim.commits() == ["start", "record: read intent"]
    row = await resumed(sim, machine)
    assert (row.standing.status, row.standing.reason) == (
        status,
        None if status == "ended" else "in doubt",
    )
    assert arrived(sim) == times
    assert sim.world.asked == ["fresh/r"]  # pinned by the intent
    assert {a.args for a in sim.world.arrivals} <= {("fresh#1",)}
    assert len({e["key"] for e in await sim.entries("intent")}) == 1


@pytest.mark.parametrize(
    ("effect", "status", "arrivals", "text"),
    [
        (looked, "ended", 1, "looked-1"),
        (remembered, "ended", 2, "remembered-1"),
        (again, "ended", 2, "again-2"),
        (bare, "parked", 1, None),
    ],
    ids=["lookup", "idempotent", "repeatable", "neither"],
)
@pytest.mark.parametrize("lands", [0.0, 0.5], ids=["landed", "landing"])
@simulated
async def test_r64_between_send_and_outcome(
    loop: SimLoop, effect: Any, status: str, arrivals: int, text: str | None, lands: float
) -> None:
    machine = calls(effect, first=fresh)
    sim = Sim(loop, machine)
    sim.world.remembers = effect is remembered
    engine = await sim.engine(machine)
    sim.world.reply(effect.name, Reply(lands=lands, then=engine.kill))
    await engine.start(machine)
    await sim.until_dead(engine)
    row = await resumed(sim, machine)
    await sleep(5)
    assert (row.standing.status, row.standing.reason) == (
        status,
        None if status == "ended" else "in doubt",
    )
    assert len(sim.world.arrivals) == arrivals
    assert len(set(sim.world.keys)) == 1
    assert {a.args for a in sim.world.arrivals} == {("fresh#1",)}
    assert (await data_of(sim, machine)).text == text
    if effect is again:
        assert arrived(sim)[1] >= 1.0  # past the known end and settle: the late one came before it


# --- R65 to R67 -----------------------------------------------------------------------------------


@simulated
async def test_r65_between_outcome_and_transition_the_value_is_served(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        text = await step.call(bare, "a")
        await sleep(1)
        return machine.finished(text=text)

    machine = job(body)
    sim = Sim(loop, machine)
    await dies(sim, machine, "kill before", carrying("transition"))
    assert await sim.commits() == ["start", "record: intent", "record: done"]
    row = await resumed(sim, machine)
    assert row.standing.status == "ended"
    assert len(sim.world.arrivals) == 1
    assert (await data_of(sim, machine)).text == "bare-1"


class Two(Machine[Note, World], version=1, calls=CALLS):
    """Two steps, each with an effect."""

    first = State(initial=True)
    second = State()
    done = State(final=True)
    half = first.to(second)
    whole = second.to(done)

    @first.handler
    async def do_first(self, data: Note, step: Step[World]) -> Fire:
        return self.half(lines=[await step.call(looked, "1")])

    @second.handler
    async def do_second(self, data: Note, step: Step[World]) -> Fire:
        return self.whole(lines=[await step.call(looked, "2")])


@pytest.mark.parametrize("deed", ["lose before", "lose after", "refuse"])
@pytest.mark.parametrize("times", [1, 5])
@simulated
async def test_r66_a_transition_whose_reply_is_lost_is_sent_again_as_it_was(
    loop: SimLoop, deed: Any, times: int
) -> None:
    sim = Sim(loop, Two)
    engine = await sim.engine()
    engine.store.fault(deed, carrying("transition"), times=times)
    thread = await engine.start(Two)
    await sim.until("ended")
    sent = [w for m, w in engine.store.writes if m == "commit" and w.log.kind == "transition"]
    first = [w for w in sent if w.log.seq == 1]
    assert len(first) == times + 1
    assert all(write == first[0] for write in first)
    assert [(row.kind, row.seq) for row, _ in await sim.rows()].count(("transition", 1)) == 1
    assert (await thread.data()).lines == ("looked-1", "looked-2")
    assert len(sim.world.arrivals) == 2


@simulated
async def test_r66_every_kind_of_commit_may_lose_its_reply(loop: SimLoop) -> None:
    sim = Sim(loop, Two)
    engine = await sim.engine()
    engine.store.fault("lose after", first_time(), times=1000)
    await engine.start(Two)
    await sim.until("ended")
    await sleep(1)
    heads = [w.log.head for m, w in engine.store.writes if m == "commit"]
    assert sorted(heads) == sorted(2 * list(dict.fromkeys(heads)))  # each was sent twice
    assert await sim.commits() == ["start", *["record: intent", "transition: done"] * 2]
    assert len(sim.world.arrivals) == 2


def first_time() -> Any:
    """Fits each commit when it is sent for the first time."""
    seen: set[bytes] = set()

    def judge(method: str, write: Any) -> bool:
        if method != "commit" or write.log.head in seen:
            return False
        seen.add(write.log.head)
        return True

    return judge


@simulated
async def test_r67_a_transition_that_landed_is_not_run_again(loop: SimLoop) -> None:
    sim = Sim(loop, Two)
    await dies(sim, Two, "kill after", carrying("transition"))
    row = await sim.row()
    assert (row.standing.state, row.standing.seq) == ("second", 1)
    await resumed(sim, Two)
    assert [a.args for a in sim.world.arrivals] == [("1",), ("2",)]
    assert len(set(sim.world.keys)) == 2
    assert (await data_of(sim, Two)).lines == ("looked-1", "looked-2")
    assert [kind.split(":")[0] for kind in await sim.commits()].count("transition") == 2


# --- R68 ------------------------------------------------------------------------------------------


@record
class Picture:
    ref: ArtifactRef | None = None


def draws(content: bytes, asked: list[str]) -> Any:
    class Draw(Machine[Picture, World], version=1, calls=CALLS):
        """Puts one artifact."""

        drawing = State(initial=True)
        done = State(final=True)
        drawn = drawing.to(done)

        @drawing.handler
        async def draw(self, data: Picture, step: Step[World]) -> Fire:
            ref = await step.artifacts.put(content, media_type="image/png")
            asked.append(ref.id)
            return self.drawn(ref=ref)

    return Draw


async def artifacts(sim: Sim) -> list[str]:
    page = await sim.store.page(Artifacts(workspace="w"))
    return [row.id for row in page.rows]


@simulated
async def test_r68_an_artifact_recorded_and_not_yet_visible_is_put_again_under_its_id(loop: SimLoop) -> None:
    asked: list[str] = []
    machine = draws(b"circle", asked)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    engine.store.fault("kill after", carrying("artifact"))
    await engine.start(machine, Picture())
    await sim.until_dead(engine)
    assert asked == []
    (pending,) = await sim.store_rows(Artifacts(workspace="w"))
    with pytest.raises(NoSuchBlob):
        await sim.artifacts.stat("w", pending.sha256)
    await resumed(sim, machine)
    assert asked == [pending.id]
    assert await artifacts(sim) == [pending.id]
    ref = (await data_of(sim, machine)).ref
    assert (ref.id, ref.sha256) == (pending.id, pending.sha256)
    assert b"".join([chunk async for chunk in sim.artifacts.open("w", ref.sha256)]) == b"circle"


@simulated
async def test_r68_a_record_that_the_step_does_not_ask_for_any_more_is_dropped_by_its_transition(
    loop: SimLoop,
) -> None:
    asked: list[str] = []
    sim = Sim(loop)
    first, second = draws(b"circle", asked), draws(b"square", asked)
    engine = await sim.engine(first)
    engine.store.fault("kill after", carrying("artifact"))
    await engine.start(first, Picture())
    await sim.until_dead(engine)
    (dropped,) = await artifacts(sim)
    await resumed(sim, second)
    assert await artifacts(sim) == asked
    assert dropped not in asked
    assert [e["ids"] for e in await sim.entries("artifacts_dropped")] == [[dropped]]


# --- R69, R70 -------------------------------------------------------------------------------------


@record
class Both:
    left: str | None = None
    right: str | None = None


def branches(ran: list[str]) -> Any:
    class Fork(Machine[Both, World], version=1, calls=CALLS):
        """Two branches; the second takes longer."""

        working = State(initial=True)
        done = State(final=True)
        finished = working.to(done)

        @working.handler
        async def quick(self, data: Both, step: Step[World]) -> Fire:
            ran.append("quick")
            return self.finished(left=await step.call(looked, "left"))

        @working.handler
        async def slow(self, data: Both, step: Step[World]) -> Fire:
            ran.append("slow")
            await sleep(3)
            return self.finished(right=await step.call(looked, "right"))

    return Fork


@simulated
async def test_r69_a_branch_that_has_finished_is_not_run_again(loop: SimLoop) -> None:
    ran: list[str] = []
    machine = branches(ran)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    thread = await engine.start(machine, Both())
    await sleep(1)
    engine.kill()
    assert [e["lane"] for e in await sim.entries("branch")] == ["quick"]
    await resumed(sim, machine)
    assert ran == ["quick", "slow", "slow"]
    data = await thread.data()
    assert (data.left, data.right) == ("looked-1", "looked-2")
    assert [a.args for a in sim.world.arrivals] == [("left",), ("right",)]


@pytest.mark.parametrize(("back", "at"), [(1.0, 30.0), (40.0, 40.0)], ids=["early", "late"])
@simulated
async def test_r70_between_a_failure_and_its_retry(loop: SimLoop, back: float, at: float) -> None:
    ran: list[tuple[int, float]] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        ran.append((step.attempt, loop.elapsed))
        text = await step.call(looked, "a")
        if len(ran) == 1:
            raise RuntimeError("once")
        return machine.finished(text=text)

    machine = job(body, retry=Retry(attempts=2, delay=timedelta(seconds=30)))
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine)
    await sleep(0.5)
    engine.kill()
    row = await sim.row()
    assert (row.standing.status, row.standing.wake) == ("waiting", EPOCH + 30 * SECOND)
    await sleep(back - 0.5)
    await resumed(sim, machine)
    assert ran == [(1, 0.0), (2, at)]
    assert len(sim.world.arrivals) == 1
    assert (await sim.row()).crashes == 0


# --- all of it ------------------------------------------------------------------------------------


def everything() -> Any:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        paid = await step.call(kept, "k")
        seen = await step.call(fresh, "f")
        text = await step.call(looked, f"{paid} {seen}")
        pair = await asyncio.gather(step.call(looked, "x"), step.call(remembered, "y"))
        return machine.finished(text=text, more=seen, lines=[paid, *pair])

    return job(body)


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@simulated
async def test_killed_before_and_after_every_single_write_it_does_the_same(
    loop: SimLoop, applied: bool
) -> None:
    """Whichever write of the process it dies at, and wherever the next one dies too."""
    died = 0
    for k in range(12):
        for second in (None, 2, 4):
            machine = everything()
            sim = Sim(loop, machine, seed=k)
            sim.world.remembers = True
            engine = await sim.engine()
            engine.store.kill_at(k, applied=applied)
            await engine.start(machine)
            await sleep(1)
            died += engine.died.is_set()
            if not await sim.exists():  # killed before its start landed: whoever started it starts it again
                await sim.client(machine).start(machine, Note(), thread_id="t", workspace="w")
            if second is not None:
                other = await sim.engine()
                other.store.kill_at(second, applied=applied)
                await sleep(1)
            engine.kill()
            ended = await resumed(sim, machine)
            data = await data_of(sim, machine)
            assert ended.standing.status == "ended", (k, second)
            by_args = {a.args: a.key for a in sim.world.arrivals}
            assert set(by_args) == {(f"{data.lines[0]} {data.more}",), ("x",), ("y",)}, (k, second)
            assert len(sim.world.effects) == 3, (k, second)  # each key acted on once
            assert len(set(sim.world.keys)) == 3, (k, second)
            repeated = [a for a in sim.world.arrivals if a.name == "looked"]
            assert len(repeated) == 2, (k, second)
    assert died >= 12
