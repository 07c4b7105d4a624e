"""Rows R140 to R145 of docs/protocol.md: a cancel, wherever the thread stands when it comes."""

from __future__ import annotations

from asyncio import gather, sleep
from datetime import timedelta
from typing import Any

import pytest
from anyio import move_on_after
from harness.engine import CALLS, HANG, Note, Reply, Sim, World, bare, carrying, fresh, looked, simulated
from harness.loop import EPOCH, SimLoop

from perdure.machines import Accept, Cancellation, Fire, Machine, Retry, State, Step
from perdure.runtime import SignalRefused
from perdure.stores import Inbox, Threads, TooLarge

SECOND = 1_000_000


class Desk(Machine[Note, World], version=1, calls=CALLS):
    """Works, waits and works again; can be cancelled in two of its states, and then tidies up."""

    working = State(initial=True, retry=Retry(attempts=3, delay=timedelta(minutes=5)))
    review = State()
    sealing = State()
    tidying = State()
    done = State(final=True)
    dropped = State(final=True)

    worked = working.to(review)
    approve = review.to(sealing).on_signal()
    sealed = sealing.to(done)
    stop = (working.to(tidying) | review.to(tidying)).on_cancel()
    tidied = tidying.to(dropped)

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        text = await step.call(fresh, "a")
        return self.worked(text=text, more=await step.call(looked, text))

    @sealing.handler
    async def seal(self, data: Note, step: Step[World]) -> Fire:
        return self.sealed(more=await step.call(fresh, "seal"))

    @stop.received
    def stopped(self, data: Note, asked: Cancellation) -> Accept:
        return self.stop(lines=[f"{asked.by}: {asked.reason}"])

    @tidying.handler
    async def tidy(self, data: Note, step: Step[World]) -> Fire:
        return self.tidied()


class Plain(Machine[Note, World], version=1, calls=CALLS):
    """Says nothing of being cancelled."""

    working = State(initial=True)
    review = State()
    done = State(final=True)

    worked = working.to(review)
    approve = review.to(done).on_signal()

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        return self.worked(text=await step.call(looked, await step.call(fresh, "a")))


def since(sim: Sim) -> float:
    return (sim.loop.now() - EPOCH) / SECOND


async def cancelled_and_tidied(sim: Sim, words: str = "ada: enough") -> None:
    row = await sim.until("ended")
    assert (row.standing.state, row.standing.reason) == ("dropped", None)
    assert (await sim.thread(Desk).data()).lines == (words,)
    assert "cancelled by " + words in [d for s in await sim.thread(Desk).history() for d in s.decisions]


# --- R140 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@simulated
async def test_r140_a_handler_that_reads_is_stopped_at_once_or_within_two_polls(
    loop: SimLoop, elsewhere: bool
) -> None:
    sim = Sim(loop, Desk)
    sim.world.next_reads("fresh", Reply(takes=600))
    engine = await sim.engine()
    await engine.start(Desk)
    await sleep(30)
    began = since(sim)
    if elsewhere:
        await sim.thread(Desk).cancel(reason="enough", by="ada")
    else:
        thread = engine.runtime.thread(Desk, thread_id="t", workspace="w")
        await engine.inside(lambda: thread.cancel(reason="enough", by="ada"))
    await cancelled_and_tidied(sim)
    assert since(sim) - began <= (1.0 if elsewhere else 0.0)
    assert sim.world.asked == ["fresh/a"]
    assert not await sim.entries("failed")  # no attempt was used


