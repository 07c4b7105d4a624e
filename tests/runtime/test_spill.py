"""Large bodies of the record lie in the artifacts: every kind, through kills, gone, damaged and collected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import pytest
from harness.engine import CALLS, Engine, Reply, Sim, World, kept, remembered, simulated
from harness.loop import SimLoop

from perdure.machines import (
    Accept,
    Append,
    ArtifactRef,
    Conversation,
    Fire,
    Machine,
    Message,
    Namespace,
    State,
    Step,
    record,
)
from perdure.runtime._check_store import check_store
from perdure.runtime._client_memory import ClientMemory
from perdure.runtime._collect import collect
from perdure.runtime._look import history
from perdure.runtime._spill import SpillingStore, opened
from perdure.runtime._spilled import body_of, is_spilled, spilled_in
from perdure.runtime._verify import verify
from perdure.stores import (
    MAX_BODY,
    Address,
    Artifacts,
    Inbox,
    Items,
    Log,
    Memory,
    MemoryRow,
    Messages,
    Query,
    Remember,
)

LARGE = "é" * MAX_BODY
"""More than a row holds, in UTF-8."""
T = Address(workspace="w", thread_id="t")


@record
class Fact:
    text: str
    ref: ArtifactRef | None = None


@record
class Told:
    text: str


@record
class Everything:
    """Data whose every part is large."""

    text: str = ""
    lines: Annotated[Sequence[str], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()


facts = Namespace("fact", Fact)


class Heavy(Machine[Everything, World], version=1, calls=CALLS):
    """Is told something large, and makes everything of it that a step can write."""

    waiting = State(initial=True)
    working = State()
    done = State(final=True)
    tell = waiting.to(working).on_signal(Told)
    worked = working.to(done)

    @tell.received
    def told(self, data: Everything, told: Told) -> Accept:
        return self.tell(text=told.text, talk=[Message(role="user", content=told.text + "?")])

    @working.handler
    async def work(self, data: Everything, step: Step[World]) -> Fire:
        answer = await step.call(kept, data.text + "r")
        await step.call(remembered, data.text + "s")
        fact = await step.memory.get(facts, "k")
        await step.memory.put(facts, "k", Fact(text=(fact.text if fact else "") + data.text + "m"))
        talk = [Message(role="assistant", content=data.text + "!")]
        return self.worked(text=answer, lines=[data.text + "1", data.text + "2"], talk=talk)


@record
class Gathered:
    text: str
    lines: Annotated[Sequence[str], Append()] = ()


class Gathering(Machine[Gathered, World], version=1):
    """Keeps what it is told."""

    waiting = State(initial=True)
    done = State(final=True)
    tell = waiting.to(waiting).on_signal(Told)
    close = waiting.to(done).on_signal()

    @tell.received
    def told(self, data: Gathered, told: Told) -> Accept:
        return self.tell(lines=[told.text])


class Talking(Machine[Everything, World], version=1):
    """Starts with everything."""

    waiting = State(initial=True)
    done = State(final=True)
    tell = waiting.to(done).on_signal(Told)


def said(content: str) -> Message:
    return Message(role="user", content=content)


class Collecting:
    """A store that is collected right before a fact is written."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sim.store, name)

    async def remember(self, write: Remember) -> MemoryRow:
        await asyncio.sleep(1)
        assert await gc(self._sim) == 0
        return await self._sim.store.remember(write)


async def begin(sim: Sim, text: str = LARGE) -> Engine:
    """A process with a thread that was told something."""
    sim.world.next_reads("kept", Reply(takes=1.0, value=text + "a"))
    engine = await sim.engine()
    thread = await engine.start(Heavy, Everything(), session="s")
    await thread.signal(Heavy.tell, Told(text=text), id="1")
    return engine


async def check_whole(sim: Sim, text: str = LARGE) -> None:
    """The thread has ended with everything that it was to have, read back from the store."""
    data = await sim.thread(Heavy).data()
    assert data.text == text + "a"
    assert list(data.lines) == [text + "1", text + "2"]
    assert [message.content for message in data.talk] == [text + "?", text + "!"]
    fact = await ClientMemory(sim.whole, sim.env).get(facts, "k", workspace="w")
    assert fact is not None
    assert fact.value == Fact(text=text + "m")


async def stored(sim: Sim) -> list[bytes | None]:
    """Every body that the store's rows hold."""
    queries: list[Query[Any]] = [
        Log(address=T),
        Items(address=T),
        Inbox(address=T),
        Messages(workspace="w", session="s"),
        Memory(workspace="w", history=True),
    ]
    return [body_of(row) for query in queries for row in await sim.store_rows(query)]


