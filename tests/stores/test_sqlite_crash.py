"""A process killed at any moment: what was answered is there, and nothing is there by halves."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from sqlite_child import spawn

from perdure.stores import Items, Log, Memory, Messages, SQLiteStore, Threads
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import WORKSPACE, address_of, request_of

pytestmark = pytest.mark.anyio

KILLS = 15
THREADS = 5


def kill_after(path: Path, answers: int) -> dict[str, int]:
    """Kill a writing process when it has given so many answers; the last position answered, by thread."""
    child = spawn("write_until_killed", path, THREADS)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(answers)]
    child.kill()
    rest, errors = child.communicate(timeout=30)
    assert errors == b""
    answered = dict.fromkeys((f"t{i}" for i in range(THREADS)), 0)
    # What it told but we had not read counts as answered as well; a last line may be torn.
    for line in (*lines, *rest.splitlines(keepends=True)):
        if line.endswith(b"\n"):
            name, n = line.decode().split()
            answered[name] = int(n)
    return answered


async def test_a_killed_process_loses_and_tears_nothing(tmp_path: Path) -> None:
    dice = random.Random(20)
    for kill in range(KILLS):
        path = tmp_path / f"perdure{kill}.db"
        answered = kill_after(path, dice.randint(1, 120))
        async with SQLiteStore(path) as store:
            for thread in await rows(store, Threads()):
                name = thread.address.thread_id
                log = await rows(store, Log(address=thread.address))
                assert [row.n for row in log] == list(range(thread.n)), name
                assert thread.n > answered[name], (kill, name)
                written = list(range(1, thread.n))
                items = await rows(store, Items(address=address_of(name)))
                assert [row.n for row in items] == written
                talk = await rows(store, Messages(workspace=WORKSPACE, session=name))
                assert [row.payload for row in talk] == [b"message %d" % n for n in written]
                facts = await rows(store, Memory(workspace=WORKSPACE, key=name, history=True))
                assert [row.value for row in facts] == [b"%d" % n for n in written]
            claimed = await store.claim(request_of("w2"))
            assert {claim.taken_from for claim in claimed.claims} == {"w1"}
            assert set(answered) >= {claim.thread.address.thread_id for claim in claimed.claims}
        db = sqlite3.connect(path)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.close()