@simulated
async def test_r140_an_effect_under_way_is_awaited_and_its_outcome_recorded(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    sim.world.reply("looked", Reply(takes=5))
    await (await sim.engine()).start(Desk)
    await sleep(1)
    await sim.thread(Desk).cancel(reason="enough", by="ada")
    await cancelled_and_tidied(sim)
    assert since(sim) == 5
    assert [commit for commit in await sim.commits() if "done" in commit]
    (done,) = await sim.entries("done")
    assert done["value"] == "looked-1"


@simulated
async def test_r140_an_effect_in_doubt_is_settled_before_the_cancel_commits(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    sim.world.reply("looked", Reply(lands=None, hangs=True))
    await (await sim.engine()).start(Desk)
    await sleep(1)
    await sim.thread(Desk).cancel(reason="enough", by="ada")
    await cancelled_and_tidied(sim)
    assert since(sim) >= 11  # its deadline and what it takes to settle
    assert [e["error"] for e in await sim.entries("not_done")]
    assert not sim.world.arrivals


@simulated
async def test_r140_a_handler_that_runs_asks_nothing_of_the_store_until_a_poll_has_passed(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Desk)
    sim.world.next_reads("fresh", Reply(takes=0.4))
    engine = await sim.engine()
    await engine.start(Desk)
    await sim.until("waiting")
    looks = [q for q in engine.store.pages if isinstance(q, Inbox) or getattr(q, "owner", None)]
    assert looks == []


# --- R141, R142 -----------------------------------------------------------------------------------


@simulated
async def test_r141_a_thread_that_waits_takes_it(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    await (await sim.engine()).start(Desk)
    await sim.until("waiting")
    await sim.thread(Desk).cancel(reason="enough", by="ada")
    await cancelled_and_tidied(sim)


@simulated
async def test_r141_a_wait_for_a_retry_takes_it(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    sim.world.next_reads("fresh", RuntimeError("no"))
    await (await sim.engine()).start(Desk)
    await sim.until("waiting")
    await sim.thread(Desk).cancel(reason="enough", by="ada")
    await cancelled_and_tidied(sim)
    assert since(sim) < 5


@simulated
async def test_r141_one_sent_before_the_start_comes_before_the_first_handler(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    await sim.thread(Desk).cancel(reason="enough", by="ada")
    await (await sim.engine()).start(Desk)
    await cancelled_and_tidied(sim)
    assert sim.world.asked == []


@pytest.mark.parametrize("first", ["signal", "cancel"])
@simulated
async def test_r141_what_was_accepted_first_is_taken_first(loop: SimLoop, first: str) -> None:
    sim = Sim(loop, Desk)
    engine = await sim.engine()
    await engine.start(Desk)
    await sim.until("waiting")
    await engine.end()
    thread = sim.thread(Desk)
    if first == "signal":
        await thread.signal(Desk.approve, id="1")
    await thread.cancel(reason="enough", by="ada")
    if first == "cancel":
        await thread.signal(Desk.approve, id="1")
    await sim.engine()
    ended = await sim.until("ended")
    assert ended.standing.state == ("done" if first == "signal" else "dropped")


@simulated
async def test_r142_a_state_that_none_leaves_lets_it_wait_and_the_next_one_takes_it(loop: SimLoop) -> None:
    class Late(Machine[Note, World], version=1, calls=CALLS):
        """Cannot be cancelled while it seals."""

        sealing = State(initial=True)
        review = State()
        dropped = State(final=True)
        sealed = sealing.to(review)
        again = review.to(review).on_signal()
        stop = review.to(dropped).on_cancel()

        @sealing.handler
        async def seal(self, data: Note, step: Step[World]) -> Fire:
            return self.sealed(text=await step.call(fresh, "seal"))

    sim = Sim(loop, Late)
    sim.world.next_reads("fresh", Reply(takes=20, value="sealed"))
    await (await sim.engine()).start(Late)
    await sleep(1)
    await sim.thread(Late).cancel(by="ada")
    await sleep(5)
    assert "In its inbox is a cancel by ada" in await sim.thread(Late).why()
    row = await sim.until("ended")
    assert (row.standing.state, since(sim)) == ("dropped", 20)
    assert (await sim.thread(Late).data()).text == "sealed"  # the handler was left alone
    assert sim.world.asked == ["fresh/seal"]


class Guarded(Machine[Note, World], version=1, calls=CALLS):
    """Can be cancelled while nothing is noted."""

    review = State(initial=True)
    dropped = State(final=True)
    clear = review.to(review).on_signal(str)
    stop = review.to(dropped, when=lambda note: note.text is None).on_cancel()

    @clear.received
    def cleared(self, data: Note, text: str) -> Accept:
        return self.clear(text=text or None)


@simulated
async def test_r142_one_whose_guard_is_false_waits_and_is_examined_after_each_transition(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Guarded)
    await (await sim.engine()).start(Guarded, Note(text="busy"))
    thread = sim.thread(Guarded)
    await thread.cancel(by="ada", reason="why not")
    await sleep(5)
    assert (await thread.row()).standing.status == "waiting"
    assert "Held back by a guard, or not looked at yet: cancel by ada: why not." in await thread.why()
    await thread.signal(Guarded.clear, "", id="1")
    assert (await sim.until("ended")).standing.state == "dropped"


@simulated
async def test_r142_a_parked_thread_keeps_it_and_why_says_what_ends_it(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    sim.world.next_reads("fresh", *[RuntimeError("no")] * 3)
    await (await sim.engine()).start(Desk)
    await sim.until("parked")
    thread = sim.thread(Desk)
    await thread.cancel(by="ada", reason="enough")
    await sleep(5)
    assert (await thread.row()).standing.status == "parked"
    assert "a cancel by ada: enough until it goes on; to terminate it ends it now" in await thread.why()
    await thread.retry()
    await cancelled_and_tidied(sim)


# --- R143 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the start", "working", "waiting"])
@simulated
async def test_r143_a_machine_without_a_cancel_event_ends_where_it_stands(loop: SimLoop, when: str) -> None:
    sim = Sim(loop, Plain)
    thread = sim.thread(Plain)
    if when == "before the start":
        await thread.cancel(reason="enough", by="ada")
    if when == "working":
        sim.world.next_reads("fresh", Reply(takes=600))
    await (await sim.engine()).start(Plain)
    if when == "working":
        await sleep(1)
        await thread.cancel(reason="enough", by="ada")
    if when == "waiting":
        await sim.until("waiting")
        await thread.cancel(reason="enough", by="ada")
    await sim.until("ended", within=timedelta(minutes=1))
    ended = await thread.result()
    assert (ended.state, ended.reason) == ("review" if when == "waiting" else "working", "cancelled")
    assert since(sim) < 3
    *_, last = await thread.history()
    assert (last.event, last.dest, last.decisions[-1]) == (":cancel", ended.state, "cancelled by ada: enough")
    assert "ended, cancelled by ada: enough" in await thread.why()
    assert await thread.pending() == []


@pytest.mark.parametrize("issue", [looked, bare], ids=["lookup", "neither"])
@simulated
async def test_r143_only_once_its_effects_are_settled(loop: SimLoop, issue: Any) -> None:
    class Acting(Machine[Note, World], version=1, calls=CALLS):
        """One effect."""

        working = State(initial=True)
        done = State(final=True)
        worked = working.to(done)

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            return self.worked(text=await step.call(issue, "a"))

    sim = Sim(loop, Acting)
    sim.world.reply(issue.name, HANG)
    await (await sim.engine()).start(Acting)
    await sleep(1)
    await sim.thread(Acting).cancel()
    row = await sim.until("ended", "parked")
    if issue is looked:
        assert (row.standing.status, row.standing.reason) == ("ended", "cancelled")
        assert await sim.entries("done")
    else:
        assert (row.standing.status, row.standing.reason) == ("parked", "in doubt")


@pytest.mark.parametrize("machine", [Desk, Plain], ids=["an event", "none"])
@simulated
async def test_r143_what_a_crash_left_in_doubt_is_settled_first(loop: SimLoop, machine: Any) -> None:
    sim = Sim(loop, machine)
    engine = await sim.engine()
    sim.world.reply("looked", Reply(then=engine.kill))
    await engine.start(machine)
    await sim.until_dead(engine)
    await sim.thread(machine).cancel(by="ada", reason="enough")
    await sim.engine()
    await sim.until("ended")
    assert [entry["value"] for entry in await sim.entries("done")] == ["looked-1"]
    kinds = [entry["k"] for entry in await sim.entries()]
    assert kinds.index("done") < kinds.index("cancel" if machine is Desk else "cancelled")


@simulated
async def test_r143_its_pending_artifacts_are_dropped(loop: SimLoop) -> None:
    class Drawing(Machine[Note, World], version=1, calls=CALLS):
        """Puts an artifact and goes on."""

        working = State(initial=True)
        done = State(final=True)
        worked = working.to(done)

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            await step.artifacts.put(b"picture", media_type="image/png")
            return self.worked(text=await step.call(fresh, "a"))

    sim = Sim(loop, Drawing)
    sim.world.next_reads("fresh", Reply(takes=600))
    await (await sim.engine()).start(Drawing)
    await sleep(1)
    assert await sim.entries("artifact")
    await sim.thread(Drawing).cancel()
    await sim.until("ended")
    assert not sim.store._tables.artifacts


# --- R144, R145 -----------------------------------------------------------------------------------


@simulated
async def test_r144_the_first_ones_words_stand(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    thread = sim.thread(Desk)
    await thread.cancel(by="ada", reason="enough")
    await thread.cancel(by="bob", reason="more than enough")
    await (await sim.engine()).start(Desk)
    await cancelled_and_tidied(sim)
    await thread.cancel(by="bob", reason="late")  # the same message again changes nothing


@simulated
async def test_r144_after_the_end_it_is_refused_and_says_how_the_thread_ended(loop: SimLoop) -> None:
    sim = Sim(loop, Plain)
    await (await sim.engine()).start(Plain)
    thread = sim.thread(Plain)
    await sim.until("waiting")
    await thread.signal(Plain.approve, id="1")
    await sim.until("ended")
    with pytest.raises(SignalRefused, match="thread 't' has ended: in state 'done'"):
        await thread.cancel(by="ada")
    assert await thread.pending() == []


@simulated
async def test_r144_a_signal_cannot_take_its_id(loop: SimLoop) -> None:
    sim = Sim(loop, Plain)
    with pytest.raises(SignalRefused, match="this id is the runtime's own"):
        await sim.thread(Plain).signal(Plain.approve, id=":cancel")


@pytest.mark.parametrize("by", ["", "a\nb", "x" * 300], ids=["empty", "control", "long"])
@simulated
async def test_r144_nameless_cancellers_are_refused_before_anything_is_written(
    loop: SimLoop, by: str
) -> None:
    sim = Sim(loop, Plain)
    with pytest.raises((ValueError, TooLarge), match=r"^by "):
        await sim.thread(Plain).cancel(by=by)
    assert await sim.thread(Plain).pending() == []


class Short(Machine[Note, World], version=1, calls=CALLS):
    """One read, and the end."""

    working = State(initial=True)
    done = State(final=True)
    worked = working.to(done)

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        return self.worked(text=await step.call(fresh, "a"))


@pytest.mark.parametrize("here", [True, False], ids=["here", "elsewhere"])
@pytest.mark.parametrize("order", ["cancel first", "commit first"])
@simulated
async def test_r145_a_thousand_cancels_at_the_final_commit_leave_one_end_and_the_canceller_is_told(
    loop: SimLoop, here: bool, order: str
) -> None:
    """The commit is held for a second; the cancel lands while it is, or behind it. A thousand in the four."""
    crowd = 250
    sim = Sim(loop, Short)
    engine = await sim.engine()
    names = [f"t{n}" for n in range(crowd)]
    engine.store.fault("delay", carrying("transition"), times=crowd, seconds=1.0)
    await gather(*(engine.start(Short, thread_id=name) for name in names))
    await sleep(0.5 if order == "cancel first" else 1.5)
    ends = {row.address.thread_id: row for row in await sim.store_rows(Threads())}
    assert {row.standing.status for row in ends.values()} == {
        "running" if order == "cancel first" else "ended"
    }

    async def cancel(name: str) -> str:
        thread: Any = sim.thread(Short, name)
        if here:
            own: Any = engine.runtime.thread(Short, thread_id=name, workspace="w")
            asked = engine.inside(lambda: own.cancel(by="ada"))
        else:
            asked = thread.cancel(by="ada")
        try:
            await asked
        except SignalRefused as refused:
            return str(refused)
        return f"accepted, and ended in {(await thread.result()).state}"

    told = set(await gather(*map(cancel, names)))
    await sleep(60)
    after = {row.address.thread_id: row for row in await sim.store_rows(Threads())}
    assert {(r.standing.state, r.standing.status, r.standing.reason, r.n) for r in after.values()} == {
        ("done", "ended", None, 2)
    }
    if order == "commit first":
        assert told == {f"thread '{name}' has ended: in state 'done'" for name in names}
        assert after == ends
    else:
        assert told == {"accepted, and ended in done"}
        left = await sim.thread(Short, "t7").pending()
        assert [row.event for row in left] == [":cancel"]
        assert "Signals left in its inbox: cancel by ada." in await sim.thread(Short, "t7").why()
        with pytest.raises(SignalRefused, match="has ended: in state 'done'"):
            await sim.thread(Short, "t7").cancel()


@simulated
async def test_r145_one_that_comes_while_the_handlers_effects_are_awaited_wins(loop: SimLoop) -> None:
    class Leaving(Machine[Note, World], version=1, calls=CALLS):
        """Fires while an effect is under way."""

        working = State(initial=True)
        done = State(final=True)
        worked = working.to(done)

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            with move_on_after(1):
                await step.call(looked, "a")
            return self.worked()

    sim = Sim(loop, Leaving)
    sim.world.reply("looked", Reply(takes=5))
    await (await sim.engine()).start(Leaving)
    await sleep(2)  # the handler has fired, and its effect is awaited
    await sim.thread(Leaving).cancel(by="ada")
    row = await sim.until("ended")
    assert (row.standing.state, row.standing.reason) == ("working", "cancelled")
    assert [r.kind for r, _ in await sim.rows()].count("transition") == 0
