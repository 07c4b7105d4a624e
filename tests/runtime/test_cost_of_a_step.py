"""What a step costs: the same however long its thread has gone on, and nothing for what it does not use."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Sequence
from typing import Annotated, Any

from harness.engine import CALLS, Note, Sim, World, job, kept, simulated
from harness.loop import SimLoop

from perdure.machines import Append, Fire, Machine, State, Step, record
from perdure.stores import Address, ClaimRequest, Workers

STEPS = 3000


class Long(Machine[Note, World], version=1, calls=CALLS):
    """Appends a line a step, for a long time, and then waits."""

    working = State(initial=True)
    waiting = State()
    done = State(final=True)
    again = working.to(working)
    enough = working.to(waiting)
    close = waiting.to(done).on_signal()

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        said: dict[str, Any] = {"text": f"step {step.seq:>6}", "lines": ["one line"]}
        return self.enough(**said) if step.seq == STEPS else self.again(**said)


@simulated
async def test_the_last_steps_write_what_the_first_ones_did_and_a_claim_reads_no_longer_log(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Long)
    engine = await sim.engine()
    await engine.start(Long)
    await sim.until("waiting")
    commits: list[Any] = [write for method, write in engine.store.writes if method == "commit"]
    assert len(commits) == STEPS + 1
    written = [len(c.log.payload) + len(c.items or b"") for c in commits]
    assert max(written[-100:]) <= max(written[:100]) + len(str(STEPS)) * 4  # positions have more digits
    assert len({len(c.items) for c in commits}) == 1
    assert {type(query) for query in engine.store.pages} <= {Workers}
    request = ClaimRequest(
        worker="other", machines={"Long": 1}, limit=1, only=Address(workspace="w", thread_id="t")
    )
    (claim,) = (await sim.store.claim(request)).claims
    assert len(claim.log) < 60


KEPT = 3


@record
class Few:
    """Keeps its newest lines."""

    lines: Annotated[Sequence[str], Append(keep=KEPT)] = ()


class Keeping(Machine[Few, World], version=1):
    """Appends a line a step, keeps few of them, and then waits."""

    working = State(initial=True)
    waiting = State()
    done = State(final=True)
    again = working.to(working)
    enough = working.to(waiting)
    close = waiting.to(done).on_signal()

    @working.handler
    async def work(self, data: Few, step: Step[World]) -> Fire:
        lines = [f"line {step.seq}"]
        return self.enough(lines=lines) if step.seq == 200 else self.again(lines=lines)


@simulated
async def test_a_claim_reads_no_items_that_a_field_no_longer_keeps(loop: SimLoop) -> None:
    sim = Sim(loop, Keeping)
    await (await sim.engine()).start(Keeping, Few())
    await sim.until("waiting")
    address = Address(workspace="w", thread_id="t")
    request = ClaimRequest(worker="other", machines={"Keeping": 1}, limit=1, only=address)
    (claim,) = (await sim.store.claim(request)).claims
    assert KEPT <= len(claim.items) <= 2 * KEPT


@simulated
async def test_threads_that_wait_hold_nothing_in_their_worker(loop: SimLoop) -> None:
    sim = Sim(loop, Waiter)
    engine = await sim.engine()
    holder = engine.runtime._running._worker
    assert holder is not None
    for n in range(50):
        await engine.start(Waiter, thread_id=f"t{n}")
    await sleep(5)
    assert {(await sim.row(f"t{n}")).standing.status for n in range(50)} == {"waiting"}
    assert (holder.runs, holder._tasks, holder._watchers) == ({}, {}, {})


class Waiter(Machine[Note, World], version=1, calls=CALLS):
    """Works once, and waits."""

    working = State(initial=True)
    waiting = State()
    done = State(final=True)
    worked = working.to(waiting)
    close = waiting.to(done).on_signal()

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        return self.worked(text=await step.call(kept, "a"))


@simulated
async def test_a_thread_that_uses_neither_memory_nor_artifacts_asks_the_store_for_neither(
    loop: SimLoop,
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Fire:
        return machine.finished(text=await step.call(kept, "a"))  # type: ignore[no-any-return]

    machine = job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine)
    await sim.until("ended")
    assert {type(query) for query in engine.store.pages} <= {Workers}
