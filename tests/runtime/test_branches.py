"""Several handlers on one state: side by side, each with attempts of its own, one transition."""

from __future__ import annotations

import re
from asyncio import sleep
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

import pytest
from harness.engine import CALLS, HANG, Reply, Sim, World, bare, carrying, for_ever, fresh, looked, simulated
from harness.loop import SimLoop

from perdure.machines import (
    Append,
    Conversation,
    Fire,
    Machine,
    Merge,
    Message,
    Namespace,
    NotDone,
    Reducer,
    Retry,
    State,
    Step,
    record,
    replace,
)
from perdure.runtime import Resolution


def total(old: int, new: int) -> int:
    return old + new


@record
class Shared:
    """Data with a merge rule of each kind."""

    lines: Annotated[Sequence[str], Append()] = ()
    marks: Annotated[Mapping[str, str], Merge()] = {}
    sum: Annotated[int, Reducer(total)] = 0
    talk: Annotated[Sequence[Message], Conversation()] = ()
    one: str | None = None
    two: str | None = None
    three: str | None = None


Body = Callable[[Any, Shared, Step[World]], Any]
counts = Namespace("counts", int)
notes = Namespace("notes", str)
joined = Namespace("joined", str, merge=lambda stored, put: f"{stored}+{put}")


def three(one: Body, two: Body, last: Body) -> Any:
    """A machine whose first state has three branches."""

    class Three(Machine[Shared, World], version=1, calls=CALLS):
        """Three handlers on one state."""

        working = State(initial=True, retry=Retry(attempts=3, delay=timedelta(seconds=1)))
        done = State(final=True)
        other = State(final=True)
        finished = working.to(done)
        turned = working.to(other)

        @working.handler
        async def first(self, data: Shared, step: Step[World]) -> Fire:
            fire: Fire = await one(self, data, step)
            return fire

        @working.handler
        async def second(self, data: Shared, step: Step[World]) -> Fire:
            fire: Fire = await two(self, data, step)
            return fire

        @working.handler
        async def third(self, data: Shared, step: Step[World]) -> Fire:
            fire: Fire = await last(self, data, step)
            return fire

    return Three


async def nothing(machine: Any, data: Shared, step: Step[World]) -> Any:
    return machine.finished()


def after(seconds: float, **updates: Any) -> Body:
    async def body(machine: Any, data: Shared, step: Step[World]) -> Any:
        await sleep(seconds)
        return machine.finished(**updates)

    return body


def acting(what: str, **memory: Any) -> Body:
    """Makes an effect, and names its outcome in the field of the branch's name."""

    async def body(machine: Any, data: Shared, step: Step[World]) -> Any:
        return machine.finished(**{what: await step.call(looked, what)})

    return body


async def run(sim: Sim, machine: Any) -> Any:
    """Start a thread in a new process and wait until it ends or parks."""
    await (await sim.engine(machine)).start(machine, Shared())
    return await sim.until("ended", "parked")


async def data_of(sim: Sim, machine: Any) -> Shared:
    data: Shared = await sim.thread(machine).data()
    return data


# --- together ---------------------------------------------------------------------------------------


@simulated
async def test_branches_run_beside_each_other_and_end_in_one_transition(loop: SimLoop) -> None:
    machine = three(after(3, one="a"), after(5, two="b"), after(4, three="c"))
    sim = Sim(loop, machine)
    row = await run(sim, machine)
    assert loop.elapsed == 5
    assert row.standing.seq == 1
    data = await data_of(sim, machine)
    assert (data.one, data.two, data.three) == ("a", "b", "c")
    assert await sim.commits() == ["start", "record: branch", "record: branch", "transition: branch"]


@simulated
async def test_updates_merge_in_the_order_in_which_the_handlers_are_declared(loop: SimLoop) -> None:
    """And not in that in which they end."""

    def says(n: int, seconds: float) -> Body:
        return after(
            seconds,
            lines=[f"{n}a", f"{n}b"],
            marks={"last": str(n), str(n): "x"},
            sum=n,
            talk=[Message(role="user", content=str(n))],
        )

    machine = three(says(1, 3), says(2, 2), says(3, 1))
    sim = Sim(loop, machine)
    await run(sim, machine)
    data = await data_of(sim, machine)
    assert data.lines == ("1a", "1b", "2a", "2b", "3a", "3b")
    assert data.marks == {"last": "3", "1": "x", "2": "x", "3": "x"}
    assert data.sum == 6
    assert [message.content for message in data.talk] == ["1", "2", "3"]


