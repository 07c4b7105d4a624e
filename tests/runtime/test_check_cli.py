"""``perdure check``: what it says of a store, also from several processes, and that it writes nothing."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import anyio
import pytest
from attrs import evolve
from harness.cli import Perdure

from perdure.runtime._check_store import live_threads, sampled
from perdure.runtime._look import find_thread
from perdure.stores import Address, SQLiteStore, ThreadRow

pytest_plugins = ("harness.desk",)

CHECK = ("check", "cli_desk:runtime")


def rewrite(old: str, new: str) -> None:
    """Other code in the desk's module."""
    code = Path("cli_desk.py").read_text()
    assert old in code
    Path("cli_desk.py").write_text(code.replace(old, new))


def everything() -> dict[str, bytes]:
    """What the store's files hold. Its readers share memory in perdure.db-shm, which holds no data."""
    files = [path for path in Path().glob("perdure.db*") if not path.name.endswith("-shm")]
    return {path.name: path.read_bytes() for path in files if path.stat().st_size}


def test_a_store_whose_threads_all_go_on(cli: Perdure) -> None:
    # The parked one waits for a person, under whatever code.
    said = cli(*CHECK)
    assert said.status == 0
    assert said.lines[0].startswith("note  Paying version 1, effect pay: it is in doubt, and its receiver")
    assert said.lines[1:] == [
        "      mend: @pay.lookup; or ask its receiver, then `perdure resolve`",
        "      default/doubt  state sending, seq 0, parked (in doubt)",
        "2 threads looked at: 2 would go on, 0 would not; 1 parked already",
    ]


def test_what_would_not_go_on_is_listed_by_cause(cli: Perdure) -> None:
    rewrite("item: str\n    count", "thing: str\n    count")
    rewrite("data.item", "data.thing")
    rewrite("version=2", "version=3")
    before = everything()
    said = cli(*CHECK)
    assert everything() == before
    assert said.status == 1
    assert [line.partition(": it is stored")[0] for line in said.lines[:6]] == [
        "stops Desk version 2, data Claim: Desk: Claim.item",
        "      mend: @upcast(from_version=2) in Desk",
        "      default/review  state review, seq 2, waiting",
        "stops Paying version 1, data Claim: Paying: Claim.item",
        "      mend: version=2 in the class line of Paying, and @upcast(from_version=1)",
        "      default/doubt  state sending, seq 0, parked (in doubt)",
    ]
    assert said.lines[-1] == "2 threads looked at: 0 would go on, 2 would not; 1 parked already"


def test_as_json_and_from_several_processes(cli: Perdure) -> None:
    told = [
        json.loads(cli("check", "cli_desk:other", "--json", *more).out) for more in ([], ["--processes", "2"])
    ]
    assert told[0] == told[1]
    assert {
        name: told[0][name] for name in ("looked_at", "left_out", "would_go_on", "would_not", "parked")
    } == {
        "looked_at": 2,
        "left_out": 0,
        "would_go_on": 1,
        "would_not": 1,
        "parked": 1,
    }
    review = next(thread for thread in told[0]["threads"] if thread["thread"] == "review")
    (finding,) = review.pop("findings")
    assert review == {
        "workspace": "default",
        "thread": "review",
        "machine": "Desk",
        "version": 2,
        "state": "review",
        "seq": 2,
        "status": "waiting",
        "parked": None,
        "would_go_on": False,
    }
    assert (finding["about"], finding["fault"]) == ("machine", True)


def test_a_sample_is_of_some(cli: Perdure) -> None:
    said = cli(*CHECK, "--sample", "1")
    assert said.lines[-1].startswith("1 thread looked at of 2: 1 would go on, 0 would not")


def test_a_store_that_is_not_there_is_not_made(cli: Perdure) -> None:
    said = cli(*CHECK, "--store", "sqlite:///none.db")
    assert (said.status, Path("none.db").exists()) == (2, False)


def test_processes_need_a_store_with_a_url(cli: Perdure) -> None:
    rewrite(
        'runtime = Runtime(machines=[Desk, Paying], artifacts="memory:")',
        "from perdure.stores import MemoryStore\nruntime = Runtime(machines=[Desk], store=MemoryStore())",
    )
    said = cli(*CHECK, "--processes", "2")
    assert (said.status, said.err) == (
        2,
        "perdure: --processes needs a store that has a URL: name it with --store\n",
    )


# --- sampling -------------------------------------------------------------------------------------


def test_a_sample_has_some_of_each_machine_state_and_version(at_desk: Path) -> None:
    async def one() -> ThreadRow:
        async with SQLiteStore("perdure.db", read_only=True) as store:
            assert [row.address.thread_id async for row in live_threads(store)] == ["doubt", "review"]
            return await find_thread(store, Address(workspace="default", thread_id="review"))

    row = anyio.run(one)
    kinds = [("Desk", 1, 500), ("Desk", 2, 3), ("Paying", 1, 100)]

    async def rows() -> object:
        for machine, version, count in kinds:
            for _ in range(count):
                yield evolve(row, machine=machine, standing=evolve(row.standing, version=version))

    async def drawn(size: int) -> Counter[tuple[str, int]]:
        found, total = await sampled(rows(), size, Random(7))  # type: ignore[arg-type]
        assert total == 603
        return Counter((each.machine, each.standing.version) for each in found)

    assert anyio.run(drawn, 31) == {("Desk", 1): 14, ("Desk", 2): 3, ("Paying", 1): 14}
    assert anyio.run(drawn, 1000) == {(machine, version): count for machine, version, count in kinds}


@pytest.mark.parametrize("size", [1, 50])
def test_a_sample_is_drawn_from_all_of_them(at_desk: Path, size: int) -> None:
    async def one() -> ThreadRow:
        async with SQLiteStore("perdure.db", read_only=True) as store:
            return await find_thread(store, Address(workspace="default", thread_id="review"))

    row = anyio.run(one)

    async def rows() -> object:
        for n in range(200):
            yield evolve(row, n=n)

    async def drawn(seed: int) -> set[int]:
        found, _ = await sampled(rows(), size, Random(seed))  # type: ignore[arg-type]
        return {each.n for each in found}

    assert max(max(anyio.run(drawn, seed)) for seed in range(20)) > 150
