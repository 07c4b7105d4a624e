"""A deploy: 200 live threads under version 1, rolling to version 2 with both alive, back, and forward again.

Nothing is lost and nothing is run twice, by the count of receivers that know nothing of threads; and what
``perdure check`` says before is what version 2 then does, with its upcasters and without them.
"""

from __future__ import annotations

from asyncio import sleep
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from deploy_desk import Approval1, Approval2, Order1, kind, version_1, version_2
from harness.engine import Engine, Reply, Sim, simulated
from harness.loop import SimLoop

from perdure.runtime._check import Checker
from perdure.runtime._check_store import Report, live_threads
from perdure.runtime._verify import verify
from perdure.stores import ThreadRow, Threads

NAMES = ("Desk", "Post")
OLD = [version_1(name) for name in NAMES]
NEW = [version_2(name) for name in NAMES]
BARE = [version_2(name, upcasters=False) for name in NAMES]

KINDS = (
    "lapsed",  # waits, and its timer is due before anybody looks again
    "failed",  # parked, its attempts are used up
    "waiting",  # waits, its timer runs
    "signalled",  # waits, an approval has come
    "postponed",  # waits, and a signal has come that it does not take yet
    "in doubt",  # parked: nobody can be asked
    "charged",  # in a step: charged, and killed before it heard so
    "lost",  # in a step: killed before the charge arrived
    "shipping",  # in a step: charged, and killed while it shipped
    "retrying",  # in a step that has failed once
    "fresh",  # started, and nobody has looked at it
)
EACH = 9
"""Threads of each kind and machine; and one more of each machine that waits."""


def items(what: str) -> list[str]:
    return [f"{what}/{n}" for n in range(EACH + (what == "waiting"))]


def machine(machines: Sequence[Any], name: str) -> Any:
    return machines[NAMES.index(name)]


