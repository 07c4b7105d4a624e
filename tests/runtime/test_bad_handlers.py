"""Handlers that do what they should not: each costs its own thread an attempt, and nobody else anything."""

from __future__ import annotations

import asyncio
import gc
import inspect
from asyncio import sleep
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from attrs.exceptions import FrozenInstanceError
from harness.engine import (
    CALLS,
    Note,
    Reply,
    Sim,
    World,
    bare,
    for_ever,
    fresh,
    job,
    kept,
    looked,
    simulated,
)
from harness.loop import SimLoop

from perdure.machines import (
    Accept,
    Call,
    Fire,
    Machine,
    Namespace,
    NotStorable,
    Retry,
    State,
    Step,
    effect,
    read,
    record,
)
from perdure.runtime import SignalRefused
from perdure.stores import Commit, MemoryStore, ThreadRow

ONCE = Retry(attempts=1)


async def run(sim: Sim, machine: Any, data: Any = None, **options: Any) -> Any:
    """Start a thread in a new process and wait until it ends or parks."""
    await (await sim.engine(machine, **options)).start(machine, data)
    return await sim.until("ended", "parked")


async def still_works(sim: Sim) -> None:
    """The same store takes on and ends another thread."""
    good = job(simple, name="Good")
    await (await sim.engine(good)).start(good, thread_id="good")
    await sim.until("ended", thread_id="good")


async def simple(machine: Any, data: Note, step: Step[World]) -> Any:
    return machine.finished(text=await step.call(kept, "k"))


async def why_failed(sim: Sim) -> str:
    """What the journal says of the only failed attempt."""
    (failed,) = await sim.entries("failed")
    return f"{failed['error']['type']}: {failed['error']['message']}"


# --- errors that cannot be shown ----------------------------------------------------------------------


class Unspeakable(Exception):
    """An error of which nothing can be said."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Worse(Exception):
    """Its text is no text either."""

    def __str__(self) -> Any:
        return 7

    def __repr__(self) -> str:
        raise SystemExit


def no_notes(error: object) -> None:
    raise KeyboardInterrupt


setattr(Worse, "__notes__", property(no_notes))  # noqa: B010


class Renamed(Exception):
    """Its name is no valid text."""


Renamed.__qualname__ = "Bad\ud800name\x00"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unspeakable(), "Unspeakable: <Unspeakable whose text cannot be made>"),
        (Worse(), "Worse: <Worse whose text cannot be made>"),
        (ValueError("a\x00b"), "ValueError: a\\x00b"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (ValueError("x" * 10**6), "ValueError: " + "x" * 2000),
        (Renamed("why"), "Bad\\ud800name\\x00: why"),
    ],
    ids=["raises", "raises anything", "NUL", "lone surrogate", "long", "its name"],
)
@pytest.mark.parametrize("where", ["handler", "read"])
@simulated
async def test_an_error_that_cannot_be_shown_is_recorded_by_its_type(
    loop: SimLoop, where: str, error: Exception, said: str
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        if where == "handler":
            raise error
        return machine.finished(text=await step.call(fresh, "r"))

    machine = job(body, retry=ONCE)
    sim = Sim(loop, machine)
    sim.world.next_reads("fresh", error)
    row = await run(sim, machine)
    assert row.standing.reason == "failed"
    assert await why_failed(sim) == said
    assert said[:20] in await sim.thread(machine).why()
    (_, step) = await sim.thread(machine).history()
    assert step.errors[0].startswith(f"{said} (")
    await still_works(sim)


@pytest.mark.parametrize("error", [Unspeakable(), Worse(), Renamed("why")])
@simulated
async def test_an_effect_that_raises_one_is_in_doubt_like_any_other(loop: SimLoop, error: Exception) -> None:
    machine = job(acts(bare))
    sim = Sim(loop, machine)
    sim.world.reply("bare", Reply(error=error))
    row = await run(sim, machine)
    assert row.standing.reason == "in doubt"
    assert "last error: " in row.standing.note
    await still_works(sim)


def acts(call: Any, *args: Any) -> Any:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(call, *(args or ("a",))))

    return body


@record
class Shy:
    """A value that cannot be shown."""

    text: str

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@record
class Holding:
    """Data that holds one."""

    shy: Shy
    more: str = ""


class Holds(Machine[Holding, World], version=1, calls=CALLS):
    """Sets its field to something else."""

    working = State(initial=True, retry=ONCE)
    done = State(final=True)
    finished = working.to(done)

    @working.handler
    async def work(self, data: Holding, step: Step[World]) -> Fire:
        wrong: Any = Shy(text="b")
        return self.finished(more=wrong) if data.shy.text == "wrong" else self.finished(shy=Shy(text="b"))


@pytest.mark.parametrize(("text", "status"), [("a", "ended"), ("wrong", "parked")])
@simulated
async def test_data_that_cannot_be_shown_is_stored_and_refused_like_any_other(
    loop: SimLoop, text: str, status: str
) -> None:
    sim = Sim(loop, Holds)
    row = await run(sim, Holds, Holding(shy=Shy(text=text)))
    assert row.standing.status == status
    if status == "ended":
        assert (await sim.thread(Holds).data()).shy.text == "b"
    else:
        assert ".more" in await why_failed(sim)


# --- what a handler returns -------------------------------------------------------------------------


class Elsewhere(Machine[Note, World], version=1, calls=CALLS):
    """A machine with events that are of no use to the handler."""

    working = State(initial=True, retry=ONCE)
    other = State()
    done = State(final=True)
    finished = working.to(other)
    ended = other.to(done)
    told = working.to(done).on_signal()

    @other.handler
    async def end(self, data: Note, step: Step[World]) -> Fire:
        return self.ended()

    @working.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        returned: Fire = RETURNS[data.text or ""](self)
        return returned


RETURNS: Mapping[str, Callable[[Any], Any]] = {
    "nothing": lambda machine: None,
    "the event": lambda machine: machine.finished,
    "text": lambda machine: "finished",
    "accept": lambda machine: machine.told(),
    "elsewhere": lambda machine: machine.ended(),
    "a field": lambda machine: machine.finished(txt="x"),
}
"""What a checker of the handler's source cannot see."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "the handler returned NoneType, not an event: return self.<event>(...)"),
        ("the event", "the handler returned self.finished, which is no event yet: return self.finished(...)"),
        ("text", "the handler returned str, not an event"),
        ("accept", "the handler returned Accept, not an event"),
        ("elsewhere", "event 'ended' does not leave this state"),
        ("a field", "'txt' of main names no field: do you mean 'text'?"),
    ],
)
@simulated
async def test_what_is_no_event_of_the_state_fails_the_attempt(loop: SimLoop, text: str, said: str) -> None:
    sim = Sim(loop, Elsewhere)
    row = await run(sim, Elsewhere, Note(text=text))
    assert (row.standing.status, row.standing.reason, row.standing.seq) == ("parked", "failed", 0)
    assert said in await why_failed(sim)
    assert await sim.commits() == ["start", "park: failed park"]


