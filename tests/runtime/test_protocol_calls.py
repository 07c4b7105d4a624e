"""Rows R20 to R32 of docs/protocol.md: what becomes of a call, by its record."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from harness.engine import (
    Note,
    Reply,
    Sim,
    World,
    again,
    bare,
    brief,
    carrying,
    for_ever,
    fresh,
    job,
    kept,
    looked,
    simulated,
)
from harness.loop import EPOCH, SimLoop

from perdure.machines import NotDone, Retry, Step
from perdure.runtime import Parked, Resolution
from perdure.runtime._keys import derived_key, explicit_key
from perdure.stores import Address, Keys

SECOND = 1_000_000
HOUR = timedelta(hours=1)
THREAD = Address(workspace="w", thread_id="t")


def calls_for(*whats: str, effect: Any = looked, then: Any = None) -> Any:
    """A handler that makes these calls one after the other, and then fires, or does as it is told."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        texts = [await step.call(effect, what) for what in whats]
        if then is not None:
            await then()
        return machine.finished(lines=texts)

    return body


async def interrupted(sim: Sim, body: Any, *, after: float = 1.0) -> Any:
    """Run a handler that never ends, kill its process, and leave the thread as it stands."""
    machine = job(body)
    engine = await sim.engine(machine, poll=timedelta(minutes=1))
    thread = await engine.start(machine)
    await sleep(after)
    engine.kill()
    return thread


async def goes_on(sim: Sim, body: Any, *statuses: str) -> Any:
    """The same machine under this code, in a new process."""
    machine = job(body)
    await sim.engine(machine)
    return await sim.until(*(statuses or ("ended",)))


async def lines(sim: Sim) -> list[str]:
    return list((await sim.thread(job(calls_for())).data()).lines)


# --- R20 ------------------------------------------------------------------------------------------


