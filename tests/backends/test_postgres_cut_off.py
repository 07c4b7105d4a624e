"""Two workers on one PostgreSQL, each behind a network of its own, of which one fails: nothing twice."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import pytest
from attrs import define, field
from servers.proxy import Proxy, proxy

from perdure import ABSENT, Absent, Call, Fire, Found, Machine, Runtime, State, Step, Unknown, effect, record
from perdure.runtime import Observation
from perdure.stores import Log, Threads
from perdure.stores._contract_kit import rows
from perdure.stores._postgres import PostgresStore

pytestmark = pytest.mark.anyio

THREADS, TRANSITIONS = 30, 10
CUT_AFTER = 20
"""Transitions of the worker that is then cut off."""
FREE = CUT_AFTER + THREADS
"""So many effects are answered at once. A thread has one under way, so CUT_AFTER of them make transitions."""
HELD = 5
"""So many effects at least are under way when it is."""


@define
class World:
    """What effects arrive at; it is behind none of the networks."""

    arrived: Counter[str] = field(factory=Counter[str])
    found: int = 0
    held: int = 0
    goes_on: anyio.Event = field(factory=anyio.Event)
    """Effects behind the first ``FREE`` are not answered before: however late the other worker comes, there
    is work left for it."""

    async def arrive(self, key: str) -> None:
        self.arrived[key] += 1
        if len(self.arrived) > FREE:
            self.held += 1
            await self.goes_on.wait()
        await anyio.lowlevel.checkpoint()

    def find(self, key: str) -> bool:
        self.found += key in self.arrived
        return key in self.arrived


@record
class Count:
    number: int = 0


@effect(deadline=timedelta(seconds=2), settle=timedelta(0))
async def charge(call: Call[World], number: int) -> int:
    await call.deps.arrive(call.key)
    return number


@charge.lookup
async def find_charge(call: Call[World], number: int) -> Found[int] | Absent | Unknown:
    return Found(number) if call.deps.find(call.key) else ABSENT


class Charging(Machine[Count, World], version=1, calls=[charge]):
    """A few effects, one in each step."""

    charging = State(initial=True)
    done = State(final=True)
    again = charging.to(charging)
    finished = charging.to(done)

    @charging.handler
    async def work(self, data: Count, step: Step[World]) -> Fire:
        fire = self.finished if data.number == TRANSITIONS - 1 else self.again
        return fire(number=1 + await step.call(charge, data.number))


@define
class Landed:
    """Counts a worker's transitions, and tells when there were enough."""

    enough: anyio.Event = field(factory=anyio.Event)
    count: int = 0

    def observe(self, seen: Observation, /) -> None:
        self.count += seen.event is not None
        if self.count >= CUT_AFTER:
            self.enough.set()


def worker(world: World, between: Proxy, url: str, landed: Landed) -> Runtime[World]:
    at = urlsplit(url)._replace(netloc=f"postgres@127.0.0.1:{between.port}")
    return Runtime(
        machines=[Charging],
        deps=world,
        store=f"{at.geturl()}&timeout=1",
        artifacts="memory:",
        lease=timedelta(seconds=2),
        poll=timedelta(milliseconds=100),
        grace=timedelta(seconds=1),
        observers=[landed],
    )


@pytest.mark.parametrize("late", [False, True])
async def test_a_worker_that_is_cut_off_past_its_lease_is_fenced_and_does_nothing_twice(
    late: bool, postgres_schema: str
) -> None:
    """Reconnected while the other goes on with its threads, or late, when they have ended."""
    at, world = urlsplit(postgres_schema), World()
    first, second = Landed(), Landed()
    assert at.hostname is not None
    assert at.port is not None
    with anyio.fail_after(90):
        async with (
            proxy(at.hostname, at.port) as bad,
            proxy(at.hostname, at.port) as good,
            PostgresStore(postgres_schema) as direct,
            worker(world, bad, postgres_schema, first) as one,
        ):
            async with anyio.create_task_group() as starts:
                for number in range(THREADS):
                    starts.start_soon(partial(one.start, Charging, Count(), thread_id=f"t{number}"))
            async with worker(world, good, postgres_schema, second):
                await first.enough.wait()
                while world.held < HELD:
                    await anyio.lowlevel.checkpoint()
                bad.fall_silent()
                world.goes_on.set()
                [owned] = {row.owner for row in await rows(direct, Threads(status="running"))}
                while await rows(direct, Threads(status="running", owner=owned)):
                    """Until the other has taken all of them."""
                while late and await rows(direct, Threads(status="running")):
                    """And brought them to their ends."""
                bad.resume()
                again = await one.start(Charging, Count(), thread_id="again")
                assert (await again.result()).data == Count(number=TRANSITIONS)
                while await rows(direct, Threads(status="running")):
                    """Until the rest has ended too."""
            await judge(direct, world)
    assert second.count > TRANSITIONS
    assert world.found >= HELD, "the other was to ask for what was in doubt"


async def judge(store: PostgresStore, world: World) -> None:
    """Each transition and each effect came once."""
    threads = await rows(store, Threads())
    assert len(threads) == THREADS + 1
    for thread in threads:
        assert (thread.standing.status, thread.standing.state) == ("ended", "done")
        log = await rows(store, Log(address=thread.address))
        assert [row.n for row in log] == list(range(thread.n))
        assert [row.seq for row in log if row.kind == "transition"] == list(range(1, TRANSITIONS + 1))
    assert len(world.arrived) == len(threads) * TRANSITIONS
    assert set(world.arrived.values()) == {1}
