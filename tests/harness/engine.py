"""The engine in simulated time: workers that are killed at any write, a store whose replies get lost, and a
receiver that does what a test tells it.

``Sim`` holds what outlives processes (store, artifacts, world, time); ``Sim.engine()`` is one process with
one ``Runtime`` in it, behind a ``FaultyStore`` of its own. Everything that a test asks is asked from outside
of any process, of the store itself.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from random import Random
from types import TracebackType
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from attrs import define, field, frozen

from perdure.artifacts import MemoryArtifacts
from perdure.machines import (
    ABSENT,
    Absent,
    Append,
    Call,
    Fire,
    Found,
    Machine,
    Namespace,
    Retry,
    State,
    Step,
    Unknown,
    effect,
    read,
    record,
)
from perdure.runtime import Runtime, Thread
from perdure.runtime._client import Client
from perdure.runtime._env import Env
from perdure.runtime._journal import Body, decode_body
from perdure.runtime._liveness import Mark
from perdure.stores import (
    Address,
    ArtifactRow,
    Claimed,
    ClaimRequest,
    Commit,
    Delivered,
    Log,
    LogRow,
    Memory,
    MemoryRow,
    MemoryStore,
    Micros,
    OutcomeUnknown,
    Page,
    Query,
    Release,
    Signal,
    Start,
    Started,
    StoreUnavailable,
    ThreadRow,
    Threads,
    WorkerRow,
)

from .loop import PROCESS, SimLoop, simulate, simulated

__all__ = [
    "CALLS",
    "HANG",
    "Arrival",
    "Engine",
    "FaultyStore",
    "Note",
    "Refused",
    "Reply",
    "Sim",
    "World",
    "again",
    "bare",
    "both",
    "brief",
    "carrying",
    "every",
    "fading",
    "fresh",
    "job",
    "kept",
    "looked",
    "remembered",
    "simulate",
    "simulated",
]

R = TypeVar("R")


async def for_ever() -> Any:
    """A reply that never comes."""
    await asyncio.get_running_loop().create_future()


# --- the world ------------------------------------------------------------------------------------


@frozen
class Arrival:
    """A request as the receiver saw it, raw."""

    name: str
    key: str
    args: tuple[Any, ...]
    at: Micros


@frozen(kw_only=True)
class Reply:
    """What the world does with one request.

    ``lands``: seconds until it arrives and acts (None: it never does). ``takes``: seconds until the caller
    has its answer: ``error`` raised, or the value; ``hangs``: it never has one. ``then`` is called once the
    request was dealt with and before the answer: a kill, say.
    """

    lands: float | None = 0.0
    takes: float = 0.0
    error: BaseException | None = None
    hangs: bool = False
    then: Callable[[], object] | None = None
    value: str | None = None


HANG = Reply(hangs=True)


class World:
    """A receiver that logs each arrival, can be asked by key, and remembers keys where ``remembers`` is set.

    ``reply`` lines up what happens to the next requests of an effect, ``answer`` what its next lookups say
    (an exception is raised); with none left, requests land and are answered, and lookups tell the truth.
    Every read gives another value.
    """

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.remembers = False
        self.arrivals: list[Arrival] = []
        self.done: dict[str, str] = {}
        """The value that the receiver made of each key."""
        self.effects: list[str] = []
        """Every value made: with ``remembers``, one for each key."""
        self.lookups: list[tuple[str, str]] = []
        """(what was said, key) of each lookup."""
        self.looked_at: list[Micros] = []
        self.asked: list[str] = []
        """Every read that reached the world, with its arguments."""
        self.replies: dict[str, deque[Reply]] = {}
        self.answers: dict[str, deque[Any]] = {}
        self.reads: dict[str, deque[Any]] = {}
        self._outside = contextvars.Context()

    def reply(self, name: str, *replies: Reply | BaseException) -> None:
        """Line up what happens to the next requests of an effect; an error is one that did not land."""
        given = [r if isinstance(r, Reply) else Reply(lands=None, error=r) for r in replies]
        self.replies.setdefault(name, deque()).extend(given)

    def answer(self, name: str, *answers: Any) -> None:
        """Line up what the next lookups of an effect say."""
        self.answers.setdefault(name, deque()).extend(answers)

    def next_reads(self, name: str, *values: Any) -> None:
        """Line up the next answers of a read: values, errors to raise, or a ``Reply`` that takes its time."""
        self.reads.setdefault(name, deque()).extend(values)

    @property
    def keys(self) -> list[str]:
        """The key of each arrival, in order."""
        return [arrival.key for arrival in self.arrivals]

    async def send(self, name: str, key: str, *args: Any) -> str:
        """One request, as an effect makes it."""
        lined_up = self.replies.get(name)
        reply = lined_up.popleft() if lined_up else Reply()
        value = self.done.get(key, "") if reply.lands is None else ""
        if reply.lands == 0:
            value = self._land(name, key, args, reply)
        elif reply.lands is not None:
            land = partial(self._land, name, key, args, reply)
            self.loop.call_later(reply.lands, land, context=self._outside)
        if reply.then is not None:
            reply.then()
        if reply.takes or reply.then is not None:
            await asyncio.sleep(reply.takes)
        if reply.hangs:
            await for_ever()
        if reply.error is not None:
            raise reply.error
        return value

    def _land(self, name: str, key: str, args: tuple[Any, ...], reply: Reply) -> str:
        self.arrivals.append(Arrival(name, key, args, self.loop.now()))
        if self.remembers and key in self.done:
            return self.done[key]
        value = f"{name}-{len(self.effects) + 1}" if reply.value is None else reply.value
        self.effects.append(value)
        self.done[key] = value
        return value

    async def look(self, name: str, key: str) -> Any:
        """The question whether the effect with this key happened."""
        lined_up = self.answers.get(name)
        honest = Found(self.done[key]) if key in self.done else ABSENT
        said = lined_up.popleft() if lined_up else honest
        self.lookups.append((type(said).__name__, key))
        self.looked_at.append(self.loop.now())
        if isinstance(said, BaseException):
            raise said
        return said

    async def read(self, name: str, *args: Any) -> str:
        """One read, answered differently each time."""
        self.asked.append("/".join([name, *args]))
        lined_up = self.reads.get(name)
        n = len(self.asked)
        value = lined_up.popleft() if lined_up else f"{name}#{n}"
        if isinstance(value, Reply):
            await asyncio.sleep(value.takes)
            value = value.error or value.value or f"{name}#{n}"
        if isinstance(value, BaseException):
            raise value
        return str(value)


TEN = timedelta(seconds=10)


class Refused(Exception):
    """An error that says of itself that the request was not done."""


@effect(deadline=TEN, not_done=[Refused])
async def bare(call: Call[World], what: str) -> str:
    """Its receiver knows neither keys nor lookups."""
    return await call.deps.send("bare", call.key, what)


@effect(deadline=TEN, not_done=[Refused])
async def looked(call: Call[World], what: str) -> str:
    """Its receiver can be asked."""
    return await call.deps.send("looked", call.key, what)


@looked.lookup
async def look_looked(call: Call[World], what: str) -> Found[str] | Absent | Unknown:
    return await call.deps.look("looked", call.key)  # type: ignore[no-any-return]


@effect(deadline=TEN, idempotent=True)
async def remembered(call: Call[World], what: str) -> str:
    """Its receiver remembers keys."""
    return await call.deps.send("remembered", call.key, what)


@effect(deadline=TEN, idempotent=True, key_lifetime=timedelta(seconds=30))
async def fading(call: Call[World], what: str) -> str:
    """Its receiver remembers keys for half a minute."""
    return await call.deps.send("fading", call.key, what)


@effect(deadline=TEN, idempotent=True)
async def both(call: Call[World], what: str) -> str:
    """Its receiver remembers keys and can be asked."""
    return await call.deps.send("both", call.key, what)


@both.lookup
async def look_both(call: Call[World], what: str) -> Found[str] | Absent | Unknown:
    return await call.deps.look("both", call.key)  # type: ignore[no-any-return]


@effect(deadline=TEN, repeatable=True)
async def again(call: Call[World], what: str) -> str:
    """Doing it twice is harmless, late arrivals are not."""
    return await call.deps.send("again", call.key, what)


@read
async def fresh(call: Call[World], what: str) -> str:
    return await call.deps.read("fresh", what)


@read(reuse_for=timedelta(seconds=60))
async def brief(call: Call[World], what: str) -> str:
    return await call.deps.read("brief", what)


@read(keep=True)
async def kept(call: Call[World], what: str) -> str:
    return await call.deps.read("kept", what)


CALLS: Sequence[Any] = [bare, looked, remembered, fading, both, again, fresh, brief, kept]


@record
class Note:
    """The data of ``job`` machines."""

    text: str | None = None
    more: str | None = None
    lines: Annotated[Sequence[str], Append()] = ()


Handler = Callable[[Any, Note, Step[World]], Awaitable[Any]]


def job(
    body: Handler,
    *,
    name: str = "Job",
    version: int = 1,
    calls: Sequence[Any] = CALLS,
    **working_options: Any,
) -> Any:
    """A machine of one state, ``working``, whose handler is ``body(machine, data, step)``, and ``done``, to
    which its event ``finished`` leads. Made again with another body it is the same machine under other code.
    """
    options = {"retry": Retry(attempts=3, delay=timedelta(seconds=1)), **working_options}

    class Job(Machine[Note, World], version=version, calls=calls, name=name):
        """One step."""

        working = State(initial=True, **options)
        done = State(final=True)
        finished = working.to(done)

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            fire: Fire = await body(self, data, step)
            return fire

    return Job


# --- the store ------------------------------------------------------------------------------------

When = Callable[[str, Any], bool]
"""Judges one write: the method's name and its argument."""
Deed = Literal["kill before", "kill after", "lose before", "lose after", "refuse", "delay"]


