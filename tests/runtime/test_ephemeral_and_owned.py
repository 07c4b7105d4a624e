"""Fields that are not stored: caches, what the runtime owns, and what is derived."""

from __future__ import annotations

from asyncio import sleep
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import pytest
from harness.engine import CALLS, Sim, World, for_ever, fresh, simulated
from harness.loop import SimLoop

from perdure.machines import Ephemeral, Fire, Machine, Position, Retry, State, Step, record, runtime_owned


class Cache:
    """Of a type that cannot be stored."""

    def __init__(self, holds: str) -> None:
        self.holds = holds


@record
class Mixed:
    """One stored field, and one of each that is not."""

    text: str = ""
    cache: Annotated[Cache | None, Ephemeral()] = None
    at: int = runtime_owned(Position.seq)
    whose: str = runtime_owned(Position.thread_id)

    @property
    def loud(self) -> str:
        """Derived."""
        return self.text.upper()

    @property
    def warm(self) -> bool:
        """There is a cache."""
        return self.cache is not None


Seen = tuple[str, str | None, int, str, str]


def seen_of(data: Mixed) -> Seen:
    return data.text, None if data.cache is None else data.cache.holds, data.at, data.whose, data.loud


def steps(seen: list[Seen], between: Any = None, **options: Any) -> Any:
    """A machine of two steps; the first fills the cache, the second tells what it sees."""

    class Steps(Machine[Mixed, World], version=1, calls=CALLS):
        """Two steps."""

        first = State(initial=True)
        second = State(**options)
        done = State(final=True)
        filled = first.to(second)
        finished = second.to(done)

        @first.handler
        async def fill(self, data: Mixed, step: Step[World]) -> Fire:
            seen.append(seen_of(data))
            return self.filled(text="a", cache=Cache("warm"))

        @second.handler
        async def look(self, data: Mixed, step: Step[World]) -> Fire:
            seen.append(seen_of(data))
            if between is not None:
                await between(step)
            return self.finished(text="b")

    return Steps


async def stored(sim: Sim) -> set[str]:
    """Names of every field that the journal holds."""
    rows = await sim.rows()
    return {name for _, body in rows for name in (*(body.base or {}), *(body.delta or {}))}


@simulated
async def test_the_next_step_in_this_process_sees_the_cache(loop: SimLoop) -> None:
    seen: list[Seen] = []
    machine = steps(seen)
    sim = Sim(loop, machine)
    thread = await (await sim.engine()).start(machine, Mixed(cache=Cache("given")))
    await sim.until("ended")
    assert seen == [("", "given", 0, "t", ""), ("a", "warm", 1, "t", "A")]
    assert seen_of(await thread.data()) == ("b", None, 2, "t", "B")


@simulated
async def test_after_a_kill_it_is_its_default(loop: SimLoop) -> None:
    seen: list[Seen] = []

    async def hangs_once(step: Step[World]) -> None:
        if len(seen) == 2:
            await for_ever()

    machine = steps(seen, hangs_once)
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine, Mixed())
    await sleep(1)
    first.kill()
    await sim.engine()
    await sim.until("ended")
    assert seen[1:] == [("a", "warm", 1, "t", "A"), ("a", None, 1, "t", "A")]


@simulated
async def test_another_attempt_in_the_same_process_sees_the_default_where_the_thread_was_released(
    loop: SimLoop,
) -> None:
    seen: list[Seen] = []

    async def fails_once(step: Step[World]) -> None:
        if step.attempt == 1:
            raise ValueError

    machine = steps(seen, fails_once, retry=Retry(attempts=2, delay=timedelta(seconds=1)))
    sim = Sim(loop, machine)
    await (await sim.engine()).start(machine, Mixed())
    await sim.until("ended")
    assert [s[1] for s in seen] == [None, "warm", None]


@simulated
async def test_none_of_them_is_stored(loop: SimLoop) -> None:
    machine = steps([])
    sim = Sim(loop, machine)
    thread = await (await sim.engine()).start(machine, Mixed(cache=Cache("given")))
    await sim.until("ended")
    assert await stored(sim) == {"text"}
    assert await thread.stored_data() == {"text": "b"}
    assert b"warm" not in b"".join(row.payload or b"" for row, _ in await sim.rows())