async def to_memory(machine: Any, data: Note, step: Any) -> Any:
    await step.memory.get("customer", "ada")


async def put_to_memory(machine: Any, data: Note, step: Any) -> Any:
    await step.memory.put(3, "ada", "x")


async def update_memory(machine: Any, data: Note, step: Any) -> Any:
    await step.memory.update(None, "ada", str)


async def text_as_artifact(machine: Any, data: Note, step: Any) -> Any:
    await step.artifacts.put("text", media_type="text/plain")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (to_memory, "memory is addressed by a Namespace, not 'customer': make one"),
        (put_to_memory, "memory is addressed by a Namespace, not 3"),
        (update_memory, "memory is addressed by a Namespace, not None"),
        (text_as_artifact, "an artifact is bytes or an async iterable of bytes, not str"),
    ],
)
@simulated
async def test_a_step_is_told_what_memory_and_artifacts_take(loop: SimLoop, body: Any, said: str) -> None:
    machine = job(body, retry=ONCE)
    sim = Sim(loop, machine)
    row = await run(sim, machine)
    assert row.standing.reason == "failed"
    assert said in await why_failed(sim)


@simulated
async def test_an_error_tells_the_line_of_the_users_code(loop: SimLoop) -> None:
    machine = job(to_memory, retry=ONCE)
    sim = Sim(loop, machine)
    await run(sim, machine)
    line = inspect.getsourcelines(to_memory)[1] + 1
    [failed] = [step.errors for step in await sim.thread(machine).history() if step.errors]
    assert failed[0].startswith("CallMisuse: ")
    assert failed[0].endswith(f" (test_bad_handlers.py:{line})")


# --- what it calls ----------------------------------------------------------------------------------


async def plain(call: Any, what: str) -> str:
    raise AssertionError("never called")


@effect
async def unlisted(call: Call[World], what: str) -> str:
    raise AssertionError("never called")