@simulated
async def test_each_branch_has_a_lane_of_its_own_so_that_equal_calls_are_two_effects(loop: SimLoop) -> None:
    async def acts(machine: Any, data: Shared, step: Step[World]) -> Any:
        return machine.finished(lines=[await step.call(looked, "same")])

    machine = three(acts, acts, nothing)
    sim = Sim(loop, machine)
    await run(sim, machine)
    assert [(e["lane"], e["occ"]) for e in await sim.entries("intent")] == [("first", 0), ("second", 0)]
    assert len(set(sim.world.keys)) == 2
    assert (await data_of(sim, machine)).lines == ("looked-1", "looked-2")


# --- one that fails ---------------------------------------------------------------------------------


@simulated
async def test_a_failing_branch_does_not_cancel_its_siblings_and_has_attempts_of_its_own(
    loop: SimLoop,
) -> None:
    runs: list[tuple[str, int, float]] = []

    async def fails_twice(machine: Any, data: Shared, step: Step[World]) -> Any:
        runs.append(("one", step.attempt, loop.elapsed))
        if step.attempt < 3:
            raise ValueError
        return machine.finished(one="third time")

    async def takes_its_time(machine: Any, data: Shared, step: Step[World]) -> Any:
        runs.append(("two", step.attempt, loop.elapsed))
        await sleep(5)
        return machine.finished(two=await step.call(looked, "a"))

    machine = three(fails_twice, takes_its_time, nothing)
    sim = Sim(loop, machine)
    row = await run(sim, machine)
    assert row.standing.status == "ended"
    # The sibling's five seconds pass first; after that only the one that failed runs again.
    assert runs == [("one", 1, 0), ("two", 1, 0), ("one", 2, 6), ("one", 3, 8)]
    assert [(e["lane"], e["attempt"]) for e in await sim.entries("failed")] == [("first", 1), ("first", 2)]
    assert len(sim.world.arrivals) == 1
    data = await data_of(sim, machine)
    assert (data.one, data.two) == ("third time", "looked-1")


@simulated
async def test_two_failing_branches_count_apart_and_are_due_apart(loop: SimLoop) -> None:
    runs: list[tuple[str, int]] = []

    def fails(name: str, times: int) -> Body:
        async def body(machine: Any, data: Shared, step: Step[World]) -> Any:
            runs.append((name, step.attempt))
            if step.attempt <= times:
                raise ValueError(name)
            return machine.finished()

        return body

    machine = three(fails("one", 2), fails("two", 1), nothing)
    sim = Sim(loop, machine)
    row = await run(sim, machine)
    assert row.standing.status == "ended"
    assert runs == [("one", 1), ("two", 1), ("one", 2), ("two", 2), ("one", 3)]


@simulated
async def test_branches_due_at_different_times_wait_for_each_other(loop: SimLoop) -> None:
    """At odds after one of them had failed alone: their next attempts are due a second apart."""
    runs: list[tuple[str, int, float]] = []

    async def turns_first(machine: Any, data: Shared, step: Step[World]) -> Any:
        runs.append(("one", step.attempt, loop.elapsed))
        return machine.turned() if step.attempt == 1 else machine.finished(one="a")

    async def fails_first(machine: Any, data: Shared, step: Step[World]) -> Any:
        runs.append(("two", step.attempt, loop.elapsed))
        if step.attempt == 1:
            raise ValueError
        return machine.finished(two="b")

    machine = three(turns_first, fails_first, nothing)
    sim = Sim(loop, machine)
    row = await run(sim, machine)
    assert row.standing.status == "ended"
    assert runs == [("one", 1, 0), ("two", 1, 0), ("two", 2, 1), ("one", 2, 2), ("two", 3, 3)]
    data = await data_of(sim, machine)
    assert (data.one, data.two) == ("a", "b")


