"""Rows R01 to R12 of docs/protocol.md: what a claim finds, and what it does."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import pytest
from attrs import evolve
from harness.engine import (
    CALLS,
    Engine,
    Note,
    Sim,
    World,
    every,
    for_ever,
    job,
    kept,
    looked,
    simulated,
)
from harness.loop import EPOCH, SimLoop

from perdure.machines import Accept, Append, Fire, Machine, Retry, State, Step, record
from perdure.runtime._look import why
from perdure.stores import Address, Inbox, MemoryStore, Page, Release, ThreadRow, Threads
from perdure.stores import Signal as StoredSignal

SECOND = 1_000_000
HOUR = 3600 * SECOND
SLOW = timedelta(seconds=20)
THREAD = Address(workspace="w", thread_id="t")


@record
class Word:
    text: str


class Desk(Machine[Note, World], version=1, calls=CALLS):
    """Waits for signals, with two timers; the second waiting state has a guard."""

    begun = State(initial=True)
    ready = State()
    done = State(final=True)
    late = State(final=True)

    say = begun.to(ready).on_signal(Word)
    expired = begun.to(late, when=lambda data: data.text is None).after(timedelta(hours=1))
    hurry = begun.to(late).after(timedelta(hours=2))
    close = ready.to(done, when=lambda data: data.text == "yes").on_signal()
    change = ready.to(ready).on_signal(Word)

    @say.received
    def said(self, data: Note, word: Word) -> Accept:
        return self.say(text=word.text, lines=[word.text])

    @change.received
    def changed(self, data: Note, word: Word) -> Accept:
        return self.change(text=word.text)


async def consumed(sim: Sim) -> list[tuple[str, int | None]]:
    """Every signal of the thread, and the checkpoint that took it in."""
    page = await sim.store.page(Inbox(address=THREAD))
    return [(row.id, row.consumed) for row in page.rows]


async def alone(sim: Sim, machine: Any = Desk) -> Any:
    """Start the thread from a client: no process runs it yet."""
    return await sim.client(machine).start(machine, Note(), thread_id="t", workspace="w")


@simulated
async def test_r01_a_thread_in_a_final_state_is_not_touched_again(loop: SimLoop) -> None:
    runs: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.append(1)
        return machine.finished(text="x")

    machine = job(body)
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine)
    ended = await sim.until("ended")
    assert (ended.owner, ended.standing.state, ended.standing.wake) == (None, "done", None)
    await first.end()
    await sim.engine()
    await sleep(60)
    assert await sim.row() == ended
    assert runs == [1]
    assert await sim.commits() == ["start", "transition"]


@simulated
async def test_r02_a_waiting_thread_is_released_due_at_its_earliest_timer(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    engine = await sim.engine()
    thread = await engine.start(Desk)
    started = await sim.row()
    assert (started.standing.status, started.standing.wake) == ("waiting", EPOCH + HOUR)
    await sleep(600)
    await thread.signal(Desk.close, id="early")  # makes it due, and is not accepted
    woken = await sim.until_row(lambda row: row.epoch > started.epoch and row.owner is None)
    assert (woken.standing.status, woken.standing.wake) == ("waiting", EPOCH + HOUR)
    assert await sim.commits() == ["start"]


@simulated
async def test_r02_without_timers_it_is_due_only_for_a_signal(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    thread = await (await sim.engine()).start(Desk)
    await thread.signal(Desk.say, Word(text="no"), id="1")
    row = await sim.until_row(lambda row: row.standing.seq == 1 and row.owner is None)
    assert (row.standing.state, row.standing.status, row.standing.wake) == ("ready", "waiting", None)
    await sleep(3600)
    assert await sim.row() == row


@simulated
async def test_r03_a_pending_signal_that_the_state_accepts_is_consumed_by_its_transition(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Desk)
    thread = await alone(sim)
    await thread.signal(Desk.say, Word(text="hello"), id="1")
    assert (await sim.row()).standing.wake == EPOCH  # due at once
    await sim.engine()
    row = await sim.until_row(lambda row: row.standing.seq == 1)
    assert await sim.commits() == ["start", "transition: signal"]
    (log, body) = (await sim.rows())[1]
    assert (body.event, body.source, body.dest, log.seq) == ("say", "begun", "ready", 1)
    assert await consumed(sim) == [("1", 1)]
    assert await sim.entries("signal") == [{"k": "signal", "id": "1", "number": 1, "at": EPOCH}]
    data = await thread.data()
    assert (data.text, data.lines) == ("hello", ("hello",))
    assert row.inbox == 1


@simulated
async def test_r04_a_signal_that_is_not_accepted_waits_and_is_examined_after_each_transition(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Desk)
    thread = await (await sim.engine()).start(Desk)
    await thread.signal(Desk.close, id="close")
    await sleep(5)
    assert [row.id for row in await thread.pending()] == ["close"]
    await thread.signal(Desk.say, Word(text="no"), id="say")  # "close" is accepted now, but for its guard
    await sleep(5)
    assert (await sim.row()).standing.state == "ready"
    assert await consumed(sim) == [("close", None), ("say", 1)]
    await thread.signal(Desk.change, Word(text="still no"), id="change-1")
    await sleep(5)
    assert await consumed(sim) == [("close", None), ("say", 1), ("change-1", 2)]
    await thread.signal(Desk.change, Word(text="yes"), id="change-2")
    ended = await sim.until("ended")
    assert await consumed(sim) == [("close", 4), ("say", 1), ("change-1", 2), ("change-2", 3)]
    assert ended.standing.state == "done"


@simulated
async def test_r04_what_is_left_at_the_end_stays_pending(loop: SimLoop) -> None:
    sim = Sim(loop, Desk, poll=SLOW)
    thread = await (await sim.engine()).start(Desk)
    await thread.signal(Desk.close, id="never")
    await sim.until("ended")
    assert [row.id for row in await thread.pending()] == ["never"]
    assert "never" in await thread.why()


@pytest.mark.parametrize(
    ("begins", "late"),
    [
        (0, None),
        (HOUR, None),
        (HOUR + SECOND, None),
        (HOUR + SECOND + 1, SECOND + 1),
        (3 * HOUR, 2 * HOUR),
    ],
)
@simulated
async def test_r05_a_due_timer_commits_its_timeout_marked_late_after_a_second(
    loop: SimLoop, begins: int, late: int | None
) -> None:
    sim = Sim(loop, Desk, poll=SLOW)
    await alone(sim)
    await sleep(begins / SECOND)
    await sim.engine()
    await sim.until("ended")
    (timeout,) = await sim.entries("timeout")
    at = EPOCH + max(begins, HOUR)
    assert timeout == {
        "k": "timeout",
        "event": "expired",
        "due": EPOCH + HOUR,
        "at": at,
        **({} if late is None else {"late": late}),
    }
    assert loop.now() == at


class Nap(Machine[Note, World], version=1, calls=CALLS):
    """Works, and then waits for a minute."""

    working = State(initial=True)
    napping = State()
    done = State(final=True)
    worked = working.to(napping)
    woke = napping.to(done).after(timedelta(minutes=1))

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        await sleep(7)
        return self.worked()


@simulated
async def test_r05_a_timer_counts_from_the_transition_into_its_state(loop: SimLoop) -> None:
    sim = Sim(loop, Nap)
    await (await sim.engine()).start(Nap)
    waiting = await sim.until("waiting")
    assert (waiting.standing.wake, waiting.owner) == (EPOCH + 67 * SECOND, None)
    await sim.until("ended")
    assert loop.now() == EPOCH + 67 * SECOND


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize(("said", "state"), [(HOUR - 1, "ready"), (HOUR, "late"), (HOUR + 1, "late")])
@simulated
async def test_r06_the_earlier_of_due_time_and_accept_time_wins_also_after_downtime(
    loop: SimLoop, said: int, state: str, down: bool
) -> None:
    sim = Sim(loop, Desk)
    thread = await alone(sim)
    engine = None if down else await sim.engine()
    if engine is not None:  # it is slow to see either
        engine.store.fault("delay", every("claim"), skip=1, times=10_000, seconds=7200)
    await sleep(said / SECOND)
    await thread.signal(Desk.say, Word(text="hello"), id="1")
    await sleep(7200)
    if down:
        await sim.engine()
    row = await sim.until_row(lambda row: row.standing.seq == 1)
    assert row.standing.state == state


@simulated
async def test_r07_a_state_without_entries_runs_its_handler_as_attempt_1(loop: SimLoop) -> None:
    attempts: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        attempts.append(step.attempt)
        return machine.finished(text=await step.call(looked, "x"))

    machine = job(body)
    sim = Sim(loop, machine)
    thread = await alone(sim, machine)
    await sim.engine()
    row = await sim.until("ended")
    assert attempts == [1]
    assert await sim.commits() == ["start", "record: intent", "transition: done"]
    assert (await thread.data()).text == "looked-1"
    assert (row.epoch, row.n, row.standing.seq) == (1, 3, 1)


@simulated
async def test_r08_an_interrupted_visit_runs_again_as_the_same_attempt_with_every_record_served(
    loop: SimLoop,
) -> None:
    attempts: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        attempts.append(step.attempt)
        read = await step.call(kept, "k")
        done = await step.call(looked, read)
        if len(attempts) < 3:
            await for_ever()
        return machine.finished(text=done, more=read)

    machine = job(body)
    sim = Sim(loop, machine)
    thread = await (first := await sim.engine()).start(machine)
    await sleep(1)
    first.kill()
    second = await sim.engine()
    await sleep(1)
    second.kill()
    await sim.engine()
    await sim.until("ended")
    assert attempts == [1, 1, 1]
    assert sim.world.asked == ["kept/k"]
    assert [a.args for a in sim.world.arrivals] == [("kept#1",)]
    data = await thread.data()
    assert (data.text, data.more) == ("looked-1", "kept#1")
    assert await sim.entries("failed") == []


class Stubborn(Machine[Note, World], version=1, calls=CALLS, removed_events=("unknown",)):
    """Fails for ever, and can be stopped between two attempts."""

    working = State(initial=True, retry=Retry(attempts=9, delay=timedelta(seconds=30), factor=2))
    stopped = State(final=True)
    stop = working.to(stopped).on_signal()
    never = working.to(stopped)

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        raise RuntimeError(await step.call(kept, str(step.attempt)))


@simulated
async def test_r09_a_failed_visit_is_released_until_its_retry(loop: SimLoop) -> None:
    sim = Sim(loop, Stubborn)
    await (await sim.engine()).start(Stubborn)
    row = await sim.until("waiting")
    assert (row.standing.wake, row.owner, loop.now()) == (EPOCH + 30 * SECOND, None, EPOCH)
    await sleep(29.9)
    assert sim.world.asked == ["kept/1"]
    await sleep(0.2)
    assert sim.world.asked == ["kept/1", "kept/2"]
    assert (await sim.row()).standing.wake == EPOCH + 90 * SECOND
    failed = await sim.entries("failed")
    assert [(e["attempt"], e["at"], e["retry_at"]) for e in failed] == [
        (1, EPOCH, EPOCH + 30 * SECOND),
        (2, EPOCH + 30 * SECOND, EPOCH + 90 * SECOND),
    ]


@simulated
async def test_r09_an_early_claim_leaves_a_retry_alone(loop: SimLoop) -> None:
    """A signal that the state does not take wakes the thread before its retry."""
    sim = Sim(loop, Stubborn)
    thread = await (await sim.engine()).start(Stubborn)
    waiting = await sim.until("waiting")
    await sleep(10)
    await sim.store.deliver(
        StoredSignal(address=THREAD, id="1", event="unknown", payload=b"null", digest=b"d")
    )
    again = await sim.until_row(lambda row: row.epoch > waiting.epoch and row.owner is None)
    assert (again.standing, again.n) == (waiting.standing, waiting.n)
    assert sim.world.asked == ["kept/1"]
    assert [row.event for row in await thread.pending()] == ["unknown"]


@simulated
async def test_r09_an_event_that_the_state_accepts_may_come_before_the_retry(loop: SimLoop) -> None:
    sim = Sim(loop, Stubborn)
    thread = await (await sim.engine()).start(Stubborn)
    await sleep(10)
    await thread.signal(Stubborn.stop, id="1")
    ended = await sim.until("ended")
    assert ended.standing.state == "stopped"
    assert loop.now() < EPOCH + 11 * SECOND
    assert sim.world.asked == ["kept/1"]


async def waits(machine: Any, data: Note, step: Step[World]) -> Any:
    await step.call(kept, "k")
    await for_ever()
    return machine.finished()


def other_state() -> Any:
    class Job(Machine[Note, World], version=1, calls=CALLS, name="Job"):
        """The state ``working`` is gone."""

        labouring = State(initial=True)
        done = State(final=True)
        finished = labouring.to(done)

        @labouring.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            return self.finished()

    return Job


@record
class Numbers:
    text: int = 0
    more: str | None = None
    lines: Annotated[Sequence[str], Append()] = ()


def other_data() -> Any:
    class Job(Machine[Numbers, World], version=1, calls=CALLS, name="Job"):
        """The field ``text`` is a number now."""

        working = State(initial=True)
        done = State(final=True)
        finished = working.to(done)

        @working.handler
        async def work(self, data: Numbers, step: Step[World]) -> Fire:
            return self.finished()

    return Job


@pytest.mark.parametrize(
    ("code", "says"),
    [(other_state, "'working'"), (other_data, "text")],
    ids=["state", "data"],
)
@simulated
async def test_r10_what_this_code_cannot_read_parks_with_its_bytes_untouched(
    loop: SimLoop, code: Any, says: str
) -> None:
    machine, changed = job(waits), code()
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine, Note(text="words"))
    await sleep(1)
    first.kill()
    before = [row for row, _ in await sim.rows()]
    second = await sim.engine(changed, Desk)
    parked = await sim.until("parked")
    assert parked.standing.reason == "unreadable"
    assert says in (parked.standing.note or "")
    assert (parked.standing.state, parked.standing.seq) == ("working", 0)
    after = [row for row, _ in await sim.rows()]
    assert after[:-1] == before
    assert after[-1].kind == "park"
    beside = await second.start(Desk, thread_id="beside")  # every other thread goes on
    await beside.signal(Desk.say, Word(text="x"), id="1")
    await sim.until_row(lambda row: row.standing.state == "ready", "beside")
    await second.end()
    third = await sim.engine(machine)  # and the code that can read it does, once it is let
    await sim.thread(machine).retry()
    await sim.until_row(lambda row: row.owner == third.id)
    assert sim.world.asked == ["kept/k"]


@pytest.mark.parametrize(
    ("kind", "spoilt", "says"),
    [
        ("record", b"{", "a stored record cannot be read"),
        ("record", b'{"x":[{"k":"read"}]}', "a stored record cannot be read"),
        ("start", b"[]", "a stored record cannot be read"),
        ("start", b'{"t":"working"}', "log row 0 holds no snapshot"),
    ],
)
@simulated
async def test_r10_a_damaged_record_parks(loop: SimLoop, kind: str, spoilt: bytes, says: str) -> None:
    machine = job(waits)
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine)
    await sleep(1)
    first.kill()
    log = sim.store._tables.log[THREAD]
    at = next(n for n, row in enumerate(log) if row.kind == kind)
    log[at] = evolve(log[at], payload=spoilt)
    before = list(log)
    await sim.engine()
    parked = await sim.until("parked")
    assert parked.standing.reason == "unreadable"
    assert says in (parked.standing.note or "")
    assert log[:-1] == before


@simulated
async def test_r11_a_thread_that_has_killed_three_workers_is_parked_as_poison(loop: SimLoop) -> None:
    engines: list[Engine] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        engines[-1].kill()
        await for_ever()
        return machine.finished()

    machine = job(body)
    sim = Sim(loop, machine)
    await alone(sim, machine)
    for _ in range(3):
        engines.append(await sim.engine())
        await sim.until_dead(engines[-1])
    assert [(await sim.row()).crashes, len(engines)] == [2, 3]
    engines.append(await sim.engine())
    parked = await sim.until("parked")
    assert not engines[-1].died.is_set()
    assert parked.standing.reason == "poison"
    assert "3 workers died in state 'working'" in (parked.standing.note or "")
    assert [row.kind for row, _ in await sim.rows()] == ["start", "park"]


@pytest.mark.parametrize("known", [(), ("Job",)], ids=["unknown", "older"])
@simulated
async def test_r12_a_machine_that_is_unknown_or_newer_is_not_claimed(
    loop: SimLoop, known: tuple[str, ...]
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text="ran")

    newer, older = job(body, version=2), job(body, version=1)
    sim = Sim(loop, newer)
    await alone(sim, newer)
    before = await sim.row()
    await sim.engine(*([older] if known else [Desk]))
    await sleep(60)
    assert await sim.row() == before
    if known:
        assert "needs version >= 2, and this code is 1" in await sim.thread(older).why()
    else:
        assert "No code of the machine 'Job'" in await why_without_code(sim, before)
    await sim.engine(newer)
    assert (await sim.until("ended")).standing.version == 2


async def why_without_code(sim: Sim, row: ThreadRow) -> str:
    return await why(sim.store, None, row, sim.loop.now())


class Long(Machine[Note, World], version=1, calls=CALLS):
    """One step of several polls."""

    working = State(initial=True)
    done = State(final=True)
    worked = working.to(done)

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        await sleep(SLOW.total_seconds())
        return self.worked()


class Behind(MemoryStore):
    """Its list of what a worker owns shows nothing yet."""

    async def page(self, query: Any, /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        if isinstance(query, Threads) and query.owner is not None:
            return Page(rows=(), next=None)
        return await super().page(query, after=after, limit=limit)


@simulated
async def test_a_long_step_is_kept_though_the_list_of_what_is_owned_is_behind(loop: SimLoop) -> None:
    sim = Sim(loop, Long)
    sim.store = Behind(clock=loop.now)
    engine = await sim.engine()
    await engine.start(Long)
    row = await sim.until("ended")
    assert (row.standing.state, row.epoch) == ("done", 1)


@simulated
async def test_a_long_step_whose_thread_nobody_owns_any_more_is_given_up(loop: SimLoop) -> None:
    sim = Sim(loop, Long)
    engine = await sim.engine()
    await engine.start(Long)
    await sleep(1)
    row = await sim.row()
    put_aside = Release(
        address=row.address,
        incarnation=row.incarnation,
        epoch=row.epoch,
        status="waiting",
        wake=None,
        inbox_seen=0,
    )
    await sim.store.release([put_aside])
    await sleep(SLOW.total_seconds() / 2)
    holder: Any = engine.runtime._running._worker
    assert holder.runs == {}