@simulated
async def test_r20_an_effect_commits_its_intent_with_the_reads_so_far_and_then_sends(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        text = await step.call(fresh, "r")
        return machine.finished(text=await step.call(looked, text))

    machine = job(body)
    sim = Sim(loop, machine)
    stood: list[str] = []
    sim.world.reply(
        "looked", Reply(then=lambda: stood.extend(row.kind for row in sim.store._tables.log[THREAD]))
    )
    engine = await sim.engine()
    await engine.start(machine)
    row = await sim.until("ended")
    assert stood == ["start", "record"]  # the intent was there when the request was sent
    assert await sim.commits() == ["start", "record: read intent", "transition: done"]
    (intent,) = await sim.entries("intent")
    key = derived_key(row.incarnation, 0, "main", "looked", b'{"what":"fresh#1"}', 0)
    assert intent == {
        "k": "intent",
        "id": 1,
        "lane": "main",
        "call": "looked",
        "args": {"what": "fresh#1"},
        "occ": 0,
        "wire": 0,
        "key": key,
        "not_after": EPOCH + 10 * SECOND,
        "settle": SECOND,
        "worker": engine.id,
        "at": EPOCH,
    }
    assert [(a.key, a.args) for a in sim.world.arrivals] == [(key, ("fresh#1",))]


@simulated
async def test_r20_equal_calls_of_one_visit_are_several_effects(loop: SimLoop) -> None:
    sim = Sim(loop)
    await goes_on_fresh(sim, calls_for("a", "a", "b"))
    assert len(set(sim.world.keys)) == 3
    assert await lines(sim) == ["looked-1", "looked-2", "looked-3"]


async def goes_on_fresh(sim: Sim, body: Any, *statuses: str) -> Any:
    machine = job(body)
    await (await sim.engine(machine)).start(machine)
    return await sim.until(*(statuses or ("ended",)))


@simulated
async def test_r20_a_key_names_thread_lane_effect_and_arguments(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        for lane in (step, step.lane("x"), step.lane("y")):
            for effect in (looked, bare):
                for what in ("a", "b"):
                    await lane.call(effect, what)
        return machine.finished()

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    for thread_id in ("t", "u"):
        await engine.start(machine, thread_id=thread_id)
        await sim.until("ended", thread_id=thread_id)
    assert len(set(sim.world.keys)) == len(sim.world.arrivals) == 24


@simulated
async def test_r20_calls_registered_in_one_turn_share_one_intent_commit(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        texts = await asyncio.gather(step.call(looked, "a"), step.call(looked, "b"), step.call(bare, "c"))
        return machine.finished(lines=texts)

    sim = Sim(loop)
    await goes_on_fresh(sim, body)
    assert await sim.commits() == ["start", "record: intent intent intent", "transition: done done done"]


# --- R21 ------------------------------------------------------------------------------------------


@simulated
async def test_r21_another_effect_than_the_record_holds_is_not_issued_and_parks_diverged(
    loop: SimLoop,
) -> None:
    sim = Sim(loop)
    await interrupted(sim, calls_for("a", then=for_ever))
    parked = await goes_on(sim, calls_for("b"), "parked")
    assert parked.standing.reason == "diverged"
    note = parked.standing.note
    assert 'looked({"what":"b"})' in note
    assert 'looked({"what":"a"}) [done]' in note
    assert [a.args for a in sim.world.arrivals] == [("a",)]
    assert len(await sim.entries("intent")) == 1


@simulated
async def test_r21_a_record_of_which_nothing_was_sent_lets_no_call_pass_by_another_record(
    loop: SimLoop,
) -> None:
    """Its intent came too late to be sent; other code did something else; then the first code is back."""
    sim = Sim(loop)
    machine = job(calls_for("a"))
    first = await sim.engine(machine, grace=timedelta(seconds=6))
    first.store.fault("delay", carrying("intent"), seconds=10.5)
    await first.start(machine)
    await first.runtime.__aexit__(None, None, None)
    assert [e["k"] for e in await sim.entries() if e["k"] in ("intent", "unsent")] == ["intent", "unsent"]
    second = await sim.engine(job(calls_for("b", then=for_ever)))
    await sleep(1)
    second.kill()
    parked = await goes_on(sim, calls_for("a"), "parked", "ended")
    assert parked.standing.reason == "diverged"
    assert [a.args for a in sim.world.arrivals] == [("b",)]


@pytest.mark.parametrize("lands", [True, False])
@simulated
async def test_r21_what_is_in_doubt_is_settled_before_the_thread_parks_diverged(
    loop: SimLoop, lands: bool
) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(lands=0.0 if lands else None, hangs=True))
    await interrupted(sim, calls_for("a"))
    parked = await goes_on(sim, calls_for("b"), "parked")
    assert parked.standing.reason == "diverged"
    assert [e["answer"] for e in await sim.entries("lookup")] == ["found" if lands else "absent"]
    assert [e["k"] for e in await sim.entries() if e["k"] in ("done", "not_done")] == [
        "done" if lands else "not_done"
    ]
    assert [a.args for a in sim.world.arrivals] == ([("a",)] if lands else [])


@simulated
async def test_r21_a_call_waits_while_another_may_still_match_the_record(loop: SimLoop) -> None:
    """The record's call is registered later, by a strand that is held up by a read."""
    sim = Sim(loop)
    await interrupted(sim, calls_for("a", then=for_ever))
    sim.world.next_reads("fresh", Reply(takes=5.0))
    row = await goes_on(sim, gathered_behind_a_slow_read, "ended", "parked")
    assert row.standing.status == "ended"
    assert [(a.args, a.at) for a in sim.world.arrivals] == [(("a",), EPOCH), (("b",), EPOCH + 6 * SECOND)]
    assert await lines(sim) == ["looked-2", "looked-1"]


async def gathered_behind_a_slow_read(machine: Any, data: Note, step: Step[World]) -> Any:
    async def behind() -> str:
        await step.call(fresh, "r")
        return await step.call(looked, "a")

    return machine.finished(lines=await asyncio.gather(step.call(looked, "b"), behind()))


@simulated
async def test_r21_a_changed_order_of_the_same_effects_is_no_divergence(loop: SimLoop) -> None:
    sim = Sim(loop)
    await interrupted(sim, calls_for("a", "b", then=for_ever))
    await goes_on(sim, calls_for("b", "a", "c"))
    assert [a.args for a in sim.world.arrivals] == [("a",), ("b",), ("c",)]
    assert await lines(sim) == ["looked-2", "looked-1", "looked-3"]


@simulated
async def test_r21_only_a_record_of_its_own_lane_holds_a_call_back(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        beside = await step.lane("beside").call(looked, "b")
        return machine.finished(lines=[await step.call(looked, "a"), beside])

    sim = Sim(loop)
    await interrupted(sim, calls_for("a", then=for_ever))
    await goes_on(sim, body)
    assert [a.args for a in sim.world.arrivals] == [("a",), ("b",)]
    assert await lines(sim) == ["looked-1", "looked-2"]


# --- R22 to R25 -----------------------------------------------------------------------------------


@simulated
async def test_r22_an_effect_that_is_done_is_served_its_value(loop: SimLoop) -> None:
    sim = Sim(loop)
    await interrupted(sim, calls_for("a", then=for_ever))
    assert await sim.commits() == ["start", "record: intent", "record: done"]
    await goes_on(sim, calls_for("a"))
    assert len(sim.world.arrivals) == 1
    assert sim.world.lookups == []
    assert await lines(sim) == ["looked-1"]
    assert await sim.commits() == ["start", "record: intent", "record: done", "transition: resumed"]


@simulated
async def test_r23_an_interrupted_attempt_is_raised_its_not_done_again(loop: SimLoop) -> None:
    raised: list[str] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        try:
            await step.call(looked, "a")
        except NotDone as error:
            raised.append(str(error))
        if len(raised) == 1:
            await for_ever()
        return machine.finished(text=await step.call(again, "instead"))

    sim = Sim(loop)
    sim.world.reply("looked", NotDone("sold out"))
    await interrupted(sim, body)
    await goes_on(sim, body)
    assert raised == ["sold out", "sold out"]
    assert [a.name for a in sim.world.arrivals] == ["again"]
    assert [(e["call"]) for e in await sim.entries("intent")] == ["looked", "again"]


@simulated
async def test_r24_a_record_freed_by_an_operator_is_issued_with_the_same_key(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("bare", Reply(lands=None, error=TimeoutError("no answer")))
    machine = job(calls_for("a", effect=bare))
    thread = await (await sim.engine(machine)).start(machine)
    assert (await sim.until("parked")).standing.reason == "in doubt"
    await sleep(12)
    await thread.resolve(Resolution(action="not done"))
    await sim.until("ended")
    first, second = await sim.entries("intent")
    assert first["key"] == second["key"] == sim.world.keys[0]
    assert (first["id"], len(sim.world.arrivals)) == (second["id"], 1)
    assert second["not_after"] > first["not_after"]


@simulated
async def test_r25_an_effect_in_doubt_is_settled_before_anything_is_sent(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(hangs=True))
    await interrupted(sim, calls_for("a"))
    await goes_on(sim, calls_for("a"))
    assert [said for said, _ in sim.world.lookups] == ["Found"]
    assert len(sim.world.arrivals) == 1
    assert await sim.commits() == ["start", "record: intent", "transition: resumed lookup done"]
    assert await lines(sim) == ["looked-1"]


# --- R26 to R28 -----------------------------------------------------------------------------------


def reads_then(read: Any, then: Any, seen: list[str]) -> Any:
    """A handler that reads, and goes on with what it has read."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        seen.append(await step.call(read, "r"))
        return await then(machine, step, seen[-1])

    return body


@simulated
async def test_r26_a_kept_read_is_served_whatever_its_age(loop: SimLoop) -> None:
    seen: list[str] = []

    async def then(machine: Any, step: Step[World], value: str) -> Any:
        if len(seen) == 1:
            await for_ever()
        return machine.finished(text=value)

    sim = Sim(loop)
    await interrupted(sim, reads_then(kept, then, seen), after=3600)
    await goes_on(sim, reads_then(kept, then, seen))
    assert seen == ["kept#1", "kept#1"]
    assert sim.world.asked == ["kept/r"]


@pytest.mark.parametrize("outcome", ["done", "in doubt", "not done"])
@pytest.mark.parametrize("read", [fresh, brief], ids=["plain", "reuse_for"])
@simulated
async def test_r26_a_read_before_an_effect_is_pinned_whatever_its_age(
    loop: SimLoop, read: Any, outcome: str
) -> None:
    seen: list[str] = []

    async def then(machine: Any, step: Step[World], value: str) -> Any:
        try:
            text = await step.call(looked, value)
        except NotDone:
            text = "not done"
        if len(seen) == 1:
            await for_ever()
        return machine.finished(text=text)

    sim = Sim(loop)
    if outcome == "in doubt":
        sim.world.reply("looked", Reply(hangs=True))
    elif outcome == "not done":
        sim.world.reply("looked", NotDone("no"))
    body = reads_then(read, then, seen)
    await interrupted(sim, body, after=1 if outcome == "in doubt" else 3600)
    await goes_on(sim, body)
    assert seen[1] == seen[0]
    assert len(sim.world.asked) == 1
    assert [a.args for a in sim.world.arrivals] == ([] if outcome == "not done" else [(seen[0],)])


@simulated
async def test_r26_a_read_after_an_effect_is_not_pinned_by_it(loop: SimLoop) -> None:
    """It is recorded with a later intent, and that one's NotDone is forgotten with the attempt."""
    seen: list[str] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.call(looked, "a")
        seen.append(await step.call(fresh, "r"))
        if len(seen) == 1:
            await step.call(looked, "b")
        return machine.finished(text=seen[-1])

    sim = Sim(loop)
    sim.world.reply("looked", Reply(), NotDone("no"))
    await goes_on_fresh(sim, body)
    assert [e["call"] for e in await sim.entries("read") if "value" in e] == ["fresh"]
    assert seen == ["fresh#1", "fresh#2"]
    assert [a.args for a in sim.world.arrivals] == [("a",)]


@pytest.mark.parametrize(
    ("wait", "asked"), [(30, 1), (60, 1), (61, 2)], ids=["young", "just young enough", "too old"]
)
@simulated
async def test_r27_an_unpinned_read_with_reuse_for_is_judged_by_its_age(
    loop: SimLoop, wait: int, asked: int
) -> None:
    """A NotDone that a failed attempt forgets leaves the read before it recorded and unpinned."""
    seen: list[str] = []

    async def then(machine: Any, step: Step[World], value: str) -> Any:
        if len(seen) == 1:
            await step.call(looked, "a")
        return machine.finished(text=value)

    sim = Sim(loop)
    sim.world.reply("looked", NotDone("no"))
    machine = job(
        reads_then(brief, then, seen), retry=Retry(attempts=2, delay=timedelta(seconds=wait), max_delay=HOUR)
    )
    await (await sim.engine(machine)).start(machine)
    await sim.until("ended")
    assert len(sim.world.asked) == asked
    assert (seen[1] == seen[0]) is (asked == 1)
    assert [e["fresh"] for e in await sim.entries("reuse")] == [asked == 1]


@simulated
async def test_r27_each_resume_judges_anew(loop: SimLoop) -> None:
    """An answer found young enough by one attempt is too old for the next, an hour later."""
    seen: list[str] = []

    async def then(machine: Any, step: Step[World], value: str) -> Any:
        if len(seen) == 1:
            await step.call(looked, "a")
        if len(seen) == 2:
            raise RuntimeError("fails of itself")
        return machine.finished(text=value)

    sim = Sim(loop)
    sim.world.reply("looked", NotDone("no"))
    slow_down = Retry(attempts=3, delay=timedelta(seconds=30), factor=60, max_delay=HOUR)
    machine = job(reads_then(brief, then, seen), retry=slow_down)
    await (await sim.engine(machine, poll=timedelta(minutes=1))).start(machine)
    await sim.until("ended")
    assert seen == ["brief#1", "brief#1", "brief#2"]
    assert [e["fresh"] for e in await sim.entries("reuse")] == [True, False]


@simulated
async def test_r28_a_plain_read_that_nothing_pins_is_asked_again(loop: SimLoop) -> None:
    seen: list[str] = []

    async def then(machine: Any, step: Step[World], value: str) -> Any:
        if len(seen) == 1:
            await step.call(looked, "a")
        return machine.finished(text=value)

    sim = Sim(loop)
    sim.world.reply("looked", NotDone("no"))
    machine = job(reads_then(fresh, then, seen))
    thread = await (await sim.engine(machine)).start(machine)
    await sim.until("ended")
    assert seen == ["fresh#1", "fresh#2"]
    assert (await thread.data()).text == "fresh#2"


# --- R29 ------------------------------------------------------------------------------------------


@simulated
async def test_r29_a_handler_may_not_fire_while_a_record_is_unmatched(loop: SimLoop) -> None:
    sim = Sim(loop)
    await interrupted(sim, calls_for("a", "b", then=for_ever))
    parked = await goes_on(sim, calls_for("a"), "parked", "ended")
    assert parked.standing.reason == "diverged"
    assert "the code asks for no further effect" in (parked.standing.note or "")
    assert 'looked({"what":"b"}) [done]' in (parked.standing.note or "")
    assert (parked.standing.state, parked.standing.seq) == ("working", 0)


@simulated
async def test_r29_an_unmatched_doubt_is_settled_first(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", Reply(hangs=True))
    await interrupted(sim, calls_for("a"))
    parked = await goes_on(sim, calls_for(), "parked", "ended")
    assert parked.standing.reason == "diverged"
    assert "[done]" in (parked.standing.note or "")
    assert [e["adopted"] for e in await sim.entries("done")] == [True]


# --- R30 to R32 -----------------------------------------------------------------------------------

INVOICE = looked.keyed("invoice-7")


def pays(what: str, *, times: int = 1) -> Any:
    return calls_for(*[what] * times, effect=INVOICE)


async def pay(sim: Sim, machine: Any, thread_id: str) -> Any:
    """Start another thread in a process of its own."""
    return await (await sim.engine(machine)).start(machine, thread_id=thread_id)


@simulated
async def test_r30_an_explicit_key_is_one_action_over_all_threads(loop: SimLoop) -> None:
    machine = job(pays("7"))
    sim = Sim(loop, machine)
    for thread_id in ("a", "b"):
        await pay(sim, machine, thread_id)
        await sim.until("ended", thread_id=thread_id)
    assert [a.key for a in sim.world.arrivals] == [explicit_key("w", "looked", "invoice-7")]
    for thread_id in ("a", "b"):
        assert (await sim.thread(machine, thread_id).data()).lines == ("looked-1",)
    assert await sim.commits("b") == ["start", "transition: served"]
    (row,) = (await sim.store.page(Keys(workspace="w", effect="looked"))).rows
    assert (row.thread_id, row.seq, row.outcome) == ("a", 0, b'"looked-1"')


@simulated
async def test_r30_another_workspace_has_keys_of_its_own(loop: SimLoop) -> None:
    machine = job(pays("7"))
    sim = Sim(loop, machine)
    engine = await sim.engine()
    for workspace in ("w", "v"):
        start = partial(engine.runtime.start, machine, Note(), thread_id="t", workspace=workspace)
        await engine.inside(start)
    await sleep(1)
    assert len(set(sim.world.keys)) == 2


@simulated
async def test_r31_an_explicit_key_with_other_arguments_fails_the_attempt_and_issues_nothing(
    loop: SimLoop,
) -> None:
    sim = Sim(loop)
    await pay(sim, job(pays("7")), "a")
    await sim.until("ended", thread_id="a")
    other = job(pays("8"), name="Other", retry=Retry(attempts=1))
    await pay(sim, other, "b")
    parked = await sim.until("parked", thread_id="b")
    assert parked.standing.reason == "failed"
    assert "key 'invoice-7' was used with other arguments by thread 'a'" in (parked.standing.note or "")
    assert [a.args for a in sim.world.arrivals] == [("7",)]
    assert await sim.entries("intent", "b") == []
    (failed,) = await sim.entries("failed", "b")
    assert failed["error"]["type"] == "CallMisuse"


@simulated
async def test_r32_an_explicit_key_in_doubt_elsewhere_is_waited_for(loop: SimLoop) -> None:
    machine = job(pays("7"))
    sim = Sim(loop, machine)
    sim.world.reply("looked", Reply(takes=5.0))
    await pay(sim, machine, "a")
    await pay(sim, machine, "b")
    await sim.until("ended", thread_id="b")
    assert EPOCH + 5 * SECOND <= loop.now() < EPOCH + 6 * SECOND
    assert len(sim.world.arrivals) == 1
    assert (await sim.thread(machine, "b").data()).lines == ("looked-1",)


@simulated
async def test_r32_an_explicit_key_that_stays_in_doubt_parks_after_deadline_and_settle(
    loop: SimLoop,
) -> None:
    machine = job(pays("7"))
    sim = Sim(loop, machine)
    sim.world.answer("looked", *["unknown"] * 1000)
    sim.world.reply("looked", Reply(hangs=True))
    await pay(sim, machine, "a")
    await sleep(1)
    thread = await pay(sim, machine, "b")
    parked = await sim.until("parked", thread_id="b")
    assert parked.standing.reason == "in doubt"
    assert "in doubt in thread 'a'" in (parked.standing.note or "")
    assert EPOCH + 12 * SECOND <= loop.now() < EPOCH + 13 * SECOND
    assert len(sim.world.arrivals) == 1
    with pytest.raises(Parked, match="invoice-7"):
        await thread.result()