class Cold(Machine[Mixed, World], version=1, calls=CALLS):
    """Goes one way where a guard sees the cache, and another where it does not."""

    working = State(initial=True)
    warm = State(final=True)
    cold = State(final=True)
    finished = working.to(warm, when=Mixed.warm) | working.to(cold)

    @working.handler
    async def work(self, data: Mixed, step: Step[World]) -> Fire:
        return self.finished(cache=Cache("warm"))


@simulated
async def test_a_guard_sees_the_default_as_a_resume_would(loop: SimLoop) -> None:
    sim = Sim(loop, Cold)
    await (await sim.engine()).start(Cold, Mixed())
    assert (await sim.until("ended")).standing.state == "cold"


class Counts(Machine[Mixed, World], version=1, calls=CALLS):
    """Its guard looks at what the runtime owns."""

    working = State(initial=True)
    done = State(final=True)
    again = working.to(done, when=lambda data: data.at == 3) | working.to(working)

    @working.handler
    async def work(self, data: Mixed, step: Step[World]) -> Fire:
        assert (data.at, data.whose) == (step.seq, step.thread_id)
        return self.again()


@simulated
async def test_a_guard_sees_the_owned_values_of_the_checkpoint_to_be(loop: SimLoop) -> None:
    sim = Sim(loop, Counts)
    await (await sim.engine()).start(Counts, Mixed())
    row = await sim.until("ended")
    assert (row.standing.state, row.standing.seq) == ("done", 3)


@pytest.mark.parametrize("field", ["at", "whose", "loud"])
@simulated
async def test_an_update_of_one_fails_the_attempt_by_name(loop: SimLoop, field: str) -> None:
    class Cheats(Machine[Mixed, World], version=1, calls=CALLS):
        """Sets what is not its own."""

        working = State(initial=True, retry=Retry(attempts=1))
        done = State(final=True)
        finished = working.to(done)

        @working.handler
        async def work(self, data: Mixed, step: Step[World]) -> Fire:
            wrong: dict[str, Any] = {field: "x"}
            return self.finished(**wrong)

    sim = Sim(loop, Cheats)
    await (await sim.engine()).start(Cheats, Mixed())
    row = await sim.until("parked")
    assert row.standing.reason == "failed"
    assert field in (row.standing.note or "")
    assert row.standing.seq == 0


@simulated
async def test_what_is_stored_of_the_start_is_the_same_whatever_the_cache_holds(loop: SimLoop) -> None:
    """So that starting it again with another cache is the same start."""
    machine = steps([])
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine, Mixed(text="x", cache=Cache("one")))
    await engine.start(machine, Mixed(text="x"))
    (start, *_) = await sim.rows()
    assert {k: msgspec.json.decode(v) for k, v in (start[1].base or {}).items()} == {"text": "x"}


@simulated
async def test_a_cache_filled_by_an_attempt_that_failed_is_not_seen(loop: SimLoop) -> None:
    seen: list[Seen] = []

    class Fails(Machine[Mixed, World], version=1, calls=CALLS):
        """Its first event is refused by its guard, after which it gives up."""

        working = State(initial=True)
        given_up = State()
        done = State(final=True)
        finished = working.to(done, when=lambda data: False)
        gave_up = working.to(given_up).on_failure()
        ended = given_up.to(done)

        @working.handler
        async def work(self, data: Mixed, step: Step[World]) -> Fire:
            await step.call(fresh, "r")
            return self.finished(cache=Cache("of the refused event"))

        @given_up.handler
        async def look(self, data: Mixed, step: Step[World]) -> Fire:
            seen.append(seen_of(data))
            return self.ended()

    sim = Sim(loop, Fails)
    await (await sim.engine()).start(Fails, Mixed(cache=Cache("given")))
    await sim.until("ended")
    assert [s[1] for s in seen] == ["given"]