@simulated
async def test_when_one_branch_has_used_its_attempts_the_visit_has_failed(loop: SimLoop) -> None:
    async def fails(machine: Any, data: Shared, step: Step[World]) -> Any:
        raise ValueError(step.attempt)

    machine = three(acting("one"), fails, nothing)
    sim = Sim(loop, machine)
    row = await run(sim, machine)
    assert (row.standing.reason, row.standing.seq) == ("failed", 0)
    assert re.search(r"ValueError: 3 \(test_branches.py:\d+\), in attempt 3; mend it", row.standing.note)
    assert len(sim.world.arrivals) == 1
    mended = three(acting("one"), acting("two"), nothing)
    await sim.thread(mended).retry()
    await sim.engine(mended)
    await sim.until("ended")
    data = await data_of(sim, mended)
    assert (data.one, data.two) == ("looked-1", "looked-2")


@simulated
async def test_a_branchs_not_done_does_not_depend_on_what_its_sibling_did(loop: SimLoop) -> None:
    """Dropped when the branch fails, although an effect of the other one came after it."""

    async def refused(machine: Any, data: Shared, step: Step[World]) -> Any:
        try:
            one = await step.call(looked, "one")
        except NotDone:
            await sleep(3)
            raise
        return machine.finished(one=one)

    async def later(machine: Any, data: Shared, step: Step[World]) -> Any:
        await sleep(1)
        return machine.finished(two=await step.call(looked, "two"))

    machine = three(refused, later, nothing)
    sim = Sim(loop, machine)
    sim.world.reply("looked", NotDone("no"))
    await run(sim, machine)
    (failed,) = await sim.entries("failed")
    assert len(failed["dropped"]) == 1
    assert [a.args[0] for a in sim.world.arrivals] == ["two", "one"]


# --- killed -----------------------------------------------------------------------------------------


@simulated
async def test_a_branch_that_ended_before_a_kill_is_not_run_again(loop: SimLoop) -> None:
    runs: list[str] = []

    async def quick(machine: Any, data: Shared, step: Step[World]) -> Any:
        runs.append("quick")
        ref = await step.artifacts.put(b"blob", media_type="text/plain")
        await step.memory.put(notes, "n", "put")
        said = [Message(role="user", content="said")]
        text = await step.call(fresh, "r")
        return machine.finished(one=text, lines=[ref.id], marks={"a": "b"}, sum=2, talk=said)

    async def slow(machine: Any, data: Shared, step: Step[World]) -> Any:
        runs.append("slow")
        await sleep(5)
        return machine.finished(two=await step.call(looked, "a"), lines=["slow"], sum=3)

    machine = three(quick, slow, nothing)
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine, Shared())
    await sleep(3)
    first.kill()
    await sim.engine()
    row = await sim.until("ended", "parked")
    assert row.standing.status == "ended"
    assert runs == ["quick", "slow", "slow"]
    assert sim.world.asked == ["fresh/r"]
    data = await data_of(sim, machine)
    (artifact,) = sim.store._tables.artifacts.values()
    assert (data.one, data.two, data.sum) == ("fresh#1", "looked-1", 5)
    assert data.lines == (artifact.id, "slow")
    assert (data.marks, [m.content for m in data.talk]) == ({"a": "b"}, ["said"])
    assert await sim.memory(notes, "n") == ["put"]


@simulated
async def test_a_branch_that_replaced_before_a_kill_still_replaces(loop: SimLoop) -> None:
    async def tidies(machine: Any, data: Shared, step: Step[World]) -> Any:
        return machine.finished(lines=replace(["tidied"]), sum=replace(1), one=replace("x"))

    machine = three(tidies, after(5, lines=["later"], sum=3), nothing)
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine, Shared(lines=["old"], sum=40))
    await sleep(3)
    first.kill()
    await sim.engine()
    assert (await sim.until("ended", "parked")).standing.status == "ended"
    data = await data_of(sim, machine)
    assert (data.lines, data.sum, data.one) == (("tidied", "later"), 4, "x")


