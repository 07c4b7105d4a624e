"""A store is copied whole, goes on where it was broken off, and is never mixed with anything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve
from harness.cli import Perdure
from harness.store import FaultyStore, every

from perdure.runtime._copy import CannotCopy, Tally, copy_store, side_by_side
from perdure.runtime._env import Env
from perdure.stores import (
    MAX_BODY,
    MAX_RESTORED,
    ROW_KINDS,
    MemoryStore,
    Query,
    RowKind,
    Rows,
    SQLiteStore,
    Store,
    StoredRow,
    Threads,
)
from perdure.stores._contract_make import (
    address_of,
    artifact_of,
    commit_of,
    remember_of,
    request_of,
    signal_of,
    start_of,
    thread_at,
    worker_of,
    write_of,
)

pytest_plugins = ("harness.desk",)


class Silent:
    """Hears how a copy goes on, and may do something about it."""

    def __init__(self, then: Callable[[], Any] | None = None) -> None:
        self.kinds: list[RowKind] = []
        self.then = then

    def kind(self, tally: Tally, /) -> None:
        self.kinds.append(tally.kind)

    def verifying(self) -> None:
        if self.then is not None:
            self.then()


async def fill(store: Store, threads: int = 30) -> None:
    """Threads with rows of most kinds, more than go into one batch."""
    for number in range(threads):
        name = f"t{number:03}"
        thread = (await store.start(start_of(name, messages=(b"hello",), items=b"i"))).thread
        await store.commit(
            commit_of(
                thread,
                memory=(write_of(name, b"1", 0),),
                artifacts=(artifact_of(f"a{number}", name),),
                release=True,
            )
        )
        await store.deliver(signal_of("s", name))


async def everything(store: Store) -> dict[RowKind, Sequence[StoredRow]]:
    return {kind: (await store.page(Rows(kind=kind), limit=10_000)).rows for kind in ROW_KINDS}


async def copied(source: Store, target: Store, tell: Silent | None = None) -> dict[RowKind, Tally]:
    tallies = await copy_store(source, target, Env(), tell or Silent())
    return {tally.kind: tally for tally in tallies}


@pytest.mark.anyio
async def test_a_copy_is_the_same_to_the_byte_and_a_second_one_writes_nothing(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "old.db") as old, SQLiteStore(tmp_path / "new.db") as new:
        await fill(old)
        tell = Silent()
        tallies = await copied(old, new, tell)
        assert await everything(new) == await everything(old)
        assert tallies["log"] == Tally(kind="log", copied=60)
        assert tallies["thread"] == Tally(kind="thread", copied=30)
        assert tell.kinds == list(ROW_KINDS)
        again = await copied(old, new)
        assert again["log"] == Tally(kind="log", there=60)
        assert sum(tally.copied for tally in again.values()) == 0


@pytest.mark.anyio
async def test_a_copy_goes_on_where_it_was_broken_off() -> None:
    old, new = MemoryStore(), MemoryStore()
    await fill(old)
    for number in range(3):
        broken = FaultyStore(new, tell=lambda: None, at=break_at(5))
        with pytest.raises(BaseExceptionGroup):
            await copied(old, broken)
        assert (await everything(new))["thread"] == (), number
    tallies = await copied(old, new)
    assert await everything(new) == await everything(old)
    assert sum(tally.there for tally in tallies.values()) > 4 * MAX_RESTORED


class Broken(Exception):
    """The process is gone."""


def break_at(call: int) -> Any:
    calls = 0

    async def at(when: str, method: str, write: Any, answer: Any) -> None:
        nonlocal calls
        calls += when == "before"
        if calls >= call:
            raise Broken

    return at


@pytest.mark.anyio
async def test_batches_whose_answers_are_lost_are_sent_again() -> None:
    old, new = MemoryStore(), MemoryStore()
    await fill(old)
    faulty = FaultyStore(new, tell=lambda: None)
    for deed in ("lose before", "lose after", "refuse"):
        faulty.fault(deed, every("restore"), skip=1)
    await copied(old, faulty)
    assert await everything(new) == await everything(old)


@pytest.mark.anyio
@pytest.mark.parametrize("which", ["source", "target"])
async def test_a_store_on_which_a_worker_lives_is_not_copied(which: str) -> None:
    stores = {"source": MemoryStore(), "target": MemoryStore()}
    lives = worker_of("w7", host="box/boot", lease=3600 * 10**6)
    await stores[which].beat(lives)
    with pytest.raises(CannotCopy, match=f"the {which} has 1 living worker .w7 on box, process 7.: end"):
        await copied(stores["source"], stores["target"])
    await stores[which].beat(evolve(lives, ended=1))
    await copied(stores["source"], stores["target"])


@pytest.mark.anyio
async def test_a_worker_that_comes_while_the_source_is_copied_is_found() -> None:
    old, new = MemoryStore(), MemoryStore()
    worker = worker_of("late", lease=3600 * 10**6)

    def come() -> None:
        old._tables.workers["late"] = evolve(worker, beat=Env().now())

    with pytest.raises(CannotCopy, match="late on h1"):
        await copied(old, new, Silent(come))


@pytest.mark.anyio
async def test_a_target_that_holds_something_else_is_left_as_it_is() -> None:
    old, new = MemoryStore(), MemoryStore()
    await fill(old)
    await new.remember(remember_of("k", b"1", None))
    before = await everything(new)
    with pytest.raises(CannotCopy, match=r"not empty.*memory acme/customer/k/1 is in the target alone"):
        await copied(old, new)
    assert await everything(new) == before


@pytest.mark.anyio
async def test_a_target_in_which_a_thread_went_on_is_left_as_it_is() -> None:
    old, new = MemoryStore(), MemoryStore()
    await fill(old)
    await copied(old, new)
    await new.deliver(signal_of("more", "t003"))
    before = await everything(new)
    with pytest.raises(CannotCopy, match="inbox acme/t003/2 is in the target alone"):
        await copied(old, new)
    assert await everything(new) == before


CHANGES: dict[str, Callable[[MemoryStore], Any]] = {
    "inbox acme/t003/2 is in the source alone": lambda old: old.deliver(signal_of("more", "t003")),
    "log acme/new/0 is in the source alone": lambda old: old.start(start_of("new")),
    "memory acme/customer/k/1 is in the source alone": lambda old: old.remember(remember_of("k", b"", None)),
}


@pytest.mark.anyio
@pytest.mark.parametrize("found", CHANGES)
async def test_a_source_that_changes_meanwhile_is_found(found: str) -> None:
    """By the verification, where the copy itself was past it."""
    old = MemoryStore()
    await fill(old)
    changed: list[None] = []

    class Changes(MemoryStore):
        async def restore(self, rows: Sequence[StoredRow], /) -> None:
            await super().restore(rows)
            if not changed and (await self.page(Threads(), limit=1)).rows:
                changed.append(None)
                await CHANGES[found](old)

    with pytest.raises(CannotCopy, match=f"changed while it was copied .{found}"):
        await copied(old, Changes())
    assert changed


@pytest.mark.anyio
async def test_a_thread_that_moves_while_its_log_is_copied_is_found() -> None:
    old = MemoryStore()
    await fill(old, threads=3)
    last: list[None] = []

    class Moves(MemoryStore):
        async def restore(self, rows: Sequence[StoredRow], /) -> None:
            await super().restore(rows)
            if not last and (await self.page(Rows(kind="log"), limit=1)).rows:
                last.append(None)
                [claim] = (await old.claim(request)).claims
                await old.commit(commit_of(claim.thread))

    request = request_of("w2", only=address_of("t001"))
    target = Moves()
    with pytest.raises(CannotCopy, match=r"while it was copied .thread 't001' comes before its newest"):
        await copied(old, target)
    assert (await target.page(Threads())).rows == ()
    assert last


@pytest.mark.anyio
async def test_verification_names_journal_heads() -> None:
    old, new = MemoryStore(), MemoryStore()
    await fill(old, threads=1)
    await copied(old, new)
    row = await thread_at(new, "t000")
    new._tables.threads[row.address] = evolve(row, head=b"\xab" * 16, n=7)
    differing = [str(pair) async for pair in side_by_side(old, new, "thread") if pair.differs]
    heads = f"{row.head.hex()[:12]} at 2 in the source, abababababab at 7 in the target"
    assert differing == [f"thread acme/t000 differs: its journal's head is {heads}"]


@pytest.mark.anyio
async def test_large_rows_come_in_small_pages_and_batches() -> None:
    """What a copy holds in memory does not grow with what the rows weigh."""
    asked: list[int] = []

    class Pages(MemoryStore):
        async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Any:
            if query == Rows(kind="memory"):
                asked.append(limit)
            return await super().page(query, after=after, limit=limit)

    old, new = Pages(), MemoryStore()
    for number in range(130):
        await old.remember(remember_of(f"k{number:03}", bytes(250_000), None))
    faulty = FaultyStore(new, tell=lambda: None)
    await copied(old, faulty)
    assert set(asked[1:]) - {100} == {33}
    assert await everything(new) == await everything(old)
    assert max(len(rows) for name, rows in faulty.writes if name == "restore") == 12


@pytest.mark.anyio
async def test_a_row_from_before_the_limits_is_named() -> None:
    old = MemoryStore()
    await old.remember(remember_of("k", b"1", None))
    [[versions]] = [list(old._tables.memory.values())]
    versions[0] = evolve(versions[0], value=bytes(MAX_BODY + 1))
    with pytest.raises(CannotCopy, match=r"a memory row, .*'k'.* has 262,145 bytes: .* before rows had that"):
        await copied(old, MemoryStore())


def test_the_command_copies_a_store_and_says_so(cli: Perdure, at_desk: Path) -> None:
    command = ("copy", "--from", "sqlite:///perdure.db", "--to", "sqlite:///new.db")
    said = cli(*command)
    assert (said.status, said.err) == (0, "")
    assert [line.split()[0] for line in said.lines] == [*ROW_KINDS, "verifying", "the", "next"]
    assert "thread              3" in said.lines
    again = cli(*command)
    assert "thread              3, 3 of them there already" in again.lines
    as_json = json.loads(cli(*command, "--json").out)
    assert as_json["verified"] is True
    assert as_json["rows"]["thread"] == {"copied": 0, "there": 3}
    for line in ("why", "doubt"), ("show", "review"), ("ls",):
        old = cli(*line, "--store", "sqlite:///perdure.db")
        new = cli(*line, "--store", "sqlite:///new.db")
        assert (new.status, new.out, new.err) == (old.status, old.out, old.err)


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        (
            "sqlite:///none.db",
            "sqlite:///new.db",
            "there is no store at 'none.db': name the one to be copied",
        ),
        ("sqlite:///perdure.db", "sqlite:///perdure.db", "name the same store"),
        ("sqlite:///perdure.db", "sqlite:///../desk/perdure.db", "are one file"),
        ("memory://", "sqlite:///new.db", "memory:// is a new, empty store"),
        ("sqlite:///perdure.db", "memory://", "memory:// is a new, empty store"),
        ("sqlite:///perdure.db", "sqlite:///cli_desk.py", "cli_desk.py"),
    ],
)
def test_what_cannot_be_copied_is_refused(cli: Perdure, source: str, target: str, said: str) -> None:
    answer = cli("copy", "--from", source, "--to", target)
    assert answer.status == 2
    assert said in answer.err
    assert answer.out == ""
    assert not Path("new.db").exists()


def test_the_target_is_not_made_while_a_worker_lives_on_the_source(cli: Perdure) -> None:
    async def beat() -> None:
        async with SQLiteStore("perdure.db") as store:
            await store.beat(worker_of("w7", lease=3600 * 10**6))

    anyio.run(beat)
    said = cli("copy", "--from", "sqlite:///perdure.db", "--to", "sqlite:///new.db")
    assert said.status == 2
    assert "w7 on h1, process 7" in said.err
    assert not Path("new.db").exists()
