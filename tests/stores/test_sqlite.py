"""What a SQLite store does beyond the contract: batches, faults of the driver, and what it costs."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from perdure.stores import (
    Commit,
    Log,
    LogRow,
    Messages,
    Micros,
    OutcomeUnknown,
    SQLiteStore,
    StaleClaim,
    Store,
    StoreUnavailable,
    ThreadRow,
    Threads,
    TooLarge,
    _sqlite_batches,
    _sqlite_files,
    _sqlite_writer,
    open_store,
)
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import (
    WORKSPACE,
    address_of,
    after,
    commit_of,
    committed,
    request_of,
    signal_of,
    start_of,
    started,
    thread_at,
    worker_of,
    write_of,
)
from perdure.stores._sqlite_writer import INLINE_BYTES

pytestmark = pytest.mark.anyio


def store_at(folder: Path) -> SQLiteStore:
    return SQLiteStore(folder / "perdure.db")


class Driver:
    """The writer's connection, with a hand on what it does at a statement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[str] = []
        self.at: dict[str, Callable[[sqlite3.Connection], object]] = {}
        """Called once, in place of the statement that begins so."""
        self.real: list[sqlite3.Connection] = []
        connect = _sqlite_files.connect

        def patched(path: str, patience: float) -> Any:
            self.real.append(connect(path, patience))
            return self

        monkeypatch.setattr(_sqlite_writer, "connect", patched)

    def execute(self, statement: str, *values: Any) -> Any:
        return self._run(self.real[-1].execute, statement, *values)

    def executemany(self, statement: str, *values: Any) -> Any:
        return self._run(self.real[-1].executemany, statement, *values)

    def _run(self, call: Callable[..., Any], statement: str, *values: Any) -> Any:
        self.statements.append(statement)
        for begin in [begin for begin in self.at if statement.startswith(begin)]:
            return self.at.pop(begin)(self.real[-1])
        return call(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real[-1], name)

    def count(self, begin: str) -> int:
        return sum(statement.startswith(begin) for statement in self.statements)


