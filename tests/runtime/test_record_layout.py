"""What the journal's rows hold beside what is read back every day: the chain, versions, what is purged."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from harness.engine import CALLS, Note, Reply, Sim, World, for_ever, job, kept, looked, simulated
from harness.loop import EPOCH, SimLoop

from perdure.machines import Accept, Fire, Machine, State, Step, Unreadable
from perdure.runtime._journal import holds, seal
from perdure.stores import SCHEMA, Address, Keys, LogRow

THREAD = Address(workspace="w", thread_id="t")


def talker(version: int) -> Any:
    class Talker(Machine[Note, World], version=version, calls=CALLS):
        """Takes signals in, one transition each."""

        listening = State(initial=True)
        closed = State(final=True)
        say = listening.to(listening).on_signal(str)
        close = listening.to(closed).on_signal()

        @say.received
        def said(self, data: Note, text: str) -> Accept:
            return self.say(text=text)

    return Talker


async def said(sim: Sim, machine: Any, *texts: str) -> list[LogRow]:
    """The thread's rows after these signals."""
    thread = sim.thread(machine)
    for text in texts:
        seq = (await sim.row()).standing.seq
        await thread.signal(machine.say, text, id=text)
        await sim.until_row(lambda row, seq=seq: row.standing.seq > seq and row.owner is None)  # type: ignore[misc]
    return [row for row, _ in await sim.rows()]


def links(incarnation: bytes, rows: list[LogRow]) -> list[bool]:
    """Of each row, whether it follows the one before it."""
    heads = [incarnation, *(row.head for row in rows)]
    return [holds(head, row) for head, row in zip(heads, rows, strict=False)]


@simulated
async def test_the_chain_begins_with_the_thread_and_covers_each_row(loop: SimLoop) -> None:
    machine = talker(1)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine)
    rows = await said(sim, machine, "a", "b")
    incarnation = (await sim.row()).incarnation
    assert links(incarnation, rows) == [True, True, True]
    await engine.start(machine, thread_id="other")
    other = (await sim.row("other")).incarnation
    assert links(other, rows) == [False, True, True]  # no thread's journal passes for another's


CHANGES: dict[str, Callable[[LogRow], LogRow]] = {
    "seq": lambda row: evolve(row, seq=row.seq + 1),
    "n": lambda row: evolve(row, n=row.n + 1),
    "epoch": lambda row: evolve(row, epoch=row.epoch + 1),
    "kind": lambda row: evolve(row, kind="record"),
    "at": lambda row: evolve(row, at=row.at + 1),
    "schema": lambda row: evolve(row, schema=row.schema + 1),
    "salt": lambda row: evolve(row, salt=bytes(16)),
    "payload": lambda row: evolve(row, payload=row.payload + b" "),
    "purged, and something else put in its place": lambda row: evolve(row, salt=None, payload=bytes(32)),
}


@pytest.mark.parametrize("change", CHANGES)
@simulated
async def test_a_row_that_was_changed_does_not_hold(loop: SimLoop, change: str) -> None:
    machine = talker(1)
    sim = Sim(loop, machine)
    await (await sim.engine()).start(machine)
    rows = await said(sim, machine, "a", "b")
    rows[1] = CHANGES[change](rows[1])
    assert links((await sim.row()).incarnation, rows) == [True, False, True]


@simulated
async def test_the_chain_holds_over_what_is_purged_and_reading_says_what_is_gone(loop: SimLoop) -> None:
    machine = talker(1)
    sim = Sim(loop, machine)
    await (await sim.engine()).start(machine)
    rows = await said(sim, machine, "a", "b")
    log = sim.store._tables.log[THREAD]
    log[:] = [evolve(row, salt=None, payload=seal(row.salt or b"", row.payload)) for row in rows]
    row = await sim.row()
    assert links(row.incarnation, log) == [True, True, True]
    assert all(b"a" not in seen.payload for seen in log[1:2])
    steps = await sim.thread(machine).history()
    assert [(step.seq, step.event) for step in steps][1:] == [(1, None), (2, None)]
    with pytest.raises(Unreadable, match="was purged"):
        await sim.thread(machine).data()


@simulated
async def test_other_code_begins_with_a_snapshot_of_its_own(loop: SimLoop) -> None:
    """Deltas over data of another version could not be upcast: nobody would know which they are."""
    old, new = talker(1), talker(2)
    sim = Sim(loop, old)
    first = await sim.engine()
    await first.start(old)
    await said(sim, old, "a")
    await first.end()
    await sim.engine(new)
    await said(sim, new, "b", "c")
    bodies = [body for _, body in await sim.rows()]
    assert [(body.base is not None, body.version) for body in bodies] == [
        (True, 1),
        (False, None),
        (True, 2),
        (False, None),
    ]
    assert (await sim.thread(new).data()).text == "c"


async def waits(machine: Any, data: Note, step: Step[World]) -> Fire:
    await step.call(kept, "k")
    await for_ever()
    return machine.finished()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda row: evolve(row, schema=SCHEMA + 1), "written by a newer perdure"),
        (lambda row: evolve(row, payload=b'{"x":[{"k":"rescinded","id":0}]}'), "unknown kind 'rescinded'"),
    ],
    ids=["a newer row", "an unknown entry"],
)
@simulated
async def test_r10_a_row_of_newer_code_parks_and_is_left_as_it_is(
    loop: SimLoop, spoil: Callable[[LogRow], LogRow], says: str
) -> None:
    machine = job(waits)
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine)
    await sleep(1)
    first.kill()
    log = sim.store._tables.log[THREAD]
    log[1] = spoil(log[1])
    before = list(log)
    await sim.engine()
    parked = await sim.until("parked")
    assert parked.standing.reason == "unreadable"
    assert says in (parked.standing.note or "")
    assert log[:-1] == before
    assert says in await sim.thread(machine).why()


@simulated
async def test_an_explicit_key_is_kept_for_its_retention_once_it_has_an_outcome(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Fire:
        return machine.finished(text=await step.call(looked.keyed("k"), "a"))  # type: ignore[no-any-return]

    machine = job(body)
    sim = Sim(loop, machine)
    sim.world.reply("looked", Reply(takes=5))
    await (await sim.engine()).start(machine)
    await sleep(2)
    (row,) = await sim.store_rows(Keys(workspace="w", effect="looked"))
    assert (row.outcome, row.expires) == (None, None)  # nobody may forget what is in doubt
    await sim.until("ended")
    (row,) = await sim.store_rows(Keys(workspace="w", effect="looked"))
    assert row.outcome == b'"looked-1"'
    assert row.expires == EPOCH + 5_000_000 + 30 * 24 * 3600 * 1_000_000
