"""Rows R40 to R49 of docs/protocol.md: how an effect in doubt is settled, by what its receiver can do."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from harness.engine import (
    Note,
    Refused,
    Reply,
    Sim,
    World,
    again,
    bare,
    both,
    fading,
    fresh,
    job,
    looked,
    remembered,
    simulated,
)
from harness.loop import EPOCH, SimLoop

from perdure.machines import ABSENT, UNKNOWN, NotDone, Step

SECOND = 1_000_000
FAILED = TimeoutError("no answer")


def asks(effect: Any, *, twice: bool = False) -> Any:
    """A handler that calls one effect, and, where ``twice``, again after a NotDone."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        if not twice:
            return machine.finished(text=await step.call(effect, "a"))
        with pytest.raises(NotDone) as raised:
            await step.call(effect, "a")
        return machine.finished(text=await step.call(effect, "a"), more=str(raised.value))

    return job(body)


async def run(sim: Sim, machine: Any, status: str = "ended") -> Any:
    """Start a thread in a new process and wait until it ends or parks."""
    await (await sim.engine(machine)).start(machine)
    return await sim.until("ended", "parked")


async def killed(sim: Sim, machine: Any, *, known: bool) -> None:
    """Send the effect at 0 s, and kill the process at 1 s; another one takes over by 3 s, or at once."""
    engine = await sim.engine(machine, lease=timedelta(seconds=2))
    await engine.start(machine)
    await sleep(1)
    engine.kill(known=known)
    await sim.engine(machine, lease=timedelta(seconds=2))


def seconds(times: Sequence[int]) -> list[float]:
    """Moments of the simulated clock as seconds since it began."""
    return [(at - EPOCH) / SECOND for at in times]


def arrived(sim: Sim) -> list[float]:
    return seconds([arrival.at for arrival in sim.world.arrivals])


async def text(sim: Sim) -> Any:
    return (await sim.thread(asks(looked)).data()).text


# --- R40 ------------------------------------------------------------------------------------------


@simulated
async def test_r40_what_a_lookup_finds_is_recorded_adopted_and_served(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(error=FAILED))
    await run(sim, asks(looked))
    assert await sim.commits() == ["start", "record: intent", "transition: call_ended lookup done"]
    (lookup,) = await sim.entries("lookup")
    (done,) = await sim.entries("done")
    assert (lookup["answer"], lookup["believed"]) == ("found", True)
    assert (done["value"], done["adopted"]) == ("looked-1", True)
    assert sim.world.lookups == [("Found", sim.world.keys[0])]  # asked with the stored key
    assert (await text(sim), len(sim.world.arrivals)) == ("looked-1", 1)


# --- R41 ------------------------------------------------------------------------------------------


@simulated
async def test_r41_absent_is_not_believed_while_the_request_may_still_land(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(lands=5.0, hangs=True))
    await killed(sim, asks(looked), known=False)
    await sim.until("ended")
    said = [answer for answer, _ in sim.world.lookups]
    assert set(said[:-1]) == {"Absent"}
    assert said[-1] == "Found"
    assert seconds(sim.world.looked_at)[0] < 5
    assert (arrived(sim), await text(sim)) == ([5.0], "looked-1")
    assert len(await sim.entries("intent")) == 1


@simulated
async def test_r41_it_is_believed_at_not_after_plus_settle_where_the_end_is_not_known(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(lands=None, hangs=True))
    await killed(sim, asks(looked), known=False)
    await sim.until("ended")
    assert arrived(sim) == [11.0]


@simulated
async def test_r41_settle_counts_from_the_known_end_of_the_process(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(lands=None, hangs=True))
    await killed(sim, asks(looked), known=True)
    await sim.until("ended")
    assert arrived(sim) == [2.0]  # known to be gone at 1 s