def fail(code: int, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


async def start_all(store: Store, count: int) -> list[ThreadRow]:
    starts = await asyncio.gather(*(store.start(start_of(f"t{i}")) for i in range(count)))
    return [one.thread for one in starts]


async def test_what_arrives_together_rides_in_one_transaction(tmp_path: Path, driver: Driver) -> None:
    async with store_at(tmp_path) as store:
        threads = await start_all(store, 100)
        driver.statements.clear()
        await asyncio.gather(*(store.commit(commit_of(thread)) for thread in threads))
        assert driver.count("COMMIT") == 1
        assert driver.count("UPDATE standing") == driver.count("INSERT INTO log") == 1
        assert [row.n for row in await rows(store, Threads())] == [2] * 100


async def test_a_batch_holds_every_kind_of_write(tmp_path: Path, driver: Driver) -> None:
    async with store_at(tmp_path) as store:
        (first, second) = await start_all(store, 2)
        driver.statements.clear()
        await asyncio.gather(
            store.start(start_of("new")),
            store.commit(commit_of(first)),
            store.deliver(signal_of("s1", "t0")),
            store.commit(commit_of(second, memory=(write_of("k", b"v", 0),))),
            store.beat(worker_of("w9")),
            store.claim(request_of("w9")),
            store.release(()),
        )
        assert driver.count("COMMIT") == 1
        assert len(await rows(store, Threads())) == 3


async def test_only_the_stale_commit_of_a_batch_fails(tmp_path: Path, driver: Driver) -> None:
    async with store_at(tmp_path) as store:
        threads = await start_all(store, 20)
        commits = [commit_of(thread) for thread in threads]
        commits[7] = evolve(commits[7], epoch=5, log=evolve(commits[7].log, epoch=5))
        driver.statements.clear()
        answers = await asyncio.gather(*map(store.commit, commits), return_exceptions=True)
        assert [type(answer) for answer in answers if answer is not None] == [StaleClaim]
        assert isinstance(answers[7], StaleClaim)
        assert "'t7'" in str(answers[7])
        assert driver.count("COMMIT") == 1
        assert sorted(row.n for row in await rows(store, Threads())) == [1] + [2] * 19


class WhereItLands:
    """A store's clock, which notes the thread that each transaction begins in."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def __call__(self) -> Micros:
        self.threads.append(threading.get_ident())
        return 1


@pytest.mark.parametrize("url", ["sqlite:///{}?commit=inline", "sqlite:///{}"])
async def test_only_a_store_that_commits_inline_does_so_and_only_for_a_commit_alone(
    tmp_path: Path, url: str
) -> None:
    clock, here = WhereItLands(), threading.get_ident()
    async with open_store(url.format(tmp_path / "perdure.db"), clock=clock) as store:
        threads = await start_all(store, 3)
        assert here not in clock.threads
        await store.commit(commit_of(threads[0]))
        assert (clock.threads[-1] == here) == url.endswith("inline")
        clock.threads.clear()
        await asyncio.gather(*(store.commit(commit_of(thread)) for thread in threads[1:]))
        assert here not in clock.threads
        large = commit_of(await thread_at(store, "t0"), payload=bytes(INLINE_BYTES + 1))
        await store.commit(large)
        assert here not in clock.threads
        assert [row.n for row in await rows(store, Threads())] == [3, 2, 2]


async def test_an_inline_commit_does_not_hold_the_loop_up_where_another_process_has_the_file(
    tmp_path: Path,
) -> None:
    clock = WhereItLands()
    async with SQLiteStore(tmp_path / "perdure.db", clock=clock, inline=True) as store:
        thread = await started(store)
        other = sqlite3.connect(tmp_path / "perdure.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        clock.threads.clear()
        writing = asyncio.ensure_future(store.commit(commit_of(thread)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not writing.done()  # and the loop is here again
        other.execute("COMMIT")
        other.close()
        await writing
        assert threading.get_ident() not in clock.threads
        assert (await thread_at(store)).n == 2


async def test_an_inline_commit_is_refused_as_any_other_is(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "perdure.db", inline=True) as store:
        thread = await started(store)
        commit = commit_of(thread)
        await store.commit(commit)
        await store.commit(commit)  # the identical one is a no-op
        with pytest.raises(StaleClaim, match="came too late"):
            await store.commit(commit_of(thread, payload=b'"another"'))


async def test_commits_of_one_thread_keep_their_order_in_a_batch(tmp_path: Path, driver: Driver) -> None:
    async with store_at(tmp_path) as store:
        thread = await started(store)
        commits: list[Commit] = []
        for i in range(9):
            waits = i % 3 == 1
            commit = commit_of(thread, status="waiting" if waits else "running", wake=7 if waits else None)
            commits.append(commit)
            thread = after(thread, commit)
        driver.statements.clear()
        await asyncio.gather(*map(store.commit, commits))
        assert driver.count("COMMIT") == 1
        assert driver.count("SAVEPOINT") == 0
        assert [row.head for row in await rows(store, Log(address=address_of()))][1:] == [
            commit.log.head for commit in commits
        ]
        assert (await thread_at(store)).standing == commits[-1].standing


async def test_what_another_handle_wrote_is_not_taken_for_what_this_one_knows(tmp_path: Path) -> None:
    async with store_at(tmp_path) as one, store_at(tmp_path) as other:
        thread = await started(one)
        thread = await committed(other, thread, status="waiting", wake=7)
        thread = await committed(one, thread)
        assert thread.standing.status == "running"
        assert thread.standing.wake is None
        assert (await one.claim(request_of("w1"))).claims == ()


@pytest.mark.parametrize("landed", [True, False])
async def test_a_commit_of_unknown_outcome_is_unknown_to_its_whole_batch(
    tmp_path: Path, driver: Driver, landed: bool
) -> None:
    def lose_the_reply(real: sqlite3.Connection) -> None:
        real.execute("COMMIT" if landed else "ROLLBACK")
        raise fail(sqlite3.SQLITE_IOERR, "disk I/O error")

    async with store_at(tmp_path) as store:
        commits = [commit_of(thread) for thread in await start_all(store, 10)]
        driver.at["COMMIT"] = lose_the_reply
        answers = await asyncio.gather(*map(store.commit, commits), return_exceptions=True)
        assert [type(answer) for answer in answers] == [OutcomeUnknown] * 10
        assert len(set(map(id, answers))) == 10
        assert {row.n for row in await rows(store, Threads())} == {2 if landed else 1}
        await asyncio.gather(*map(store.commit, commits))
        assert {row.n for row in await rows(store, Threads())} == {2}


async def test_a_full_disk_writes_nothing_and_passes(tmp_path: Path, driver: Driver) -> None:
    async with store_at(tmp_path) as store:
        thread = await started(store)
        big = commit_of(thread, payload=os.urandom(250_000))
        driver.at["BEGIN IMMEDIATE"] = lambda real: (
            real.execute("PRAGMA max_page_count = 1"),
            real.execute("BEGIN IMMEDIATE"),
        )
        with pytest.raises(StoreUnavailable, match=r"full: make room"):
            await store.commit(big)
        assert (await thread_at(store)).n == 1
        driver.at["BEGIN IMMEDIATE"] = lambda real: (
            real.execute("PRAGMA max_page_count = 1000000"),
            real.execute("BEGIN IMMEDIATE"),
        )
        await store.commit(big)
        assert (await thread_at(store)).n == 2


async def test_a_value_that_fits_no_column_fails_alone(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        (first, second, third) = await start_all(store, 3)
        wide = commit_of(first)
        answers = await asyncio.gather(
            store.commit(evolve(wide, log=evolve(wide.log, at=2**70))),
            store.commit(commit_of(second)),
            store.commit(commit_of(third)),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [TooLarge, type(None), type(None)]
        assert [row.n for row in await rows(store, Threads())] == [1, 2, 2]


async def test_a_fault_of_the_driver_arrives_as_a_store_error(tmp_path: Path, driver: Driver) -> None:
    def break_down_twice(real: sqlite3.Connection) -> None:
        driver.at["BEGIN IMMEDIATE"] = break_down
        break_down(real)

    def break_down(real: sqlite3.Connection) -> None:
        raise fail(sqlite3.SQLITE_IOERR, "disk I/O error")

    async with store_at(tmp_path) as store:
        thread = await started(store)
        driver.at["BEGIN IMMEDIATE"] = break_down_twice
        with pytest.raises(
            StoreUnavailable, match=r"perdure\.db cannot be read or written \(disk I/O error\)"
        ):
            await store.commit(commit_of(thread))
        await store.commit(commit_of(thread))


@pytest.mark.parametrize("write", ["commit", "claim"])
async def test_a_lock_that_is_held_is_waited_for(tmp_path: Path, driver: Driver, write: str) -> None:
    async with store_at(tmp_path) as store:
        await store.start(start_of("free", owner=None))
        thread = await started(store)
        other = sqlite3.connect(tmp_path / "perdure.db", isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        refused: list[str] = []

        def meet_the_lock(real: sqlite3.Connection) -> None:
            try:
                real.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                refused.append(str(error))
                other.execute("COMMIT")
                raise

        driver.at["BEGIN IMMEDIATE"] = meet_the_lock
        if write == "commit":
            await store.commit(commit_of(thread))
        else:
            assert "free" in [
                c.thread.address.thread_id for c in (await store.claim(request_of("w2"))).claims
            ]
        assert refused == ["database is locked"]
        other.close()


async def test_a_lock_that_never_ends_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with store_at(tmp_path) as store:
        thread = await started(store)
        monkeypatch.setattr(_sqlite_batches, "PATIENCE", 0.0)
        other = sqlite3.connect(tmp_path / "perdure.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"another process has kept .*perdure\.db locked"):
            await store.commit(commit_of(thread))
        other.close()
        await store.commit(commit_of(thread))


async def test_a_claim_that_finds_nothing_only_reads(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        await store.beat(worker_of("w1"))
        await started(store)
        other = sqlite3.connect(tmp_path / "perdure.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        claimed = await store.claim(request_of("w2"))
        assert claimed.claims == ()
        other.close()


async def test_a_claim_looks_again_where_another_process_wrote_since_it_looked(
    tmp_path: Path, driver: Driver
) -> None:
    async with store_at(tmp_path) as store:
        await store.beat(worker_of("w1"))
        await store.beat(worker_of("w2"))
        await store.start(start_of("t0", owner=None))

        def taken_meanwhile(real: sqlite3.Connection) -> object:
            other = sqlite3.connect(tmp_path / "perdure.db", isolation_level=None)
            other.execute("UPDATE standing SET owner = 'w1', epoch = epoch + 1")
            other.close()
            return real.execute("UPDATE standing SET n = n")  # what begins to write now is out of date

        driver.at["UPDATE standing SET owner"] = taken_meanwhile
        claimed = await store.claim(request_of("w2"))
        assert driver.at == {}
        assert claimed.claims == ()
        assert (await thread_at(store, "t0")).owner == "w1"


async def test_a_reader_that_pauses_keeps_no_writer_waiting(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        thread = await started(store)
        for _ in range(10):
            thread = await committed(store, thread)
        page = await store.page(Log(address=address_of()), limit=3)
        size = (tmp_path / "perdure.db-wal").stat().st_size
        for _ in range(300):
            thread = await committed(store, thread, payload=os.urandom(8000))
        # Where a page kept its read open, the write-ahead log could never be begun anew.
        assert (tmp_path / "perdure.db-wal").stat().st_size < size + 3_000_000
        rest = await store.page(Log(address=address_of()), after=page.next, limit=1000)
        assert [row.n for row in (*page.rows, *rest.rows)] == list(range(311))


async def test_a_visit_is_found_wherever_it_lies(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        thread = await started(store)
        wanted: dict[int, list[LogRow]] = {0: [start_of().log]}
        for i in range(60):
            commit = commit_of(thread, "transition" if i % 4 == 0 or i > 50 else "record")
            await store.commit(commit)
            wanted.setdefault(commit.log.seq, []).append(commit.log)
            thread = after(thread, commit)
        for seq, visit in wanted.items():
            assert list(await rows(store, Log(address=address_of(), seq=seq), limit=2)) == visit
        for seq in (-1, len(wanted), 2**63 - 1, 2**80):
            assert await rows(store, Log(address=address_of(), seq=seq)) == ()


async def test_a_filter_that_no_row_can_match_gives_none(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        await started(store)
        assert await rows(store, Threads(state="\ud800")) == ()
        assert await rows(store, Messages(workspace=WORKSPACE, session="talk", since=2**70)) == ()


async def test_a_small_change_costs_few_bytes(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        threads = await start_all(store, 50)
    before = (tmp_path / "perdure.db").stat().st_size
    delta = os.urandom(110)
    async with store_at(tmp_path) as store:
        for _ in range(100):
            commits = [commit_of(thread, payload=delta) for thread in threads]
            await asyncio.gather(*map(store.commit, commits))
            threads = [after(thread, commit) for thread, commit in zip(threads, commits, strict=True)]
    assert ((tmp_path / "perdure.db").stat().st_size - before) / 5000 < 250


async def test_claims_of_many_threads_take_few_statements(tmp_path: Path, driver: Driver) -> None:
    async with store_at(tmp_path) as store:
        threads = await start_all(store, 200)
        await asyncio.gather(*(store.commit(commit_of(thread, items=b"item")) for thread in threads))
        await asyncio.gather(*(store.deliver(signal_of("s", f"t{i}")) for i in range(200)))
        driver.statements.clear()
        claimed = await store.claim(request_of("w2", limit=200))
        assert {len(claim.log) for claim in claimed.claims} == {2}
        assert {len(claim.items) for claim in claimed.claims} == {1}
        assert {len(claim.inbox) for claim in claimed.claims} == {1}
        assert len(claimed.claims) == 200
        assert len(driver.statements) < 40


async def test_a_claim_takes_of_every_kind_and_never_more_than_its_limit(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        for i in range(3):
            await started(store, f"free{i}", owner=None)
            await started(store, f"due{i}", owner=None, status="waiting", wake=5)
            await started(store, f"left{i}", owner="w-dead")
        claims = [(await store.claim(request_of("w2", limit=3))).claims for _ in range(4)]
    taken = [[claim.thread.address.thread_id for claim in some] for some in claims]
    assert {name for some in taken for name in some} == {
        f"{k}{i}" for k in ("free", "due", "left") for i in range(3)
    }
    assert list(map(len, taken)) == [3, 3, 3, 0]


async def test_a_claim_has_the_whole_visit_wherever_the_base_lies(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        thread = await started(store)
        thread = await committed(store, thread)
        for _ in range(3):
            thread = await committed(store, thread, "record")
        based = evolve(thread.standing, base=4)
        thread = await committed(store, thread, "record", standing=based, release=True)
        (claim,) = (await store.claim(request_of("w2"))).claims
        assert [row.n for row in claim.log] == [1, 2, 3, 4, 5]


async def test_the_store_can_be_opened_again_and_refuses_between(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    async with store:
        thread = await started(store)
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.commit(commit_of(thread))
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.page(Threads())
    async with store:
        await store.commit(commit_of(thread))


async def test_closing_finishes_what_was_begun(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        thread = await started(store)
        writing = asyncio.create_task(store.commit(commit_of(thread)))
        await asyncio.sleep(0)
    assert writing.done()
    await writing
    async with store_at(tmp_path) as store:
        assert (await thread_at(store)).n == 2


async def test_large_bodies_share_no_transaction(tmp_path: Path, driver: Driver) -> None:
    async with store_at(tmp_path) as store:
        threads = await start_all(store, 5)
        driver.statements.clear()
        bodies = (os.urandom(237_500),) * 8
        await asyncio.gather(*(store.commit(commit_of(thread, messages=bodies)) for thread in threads))
        assert driver.count("COMMIT") == 3
