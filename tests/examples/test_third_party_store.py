"""``examples/third_party_store.py``: it keeps the contract, on a disk that fails and after a kill too."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import evolve
from harness.beside import QUICK, Beside
from hypothesis.stateful import run_state_machine_as_test

from examples import third_party_store
from examples._customers import load_customers
from examples._objects import object_storage
from examples.summary import Brief, Deps, Summary
from examples.third_party_store import HEADER, JournalStore, kit
from perdure import Runtime
from perdure.stores import (
    OutcomeUnknown,
    StaleClaim,
    Store,
    StoreUnavailable,
    StoreUnreadable,
    Threads,
    TooLarge,
)
from perdure.stores._contract_kit import Snapshot, rows, snapshot
from perdure.stores._contract_make import (
    WORKSPACE,
    artifact_of,
    commit_of,
    remember_of,
    signal_of,
    start_of,
    started,
    thread_at,
    worker_of,
)
from perdure.stores.contract import CHECKS, Check, Clock

pytestmark = pytest.mark.anyio

Call = Callable[[Store], Awaitable[object]]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def read(journal: Path) -> bytes:
    return journal.read_bytes()


def write(journal: Path, content: bytes) -> None:
    journal.write_bytes(content)


def held(store: Store) -> Awaitable[Snapshot]:
    return snapshot(store, WORKSPACE, ["t1", "t2"], "t1", "publish")


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_store_contract(check: Check, tmp_path: Path) -> None:
    await check.run(kit(tmp_path))


class BesideJournal(Beside):
    @staticmethod
    def make(folder: Path, clock: Clock) -> Store:
        return JournalStore(folder / "journal", clock=clock)


def test_it_does_what_the_model_does() -> None:
    run_state_machine_as_test(BesideJournal, settings=QUICK)


async def test_the_command_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(third_party_store, "CHECKS", CHECKS[:2])
    await third_party_store.main()
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{CHECKS[1].name}: kept",
        "all 2 promises are kept",
    ]


# --- ends in the middle ---------------------------------------------------------------------------


FACT = remember_of("k1", b"\0\xff", None)


async def _commit(store: Store) -> None:
    thread = evolve(await thread_at(store), n=1, epoch=1)
    await store.commit(commit_of(thread, messages=(b"said",), items=b"item"))


CALLS: tuple[Call, ...] = (
    lambda store: store.beat(worker_of()),
    lambda store: store.start(start_of("t1")),
    lambda store: store.deliver(signal_of("s1")),
    _commit,
    lambda store: store.upload(artifact_of("a1", None)),
    lambda store: store.remember(FACT),
    lambda store: store.start(start_of("t2", owner=None)),
)
"""Each writes one line, and may be made again."""


async def test_a_crash_at_any_byte_loses_no_write_that_was_answered(journal: Path, full_sweep: bool) -> None:
    clock = Clock()
    ends, wanted = [len(HEADER)], list[Snapshot]()
    async with JournalStore(journal, clock=clock) as store:
        wanted.append(await held(store))
        for call in CALLS:
            await call(store)
            ends.append(len(read(journal)))
            wanted.append(await held(store))
    whole = read(journal)
    near = {end - by for end in ends for by in (1, 0)} | {end + 1 for end in ends[:-1]}
    cuts = range(len(whole) + 1) if full_sweep else sorted(near | set(range(0, len(whole), 61)))
    for cut in cuts:
        write(journal, whole[:cut])
        async with JournalStore(journal, clock=clock) as store:
            landed = sum(end <= cut for end in ends[1:])
            assert await held(store) == wanted[landed], cut
            for call in CALLS[landed:]:
                await call(store)
            assert await held(store) == wanted[-1], cut
        assert read(journal) == whole


async def test_another_process_that_is_killed_at_any_moment(journal: Path) -> None:
    """Both write at once, and each sees what the other wrote; what it was told is there when it is gone."""
    code = (
        "import asyncio\n"
        "from pathlib import Path\n"
        "from examples.third_party_store import JournalStore\n"
        "from perdure.stores._contract_make import start_of\n"
        "async def main():\n"
        f"    async with JournalStore(Path({str(journal)!r})) as store:\n"
        "        for n in range(1000):\n"
        "            await store.start(start_of(f'theirs-{n}'))\n"
        "            print(n, flush=True)\n"
        "asyncio.run(main())\n"
    )
    root = Path(third_party_store.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    async with JournalStore(journal) as store:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, env=environment
        )
        assert child.stdout is not None
        said = 0
        for n in range(20):
            said = int(await child.stdout.readline())
            await started(store, f"ours-{n}")
        child.send_signal(signal.SIGKILL)
        said = max(said, *map(int, (await child.stdout.read()).split()), 0)
        await child.wait()
        await started(store, "ours-20")
        names = {row.address.thread_id for row in await rows(store, Threads(workspace=WORKSPACE))}
    assert {f"ours-{n}" for n in range(21)} | {f"theirs-{n}" for n in range(said + 1)} <= names


async def test_many_handles_that_write_at_once(journal: Path) -> None:
    async def starts(name: str) -> None:
        async with JournalStore(journal) as store:
            for n in range(25):
                await started(store, f"{name}-{n}")

    await asyncio.gather(*map(starts, "abcd"))
    async with JournalStore(journal) as store:
        assert len(await rows(store, Threads(workspace=WORKSPACE))) == 100


async def test_a_caller_that_is_cancelled_withdraws_nothing(journal: Path) -> None:
    async with JournalStore(journal) as store:
        task = asyncio.ensure_future(store.start(start_of("t1")))
        await asyncio.sleep(0)
        task.cancel()
    async with JournalStore(journal) as store:
        assert (await thread_at(store)).n == 1


# --- disks ----------------------------------------------------------------------------------------


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file of this process grows over the size: the disk is full there."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@pytest.mark.parametrize("room", [0, 1, 200])
async def test_a_full_disk_leaves_no_part_of_a_line(room: int, journal: Path) -> None:
    async with JournalStore(journal) as store, JournalStore(journal) as other:
        thread = await started(store)
        before = read(journal)
        with at_most(len(before) + room), pytest.raises(OutcomeUnknown, match=r"journal.*call again when"):
            await store.commit(commit_of(thread))
        assert read(journal) == before
        await store.commit(commit_of(thread))
        assert (await thread_at(other)).n == (await thread_at(store)).n == 2


async def test_nothing_is_answered_or_seen_before_the_disk_has_it(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(file: object) -> None:
        raise OSError(5, "Input/output error")

    async with JournalStore(journal) as store, JournalStore(journal) as other:
        thread = await started(store)
        before = await held(other)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            with pytest.raises(OutcomeUnknown, match="Input/output error"):
                await store.commit(commit_of(thread))
        assert await held(store) == await held(other) == before
        await other.commit(commit_of(thread))
        await store.commit(commit_of(thread))
        assert (await thread_at(store)).n == 2


async def test_damage_is_told_and_not_passed_over(journal: Path) -> None:
    async with JournalStore(journal) as store:
        for call in CALLS:
            await call(store)
    whole = read(journal)
    begin = 0
    for line in whole.splitlines(keepends=True):
        for at in (begin, begin + len(line) // 2, begin + len(line) - 2):
            write(journal, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            said = f"damaged at byte {begin}: take a copy" if begin else r"journal is no journal of perdure"
            with pytest.raises(StoreUnreadable, match=said):
                async with JournalStore(journal):
                    pass
        begin += len(line)


@pytest.mark.parametrize(
    "content", [b"my letters", b"dear ada\n", b"journal of perdure 0.0.0\n", b"\0" * 9, HEADER[:-1] + b"9\n"]
)
async def test_a_file_of_another_kind_is_left_as_it_is(content: bytes, journal: Path) -> None:
    write(journal, content)
    with pytest.raises(StoreUnreadable, match="give another path"):
        async with JournalStore(journal):
            pass
    assert read(journal) == content


async def test_a_place_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "journal"):
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            async with JournalStore(path):
                pass


# --- callers --------------------------------------------------------------------------------------


async def test_what_no_line_can_hold_is_refused_before_one_is_written(journal: Path) -> None:
    async with JournalStore(journal) as store:
        before = read(journal)
        with pytest.raises(ValueError, match="surrogates not allowed"):
            await store.deliver(signal_of("\ud800"))
        with pytest.raises(ValueError, match="Expected `str`, got `int`"):
            await store.deliver(signal_of(5))  # type: ignore[arg-type]
        assert read(journal) == before


async def test_what_was_refused_is_refused_again_when_it_is_read(journal: Path) -> None:
    async with JournalStore(journal) as store:
        thread = await started(store)
        with pytest.raises(StaleClaim):
            await store.commit(commit_of(evolve(thread, epoch=9)))
        with pytest.raises(TooLarge):
            await store.start(start_of("x" * 513))
        before = await held(store)
    async with JournalStore(journal) as store:
        assert await held(store) == before


async def test_a_runtime_works_on_it(journal: Path, tmp_path: Path) -> None:
    async with object_storage(tmp_path / "objects") as storage:
        deps = Deps(customers=load_customers(), storage=storage)
        runtime = Runtime(machines=[Summary], deps=deps, store=JournalStore(journal), artifacts="memory:")
        async with runtime:
            thread = await runtime.start(Summary, Brief(customer_id="cust_01"), thread_id="one")
            assert (await thread.result()).state == "done"
        async with runtime.with_store(JournalStore(journal)).client() as client:
            assert (await client.thread(Summary, thread_id="one").result()).data.stored is not None
        assert len(await storage.arrivals()) == 1