@pytest.mark.parametrize("applied", [False, True])
@simulated
async def test_killed_at_a_branchs_record_it_is_run_again_only_where_that_was_not_written(
    loop: SimLoop, applied: bool
) -> None:
    runs: list[str] = []

    def counted(name: str, seconds: float) -> Body:
        async def body(machine: Any, data: Shared, step: Step[World]) -> Any:
            runs.append(name)
            await sleep(seconds)
            return machine.finished(lines=[name])

        return body

    machine = three(counted("one", 1), counted("two", 3), counted("three", 3))
    sim = Sim(loop, machine)
    first = await sim.engine()
    first.store.fault("kill after" if applied else "kill before", carrying("branch"))
    await first.start(machine, Shared())
    await sim.until_dead(first)
    await sim.engine()
    await sim.until("ended")
    assert runs == ["one", "two", "three", *([] if applied else ["one"]), "two", "three"]
    assert (await data_of(sim, machine)).lines == ("one", "two", "three")


@simulated
async def test_all_branches_recorded_and_killed_before_the_transition_nothing_runs_again(
    loop: SimLoop,
) -> None:
    machine = three(acting("one"), acting("two"), acting("three"))
    sim = Sim(loop, machine)
    first = await sim.engine()
    for seconds in (1.0, 2.0, 3.0):
        sim.world.reply("looked", Reply(takes=seconds))
    first.store.fault("kill before", carrying("transition"))
    await first.start(machine, Shared())
    await sim.until_dead(first)
    await sim.engine()
    await sim.until("ended", "parked")
    data = await data_of(sim, machine)
    assert (data.one, data.two, data.three) == ("looked-1", "looked-2", "looked-3")
    assert len(sim.world.arrivals) == 3


@simulated
async def test_a_sibling_in_doubt_is_settled_beside_a_branch_that_ended(loop: SimLoop) -> None:
    machine = three(acting("one"), acting("two"), nothing)
    sim = Sim(loop, machine)
    sim.world.reply("looked", Reply(), HANG)
    first = await sim.engine()
    await first.start(machine, Shared())
    await sleep(1)
    first.kill()
    await sim.engine()
    await sim.until("ended")
    assert len(sim.world.arrivals) == 2
    assert [said for said, _ in sim.world.lookups] == ["Found"]


# --- memory -----------------------------------------------------------------------------------------


def writes(namespace: Namespace[Any], value: Any, seconds: float) -> Body:
    async def body(machine: Any, data: Shared, step: Step[World]) -> Any:
        if namespace is counts:
            await step.memory.update(counts, "k", lambda n: (n or 0) + value)
        else:
            await step.memory.put(namespace, "k", value)
        await sleep(seconds)
        return machine.finished(lines=[str(value)])

    return body


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    ("namespace", "values", "came"),
    [(counts, (1, 2), [3]), (joined, ("a", "b"), ["a+b"])],
    ids=["updates", "a merge rule"],
)
@simulated
async def test_two_branches_write_one_key_by_updates_or_a_merge_rule(
    loop: SimLoop, namespace: Namespace[Any], values: tuple[Any, Any], came: list[Any], killed: bool
) -> None:
    """Also where one of them ended before a kill: its record does not say how they merge."""
    machine = three(writes(namespace, values[0], 1), writes(namespace, values[1], 3), nothing)
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine, Shared())
    if killed:
        await sleep(2)
        first.kill()
        await sim.engine()
    row = await sim.until("ended", "parked")
    assert row.standing.status == "ended"
    assert await sim.memory(namespace, "k") == came
    assert (await data_of(sim, machine)).lines == (str(values[0]), str(values[1]))
    assert len(await sim.entries("branches_again")) == killed


@simulated
async def test_a_put_and_an_update_of_one_key_are_refused_naming_both(loop: SimLoop) -> None:
    async def puts(machine: Any, data: Shared, step: Step[World]) -> Any:
        await step.memory.put(counts, "k", 7)
        return machine.finished()

    machine = three(puts, writes(counts, 1, 1), nothing)
    sim = Sim(loop, machine)
    row = await run(sim, machine)
    assert row.standing.reason == "failed"
    assert "branches 'first' and 'second' both write memory counts/k" in row.standing.note
    assert await sim.memory(counts, "k") == []


