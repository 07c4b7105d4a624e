"""``examples/tour.py``: each way through it ends where it should, and books what it should."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from examples._agency import Agency
from examples.tour import Deps, Tour, Trip, Word, cities
from perdure import Budget, Runtime, present
from perdure.stores import Memory, MemoryStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Runtime[Deps]]:
    deps = Deps(agency=Agency(path=tmp_path / "agency.db"))
    async with Runtime(machines=[Tour], deps=deps, store=MemoryStore(), artifacts="memory:") as running:
        yield running


def orders(tmp_path: Path) -> list[tuple[str, str]]:
    if not (tmp_path / "agency.db").exists():
        return []
    with closing(sqlite3.connect(tmp_path / "agency.db")) as connection:
        return sorted(connection.execute("SELECT kind, what FROM orders").fetchall())


async def test_what_the_traveller_agrees_to_is_booked_and_remembered(
    desk: Runtime[Deps], tmp_path: Path
) -> None:
    thread = await desk.start(Tour, Trip(city="Ghent"), thread_id="t")
    assert (await thread.settled(), await thread.state()) == ("waiting", "planning.reviewing")
    await thread.signal(Tour.agree, Word(by="ada"), id="1")
    ended = await thread.result()
    data = ended.data
    assert (ended.state, data.agreed_by, data.transitions) == ("done", "ada", 6)
    assert orders(tmp_path) == [
        ("card", "Two slow days"),
        ("room", "2 nights by the canal"),
        ("train", "late train to Ghent"),
    ]
    assert sorted(data.numbers) == ["room", "train"]
    assert data.ideas == ("a boat", "waffles", "a tower")  # the newest three of four
    assert data.lowest == 24
    text = (await desk.artifacts.get(present(data.itinerary))).decode()
    assert text.splitlines()[0] == "Two slow days"
    assert text.splitlines()[4] == "late train to Ghent: 24"
    store = desk.store
    assert isinstance(store, MemoryStore)
    async with store:
        [row] = (await store.page(Memory(workspace="default"))).rows
    assert cities.codec.decode(row.value or b"", "memory").tours == 1


async def test_what_a_model_may_not_do_goes_back_to_it(desk: Runtime[Deps]) -> None:
    thread = await desk.start(Tour, Trip(city="Ghent"), thread_id="t")
    await thread.settled()
    said = (await thread.data()).talk
    assert [message.role for message in said] == ["user", "assistant", "tool", "assistant"]
    assert said[2].tool_failed
    assert "'book_everything' is not on offer in state 'planning.drafting'" in said[2].content


async def test_a_change_drafts_again_until_the_questions_are_used_up(desk: Runtime[Deps]) -> None:
    trip = Trip(city="Ghent", budget=Budget(questions=3))
    thread = await desk.start(Tour, trip, thread_id="t")
    for number in range(2):
        assert (await thread.settled(), await thread.state()) == ("waiting", "planning.reviewing")
        await thread.signal(Tour.change, Word(by="ada", wish="slower"), id=f"{number}")
    ended = await thread.result()
    assert (ended.state, ended.data.trouble) == ("failed", "questions: 3 of 3")


async def test_it_can_be_called_off(desk: Runtime[Deps], tmp_path: Path) -> None:
    thread = await desk.start(Tour, Trip(city="Ghent"), thread_id="t")
    await thread.settled()
    await thread.cancel(reason="the boat sank", by="ada")
    ended = await thread.result()
    assert (ended.state, ended.data.trouble) == ("called_off", "called off by ada: the boat sank")
    assert orders(tmp_path) == []
