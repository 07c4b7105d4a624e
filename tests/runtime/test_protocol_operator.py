"""Rows R130 to R136 of docs/protocol.md: what an operator may say, and what comes of it."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from typing import Any

import pytest
from harness.engine import (
    CALLS,
    FaultyStore,
    Note,
    Reply,
    Sim,
    World,
    bare,
    carrying,
    every,
    for_ever,
    fresh,
    job,
    kept,
    looked,
    simulated,
)
from harness.loop import EPOCH, SimLoop

from perdure.machines import Fire, Machine, NotDone, Retry, State, Step
from perdure.runtime import CannotResolve, Resolution
from perdure.runtime._client import Client

SECOND = 1_000_000


def one(effect: Any = bare, what: str = "a") -> Any:
    """A machine whose handler calls one effect."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(effect, what))

    return job(body)


def several(*whats: str, then: Any = None) -> Any:
    """A machine whose handler makes these calls one after the other."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        texts = [await step.call(looked, what) for what in whats]
        if then is not None:
            await then()
        return machine.finished(lines=texts)

    return job(body)


async def in_doubt(sim: Sim, machine: Any, **reply: Any) -> Any:
    """Park the thread in doubt, at 0 s; settled at 1 s."""
    sim.world.reply("bare", Reply(error=TimeoutError("no answer"), **reply))
    thread = await (await sim.engine(machine)).start(machine)
    parked = await sim.until("parked")
    assert parked.standing.reason == "in doubt"
    return thread


async def diverged(sim: Sim, before: Any, after: Any) -> Any:
    """Leave a record by one code, and park the thread as diverged by another."""
    engine = await sim.engine(before)
    await engine.start(before)
    await sleep(1)
    engine.kill()
    await sim.engine(after)
    assert (await sim.until("parked")).standing.reason == "diverged"
    return sim.thread(after)


# --- R130 -----------------------------------------------------------------------------------------


@simulated
async def test_r130_retry_counts_attempts_anew_and_keeps_the_records(loop: SimLoop) -> None:
    attempts: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        attempts.append(step.attempt)
        paid = await step.call(kept, "k")
        text = await step.call(looked, paid)
        if len(attempts) < 4:
            raise RuntimeError("not yet")
        return machine.finished(text=text)

    machine = job(body, retry=Retry(attempts=2))
    sim = Sim(loop, machine)
    thread = await (await sim.engine()).start(machine)
    parked = await sim.until("parked")
    assert (parked.standing.reason, attempts) == ("failed", [1, 2])
    await thread.retry()
    await sim.until("ended")
    assert attempts == [1, 2, 1, 2]
    assert sim.world.asked == ["kept/k"]
    assert len(sim.world.arrivals) == 1
    assert [e["k"] for e in await sim.entries() if e["k"] in ("failed", "park", "retry")] == [
        "failed",
        "failed",
        "park",
        "retry",
        "failed",
    ]
    ended = await sim.row()
    assert (ended.standing.reason, ended.standing.note) == (None, None)


@simulated
async def test_r130_retry_of_a_poisoned_thread_counts_its_crashes_anew(loop: SimLoop) -> None:
    deadly = [True]

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        if deadly[0]:
            engines[-1].kill()
            await for_ever()
        return machine.finished(text="lives")

    machine = job(body)
    sim = Sim(loop, machine)
    engines = []
    await sim.client().start(machine, Note(), thread_id="t", workspace="w")
    for _ in range(3):
        engines.append(await sim.engine())
        await sim.until_dead(engines[-1])
    engines.append(await sim.engine())
    assert (await sim.until("parked")).standing.reason == "poison"
    deadly[0] = False
    await sim.thread(machine).retry()
    await sim.until("ended")
    assert (await sim.thread(machine).data()).text == "lives"
    assert (await sim.row()).crashes == 0


@simulated
async def test_r130_only_a_parked_thread_can_be_retried(loop: SimLoop) -> None:
    machine = one(looked)
    sim = Sim(loop, machine)
    thread = await (await sim.engine()).start(machine)
    await sim.until("ended")
    before = await sim.row()
    with pytest.raises(CannotResolve, match="'t' is ended, not parked"):
        await thread.retry()
    assert await sim.row() == before


# --- R131 -----------------------------------------------------------------------------------------


@simulated
async def test_r131_done_is_recorded_as_the_outcome_and_served(loop: SimLoop) -> None:
    machine = one()
    sim = Sim(loop, machine)
    thread = await in_doubt(sim, machine)
    await thread.resolve(Resolution(action="done", value=b'"by hand"', by="ada"))
    await sim.until("ended")
    assert (await thread.data()).text == "by hand"
    assert len(sim.world.arrivals) == 1
    assert len(await sim.entries("intent")) == 1
    (done,) = await sim.entries("done")
    assert (done["value"], done["adopted"]) == ("by hand", True)
    assert [e["by"] for e in await sim.entries("resolution")] == ["ada"]


@simulated
async def test_r131_done_of_an_explicit_key_is_served_to_every_thread(loop: SimLoop) -> None:
    machine = one(bare.keyed("invoice-7"))
    sim = Sim(loop, machine)
    thread = await in_doubt(sim, machine)
    await thread.resolve(Resolution(action="done", value=b'"by hand"'))
    await sim.until("ended")
    await (await sim.engine()).start(machine, thread_id="u")
    row = await sim.until("ended", "parked", thread_id="u")
    assert row.standing.status == "ended"
    assert (await sim.thread(machine, "u").data()).text == "by hand"
    assert len(sim.world.arrivals) == 1


@pytest.mark.parametrize("value", [b"7", b"null", b'{"text":"x"}', b"{", b""])
@simulated
async def test_r131_a_value_of_another_type_is_refused_and_changes_nothing(
    loop: SimLoop, value: bytes
) -> None:
    machine = one()
    sim = Sim(loop, machine)
    thread = await in_doubt(sim, machine)
    before = await sim.row()
    with pytest.raises(CannotResolve, match="result of effect bare"):
        await thread.resolve(Resolution(action="done", value=value))
    await sleep(60)
    after = await sim.row()
    assert (after.standing, after.owner) == (before.standing, None)
    assert await sim.entries("done") == []
    assert len(sim.world.arrivals) == 1
    await thread.resolve(Resolution(action="done", value=b'"right"'))
    await sim.until("ended")


@simulated
async def test_r131_of_several_doubts_one_is_named_by_its_key(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(lines=await asyncio.gather(step.call(bare, "a"), step.call(bare, "b")))

    machine = job(body)
    sim = Sim(loop, machine)
    sim.world.reply("bare", Reply(error=TimeoutError()))
    thread = await in_doubt(sim, machine)
    first, second = [e["key"] for e in await sim.entries("intent")]
    with pytest.raises(CannotResolve, match="name one by its key"):
        await thread.resolve(Resolution(action="done", value=b'"1"'))
    await thread.resolve(Resolution(action="done", value=b'"1"', effect=first))
    assert (await sim.until("parked")).standing.reason == "in doubt"  # the other one still is
    await thread.resolve(Resolution(action="done", value=b'"2"', effect=second))
    await sim.until("ended")
    assert (await thread.data()).lines == ("1", "2")
    assert len(sim.world.arrivals) == 2


# --- R132, R133 -----------------------------------------------------------------------------------


@simulated
async def test_r132_not_done_is_refused_while_it_may_still_happen_and_the_moment_is_named(
    loop: SimLoop,
) -> None:
    machine = one()
    sim = Sim(loop, machine)
    engine = await sim.engine()
    sim.world.reply("bare", Reply(lands=10.5, hangs=True, then=engine.kill))
    thread = await engine.start(machine)
    await sim.engine()
    await sim.until("parked")
    await sleep(10.9)
    with pytest.raises(CannotResolve, match="may still happen until 2027-01-15T08:00:11"):
        await thread.resolve(Resolution(action="not done"))
    said = await thread.why()
    assert "in doubt; that it is not done is believed from 2027-01-15T08:00:11" in said
    assert (await sim.row()).standing.status == "parked"
    assert len(sim.world.arrivals) == 1  # it did
    await thread.resolve(Resolution(action="done", value=b'"bare-1"'))
    await sim.until("ended")


@simulated
async def test_r133_not_done_after_that_frees_the_record_for_the_same_key(loop: SimLoop) -> None:
    machine = one()
    sim = Sim(loop, machine)
    thread = await in_doubt(sim, machine, lands=None)
    await sleep(1.0)
    await thread.resolve(Resolution(action="not done"))
    await sim.until("ended")
    first, second = await sim.entries("intent")
    assert (second["key"], second["id"]) == (first["key"], first["id"])
    assert sim.world.keys == [first["key"]]
    assert (await thread.data()).text == "bare-1"


@simulated
async def test_r133_a_freed_record_holds_no_other_code_back(loop: SimLoop) -> None:
    sim = Sim(loop)
    machine = one()
    first = await sim.engine(machine)
    sim.world.reply("bare", Reply(lands=None, error=TimeoutError("no answer")))
    await first.start(machine)
    await sim.until("parked")
    await sleep(1.0)
    await first.end()
    other = one(looked, "instead")
    await sim.engine(other)
    await sim.thread(other).resolve(Resolution(action="not done"))
    row = await sim.until("ended", "parked")
    assert row.standing.status == "ended"
    assert [a.name for a in sim.world.arrivals] == ["looked"]


@simulated
async def test_r133_the_next_issue_speaks_for_itself(loop: SimLoop) -> None:
    """Nothing of the doubt that was settled by hand is left: a NotDone now counts."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        try:
            return machine.finished(text=await step.call(bare, "a"))
        except NotDone as error:
            return machine.finished(text=str(error))

    machine = job(body)
    sim = Sim(loop, machine)
    thread = await in_doubt(sim, machine, lands=None)
    sim.world.reply("bare", NotDone("full"))
    await sleep(1.0)
    await thread.resolve(Resolution(action="not done"))
    await sim.until("ended")
    assert (await thread.data()).text == "full"


