"""What is found of a thread under other code, and that the code then does with it what was said."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import pytest
from attrs import evolve, frozen
from harness.engine import HANG, Engine, Note, Sim, World, bare, job, kept, looked, remembered, simulated
from harness.loop import SimLoop

from perdure.machines import (
    Absent,
    Accept,
    Append,
    Call,
    Fire,
    Found,
    Machine,
    State,
    Step,
    Unknown,
    effect,
    read,
    record,
    upcast,
)
from perdure.runtime import Resolution
from perdure.runtime._check import Checked, Checker
from perdure.runtime._look import find_thread
from perdure.stores import Address, Threads

HERE = Address(workspace="w", thread_id="t")


async def check(sim: Sim, *machines: Any) -> Checked:
    """Look at the thread under these machines."""
    named = {machine._definition.name: machine._definition for machine in machines}
    checker = await Checker.of(sim.store, named, sim.env)
    checked = await checker.thread(await find_thread(sim.store, HERE))
    assert checked is not None
    return checked


async def left(sim: Sim, machine: Any, status: str = "running", data: Any = None) -> Engine:
    """Start the thread under this code, and kill the process once nothing more happens by itself."""
    engine = await sim.engine(machine)
    await engine.start(machine, data)
    await sleep(1)
    engine.kill(known=True)
    assert (await sim.row()).standing.status == status
    return engine


# --- effects and reads of an unfinished visit -----------------------------------------------------


def calls(*asked: Any, arguments: tuple[Any, ...] = ("a",), listed: Any = None) -> Any:
    """A handler that makes these calls one after the other."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        for each in asked:
            await step.call(each, *arguments)
        return machine.finished()

    return job(body, calls=list(asked if listed is None else listed))


def looked_with(hints: Any, *, renamed: str = "") -> Any:
    """The effect ``looked`` as other code declares it."""

    async def looked(call: Call[World], what: Any) -> str:
        return await call.deps.send("looked", call.key, str(what))

    async def look(call: Call[World], what: Any) -> Found[str] | Absent | Unknown:
        return await call.deps.look("looked", call.key)  # type: ignore[no-any-return]

    looked.__annotations__["what"] = look.__annotations__["what"] = hints
    made = effect(deadline=timedelta(seconds=10), renamed=(renamed,) if renamed else ())(looked)
    made.lookup(look)
    return made


def looked_twice() -> Any:
    @effect(deadline=timedelta(seconds=10))
    async def looked(call: Call[World], what: str, copies: int = 1) -> str:
        return await call.deps.send("looked", call.key, what)

    @looked.lookup
    async def find(call: Call[World], what: str, copies: int = 1) -> Found[str] | Absent | Unknown:
        return await call.deps.look("looked", call.key)  # type: ignore[no-any-return]

    return looked


def remembered_as(kind: Any) -> Any:
    async def remembered(call: Call[World], what: str) -> Any:
        return await call.deps.send("remembered", call.key, what)

    remembered.__annotations__["return"] = kind
    return effect(idempotent=True, deadline=timedelta(seconds=10))(remembered)


def kept_as(kind: Any) -> Any:
    async def kept(call: Call[World], what: str) -> Any:
        return await call.deps.read("kept", what)

    kept.__annotations__["return"] = kind
    return read(keep=True)(kept)


@frozen
class Case:
    """A thread that ``old`` left behind, and what is found of it under ``new``."""

    old: Any
    new: Any
    about: str = ""
    says: str = ""
    mend: str = ""
    hangs: str = "looked"


