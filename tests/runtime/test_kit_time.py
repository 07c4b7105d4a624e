"""Simulated time, the world's misfortunes, and what is said of paths and arrivals."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import anyio
import pytest
from attrs import frozen

from perdure.machines import (
    ABSENT,
    Absent,
    Call,
    Fire,
    Found,
    Machine,
    Retry,
    State,
    Step,
    effect,
    record,
)
from perdure.runtime import Runtime
from perdure.runtime.testing import (
    NeverEnds,
    Receiver,
    Sweep,
    World,
    assert_arrivals,
    assert_path,
    crash_sweep,
    simulated,
)

pytestmark = pytest.mark.anyio


@frozen(kw_only=True)
class Deps:
    bank: Receiver


@record
class Approval:
    by: str


@record
class Claim:
    amount: int
    receipt: str | None = None


@effect(deadline=timedelta(seconds=10))
async def charge(call: Call[Deps], amount: int) -> str:
    return await call.deps.bank.send(call.key, amount)


@charge.lookup
async def find_charge(call: Call[Deps], amount: int) -> Found[str] | Absent:
    found = await call.deps.bank.find(call.key)
    return ABSENT if found is None else Found(found)


class Patient(Machine[Claim, Deps], version=1, calls=[charge]):
    """Charge at once, or after a reminder and two months."""

    asked = State(initial=True)
    reminded = State()
    charging = State(retry=Retry(attempts=3, delay=timedelta(minutes=1)))
    done = State(final=True)
    refused = State(final=True)

    approve = asked.to(charging).on_signal(Approval)
    remind = asked.to(reminded).after(timedelta(days=30))
    agree = reminded.to(charging).on_signal(Approval)
    lapsed = reminded.to(refused).after(timedelta(days=30))
    charged = charging.to(done)
    gave_up = charging.to(refused).on_failure()

    @charging.handler
    async def charge_it(self, data: Claim, step: Step[Deps]) -> Fire:
        return self.charged(receipt=await step.call(charge, data.amount))


@pytest.fixture
def deps(world: World) -> Deps:
    return Deps(bank=world.receiver("bank"))


@pytest.fixture
def runtime(deps: Deps) -> Runtime[Deps]:
    return Runtime(machines=[Patient], deps=deps, store="sqlite:///never.db")


# --- simulated time


async def test_time_stands_still_until_it_is_moved(runtime: Runtime[Deps], world: World) -> None:
    async with simulated(runtime) as sim:
        before = sim.now
        thread = await sim.start(Patient, Claim(amount=5))
        assert await thread.state() == "asked"
        assert sim.now == before
        await sim.advance(timedelta(days=30) - timedelta(seconds=1))
        assert await thread.state() == "asked"
        await sim.advance(timedelta(seconds=1))
        assert await thread.state() == "reminded"
        assert sim.now == before + timedelta(days=30)
        await thread.signal(Patient.agree, Approval(by="ada"), id="one")
        assert await thread.settled() == "ended"
        assert (await thread.data()).receipt == "bank-1"
        await assert_path(thread, ["asked", "reminded", "charging", "done"])
    assert_arrivals(world, "bank", 1)


async def test_a_result_is_awaited_through_months_in_no_time(runtime: Runtime[Deps]) -> None:
    began = time.monotonic()
    async with simulated(runtime) as sim:
        before = sim.now
        thread = await sim.start(Patient, Claim(amount=5))
        assert (await thread.result()).state == "refused"
        assert sim.now - before == timedelta(days=60)
    assert time.monotonic() - began < 5


async def test_a_thread_that_waits_for_a_signal_alone_says_so() -> None:
    class Waits(Machine[Claim, None], version=1):
        """Waits."""

        asked = State(initial=True)
        done = State(final=True)
        approve = asked.to(done).on_signal(Approval)

    async with simulated(Runtime(machines=[Waits])) as sim:
        thread = await sim.start(Waits, Claim(amount=5))
        with pytest.raises(NeverEnds, match=r"thread 'thread' does not end by itself: .*approve"):
            await thread.result()
        with pytest.raises(ValueError, match="time goes on"):
            await sim.advance(timedelta(seconds=-1))
        await thread.signal(Waits.approve, Approval(by="ada"), id="one")
        assert (await thread.result()).state == "done"


async def test_a_lost_reply_and_a_hang_are_settled_by_the_lookup(
    runtime: Runtime[Deps], deps: Deps, world: World
) -> None:
    for misfortune in (deps.bank.lose_reply, deps.bank.time_out):
        misfortune()
        async with simulated(runtime) as sim:
            thread = await sim.start(Patient, Claim(amount=5))
            await thread.signal(Patient.approve, Approval(by="ada"), id="one")
            assert (await thread.result()).state == "done"
    assert_arrivals(world, "bank", 2)


async def test_a_receiver_that_fails_is_tried_again(runtime: Runtime[Deps], deps: Deps) -> None:
    deps.bank.fail(times=2)
    deps.bank.answer_late(timedelta(seconds=3))
    async with simulated(runtime) as sim:
        before = sim.now
        thread = await sim.start(Patient, Claim(amount=5))
        await thread.signal(Patient.approve, Approval(by="ada"), id="one")
        assert (await thread.result()).state == "done"
        assert sim.now - before > timedelta(minutes=2)
        assert [step.attempts for step in await thread.history()][-1] == 3
    assert len(deps.bank.arrivals) == 1


# --- what is said


async def test_a_path_is_compared_with_events(runtime: Runtime[Deps]) -> None:
    async with simulated(runtime) as sim:
        thread = await sim.start(Patient, Claim(amount=5))
        await thread.signal(Patient.approve, Approval(by="ada"), id="one")
        await thread.result()
        await assert_path(thread, ["asked", ("approve", "charging"), ("charged", "done")])
        with pytest.raises(AssertionError) as raised:
            await assert_path(thread, ["asked", "reminded", ("agree", "charging"), ("charged", "done")])
    assert str(raised.value) == PATH


PATH = """\
thread 'thread' went another way (- wanted, + gone):
  asked