class Drill:
    """The threads of one store, and the processes that run them."""

    def __init__(self, loop: SimLoop) -> None:
        self.sim = Sim(loop, *OLD)
        self.world = self.sim.world

    async def begin(self) -> None:
        """Threads of each kind under version 1, and no process left."""
        first = await self.sim.engine(*OLD, poll=timedelta(minutes=1), lease=timedelta(hours=1))
        await self._start(first, "lapsed")
        await self._start(first, "failed")
        await sleep(29 * 60)
        for what in ("waiting", "signalled", "postponed", "in doubt"):
            await self._start(first, what)
        self._line_up()
        await self._approve(OLD, "in doubt")
        await sleep(20)
        for what in ("charged", "lost", "shipping", "retrying"):
            await self._start(first, what)
        await sleep(2)
        first.kill(known=True)
        await self._approve(OLD, "signalled")
        for name, item in self._all("postponed"):
            desk = machine(OLD, name)
            await self._thread(desk, item).signal(desk.hurry, Approval1(by="bob", amount=1.0), id="hurry")
        await self._start(None, "fresh")
        await sleep(5 * 60)  # nobody runs: timers and retries are late

    def _line_up(self) -> None:
        count = EACH * len(NAMES)
        self.world.reply("tell in doubt", *[Reply(error=ConnectionError("lost"))] * count)
        self.world.reply("charge charged", *[Reply(hangs=True)] * count)
        self.world.reply("charge lost", *[Reply(lands=None, hangs=True)] * count)
        self.world.reply("ship shipping", *[Reply(hangs=True)] * count)

    def _all(self, what: str) -> list[tuple[str, str]]:
        return [(name, item) for name in NAMES for item in items(what)]

    async def _start(self, engine: Engine | None, what: str) -> None:
        for name, item in self._all(what):
            desk, given = machine(OLD, name), Order1(item=item, price=2.5)
            thread_id = f"{name} {item}"
            if engine is None:
                client = self.sim.client(*OLD)
                await client.start(desk, given, thread_id=thread_id, workspace="w")
            else:
                await engine.start(desk, given, thread_id=thread_id)
        await sleep(1)

    def _thread(self, desk: Any, item: str) -> Any:
        return self.sim.thread(desk, f"{desk._definition.name} {item}")

    async def _approve(self, machines: Sequence[Any], what: str) -> None:
        for name, item in self._all(what):
            await self.approve(machine(machines, name), f"{name} {item}")

    async def approve(self, desk: Any, thread_id: str) -> None:
        """As one who has that version's code."""
        old = desk._definition.version == 1
        said = Approval1(by="ada", amount=1.0) if old else Approval2(by="ada", amounts=[1.0])
        await self.sim.thread(desk, thread_id).signal(desk.approve, said, id="approve")

    async def approve_half(self, machines: Sequence[Any]) -> None:
        """Every second one that waits, by a client that has only that version's code."""
        for n, (thread, row) in enumerate((await self.rows()).items()):
            if n % 2 and row.standing.status == "waiting" and row.standing.version == 1:
                await self.approve(machine(machines, row.machine), thread)

    async def approve_rest(self) -> None:
        """Every one that waits, by a client that has the code by which the thread was written."""
        for thread, row in (await self.rows()).items():
            if row.standing.status == "waiting":
                machines = OLD if row.standing.version == 1 else NEW
                await self.approve(machine(machines, row.machine), thread)

    async def retry_all(self, what: str) -> None:
        for name, item in self._all(what):
            await self._thread(machine(NEW, name), item).retry()

    # --- looking ----------------------------------------------------------------------------------

    def assert_nothing_ran_twice(self) -> None:
        """By the receivers' own count: one key for each thread's effect, and one arrival of it where keys are
        not remembered; and what was paid for was paid for once. Two threads have an item of each name."""
        keys: defaultdict[tuple[str, Any], list[str]] = defaultdict(list)
        for arrival in self.world.arrivals:
            keys[arrival.name.partition(" ")[0], arrival.args[0]].append(arrival.key)
        assert len(keys) == 2 * (len(KINDS) * EACH + 1) + EACH
        for (effect, item), found in keys.items():
            assert len(set(found)) == 2, (effect, item)
            assert effect == "ship" or len(found) == 2, (effect, item)
        assert {n for _, n in Counter(self.world.asked).items()} == {2}

    async def assert_nothing_is_lost(self, rows: Mapping[str, ThreadRow]) -> None:
        """Each thread's data says what happened to it, its record holds, and each signal counted once."""
        for thread, row in rows.items():
            data = await self.sim.thread(machine(NEW, row.machine), thread).data()
            happened = ["bought at rate", "told"][: 2 if row.standing.state == "done" else 1]
            assert list(data.done) == happened, thread
            assert (data.title, list(data.prices)) == (thread.partition(" ")[2], [2.5])
            assert (await verify(self.sim.store, row)).broken is None
            taken = [e["id"] for e in await self.sim.entries("signal", thread)]
            assert taken == ([] if row.standing.state == "lapsed" else ["approve"]), thread

    async def rows(self) -> dict[str, ThreadRow]:
        return {row.address.thread_id: row for row in await self.sim.store_rows(Threads())}

    async def check(self, machines: Sequence[Any]) -> set[str]:
        """Threads that these machines would not go on with."""
        definitions = {m._definition.name: m._definition for m in machines}
        checker = await Checker.of(self.sim.store, definitions, self.sim.env)
        report = Report()
        async for row in live_threads(self.sim.store):
            checked = await checker.thread(row)
            assert checked is not None
            report.take(checked)
        return {checked.thread.address.thread_id for checked in report.stopped}


def kind_of(thread: str) -> str:
    return kind(thread.partition(" ")[2])


def _where(row: ThreadRow) -> tuple[str, str]:
    return row.standing.status, row.standing.state


def kinds(threads: Sequence[str] | set[str]) -> Counter[str]:
    """How many of each machine and kind."""
    return Counter(thread.partition("/")[0] for thread in threads)


THERE = {
    ("lapsed", "waiting", "review", None): 18,
    ("failed", "parked", "buying", "failed"): 18,
    ("waiting", "waiting", "review", None): 20,
    ("signalled", "waiting", "review", None): 18,
    ("postponed", "waiting", "review", None): 18,
    ("in doubt", "parked", "telling", "in doubt"): 18,
    ("charged", "running", "buying", None): 18,
    ("lost", "running", "buying", None): 18,
    ("shipping", "running", "buying", None): 18,
    ("retrying", "waiting", "buying", None): 18,
    ("fresh", "running", "buying", None): 18,
}
"""Kind, status, state, reason."""

