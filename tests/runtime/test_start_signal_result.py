"""What starts, signals and looks: each once by id, from anywhere, with an answer for every status."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from attrs import evolve
from harness.engine import (
    CALLS,
    HANG,
    Note,
    Reply,
    Sim,
    World,
    again,
    bare,
    every,
    fresh,
    job,
    kept,
    looked,
    simulated,
)
from harness.loop import EPOCH, SimLoop

from perdure.machines import Accept, DefinitionError, Fire, Machine, NotStorable, Retry, State, Step, record
from perdure.runtime import (
    CallSeen,
    Ended,
    NoSuchThread,
    Parked,
    Runtime,
    RuntimeClosed,
    SignalRefused,
    StartConflict,
    UnknownMachine,
)
from perdure.runtime._look import why
from perdure.stores import (
    Address,
    Inbox,
    MemoryStore,
    Page,
    Query,
    SignalConflict,
    StoreUnavailable,
    Threads,
    TooLarge,
)

R = TypeVar("R")

SECOND = 1_000_000


@record
class Word:
    """What a signal brings."""

    text: str


class Desk(Machine[Note, World], version=1, calls=CALLS):
    """Works, waits for words, and ends."""

    working = State(initial=True)
    waits = State()
    done = State(final=True)
    began = working.to(waits)
    say = waits.to(waits).on_signal(Word)
    close = waits.to(done).on_signal()

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        return self.began(text=await step.call(looked, data.text or ""))

    @say.received
    def said(self, data: Note, word: Word) -> Accept:
        return self.say(lines=[word.text])


class Other(Machine[Note, World], version=1, calls=CALLS):
    """Another machine with the same data."""

    waits = State(initial=True)
    done = State(final=True)
    close = waits.to(done).on_signal()


ADDRESS = Address(workspace="w", thread_id="t")


async def inbox(sim: Sim) -> list[tuple[int, str, int | None]]:
    page = await sim.store.page(Inbox(address=ADDRESS))
    return [(row.number, row.id, row.consumed) for row in page.rows]


# --- settled ----------------------------------------------------------------------------------------


@simulated
async def test_settled_is_reached_when_nothing_is_left_to_do_now(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    engine = await sim.engine()
    thread = await engine.start(Desk, Note(text="a"))
    assert (await thread.settled(), await thread.state()) == ("waiting", "waits")
    await thread.signal(Desk.say, Word(text="one"), id="1")
    assert (await thread.settled(), (await thread.data()).lines) == ("waiting", ("one",))
    await thread.signal(Desk.close, id="c")
    assert (await thread.settled(), await thread.state()) == ("ended", "done")


@simulated
async def test_a_retrys_delay_is_not_settled(loop: SimLoop) -> None:
    async def fails_once(machine: Any, data: Note, step: Step[World]) -> Any:
        if step.attempt == 1:
            raise ValueError("not yet")
        return machine.finished()

    machine = job(fails_once, retry=Retry(attempts=2, delay=timedelta(hours=1), max_delay=timedelta(hours=1)))
    sim = Sim(loop, machine)
    engine = await sim.engine()
    thread = await engine.start(machine, Note())
    assert (await thread.settled(), loop.elapsed >= 3600) == ("ended", True)


# --- start ------------------------------------------------------------------------------------------


@simulated
async def test_the_same_start_again_is_the_thread_that_is_there(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    engine = await sim.engine()
    first = await engine.start(Desk, Note(text="a"))
    await sim.until("waiting")
    before = await sim.row()
    again_ = await engine.start(Desk, Note(text="a"))
    assert await sim.row() == before
    assert again_.address == first.address
    await first.signal(Desk.close, id="c")
    await sim.until("ended")
    ended = await (await engine.start(Desk, Note(text="a"))).result()
    assert ended == Ended(state="done", data=Note(text="looked-1"), reason=None)
    assert len(sim.world.arrivals) == 1


@simulated
async def test_many_starts_at_once_make_one_thread(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    engines = [await sim.engine() for _ in range(3)]
    await asyncio.gather(*(engine.start(Desk, Note(text="a")) for engine in engines for _ in range(5)))
    await sim.until("waiting")
    assert len(sim.world.arrivals) == 1
    assert len(sim.store._tables.threads) == 1


@pytest.mark.parametrize("fault", ["lose before", "lose after", "refuse"])
@simulated
async def test_a_start_whose_reply_is_lost_is_sent_again_and_makes_one_thread(
    loop: SimLoop, fault: Any
) -> None:
    sim = Sim(loop, Desk)
    engine = await sim.engine()
    engine.store.fault(fault, every("start"), times=2)
    await engine.start(Desk, Note(text="a"))
    await sim.until("waiting")
    assert len(sim.world.arrivals) == 1
    assert [method for method, _ in engine.store.writes].count("start") == 3


@pytest.mark.parametrize(
    ("machine", "data"),
    [(Desk, Note(text="b")), (Desk, Note(text="a", lines=("x",))), (Other, Note(text="a"))],
)
@simulated
async def test_a_start_with_other_data_or_another_machine_is_refused(
    loop: SimLoop, machine: Any, data: Note
) -> None:
    sim = Sim(loop, Desk, Other)
    engine = await sim.engine()
    await engine.start(Desk, Note(text="a"))
    await sim.until("waiting")
    before = await sim.row()
    with pytest.raises(StartConflict, match=r"thread 't' in workspace 'w' was started .* machine 'Desk'"):
        await engine.start(machine, data)
    assert await sim.row() == before


@simulated
async def test_the_same_id_in_another_workspace_is_another_thread(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    engine = await sim.engine()
    await engine.start(Desk, Note(text="a"))
    other = await engine.inside(
        lambda: engine.runtime.start(Desk, Note(text="b"), thread_id="t", workspace="v", principal="p")
    )
    await sleep(1)
    assert (await other.row()).principal == "p"
    assert {a.args for a in sim.world.arrivals} == {("a",), ("b",)}


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ({"thread_id": ""}, ValueError),
        ({"thread_id": "a\nb"}, ValueError),
        ({"thread_id": "\ud800"}, ValueError),
        ({"thread_id": "é" * 257}, TooLarge),
        ({"workspace": ""}, ValueError),
        ({"workspace": "w" * 129}, TooLarge),
        ({"session": "s" * 513}, TooLarge),
        ({"principal": "p" * 256}, TooLarge),
        ({"principal": ""}, ValueError),
    ],
)
@simulated
async def test_a_name_that_no_store_could_hold_is_refused_at_the_start(
    loop: SimLoop, names: dict[str, Any], error: type[Exception]
) -> None:
    sim = Sim(loop, Desk)
    client = sim.client()
    place: dict[str, Any] = {"thread_id": "t", "workspace": "w", **names}
    with pytest.raises(error):
        await client.start(Desk, Note(), **place)
    assert sim.store._tables.threads == {}


@pytest.mark.parametrize("size", [255, 256, 300, 512])
@simulated
async def test_ids_up_to_the_limit_are_taken(loop: SimLoop, size: int) -> None:
    sim = Sim(loop, Desk)
    thread = await sim.client().start(Desk, Note(), thread_id="x" * size)
    assert (await thread.row()).address.thread_id == "x" * size


@simulated
async def test_data_that_cannot_be_stored_is_refused_by_field_before_anything_is_written(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Desk)
    with pytest.raises(NotStorable, match=r"\.text.*lone surrogate"):
        await sim.client().start(Desk, Note(text="\ud800"), thread_id="t")
    with pytest.raises(NotStorable, match="takes Note, not Word"):
        await sim.client().start(Desk, Word(text="x"), thread_id="t")  # type: ignore[misc]
    assert sim.store._tables.threads == {}


@simulated
async def test_a_machine_that_the_runtime_was_not_given_is_refused_by_name(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    with pytest.raises(UnknownMachine, match=r"'Other' is not in Runtime.* which has: Desk"):
        await sim.client().start(Other, Note(), thread_id="t")
    with pytest.raises(UnknownMachine):
        sim.client().thread(Other, thread_id="t")


@simulated
async def test_a_runtime_that_does_not_run_says_so(loop: SimLoop) -> None:
    sim = Sim(loop)
    runtime: Runtime[Any] = Runtime(machines=[Desk], store=sim.store, artifacts=sim.artifacts, env=sim.env)
    with pytest.raises(RuntimeClosed, match="async with runtime"):
        await runtime.start(Desk, Note(), thread_id="t")


# --- signals ----------------------------------------------------------------------------------------


@simulated
async def test_signals_before_the_start_are_kept_and_delivered_first_in_order(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    early = sim.client().thread(Desk, thread_id="t", workspace="w")
    await early.signal(Desk.say, Word(text="1"), id="1")
    await early.signal(Desk.say, Word(text="2"), id="2")
    with pytest.raises(NoSuchThread):
        await early.state()
    assert [row.id for row in await early.pending()] == ["1", "2"]
    engine = await sim.engine()
    thread = await engine.start(Desk, Note(text="a"))
    await thread.signal(Desk.say, Word(text="3"), id="3")
    await sim.until_row(lambda row: row.standing.seq == 4)
    assert (await thread.data()).lines == ("1", "2", "3")
    assert await inbox(sim) == [(1, "1", 2), (2, "2", 3), (3, "3", 4)]


@simulated
async def test_the_same_signal_again_counts_once_whenever_it_comes(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    first = await sim.engine()
    thread = await first.start(Desk, Note(text="a"))
    for _ in range(2):  # before it is handled
        await thread.signal(Desk.say, Word(text="x"), id="1")
    await sim.until_row(lambda row: row.standing.seq == 2)
    await thread.signal(Desk.say, Word(text="x"), id="1")  # after it
    await first.end()
    second = await sim.engine()
    await thread.signal(Desk.say, Word(text="x"), id="1")  # after a restart
    await thread.signal(Desk.say, Word(text="x"), id="2")  # the same words again
    await thread.signal(Desk.close, id="3")
    await sim.until("ended")
    await thread.signal(Desk.say, Word(text="x"), id="1")  # after the end
    assert (await thread.data()).lines == ("x", "x")
    assert await inbox(sim) == [(1, "1", 2), (2, "2", 3), (3, "3", 4)]
    await second.end()


@pytest.mark.parametrize("fault", ["lose before", "lose after", "refuse"])
@simulated
async def test_a_signal_whose_reply_is_lost_is_sent_again_and_counts_once(loop: SimLoop, fault: Any) -> None:
    sim = Sim(loop, Desk)
    engine = await sim.engine()
    await engine.start(Desk, Note(text="a"))
    engine.store.fault(fault, every("deliver"))
    thread = engine.runtime.thread(Desk, thread_id="t", workspace="w")
    await engine.inside(lambda: thread.signal(Desk.say, Word(text="x"), id="1"))
    await sim.until_row(lambda row: row.standing.seq == 2)
    assert (await thread.data()).lines == ("x",)
    assert await inbox(sim) == [(1, "1", 2)]


@simulated
async def test_an_id_that_was_used_for_something_else_is_a_conflict(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    thread = await (await sim.engine()).start(Desk, Note(text="a"))
    await thread.signal(Desk.say, Word(text="x"), id="1")
    with pytest.raises(SignalConflict, match="'1'"):
        await thread.signal(Desk.say, Word(text="y"), id="1")
    with pytest.raises(SignalConflict, match="'1'"):
        await thread.signal(Desk.close, id="1")
    await sim.until_row(lambda row: row.standing.seq == 2)
    assert (await thread.data()).lines == ("x",)


@simulated
async def test_of_many_decisions_at_once_the_first_is_taken_and_the_rest_are_listed(loop: SimLoop) -> None:
    class Gate(Machine[Note, World], version=1, calls=CALLS):
        """Waits for one decision, and acts on it."""

        waits = State(initial=True)
        approved = State()
        done = State(final=True)
        denied = State(final=True)
        approve = waits.to(approved).on_signal(Word)
        deny = waits.to(denied).on_signal(Word)
        acted = approved.to(done)

        @approve.received
        def was_approved(self, data: Note, word: Word) -> Accept:
            return self.approve(text=word.text)

        @deny.received
        def was_denied(self, data: Note, word: Word) -> Accept:
            return self.deny(text=word.text)

        @approved.handler
        async def act(self, data: Note, step: Step[World]) -> Fire:
            return self.acted(more=await step.call(looked, data.text or ""))

    sim = Sim(loop, Gate)
    engines = [await sim.engine() for _ in range(2)]
    await engines[0].start(Gate)
    thread = sim.thread(Gate)
    await asyncio.gather(
        *(
            thread.signal(Gate.approve if n % 2 == 0 else Gate.deny, Word(text=str(n)), id=str(n))
            for n in range(50)
        )
    )
    row = await sim.until("ended")
    assert (row.standing.state, (await thread.data()).text) == ("done", "0")
    assert [a.args for a in sim.world.arrivals] == [("0",)]
    assert len(await thread.pending()) == 49


@simulated
async def test_a_signal_after_the_end_is_refused(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    thread = await (await sim.engine()).start(Desk, Note(text="a"))
    await thread.signal(Desk.close, id="c")
    await sim.until("ended")
    with pytest.raises(SignalRefused, match="thread 't': signal 'late': the thread has ended"):
        await thread.signal(Desk.say, Word(text="x"), id="late")
    assert await inbox(sim) == [(1, "c", 2)]


@pytest.mark.parametrize(
    ("signal", "payload", "id_", "said"),
    [
        (Other.close, None, "x", "is of machine Desk, and the signal 'close' is one of Other"),
        (Desk.say, "text", "x", "Word"),
        (Desk.say, Word(text="\ud800"), "x", "text"),
        (Desk.say, None, "x", "Word"),
        (Desk.close, Word(text="x"), "x", "takes no payload"),
        (Desk.close, None, "", "id"),
        (Desk.close, None, "a\x00", "id"),
        (Desk.close, None, "x" * 256, "id"),
    ],
)
@simulated
async def test_a_signal_that_cannot_be_one_is_refused_and_nothing_is_kept(
    loop: SimLoop, signal: Any, payload: Any, id_: str, said: str
) -> None:
    sim = Sim(loop, Desk)
    thread = sim.client().thread(Desk, thread_id="t", workspace="w")
    with pytest.raises((SignalRefused, ValueError, TooLarge), match=said):
        await thread.signal(signal, payload, id=id_)
    assert await inbox(sim) == []


# --- result -----------------------------------------------------------------------------------------


@simulated
async def test_result_waits_for_the_end_wherever_it_runs(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    sim.world.reply("looked", Reply(takes=5.0))
    engine = await sim.engine()
    await engine.start(Desk, Note(text="a"))
    here = engine.runtime.thread(Desk, thread_id="t", workspace="w")
    inside = loop.create_task(engine.inside(here.result))
    outside = loop.create_task(sim.thread(Desk).result())
    await sleep(60)
    assert not inside.done()
    assert not outside.done()
    await sim.thread(Desk).signal(Desk.close, id="c")
    expected = Ended(state="done", data=Note(text="looked-1"), reason=None)
    assert await inside == expected
    assert await outside == expected
    assert loop.elapsed < 62


@simulated
async def test_result_raises_parked_with_the_reason_and_what_to_do(loop: SimLoop) -> None:
    machine = job(lambda m, d, s: s.call(bare, "a"), name="Doubtful")
    sim = Sim(loop, machine)
    sim.world.reply("bare", Reply(error=OSError("gone")))
    engine = await sim.engine()
    thread = await engine.start(machine)
    with pytest.raises(Parked, match=r"thread 't' is parked \(in doubt\)") as raised:
        await thread.result()
    assert (raised.value.thread_id, raised.value.reason) == ("t", "in doubt")
    assert "perdure resolve t" in raised.value.note


@simulated
async def test_result_of_a_parked_thread_that_is_moved_on_is_its_end(loop: SimLoop) -> None:
    runs: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError
        return machine.finished(text="second")

    machine = job(body, retry=Retry(attempts=1))
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine)
    thread = engine.runtime.thread(machine, thread_id="t", workspace="w")
    with pytest.raises(Parked):
        await engine.inside(thread.result)
    await engine.inside(thread.retry)
    ended = await engine.inside(thread.result)
    assert (ended.state, ended.data.text) == ("done", "second")


@simulated
async def test_nothing_is_known_of_a_thread_that_is_not_there(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    thread = sim.thread(Desk)
    for ask in (thread.result, thread.state, thread.data, thread.history, thread.why, thread.row):
        with pytest.raises(NoSuchThread, match="no thread 't' in workspace 'w'"):
            await ask()
    with pytest.raises(NoSuchThread):
        await sim.client().find(thread_id="t", workspace="w")


# --- a client without a worker ----------------------------------------------------------------------


@simulated
async def test_a_client_starts_signals_and_looks_and_runs_nothing(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    runtime: Runtime[Any] = Runtime(machines=[Desk], store=sim.store, artifacts=sim.artifacts, env=sim.env)
    async with runtime.client() as client:
        thread = await client.start(Desk, Note(text="a"), thread_id="t", workspace="w")
        await thread.signal(Desk.close, id="c")
        await sleep(60)
        row = await thread.row()
        assert (row.standing.status, row.owner, row.epoch) == ("running", None, 0)
        assert sim.world.arrivals == []
        assert sim.store._tables.workers == {}
        await sim.engine()
        assert (await thread.result()).state == "done"
        found = await client.find(thread_id="t", workspace="w")
        assert await found.state() == "done"
        listed = [row async for row in client.threads(Threads(workspace="w", status="ended"))]
        assert [row.address.thread_id for row in listed] == ["t"]


# --- history and why --------------------------------------------------------------------------------


@simulated
async def test_history_tells_each_step_with_its_calls_attempts_and_decisions(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.call(kept, "k")
        await step.call(fresh, "r")
        text = await step.call(looked, "a")
        if step.attempt == 1:
            raise ValueError("first try")
        return machine.finished(text=text)

    machine = job(body)
    sim = Sim(loop, machine)
    sim.world.reply("looked", HANG)
    first = await sim.engine()
    thread = await first.start(machine)
    await sleep(2)
    first.kill()
    (begun, under_way) = await thread.history()
    assert (begun.event, begun.dest, under_way.event, under_way.state) == (
        "start",
        "working",
        None,
        "working",
    )
    assert [call.outcome for call in under_way.calls] == ["kept", "read", "in doubt"]
    await sim.engine()
    await sim.until("ended")
    (_, step) = await thread.history()
    assert (step.seq, step.event, step.dest, step.attempts) == (1, "finished", "done", 2)
    [error] = step.errors
    assert error.startswith("ValueError: first try (test_start_signal_result.py:")
    assert step.decisions == (
        "resumed after its worker died",
        "looked: looked up, found, adopted",
        "resumed after a release",
    )
    (key,) = set(sim.world.keys)
    assert step.calls == (
        CallSeen(name="kept", kind="read", outcome="kept", issues=1),
        CallSeen(name="fresh", kind="read", outcome="read", issues=1),
        CallSeen(name="looked", kind="effect", outcome="done (adopted)", key=key, issues=1),
    )


@simulated
async def test_why_answers_while_it_is_not_claimed_runs_waits_and_has_ended(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    thread = await sim.client().start(Desk, Note(text="a"), thread_id="t", workspace="w")
    assert "is in state 'working' at seq 0: runnable, and no worker has claimed it yet" in await thread.why()
    sim.world.reply("looked", Reply(takes=5.0))
    engine = await sim.engine()
    await sleep(1)
    said = await thread.why()
    assert engine.id in said
    assert "Effect looked with key" in said
    assert "is in doubt" in said
    await sim.until("waiting")
    said = await thread.why()
    assert "is in state 'waits' at seq 1: waiting for a signal (close, say)" in said or (
        "is in state 'waits' at seq 1: waiting for a signal (say, close)" in said
    )
    await thread.signal(Desk.close, id="c")
    await sim.until("ended")
    assert "is in state 'done' at seq 2: ended" in await thread.why()


@simulated
async def test_why_says_what_becomes_of_each_signal_in_the_inbox(loop: SimLoop) -> None:
    class Door(Machine[Note, World], version=1, calls=()):
        """Opens to who is let in."""

        shut = State(initial=True)
        open_ = State()
        done = State(final=True)
        knock = shut.to(open_).on_signal()
        force = shut.to(open_, when=lambda data: data.text == "strong").on_signal()
        leave = open_.to(done).on_signal()

    sim = Sim(loop, Door)
    thread = await sim.client().start(Door, Note(), thread_id="t", workspace="w")
    assert (await thread.why()).endswith("waiting for a signal (knock, force).")
    for n, signal in enumerate([Door.leave, Door.force, Door.force]):
        await thread.signal(signal, id=str(n))
    said = await thread.why()
    assert said.endswith(
        "Held back by a guard, or not looked at yet: 1 (force), 2 (force). Not accepted here: 0 (leave)."
    )
    for n in range(3, 15):
        await thread.signal(Door.knock, id=str(n))
    said = await thread.why()
    assert "The next worker takes in: 3 (knock), " in said
    assert "12 (knock) and 2 more." in said


@simulated
async def test_why_answers_without_the_machine_and_with_older_code(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    thread = await sim.client().start(Desk, Note(text="a"), thread_id="t", workspace="w")
    row = await thread.row()
    assert "No code of the machine 'Desk' was given" in await why(sim.store, None, row, EPOCH)
    newer = job(lambda m, d, s: s.call(fresh, "r"), version=3)
    older = job(lambda m, d, s: s.call(fresh, "r"), version=2)
    await sim.client(newer).start(newer, Note(), thread_id="u", workspace="w")
    assert "needs version >= 3, and this code is 2" in await sim.thread(older, "u").why()


@pytest.mark.parametrize(
    ("reason", "tells"),
    [
        ("failed", "ValueError: no"),
        ("in doubt", "is in doubt"),
        ("diverged", "the code asks for"),
        ("unreadable", "state 'working'"),
    ],
)
@simulated
async def test_why_tells_of_each_reason_to_park(loop: SimLoop, reason: str, tells: str) -> None:
    runs: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.append(1)
        if reason == "failed":
            raise ValueError("no")
        effect = bare if reason == "in doubt" else looked
        await step.call(effect, "a" if len(runs) == 1 else "b")
        return machine.finished(text=await step.call(again, "z"))

    machine = job(body, retry=Retry(attempts=1))
    sim = Sim(loop, machine)
    sim.world.reply("bare", Reply(error=OSError("gone")))
    sim.world.reply("again", HANG)
    first = await sim.engine()
    thread = await first.start(machine)
    await sleep(1)
    if reason in ("diverged", "unreadable"):
        first.kill()
        await sim.engine(machine if reason == "diverged" else renamed_state())
    row = await sim.until("parked")
    assert row.standing.reason == reason
    said = await thread.why()
    assert f"parked ({reason})" in said
    assert tells in said


def renamed_state() -> Any:
    class Job(Machine[Note, World], version=1, calls=CALLS):
        """The same machine, whose first state has another name."""

        elsewhere = State(initial=True)
        done = State(final=True)
        finished = elsewhere.to(done)

        @elsewhere.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            return self.finished()

    return Job


@simulated
async def test_why_answers_although_the_journal_cannot_be_read(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    thread = await sim.client().start(Desk, Note(text="a"), thread_id="t", workspace="w")
    sim.world.reply("looked", HANG)
    engine = await sim.engine()
    await sleep(1)
    engine.kill()
    log = sim.store._tables.log[ADDRESS]
    log[-1] = evolve(log[-1], payload=b"\x00 no JSON")
    assert "cannot be read" in await thread.why()
    await sim.engine()
    row = await sim.until("parked")
    assert row.standing.reason == "unreadable"
    assert log[1].payload == b"\x00 no JSON"
    assert "parked (unreadable)" in await thread.why()


@simulated
async def test_why_says_what_a_timer_waits_for_and_that_it_is_overdue(loop: SimLoop) -> None:
    class Timed(Machine[Note, World], version=1, calls=()):
        """Waits an hour."""

        waits = State(initial=True)
        done = State(final=True)
        expired = waits.to(done).after(timedelta(hours=1))

    sim = Sim(loop, Timed)
    thread = await sim.client().start(Timed, Note(), thread_id="t", workspace="w")
    assert "waiting for a timeout, due 2027-01-15T09:00:00+00:00" in await thread.why()
    await sleep(7200)
    assert "overdue: no worker runs it" in await thread.why()


@pytest.mark.parametrize(
    ("machines", "said"),
    [
        (Desk, r"machines= takes a list, as in machines=\[Desk\]"),
        ([Desk, Desk()], "list machine classes themselves"),
        ([Desk, Note], "list machine classes themselves"),
        ([Desk, Desk], "two machines are named 'Desk'"),
    ],
)
def test_a_runtime_takes_a_list_of_machine_classes_with_names_of_their_own(machines: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Runtime(machines=machines)


@simulated
async def test_who_waits_beside_the_worker_that_runs_the_thread_asks_the_store_once_a_second(
    loop: SimLoop,
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await sleep(10)
        return machine.finished(text="done")

    machine = job(body)
    engine = await Sim(loop, machine).engine()
    thread = await engine.runtime.start(machine, Note(), thread_id="t", workspace="w")
    engine.store.pages.clear()
    await thread.result()
    assert loop.elapsed == 10  # and is told at once when it has ended
    asked = [query for query in engine.store.pages if isinstance(query, Threads) and query.thread_id == "t"]
    assert len(asked) <= 12


class Away(MemoryStore):
    """Out of reach at one look."""

    looks = 0
    away_at = 0

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        self.looks += 1
        if self.looks == self.away_at:
            raise StoreUnavailable("away")
        return await super().page(query, after=after, limit=limit)


@pytest.mark.parametrize("look", [1, 2])
@simulated
async def test_who_waits_for_a_thread_waits_for_a_store_that_is_away_too(loop: SimLoop, look: int) -> None:
    """At the look at the thread, and at the one at its data."""
    sim = Sim(loop, Desk)
    sim.store = store = Away(clock=loop.now)
    engine = await sim.engine()
    thread = await engine.runtime.start(Desk, Note(), thread_id="t", workspace="w")
    await thread.signal(Desk.close, id="1")
    await sim.until("ended")
    store.looks, store.away_at = 0, look
    ended = await sim.client().thread(Desk, thread_id="t", workspace="w").result()
    assert ended.state == "done"
    assert store.looks > look