- reminded
- charging  by agree
+ charging  by approve
  done  by charged"""


async def test_arrivals_are_listed(world: World) -> None:
    await world.receiver("bank").send("key-1", 5)
    await world.receiver("bank").send("key-1", 5)
    with pytest.raises(AssertionError) as raised:
        assert_arrivals(world, "bank", 1)
    assert str(raised.value) == "2 arrivals at 'bank', not 1\n  key-1  (5,)\n  key-1  (5,)"
    with pytest.raises(AssertionError, match=r"0 arrivals at 'post', not 1 \(there were at: bank\)"):
        assert_arrivals(world, "post", 1)


async def test_a_receiver_that_honours_keys_answers_as_before(world: World) -> None:
    bank, post = world.receiver("bank", honours_keys=True), world.receiver("post")
    assert [await bank.send("a"), await bank.send("a"), await bank.send("b")] == [
        "bank-1",
        "bank-1",
        "bank-2",
    ]
    assert [await post.send("a"), await post.send("a")] == ["post-1", "post-2"]
    assert (await bank.find("a"), await bank.find("c")) == ("bank-1", None)
    with pytest.raises(ValueError, match="receiver 'bank' was made with honours_keys=True"):
        world.receiver("bank")


# --- the sweep's own arguments


async def test_a_sweep_goes_through_timers_and_retries(deps: Deps, world: World) -> None:
    deps.bank.fail()
    sweep = await crash_sweep(
        Patient, Claim(amount=5), deps=deps, signals=[(Patient.approve, Approval(by="ada"))]
    )
    assert sum("a failed attempt" in each for each in sweep.boundaries) == 2
    sweep.check()
    assert_arrivals(world, "bank", 1)
    sweep = await crash_sweep(Patient, Claim(amount=5), deps=deps)
    assert sweep.state == "refused"
    sweep.check()


async def test_a_sweep_takes_a_runtime_and_a_factory(runtime: Runtime[Deps], world: World) -> None:
    signals: Any = [(Patient.approve, Approval(by="ada"))]
    (await crash_sweep(Patient, Claim(amount=5), runtime=runtime, signals=signals)).check()
    made: list[Deps] = []

    def make() -> Deps:
        made.append(Deps(bank=world.receiver("bank")))
        return made[-1]

    sweep = await crash_sweep(Patient, Claim(amount=5), deps=make, signals=signals)
    assert len(made) == 2 + 2 * len(sweep.boundaries)
    with pytest.raises(ValueError, match=r"the runtime has no machine Patient: list it in machines="):
        await crash_sweep(Patient, Claim(amount=5), runtime=Runtime(machines=[]))


async def test_a_sweep_takes_a_sample_or_one(deps: Deps) -> None:
    options: Any = {"deps": deps, "signals": [(Patient.approve, Approval(by="ada"))]}
    sampled = await crash_sweep(Patient, Claim(amount=5), points=3, seed=4, **options)
    assert len(sampled.runs) == 3
    assert f"killed at 3 of {len(sampled.boundaries)} boundaries (seed 4)" in str(sampled)
    again = await crash_sweep(Patient, Claim(amount=5), points=3, seed=4, **options)
    assert [run.index for run in again.runs] == [run.index for run in sampled.runs]
    [one] = (await crash_sweep(Patient, Claim(amount=5), only=7, **options)).runs
    assert (one.index, one.boundary) == (7, sampled.boundaries[7])
    with pytest.raises(ValueError, match="only=99: the run has "):
        await crash_sweep(Patient, Claim(amount=5), only=99, **options)
    with pytest.raises(ValueError, match="may_differ: Patient's data has no field 'amuont'"):
        await crash_sweep(Patient, Claim(amount=5), may_differ=["amuont"], **options)


async def test_a_sweep_says_how_the_undisturbed_run_came_out(deps: Deps) -> None:
    class Broken(Machine[Claim, Deps], version=1):
        """Fails."""

        working = State(initial=True)
        done = State(final=True)
        worked = working.to(done)
        stop = working.to(done).on_signal(Approval)

        @working.handler
        async def work(self, data: Claim, step: Step[Deps]) -> Fire:
            raise RuntimeError("no such table")

    sweep = await crash_sweep(Broken, Claim(amount=5), deps=deps, signals=[(Broken.stop, Approval(by="ada"))])
    with pytest.raises(
        AssertionError, match=r"without a kill the thread is parked in working, not ended: .*table"
    ):
        sweep.check()
    with pytest.raises(AssertionError, match="signal `stop` was not sent: the thread never waited for it"):
        sweep.check(ends="parked")
    (await crash_sweep(Broken, Claim(amount=5), deps=deps)).check(ends="parked")


async def test_twenty_boundaries_take_well_under_two_seconds(deps: Deps) -> None:
    began = time.monotonic()
    sweep = await crash_sweep(
        Patient, Claim(amount=5), deps=deps, signals=[(Patient.approve, Approval(by="ada"))]
    )
    assert (time.monotonic() - began) / len(sweep.boundaries) < 0.1


async def test_a_signal_interrupts_where_it_may(deps: Deps, world: World) -> None:
    class Slow(Machine[Claim, Deps], version=1, calls=[charge]):
        """Works for a day, unless it is stopped."""

        working = State(initial=True, interruptible=True)
        charging = State()
        done = State(final=True)
        worked = working.to(done)
        stop = working.to(charging).on_signal(Approval)
        charged = charging.to(done)

        @working.handler
        async def work(self, data: Claim, step: Step[Deps]) -> Fire:
            await anyio.sleep(86_400)
            return self.worked()

        @charging.handler
        async def charge_it(self, data: Claim, step: Step[Deps]) -> Fire:
            return self.charged(receipt=await step.call(charge, data.amount))

    sweep = await crash_sweep(Slow, Claim(amount=5), deps=deps, signals=[(Slow.stop, Approval(by="ada"))])
    sweep.check()
    assert_arrivals(world, "bank", 1)


async def test_a_killed_process_cleans_nothing_up(deps: Deps, world: World) -> None:
    class Tidy(Machine[Claim, Deps], version=1, calls=[charge]):
        """Tells the bank when it leaves."""

        working = State(initial=True)
        done = State(final=True)
        worked = working.to(done)

        @working.handler
        async def work(self, data: Claim, step: Step[Deps]) -> Fire:
            try:
                return self.worked(receipt=await step.call(charge, data.amount))
            except BaseException:
                await deps.bank.send("left in disorder")
                raise

    sweep = await crash_sweep(Tidy, Claim(amount=5), deps=deps)
    sweep.check()
    assert [each.key for each in world.arrivals if each.key == "left in disorder"] == []


async def test_two_sweeps_side_by_side(deps: Deps) -> None:
    signals: Any = [(Patient.approve, Approval(by="ada"))]
    sweeps: list[Sweep] = []

    async def sweep() -> None:
        sweeps.append(await crash_sweep(Patient, Claim(amount=5), deps=deps, signals=signals))

    async with anyio.create_task_group() as group:
        group.start_soon(sweep)
        group.start_soon(sweep)
    assert sweeps[0] == sweeps[1]
    sweeps[0].check()


async def test_a_machine_that_never_ends_is_told_so(deps: Deps) -> None:
    class Endless(Machine[Claim, Deps], version=1):
        """Looks again each week."""

        looking = State(initial=True)
        resting = State()
        done = State(final=True)
        looked = looking.to(resting)
        again = resting.to(looking).after(timedelta(days=7))
        stop = resting.to(done).on_signal(Approval)

        @looking.handler
        async def look(self, data: Claim, step: Step[Deps]) -> Fire:
            return self.looked()

    sweep = await crash_sweep(Endless, Claim(amount=5), deps=deps)
    assert sweep.runs == ()
    with pytest.raises(AssertionError, match="without a kill the thread is stuck in resting, not ended"):
        sweep.check()
    async with simulated(Runtime(machines=[Endless], deps=deps)) as sim:
        thread = await sim.start(Endless, Claim(amount=5))
        with pytest.raises(NeverEnds):
            await thread.result()