@pytest.mark.parametrize(
    ("call", "args", "said"),
    [
        (plain, ("a",), "is not a declared call: put @read or @effect on the function"),
        (lambda call, what: what, ("a",), "is not a declared call"),
        ("looked", ("a",), "is not a declared call"),
        (unlisted, ("a",), "effect unlisted is not in the machine's calls=[...]: list it there"),
        (unlisted.keyed("k"), ("a",), "effect unlisted is not in the machine's calls=[...]"),
        (looked, (), "looked"),
        (looked, ("a", "b"), "looked"),
        (looked, (7,), "what"),
        (looked, ("\ud800",), "lone surrogate"),
    ],
)
@simulated
async def test_what_is_no_call_of_the_machine_is_refused_where_it_is_made(
    loop: SimLoop, call: Any, args: tuple[Any, ...], said: str
) -> None:
    machine = job(acts(call, *args) if args else acts_without(call), retry=ONCE)
    sim = Sim(loop, machine)
    row = await run(sim, machine)
    assert row.standing.reason == "failed"
    assert said in await why_failed(sim)
    assert await sim.commits() == ["start", "park: failed park"]
    assert sim.world.arrivals == []


def acts_without(call: Any) -> Any:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(call))

    return body


@simulated
async def test_a_call_awaited_twice_is_refused(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        call = step.call(looked, "a")
        await call
        return machine.finished(text=await call)

    machine = job(body, retry=ONCE)
    sim = Sim(loop, machine)
    await run(sim, machine)
    assert "effect looked: this call was awaited already" in await why_failed(sim)
    assert len(sim.world.arrivals) == 1


@simulated
async def test_what_outlives_its_step_is_refused_and_writes_nothing_into_the_next(loop: SimLoop) -> None:
    """A task that the handler began and forgot goes on while the next step runs."""
    raised: list[str] = []

    async def orphan(step: Step[World]) -> None:
        await sleep(1)
        for late in (
            lambda: step.call(looked, "late"),
            lambda: step.call(fresh, "late"),
            lambda: step.artifacts.put(b"late", media_type="text/plain"),
            lambda: step.memory.put(Namespace("n", str), "k", "late"),
            lambda: step.now(),
        ):
            try:
                await late()
            except Exception as error:
                raised.append(f"{type(error).__name__}: {error}")

    tasks: list[asyncio.Task[None]] = []

    class Forgets(Machine[Note, World], version=1, calls=CALLS):
        """Two steps."""

        first = State(initial=True)
        second = State()
        done = State(final=True)
        began = first.to(second)
        ended = second.to(done)

        @first.handler
        async def begin(self, data: Note, step: Step[World]) -> Fire:
            tasks.append(asyncio.create_task(orphan(step)))
            return self.began()

        @second.handler
        async def end(self, data: Note, step: Step[World]) -> Fire:
            await sleep(5)
            return self.ended(text="x")

    sim = Sim(loop, Forgets)
    row = await run(sim, Forgets)
    assert row.standing.status == "ended"
    assert tasks[0].done()
    assert len(raised) == 5
    assert all(said.startswith("CallMisuse: ") and "is over" in said for said in raised)
    assert await sim.commits() == ["start", "transition", "transition"]
    assert (sim.world.arrivals, sim.world.asked, sim.store._tables.artifacts) == ([], [], {})


# --- what it changes in place -----------------------------------------------------------------------


@record
class Bag:
    """Data with collections."""

    names: Sequence[str] = ()
    marks: Mapping[str, str] = {}
    text: str = ""


bags = Namespace("bags", Bag)


class Mutates(Machine[Bag, World], version=1, calls=CALLS):
    """Tries to change its data in place."""

    working = State(initial=True, retry=ONCE)
    done = State(final=True)
    finished = working.to(done)

    @working.handler
    async def work(self, data: Bag, step: Step[World]) -> Fire:
        anything: Any = data
        with pytest.raises(FrozenInstanceError):
            anything.text = "changed"
        with pytest.raises((AttributeError, TypeError)):
            anything.names.append("changed")
        with pytest.raises(TypeError, match="cannot be changed in place"):
            anything.marks["a"] = "changed"
        names = ["given"]
        await step.memory.put(bags, "k", Bag(names=names))
        names.append("changed after the put")
        listed = step.call(tally, names)
        names.append("changed after the call")
        text = await listed
        return self.finished(names=names, text=text)


@effect(idempotent=True)
async def tally(call: Call[World], names: Sequence[str]) -> str:
    return await call.deps.send("tally", call.key, *names)


class Tallies(Mutates, version=1, calls=[tally]):
    """With the call that it makes."""


@simulated
async def test_nothing_that_is_changed_in_place_reaches_the_record(loop: SimLoop) -> None:
    sim = Sim(loop, Tallies)
    given: list[str] = ["a"]
    machine = Tallies
    engine = await sim.engine()
    await engine.start(machine, Bag(names=given, marks={"x": "y"}))
    given.append("changed after the start")
    row = await sim.until("ended", "parked")
    assert row.standing.status == "ended", row.standing.note
    assert [a.args for a in sim.world.arrivals] == [("given", "changed after the put")]
    assert await sim.memory(bags, "k") == [Bag(names=("given",))]
    (start, *_) = await sim.rows()
    assert b"changed" not in (start[0].payload or b"")
    data = await sim.thread(machine).data()
    assert data.names == ("given", "changed after the put", "changed after the call")


# --- values that cannot be stored ---------------------------------------------------------------------


@record
class Tree:
    """A value of any depth."""

    name: str = ""
    items: Sequence[Tree] = ()


def deep() -> Tree:
    tree = Tree()
    for _ in range(200):
        tree = Tree(items=(tree,))
    return tree


def cycle() -> Tree:
    items: list[Tree] = []
    items.append(Tree(items=items))
    return items[0]


def wrong() -> Tree:
    text: Any = 7
    return Tree(name=text)


BAD: Mapping[str, tuple[Callable[[], Tree], str]] = {
    "lone surrogate": (lambda: Tree(name="a\ud800"), "lone surrogate"),
    "deep": (deep, "nested deeper than 100 levels"),
    "large": (lambda: Tree(name="x" * (17 * 1024 * 1024)), "put it into an artifact"),
    "cycle": (cycle, "nested deeper than 100 levels, or holds itself"),
    "of another type": (wrong, "name"),
}
trees = Namespace("trees", Tree)


@record
class Wood:
    """Data with a tree, and what to do."""

    bad: str = "deep"
    where: str = ""
    tree: Tree = Tree()
    seen: str = ""


@effect(idempotent=True)
async def plant(call: Call[World], tree: Tree) -> str:
    return await call.deps.send("plant", call.key)


@effect
async def grow(call: Call[World], bad: str) -> Tree:
    await call.deps.send("grow", call.key, bad)
    return BAD[bad][0]()


@read(keep=True)
async def find(call: Call[World], bad: str) -> Tree:
    await call.deps.read("find", bad)
    return BAD[bad][0]()


class Forest(Machine[Wood, World], version=1, calls=[plant, grow, find]):
    """Does with a value what its data says."""

    waits = State(initial=True)
    working = State(retry=ONCE)
    done = State(final=True)
    go = waits.to(working).on_signal()
    show = waits.to(working).on_signal(Tree)
    finished = working.to(done)

    @go.received
    def went(self, data: Wood, nothing: None) -> Accept:
        return self.go(tree=BAD[data.bad][0]()) if data.where == "receiver" else self.go()

    @working.handler
    async def work(self, data: Wood, step: Step[World]) -> Fire:
        tree = BAD[data.bad][0]()
        if data.where == "argument":
            await step.call(plant, tree)
        elif data.where == "read":
            await step.call(find, data.bad)
        elif data.where == "effect":
            await step.call(grow, data.bad)
        elif data.where == "memory":
            await step.memory.put(trees, "k", tree)
        return self.finished(tree=tree)


@pytest.mark.parametrize("where", ["update", "argument", "read", "memory", "receiver", "effect"])
@pytest.mark.parametrize("bad", BAD)
@simulated
async def test_a_value_that_cannot_be_stored_is_refused_before_anything_is_written_or_called(
    loop: SimLoop, bad: str, where: str
) -> None:
    sim = Sim(loop, Forest)
    thread = await (await sim.engine()).start(Forest, Wood(bad=bad, where=where))
    await thread.signal(Forest.go, id="go")
    row = await sim.until("ended", "parked")
    assert row.standing.status == "parked"
    said = row.standing.note or ""
    assert BAD[bad][1] in said
    assert len(said) <= 2000
    if where == "effect":  # it may have happened: it is not sent again, and parks with its doubt
        assert row.standing.reason == "in doubt"
        assert [a.name for a in sim.world.arrivals] == ["grow"]
    else:
        assert row.standing.reason == "failed"
        assert sim.world.arrivals == []
        assert await sim.memory(trees, "k") == []
        begun = [] if where == "receiver" else ["transition: signal"]
        assert (await sim.commits())[:-1] == ["start", *begun]
    assert all(len(row.payload or b"") < 10_000 for row, _ in await sim.rows())


@pytest.mark.parametrize("bad", BAD)
@simulated
async def test_a_start_or_a_signal_with_one_is_refused_by_name(loop: SimLoop, bad: str) -> None:
    sim = Sim(loop, Forest)
    make, said = BAD[bad]
    with pytest.raises(NotStorable, match=r"\.tree") as refused:
        await sim.client().start(Forest, Wood(tree=make()), thread_id="t", workspace="w")
    assert said in str(refused.value)
    thread = await sim.client().start(Forest, Wood(), thread_id="t", workspace="w")
    with pytest.raises(SignalRefused, match="signal 'x'"):
        await thread.signal(Forest.show, make(), id="x")
    assert await thread.pending() == []


# --- loops ------------------------------------------------------------------------------------------


class Loops(Machine[Note, World], version=1, calls=()):
    """From one state to the other and back, without ever waiting."""

    one = State(initial=True)
    two = State()
    there = one.to(two)
    back = two.to(one)
    done = State(final=True)
    ended = two.to(done)

    @one.handler
    async def go(self, data: Note, step: Step[World]) -> Fire:
        return self.there(text=str(step.seq))

    @two.handler
    async def come(self, data: Note, step: Step[World]) -> Fire:
        if step.seq % 500 == 1:
            DEPTHS[step.seq] = len(inspect.stack(0))
        return self.back() if step.seq < TRANSITIONS else self.ended()


TRANSITIONS = 3_000
DEPTHS: dict[int, int] = {}
"""Frames on the stack of a handler, by checkpoint."""


class Forgetful(MemoryStore):
    """Keeps no more of the log than a claim needs, so that what grows is the engine."""

    async def commit(self, commit: Commit, /) -> None:
        await super().commit(commit)
        rows = self._tables.log[commit.address]
        if len(rows) > 100 and commit.log.n % 100 == 0:
            rows[:-50] = [None] * (len(rows) - 50)  # type: ignore[list-item]


@simulated
async def test_a_loop_without_waiting_grows_neither_the_stack_nor_the_memory(loop: SimLoop) -> None:
    DEPTHS.clear()
    sim = Sim(loop, Loops)
    sim.store = Forgetful(clock=loop.now)
    engine = await sim.engine()
    engine.store.writes = Nothing()
    other = job(simple, name="Good")
    beside = await sim.engine(other)
    held: list[int] = []
    await engine.start(Loops)
    for seq in range(1_000, TRANSITIONS, 1_000):
        await sim.until_row(partial(has_come_to, seq))
        gc.collect()
        held.append(len(gc.get_objects()))
    await beside.start(other, thread_id="beside")
    await sim.until("ended", thread_id="beside")
    assert (await sim.row()).standing.status == "running"  # the other one had its turn
    await sim.until("ended")
    assert len(set(DEPTHS.values())) == 1
    assert len(DEPTHS) == 7
    assert held[-1] - held[0] < 300


def has_come_to(seq: int, row: ThreadRow) -> bool:
    return row.standing.seq >= seq


class Nothing(list[Any]):
    """Keeps nothing of what is appended."""

    def append(self, _: Any) -> None:
        return None


# --- poison -----------------------------------------------------------------------------------------


@simulated
async def test_twenty_healthy_threads_end_beside_one_that_kills_its_worker(loop: SimLoop) -> None:
    engines: list[Any] = []

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        if step.thread_id == "bad":
            engines[-1].kill()
            await for_ever()
        await sleep(2)
        return machine.finished(text=await step.call(looked, step.thread_id))

    machine = job(body)
    sim = Sim(loop, machine)
    engines.append(await sim.engine())
    healthy = [f"good-{n}" for n in range(20)]
    for thread_id in healthy[:10]:
        await engines[0].start(machine, thread_id=thread_id)
    await engines[0].start(machine, thread_id="bad")
    for thread_id in healthy[10:]:
        await sim.client().start(machine, Note(), thread_id=thread_id, workspace="w")
    for _ in range(10):
        if engines[-1].died.is_set():
            engines.append(await sim.engine())
        await sleep(30)
    for thread_id in healthy:
        row = await sim.until("ended", "parked", thread_id=thread_id)
        assert row.standing.status == "ended"
    row = await sim.until("parked", thread_id="bad")
    assert row.standing.reason == "poison"
    assert len(engines) == 4  # three of them died
    assert sorted(a.args[0] for a in sim.world.arrivals) == sorted(healthy)