def carrying(*kinds: str) -> When:
    """Commits that carry a journal entry of one of these kinds, or are themselves of one ("transition")."""

    def judge(method: str, write: Any) -> bool:
        if method != "commit":
            return False
        found = {entry["k"] for entry in decode_body(write.log.payload).entries}
        return bool(found & set(kinds)) or write.log.kind in kinds

    return judge


def every(method: str) -> When:
    """Calls of one method of the store."""
    return lambda called, _: called == method


@define
class _Fault:
    when: When
    deed: Deed
    skip: int
    times: int
    seconds: float


@define(eq=False)
class FaultyStore:
    """One process's way to a store. Each fault that fits the next write happens to it:

    "kill before" and "kill after" the write was applied: the process is dead; "lose before" and "lose after":
    ``OutcomeUnknown``; "refuse": ``StoreUnavailable``, not applied; "delay": it is applied ``seconds`` later.
    ``writes`` logs every write as it arrived.
    """

    inner: MemoryStore
    sim: Sim
    kill: Callable[[], None] = field(default=lambda: None)
    writes: list[tuple[str, Any]] = field(factory=list[tuple[str, Any]])
    pages: list[Query[Any]] = field(factory=list[Query[Any]])
    _faults: list[_Fault] = field(factory=list[_Fault])

    def fault(self, deed: Deed, when: When, *, skip: int = 0, times: int = 1, seconds: float = 0.0) -> None:
        """Do this to the next ``times`` writes that fit, after the first ``skip`` of them."""
        self._faults.append(_Fault(when, deed, skip, times, seconds))

    def kill_at(self, k: int, *, applied: bool) -> None:
        """Die at the k-th write of this process, counted from 0."""
        self.fault("kill after" if applied else "kill before", lambda *_: True, skip=k)

    async def __aenter__(self) -> FaultyStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def _due(self, method: str, write: Any) -> _Fault | None:
        for fault in self._faults:
            if fault.times and fault.when(method, write):
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    async def _write(self, method: str, write: Any) -> Any:
        self.writes.append((method, write))
        fault = self._due(method, write)
        deed = None if fault is None else fault.deed
        if deed == "kill before":
            self.kill()
            await for_ever()
        if deed == "lose before":
            raise OutcomeUnknown("the reply was lost")
        if deed == "refuse":
            raise StoreUnavailable("the store is out of reach")
        if fault is not None and deed == "delay":
            await asyncio.sleep(fault.seconds)
        answer = await getattr(self.inner, method)(write)
        self.sim.tell()
        if deed == "kill after":
            self.kill()
            await for_ever()
        if deed == "lose after":
            raise OutcomeUnknown("the reply was lost")
        return answer

    async def start(self, start: Start, /) -> Started:
        return await self._write("start", start)  # type: ignore[no-any-return]

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        return await self._write("claim", request)  # type: ignore[no-any-return]

    async def commit(self, commit: Commit, /) -> None:
        await self._write("commit", commit)

    async def release(self, releases: Sequence[Release], /) -> None:
        await self._write("release", releases)

    async def deliver(self, signal: Signal, /) -> Delivered:
        return await self._write("deliver", signal)  # type: ignore[no-any-return]

    async def beat(self, worker: WorkerRow, /) -> Micros:
        return await self._write("beat", worker)  # type: ignore[no-any-return]

    async def upload(self, artifact: ArtifactRow, /) -> None:
        await self._write("upload", artifact)

    async def page(self, query: Query[R], /, *, after: str | None = None, limit: int = 100) -> Page[R]:
        self.pages.append(query)
        return await self.inner.page(query, after=after, limit=limit)


