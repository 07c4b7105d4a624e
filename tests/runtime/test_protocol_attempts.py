"""Rows R90 to R101 of docs/protocol.md: how an attempt ends, and what follows."""

from __future__ import annotations

import asyncio
import re
from asyncio import sleep
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import anyio
import msgspec
import pytest
from harness.engine import (
    CALLS,
    HANG,
    Note,
    Reply,
    Sim,
    World,
    bare,
    fresh,
    job,
    kept,
    looked,
    simulated,
)
from harness.loop import EPOCH, SimLoop

from perdure.machines import (
    Accept,
    Append,
    Conversation,
    Failure,
    Fire,
    Machine,
    Message,
    Namespace,
    NotDone,
    Retry,
    State,
    Step,
    record,
)
from perdure.runtime import Parked
from perdure.stores import Commit

SECOND = 1_000_000
THRICE = Retry(attempts=3, delay=timedelta(seconds=1))
ONCE = Retry(attempts=1)
notes = Namespace("notes", Note)


async def run(sim: Sim, machine: Any, data: Any = None, **options: Any) -> Any:
    """Start a thread in a new process and wait until it ends or parks."""
    engine = await sim.engine(machine, **options)
    await engine.start(machine, data)
    return await sim.until("ended", "parked")


async def failures(sim: Sim) -> list[tuple[Any, ...]]:
    """Every failed attempt: lane, number, the error's type, what was dropped, when it is tried again."""
    return [
        (e["lane"], e["attempt"], e["error"]["type"], e["dropped"], e["retry_at"])
        for e in await sim.entries("failed")
    ]


def seconds(at: int | None) -> float | None:
    return None if at is None else (at - EPOCH) / SECOND


# --- R90 ------------------------------------------------------------------------------------------


