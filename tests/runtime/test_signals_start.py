"""Signals that come with a start, or before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness.engine import CALLS, Note, Sim, World, simulated
from harness.loop import SimLoop

from perdure.machines import Accept, Machine, State, record
from perdure.runtime import SignalRefused, StartConflict
from perdure.stores import Address, Inbox, SignalConflict, Threads


@record
class Word:
    text: str


class Desk(Machine[Note, World], version=1, calls=CALLS):
    """Waits for words."""

    waits = State(initial=True)
    done = State(final=True)
    say = waits.to(waits).on_signal(Word)
    close = waits.to(done).on_signal()

    @say.received
    def said(self, data: Note, word: Word) -> Accept:
        return self.say(lines=[word.text])


class Other(Machine[Note, World], version=1, calls=CALLS):
    """Another machine, with a signal of the same name."""

    waits = State(initial=True)
    done = State(final=True)
    close = waits.to(done).on_signal()


ADDRESS = Address(workspace="w", thread_id="t")
PLACE: dict[str, Any] = {"thread_id": "t", "workspace": "w"}


async def inbox(sim: Sim) -> list[tuple[str, int]]:
    return [(row.id, row.version) for row in (await sim.store.page(Inbox(address=ADDRESS))).rows]


@simulated
async def test_a_signal_sent_before_the_start_is_kept_and_goes_before_the_starts_own(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    client = sim.client()
    thread = client.thread(Desk, **PLACE)
    await thread.signal(Desk.say, Word(text="early"), id="1")
    assert [row.id for row in await thread.pending()] == ["1"]
    own = [Desk.say.message(Word(text="own"), id="2"), Desk.close.message(id="3")]
    await client.start(Desk, Note(), **PLACE, signals=own)
    assert await inbox(sim) == [("1", 1), ("2", 1), ("3", 1)]
    await sim.engine()
    ended = await thread.result()
    assert (ended.state, ended.data.lines) == ("done", ("early", "own"))


@pytest.mark.parametrize("workers", [0, 1, 2])
@simulated
async def test_two_callers_start_one_thread_and_both_signals_count(loop: SimLoop, workers: int) -> None:
    sim = Sim(loop, Desk)
    clients = [(await sim.engine()).runtime._running for _ in range(workers)]
    clients += [sim.client() for _ in range(2 - workers)]
    starts = [
        client.start(Desk, Note(), **PLACE, signals=[Desk.say.message(Word(text=name), id=name)])
        for client, name in zip(clients, "ab", strict=True)
    ]
    one, other = await asyncio.gather(*starts)
    if not workers:
        await sim.engine()
    await other.signal(Desk.close, id="c")
    assert sorted((await one.result()).data.lines) == ["a", "b"]
    assert len((await sim.store.page(Threads())).rows) == 1


@simulated
async def test_a_start_that_is_sent_again_delivers_nothing_twice(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    engine = await sim.engine()
    client = engine.runtime._running
    for text in ("a", "a"):
        thread = await client.start(
            Desk, Note(), **PLACE, signals=[Desk.say.message(Word(text=text), id="1")]
        )
    await thread.signal(Desk.close, id="c")
    assert (await thread.result()).data.lines == ("a",)
    again = await client.start(Desk, Note(), **PLACE, signals=[Desk.say.message(Word(text="a"), id="1")])
    assert (await again.result()).data.lines == ("a",)
    with pytest.raises(
        SignalRefused, match="its signals were not delivered: the thread has ended: in state 'done'"
    ):
        await client.start(Desk, Note(), **PLACE, signals=[Desk.say.message(Word(text="b"), id="2")])


@simulated
async def test_a_conflict_of_one_signal_lands_neither_start_nor_signals(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    client = sim.client()
    await client.thread(Desk, **PLACE).signal(Desk.say, Word(text="a"), id="2")
    own = [Desk.close.message(id="1"), Desk.say.message(Word(text="b"), id="2")]
    with pytest.raises(SignalConflict):
        await client.start(Desk, Note(), **PLACE, signals=own)
    assert await inbox(sim) == [("2", 1)]
    assert (await sim.store.page(Threads())).rows == ()


@simulated
async def test_signals_reach_no_thread_that_was_started_with_other_data(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    client = sim.client()
    await client.start(Desk, Note(text="one"), **PLACE)
    with pytest.raises(StartConflict, match="other data"):
        await client.start(Desk, Note(text="two"), **PLACE, signals=[Desk.close.message(id="1")])
    assert await inbox(sim) == []


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Other.close.message(id="1"), "is one of Other"),
        (Desk.close, "Desk.approve.message(...)"),
        (Desk.say.message(7, id="1"), "thread 't': signal '1'"),  # type: ignore[arg-type] # pyright: ignore
        (Desk.close.message(id=":cancel"), "the runtime's own"),
    ],
)
@simulated
async def test_what_is_no_signal_of_the_machine_is_refused_and_nothing_starts(
    loop: SimLoop, message: Any, said: str
) -> None:
    sim = Sim(loop, Desk, Other)
    with pytest.raises(SignalRefused, match=said.replace("(", r"\(").replace(")", r"\)")):
        await sim.client().start(Desk, Note(), **PLACE, signals=[message])
    assert sim.store._tables.threads == {}


@pytest.mark.parametrize("priority", [11, -11, True, 1.0])
@simulated
async def test_a_priority_that_is_none_is_refused(loop: SimLoop, priority: Any) -> None:
    sim = Sim(loop, Desk)
    with pytest.raises(ValueError, match="it is a whole number from -10 to 10"):
        await sim.client().start(Desk, Note(), **PLACE, priority=priority)
    thread = await sim.client().start(Desk, Note(), **PLACE, priority=-10)
    assert (await thread.row()).priority == -10