CASES = {
    "nothing has changed": Case(calls(looked), calls(looked)),
    "the effect is gone": Case(
        calls(looked), calls(bare), "effect", "lists no effect of that name", "renamed=('looked',)"
    ),
    "the effect takes another type": Case(
        calls(looked), calls(looked_with(int), arguments=(1,)), "effect", "looked(what)", "of=looked"
    ),
    "the effect takes more, with a default": Case(calls(looked), calls(looked_twice())),
    "nobody can be asked": Case(
        calls(bare), calls(bare), "effect", "neither keys nor a lookup", "@bare.lookup", hangs="bare"
    ),
    "an older result, still wanted": Case(
        calls(remembered, looked),
        calls(remembered_as(int), looked),
        "effect",
        "effect remembered: recorded result",
        "a result type of remembered",
    ),
    "an older answer, still wanted": Case(
        calls(kept, looked), calls(kept_as(int), looked), "read", "read kept: recorded result", "of kept"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@simulated
async def test_the_records_of_a_visit(loop: SimLoop, case: Case) -> None:
    sim = Sim(loop)
    sim.world.reply(case.hangs, HANG)
    await left(sim, case.old)
    before = await sim.store_rows(Threads())
    checked = await check(sim, case.new)
    assert await sim.store_rows(Threads()) == before
    faults = [finding for finding in checked.findings if finding.fault]
    assert [finding.about for finding in faults] == ([case.about] if case.about else [])
    for finding in faults:
        assert case.says in finding.reason
        assert case.mend in finding.mend
    await sim.engine(case.new)
    assert (await sim.until("ended", "parked")).standing.status == ("parked" if faults else "ended")


@simulated
async def test_a_doubt_that_a_living_worker_may_still_hear_of_is_no_fault(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("bare", HANG)
    machine = calls(bare)
    engine = await sim.engine(machine)
    await engine.start(machine)
    await sleep(1)
    (finding,) = (await check(sim, calls(bare))).findings
    assert (finding.about, finding.fault) == ("effect", False)
    engine.kill(known=True)
    assert not (await check(sim, calls(bare))).resumes
    await sim.engine(calls(bare))
    assert (await sim.until("parked")).standing.reason == "in doubt"
    parked = await check(sim, calls(bare))
    assert (parked.resumes, parked.findings[0].fault) == (True, False)


# --- branches -------------------------------------------------------------------------------------


def pair(*, first: bool = True, event: str = "finished", text: Any = Note) -> Any:
    """A state with two branches, or with the second one alone."""
    base: Any = Machine[text, World]

    class Pair(base, calls=[looked]):  # type: ignore[misc, call-arg]
        working = State(initial=True)
        done = State(final=True)
        locals()[event] = working.to(done)

        if first:

            @working.handler
            async def says(self, data: Any, step: Step[World]) -> Fire:
                return getattr(self, event)(more="said")  # type: ignore[no-any-return]

        @working.handler
        async def sends(self, data: Any, step: Step[World]) -> Fire:
            await step.call(looked, "a")
            return getattr(self, event)()  # type: ignore[no-any-return]

    return Pair


@record
class Counted:
    text: str | None = None
    more: int | None = None
    lines: Annotated[Sequence[str], Append()] = ()


BRANCHES = {
    "nothing has changed": (pair(), [], "ended"),
    "it is gone": (pair(first=False), [("effect", True), ("branch", False)], "parked"),
    "its event is gone": (pair(event="over"), [("branch", False)], "ended"),
    "its update does not fit": (pair(text=Counted), [("branch", True)], "parked"),
}


@pytest.mark.parametrize(("new", "said", "becomes"), BRANCHES.values(), ids=BRANCHES.keys())
@simulated
async def test_a_branch_that_has_finished(loop: SimLoop, new: Any, said: list[Any], becomes: str) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", HANG)
    await left(sim, pair())
    findings = [finding for finding in (await check(sim, new)).findings if finding.about != "definition"]
    assert [(finding.about, finding.fault) for finding in findings] == said
    await sim.engine(new)
    assert (await sim.until("ended", "parked")).standing.status == becomes
    assert len(sim.world.arrivals) == 1  # also where the branch that sent it is a handler of its own now


@simulated
async def test_r102_an_effect_of_a_handler_that_is_gone_parks(
    loop: SimLoop,
) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", HANG)
    await left(sim, pair())
    alone = pair(first=False)
    await sim.engine(alone)
    row = await sim.until("parked")
    assert row.standing.reason == "diverged"
    assert "looked [done] in lane 'sends', and the state has no such handler" in (row.standing.note or "")
    thread = sim.thread(alone)
    await thread.resolve(Resolution(action="ignore"))
    assert (await sim.until("ended", "parked")).standing.status == "ended"
    assert len(set(sim.world.keys)) == 2  # as the operator said: it is done again


# --- data, states, signals ------------------------------------------------------------------------


@record
class Approval:
    by: str


@record
class Approvals:
    by: tuple[str, str]


@record
class Titled:
    title: str
    lines: Annotated[Sequence[str], Append()] = ()


@record
class Longer:
    text: str | None = None
    more: str | None = None
    lines: Annotated[Sequence[str], Append()] = ()
    urgent: bool = False


def desk(
    data: Any = Note, *, signal: Any = Approval, wrong: str = "", version: int = 1, machine: str = "Desk"
) -> Any:
    """A desk where two people approve. ``wrong``: what the first one's receiver or guard does."""
    base: Any = Machine[data, World]

    def judge(data: Any) -> bool:
        if wrong == "guard":
            raise LookupError("no such thing in older data")
        return True

    class Desk(base, version=version, name=machine):  # type: ignore[misc, call-arg]
        """Approved twice."""

        reading = State(initial=True)
        first = State()
        second = State()
        done = State(final=True)
        read = reading.to(first)
        approve = first.to(second, when=judge).on_signal(signal)
        confirm = second.to(done).on_signal(signal)

        @reading.handler
        async def look(self, data: Any, step: Step[World]) -> Fire:
            return self.read()

        @approve.received
        def approved(self, data: Any, approval: Any) -> Accept:
            if wrong == "receiver":
                raise LookupError("nobody of that name")
            return self.approve()

    return Desk


Desk = desk()


def timed(event: str) -> Any:
    """A thread that waits for a timer of this name."""

    class Timed(Machine[Note, World]):
        waiting = State(initial=True)
        done = State(final=True)
        go = waiting.to(done).on_signal()
        locals()[event] = waiting.to(done).after(timedelta(minutes=1))

    return Timed


@simulated
async def test_a_timer_whose_event_is_gone(loop: SimLoop) -> None:
    sim = Sim(loop)
    await left(sim, timed("late"), "waiting")
    assert (await check(sim, timed("late"))).findings == ()
    findings = [f for f in (await check(sim, timed("over"))).findings if f.fault]
    assert [(f.about, f.what) for f in findings] == [("timer", "late")]
    assert "removed_events=('late',)" in findings[0].mend
    await sim.engine(timed("over"))
    assert (await sim.until("ended", "parked")).standing.reason == "unreadable"


def other_states(data: Any = Note) -> Any:
    """The same desk with another name for where its threads wait."""
    base: Any = Machine[data, World]

    class Desk(base):  # type: ignore[misc]
        reading = State(initial=True)
        start = State()
        done = State(final=True)
        read = reading.to(start)
        confirm = start.to(done).on_signal(Approval)

        @reading.handler
        async def look(self, data: Any, step: Step[World]) -> Fire:
            return self.read()

    return Desk


WAITING = {
    "nothing has changed": (desk(), "", "", ""),
    "the data": (desk(Titled, version=2), "data", "Titled.text", "@upcast(from_version=1) in Desk"),
    "the data, same version": (desk(Titled), "data", "Desk: Titled", "version=2 in the class line of Desk"),
    "the state": (other_states(), "state", "no state 'first'", "renamed=('first',)"),
    "another machine": (desk(machine="Shop"), "machine", "no machine 'Desk'; it has: Shop", "name='Desk'"),
    "the payload": (desk(signal=Approvals), "signal", "its payload.by: expected", "of=confirm"),
    "a guard": (desk(wrong="guard"), "event", "LookupError: no such thing", "guards and receivers"),
    "a receiver": (desk(wrong="receiver"), "event", "LookupError: nobody", "guards and receivers"),
}


@pytest.mark.parametrize(("new", "about", "says", "mend"), WAITING.values(), ids=WAITING.keys())
@simulated
async def test_a_waiting_thread(loop: SimLoop, new: Any, about: str, says: str, mend: str) -> None:
    sim = Sim(loop)
    await left(sim, Desk, "waiting", Note(text="a"))
    # One that the state takes, once nobody runs, and one that it does not take.
    thread = sim.thread(Desk)
    await thread.signal(Desk.confirm, Approval(by="ada"), id="c")
    if about == "event":
        await thread.signal(Desk.approve, Approval(by="ada"), id="a")
    faults = [finding for finding in (await check(sim, new)).findings if finding.fault]
    assert [finding.about for finding in faults] == ([about] if about else [])
    for finding in faults:
        assert says in finding.reason
        assert mend in finding.mend
    if about != "event":
        await thread.signal(Desk.approve, Approval(by="ada"), id="a")
    await sim.engine(new)
    await sleep(5)
    row = await sim.row()
    if about == "machine":
        assert (row.standing.status, row.owner) == ("waiting", None)
    else:
        assert row.standing.status == ("parked" if faults else "ended")


@simulated
async def test_state_and_data_are_told_together(loop: SimLoop) -> None:
    sim = Sim(loop)
    await left(sim, Desk, "waiting", Note(text="a"))
    found = (await check(sim, other_states(Titled))).findings
    assert [finding.about for finding in found if finding.fault] == ["state", "data"]


@simulated
async def test_a_newer_version_is_left_alone(loop: SimLoop) -> None:
    sim = Sim(loop)
    await left(sim, desk(version=2), "waiting")
    (finding,) = (await check(sim, desk(version=1))).findings
    assert (finding.about, finding.fault) == ("version", True)
    assert finding.reason == "needs version >= 2, and this code is 1"


@simulated
async def test_another_definition_of_the_same_version_is_a_note(loop: SimLoop) -> None:
    sim = Sim(loop)
    await left(sim, Desk, "waiting")
    checked = await check(sim, desk(Longer))
    assert [(finding.about, finding.fault) for finding in checked.findings] == [("definition", False)]
    assert checked.resumes


@simulated
async def test_a_thread_that_moves_on_while_it_is_read_is_read_again(loop: SimLoop) -> None:
    sim = Sim(loop)
    await left(sim, Desk, "waiting")
    row = await sim.row()
    # As a page had it before the thread moved on.
    earlier = evolve(row, n=1, standing=evolve(row.standing, state="reading", seq=0, items=0))
    checker = Checker(sim.store, {"Desk": other_states()._definition}, sim.env)
    checked = await checker.thread(earlier)
    assert checked is not None
    assert (checked.thread, [finding.about for finding in checked.findings]) == (
        row,
        ["definition", "state"],
    )
    ended = evolve(row, standing=evolve(row.standing, status="ended"))
    assert await checker.thread(ended) is None


# --- a class that a stored value names (G51) ------------------------------------------------------


@record
class Cat:
    lives: int


@record
class Dog:
    name: str


@record
class Feline:
    lives: int


@record
class Owner:
    pet: Cat | Dog


@record
class OwnerOfFelines:
    pet: Feline | Dog


def owning(data: Any, *, version: int, upcasts: bool = False) -> Any:
    base: Any = Machine[data, World]

    class Owning(base, version=version, name="Owning"):  # type: ignore[misc, call-arg]
        """Waits for a new owner."""

        waiting = State(initial=True)
        done = State(final=True)
        sold = waiting.to(done).on_signal()

        if upcasts:

            @upcast(from_version=1)
            def cats_are_felines(self, data: dict[str, Any]) -> dict[str, Any]:
                return {"pet": {**data["pet"], "$": "Feline"}}

    return Owning


@simulated
async def test_g51_a_class_that_was_renamed_is_named_and_an_upcaster_reads_it(loop: SimLoop) -> None:
    sim = Sim(loop)
    await left(sim, owning(Owner, version=1), "waiting", Owner(pet=Cat(lives=9)))
    before = [row.payload for row, _ in await sim.rows()]
    (finding,) = (await check(sim, owning(OwnerOfFelines, version=2))).findings
    assert (finding.about, finding.fault) == ("data", True)
    assert "OwnerOfFelines.pet" in finding.reason
    assert "Cat" in finding.reason
    assert [row.payload for row, _ in await sim.rows()] == before
    mended = owning(OwnerOfFelines, version=2, upcasts=True)
    assert (await check(sim, mended)).findings == ()
    await sim.engine(mended)
    await sim.thread(mended).signal(mended.sold, id="s")
    assert (await sim.until("ended", "parked")).standing.status == "ended"
    assert await sim.thread(mended).data() == OwnerOfFelines(pet=Feline(lives=9))
