"""Calls within limits: how many at once, how many a minute, over all workers, and what waits for its turn."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from datetime import timedelta
from typing import Any

import pytest
from attrs import define, field
from harness.engine import Engine, Note, Sim, World, every, job, simulated
from harness.loop import SimLoop

from perdure.machines import Call, DefinitionError, Limit, Retry, Step, effect, read
from perdure.runtime import Runtime
from perdure.runtime._env import Env
from perdure.runtime._permits import Permits
from perdure.stores import MemoryStore, OutcomeUnknown, Share, Shared, WorkerRow

MINUTE = 60.0
LEASE = 15.0


@define
class Meter:
    """What a receiver sees: when calls began, by whom, and how many were under way."""

    loop: SimLoop
    takes: float = 1.0
    began: list[tuple[float, str]] = field(factory=list[tuple[float, str]])
    now: int = 0
    most: int = 0

    async def serve(self, who: str) -> str:
        self.began.append((self.loop.elapsed, who))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await sleep(self.takes)
        finally:
            self.now -= 1
        return who

    def busiest_minute(self) -> int:
        times = [at for at, _ in self.began]
        return max(sum(at <= other < at + MINUTE for other in times) for at in times)


def asking(meter: Meter, limit: Limit, **options: Any) -> Any:
    """A machine whose threads each make one limited read."""

    @read(limit=limit)
    async def asked(call: Call[World], who: str) -> str:
        return await meter.serve(who)

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(asked, data.more or ""))

    return job(body, name="Asking", calls=[asked], **options)


def acting(meter: Meter, limit: Limit, **options: Any) -> Any:
    """A machine whose threads each make one limited effect; its receiver knows no keys and no lookup."""

    @effect(limit=limit, deadline=timedelta(seconds=10))
    async def acted(call: Call[World], who: str) -> str:
        return await meter.serve(who)

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(acted, data.more or ""))

    return job(body, name="Acting", calls=[acted], **options)


async def start(engine: Engine, machine: Any, *names: str) -> None:
    for name in names:
        await engine.start(machine, Note(more=name), thread_id=name)


async def all_ended(sim: Sim, *names: str) -> None:
    for name in names:
        row = await sim.until("ended", "parked", thread_id=name)
        assert row.standing.status == "ended", row.standing


def names(prefix: str, n: int) -> list[str]:
    return [f"{prefix}{i:03}" for i in range(n)]


def shares(engine: Engine) -> list[Any]:
    return [write for method, write in engine.store.writes if method == "share"]


@simulated
async def test_calls_wait_for_a_slot_first_come_first_served(loop: SimLoop) -> None:
    meter = Meter(loop)
    machine = asking(meter, Limit("api", at_once=2))
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await start(engine, machine, *names("t", 7))
    await all_ended(sim, *names("t", 7))
    assert [who for _, who in meter.began] == names("t", 7)
    assert [round(at, 2) for at, _ in meter.began] == [0, 0, 1, 1, 2, 2, 3]
    assert meter.most == 2


@simulated
async def test_many_that_wait_ask_the_store_together(loop: SimLoop) -> None:
    meter = Meter(loop)
    machine = asking(meter, Limit("api", per_minute=10_000))
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await asyncio.gather(*(start(engine, machine, name) for name in names("t", 100)))
    await all_ended(sim, *names("t", 100))
    assert len(meter.began) == 100
    assert len(shares(engine)) < 10


@simulated
async def test_a_machine_without_limits_asks_for_none(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished()

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine)
    await sim.until("ended")
    await sleep(10)
    assert shares(engine) == []


@simulated
@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_never_more_a_minute_and_the_rate_is_reached(loop: SimLoop, workers: int) -> None:
    meter = Meter(loop, takes=0.2)
    machine = asking(meter, Limit("api", per_minute=30))
    sim = Sim(loop, machine)
    engines = [await sim.engine() for _ in range(workers)]
    for n, engine in enumerate(engines):
        await start(engine, machine, *names(f"w{n}-", 90 // workers))
    await sleep(2.5 * MINUTE)
    assert meter.busiest_minute() <= 30
    assert 66 <= len(meter.began) <= 78


@simulated
@pytest.mark.parametrize("workers", [2, 4])
async def test_never_more_at_once_over_all_workers_and_all_slots_are_used(
    loop: SimLoop, workers: int
) -> None:
    meter = Meter(loop, takes=2)
    machine = acting(meter, Limit("api", at_once=4))
    sim = Sim(loop, machine)
    engines = [await sim.engine() for _ in range(workers)]
    for n, engine in enumerate(engines):
        await start(engine, machine, *names(f"w{n}-", 120 // workers))
    await sleep(MINUTE)
    assert meter.most == 4
    assert len(meter.began) > 0.9 * 4 * MINUTE / 2
    first = [sum(who.startswith(f"w{n}-") for _, who in meter.began) for n in range(workers)]
    assert min(first) > 0.1 * len(meter.began), first  # a backlog here keeps nobody there from its turn


@simulated
async def test_both_at_once(loop: SimLoop) -> None:
    meter = Meter(loop, takes=6)
    machine = asking(meter, Limit("api", per_minute=60, at_once=3))
    sim = Sim(loop, machine)
    for engine in [await sim.engine(), await sim.engine()]:
        await start(engine, machine, *names(engine.id, 30))
    await sleep(90)
    assert meter.most == 3
    assert meter.busiest_minute() <= 60
    assert len(meter.began) >= 0.85 * 3 * 90 / 6


@simulated
async def test_slots_of_a_dead_worker_come_back_within_a_lease(loop: SimLoop) -> None:
    meter = Meter(loop, takes=3)
    machine = asking(meter, Limit("api", at_once=2))
    sim = Sim(loop, machine, lease=timedelta(seconds=LEASE))
    first = await sim.engine()
    second = await sim.engine()
    await start(first, machine, "a", "b")
    await sleep(0.1)
    await start(second, machine, "c")
    await sleep(0.1)
    first.kill()
    sim.gone.clear()  # nobody can tell that its process is gone
    await all_ended(sim, "c")
    (at,) = [at for at, who in meter.began if who == "c"]
    assert 3 < at <= 0.2 + LEASE + 1
    await all_ended(sim, "a", "b")


@simulated
async def test_slots_that_nobody_uses_go_back(loop: SimLoop) -> None:
    meter = Meter(loop)
    machine = asking(meter, Limit("api", at_once=1))
    sim = Sim(loop, machine)
    first = await sim.engine()
    second = await sim.engine()
    await start(first, machine, "a")
    await all_ended(sim, "a")
    await start(second, machine, "b")
    await all_ended(sim, "b")
    assert meter.began[0][0] == 0
    assert meter.began[1][0] < 4


@simulated
async def test_an_effect_that_waits_has_no_intent_and_a_drain_uses_no_attempt(loop: SimLoop) -> None:
    meter = Meter(loop, takes=8)
    machine = acting(meter, Limit("api", at_once=1), retry=Retry(attempts=1))
    sim = Sim(loop, machine, grace=timedelta(seconds=1))
    engine = await sim.engine()
    other = await sim.engine()
    await start(other, machine, "a")
    await sleep(1)
    await start(engine, machine, "b")
    await sleep(1)
    assert await sim.commits("b") == ["start"]
    await engine.end()
    assert loop.elapsed == 3
    row = await sim.row("b")
    assert (row.standing.status, row.owner) == ("running", None)
    assert await sim.commits("b") == ["start"]
    await all_ended(sim, "a", "b")
    assert await sim.entries("failed", "b") == []
    assert [who for _, who in meter.began] == ["a", "b"]


@simulated
@pytest.mark.parametrize("kind", [asking, acting])
async def test_a_deadline_ends_the_wait_and_uses_an_attempt(loop: SimLoop, kind: Any) -> None:
    meter = Meter(loop, takes=8)
    options = {"retry": Retry(attempts=1), "deadline": timedelta(seconds=3)}
    limit = Limit("api", at_once=1)
    slow, quick = kind(meter, limit), kind(meter, limit, **options)
    sim = Sim(loop, slow)
    engine = await sim.engine()
    other = await sim.engine(quick)
    await start(engine, slow, "a")
    await sleep(1)
    await start(other, quick, "b")
    row = await sim.until("parked", thread_id="b")
    assert loop.elapsed == 4
    assert row.standing.reason == "failed"
    assert "no event within the deadline" in (row.standing.note or "")
    assert await sim.entries("intent", "b") == []
    await start(engine, slow, "c")
    await all_ended(sim, "a", "c")  # and the slot was not lost with it


@simulated
async def test_what_was_issued_already_is_settled_though_its_limit_is_taken(loop: SimLoop) -> None:
    """An effect in doubt waits for its turn like any other, and is brought to its outcome."""
    limit, meter = Limit("api", at_once=1), Meter(loop)
    fails = [ConnectionError("lost")]

    @effect(limit=limit, idempotent=True, deadline=timedelta(seconds=10))
    async def acted(call: Call[World], who: str) -> str:
        await meter.serve(who)
        if who == "a" and fails:
            raise fails.pop()
        return who

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(acted, data.more or ""))

    machine = job(body, calls=[acted], retry=Retry(attempts=1))
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await start(engine, machine, "a", "b", "c")
    await all_ended(sim, "a", "b", "c")
    assert sorted(who for _, who in meter.began) == ["a", "a", "b", "c"]
    assert meter.most == 1


@simulated
async def test_an_explicit_key_that_another_thread_holds_keeps_nobody_from_the_limit(loop: SimLoop) -> None:
    limit, meter = Limit("api", at_once=1), Meter(loop)
    fails = [ConnectionError("lost")]

    @effect(limit=limit, idempotent=True, deadline=timedelta(seconds=10))
    async def acted(call: Call[World], who: str) -> str:
        await meter.serve(who)
        if fails:
            raise fails.pop()
        return who

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(acted.keyed("k"), "same"))

    machine = job(body, calls=[acted])
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await start(engine, machine, "a", "b", "c")
    await all_ended(sim, "a", "b", "c")
    assert len(meter.began) == 2  # issued twice by the one that has the key, served to the others
    assert loop.elapsed < 10


@simulated
async def test_a_worker_that_lost_its_lease_issues_nothing_and_then_asks_anew(loop: SimLoop) -> None:
    meter, limit = Meter(loop, takes=0.5), Limit("api", at_once=1)
    one, other = asking(meter, limit), acting(meter, limit)
    sim = Sim(loop, one, lease=timedelta(seconds=LEASE))
    first, second = await sim.engine(one), await sim.engine(other)
    await start(first, one, *names("a", 70))
    await sleep(1.5)
    first.store.fault("refuse", every("beat"), times=8)  # one is due every five seconds
    await sleep(18)
    silent = len(meter.began)
    assert meter.began[-1][0] <= LEASE
    await start(second, other, *names("b", 90))
    await sleep(15)
    assert {who[0] for _, who in meter.began[silent:]} == {"b"}
    await sleep(40)
    assert {who[0] for _, who in meter.began[-25:]} == {"a", "b"}
    assert meter.most == 1


@define
class Holder:
    """What permits need of a worker."""

    env: Env
    lapses: int = 0
    has_others: bool = False

    def lease_holds(self) -> bool:
        return True


API = Limit("api", at_once=1)


async def permits_of(loop: SimLoop, store: MemoryStore, worker: str, way: Any = None) -> Permits:
    """A worker's part of the limit, without the worker; ``way``: its way to the store."""
    row = WorkerRow(id=worker, host="", pid=1, lock="", lease=10**12, started=0, beat=0)
    await store.beat(row)
    lease, poll = timedelta(seconds=LEASE), timedelta(seconds=0.5)
    holder = Holder(Env(now=loop.now))
    permits = Permits(way or store, worker, {"api": API}, holder, lease=lease, poll=poll)
    keeping = loop.create_task(permits.keep())
    loop.call_later(100, keeping.cancel)
    return permits