@simulated
async def test_r133_an_explicit_key_is_free_again_for_every_thread(loop: SimLoop) -> None:
    machine, other = one(bare.keyed("invoice-7")), several()
    sim = Sim(loop, machine)
    first = await sim.engine()
    sim.world.reply("bare", Reply(lands=None, error=TimeoutError("no answer")))
    thread = await first.start(machine)
    await sim.until("parked")
    await sleep(1.0)
    await first.end()
    second = await sim.engine(other)  # this code does not ask for it any more
    await thread.resolve(Resolution(action="not done"))
    await sim.until("ended")
    await second.end()
    await (await sim.engine()).start(machine, thread_id="u")
    row = await sim.until("ended", "parked", thread_id="u")
    assert row.standing.status == "ended"
    assert len(sim.world.arrivals) == 1
    assert (await sim.thread(machine, "u").data()).text == "bare-1"


# --- R134, R135, R136 -----------------------------------------------------------------------------


@simulated
async def test_r134_adopt_takes_the_recorded_effect_for_the_one_that_the_code_asks_for(
    loop: SimLoop,
) -> None:
    sim = Sim(loop)
    after = several("a2", "b")
    thread = await diverged(sim, several("a", then=for_ever), after)
    await thread.resolve(Resolution(action="adopt"))
    await sim.until("ended")
    assert [a.args for a in sim.world.arrivals] == [("a",), ("b",)]
    assert (await thread.data()).lines == ("looked-1", "looked-2")
    (resolved,) = await sim.entries("resolved")
    assert (resolved["action"], resolved["args"]) == ("adopt", {"what": "a2"})


