"""Rows R146 to R148 of docs/protocol.md: a thread is ended at once, whoever has it and whatever is wrong.

And a cancel and a terminate across processes, on a store on disk."""

from __future__ import annotations

from asyncio import sleep
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from anyio import Event, fail_after
from attrs import evolve
from harness.engine import (
    CALLS,
    HANG,
    Engine,
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

from perdure.machines import Fire, Machine, State, Step, Unreadable
from perdure.runtime import NoSuchThread, Runtime, SignalRefused
from perdure.runtime._client import Client
from perdure.runtime._journal import holds
from perdure.stores import Address, Commit, StaleClaim


class Deep(Machine[Note, World], version=1, calls=CALLS):
    """Reads, acts on it, waits; has an event for a cancel, of which a terminate takes no notice."""

    working = State(initial=True)
    review = State()
    done = State(final=True)
    dropped = State(final=True)

    worked = working.to(review)
    approve = review.to(done).on_signal()
    stop = (working.to(dropped) | review.to(dropped)).on_cancel()

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        text = await step.call(kept, "a")
        return self.worked(text=await step.call(bare, text), more=await step.call(fresh, "b"))


def knows_nothing(sim: Sim) -> Client:
    """A client without any machine's code."""
    return Client(sim.store, sim.artifacts, sim.env, {}, None)


async def terminated(sim: Sim, state: str, *doubts: str, by: str = "ada") -> None:
    row = await sim.row()
    assert (row.standing.status, row.standing.reason, row.standing.state) == ("ended", "terminated", state)
    assert row.owner is None
    (entry,) = await sim.entries("terminated")
    assert (entry["by"], entry["reason"]) == (by, "runaway")
    assert [name for name, _ in entry.get("in_doubt", ())] == list(doubts)
    logs = [log for log, _ in await sim.rows()]
    heads = [row.incarnation, *(log.head for log in logs)]
    assert all(holds(before, log) for before, log in zip(heads, logs, strict=False))


# --- R146 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("here", [True, False], ids=["here", "elsewhere"])
@simulated
async def test_r146_a_live_owner_is_fenced_out_and_its_effect_stays_in_doubt(
    loop: SimLoop, here: bool
) -> None:
    sim = Sim(loop, Deep)
    sim.world.reply("bare", Reply(lands=3, takes=5))
    engine = await sim.engine()
    await engine.start(Deep)
    await sleep(1)
    before = await sim.row()
    thread = sim.thread(Deep)
    if here:
        own: Any = engine.runtime.thread(Deep, thread_id="t", workspace="w")
        await engine.inside(lambda: own.terminate(by="ada", reason="runaway"))
    else:
        await thread.terminate(by="ada", reason="runaway")
    assert loop.now() == EPOCH + 1_000_000  # at once
    await terminated(sim, "working", "bare")
    assert (await sim.row()).epoch == before.epoch + 1
    ended = await thread.result()
    assert (ended.state, ended.reason, ended.data.text) == ("working", "terminated", None)
    n = (await sim.row()).n
    await sleep(60)
    assert (await sim.row()).n == n  # nothing of the terminated run landed
    assert "working" not in repr(engine.runtime._running._worker.runs)  # type: ignore[union-attr]
    *_, last = await thread.history()
    assert (last.event, last.dest) == (":terminate", "working")
    (effect,) = [call for call in last.calls if call.kind == "effect"]
    said = f"terminated by ada: runaway; in doubt stay: bare ({effect.key})"
    assert (effect.outcome, last.decisions[-1]) == ("in doubt", said)
    assert said in await thread.why()
    assert await thread.pending() == []


@simulated
async def test_r146_what_the_old_owner_writes_is_refused(loop: SimLoop) -> None:
    """A commit that was on its way when the thread was taken over comes too late."""
    sim = Sim(loop, Deep)
    engine = await sim.engine()
    engine.store.fault("delay", carrying("transition"), seconds=5.0)
    await engine.start(Deep)
    await sleep(1)
    await sim.thread(Deep).terminate(by="ada", reason="runaway")
    await terminated(sim, "working", "bare")  # its outcome was to land with the transition
    rows = await sim.rows()
    await sleep(60)
    assert await sim.rows() == rows
    late = [write for method, write in engine.store.writes if method == "commit"][-1]
    assert isinstance(late, Commit)
    assert late.log.kind == "transition"
    with pytest.raises(StaleClaim):
        await sim.store.commit(late)


@pytest.mark.parametrize("here", [True, False], ids=["here", "elsewhere"])
@simulated
async def test_r146_its_handler_stops_at_once_or_within_two_polls(loop: SimLoop, here: bool) -> None:
    stopped: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        try:
            await sleep(3600)
        finally:
            stopped.append(loop.now())

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine)
    await sleep(30.2)  # between two polls
    asked = loop.now()
    own: Any = engine.runtime.thread(machine, thread_id="t", workspace="w")
    thread = own if here else sim.thread(machine)
    await engine.inside(lambda: thread.terminate(by="ada", reason="runaway"))
    await sleep(60)
    assert [at - asked <= (0 if here else 1_000_000) for at in stopped] == [True]