async def takes_soon(permits: Permits, within: float = 5) -> None:
    async with asyncio.timeout(within):
        await permits.take(API, lambda: None)


@simulated
async def test_a_call_that_is_cancelled_as_its_turn_comes_takes_no_slot_with_it(loop: SimLoop) -> None:
    permits = await permits_of(loop, MemoryStore(clock=loop.now), "one")
    await takes_soon(permits)
    second = loop.create_task(permits.take(API, lambda: None))
    await sleep(1)
    permits.give_back(API)
    second.cancel()
    await asyncio.wait([second])
    await takes_soon(permits)


@simulated
async def test_a_slot_that_was_held_before_the_lease_lapsed_goes_back(loop: SimLoop) -> None:
    store = MemoryStore(clock=loop.now)
    one, other = await permits_of(loop, store, "one"), await permits_of(loop, store, "other")
    await takes_soon(one)
    one.give_back(API)
    one._holder.lapses += 1  # type: ignore[misc]
    await takes_soon(other)


@simulated
async def test_a_wish_that_lands_late_keeps_no_slot(loop: SimLoop) -> None:
    store = MemoryStore(clock=loop.now)

    class Late:
        """The first wish lands four seconds after its reply was given up."""

        lost = False

        async def share(self, wish: Share, /) -> Shared:
            if self.lost:
                return await store.share(wish)
            self.lost = True
            loop.call_later(4, lambda: loop.create_task(store.share(wish)))
            raise OutcomeUnknown("the reply was lost")

    one, other = await permits_of(loop, store, "one", Late()), await permits_of(loop, store, "other")
    await takes_soon(one)
    one.give_back(API)
    await sleep(6)
    await takes_soon(other)