@simulated
async def test_r41_settle_counts_from_the_end_of_a_call_that_failed_here(loop: SimLoop) -> None:
    """The call failed at 3 s; what it sent lands half a second later."""
    sim = Sim(loop)
    sim.world.reply("looked", Reply(lands=3.5, takes=3.0, error=FAILED))
    await run(sim, asks(looked))
    assert (arrived(sim), await text(sim)) == ([3.5], "looked-1")
    assert seconds(sim.world.looked_at)[0] == 3.0
    assert [answer for answer, _ in sim.world.lookups][-1] == "Found"


@simulated
async def test_r41_a_call_is_aborted_at_not_after(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(lands=10.5, hangs=True))
    await run(sim, asks(looked))
    assert seconds(sim.world.looked_at)[0] == 10.0
    assert (arrived(sim), await text(sim)) == ([10.5], "looked-1")


@pytest.mark.parametrize("answer", [ABSENT, UNKNOWN], ids=["absent", "unknown"])
@simulated
async def test_r41_a_receiver_that_remembers_keys_too_is_issued_to_at_once(
    loop: SimLoop, answer: Any
) -> None:
    sim = Sim(loop)
    sim.world.remembers = True
    sim.world.reply("both", Reply(lands=9.0, hangs=True))
    sim.world.answer("both", answer)
    await killed(sim, asks(both), known=False)
    ended = await sim.until("ended")
    assert seconds([ended.updated]) == arrived(sim)
    assert arrived(sim)[0] < 5
    assert len(sim.world.lookups) == 1
    await sleep(10)
    assert (len(sim.world.arrivals), len(set(sim.world.keys)), sim.world.effects) == (2, 1, ["both-1"])


# --- R42, R43 -------------------------------------------------------------------------------------


@simulated
async def test_r42_an_older_doubt_that_did_not_happen_is_issued_with_the_same_key(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(lands=None, hangs=True))
    await killed(sim, asks(looked), known=True)
    await sim.until("ended")
    first, second = await sim.entries("intent")
    assert (first["id"], first["key"]) == (second["id"], second["key"])
    assert second["not_after"] == EPOCH + 12 * SECOND
    (lookup,) = await sim.entries("lookup")
    assert (lookup["answer"], lookup["believed"], lookup["at"]) == ("absent", True, EPOCH + 2 * SECOND)
    assert await sim.commits() == [
        "start",
        "record: intent",
        "record: resumed lookup intent",
        "transition: done",
    ]
    assert sim.world.keys == [first["key"]]
    assert await sim.entries("not_done") == []


@simulated
async def test_r43_what_this_attempt_did_not_do_is_raised_and_its_key_is_free_for_the_same_call(
    loop: SimLoop,
) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(lands=None, error=FAILED))
    await run(sim, asks(looked, twice=True))
    first, second = await sim.entries("intent")
    assert first["key"] == second["key"] == sim.world.keys[0]
    assert first["id"] != second["id"]  # a record of its own
    assert arrived(sim) == [1.0]  # settled a second after the call's end
    (not_done,) = await sim.entries("not_done")
    assert (not_done["id"], not_done["absent"]) == (first["id"], True)
    data = await sim.thread(asks(looked)).data()
    assert (data.text, data.more) == ("looked-1", "TimeoutError: no answer")


# --- R44 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [UNKNOWN, OSError("down")], ids=["unknown", "raises"])
@simulated
async def test_r44_a_lookup_that_does_not_know_parks_after_six_in_a_row_past_settled(
    loop: SimLoop, answer: Any
) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(lands=None, error=FAILED))
    sim.world.answer("looked", *[answer] * 50)
    parked = await run(sim, asks(looked))
    assert parked.standing.reason == "in doubt"
    assert "its lookup does not know" in (parked.standing.note or "")
    past = [at for at in seconds(sim.world.looked_at) if at >= 1]
    assert past == pytest.approx([1.0, 2.6, 5.8, 10.8, 15.8, 20.8])  # backing off
    assert sim.world.arrivals == []