# --- R147 -----------------------------------------------------------------------------------------


async def dies(sim: Sim, deed: Any, when: Any) -> None:
    """Terminate from a process of its own that dies over it."""
    engine = await sim.engine(job(unused, name="Other"))
    engine.store.fault(deed, when)
    client = Client(engine.store, sim.artifacts, sim.env, {}, None)

    async def ask() -> None:
        await client.terminate(thread_id="t", workspace="w", by="ada", reason="runaway")

    await engine.unless_killed(engine.inside(ask))


async def unused(machine: Any, data: Note, step: Step[World]) -> Any:
    return machine.finished()


@pytest.mark.parametrize(
    ("deed", "when"),
    [
        ("kill after", every("deliver")),
        ("kill before", every("claim")),
        ("kill after", every("claim")),
        ("kill before", carrying("terminated")),
        ("kill after", carrying("terminated")),
    ],
    ids=["told", "before the claim", "claimed", "before the end", "ended"],
)
@pytest.mark.parametrize("stands", ["working", "review"])
@simulated
async def test_r147_where_the_terminating_process_dies_whoever_has_the_thread_ends_it(
    loop: SimLoop, deed: str, when: Any, stands: str
) -> None:
    sim = Sim(loop, Deep)
    if stands == "working":
        sim.world.next_reads("kept", Reply(takes=3600))
    await (await sim.engine(Deep)).start(Deep)
    await sleep(10)
    await dies(sim, deed, when)
    await sim.until("ended", within=timedelta(minutes=1))
    await terminated(sim, stands)


@pytest.mark.parametrize("method", ["deliver", "claim", "commit", "beat"])
@pytest.mark.parametrize("deed", ["lose before", "lose after", "refuse"])
@simulated
async def test_r147_a_lost_reply_is_asked_again(loop: SimLoop, method: str, deed: Any) -> None:
    sim = Sim(loop, Deep)
    await (await sim.engine(Deep)).start(Deep)
    await sim.until("waiting")
    await dies(sim, deed, every(method))
    await sim.until("ended", within=timedelta(minutes=1))
    await terminated(sim, "review")


# --- R148 -----------------------------------------------------------------------------------------


@simulated
async def test_r148_a_waiting_thread_ends_without_its_machines_code(loop: SimLoop) -> None:
    sim = Sim(loop, Deep)
    await (await sim.engine(Deep)).start(Deep)
    await sim.until("waiting")
    await knows_nothing(sim).terminate(thread_id="t", workspace="w", by="ada", reason="runaway")
    await terminated(sim, "review")
    with pytest.raises(SignalRefused, match="ended: in state 'review', terminated by ada: runaway"):
        await sim.thread(Deep).signal(Deep.approve, id="1")


@simulated
async def test_r148_a_thread_parked_in_doubt_keeps_its_doubt(loop: SimLoop) -> None:
    sim = Sim(loop, Deep)
    sim.world.reply("bare", HANG)
    await (await sim.engine(Deep)).start(Deep)
    await sim.until("parked")
    await knows_nothing(sim).terminate(thread_id="t", workspace="w", by="ada", reason="runaway")
    await terminated(sim, "working", "bare")
    assert len(sim.world.arrivals) == 1
    await sleep(60)
    assert len(sim.world.arrivals) == 1


@simulated
async def test_r148_an_unreadable_thread(loop: SimLoop) -> None:
    class Changed(Machine[Note, World], version=1, calls=CALLS, name="Deep"):
        """The same machine, without the state that the thread is in."""

        begun = State(initial=True)
        done = State(final=True)
        go = begun.to(done).on_signal()

    sim = Sim(loop, Deep)
    engine = await sim.engine(Deep)
    await engine.start(Deep)
    await sim.until("waiting")
    await engine.end()
    await sim.engine(Changed)
    await sim.thread(Deep).signal(Deep.approve, id="1")
    assert (await sim.until("parked")).standing.reason == "unreadable"
    await sim.thread(Changed).terminate(by="ada", reason="runaway")
    await terminated(sim, "review")
    with pytest.raises(Unreadable):
        await sim.thread(Changed).result()


