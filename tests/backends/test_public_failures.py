"""Failures that people met with systems like this one, on the stores and backends that need a server: what is
right there is what is right on one file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import anyio
import pytest
from harness.blobs import (
    a_broken_put_leaves_nothing,
    crafted_names_are_labels,
    no_upload_is_lost_to_a_collection,
    sizes_are_stored_whole,
)
from harness.values import a_lone_surrogate_is_refused, values_survive
from harness.writers import processes_that_write_at_once_lose_nothing
from s3_tools import Outside, outside

from perdure import Accept, Append, Fire, Machine, Runtime, State, Step, record
from perdure.artifacts import MemoryArtifacts
from perdure.artifacts._s3_upload import PART
from perdure.runtime import Parked
from perdure.stores import MAX_ID, MemoryStore, Store, TooLarge, open_store
from perdure.stores._clock import system_clock

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["postgres_schema", "dynamodb_url"])
def url(request: pytest.FixtureRequest) -> str:
    """A store of the test's own."""
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def bucket(s3_endpoint: str) -> AsyncIterator[Outside]:
    async with outside(s3_endpoint) as bucket:
        yield bucket


# --- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("doubtful", [False, True])
async def test_values_survive_every_place_and_a_resume(url: str, doubtful: bool) -> None:
    await values_survive(lambda: open_store(url), doubtful)


async def test_a_lone_surrogate_is_refused(url: str) -> None:
    await a_lone_surrogate_is_refused(lambda: open_store(url))


@record
class Text:
    """A body, and what came in."""

    text: str = ""
    heard: Annotated[Sequence[str], Append()] = ()


@record
class Word:
    """What a signal says."""

    text: str


class Hears(Machine[Text], version=1):
    """Takes words in until the last one, and fails at one that says so."""

    hearing = State(initial=True)
    failing = State()
    done = State(final=True)
    heard = hearing.to(hearing).on_signal(Word)
    last = hearing.to(done).on_signal(Word)
    broke = hearing.to(failing).on_signal(Word)
    never = failing.to(done)

    @heard.received
    def add(self, data: Text, word: Word) -> Accept:
        return self.heard(heard=[word.text], text=word.text)

    @failing.handler
    async def fail(self, data: Text, step: Step) -> Fire:
        raise ValueError("a\x00b \u2028 \U0001f600 \ud800")


def runtime_of(store: str | Store) -> Runtime[None]:
    return Runtime(machines=[Hears], store=store, artifacts=MemoryArtifacts())


async def reason_of(store: str | Store) -> str:
    async with runtime_of(store) as runtime:
        thread = await runtime.start(Hears, Text(), thread_id="t")
        await thread.signal(Hears.broke, Word(text=""), id="1")
        with pytest.raises(Parked) as parked, anyio.fail_after(60):
            await thread.result()
        await thread.why()
        return str(parked.value)


async def test_an_error_that_no_text_column_holds_parks_its_thread_alike(url: str) -> None:
    """langgraph#1878, aegra#369: a NUL made the write fail, and a finished run an error."""
    reason = await reason_of(url)
    assert "ValueError: a\\x00b" in reason
    assert reason == await reason_of(MemoryStore())


@pytest.mark.parametrize("size", [399 << 10, 401 << 10, 3 << 19])
@pytest.mark.parametrize("character", ["x", "\u00e9"])
async def test_large_data_goes_through_whole(url: str, size: int, character: str) -> None:
    """langgraph-checkpoint-dynamodb#3: a raw error of the service over 400 KB, and half a batch written."""
    text = character * (size // len(character.encode()))
    async with runtime_of(url) as runtime:
        thread = await runtime.start(Hears, Text(text=text), thread_id="t")
        await thread.signal(Hears.heard, Word(text=text), id="1")
        await thread.signal(Hears.last, Word(text=""), id="2")
        with anyio.fail_after(60):
            ended = await thread.result()
    assert ended.data == Text(text=text, heard=(text,))


async def test_a_long_inbox_is_taken_in_whole_and_in_order(url: str, full_sweep: bool) -> None:
    """langgraph-checkpoint-dynamodb#8."""
    count = 2000 if full_sweep else 200
    words = [str(n) for n in range(count)]
    async with runtime_of(url) as runtime:
        client = runtime.thread(Hears, thread_id="t")
        for word in words:
            await client.signal(Hears.heard, Word(text=word), id=word)
        thread = await runtime.start(Hears, Text(), thread_id="t")
        await thread.signal(Hears.last, Word(text=""), id="last")
        with anyio.fail_after(120):
            ended = await thread.result()
    assert list(ended.data.heard) == words


# --- several processes, and their connections ------------------------------------------------------


async def test_processes_that_write_at_once_lose_nothing(url: str, full_sweep: bool) -> None:
    few = 200 if full_sweep else 50
    await processes_that_write_at_once_lose_nothing(url, commits=few if url.startswith("dynamodb:") else 500)


# --- ids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread_id", ["i" * MAX_ID, "\U0001f989" * (MAX_ID // 4)])
async def test_an_id_at_the_limit_goes_through_every_part(url: str, thread_id: str) -> None:
    """temporal#7506, langgraph#7366: an id that one store's column could not hold."""
    async with runtime_of(url) as runtime:
        thread = await runtime.start(
            Hears, Text(), thread_id=thread_id, session=thread_id, workspace="w" * 128
        )
        await thread.signal(Hears.last, Word(text=""), id="s" * 255)
        with anyio.fail_after(60):
            await thread.result()
        for longer in (thread_id + "i", "i" * 1000, "i" * 3000, "\U0001f989" * 300):
            with pytest.raises(TooLarge, match=r"thread_id .* bytes in UTF-8: at most 512"):
                await runtime.start(Hears, Text(), thread_id=longer)
        with pytest.raises(ValueError, match="control character"):
            await runtime.start(Hears, Text(), thread_id="a\x00b")


# --- artifacts -------------------------------------------------------------------------------------


async def test_an_empty_blob_and_sizes_around_a_part_are_stored_whole(bucket: Outside) -> None:
    async with bucket.artifacts() as backend:
        await sizes_are_stored_whole(backend, (0, 1, PART - 1, PART, PART + 1))


@pytest.mark.parametrize("how", ["raises", "is cancelled"])
async def test_a_put_that_breaks_half_way_leaves_nothing(bucket: Outside, how: str) -> None:
    async with bucket.artifacts() as backend:
        await a_broken_put_leaves_nothing(backend, how, 3 * PART)
    assert await bucket.leftovers() == []
    assert await bucket.keys() == []


async def test_no_upload_is_lost_to_a_collection_beside_it(bucket: Outside) -> None:
    async with MemoryStore() as store, bucket.artifacts(clock=system_clock) as backend:
        await no_upload_is_lost_to_a_collection(store, backend, 50)


async def test_crafted_names_are_labels_or_refused(bucket: Outside) -> None:
    async with bucket.artifacts() as backend:
        await crafted_names_are_labels(backend)
    assert all(key.startswith("deep/er/") for key in await bucket.keys())