@simulated
async def test_memory_that_changed_under_a_recorded_branch_runs_it_again(loop: SimLoop) -> None:
    runs: list[str] = []

    async def puts(machine: Any, data: Shared, step: Step[World]) -> Any:
        seen = await step.memory.get(notes, "k")
        runs.append(str(seen))
        await step.memory.put(notes, "k", f"after {seen}")
        return machine.finished(one=seen)

    machine = three(puts, after(3, two="b"), nothing)
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine, Shared())
    await sleep(1)
    first.kill()
    sim.change_memory(notes, "k", "theirs")
    await sim.engine()
    await sim.until("ended", "parked")
    assert runs == ["None", "theirs"]
    assert await sim.memory(notes, "k") == ["theirs", "after theirs"]
    assert (await data_of(sim, machine)).one == "theirs"


# --- at odds ----------------------------------------------------------------------------------------


async def turns(machine: Any, data: Shared, step: Step[World]) -> Any:
    return machine.turned(two="turned")


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (after(1, one="a"), turns, "first: finished, second: turned"),
        (after(1, one="a"), after(3, one="b"), ".one: first and second both set it"),
    ],
    ids=["different events", "the same field"],
)
@simulated
async def test_branches_at_odds_fail_the_visit_and_mended_code_goes_on(
    loop: SimLoop, one: Body, two: Body, said: str, killed: bool
) -> None:
    machine = three(one, two, nothing)
    sim = Sim(loop, machine)
    first = await sim.engine()
    await first.start(machine, Shared())
    if killed:
        await sleep(2)
        first.kill()
        first = await sim.engine()
    row = await sim.until("parked")
    assert (row.standing.reason, row.standing.seq) == ("failed", 0)
    assert said in (row.standing.note or "")
    failed = await sim.entries("failed")
    assert [e["attempt"] for e in failed if e["lane"] == "first"] == [1, 2, 3]
    assert [e["retry_at"] is None for e in failed] == [False] * 6 + [True] * 3
    await first.end()
    mended = three(after(1, one="a"), after(1, two="b"), nothing)
    await sim.thread(mended).retry()
    await sim.engine(mended)
    await sim.until("ended")
    data = await data_of(sim, mended)
    assert (data.one, data.two) == ("a", "b")


@simulated
async def test_a_parked_doubt_of_one_branch_leaves_the_ended_one_as_it_is(loop: SimLoop) -> None:
    """The sibling's record stays, and is used once the doubt is resolved."""
    runs: list[str] = []

    async def doubtful(machine: Any, data: Shared, step: Step[World]) -> Any:
        return machine.finished(one=await step.call(bare, "a"))

    async def sure(machine: Any, data: Shared, step: Step[World]) -> Any:
        runs.append("sure")
        return machine.finished(two=await step.call(looked, "b"))

    machine = three(doubtful, sure, nothing)
    sim = Sim(loop, machine)
    sim.world.reply("bare", Reply(takes=2.0, error=OSError("gone")))
    row = await run(sim, machine)
    assert row.standing.reason == "in doubt"
    await sim.thread(machine).resolve(Resolution(action="done", value=b'"by hand"'))
    await sim.until("ended")
    data = await data_of(sim, machine)
    assert (data.one, data.two, runs) == ("by hand", "looked-2", ["sure"])


async def never(machine: Any, data: Shared, step: Step[World]) -> Any:
    await for_ever()


@simulated
async def test_a_drain_keeps_what_branches_have_ended_with(loop: SimLoop) -> None:
    machine = three(acting("one"), never, nothing)
    sim = Sim(loop, machine, grace=timedelta(0))
    first = await sim.engine()
    await first.start(machine, Shared())
    await sleep(1)
    await first.end()
    mended = three(acting("one"), acting("two"), nothing)
    await sim.engine(mended)
    await sim.until("ended")
    data = await data_of(sim, mended)
    assert (data.one, data.two) == ("looked-1", "looked-2")
