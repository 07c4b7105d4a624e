"""Signals that come with a start, and signals checked against what a thread's own version accepts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness.engine import Reply, Sim, World, simulated
from harness.loop import SimLoop
from harness.world import looked

from perdure.machines import Accept, Fire, Machine, State, Step, record
from perdure.runtime import SignalRefused
from perdure.stores import (
    Address,
    Inbox,
    SignalConflict,
    Threads,
)

ADDRESS = Address(workspace="w", thread_id="t")
PLACE: dict[str, Any] = {"thread_id": "t", "workspace": "w"}


@record
class Brief:
    by: tuple[str, ...] = ()


@record
class Approval:
    by: str


class Desk(Machine[Brief, World], version=1):
    review = State(initial=True)
    done = State(final=True)
    accept = review.to(review).on_signal(Approval)
    close = review.to(done).on_signal()

    @accept.received
    def take(self, data: Brief, approval: Approval) -> Accept:
        return self.accept(by=(*data.by, approval.by))


@record
class Approvals:
    people: tuple[str, ...]


class Desk2(Machine[Brief, World], name="Desk", version=2):
    review = State(initial=True)
    done = State(final=True)
    approve = review.to(review).on_signal(Approvals).renamed("accept")
    close = review.to(done).on_signal()

    @approve.received
    def take(self, data: Brief, approval: Approvals) -> Accept:
        return self.approve(by=(*data.by, *approval.people))


async def entries(sim: Sim) -> list[tuple[str, str, int]]:
    return [(row.event, row.id, row.version) for row in (await sim.store.page(Inbox(address=ADDRESS))).rows]


# --- with a start ---------------------------------------------------------------------------------


@simulated
async def test_two_callers_who_start_with_a_signal_make_one_thread_with_both(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)

    async def call(name: str) -> None:
        message = Desk.accept.message(Approval(by=name), id=f"of {name}")
        await sim.client().start(Desk, Brief(), **PLACE, signals=[message])

    await asyncio.gather(call("ada"), call("bob"), call("ada"))
    engine = await sim.engine()
    thread = engine.runtime.thread(Desk, **PLACE)
    await thread.settled()
    assert sorted((await thread.data()).by) == ["ada", "bob"]


@simulated
async def test_a_start_whose_signal_conflicts_writes_nothing(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    client = sim.client()
    await client.thread(Desk, **PLACE).signal(Desk.accept, Approval(by="ada"), id="s1")
    message = Desk.accept.message(Approval(by="eve"), id="s1")
    with pytest.raises(SignalConflict):
        await client.start(Desk, Brief(), **PLACE, signals=[message])
    assert (await sim.store.page(Threads())).rows == ()
    assert len(await entries(sim)) == 1


@simulated
async def test_a_start_with_a_signal_of_another_type_is_refused_before_it(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    wrong: Any = Approvals(people=("ada",))
    with pytest.raises(SignalRefused, match="s1"):
        await sim.client().start(Desk, Brief(), **PLACE, signals=[Desk.accept.message(wrong, id="s1")])
    assert (await sim.store.page(Threads())).rows == ()


@simulated
async def test_a_thread_that_has_ended_refuses_a_signal_that_comes_with_its_start(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    engine = await sim.engine()
    thread = await engine.runtime.start(Desk, Brief(), **PLACE, signals=[Desk.close.message(id="c")])
    await thread.result()
    await engine.runtime.start(Desk, Brief(), **PLACE, signals=[Desk.close.message(id="c")])  # as before
    with pytest.raises(SignalRefused, match="has ended"):
        await engine.runtime.start(Desk, Brief(), **PLACE, signals=[Desk.close.message(id="d")])


# --- between versions -----------------------------------------------------------------------------


@simulated
async def test_what_only_newer_code_can_read_is_left_to_it_and_the_rest_to_either(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    old = await sim.engine()
    thread = await old.runtime.start(Desk, Brief(), **PLACE)
    await thread.settled()
    new = await sim.engine(Desk2)
    await new.runtime.__aexit__(None, None, None)  # its definition is known, and nobody of version 2 is here
    client = sim.client(Desk2)
    ahead = client.thread(Desk2, **PLACE)
    await ahead.signal(Desk2.approve, Approvals(people=("ada", "bob")), id="s1")
    await asyncio.sleep(5)  # simulated: as many polls as there may be
    row = await thread.row()
    assert (row.standing.status, row.standing.version, row.standing.seq) == ("waiting", 2, 0)
    assert await entries(sim) == [("approve", "s1", 2)]
    newer = await sim.engine(Desk2)
    await newer.runtime.thread(Desk2, **PLACE).settled()
    assert (await ahead.data()).by == ("ada", "bob")


@simulated
async def test_older_code_that_runs_the_thread_leaves_the_signal_and_the_thread_due(loop: SimLoop) -> None:
    class Writing(Machine[Brief, World], name="Desk", version=1, calls=[looked]):
        writing = State(initial=True)
        review = State()
        written = writing.to(review)
        accept = review.to(review).on_signal(Approval)

        @writing.handler
        async def write(self, data: Brief, step: Step[World]) -> Fire:
            await step.call(looked, "a")
            return self.written()

        @accept.received
        def take(self, data: Brief, approval: Approval) -> Accept:
            return self.accept(by=(*data.by, approval.by))

    class Accepting(Machine[Brief, World], name="Desk", version=2):
        writing = State(initial=True)
        review = State()
        done = State(final=True)
        written = writing.to(review)
        accept = review.to(done).on_signal(Approvals)

        @writing.handler
        async def write(self, data: Brief, step: Step[World]) -> Fire:
            return self.written()

        @accept.received
        def take(self, data: Brief, approval: Approvals) -> Accept:
            return self.accept(by=approval.people)

    sim = Sim(loop, Writing)
    sim.world.reply("looked", Reply(takes=5))
    old = await sim.engine()
    thread = await old.runtime.start(Writing, Brief(), **PLACE)
    await (await sim.engine(Accepting)).runtime.__aexit__(None, None, None)  # its definition is known
    ahead = sim.client(Accepting).thread(Accepting, **PLACE)
    await asyncio.sleep(1)
    await ahead.signal(Accepting.accept, Approvals(people=("ada", "bob")), id="s1")
    await asyncio.sleep(10)
    row = await thread.row()
    assert (row.standing.status, row.standing.state, row.owner) == ("waiting", "review", None)
    newer = await sim.engine(Accepting)
    async with asyncio.timeout(60):
        ended = await newer.runtime.thread(Accepting, **PLACE).result()
    assert (ended.state, ended.data.by) == ("done", ("ada", "bob"))


@simulated
async def test_what_both_versions_take_alike_binds_a_thread_to_neither(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    old = await sim.engine()
    thread = await old.runtime.start(Desk, Brief(), **PLACE)
    await thread.settled()
    new = await sim.engine(Desk2)
    await new.runtime.__aexit__(None, None, None)
    await sim.client(Desk2).thread(Desk2, **PLACE).signal(Desk2.close, id="s1")
    await thread.result()
    assert await entries(sim) == [("close", "s1", 1)]
