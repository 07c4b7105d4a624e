"""The approval desk: reminded, expired, and served and told by processes of their own."""

from datetime import timedelta

import attrs
import pytest

from examples._customers import load_customers
from examples.approval_desk import Approval, ApprovalDesk, Brief, Deps, Rejection, runtime
from perdure import Runtime
from perdure.runtime.testing import Receiver, World, assert_arrivals, crash_sweep, simulated

pytestmark = pytest.mark.anyio

BRIEF = Brief(customer_id="cust_01")
HOUR = timedelta(hours=1)


@attrs.frozen
class Board:
    """The world's receiver as the desk sees it; it remembers keys."""

    receiver: Receiver

    async def put_up(self, key: str, about: str, text: str) -> int:
        return int((await self.receiver.send(key, about, text)).rpartition("-")[2])

    async def find(self, key: str) -> int | None:
        found = await self.receiver.find(key)
        return None if found is None else int(found.rpartition("-")[2])


def deps(world: World) -> Deps:
    return Deps(customers=load_customers(), board=Board(world.receiver("board", honours_keys=True)))


def desk(world: World) -> Runtime[Deps]:
    return Runtime(machines=[ApprovalDesk], deps=deps(world), store="memory://", artifacts="memory:")


async def test_it_survives_every_crash(world: World) -> None:
    signals = [(ApprovalDesk.approve, Approval(by="ada"))]
    sweep = await crash_sweep(ApprovalDesk, BRIEF, deps=deps(world), signals=signals)
    sweep.check()
    assert_arrivals(world, "board", 1)


async def test_a_person_is_reminded_once_and_the_day_goes_on(world: World) -> None:
    async with simulated(desk(world)) as sim:
        thread = await sim.start(ApprovalDesk, BRIEF, thread_id="t")
        await sim.advance(7 * HOUR)
        assert (await thread.state(), len(world.arrivals)) == ("review.fresh", 0)
        await sim.advance(2 * HOUR)
        assert (await thread.state(), len(world.arrivals)) == ("review.reminded", 1)
        await sim.advance(14 * HOUR)
        assert await thread.state() == "review.reminded"
        await sim.advance(2 * HOUR)
        ended = await thread.result()
    assert (ended.state, ended.data.notice, len(world.arrivals)) == ("expired", None, 1)


@pytest.mark.parametrize("reminded", [False, True])
async def test_an_approval_is_taken_before_and_after_the_reminder(world: World, reminded: bool) -> None:
    async with simulated(desk(world)) as sim:
        thread = await sim.start(ApprovalDesk, BRIEF, thread_id="t")
        await sim.advance(9 * HOUR if reminded else HOUR)
        await thread.signal(ApprovalDesk.approve, Approval(by="ada"), id="a1")
        ended = await thread.result()
    assert (ended.state, ended.data.approved_by) == ("done", "ada")
    assert_arrivals(world, "board", 2 if reminded else 1)


async def test_a_rejection_says_why(world: World) -> None:
    async with simulated(desk(world)) as sim:
        thread = await sim.start(ApprovalDesk, BRIEF, thread_id="t")
        await thread.signal(ApprovalDesk.reject, Rejection(by="ben", why="too long"), id="r1")
        ended = await thread.result()
    assert (ended.state, ended.data.rejected, world.arrivals) == ("rejected", "ben: too long", [])


def test_the_runtime_is_there_for_the_command_line() -> None:
    assert isinstance(runtime, Runtime)
    assert list(runtime.definitions) == ["ApprovalDesk"]
