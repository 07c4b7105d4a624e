"""Whether what a commit wrote beside its row is as it was: memory, artifacts, and what cannot be told."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from perdure import Call, Fire, Machine, Namespace, Runtime, State, Step, effect, record
from perdure.runtime._look import find_thread
from perdure.runtime._verify import Verified, verify
from perdure.stores import Address, SQLiteStore

pytestmark = pytest.mark.anyio


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


async def test_memory_and_artifacts_are_those_that_were_written(tmp_path: Path) -> None:
    found = await verified(tmp_path / "a.db")
    assert found.broken is None
    assert found.beside == 2, "the artifact's row and the transition's"
    assert len(found.open) >= 1, "an explicit key leaves nothing to compare"
    assert found.beside + len(found.open) <= found.rows


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


async def test_memory_that_has_expired_is_no_damage(tmp_path: Path) -> None:
    found = await verified(
        tmp_path / "a.db", "UPDATE memory SET value = NULL, expires = NULL WHERE key = 'a'"
    )
    assert found.broken is None
    assert found.beside == 1