def blobs(sim: Sim) -> set[str]:
    return {sha256 for _, sha256 in sim.artifacts._blobs}


# --- what goes, and what stays ----------------------------------------------------------------------


@simulated
async def test_every_large_body_lies_in_the_artifacts_and_reads_as_if_it_did_not(loop: SimLoop) -> None:
    sim = Sim(loop, Heavy)
    await begin(sim)
    await sim.until("ended")
    await check_whole(sim)
    bodies = await stored(sim)
    assert max(len(body or b"") for body in bodies) <= MAX_BODY
    named = {spilled_in(body).sha256 for body in bodies if body is not None and is_spilled(body)}
    assert named == blobs(sim)
    assert len(named) >= 7  # signal, two messages, fact, items, and the rows of the read, intent and end
    row = await sim.row()
    whole = await verify(sim.whole, row)
    assert (whole.broken, whole.rows) == (None, row.n)
    assert [step.event async for step in history(sim.whole, row)] == ["start", "tell", "worked"]


@simulated
async def test_what_is_small_is_left_in_the_store(loop: SimLoop) -> None:
    sim = Sim(loop, Heavy)
    await begin(sim, "small")
    await sim.until("ended")
    await check_whole(sim, "small")
    assert not any(is_spilled(body) for body in await stored(sim))
    assert blobs(sim) == set()
    assert not await sim.store_rows(Artifacts(workspace="w"))


@simulated
async def test_whoever_resumes_reads_what_the_dead_worker_put(loop: SimLoop) -> None:
    """Killed once the large read is recorded: it is served from its blob, and not made again."""
    sim = Sim(loop, Heavy)
    engine = await begin(sim)
    await sim.until_row(lambda row: row.n >= 3)
    engine.kill()
    await sim.engine()
    await sim.until("ended")
    await check_whole(sim)
    assert len(sim.world.asked) == 1


@simulated
async def test_killed_before_its_commit_the_next_attempt_puts_the_same_blobs(loop: SimLoop) -> None:
    sim = Sim(loop, Heavy)
    engine = await begin(sim)
    engine.store.fault("kill before", lambda method, write: method == "commit" and bool(write.memory))
    await sim.until_dead(engine)
    before = blobs(sim)
    await sim.engine()
    await sim.until("ended")
    await check_whole(sim)
    assert before < blobs(sim)
    assert len(blobs(sim) - before) <= 2, "only journal rows say when they were written"
    assert len(set(sim.world.keys)) == 1


# --- gone and damaged -------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [Log(address=T), Items(address=T), Inbox(address=T)])
@simulated
async def test_a_thread_whose_body_is_gone_parks_and_says_so_until_it_is_back(
    loop: SimLoop, query: Query[Any]
) -> None:
    """And a thread beside it goes on."""
    sim = Sim(loop, Gathering)
    for thread_id in ("t", "beside"):
        data = Gathered(text=LARGE + thread_id, lines=(LARGE + thread_id,))
        await sim.client().start(Gathering, data, thread_id=thread_id, workspace="w")
    thread, beside = sim.thread(Gathering), sim.thread(Gathering, "beside")
    await thread.signal(Gathering.tell, Told(text=LARGE + "told"), id="1")
    body = body_of((await sim.store_rows(query))[0]) or b""
    lost = sim.artifacts._blobs.pop(("w", spilled_in(body).sha256))
    await sim.engine()
    row = await sim.until("parked")
    assert row.standing.reason == "unreadable"
    assert spilled_in(body).sha256 in await thread.why()
    await beside.signal(Gathering.close, id="2")
    await sim.until("ended", thread_id="beside")
    sim.artifacts._blobs["w", spilled_in(body).sha256] = lost
    await thread.retry()
    await thread.signal(Gathering.close, id="3")
    await sim.until("ended")
    assert list((await thread.data()).lines) == [LARGE + "t", LARGE + "told"]