@simulated
async def test_lost_replies_lose_no_slot_and_no_call(loop: SimLoop) -> None:
    meter = Meter(loop, takes=1)
    machine = asking(meter, Limit("api", at_once=2, per_minute=600))
    sim = Sim(loop, machine)
    first = await sim.engine()
    second = await sim.engine()
    for engine in (first, second):
        engine.store.fault("lose after", every("share"), times=3)
        engine.store.fault("lose before", every("share"), skip=2, times=2)
        engine.store.fault("refuse", every("share"), skip=4, times=2)
    await start(first, machine, *names("a", 10))
    await start(second, machine, *names("b", 10))
    await all_ended(sim, *names("a", 10), *names("b", 10))
    assert meter.most <= 2
    assert len(meter.began) == 20
    assert loop.elapsed < 60


@simulated
async def test_a_call_that_waits_says_so(loop: SimLoop) -> None:
    meter, seen = Meter(loop, takes=2), list[Any]()

    class Seer:
        def observe(self, observation: Any, /) -> None:
            if observation.kind == "report":
                seen.append((observation.thread_id, dict(observation.progress)))

    machine = acting(meter, Limit("api", at_once=1))
    sim = Sim(loop, machine, observers=[Seer()])
    engine = await sim.engine()
    await start(engine, machine, "a")
    await sleep(1)
    await start(engine, machine, "b")
    await all_ended(sim, "a", "b")
    assert ("b", {"call": "acted", "waits_for": "api"}) in seen


def test_two_limits_of_one_name(tmp_path: Any) -> None:
    @read(limit=Limit("api", at_once=4))
    async def one(call: Call[World]) -> str: ...  # type: ignore[empty-body]

    @effect(limit=Limit("api", at_once=5, per_minute=60))
    async def two(call: Call[World]) -> str: ...  # type: ignore[empty-body]

    async def body(machine: Any, data: Note, step: Step[World]) -> Any: ...

    said = (
        r"Runtime: two limits are named 'api', of read one of A \(at_once=4\) and of effect two of B "
        r"\(per_minute=60, at_once=5\): share one Limit"
    )
    with pytest.raises(DefinitionError, match=said):
        Runtime(machines=[job(body, name="A", calls=[one]), job(body, name="B", calls=[two])])