# --- processes ------------------------------------------------------------------------------------


class Engine:
    """One process with one runtime in it."""

    def __init__(self, sim: Sim, machines: Sequence[Any], options: dict[str, Any]) -> None:
        self.sim = sim
        self.store = FaultyStore(sim.store, sim, kill=self.kill)
        self.runtime: Runtime[World] = Runtime(
            machines=machines,
            deps=sim.world,
            store=self.store,
            artifacts=sim.artifacts,
            env=sim.env,
            **options,
        )
        self.died = asyncio.Event()
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, self)

    @property
    def id(self) -> str:
        """The worker's id."""
        return self.runtime._running._worker.worker  # type: ignore[union-attr]

    async def inside(self, work: Callable[[], Awaitable[R]]) -> R:
        """Await something in this process; it dies with it."""

        async def run() -> R:
            return await work()

        task = self.sim.loop.create_task(run(), context=self._context)
        return await asyncio.shield(task)

    async def begin(self) -> Engine:
        """Start the worker."""
        await self.inside(self.runtime.__aenter__)
        return self

    async def end(self) -> None:
        """Leave in good order."""
        await self.inside(lambda: self.runtime.__aexit__(None, None, None))

    def kill(self, *, known: bool = True) -> None:
        """SIGKILL. ``known``: others can tell at once that the process is gone, and not only by its lease."""
        self.died.set()
        if known:
            self.sim.gone.add(self.id)
        self.sim.loop.kill(self)

    async def start(
        self, machine: Any, data: Any = None, /, *, thread_id: str = "t", **more: Any
    ) -> Thread[Any, Any]:
        """Start a thread in this process, and a handle on it that outlives the process."""
        given = Note() if data is None else data
        await self.unless_killed(
            self.inside(
                lambda: self.runtime.start(machine, given, thread_id=thread_id, workspace="w", **more)
            )
        )
        return self.sim.thread(machine, thread_id)

    async def unless_killed(self, work: Awaitable[Any]) -> None:
        """Wait for it, or for the death of this process."""
        task, death = asyncio.ensure_future(work), asyncio.ensure_future(self.died.wait())
        await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if task.done():
            task.result()
        else:
            task.cancel()


