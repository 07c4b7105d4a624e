"""Whether what a commit wrote beside its row is as it was: memory, artifacts, and what cannot be told."""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pytest
from harness.engine import Sim, World, simulated
from harness.loop import SimLoop

from perdure import (
    Call,
    Conversation,
    Fire,
    Machine,
    Message,
    Namespace,
    Runtime,
    State,
    Step,
    effect,
    record,
)
from perdure.runtime._look import find_thread
from perdure.runtime._verify import Verified, verify
from perdure.stores import Address, Log, SQLiteStore


@record
class Facts:
    name: str = ""


@record
class Work:
    item: str = "pan"


facts = Namespace("facts", Facts)
others = Namespace("others", Facts)


@effect(idempotent=True)
async def send(call: Call[None], item: str) -> str:
    return item


class Keeping(Machine[Work, None], version=1, calls=[send]):
    """Writes memory twice, an artifact, and an effect."""

    writing = State(initial=True)
    sending = State()
    done = State(final=True)

    wrote = writing.to(sending)
    sent = sending.to(done)

    @writing.handler
    async def write(self, data: Work, step: Step[None]) -> Fire:
        await step.artifacts.put(b"bytes", media_type="text/plain")
        await step.memory.put(others, "b", Facts(name="second"))
        await step.memory.put(facts, "a", Facts(name="first"))
        return self.wrote()

    @sending.handler
    async def post(self, data: Work, step: Step[None]) -> Fire:
        await step.call(send.keyed("invoice-7"), data.item)
        return self.sent()


async def verified(path: Path, *statements: str) -> Verified:
    store = SQLiteStore(path)
    async with Runtime(machines=[Keeping], store=store, artifacts="memory:") as running:
        await (await running.start(Keeping, Work(), thread_id="t")).result()
    damage_it(path, statements)
    async with SQLiteStore(path) as opened:
        return await verify(opened, await find_thread(opened, Address(workspace="default", thread_id="t")))


def damage_it(path: Path, statements: tuple[str, ...]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            assert database.execute(statement).rowcount == 1, statement


@pytest.mark.anyio
async def test_memory_and_artifacts_are_those_that_were_written(tmp_path: Path) -> None:
    found = await verified(tmp_path / "a.db")
    assert found.broken is None
    assert found.beside == 2, "the artifact's row and the transition's"
    assert len(found.open) >= 1, "an explicit key leaves nothing to compare"
    assert found.beside + len(found.open) <= found.rows


@pytest.mark.anyio
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE memory SET value = CAST(replace(value, 'first', 'wrong') AS BLOB) WHERE key = 'a'",
        "UPDATE memory SET key = 'c' WHERE key = 'b'",
        "UPDATE artifact SET sha256 = 'other'",
        "UPDATE artifact SET principal = 'eve'",
    ],
)
async def test_what_was_changed_beside_a_row_breaks_it(damage: str, tmp_path: Path) -> None:
    found = await verified(tmp_path / "a.db", damage)
    assert found.broken is not None
    assert found.broken.part == "beside"


@pytest.mark.anyio
async def test_memory_that_has_expired_is_no_damage(tmp_path: Path) -> None:
    found = await verified(
        tmp_path / "a.db", "UPDATE memory SET value = NULL, expires = NULL WHERE key = 'a'"
    )
    assert found.broken is None
    assert found.beside == 1


@record
class Talk:
    said: Annotated[Sequence[Message], Conversation()] = ()


class Quick(Machine[Talk, World], version=1):
    """Says two things, then one, then nothing, all at one moment."""

    begins = State(initial=True)
    goes_on = State()
    silent = State()
    done = State(final=True)
    began = begins.to(goes_on)
    went_on = goes_on.to(silent)
    was_silent = silent.to(done)

    @begins.handler
    async def begin(self, data: Talk, step: Step[World]) -> Fire:
        return self.began(said=[Message(role="user", content=each) for each in ("a", "b")])

    @goes_on.handler
    async def go_on(self, data: Talk, step: Step[World]) -> Fire:
        return self.went_on(said=[Message(role="user", content="c")])

    @silent.handler
    async def be_silent(self, data: Talk, step: Step[World]) -> Fire:
        return self.was_silent()


@pytest.mark.parametrize("lost", [None, 0, 1, 2])
@simulated
async def test_messages_of_one_moment_are_those_of_their_rows(loop: SimLoop, lost: int | None) -> None:
    """A clock that is coarse, or was set back, gives one moment to several rows."""
    sim = Sim(loop, Quick)
    engine = await sim.engine()
    await engine.start(Quick, Talk(), session="s")
    thread = await sim.until("ended")
    log = await sim.store_rows(Log(address=thread.address))
    moments = {row.at for row in log if row.kind == "transition"}
    assert len(moments) == 1, "or this proves nothing"
    assert (await verify(sim.store, thread)).broken is None
    if lost is not None:
        del sim.store._tables.messages["w", "s"][lost]
        broken = (await verify(sim.store, thread)).broken
        assert broken is not None
        assert broken.part == "beside"