@simulated
async def test_r148_a_poison_thread(loop: SimLoop) -> None:
    engines: list[Engine] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        engines[-1].kill()
        await sleep(1)

    machine = job(body)
    sim = Sim(loop, machine)
    for _ in range(4):
        engines.append(await sim.engine())
        if len(engines) == 1:
            await engines[0].start(machine)
        await sleep(60)
    assert (await sim.until("parked")).standing.reason == "poison"
    await knows_nothing(sim).terminate(thread_id="t", workspace="w", by="ada", reason="runaway")
    await terminated(sim, "working")


@simulated
async def test_r148_a_suspect_that_no_worker_may_claim_beside_others(loop: SimLoop) -> None:
    engines: list[Engine] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        engines[-1].kill()
        await sleep(1)

    machine = job(body)
    sim = Sim(loop, machine)
    for _ in range(3):
        engines.append(await sim.engine())
        if len(engines) == 1:
            await engines[0].start(machine)
        await sleep(60)
    assert (await sim.row()).crashes == 2
    await knows_nothing(sim).terminate(thread_id="t", workspace="w", by="ada", reason="runaway")
    await terminated(sim, "working")


@simulated
async def test_r148_a_record_that_cannot_be_read(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.call(kept, "a")
        await step.call(looked, "b")
        return machine.finished(text=await step.call(fresh, "c"))

    machine = job(body)
    sim = Sim(loop, machine)
    sim.world.next_reads("fresh", Reply(takes=3600))
    engine = await sim.engine()
    await engine.start(machine)
    await sleep(10)
    engine.kill()
    log = sim.store._tables.log[Address(workspace="w", thread_id="t")]
    log[1] = evolve(log[1], payload=b'{"x":[{"k":"nonsense"}]}')
    await knows_nothing(sim).terminate(thread_id="t", workspace="w", by="ada", reason="runaway")
    row = await sim.row()
    assert (row.standing.status, row.standing.reason) == ("ended", "terminated")
    assert "its record cannot be read, and may hold effects in doubt" in (row.standing.note or "")


@simulated
async def test_r148_said_again_it_changes_nothing_and_another_end_is_told(loop: SimLoop) -> None:
    sim = Sim(loop, Deep)
    await (await sim.engine(Deep)).start(Deep)
    thread = sim.thread(Deep)
    await sim.until("waiting")
    await thread.terminate(by="ada", reason="runaway")
    await thread.terminate(by="bob", reason="again")
    await terminated(sim, "review")
    with pytest.raises(SignalRefused, match="has ended: in state 'review', terminated by ada: runaway"):
        await thread.cancel()
    other = await (await sim.engine(Deep)).start(Deep, thread_id="o")
    await sim.until("waiting", thread_id="o")
    await other.signal(Deep.approve, id="1")
    await sim.until("ended", thread_id="o")
    with pytest.raises(SignalRefused, match="thread 'o' has ended: in state 'done'"):
        await other.terminate()
    with pytest.raises(NoSuchThread):
        await sim.thread(Deep, "nobody").terminate()


def on_disk(path: Path, machine: Any, reads: Any) -> Runtime[Any]:
    return Runtime(
        machines=[machine],
        deps=reads,
        store=f"sqlite:///{path}/perdure.db",
        artifacts=f"file:{path}/artifacts",
        poll=timedelta(milliseconds=20),
    )


@pytest.mark.anyio
async def test_r146_on_disk_another_process_takes_the_thread_from_a_worker_that_lives(tmp_path: Path) -> None:
    begun, stopped = Event(), Event()

    async def body(machine: Any, data: Note, step: Step[Any]) -> Any:
        begun.set()
        try:
            await for_ever()
        finally:
            stopped.set()

    machine = job(body)
    async with on_disk(tmp_path, machine, None) as runtime:
        thread = await runtime.start(machine, Note(), thread_id="t")
        with fail_after(10):
            await begun.wait()
            async with on_disk(tmp_path, machine, None).client() as client:
                await client.terminate(thread_id="t", by="ada", reason="runaway")
            await stopped.wait()
            ended = await thread.result()
    assert (ended.state, ended.reason) == ("working", "terminated")


@pytest.mark.anyio
async def test_r140_on_disk_a_cancel_of_another_process_stops_the_handler(tmp_path: Path) -> None:
    begun = Event()

    async def body(machine: Any, data: Note, step: Step[Any]) -> Any:
        begun.set()
        await for_ever()

    machine = job(body)
    async with on_disk(tmp_path, machine, None) as runtime:
        thread = await runtime.start(machine, Note(), thread_id="t")
        with fail_after(10):
            await begun.wait()
            async with on_disk(tmp_path, machine, None).client() as client:
                await client.thread(machine, thread_id="t").cancel(by="ada")
            ended = await thread.result()
    assert (ended.state, ended.reason) == ("working", "cancelled")