class Sim:
    """What outlives processes: the store, the artifacts, the world and the time."""

    def __init__(self, loop: SimLoop, *machines: Any, seed: int = 0, **options: Any) -> None:
        self.loop = loop
        self.machines = machines
        self.options = options
        self.world = World(loop)
        self.store = MemoryStore(clock=loop.now)
        self.artifacts = MemoryArtifacts(clock=loop.now)
        self.gone: set[str] = set()
        """Ids of workers that are known to be dead."""
        self.env = Env(
            now=loop.now,
            token=Random(seed).randbytes,
            mark=lambda _: Mark("sim", ""),
            ended=lambda row: row.ended is not None or row.id in self.gone,
        )
        self._changed = asyncio.Event()

    async def engine(self, *machines: Any, **options: Any) -> Engine:
        """A new process that runs these machines (those of the simulation, where none are given)."""
        return await Engine(self, machines or self.machines, {**self.options, **options}).begin()

    def tell(self) -> None:
        """Something was written."""
        self._changed.set()
        self._changed = asyncio.Event()

    # --- looking, from outside of any process -------------------------------------------------------

    def client(self, *machines: Any) -> Client:
        """A client in no process, at the store itself."""
        known = {m._definition.name: m._definition for m in machines or self.machines}
        return Client(self.store, self.artifacts, self.env, known, None)

    def thread(self, machine: Any, thread_id: str = "t") -> Thread[Any, Any]:
        """A handle that no kill reaches."""
        return self.client(machine).thread(machine, thread_id=thread_id, workspace="w")

    async def row(self, thread_id: str = "t") -> ThreadRow:
        """The thread as it stands."""
        page = await self.store.page(Threads(workspace="w", thread_id=thread_id), limit=1)
        return page.rows[0]

    async def exists(self, thread_id: str = "t") -> bool:
        """Whether the thread has been started."""
        return bool((await self.store.page(Threads(workspace="w", thread_id=thread_id), limit=1)).rows)

    async def store_rows(self, query: Query[R]) -> Sequence[R]:
        """Everything that a query finds."""
        return (await self.store.page(query, limit=1_000_000)).rows

    async def rows(self, thread_id: str = "t") -> list[tuple[LogRow, Body]]:
        """Its log, with each payload read."""
        page = await self.store.page(
            Log(address=Address(workspace="w", thread_id=thread_id)), limit=1_000_000
        )
        return [(row, decode_body(row.payload or b"")) for row in page.rows]

    async def commits(self, thread_id: str = "t") -> list[str]:
        """One word a commit: its kind, and the kinds of its entries, as in ``record: read intent``."""
        return [
            f"{row.kind}: {' '.join(e['k'] for e in body.entries)}" if body.entries else row.kind
            for row, body in await self.rows(thread_id)
        ]

    async def entries(self, kind: str | None = None, thread_id: str = "t") -> list[dict[str, Any]]:
        """Its journal's entries in order, of one kind or all, with their JSON read."""
        found = [entry for _, body in await self.rows(thread_id) for entry in body.entries]
        return [_read(entry) for entry in found if kind in (None, entry["k"])]

    def change_memory(self, namespace: Namespace[Any], key: str, value: Any) -> None:
        """Another thread's commit of a newer version."""
        history = self.store._tables.memory["w", namespace.name, key]
        history.append(
            MemoryRow(
                workspace="w",
                namespace=namespace.name,
                key=key,
                version=len(history) + 1,
                value=namespace.codec.encode(value, "test"),
                at=self.loop.now(),
                thread_id="other",
                seq=1,
                principal="owner",
            )
        )

    async def memory(self, namespace: Namespace[Any], key: str) -> list[Any]:
        """Every version of a key, oldest first."""
        query = Memory(workspace="w", namespace=namespace.name, key=key, history=True)
        page = await self.store.page(query)
        return [namespace.codec.decode(row.value or b"", "test") for row in page.rows]

    async def until(
        self, *statuses: str, thread_id: str = "t", within: timedelta = timedelta(hours=12)
    ) -> ThreadRow:
        """Wait until the thread has one of these statuses: "ended", "parked", "waiting", "running"."""
        return await self.until_row(lambda row: row.standing.status in statuses, thread_id, within)

    async def until_row(
        self,
        judge: Callable[[ThreadRow], bool],
        thread_id: str = "t",
        within: timedelta = timedelta(hours=12),
    ) -> ThreadRow:
        """Wait until the thread's row is as it should be."""
        async with asyncio.timeout(within.total_seconds()):
            while True:
                changed = self._changed
                page = await self.store.page(Threads(workspace="w", thread_id=thread_id), limit=1)
                if page.rows and judge(page.rows[0]):
                    return page.rows[0]
                await changed.wait()

    async def until_dead(self, engine: Engine, within: timedelta = timedelta(hours=12)) -> None:
        """Wait until a fault has killed the process."""
        async with asyncio.timeout(within.total_seconds()):
            await engine.died.wait()


def _read(entry: dict[str, Any]) -> dict[str, Any]:
    return {k: msgspec.json.decode(v) if isinstance(v, bytes) else v for k, v in entry.items()}
