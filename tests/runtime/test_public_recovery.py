"""Failures that people met with systems like this one, tried here: recovery, keys, timers, signals, ids."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from asyncio import sleep
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from attrs import evolve
from harness.engine import (
    CALLS,
    Note,
    Reply,
    Sim,
    World,
    carrying,
    every,
    for_ever,
    job,
    looked,
    remembered,
    simulated,
)
from harness.loop import EPOCH, SimLoop, simulate

from perdure.machines import Accept, Append, Call, Fire, Machine, State, Step, effect, record
from perdure.runtime import SignalRefused
from perdure.stores import MAX_ID, Address, Log, SignalConflict, Threads, TooLarge

SECOND = 1_000_000


# --- between an effect's result and the checkpoint ------------------------------------------------


class Three(Machine[Note, World], version=1, calls=CALLS):
    """Three states, each of which bumps a counter outside."""

    one = State(initial=True)
    two = State()
    three = State()
    done = State(final=True)
    first = one.to(two)
    second = two.to(three)
    third = three.to(done)

    @one.handler
    async def bump_one(self, data: Note, step: Step[World]) -> Fire:
        return self.first(lines=[await step.call(looked, "1")])

    @two.handler
    async def bump_two(self, data: Note, step: Step[World]) -> Fire:
        text = await step.call(looked, "2")
        await sleep(0.01)  # the outcome and the checkpoint are two commits
        return self.second(lines=[text])

    @three.handler
    async def bump_three(self, data: Note, step: Step[World]) -> Fire:
        return self.third(lines=[await step.call(looked, "3")])


@pytest.mark.parametrize("skip", [0, 1, 2])
@pytest.mark.parametrize("slow", ["done", "transition"])
@pytest.mark.parametrize("dies", ["kill before", "in between", "kill after"])
@simulated
async def test_a_kill_around_a_slow_outcome_or_checkpoint_repeats_no_effect(
    loop: SimLoop, slow: str, skip: int, dies: Any
) -> None:
    sim = Sim(loop, Three)
    engine = await sim.engine()
    if dies == "in between":
        engine.store.fault("delay", carrying(slow), skip=skip, seconds=0.2)
    else:
        engine.store.fault(dies, carrying(slow), skip=skip)
    thread = await engine.start(Three)
    await sleep(0.1)
    engine.kill()
    await sim.engine()
    await sim.until("ended")
    assert sorted(a.args for a in sim.world.arrivals) == [("1",), ("2",), ("3",)]
    assert (await thread.data()).lines == ("looked-1", "looked-2", "looked-3")


# --- one key for one action -----------------------------------------------------------------------


@simulated
async def test_every_retry_of_a_charge_that_timed_out_has_the_same_key(loop: SimLoop) -> None:
    """The receiver did it each time, and the answer was lost each time; then the process dies as well."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(remembered, "charge"))

    machine = job(body)
    sim = Sim(loop, machine)
    sim.world.remembers = True
    lost = Reply(takes=10.0, hangs=True)
    engine = await sim.engine()
    sim.world.reply("remembered", lost, lost, lost, Reply(then=engine.kill))
    thread = await engine.start(machine)
    await sim.until_dead(engine)
    await sim.engine()
    await sim.until("ended")
    assert len(sim.world.arrivals) == 5
    assert len(set(sim.world.keys)) == 1
    assert sim.world.effects == ["remembered-1"]  # one charge
    assert (await thread.data()).text == "remembered-1"


KEYS = """
import json, sys
sys.path[:0] = sys.argv[1:]
from test_public_recovery import keys_of_one_run
print(json.dumps(keys_of_one_run()))
"""


@record
class Line:
    sku: str
    count: int


@effect
async def order(
    call: Call[World], lines: Sequence[Line], tags: frozenset[str], prices: Mapping[str, int]
) -> str:
    return await call.deps.send("order", call.key, "o")