@record
class Whole:
    """Data with a field of every kind that a transition writes."""

    text: str | None = None
    lines: Annotated[Sequence[str], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()


class Writer(Machine[Whole, World], version=1, calls=CALLS):
    """Everything that a step can do, in one step, with a guard of which the first row is false."""

    working = State(initial=True)
    idle = State(final=True)
    done = State(final=True)
    finished = working.to(idle, when=lambda data: data.text is None) | working.to(
        done, when=lambda data: data.text == "looked-1" and len(data.lines) == 1
    )

    @working.handler
    async def work(self, data: Whole, step: Step[World]) -> Fire:
        await step.call(kept, "k")
        ref = await step.artifacts.put(b"blob", media_type="text/plain")
        text = await step.call(looked, "a")
        await step.call(fresh, "r")
        await step.memory.put(notes, "n", Note(text=text))
        said = Message(role="assistant", content="hello")
        return self.finished(text=text, lines=[ref.id], talk=[said])


@simulated
async def test_r90_the_fired_event_is_one_commit_with_everything(loop: SimLoop) -> None:
    sim = Sim(loop, Writer)
    engine = await sim.engine()
    thread = await engine.start(Writer, Whole())
    row = await sim.until("ended")
    assert await sim.commits() == [
        "start",
        "record: read artifact",
        "record: intent",
        "transition: done read read",
    ]
    commits = [write for method, write in engine.store.writes if method == "commit"]
    last: Commit = commits[-1]
    data = await thread.data()
    (ref,) = data.lines
    assert (last.log.seq, last.log.n, last.release, last.standing.state) == (1, 3, True, "done")
    assert last.items == b'{"lines":["%s"]}' % ref.encode()
    assert [msgspec.json.decode(m)["content"] for m in last.messages] == ["hello"]
    assert [(w.namespace, w.key, w.expected) for w in last.memory] == [("notes", "n", 0)]
    assert all(not (c.items or c.messages or c.memory) for c in commits[:-1])
    (_, body) = (await sim.rows())[-1]
    assert (body.event, body.source, body.dest) == ("finished", "working", "done")
    assert sorted(body.delta or {}) == ["lines", "text"]
    assert (data.text, [m.content for m in data.talk]) == ("looked-1", ["hello"])
    assert (row.standing.seq, row.n, row.owner) == (1, 4, None)


# --- R91 ------------------------------------------------------------------------------------------


class Guarded(Machine[Note, World], version=1, calls=CALLS):
    """Its handler's event is guarded by the text that it was started with."""

    working = State(initial=True, retry=THRICE)
    done = State(final=True)
    finished = working.to(done, when=lambda data: data.more == "yes")

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        return self.finished(text=await step.call(looked, "a"))


class Rescued(Guarded, version=1):
    """The same with a way out."""

    given_up = State(final=True)
    gave_up = Guarded.working.to(given_up).on_failure()

    @gave_up.received
    def noted(self, data: Note, failure: Failure) -> Accept:
        return self.gave_up(more=f"{failure.error} {failure.attempts}")


@simulated
async def test_r91_a_false_guard_fails_the_visit_without_another_attempt(loop: SimLoop) -> None:
    sim = Sim(loop, Guarded)
    row = await run(sim, Guarded)
    assert (row.standing.state, row.standing.reason, row.standing.seq) == ("working", "failed", 0)
    assert "finished" in row.standing.note
    assert await failures(sim) == [("main", 1, "GuardRefused", [], None)]
    assert await sim.commits() == ["start", "record: intent", "park: done failed park"]
    assert loop.now() == EPOCH
    assert len(sim.world.arrivals) == 1


@simulated
async def test_r91_the_failure_transition_takes_a_refusal_too(loop: SimLoop) -> None:
    sim = Sim(loop, Rescued)
    row = await run(sim, Rescued)
    assert (row.standing.status, row.standing.state) == ("ended", "given_up")
    data = await sim.thread(Rescued).data()
    assert (data.text, data.more) == (None, "GuardRefused 1")
    assert await sim.commits() == ["start", "record: intent", "transition: done failed"]


# --- R92 ------------------------------------------------------------------------------------------


def explode(data: Note) -> bool:
    raise SystemExit("no such thing") if data.more == "out" else ValueError("no such thing")


class Exploding(Machine[Note, World], version=1, calls=CALLS):
    """Guards and a receiver that raise, each reached by another text."""

    begun = State(initial=True)
    working = State(retry=THRICE)
    waits = State()
    timed = State()
    done = State(final=True)
    go = begun.to(working).on_signal(Note)
    pause = working.to(waits)
    watch = working.to(timed)
    finished = working.to(done, when=explode)
    told = waits.to(done).on_signal(Note)
    asked = waits.to(done, when=explode).on_signal()
    expired = timed.to(done, when=explode).after(timedelta(seconds=5))

    @go.received
    def went(self, data: Note, note: Note) -> Accept:
        return self.go(text=note.text, more=note.more)

    @told.received
    def was_told(self, data: Note, note: Note) -> Accept:
        explode(data)
        return self.told()

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        return {"pause": self.pause, "watch": self.watch}.get(data.text or "", self.finished)()


@pytest.mark.parametrize(("more", "error"), [(None, "ValueError"), ("out", "SystemExit")])
@pytest.mark.parametrize(
    ("text", "signal", "state", "said"),
    [
        ("fire", None, "working", "guard explode of event 'finished' raised"),
        ("pause", "told", "waits", "the receiver of 'told' raised"),
        ("pause", "asked", "waits", "guard explode of event 'asked' raised"),
        ("watch", None, "timed", "guard explode of event 'expired' raised"),
    ],
    ids=["a handler's event", "a receiver", "a signal's guard", "a timeout's guard"],
)
@simulated
async def test_r92_a_guard_or_receiver_that_raises_parks(
    loop: SimLoop, text: str, signal: str | None, state: str, said: str, more: str | None, error: str
) -> None:
    sim = Sim(loop, Exploding)
    thread = await (await sim.engine()).start(Exploding)
    await thread.signal(Exploding.go, Note(text=text, more=more), id="go")
    if signal is not None:
        payload = Note() if signal == "told" else None
        await thread.signal(getattr(Exploding, signal), payload, id="bad")
    row = await sim.until("parked")
    assert (row.standing.state, row.standing.reason) == (state, "failed")
    assert f"{said} {error}: no such thing" in (row.standing.note or "")
    assert await sim.entries("failed") == []
    assert [left.id for left in await thread.pending()] == ([] if signal is None else ["bad"])
    with pytest.raises(Parked, match="no such thing"):
        await thread.result()


# --- R93 ------------------------------------------------------------------------------------------


def failing(times: int, seen: list[tuple[int, float]], loop: SimLoop) -> Any:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        seen.append((step.attempt, loop.elapsed))
        if len(seen) <= times:
            raise ValueError(f"failure {len(seen)}")
        return machine.finished(text="x")

    return body


@simulated
async def test_r93_a_failed_attempt_is_recorded_and_tried_again_after_its_wait(loop: SimLoop) -> None:
    seen: list[tuple[int, float]] = []
    machine = job(failing(2, seen, loop), retry=Retry(attempts=3, delay=timedelta(seconds=10)))
    sim = Sim(loop, machine)
    row = await run(sim, machine)
    assert row.standing.status == "ended"
    assert seen == [(1, 0), (2, 10), (3, 30)]
    assert await failures(sim) == [
        ("main", 1, "ValueError", [], EPOCH + 10 * SECOND),
        ("main", 2, "ValueError", [], EPOCH + 30 * SECOND),
    ]
    assert await sim.commits() == ["start", "record: failed", "record: failed", "transition: attempt"]
    (attempt,) = await sim.entries("attempt")
    assert attempt["attempt"] == 3


@simulated
async def test_r93_between_two_attempts_the_thread_waits_and_nobody_holds_it(loop: SimLoop) -> None:
    machine = job(failing(1, [], loop), retry=Retry(attempts=2, delay=timedelta(seconds=10)))
    sim = Sim(loop, machine)
    await (await sim.engine()).start(machine)
    row = await sim.until("waiting")
    assert (row.owner, row.standing.wake) == (None, EPOCH + 10 * SECOND)
    assert "next attempt" in await sim.thread(machine).why()


@simulated
async def test_r93_the_deadline_of_the_state_bounds_one_attempt(loop: SimLoop) -> None:
    ends: list[float] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        if len(ends) < 2:
            try:
                await step.call(fresh, "r")
            finally:
                ends.append(loop.elapsed)
        return machine.finished()

    machine = job(body, deadline=timedelta(seconds=5), retry=THRICE)
    sim = Sim(loop, machine)
    sim.world.next_reads("fresh", Reply(takes=100.0), Reply(takes=100.0))
    await run(sim, machine)
    assert ends == [5, 11]  # a wait of one second between the two
    assert [f[1:3] for f in await failures(sim)] == [(1, "AttemptTimedOut"), (2, "AttemptTimedOut")]


@simulated
async def test_r93_a_deadline_waits_for_the_effect_and_its_outcome_is_served(loop: SimLoop) -> None:
    machine = job(
        lambda m, d, s: fire_of(m, s.call(looked, "a")), deadline=timedelta(seconds=5), retry=THRICE
    )
    sim = Sim(loop, machine)
    sim.world.reply("looked", Reply(takes=8.0))
    await run(sim, machine)
    assert await sim.commits() == [
        "start",
        "record: intent",
        "record: done failed",
        "transition: resumed attempt",
    ]
    assert [(f[1], seconds(f[4])) for f in await failures(sim)] == [(1, 9)]
    assert len(sim.world.arrivals) == 1


async def fire_of(machine: Any, call: Any) -> Any:
    return machine.finished(text=await call)


@simulated
async def test_r93_effects_and_kept_reads_are_served_and_other_reads_made_again(loop: SimLoop) -> None:
    runs: list[list[str]] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        before, held = await step.call(fresh, "before"), await step.call(kept, "k")
        done, after = await step.call(looked, "a"), await step.call(fresh, "after")
        runs.append([before, held, done, after])
        if len(runs) == 1:
            raise ValueError
        return machine.finished()

    sim = Sim(loop)
    await run(sim, job(body))
    assert runs == [
        ["fresh#1", "kept#2", "looked-1", "fresh#3"],
        ["fresh#1", "kept#2", "looked-1", "fresh#4"],
    ]


async def tolerant(call: Any) -> str:
    try:
        return str(await call)
    except NotDone as error:
        return f"not done: {error}"


async def refused_alone(step: Step[World]) -> list[str]:
    return [await step.call(fresh, "r"), await tolerant(step.call(looked, "a"))]


async def refused_then_done(step: Step[World]) -> list[str]:
    first = [await step.call(fresh, "r"), await tolerant(step.call(looked, "a"))]
    return [*first, await step.call(looked, "b")]


async def done_then_refused(step: Step[World]) -> list[str]:
    before = await step.call(looked, "b")
    return [await step.call(fresh, "r"), await tolerant(step.call(looked, "a")), before]


async def refused_beside_done(step: Step[World]) -> list[str]:
    text = await step.call(fresh, "r")
    return [text, *await asyncio.gather(tolerant(step.call(looked, "a")), step.call(looked, "b"))]


async def refused_then_refused(step: Step[World]) -> list[str]:
    first = [await step.call(fresh, "r"), await tolerant(step.call(looked, "a"))]
    return [*first, await tolerant(step.call(looked, "b"))]


async def refused_twice(step: Step[World]) -> list[str]:
    first = [await step.call(fresh, "r"), await tolerant(step.call(looked, "a"))]
    return [*first, await tolerant(step.call(looked, "a"))]


@pytest.mark.parametrize(
    ("part", "refused", "dropped", "again", "arrived"),
    [
        # Nothing followed the answer: the effect is tried anew, and so is the read that led to it.
        (refused_alone, [1], 1, ["fresh#2", "looked-1"], "a"),
        # "b" was done because "a" was not: both stay as they are.
        (refused_then_done, [1], 0, ["fresh#1", "not done: no 1", "looked-1"], "b"),
        (done_then_refused, [2], 1, ["fresh#2", "looked-2", "looked-1"], "ba"),
        # Registered beside "a" and not because of its answer; it pins the read.
        (refused_beside_done, [1], 1, ["fresh#1", "looked-2", "looked-1"], "ba"),
        (refused_then_refused, [1, 2], 2, ["fresh#2", "looked-1", "looked-2"], "ab"),
        (refused_twice, [1], 0, ["fresh#1", "not done: no 1", "looked-1"], "a"),
    ],
)
@simulated
async def test_r93_a_not_done_is_dropped_unless_something_was_done_because_of_it(
    loop: SimLoop, part: Any, refused: list[int], dropped: int, again: list[str], arrived: str
) -> None:
    runs: list[list[str]] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.append(await part(step))
        if len(runs) == 1:
            raise ValueError
        return machine.finished()

    sim = Sim(loop)
    for n in range(1, max(refused) + 1):
        sim.world.reply("looked", NotDone(f"no {n}") if n in refused else Reply())
    await run(sim, job(body))
    intents = await sim.entries("intent")
    ids = {e["id"] for e in await sim.entries("not_done")}
    (failed,) = await sim.entries("failed")
    assert len(failed["dropped"]) == dropped
    assert set(failed["dropped"]) <= ids
    assert runs[1] == again
    assert "".join(a.args[0] for a in sim.world.arrivals) == arrived
    keys = {(e["args"]["what"], e["key"]) for e in intents}
    assert len(keys) == len({what for what, _ in keys})  # tried anew, it has its key of before


@simulated
async def test_r93_a_not_done_before_an_effect_in_doubt_is_kept(loop: SimLoop) -> None:
    """Killed while "b" is in doubt, the next process's code fails before it asks for anything."""
    runs: list[str] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.append(await tolerant(step.call(looked, "a")))
        if len(runs) == 2:
            raise ValueError
        return machine.finished(text=await step.call(looked, "b"))

    machine = job(body)
    sim = Sim(loop, machine)
    sim.world.reply("looked", NotDone("no"), HANG)
    first = await sim.engine()
    await first.start(machine)
    await sleep(1)
    first.kill()
    await sim.engine()
    row = await sim.until("ended", "parked")
    assert row.standing.status == "ended"
    assert [f[3] for f in await failures(sim)] == [[]]
    assert runs == ["not done: no"] * 3


# --- R94 ------------------------------------------------------------------------------------------


class Careful(Machine[Note, World], version=1, calls=CALLS):
    """Fails with the error that its data names; two of them have a transition of their own."""

    working = State(initial=True, retry=Retry(attempts=2, delay=timedelta(seconds=1)))
    timed_out = State(final=True)
    broken = State(final=True)
    done = State(final=True)
    finished = working.to(done)
    ran_late = working.to(timed_out, when=lambda data: data.more != "never").on_failure(TimeoutError)
    broke = working.to(broken).on_failure(LookupError, TimeoutError)

    @ran_late.received
    def late(self, data: Note, failure: Failure) -> Accept:
        return self.ran_late(lines=[f"late {failure.error} {failure.message} {failure.attempts}"])

    @broke.received
    def broken_by(self, data: Note, failure: Failure) -> Accept:
        return self.broke(lines=[f"broke {failure.error} {failure.message} {failure.attempts}"])

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        raise {"late": TimeoutError, "key": KeyError, "value": ValueError}[data.text or ""]("x")


@pytest.mark.parametrize(
    ("text", "more", "state", "lines"),
    [
        ("late", None, "timed_out", ("late TimeoutError x 2",)),
        ("key", None, "broken", ("broke KeyError 'x' 2",)),
        ("late", "never", "broken", ("broke TimeoutError x 2",)),
        ("value", None, "working", ()),
    ],
    ids=["the first that fits", "by a base class", "the next where a guard is false", "none"],
)
@simulated
async def test_r94_after_the_last_attempt_the_failure_transition_that_takes_the_error(
    loop: SimLoop, text: str, more: str | None, state: str, lines: tuple[str, ...]
) -> None:
    sim = Sim(loop, Careful)
    row = await run(sim, Careful, Note(text=text, more=more))
    assert row.standing.state == state
    assert (await sim.thread(Careful).data()).lines == lines
    assert [(f[1], seconds(f[4])) for f in await failures(sim)] == [(1, 1), (2, None)]
    parked = state == "working"
    assert row.standing.reason == ("failed" if parked else None)
    last = "park: failed park" if parked else "transition: failed"
    assert await sim.commits() == ["start", "record: failed", last]
    if parked:
        assert re.search(r"ValueError: x \(\w+.py:\d+\), in attempt 2; mend it", row.standing.note)
        assert "perdure retry t" in row.standing.note


@pytest.mark.parametrize(("effect", "status"), [(looked, "ended"), (bare, "parked")], ids=["asked", "bare"])
@simulated
async def test_r94_every_doubt_is_settled_before_the_visit_is_given_up(
    loop: SimLoop, effect: Any, status: str
) -> None:
    """What a killed process left in doubt, and the code that resumes never asks for."""

    class Left(Machine[Note, World], version=1, calls=CALLS):
        """One step, with a way out."""

        working = State(initial=True, retry=ONCE)
        failed = State(final=True)
        done = State(final=True)
        finished = working.to(done)
        gave_up = working.to(failed).on_failure()

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            if sim.world.arrivals:
                raise ValueError("gives up")
            return self.finished(text=await step.call(effect, "a"))

    sim = Sim(loop, Left)
    sim.world.reply(effect.name, HANG)
    first = await sim.engine()
    await first.start(Left)
    await sleep(1)
    first.kill()
    await sim.engine()
    row = await sim.until("ended", "parked")
    assert row.standing.status == status
    if status == "ended":
        assert await sim.commits() == ["start", "record: intent", "transition: resumed failed lookup done"]
    else:
        assert row.standing.reason == "in doubt"
        assert await sim.commits() == ["start", "record: intent", "park: resumed failed park"]
    assert len(sim.world.arrivals) == 1


# --- R95 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [looked, fresh], ids=["effect", "read"])
@simulated
async def test_r95_a_call_that_was_never_awaited_fails_the_attempt_by_name(loop: SimLoop, call: Any) -> None:
    runs: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.append(step.attempt)
        waiting = step.call(call, "a")
        return machine.finished(text="early" if len(runs) == 1 else await waiting)

    sim = Sim(loop)
    row = await run(sim, job(body))
    (failed,) = await sim.entries("failed")
    assert failed["error"]["type"] == "CallMisuse"
    assert f"{call.label}: called and never awaited" in failed["error"]["message"]
    assert (runs, row.standing.status) == ([1, 2], "ended")
    assert len(sim.world.arrivals) + len(sim.world.asked) == 1


# --- R96 ------------------------------------------------------------------------------------------


async def left_running(step: Step[World], call: Any) -> asyncio.Task[Any]:
    """A strand that the handler does not wait for."""

    async def strand() -> Any:
        return await step.call(call, "a")

    task = asyncio.create_task(strand())
    await sleep(0.5)
    return task


@pytest.mark.parametrize("how", ["returns", "raises"])
@simulated
async def test_r96_a_handler_that_ends_waits_for_its_effects_and_not_for_its_reads(
    loop: SimLoop, how: str
) -> None:
    strands: list[asyncio.Task[Any]] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        if not strands:
            strands.append(await left_running(step, looked))
            strands.append(await left_running(step, fresh))
            if how == "raises":
                raise ValueError
        return machine.finished(text="served" if how == "returns" else await step.call(looked, "a"))

    sim = Sim(loop)
    sim.world.reply("looked", Reply(takes=8.0))
    sim.world.next_reads("fresh", Reply(takes=100.0))
    row = await run(sim, job(body))
    assert row.standing.status == "ended"
    assert strands[1].cancelled()
    assert len(sim.world.arrivals) == 1
    if how == "returns":
        assert seconds(row.updated) == 8
        assert await sim.commits() == ["start", "record: intent", "transition: done"]
    else:
        assert [(f[2], seconds(f[4])) for f in await failures(sim)] == [("ValueError", 9)]
        assert await sim.commits() == [
            "start",
            "record: intent",
            "record: done failed",
            "transition: resumed attempt",
        ]


@simulated
async def test_r96_a_call_that_the_handler_gives_up_waiting_for_is_awaited_all_the_same(
    loop: SimLoop,
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        with anyio.move_on_after(1):
            await step.call(looked, "a")
        return machine.finished(text="moved on")

    sim = Sim(loop)
    sim.world.reply("looked", Reply(takes=8.0))
    row = await run(sim, job(body))
    assert (seconds(row.updated), row.standing.status) == (8, "ended")
    assert await sim.commits() == ["start", "record: intent", "transition: done"]


@simulated
async def test_r96_a_doubt_that_nobody_can_settle_parks_although_the_handler_fired(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        with anyio.move_on_after(1):
            await step.call(bare, "a")
        return machine.finished(text="moved on")

    sim = Sim(loop)
    sim.world.reply("bare", Reply(takes=2.0, error=OSError("gone")))
    row = await run(sim, job(body))
    assert (row.standing.status, row.standing.reason) == ("parked", "in doubt")
    assert seconds(row.updated) == 2
    assert await sim.commits() == ["start", "record: intent", "park: call_ended park"]


# --- R97 ------------------------------------------------------------------------------------------


class Mine(BaseException):
    """An error that is no Exception."""


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Mine, StopIteration]
)
@pytest.mark.parametrize("where", ["handler", "effect", "read", "gathered"])
@simulated
async def test_r97_any_error_of_the_handlers_own_is_a_failed_attempt_and_the_loop_goes_on(
    loop: SimLoop, where: str, error: type[BaseException]
) -> None:
    runs: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.append(step.attempt)
        if where == "handler" and len(runs) == 1:
            raise error("on purpose")
        if where == "read":
            await step.call(fresh, "r")
        if where == "gathered":
            await asyncio.gather(step.call(fresh, "r"), step.call(fresh, "s"))
        return machine.finished(text=await step.call(looked, "a"))

    bad = job(body)
    good = job(lambda m, d, s: fire_of(m, s.call(kept, "k")), name="Good")
    sim = Sim(loop, bad, good)
    sim.world.reply("looked", *[Reply(error=error("on purpose"))] * (where == "effect"))
    sim.world.next_reads("fresh", *[error("on purpose")] * (where in ("read", "gathered")))
    engine = await sim.engine()
    await engine.start(bad)
    row = await sim.until("ended", "parked")
    assert row.standing.status == "ended"
    if where == "effect":  # the effect's own: it is in doubt, and the handler never sees it
        assert (runs, await failures(sim)) == ([1], [])
        assert [e["answer"] for e in await sim.entries("lookup")] == ["found"]
    else:
        assert runs == [1, 2]
        (failed,) = await sim.entries("failed")
        as_a_coroutine_raises = RuntimeError if error is StopIteration else error
        assert failed["error"]["type"] == as_a_coroutine_raises.__name__
    await engine.start(good, thread_id="u")
    await sim.until("ended", thread_id="u")


# --- R98 ------------------------------------------------------------------------------------------


@simulated
async def test_r98_when_the_grace_is_over_calls_are_aborted_their_end_recorded_and_no_attempt_used(
    loop: SimLoop,
) -> None:
    strands: list[asyncio.Task[Any]] = []
    attempts: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        attempts.append(step.attempt)
        if len(attempts) == 1:
            strands.append(await left_running(step, fresh))
        return machine.finished(text=await step.call(looked, "a"))

    machine = job(body, retry=ONCE)
    sim = Sim(loop, machine, grace=timedelta(seconds=2))
    sim.world.reply("looked", HANG)
    sim.world.next_reads("fresh", Reply(takes=100.0))
    first = await sim.engine()
    await first.start(machine)
    worker = first.id
    await sleep(1)
    await first.end()
    row = await sim.row()
    assert loop.elapsed == 3
    assert (row.standing.status, row.owner, row.crashes) == ("running", None, 0)
    assert strands[0].cancelled()
    assert await sim.commits() == ["start", "record: intent", "record: call_ended"]
    (ended,) = await sim.entries("call_ended")
    assert (ended["at"], ended["worker"]) == (EPOCH + 3 * SECOND, worker)
    await sim.engine()
    row = await sim.until("ended", "parked")
    assert (row.standing.status, attempts) == ("ended", [1, 1])
    assert await sim.entries("failed") == []
    assert [said for said, _ in sim.world.lookups] == ["Found"]


# --- R99 ------------------------------------------------------------------------------------------


class Patient(Machine[Note, World], version=1, calls=CALLS):
    """Its handler takes its time, and may be interrupted."""

    working = State(initial=True, interruptible=True, retry=ONCE)
    stopped = State(final=True)
    late = State(final=True)
    done = State(final=True)
    finished = working.to(done)
    stop = working.to(stopped).on_signal()
    expired = working.to(late).after(timedelta(seconds=20))

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        await step.call(fresh, "before")
        await step.call(looked, "a")
        return self.finished(text=await step.call(fresh, "after"))


@pytest.mark.parametrize(
    ("read_takes", "effect_takes", "signalled", "state", "at"),
    [(0, 0, 3, "stopped", 3), (0, 8, 3, "stopped", 8), (0, 0, None, "late", 20), (15, 8, None, "late", 23)],
    ids=["a read is cancelled", "an effect is awaited", "by the clock", "by the clock, an effect awaited"],
)
@simulated
async def test_r99_an_event_to_an_interruptible_state_commits_instead_of_the_handlers(
    loop: SimLoop, read_takes: float, effect_takes: float, signalled: int | None, state: str, at: float
) -> None:
    sim = Sim(loop, Patient)
    sim.world.reply("looked", Reply(takes=effect_takes))
    sim.world.next_reads("fresh", Reply(takes=read_takes), Reply(takes=1000.0))
    thread = await (await sim.engine()).start(Patient)
    if signalled is not None:
        await sleep(signalled)
        await thread.signal(Patient.stop, id="stop")
    row = await sim.until("ended", "parked")
    assert (row.standing.status, row.standing.state) == ("ended", state)
    assert await sim.entries("failed") == []
    assert (await thread.data()).text is None
    assert seconds(row.updated) == pytest.approx(at, abs=0.6)
    kind = "signal" if signalled is not None else "timeout"
    last = (await sim.commits())[-1]
    assert last.startswith("transition: ")
    assert kind in last.split()


@pytest.mark.parametrize("early", [False, True])
@simulated
async def test_r99_an_event_to_a_state_that_is_not_interruptible_waits_for_the_handler(
    loop: SimLoop, early: bool
) -> None:
    class Stubborn(Machine[Note, World], version=1, calls=CALLS):
        """As Patient, and not interruptible."""

        working = State(initial=True)
        stopped = State(final=True)
        done = State(final=True)
        finished = working.to(done)
        stop = working.to(stopped).on_signal()

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            return self.finished(text=await step.call(fresh, "r"))

    sim = Sim(loop, Stubborn)
    sim.world.next_reads("fresh", Reply(takes=30.0))
    thread = sim.thread(Stubborn)
    if early:
        await thread.signal(Stubborn.stop, id="stop")
    await (await sim.engine()).start(Stubborn)
    if not early:
        await thread.signal(Stubborn.stop, id="stop")
    row = await sim.until("ended")
    assert (row.standing.state, seconds(row.updated)) == ("done", 30)
    assert [signal.id for signal in await thread.pending()] == ["stop"]


# --- R100 and R101 --------------------------------------------------------------------------------


def two_branches(left: Any, right: Any, **options: Any) -> Any:
    """A machine whose only step has two branches."""

    class Two(Machine[Note, World], version=1, calls=CALLS):
        """Two handlers on one state."""

        working = State(initial=True, **{"retry": THRICE, **options})
        done = State(final=True)
        other = State(final=True)
        finished = working.to(done)
        turned = working.to(other)

        @working.handler
        async def left(self, data: Note, step: Step[World]) -> Fire:
            fire: Fire = await left(self, data, step)
            return fire

        @working.handler
        async def right(self, data: Note, step: Step[World]) -> Fire:
            fire: Fire = await right(self, data, step)
            return fire

    return Two


@simulated
async def test_r100_branches_that_fire_different_events_fail_the_visit(loop: SimLoop) -> None:
    """The second time they agree, since their reads are made again."""

    async def left(machine: Any, data: Note, step: Step[World]) -> Any:
        text = await step.call(looked, "a")
        return machine.finished(text=text) if await step.call(fresh, "l") == "yes" else machine.turned()

    async def right(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(more="right")

    machine = two_branches(left, right)
    sim = Sim(loop, machine)
    sim.world.next_reads("fresh", "no", "yes")
    row = await run(sim, machine)
    assert row.standing.state == "done"
    failed = await sim.entries("failed")
    assert [(e["lane"], e["attempt"], e["error"]["type"]) for e in failed] == [
        ("left", 1, "CallMisuse"),
        ("right", 1, "CallMisuse"),
    ]
    assert "left: turned, right: finished" in failed[0]["error"]["message"]
    assert {seconds(e["retry_at"]) for e in failed} == {1}
    assert len(sim.world.arrivals) == 1
    data = await sim.thread(machine).data()
    assert (data.text, data.more) == ("looked-1", "right")


@simulated
async def test_r100_the_last_disagreement_parks_and_mended_code_goes_on_after_a_retry(loop: SimLoop) -> None:
    async def left(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.turned()

    async def right(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished()

    machine, mended = two_branches(left, right), two_branches(right, right)
    sim = Sim(loop)
    first = await sim.engine(machine)
    await first.start(machine)
    row = await sim.until("parked")
    assert (row.standing.reason, row.standing.seq) == ("failed", 0)
    assert len(await sim.entries("failed")) == 6
    await first.end()
    await sim.engine(mended)
    await sim.thread(mended).retry()
    await sim.until("ended")


@pytest.mark.parametrize("what", ["field", "memory"])
@simulated
async def test_r101_two_branches_that_write_one_thing_without_a_rule_fail_naming_both(
    loop: SimLoop, what: str
) -> None:
    def writes(value: str) -> Any:
        async def body(machine: Any, data: Note, step: Step[World]) -> Any:
            if what == "memory":
                await step.memory.put(notes, "one", Note(text=value))
                return machine.finished(lines=[value])
            return machine.finished(text=value)

        return body

    machine = two_branches(writes("x"), writes("y"), retry=Retry(attempts=2, delay=timedelta(seconds=1)))
    sim = Sim(loop, machine)
    row = await run(sim, machine)
    assert (row.standing.status, row.standing.reason, row.standing.seq) == ("parked", "failed", 0)
    failed = await sim.entries("failed")
    assert [(e["lane"], e["attempt"]) for e in failed] == [
        ("left", 1),
        ("right", 1),
        ("left", 2),
        ("right", 2),
    ]
    message = failed[0]["error"]["message"]
    assert "left" in message
    assert "right" in message
    assert ("memory notes/one" if what == "memory" else ".text") in message
    assert (await sim.thread(machine).data()).text is None