@simulated
async def test_r134_an_adoption_outlives_the_process(loop: SimLoop) -> None:
    sim = Sim(loop)
    after = several("a2", then=for_ever)
    thread = await diverged(sim, several("a", then=for_ever), after)
    await thread.resolve(Resolution(action="adopt"))
    await sleep(1)
    await sim.engine(several("a2"))
    for worker in list(sim.store._tables.workers):
        sim.gone.add(worker)  # they are stuck, and known to be gone
    await sim.until("ended")
    assert len(sim.world.arrivals) == 1


@simulated
async def test_r134_what_was_adopted_lends_its_key_to_no_other_call(loop: SimLoop) -> None:
    """The code asks for the old call as well: another effect, which no receiver may take for the first."""
    sim = Sim(loop)
    sim.world.remembers = True
    after = several("a2", "a", "a")
    thread = await diverged(sim, several("a", then=for_ever), after)
    await thread.resolve(Resolution(action="adopt"))
    await sim.until("ended")
    assert [a.args for a in sim.world.arrivals] == [("a",)] * 3
    assert len(set(sim.world.keys)) == 3
    assert (await thread.data()).lines == ("looked-1", "looked-2", "looked-3")


@simulated
async def test_r134_adopt_needs_one_effect_on_either_side(loop: SimLoop) -> None:
    sim = Sim(loop)
    thread = await diverged(sim, several("a", then=for_ever), several())
    with pytest.raises(CannotResolve, match="0 further effects"):
        await thread.resolve(Resolution(action="adopt"))
    assert (await sim.row()).standing.reason == "diverged"


@simulated
async def test_r135_run_issues_what_the_code_asks_for_beside_the_record(loop: SimLoop) -> None:
    sim = Sim(loop)
    thread = await diverged(sim, several("a", then=for_ever), several("b"))
    await thread.resolve(Resolution(action="run"))
    await sim.until("ended")
    assert [a.args for a in sim.world.arrivals] == [("a",), ("b",)]
    assert len(set(sim.world.keys)) == 2
    assert (await thread.data()).lines == ("looked-2",)


@simulated
async def test_r135_ignore_lets_the_handler_fire_without_the_record(loop: SimLoop) -> None:
    sim = Sim(loop)
    thread = await diverged(sim, several("a", "b", then=for_ever), several())
    await thread.resolve(Resolution(action="ignore"))
    await sim.until("ended")
    assert len(await sim.entries("resolved")) == 2
    assert len(sim.world.arrivals) == 2
    assert (await thread.data()).lines == ()