MESSAGES = Messages(workspace="w", session="s")
MEMORY = Memory(workspace="w", history=True)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (Log(address=T), "of row 0 of its journal"),
        (Items(address=T), "of what row 0 of its journal appended"),
        (Inbox(address=T), "of signal '1'"),
        (Messages(workspace="w", session="t"), "of session 't': message 1"),
    ],
)
@simulated
async def test_a_check_tells_of_a_thread_whose_body_is_gone_and_of_the_others(
    loop: SimLoop, query: Query[Any], words: str
) -> None:
    sim = Sim(loop, Talking)
    for thread_id in ("beside", "t", "zoe"):
        data = Everything(text=LARGE + thread_id, lines=(LARGE + thread_id,), talk=(said(LARGE + thread_id),))
        await sim.client().start(Talking, data, thread_id=thread_id, workspace="w")
    await sim.thread(Talking).signal(Talking.tell, Told(text=LARGE + "told"), id="1")
    body = body_of((await sim.store_rows(query))[0]) or b""
    lost = sim.artifacts._blobs.pop(("w", spilled_in(body).sha256))
    report = await check_store(sim.whole, {"Talking": Talking._definition})
    [checked] = report.stopped
    [finding] = checked.findings
    assert (report.looked_at, checked.thread.address) == (3, T)
    assert (finding.about, finding.what) == ("body", words)
    assert finding.reason.startswith(
        f"its body of {spilled_in(body).size_bytes:,} bytes lies in the artifacts"
    )
    assert spilled_in(body).sha256 in finding.reason
    assert finding.mend.startswith("none: put it back from a backup")
    sim.artifacts._blobs["w", spilled_in(body).sha256] = lost
    assert not (await check_store(sim.whole, {"Talking": Talking._definition})).found


@pytest.mark.parametrize(
    ("query", "at", "part"),
    [
        (Log(address=T), 0, "payload"),
        (Items(address=T), 0, "beside"),
        (MESSAGES, 1, "beside"),
        (MEMORY, 0, "beside"),
        (Inbox(address=T), 0, "inbox"),
    ],
)
@simulated
async def test_verification_names_the_first_row_whose_body_is_gone(
    loop: SimLoop, query: Query[Any], at: int, part: str
) -> None:
    sim = Sim(loop, Heavy)
    await begin(sim)
    row = await sim.until("ended")
    verified = await verify(sim.whole, row)
    assert (verified.broken, verified.rows) == (None, row.n)
    spilled = [body for row in await sim.store_rows(query) if is_spilled(body := body_of(row))]
    sha256 = spilled_in(spilled[at] or b"").sha256
    sim.artifacts._blobs.pop(("w", sha256))
    broken = (await verify(sim.whole, row)).broken
    assert broken is not None
    assert broken.part == part
    assert f"lie in the artifacts as blob {sha256}, missing or damaged there" in broken.note


@simulated
async def test_a_thread_whose_body_is_gone_can_be_terminated(loop: SimLoop) -> None:
    sim = Sim(loop, Gathering)
    await sim.client().start(Gathering, Gathered(text=LARGE), thread_id="t", workspace="w")
    sim.artifacts._blobs.clear()
    row = await sim.row()
    verified = await verify(sim.whole, row)
    assert verified.broken is not None
    assert (verified.broken.part, verified.broken.n) == ("payload", 0)
    await sim.thread(Gathering).terminate()
    assert (await sim.row()).standing.reason == "terminated"


# --- collection -------------------------------------------------------------------------------------


async def gc(sim: Sim) -> int:
    done = await collect(sim.whole, sim.artifacts, sim.loop.now, grace=timedelta(0))
    return done.blobs


@simulated
async def test_collection_leaves_what_threads_and_memory_hold(loop: SimLoop) -> None:
    sim = Sim(loop, Heavy)
    await begin(sim)
    await sim.until("ended")
    before = blobs(sim)
    await asyncio.sleep(7200)  # longer than any blob is held for what is to name it
    assert await gc(sim) == 0
    assert blobs(sim) == before
    await check_whole(sim)


@simulated
async def test_a_forgotten_facts_blob_goes_and_what_a_large_fact_cites_stays(loop: SimLoop) -> None:
    sim = Sim(loop)
    client = sim.client()
    cited = await client.artifacts.put(
        b"cited", media_type="text/plain", workspace="w", expires=timedelta(seconds=1)
    )
    fact = Fact(text=LARGE, ref=cited)
    for key in ("one", "two"):
        await client.memory.put(facts, key, fact, workspace="w", expires=timedelta(days=2))
    assert len(blobs(sim)) == 2
    await asyncio.sleep(86400)
    assert await gc(sim) == 0
    await asyncio.sleep(86400)
    assert await gc(sim) == 2
    assert blobs(sim) == set()


@simulated
async def test_no_collection_comes_between_a_facts_blob_and_its_record(loop: SimLoop) -> None:
    sim = Sim(loop)
    collecting: Any = Collecting(sim)
    whole = SpillingStore(collecting, opened(sim.artifacts), sim.loop.now)
    await ClientMemory(whole, sim.env).put(facts, "k", Fact(text=LARGE), workspace="w")
    assert len(blobs(sim)) == 1
