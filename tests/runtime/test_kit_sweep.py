"""The crash sweep finds what would be lost or done twice, and passes what would not."""

from __future__ import annotations

import pytest
from attrs import frozen

from perdure.machines import ABSENT, Absent, Call, Fire, Found, Machine, State, Step, effect, record
from perdure.runtime.testing import Receiver, World, assert_arrivals, crash_sweep

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
    approved_by: str | None = None


@effect
async def charge(call: Call[Deps], amount: int) -> str:
    return await call.deps.bank.send(call.key, amount)


@charge.lookup
async def find_charge(call: Call[Deps], amount: int) -> Found[str] | Absent:
    found = await call.deps.bank.find(call.key)
    return ABSENT if found is None else Found(found)


class Expense(Machine[Claim, Deps], version=1, calls=[charge]):
    """Charge what a person approved."""

    asked = State(initial=True)
    charging = State()
    done = State(final=True)

    approve = asked.to(charging).on_signal(Approval)
    charged = charging.to(done)

    @charging.handler
    async def charge_it(self, data: Claim, step: Step[Deps]) -> Fire:
        return self.charged(receipt=await step.call(charge, data.amount))


async def test_survives_every_crash(world: World) -> None:
    sweep = await crash_sweep(
        Expense,
        Claim(amount=50),
        deps=Deps(bank=world.receiver("bank")),
        signals=[(Expense.approve, Approval(by="ada"))],
    )
    sweep.check()
    assert_arrivals(world, "bank", 1)