@simulated
async def test_r44_an_answer_within_six_goes_on(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(error=FAILED))
    sim.world.answer("looked", *[UNKNOWN] * 9)  # five of them past settled
    await run(sim, asks(looked))
    assert [at for at in seconds(sim.world.looked_at) if at >= 1] == pytest.approx(
        [1.0, 2.6, 5.8, 10.8, 15.8, 20.8]
    )
    assert (await text(sim), len(sim.world.arrivals)) == ("looked-1", 1)


# --- R45, R46 -------------------------------------------------------------------------------------


@simulated
async def test_r45_a_receiver_that_remembers_is_issued_to_at_once_after_a_kill(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.remembers = True
    sim.world.reply("remembered", Reply(hangs=True))
    await killed(sim, asks(remembered), known=True)
    await sim.until("ended")
    assert arrived(sim) == [0.0, 1.0]
    assert len(set(sim.world.keys)) == 1
    assert (await text(sim), sim.world.effects) == ("remembered-1", ["remembered-1"])


@simulated
async def test_r45_it_is_issued_six_times_at_the_most_and_then_parks(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.remembers = True
    sim.world.reply("remembered", *[Reply(error=FAILED)] * 50)
    parked = await run(sim, asks(remembered))
    assert parked.standing.reason == "in doubt"
    assert "it failed 6 times in a row (last error: TimeoutError: no answer)" in (parked.standing.note or "")
    assert arrived(sim) == pytest.approx([0, 0.1, 0.3, 0.7, 1.5, 3.1])
    intents = await sim.entries("intent")
    assert len(intents) == 6
    assert len({(e["id"], e["key"]) for e in intents}) == 1
    assert len({e["not_after"] for e in intents}) == 6  # each with an intent of its own
    assert sim.world.effects == ["remembered-1"]


@pytest.mark.parametrize(("after", "status"), [(28, "ended"), (30, "parked")])
@simulated
async def test_r46_past_its_keys_lifetime_a_receiver_counts_as_one_that_forgets(
    loop: SimLoop, after: int, status: str
) -> None:
    sim = Sim(loop)
    sim.world.reply("fading", Reply(hangs=True))
    machine = asks(fading)
    engine = await sim.engine(machine)
    await engine.start(machine)
    await sleep(1)
    engine.kill()
    await sleep(after - 1)
    await sim.engine(machine)
    row = await sim.until("ended", "parked")
    assert row.standing.status == status
    assert row.standing.reason == (None if status == "ended" else "in doubt")
    assert arrived(sim) == ([0.0, float(after)] if status == "ended" else [0.0])


# --- R47 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("known", "at"), [(True, 2.0), (False, 11.0)])
@simulated
async def test_r47_a_repeatable_effect_is_issued_again_once_the_first_can_no_longer_land(
    loop: SimLoop, known: bool, at: float
) -> None:
    sim = Sim(loop)
    sim.world.reply("again", Reply(hangs=True))
    await killed(sim, asks(again), known=known)
    await sim.until("ended")
    assert arrived(sim) == [0.0, at]
    assert len(set(sim.world.keys)) == 1
    assert await text(sim) == "again-2"


@simulated
async def test_r47_also_after_a_failure_of_its_own(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("again", Reply(lands=2.9, takes=2.0, error=FAILED))
    await run(sim, asks(again))
    assert arrived(sim) == [2.9, 3.1]  # never overtaken by its own late first request


# --- R48 ------------------------------------------------------------------------------------------


@simulated
async def test_r48_a_receiver_that_nobody_can_ask_parks_the_thread(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("bare", Reply(error=FAILED))
    parked = await run(sim, asks(bare))
    assert parked.standing.reason == "in doubt"
    assert sim.world.keys[0] in (parked.standing.note or "")
    assert (parked.standing.state, parked.standing.seq) == ("working", 0)
    assert await sim.commits() == ["start", "record: intent", "park: call_ended park"]
    assert len(sim.world.arrivals) == 1
    await sleep(3600)
    assert await sim.row() == parked


@simulated
async def test_r48_siblings_are_awaited_first_and_recorded_in_the_one_commit_that_parks(
    loop: SimLoop,
) -> None:
    cancelled: list[str] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        async def reads() -> str:
            try:
                return await step.call(fresh, "r")
            except asyncio.CancelledError:
                cancelled.append("read")
                raise

        calls = step.call(bare, "a"), step.call(looked, "b"), step.call(bare, "c"), reads()
        return machine.finished(lines=await asyncio.gather(*calls))

    sim = Sim(loop)
    sim.world.next_reads("fresh", Reply(takes=100.0))
    sim.world.reply("bare", Reply(error=FAILED), Reply(takes=4.0, error=FAILED))
    sim.world.reply("looked", Reply(takes=5.0))
    parked = await run(sim, job(body))
    assert parked.standing.reason == "in doubt"
    assert seconds([parked.updated]) == [5.0]
    assert [(await sim.commits())[0], (await sim.commits())[-1].split(":")[0]] == ["start", "park"]
    doubts = [e["id"] for e in await sim.entries("call_ended")]
    assert len(doubts) == 2
    assert [e["value"] for e in await sim.entries("done")] == ["looked-2"]
    assert cancelled == ["read"]
    assert await sim.commits() == [
        "start",
        "record: intent intent intent",
        "park: call_ended call_ended done park",
    ]


# --- R49 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [NotDone("busy"), FAILED], ids=["NotDone", "any error"])
@simulated
async def test_r49_a_repeats_not_done_does_not_speak_for_an_issue_before_it(
    loop: SimLoop, error: Exception
) -> None:
    """The first request landed and its answer was lost; the receiver refuses the second while it works."""
    sim = Sim(loop)
    sim.world.remembers = True
    sim.world.reply("remembered", Reply(error=FAILED), Reply(lands=None, error=error))
    ended = await run(sim, asks(remembered))
    assert ended.standing.status == "ended"
    assert await sim.entries("not_done") == []
    assert (await text(sim), sim.world.effects) == ("remembered-1", ["remembered-1"])
    assert len(await sim.entries("intent")) == 3


@simulated
async def test_r49_nor_for_one_that_can_only_be_repeated(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("again", Reply(error=FAILED), NotDone("busy"))
    await run(sim, asks(again))
    assert await sim.entries("not_done") == []
    assert (await text(sim), arrived(sim)) == ("again-2", [0.0, 2.3])


@pytest.mark.parametrize("error", [NotDone("full"), Refused("full")], ids=["NotDone", "declared"])
@simulated
async def test_r49_its_own_not_done_counts_where_no_other_issue_is_open(
    loop: SimLoop, error: Exception
) -> None:
    """Also after an older issue was settled by an ABSENT that was believed."""
    sim = Sim(loop)
    machine = asks(looked, twice=True)
    sim.world.reply("looked", Reply(lands=None, hangs=True), error)
    await killed(sim, machine, known=True)
    await sim.until("ended")
    assert [(e["error"], e.get("absent")) for e in await sim.entries("not_done")] == [("full", None)]
    assert (await sim.thread(machine).data()).more == "full"
    assert len(sim.world.arrivals) == 1


@simulated
async def test_a_handler_never_sees_an_effect_in_doubt(loop: SimLoop) -> None:
    """Whatever the effect raised, the handler has a value or a NotDone."""
    seen: list[str] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        try:
            seen.append(await step.call(looked, "a"))
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        return machine.finished()

    for error in (FAILED, KeyError("x"), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3)):
        sim = Sim(loop)
        sim.world.reply("looked", Reply(error=error))
        await run(sim, job(body))
        assert len(sim.world.arrivals) == 1
    assert seen == ["looked-1"] * 5