PARK_WITHOUT_UPCASTERS = {
    # All of Desk, whose data is another; of Post, whose data is not, where a state, a payload or the
    # arguments of a call are in the way.
    **{f"Desk {what}": EACH for what in KINDS},
    "Desk waiting": EACH + 1,
    **{f"Post {what}": EACH for what in ("lapsed", "signalled", "postponed", "charged", "lost", "shipping")},
    "Post waiting": EACH + 1,
}


@simulated
async def test_check_names_exactly_the_threads_that_park_without_upcasters(loop: SimLoop) -> None:
    drill = Drill(loop)
    await drill.begin()
    before = await drill.rows()
    assert len(before) == 200
    assert Counter((kind_of(t), *_where(row), row.standing.reason) for t, row in before.items()) == THERE
    said = await drill.check(BARE)
    assert await drill.rows() == before
    assert kinds(said) == PARK_WITHOUT_UPCASTERS
    await drill.sim.engine(*BARE)
    await sleep(5)
    # Each is looked at: what waits is sent a signal, and what is parked already is retried.
    for thread, row in (await drill.rows()).items():
        if before[thread].standing.status == "parked":
            await drill.sim.thread(machine(BARE, row.machine), thread).retry()
        elif row.standing.status == "waiting":
            await drill.approve(machine(BARE, row.machine), thread)
    await sleep(30)
    rows = await drill.rows()
    assert {thread for thread, row in rows.items() if row.standing.reason == "unreadable"} == said
    others = Counter((kind_of(t), *_where(row)) for t, row in rows.items() if t not in said)
    assert others == {
        ("failed", "waiting", "approval"): EACH,  # on its way again
        ("in doubt", "parked", "telling"): EACH,
        ("retrying", "ended", "done"): EACH,
        ("fresh", "ended", "done"): EACH,
    }


# --- the drill ------------------------------------------------------------------------------------


async def written_by(drill: Drill) -> Counter[int]:
    """How many threads each version wrote to last."""
    return Counter(row.standing.version for row in (await drill.rows()).values())


@simulated
async def test_rolling_to_version_2_and_back_and_forward_again(loop: SimLoop) -> None:
    drill = Drill(loop)
    await drill.begin()
    assert await drill.check(OLD) == await drill.check(NEW) == set()

    # Rolling: both are alive, and each has some of the threads.
    old = await drill.sim.engine(*OLD, concurrency=40)
    new = await drill.sim.engine(*NEW)
    await sleep(30)
    assert min((await written_by(drill)).values()) > 40
    await drill.approve_half(OLD)
    await sleep(30)

    # Back to version 1: what version 2 has written waits, and says what for.
    new.kill(known=True)
    await sleep(1)
    before = await drill.rows()
    await drill.approve_rest()
    await sleep(30)
    rows = await drill.rows()
    for thread, row in rows.items():
        if before[thread].standing.version == 2:
            assert (row.n, row.standing.version) == (before[thread].n, 2)
            if row.standing.status != "ended":
                why = await drill.sim.thread(machine(OLD, row.machine), thread).why()
                assert "needs version >= 2" in why
    assert await drill.check(OLD) == {
        thread for thread, row in rows.items() if row.standing.version == 2 and row.standing.status != "ended"
    }

    # Forward again, and an operator looks after what was parked.
    old.kill(known=True)
    await drill.sim.engine(*NEW)
    await sleep(30)
    await drill.retry_all("failed")
    await sleep(30)
    await drill.approve_rest()
    await sleep(30)
    rows = await drill.rows()
    assert Counter((kind_of(t), *_where(row)) for t, row in rows.items()) == {
        **{(what, "ended", "done"): 2 * EACH for what in KINDS if what not in ("lapsed", "in doubt")},
        ("waiting", "ended", "done"): 2 * EACH + 2,
        ("lapsed", "ended", "lapsed"): 2 * EACH,
        ("in doubt", "parked", "telling"): 2 * EACH,
    }
    assert await drill.check(NEW) == set()
    drill.assert_nothing_ran_twice()
    await drill.assert_nothing_is_lost(rows)