@simulated
async def test_r135_a_record_set_aside_is_still_served_where_it_is_asked_for(loop: SimLoop) -> None:
    sim = Sim(loop)
    thread = await diverged(sim, several("a", then=for_ever), several("b", then=for_ever))
    await thread.resolve(Resolution(action="run"))
    await sleep(1)
    for worker in list(sim.store._tables.workers):
        sim.gone.add(worker)
    await sim.engine(several("b", "a"))
    await sim.until("ended")
    assert [a.args for a in sim.world.arrivals] == [("a",), ("b",)]
    assert (await thread.data()).lines == ("looked-2", "looked-1")


@pytest.mark.parametrize("action", ["adopt", "run", "ignore"])
@simulated
async def test_r136_with_an_effect_in_doubt_that_one_is_settled_first(loop: SimLoop, action: Any) -> None:
    async def before(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.call(looked, "a")
        return machine.finished(text=await step.call(bare, "b"))

    sim = Sim(loop)
    sim.world.reply("bare", Reply(hangs=True))
    thread = await diverged(sim, job(before), several("c"))
    assert "[in doubt]" in ((await sim.row()).standing.note or "")
    with pytest.raises(CannotResolve, match=r"effect bare with key pd_.* is in doubt: say --done"):
        await thread.resolve(Resolution(action=action))
    assert (await sim.row()).standing.reason == "diverged"
    assert len(sim.world.arrivals) == 2
    await thread.resolve(Resolution(action="done", value=b'"by hand"'))
    assert (await sim.until("parked")).standing.reason == "diverged"
    await thread.resolve(Resolution(action="run"))
    await sim.until("ended")
    assert [a.args for a in sim.world.arrivals] == [("a",), ("b",), ("c",)]


@simulated
async def test_what_an_operator_says_of_a_thread_that_is_not_diverged_is_refused(loop: SimLoop) -> None:
    async def fails(machine: Any, data: Note, step: Step[World]) -> Any:
        raise RuntimeError(await step.call(fresh, "r"))

    machine = job(fails, retry=Retry(attempts=1))
    sim = Sim(loop, machine)
    thread = await (await sim.engine()).start(machine)
    parked = await sim.until("parked")
    diverged_only: list[Any] = ["adopt", "run", "ignore"]
    for action in diverged_only:
        with pytest.raises(CannotResolve, match="not parked as diverged"):
            await thread.resolve(Resolution(action=action))
    in_doubt_only: list[Any] = ["done", "not done"]
    for action in in_doubt_only:
        with pytest.raises(CannotResolve, match="effects in doubt: none"):
            await thread.resolve(Resolution(action=action))
    assert (await sim.row()).standing == parked.standing


@simulated
async def test_an_operators_claim_is_left_alone_by_workers(loop: SimLoop) -> None:
    """Also where the store is slow between the claim and what is said."""
    machine = one()
    sim = Sim(loop, machine)
    await in_doubt(sim, machine, lands=None)
    await sleep(5)
    slow = await sim.engine()
    slow.store.fault("delay", carrying("resolved"), seconds=10)
    client = slow.runtime.thread(machine, thread_id="t", workspace="w")
    await slow.inside(lambda: client.resolve(Resolution(action="not done")))
    await sim.until("ended")
    assert len(sim.world.arrivals) == 1
    assert EPOCH + 15 * SECOND <= loop.now() < EPOCH + 16 * SECOND


class Once(Machine[Note, World], version=1, calls=CALLS):
    """Fails once, and then waits."""

    working = State(initial=True, retry=Retry(attempts=1))
    review = State()
    done = State(final=True)
    worked = working.to(review)
    close = review.to(done).on_signal()

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        if await step.call(kept, str(step.attempt)) == "kept#1":
            raise RuntimeError("no")
        return self.worked()


@simulated
async def test_an_operator_who_comes_too_late_takes_nothing_back(loop: SimLoop) -> None:
    """Between the look at the thread and the claim it went on: what was seen is not what is there."""
    sim = Sim(loop, Once)
    await (await sim.engine()).start(Once)
    await sim.until("parked")
    way = FaultyStore(sim.store, sim.tell)
    way.fault("delay", every("claim"), seconds=10)
    slow = Client(way, sim.artifacts, sim.env, {"Once": Once._definition}, None)
    late = asyncio.create_task(slow.thread(Once, thread_id="t", workspace="w").retry())
    await sleep(1)
    await sim.thread(Once).retry()
    went_on = await sim.until("waiting")
    with pytest.raises(CannotResolve, match="'t' went on meanwhile: look at it again"):
        await late
    await sleep(5)
    there = await sim.row()
    assert (there.standing, there.n, there.owner) == (went_on.standing, went_on.n, None)