def keys_of_one_run() -> list[str]:
    """The keys that a handler's effects have, in one run whose tokens are seeded."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        tags = frozenset({"a", "b", "c", "d", "e"})
        text = await step.call(order, [Line(sku="x", count=1)], tags, prices={"x": 1, "y": 2})
        beside = [await step.call(looked, "é"), await step.call(looked.keyed("k"), "a")]
        return machine.finished(lines=[text, *beside])

    machine = job(body, calls=[*CALLS, order])

    async def main(loop: SimLoop) -> list[str]:
        sim = Sim(loop, machine, seed=7)
        await (await sim.engine()).start(machine)
        await sim.until("ended")
        return sim.world.keys

    return simulate(main)


def test_keys_are_the_same_in_every_process_and_hash_seed() -> None:
    tests = Path(__file__).parents[1]
    here = keys_of_one_run()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", KEYS, str(tests), str(tests / "runtime")]
        there = subprocess.run(command, env=env, capture_output=True, check=True, text=True, timeout=60)
        assert json.loads(there.stdout) == here
    assert len(set(here)) == 3


# --- the same step in a loop ----------------------------------------------------------------------


@effect
async def charge(call: Call[World], what: str) -> str:
    return await call.deps.send("charge", call.key, what)


@effect
async def charge_1(call: Call[World], what: str) -> str:
    return await call.deps.send("charge_1", call.key, what)


@charge.lookup
async def look_charge(call: Call[World], what: str) -> Any:
    return await call.deps.look("charge", call.key)


@charge_1.lookup
async def look_charge_1(call: Call[World], what: str) -> Any:
    return await call.deps.look("charge_1", call.key)


@record
class Lap:
    laps: Annotated[Sequence[str], Append()] = ()

    @property
    def over(self) -> bool:
        """Three visits are enough."""
        return len(self.laps) >= 6


class Loop(Machine[Lap, World], version=1, calls=[charge, charge_1]):
    """Visits one state three times, each time with the same effects and arguments."""

    working = State(initial=True)
    done = State(final=True)
    lap = working.to(done, when=Lap.over) | working.to(working)

    @working.handler
    async def work(self, data: Lap, step: Step[World]) -> Fire:
        return self.lap(laps=[await step.call(charge, "1"), await step.call(charge_1, "1")])


@simulated
async def test_each_visit_of_a_state_does_its_effects_anew(loop: SimLoop) -> None:
    """Nothing is borrowed from an earlier visit, and after a crash only the visit it died in is looked up."""
    sim = Sim(loop, Loop)
    engine = await sim.engine()
    sim.world.reply("charge_1", Reply(), Reply(), Reply(then=engine.kill))
    thread = await engine.start(Loop, Lap())
    await sim.until_dead(engine)
    assert (await sim.row()).standing.seq == 2
    await sim.engine()
    await sim.until("ended")
    assert [a.name for a in sim.world.arrivals] == ["charge", "charge_1"] * 3
    assert len(set(sim.world.keys)) == 6
    assert sim.world.lookups == [("Found", sim.world.keys[5])]
    assert (await thread.data()).laps == (
        "charge-1",
        "charge_1-2",
        "charge-3",
        "charge_1-4",
        "charge-5",
        "charge_1-6",
    )


@simulated
async def test_keys_and_names_that_look_alike_do_not_clash(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        texts = [
            await step.call(declared, what)
            for declared in (charge.keyed("x"), charge.keyed("x:1"), charge_1.keyed("x"), charge, charge_1)
            for what in ("1",)
        ]
        return machine.finished(lines=[*texts, await step.call(charge, "1"), await step.call(charge, ":1")])

    machine = job(body, calls=[charge, charge_1])
    sim = Sim(loop, machine)
    thread = await (await sim.engine()).start(machine)
    await sim.until("ended")
    assert len(set(sim.world.keys)) == len(sim.world.arrivals) == 7
    assert len(set((await thread.data()).lines)) == 7


# --- claims ---------------------------------------------------------------------------------------


@simulated
async def test_a_claim_sweep_does_not_run_what_this_process_has_just_begun(loop: SimLoop) -> None:
    """200 threads started in the same moment in which the sweep is made; another worker sweeps too."""
    ran: list[str] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        ran.append(step.thread_id)
        return machine.finished(text=await step.call(looked, step.thread_id))

    machine = job(body)
    sim = Sim(loop, machine)
    engine, other = await sim.engine(), await sim.engine()
    starts = [engine.start(machine, thread_id=f"t{n}") for n in range(200)]
    for each in (engine, other):
        await each.runtime._running.tell(Address(workspace="w", thread_id="t0"))
    await asyncio.gather(*starts)
    for n in range(200):
        await sim.until("ended", thread_id=f"t{n}")
    assert sorted(ran) == sorted(f"t{n}" for n in range(200))
    assert len(set(sim.world.keys)) == len(sim.world.arrivals) == 200


@pytest.mark.parametrize("effect_done", [False, True], ids=["before its effect", "after its effect"])
@simulated
async def test_a_thread_whose_worker_was_killed_in_its_handler_is_not_gone(
    loop: SimLoop, effect_done: bool
) -> None:
    runs: list[int] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        runs.append(step.attempt)
        if len(runs) == 1 and not effect_done:
            await for_ever()
        text = await step.call(looked, "a")
        if len(runs) == 1:
            await for_ever()
        return machine.finished(text=text)

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    thread = await engine.start(machine)
    await sleep(1)
    engine.kill()
    await sim.engine()
    await sim.until("ended")
    assert runs == [1, 1]
    assert len(sim.world.arrivals) == 1
    assert (await thread.data()).text == "looked-1"
    step = (await thread.history())[-1]
    assert "resumed after its worker died" in step.decisions


# --- timers ---------------------------------------------------------------------------------------


class Naps(Machine[Note, World], version=1, calls=CALLS):
    """Sleeps for two seconds."""

    asleep = State(initial=True)
    awake = State(final=True)
    wakes = asleep.to(awake).after(timedelta(seconds=2))


@simulated
async def test_a_timer_that_came_due_while_no_worker_was_there_fires_once_and_is_marked_late(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Naps)
    engine = await sim.engine()
    thread = await engine.start(Naps)
    await sleep(0.5)
    engine.kill()
    await sleep(5)
    await asyncio.gather(sim.engine(), sim.engine())
    await sim.until("ended")
    assert loop.now() - EPOCH < 5_600_000  # promptly
    await sleep(60)
    (timeout,) = await sim.entries("timeout")
    assert timeout["late"] == loop.now() - 60 * SECOND - EPOCH - 2 * SECOND
    assert (await thread.history())[-1].decisions == ("timeout wakes (4 s late)",)
    assert await sim.commits() == ["start", "transition: timeout"]


# --- signals --------------------------------------------------------------------------------------


@record
class Paid:
    amount: int


class Till(Machine[Note, World], version=1, calls=CALLS):
    """Takes payments until it is closed."""

    taking = State(initial=True)
    closed = State(final=True)
    pay = taking.to(taking).on_signal(Paid)
    close = taking.to(closed).on_signal()

    @pay.received
    def paid(self, data: Note, payment: Paid) -> Accept:
        return self.pay(lines=[str(payment.amount)])


@simulated
async def test_a_signal_sent_again_counts_once_at_every_stage(loop: SimLoop) -> None:
    sim = Sim(loop, Till)
    early = sim.thread(Till)
    await early.signal(Till.pay, Paid(amount=1), id="before the start")
    await early.signal(Till.pay, Paid(amount=1), id="before the start")
    engine = await sim.engine()
    thread = await engine.start(Till)
    await thread.signal(Till.pay, Paid(amount=2), id="p2")
    await thread.signal(Till.pay, Paid(amount=2), id="p2")  # before it is handled
    await sim.until_row(lambda row: row.standing.seq == 2)
    await thread.signal(Till.pay, Paid(amount=2), id="p2")  # after that
    await sleep(5)
    await engine.end()
    await sim.engine()
    await thread.signal(Till.pay, Paid(amount=2), id="p2")  # after a restart
    await sleep(5)
    assert (await thread.data()).lines == ("1", "2")
    await thread.signal(Till.pay, Paid(amount=2), id="p3")  # an equal payment is another payment
    await thread.signal(Till.close, id="close")
    await sim.until("ended")
    await thread.signal(Till.pay, Paid(amount=2), id="p2")  # after the end: the same answer
    await thread.signal(Till.close, id="close")
    assert (await thread.data()).lines == ("1", "2", "2")
    with pytest.raises(SignalConflict, match=r"'p2'.*accepted before"):
        await thread.signal(Till.pay, Paid(amount=9), id="p2")
    with pytest.raises(SignalRefused, match="the thread has ended"):
        await thread.signal(Till.pay, Paid(amount=2), id="p4")
    assert await thread.pending() == []


# --- replies that were lost -----------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 7])
@pytest.mark.parametrize("deed", ["lose before", "lose after"])
@simulated
async def test_a_start_whose_reply_is_lost_makes_one_thread_and_a_signal_counts_once(
    loop: SimLoop, deed: Any, times: int
) -> None:
    sim = Sim(loop, Till)
    engine = await sim.engine()
    engine.store.fault(deed, every("start"), times=times)
    engine.store.fault(deed, every("deliver"), times=times)
    thread = await engine.start(Till)
    handle = engine.runtime.thread(Till, thread_id="t", workspace="w")
    await engine.inside(lambda: handle.signal(Till.pay, Paid(amount=5), id="p"))
    await engine.inside(lambda: handle.signal(Till.close, id="c"))
    await sim.until("ended")
    assert (await thread.data()).lines == ("5",)
    assert len([1 for method, _ in engine.store.writes if method == "start"]) == times + 1
    assert await sim.commits() == ["start", "transition: signal", "transition: signal"]
    again_started = await engine.start(Till)  # whoever asks again is told of the same thread
    assert (await again_started.row()).incarnation == (await thread.row()).incarnation


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "thread_id",
    ["i" * 255, "i" * 256, "i" * 300, "i" * MAX_ID, "i" * (MAX_ID + 1), "i" * 1000, "i" * 3000, "🦉" * 300],
    ids=lambda text: f"{text[0]} x {len(text)}",
)
@simulated
async def test_a_thread_id_over_the_limit_is_refused_at_the_start(loop: SimLoop, thread_id: str) -> None:
    machine = job(simple)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    if len(thread_id.encode()) <= MAX_ID:
        await engine.start(machine, thread_id=thread_id)
        await sim.until("ended", thread_id=thread_id)
        return
    with pytest.raises(TooLarge, match=r"thread_id .* bytes in UTF-8: at most 512"):
        await engine.start(machine, thread_id=thread_id)
    assert (await sim.store.page(Threads())).rows == ()
    assert [method for method, _ in engine.store.writes if method == "start"] == []


async def simple(machine: Any, data: Note, step: Step[World]) -> Any:
    return machine.finished(text=await step.call(looked, "a"))


@simulated
async def test_an_id_at_the_limit_goes_through_every_part(loop: SimLoop) -> None:
    """Signals, memory and an explicit key of the longest names that are allowed."""
    thread_id, key = "🦉" * 128, "k" * 255

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(looked.keyed(key), "a"))

    machine = job(body)
    sim = Sim(loop, machine)
    await (await sim.engine()).start(machine, thread_id=thread_id)
    assert (await sim.until("ended", "parked", thread_id=thread_id)).standing.status == "ended"
    thread = await (await sim.engine(Till)).start(Till, thread_id="till")
    with pytest.raises(TooLarge, match="signal id"):
        await thread.signal(Till.close, id="s" * 256)
    await thread.signal(Till.close, id="s" * 255)
    await sim.until("ended", thread_id="till")


# --- stored types ---------------------------------------------------------------------------------


@record
class Cat:
    name: str = "cat"


@record
class Dog:
    name: str = "dog"


@record
class House:
    pet: Cat | Dog | None = None
    pets: Annotated[Sequence[Cat | Dog], Append()] = ()


def keeps() -> Any:
    class Home(Machine[House, World], version=1, calls=CALLS):
        """Holds values of a union, which are stored with a tag."""

        waiting = State(initial=True)
        done = State(final=True)
        leave = waiting.to(done).on_signal()

    return Home


EVIL = [
    b'{"$":"subprocess.Popen","value":{"args":["touch","%s"]}}',
    b'{"$":"builtins.eval","value":"open(\'%s\',\'w\')"}',
    b'{"$":"evil_module.Cat","value":{}}',
    b'{"$":"House","value":{}}',
    b'{"__class__":"evil_module:Cat"}',
    b'{"py/object":"evil_module.Cat"}',
    b'{"py/reduce":[{"py/type":"os.system"},{"py/tuple":["touch %s"]}]}',
]


@pytest.mark.parametrize("stored", EVIL)
@simulated
async def test_a_stored_type_that_the_schema_does_not_name_is_refused_and_nothing_is_imported(
    loop: SimLoop, stored: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "evil_module.py").write_text(f"open({str(mark)!r}, 'w')\nclass Cat: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    machine = keeps()
    sim = Sim(loop, machine)
    thread = await (await sim.engine()).start(machine, House(pet=Dog(name="rex")))
    log = sim.store._tables.log[Address(workspace="w", thread_id="t")]
    before = log[0].payload or b""
    assert b'{"$":"Dog","value":{"name":"rex"}}' in before
    spoilt = before.replace(b'{"$":"Dog","value":{"name":"rex"}}', stored.replace(b"%s", str(mark).encode()))
    log[0] = evolve(log[0], payload=spoilt)
    await thread.signal(machine.leave, id="1")
    parked = await sim.until("parked")
    assert parked.standing.reason == "unreadable"
    assert "pet" in (parked.standing.note or "")
    assert not mark.exists()
    assert "evil_module" not in sys.modules
    (row, *_) = (await sim.store.page(Log(address=thread.address))).rows
    assert row.payload == spoilt  # its bytes are untouched
