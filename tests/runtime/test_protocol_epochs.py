"""Rows R80 to R84 of docs/protocol.md: what may be written and sent under which claim."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Callable
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
    both,
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

from perdure.machines import Fire, Machine, NotDone, State, Step

SECOND = 1_000_000
LEASE = timedelta(seconds=6)


class Stale:
    """A process that does not learn for a while that it has lost its claim: its heartbeats do not arrive, and
    some of its commits take long. It is not dead, and nobody knows more than that its lease ran out."""

    def __init__(self, sim: Sim, engine: Engine) -> None:
        self.sim = sim
        self.engine = engine

    @classmethod
    async def begin(cls, sim: Sim, late: Callable[[str, Any], bool] | None, seconds: float = 60) -> Stale:
        engine = await sim.engine(lease=LEASE)
        engine.store.fault("refuse", every("beat"), times=1_000_000)
        if late is not None:
            engine.store.fault("delay", late, seconds=seconds)
        return cls(sim, engine)

    async def over(self) -> None:
        """Until the late commit has been answered."""
        await sleep(120)


async def epochs(sim: Sim) -> list[tuple[int, str]]:
    """Epoch and kind of every commit."""
    return [(row.epoch, row.kind) for row, _ in await sim.rows()]


def handler(*, fails: bool = False) -> Any:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.call(kept, "k")
        text = await step.call(looked, "a")
        await step.call(fresh, "wait")
        if fails:
            raise RuntimeError("fails")
        return machine.finished(text=text)

    return body


@pytest.mark.parametrize(
    ("late", "slow"),
    [
        ("intent", False),
        ("done", False),
        ("read", True),
        ("transition", False),
    ],
)
@simulated
async def test_r80_a_stale_write_is_refused_and_the_run_ends_without_a_trace(
    loop: SimLoop, late: str, slow: bool
) -> None:
    machine = job(handler())
    sim = Sim(loop, machine)
    if late in ("done", "read"):  # the handler goes on with something slow, so that it is a commit of its own
        sim.world.next_reads("fresh", Reply(takes=1.0))
    stale = await Stale.begin(sim, carrying(late))
    thread = await stale.engine.start(machine)
    await sleep(7)
    other = await sim.engine(lease=LEASE)
    ended = await sim.until("ended")
    log = await sim.rows()
    await stale.over()
    assert (await sim.rows(), await sim.row()) == (log, ended)
    assert [row.epoch for row, _ in log] == sorted(row.epoch for row, _ in log)
    assert ended.epoch == 2
    refused = [write for method, write in stale.engine.store.writes if method == "commit"][-1]
    assert (refused.epoch, refused.log.head) not in {(row.epoch, row.head) for row, _ in log}
    assert len(sim.world.arrivals) == 1
    assert (await thread.data()).text == "looked-1"
    assert not other.died.is_set()


@simulated
async def test_r80_nothing_is_sent_for_an_intent_that_was_refused(loop: SimLoop) -> None:
    """The other claim has parked the thread meanwhile, so that whatever arrived came from the stale one."""
    first, second = job(handler()), job(stops)
    sim = Sim(loop, first)
    stale = await Stale.begin(sim, carrying("intent"))
    await stale.engine.start(first)
    await sleep(7)
    await sim.engine(second)
    await sim.until("ended")
    await stale.over()
    assert sim.world.arrivals == []


async def stops(machine: Any, data: Note, step: Step[World]) -> Any:
    return machine.finished(text="stopped")


@simulated
async def test_r80_a_stale_park_is_refused(loop: SimLoop) -> None:
    async def fails(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(bare, "a"))

    machine = job(fails)
    sim = Sim(loop, machine)
    sim.world.reply("bare", Reply(error=TimeoutError()))
    stale = await Stale.begin(sim, carrying("park"))
    await stale.engine.start(machine)
    await sleep(7)
    await sim.engine()
    parked = await sim.until("parked")  # by the other, which finds the same doubt
    log = await sim.rows()
    await stale.over()
    assert await sim.rows() == log
    assert [kind for _, kind in await epochs(sim)] == ["start", "record", "park"]
    assert [epoch for epoch, _ in await epochs(sim)] == [1, 1, 2]
    assert parked.epoch == 2


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


def transition_to(seq: int) -> Callable[[str, Any], bool]:
    return lambda method, write: (
        method == "commit" and write.log.kind == "transition" and write.log.seq == seq
    )


@simulated
async def test_r81_a_commit_that_landed_is_a_no_op_when_it_is_sent_again_after_a_takeover(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Two)
    stale = await Stale.begin(sim, None)
    stale.engine.store.fault("lose after", transition_to(1))
    stale.engine.store.fault("delay", transition_to(1), skip=0, seconds=60)
    thread = await stale.engine.start(Two)
    await sleep(7)
    await sim.engine(lease=LEASE)
    await sim.until("ended")
    log = await sim.rows()
    await stale.over()
    assert await sim.rows() == log
    sent = [w for m, w in stale.engine.store.writes if m == "commit" and transition_to(1)(m, w)]
    assert len(sent) == 2
    assert sent[0] == sent[1]  # the identical commit
    assert [a.args for a in sim.world.arrivals] == [("1",), ("2",)]
    assert (await thread.data()).lines == ("looked-1", "looked-2")
    assert [kind for _, kind in await epochs(sim)].count("transition") == 2
    assert await sim.entries("park") == []


@simulated
async def test_r82_a_lease_found_lost_just_before_the_send_sends_nothing(loop: SimLoop) -> None:
    """The intent lands late, and under a claim that is still current: nobody else was there."""
    machine = job(handler())
    sim = Sim(loop, machine)
    stale = await Stale.begin(sim, carrying("intent"), seconds=8)
    await stale.engine.start(machine)
    await sleep(9)
    assert len(await sim.entries("intent")) == 1
    assert sim.world.arrivals == []
    await sleep(60)
    assert sim.world.arrivals == []
    assert await sim.commits() == ["start", "record: read intent"]  # it stays in doubt
    assert (await sim.row()).epoch == 1  # and without a lease nothing is claimed
    await sim.engine(lease=LEASE)
    await sim.until("ended")
    assert [e["answer"] for e in await sim.entries("lookup")] == ["absent"]
    assert sim.world.keys == [(await sim.entries("intent"))[0]["key"]]


@pytest.mark.parametrize("effect", [bare, looked, remembered, both, again], ids=lambda effect: effect.name)
@simulated
async def test_r83_past_not_after_nothing_is_sent_and_a_new_intent_is_written(
    loop: SimLoop, effect: Any
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(effect, "a"))

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    engine.store.fault("delay", carrying("intent"), seconds=10.5)
    await engine.start(machine)
    row = await sim.until("ended", "parked")
    assert row.standing.status == "ended"
    assert [(a.at - EPOCH) / SECOND for a in sim.world.arrivals] == [10.5]
    first, second = await sim.entries("intent")
    assert (first["not_after"], second["not_after"]) == (EPOCH + 10 * SECOND, EPOCH + 20_500_000)
    assert (first["id"], first["key"]) == (second["id"], second["key"])


@simulated
async def test_r83_an_unsent_issue_leaves_no_doubt_behind(loop: SimLoop) -> None:
    """The issue that follows speaks for itself: its NotDone counts."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        with pytest.raises(NotDone):
            await step.call(bare, "a")
        return machine.finished(text="not done")

    machine = job(body)
    sim = Sim(loop, machine)
    sim.world.reply("bare", NotDone("full"))
    engine = await sim.engine()
    engine.store.fault("delay", carrying("intent"), seconds=10.5)
    await engine.start(machine)
    assert (await sim.until("ended", "parked")).standing.status == "ended"


@simulated
async def test_r84_what_a_stale_claim_had_sent_is_met_by_the_next_claims_lookup(loop: SimLoop) -> None:
    """Sent just before the lease ran out; it lands after the take-over."""
    machine = job(handler())
    sim = Sim(loop, machine)
    sim.world.reply("looked", Reply(lands=7.0, takes=8.0))
    sim.world.next_reads("kept", Reply(takes=3.0))
    stale = await Stale.begin(sim, None)
    thread = await stale.engine.start(machine)
    await sleep(4)
    await sim.engine(lease=LEASE)
    await sim.until("ended")
    log = await sim.rows()
    await stale.over()
    assert await sim.rows() == log
    assert [(a.at - EPOCH) / SECOND for a in sim.world.arrivals] == [10.0]
    said = [answer for answer, _ in sim.world.lookups]
    assert said[0] == "Absent"
    assert said[-1] == "Found"
    assert (sim.world.looked_at[0] - EPOCH) / SECOND < 7
    assert (await thread.data()).text == "looked-1"
