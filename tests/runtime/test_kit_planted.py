"""Each way to write a machine that does not survive its crashes is found by the sweep, and told as it is."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import frozen

from perdure.machines import (
    ABSENT,
    Absent,
    Call,
    Fire,
    Found,
    Machine,
    Namespace,
    State,
    Step,
    effect,
    record,
)
from perdure.runtime.testing import Receiver, Sweep, World, crash_sweep

pytestmark = pytest.mark.anyio


@frozen(kw_only=True)
class Deps:
    bank: Receiver
    post: Receiver


@record
class Claim:
    amount: int
    receipts: Sequence[str] = ()
    turns: int = 0


@effect
async def charge(call: Call[Deps], amount: int) -> str:
    return await call.deps.bank.send(call.key, amount)


@charge.lookup
async def find_charge(call: Call[Deps], amount: int) -> Found[str] | Absent:
    found = await call.deps.bank.find(call.key)
    return ABSENT if found is None else Found(found)


@effect
async def mail(call: Call[Deps], amount: int) -> str:
    return await call.deps.post.send(call.key, amount)


@mail.lookup
async def find_mail(call: Call[Deps], amount: int) -> Found[str] | Absent:
    found = await call.deps.post.find(call.key)
    return ABSENT if found is None else Found(found)


def machine(body: Any, *calls: Any) -> Any:
    class Expense(Machine[Claim, Deps], version=1, calls=[charge, mail, *calls]):
        """Charge it."""

        charging = State(initial=True)
        done = State(final=True)
        charged = charging.to(done)

        @charging.handler
        async def charge_it(self, data: Claim, step: Step[Deps]) -> Fire:
            receipts, turns = await body(data, step)
            return self.charged(receipts=receipts, turns=turns)

    return Expense


async def swept(world: World, body: Any, *calls: Any, **options: Any) -> Sweep:
    deps = Deps(bank=world.receiver("bank"), post=world.receiver("post"))
    return await crash_sweep(machine(body, *calls), Claim(amount=50), deps=deps, **options)


def report(sweep: Sweep) -> str:
    with pytest.raises(AssertionError) as raised:
        sweep.check()
    return str(raised.value)


async def test_a_right_machine_passes(world: World) -> None:
    async def body(data: Claim, step: Step[Deps]) -> Any:
        return [await step.call(charge, data.amount), await step.call(mail, data.amount)], 1

    sweep = await swept(world, body)
    sweep.check()
    assert len(sweep.runs) == len(sweep.boundaries) >= 11
    assert sweep.runs[0].boundary == "after the worker claimed the thread"


async def test_a_key_drawn_in_the_effect(world: World) -> None:
    @effect(idempotent=True)
    async def careless(call: Call[Deps], amount: int) -> str:
        return await call.deps.bank.send(uuid.uuid4().hex, amount)

    async def body(data: Claim, step: Step[Deps]) -> Any:
        await step.call(careless, data.amount)
        return [], 1

    assert "bank: requests with 2 keys arrived, and with 1 key without a kill" in report(
        await swept(world, body, careless)
    )


async def test_an_idempotent_effect_whose_receiver_forgets_keys(world: World) -> None:
    @effect(idempotent=True)
    async def hopeful(call: Call[Deps], amount: int) -> str:
        return await call.deps.bank.send(call.key, amount)

    async def body(data: Claim, step: Step[Deps]) -> Any:
        await step.call(hopeful, data.amount)
        return [], 1

    sweep = await swept(world, body, hopeful, only=4)
    assert report(sweep) == FORGETFUL.replace("KEY", world.keys[0])


FORGETFUL = """\
crash sweep of Expense: killed at 1 of 7 boundaries (seed 0), 1 with faults, 0 left in doubt

   4: killed after `hopeful` was done by bank, before it answered
      bank: 2 arrivals of `hopeful` with key KEY
      alone: crash_sweep(Expense, ..., seed=0, only=4)"""


async def test_an_idempotent_effect_whose_receiver_honours_keys(world: World) -> None:
    @effect(idempotent=True)
    async def sound(call: Call[Deps], amount: int) -> str:
        return await call.deps.bank.send(call.key, amount)

    async def body(data: Claim, step: Step[Deps]) -> Any:
        return [await step.call(sound, data.amount)], 1

    world.remembers = True
    (await swept(world, body, sound)).check()
    assert world.keys == [world.arrivals[0].key]


async def test_an_effect_outside_of_a_call(world: World) -> None:
    async def body(data: Claim, step: Step[Deps]) -> Any:
        await world.receiver("bank").send("order-1", data.amount)
        return [await step.call(mail, data.amount)], 1

    sweep = await swept(world, body)
    assert [run.index for run in sweep.faults] == [2, 3, 4, 5, 6, 7]
    assert report(sweep).startswith(OUTSIDE)


OUTSIDE = """\
crash sweep of Expense: killed at 9 boundaries (seed 0), 6 with faults, 0 left in doubt

   2: killed after a request with key order-1 was done by bank, before it answered
      bank: 2 arrivals of a request with key order-1
      alone: crash_sweep(Expense, ..., seed=0, only=2)

   3: killed before the intent of `mail` was recorded"""


async def test_a_lookup_that_lies(world: World) -> None:
    @effect
    async def claimed(call: Call[Deps], amount: int) -> str:
        return await call.deps.bank.send(call.key, amount)

    @claimed.lookup
    async def find(call: Call[Deps], amount: int) -> Found[str] | Absent:
        return ABSENT

    async def body(data: Claim, step: Step[Deps]) -> Any:
        await step.call(claimed, data.amount)
        return [], 1

    sweep = await swept(world, body, claimed)
    assert [run.index for run in sweep.faults] == [4, 5]
    assert f"bank: 2 arrivals of `claimed` with key {world.keys[0]}" in report(sweep)


async def test_effects_in_an_order_of_chance(world: World) -> None:
    chance = random.Random(3)

    async def body(data: Claim, step: Step[Deps]) -> Any:
        calls: list[Any] = [charge, mail]
        chance.shuffle(calls)
        for call in calls:
            await step.call(call, data.amount)
        return [], 1

    said = report(await swept(world, body))
    assert "the thread is parked in charging (diverged: " in said
    assert "), and was ended in done" in said


async def test_data_from_a_global(world: World) -> None:
    turns: list[int] = []

    async def body(data: Claim, step: Step[Deps]) -> Any:
        turns.append(1)
        return [await step.call(charge, data.amount)], len(turns)

    sweep = await swept(world, body)
    assert report(sweep) == GLOBAL
    sweep = await swept(world, body, may_differ=["turns"])
    sweep.check()


GLOBAL = """\
crash sweep of Expense: killed at 0 of 7 boundaries (seed 0), 0 with faults, 0 left in doubt
  two runs without a kill differ: field `turns` is 2, and was 1
  take such a value from a read or from the step, or name it in may_differ="""


async def test_an_effect_that_nothing_can_be_asked_about(world: World) -> None:
    @effect
    async def bare(call: Call[Deps], amount: int) -> str:
        return await call.deps.bank.send(call.key, amount)

    async def body(data: Claim, step: Step[Deps]) -> Any:
        await step.call(bare, data.amount)
        return [], 1

    sweep = await swept(world, body, bare)
    said = report(sweep)
    assert said.startswith(IN_DOUBT)
    assert said.count("is in doubt: its receiver knows neither keys nor a lookup") == 1
    assert said.endswith("check(parks_in_doubt=True)")
    sweep.check(parks_in_doubt=True)


IN_DOUBT = """\
crash sweep of Expense: killed at 7 boundaries (seed 0), 0 with faults, 4 left in doubt

  4 need an operator (`perdure resolve`) after the kill:
   2: killed after the intent of `bare` was recorded
   3: killed before bank was sent `bare`
   4: killed after `bare` was done by bank, before it answered
   5: killed before the transition `charged` (charging -> done) was committed
      effect bare with key pd_"""


LAST = Namespace("last", int)


async def test_memory_from_what_a_process_remembers(world: World) -> None:
    running: list[int] = []  # of this process; it is empty in the next

    class Deposit(Machine[Claim, Deps], version=1):
        """Writes in its second state what its first left in the process."""

        first = State(initial=True)
        second = State()
        done = State(final=True)
        on = first.to(second)
        out = second.to(done)

        @first.handler
        async def note(self, data: Claim, step: Step[Deps]) -> Fire:
            running.append(data.amount)
            return self.on()

        @second.handler
        async def put(self, data: Claim, step: Step[Deps]) -> Fire:
            await step.memory.put(LAST, "amount", running[-1] if running else 0)
            return self.out()

    def process() -> Deps:
        running.clear()
        return Deps(bank=world.receiver("bank"), post=world.receiver("post"))

    sweep = await crash_sweep(Deposit, Claim(amount=50), deps=process)
    assert {fault for run in sweep.faults for fault in run.faults} == {
        "memory `last/amount` is b'0', and was b'50'"
    }
    sweep = await crash_sweep(Deposit, Claim(amount=50), deps=process, may_differ=["last/amount"])
    sweep.check()


async def test_a_request_for_something_else(world: World) -> None:
    tries: list[int] = []

    @effect(idempotent=True)
    async def pay(call: Call[Deps]) -> str:
        tries.append(1)
        return await call.deps.bank.send(call.key, len(tries))

    async def body(data: Claim, step: Step[Deps]) -> Any:
        await step.call(pay)
        return (), 0

    def first_try_again() -> Deps:
        """Two undisturbed runs, each as in a process of its own; the third counts on."""
        if len(runs) < 2:
            tries.clear()
        runs.append(1)
        return Deps(bank=world.receiver("bank", honours_keys=True), post=world.receiver("post"))

    runs: list[int] = []
    sweep = await crash_sweep(machine(body, pay), Claim(amount=50), deps=first_try_again, only=0)
    assert [run.faults for run in sweep.runs] == [("bank: asked with (2,), and with (1,) without a kill",)]
    sweep = await crash_sweep(machine(body, pay), Claim(amount=50), deps=first_try_again, may_differ=["bank"])
    sweep.check()


async def test_a_handler_that_polls_without_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime._testing_loop.BUSY", 5_000)

    async def body(data: Claim, step: Step[Deps]) -> Any:
        while True:  # noqa: ASYNC110 - that is what is planted
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="5,000 turns of the loop, and no time has passed"):
        await swept(world, body)
