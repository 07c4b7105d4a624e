"""One seed: processes, faults and threads drawn from it, run to the end, and held to the invariants."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cache, partial
from random import Random
from typing import Any

import anyio
from _loop import StoppableLoop, simulate
from _machines import CHANGED, MACHINES, Changing, Desk, Keyed, Memo, Review, Scribe
from _store import CLEAR, LANDS_LATER, Shelf, Shore, WatchedStore, Weather, Wire
from _story import Word
from _watch import Broken, Watch
from _world import CALM, MAX_SKEW, Link, Trouble, World
from attrs import define, field, frozen
from harness.loop import PROCESS

from perdure.artifacts import MemoryArtifacts
from perdure.machines import definition
from perdure.runtime import CannotResolve, Resolution, Runtime, SignalRefused
from perdure.runtime._client import Client
from perdure.runtime._env import Env
from perdure.runtime._liveness import Mark
from perdure.runtime._look import doubts_of
from perdure.runtime._worker import ABORT_GRACE
from perdure.stores import Micros, ThreadRow

LEASE = 3.0
GRACE = 2.0
PATIENCE = 300.0
"""Simulated seconds after the last fault within which every thread has to have ended or parked."""


@frozen(kw_only=True)
class Report:
    """What became of one seed."""

    seed: int
    broken: Sequence[Broken]
    digest: str
    """Of everything that happened: the same seed gives the same."""
    seconds: float
    """Simulated."""
    counts: dict[str, int]
    trace: Sequence[str]

    def __str__(self) -> str:
        found = "\n  ".join(str(each) for each in self.broken) or "every invariant holds"
        repeat = f"repeat it with: .venv/bin/python tests/simulation/seed.py {self.seed}"
        return f"seed {self.seed}: {found}\n{repeat}"


@define(eq=False)
class Process:
    """One process, with one runtime in it: a worker between its start and its end."""

    run: Run
    name: str
    skew: float
    worker: str | None = None
    killed_at: float | None = None
    stopped: bool = False
    runtime: Any = None
    wire: Any = None
    asked: list[asyncio.Task[Any]] = field(factory=list[asyncio.Task[Any]])
    """What clients in this process have begun."""
    context: contextvars.Context = field(factory=contextvars.copy_context)

    def __attrs_post_init__(self) -> None:
        run = self.run
        self.context.run(PROCESS.set, self)
        self.wire = Wire(run.shore)
        self.runtime = Runtime(
            machines=run.rng.choice((MACHINES, CHANGED)) if run.mixed else MACHINES,
            deps=Link(run.world, self),
            store=self.wire,
            artifacts=Shelf(run.shore, run.artifacts),
            lease=timedelta(seconds=LEASE),
            grace=timedelta(seconds=GRACE),
            poll=timedelta(seconds=1),
            env=run.env(self.name, self.skew, self._marked),
        )

    def __repr__(self) -> str:
        return self.name

    def _marked(self, worker: str) -> Mark:
        self.worker = worker
        return Mark("here", "")

    def inside(self, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        """Begin something in this process."""

        async def within() -> Any:
            return await work()

        task = self.run.loop.create_task(within(), context=self.context)
        self.asked.append(task)
        return task

    def kill(self) -> None:
        self.killed_at = self.run.loop.time()
        self.run.watch.crashes += 1
        self.run.watch.takeovers += 1
        self.run.loop.kill(self)


class Run:
    """One seed."""

    def __init__(
        self, loop: StoppableLoop, seed: int, tell: Callable[[str], None], store: WatchedStore
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.rng = Random(f"{seed} run")
        self.tell = tell
        draw = self.rng
        self.world = World(loop, Random(f"{seed} world"), _trouble(draw), tell)
        weather = _weather(draw)
        self.shore = Shore(loop, store, Random(f"{seed} store"), weather, [])
        self.artifacts = MemoryArtifacts(clock=loop.now)
        self.mixed = draw.random() < 0.3
        """Whether processes run different code."""
        self.definitions = {d.name: d for d in map(definition, MACHINES)}
        self.watch = Watch(self.world, store, self.definitions, self.mixed, weather.lapses, tell)
        store.landed = self.watch.landed
        self.world.arrived = self.watch.arrived
        self.world.epoch_of = lambda key: self.watch.epochs.get(key, 0)
        self.processes: list[Process] = []
        self.known_dead = draw.random() < 0.5
        """Whether processes of the same machine can tell that another one is gone."""
        self.rough = draw.choice((0.0, 3.0, 6.0, 12.0))
        """Mean seconds between two things that happen to a process; 0: nothing does."""
        self.operator = draw.random() < 0.7
        self.operated: Counter[str] = Counter()
        self.calm_at = draw.uniform(10, 30)
        self.calm = asyncio.Event()
        self.still = asyncio.Event()
        self.problems: list[str] = []
        loop.set_exception_handler(self._unhandled)

    def env(self, name: str, skew: float, mark: Callable[[str], Mark]) -> Env:
        return Env(
            now=lambda: self.loop.now() + round(skew * 1e6),
            token=Random(f"{self.seed} {name}").randbytes,
            mark=mark,
            ended=self._known_to_have_ended,
        )

    def _known_to_have_ended(self, row: Any) -> bool:
        if row.ended is not None:
            return True
        dead = any(p.worker == row.id and p.killed_at is not None for p in self.processes)
        return dead and self.known_dead

    def _unhandled(self, _: Any, context: dict[str, Any]) -> None:
        self.problems.append(f"{context.get('message')}: {context.get('exception')!r} {context.get('task')}")

    # --- what happens -----------------------------------------------------------------------------

    async def main(self) -> None:
        rng = self.rng
        slots = [self.loop.create_task(self._slot(i)) for i in range(rng.choice((2, 2, 3)))]
        specs: list[tuple[Any, str]] = [(rng.choice(MACHINES), f"t{i}") for i in range(rng.randint(2, 5))]
        if rng.random() < 0.3:  # threads that share something
            shared = rng.choice((Keyed, Memo, Scribe))
            specs = [(shared, name) for _, name in specs]
        if self.mixed:
            specs[:2] = [(Changing, "t0"), (Changing, "t1")]
        clients = [self.loop.create_task(self._thread(m, name, rng.uniform(0, 8))) for m, name in specs]
        for _, name in [spec for spec in specs if spec[0] is Review]:
            clients += [self.loop.create_task(self._signal(name, n)) for n in range(rng.randint(0, 5))]
        for machine, name in specs:
            end = rng.choice(("cancel", "terminate", *("",) * (2 if machine is Desk else 10)))
            if end:
                clients.append(self.loop.create_task(self._end(machine, name, end)))
        await asyncio.sleep(self.calm_at)
        self._calm_down()
        await asyncio.gather(*clients)
        await self._until_still()
        await asyncio.gather(*slots)
        self._tidy()
        await self.watch.at_the_end(self.artifacts, self.shore.acknowledged)
        for differs in await self.shore.store.at_the_end():
            self.watch.breaks("the store", differs)

    def _calm_down(self) -> None:
        self.tell("calm")
        self.calm.set()
        self.world.trouble, self.shore.weather = CALM, CLEAR

    async def _until_still(self) -> None:
        limit = self.loop.time() + PATIENCE
        while not self.watch.broken:
            rows: list[ThreadRow] = list(self.shore.store.tables.threads.values())
            moving = [row for row in rows if row.standing.status not in ("ended", "parked")]
            if not moving and not await self._operate(rows):
                break
            if self.loop.time() > limit:
                for row in moving:
                    where = f"{row.address.thread_id}: {row.standing.status} in {row.standing.state}"
                    held = f"owner {row.owner}, wake {row.standing.wake}"
                    self.watch.breaks("S7", f"{where}, {held}, after {PATIENCE} s without faults")
                break
            await asyncio.sleep(1)
        self.still.set()

    async def _operate(self, rows: Sequence[ThreadRow]) -> bool:
        """An operator tells parked threads the truth, or lets them try again; whether one goes on."""
        parked = [
            row for row in rows if row.standing.status == "parked" and row.standing.reason != "diverged"
        ]
        if not self.operator or self.world.in_flight:
            return bool(self.world.in_flight)
        some = [row for row in parked if self.operated[row.address.thread_id] < 3]
        for row in some:
            self.operated[row.address.thread_id] += 1
            thread = await self._client().find(thread_id=row.address.thread_id)
            doubts = await doubts_of(self.shore.store, row)
            with contextlib.suppress(CannotResolve):
                if not doubts:
                    await thread.retry()
                else:
                    await thread.resolve(self._truth(doubts[0][1]))
        return bool(some)

    def _truth(self, key: str) -> Resolution:
        receipts = [a.receipt for a in self.world.arrivals if a.key == key]
        if not receipts:
            return Resolution(action="not done", effect=key)
        return Resolution(action="done", value=f'"{receipts[-1]}"'.encode(), effect=key)

    # --- processes --------------------------------------------------------------------------------

    async def _slot(self, number: int) -> None:
        """A place where a process runs, one after the other."""
        rng, count = self.rng, 0
        while not self.still.is_set():
            process = Process(self, f"w{number}.{count}", rng.uniform(-MAX_SKEW, MAX_SKEW))
            count += 1
            self.processes.append(process)
            await self._life(process)
            await asyncio.sleep(0 if self.calm.is_set() else rng.choice((0.0, 0.1, 1.0, 4.0)))

    async def _life(self, process: Process) -> None:
        self.tell(f"{process} begins")
        begun = process.inside(process.runtime.__aenter__)
        await self._wait(process, begun)
        if begun.done() and begun.exception() is not None:
            self.tell(f"{process} could not begin: {begun.exception()!r}")
            return
        while process.killed_at is None:
            event = await self._next_event()
            if event == "end":
                await self._leave(process)
                return
            if event == "kill":
                self.tell(f"{process} is killed")
                process.kill()
            else:
                await self._suspend(process)

    async def _next_event(self) -> str:
        rng = self.rng
        if self.rough and not self.calm.is_set():
            with anyio.move_on_after(rng.expovariate(1 / self.rough)):
                await self.calm.wait()
            if not self.calm.is_set():
                return rng.choice(("kill", "kill", "stop", "stop", "end"))
        await self.still.wait()
        return "end"

    async def _suspend(self, process: Process) -> None:
        self.watch.takeovers += 1
        for_ = self.rng.choice((0.2, 1.0, 2.0, 4.0, 8.0)) * self.rng.random()
        self.tell(f"{process} is stopped for {for_:.3f}")
        self.loop.stop_process(process)
        process.stopped = True
        await asyncio.sleep(for_)
        process.stopped = False
        self.loop.go_on(process)

    async def _wait(self, process: Process, task: asyncio.Task[Any]) -> None:
        """Until something in a process is over, or the process is."""
        while not task.done() and process.killed_at is None:
            await asyncio.wait([task], timeout=0.5)

    async def _leave(self, process: Process) -> None:
        self.tell(f"{process} leaves")
        since = self.loop.time()
        ending = process.inside(lambda: process.runtime.__aexit__(None, None, None))
        if not self.calm.is_set() and self.rng.random() < 0.2:
            await asyncio.wait([ending], timeout=self.rng.uniform(0, GRACE + 1))
            if not ending.done():
                self.tell(f"{process} is killed")
                process.kill()
        await self._wait(process, ending)
        if process.killed_at is None:
            if ending.exception() is not None:
                self.watch.breaks("hygiene", f"{process} could not leave: {ending.exception()!r}")
            self._left_nothing(process, since)
            process.killed_at = self.loop.time()

    def _left_nothing(self, process: Process, since: float) -> None:
        """Neither tasks nor, where the store answered it in time from when it began to leave, claims."""
        left = [task for task in self.loop.left_of(process) if task not in process.asked]
        if left:
            self.watch.breaks("hygiene", f"{process} has left and still runs {[t.get_coro() for t in left]}")
        owned = [r for r in self.shore.store.tables.threads.values() if r.owner == process.worker]
        answered = process.wire.lost_at + LANDS_LATER < since and self.loop.time() < since + ABORT_GRACE
        if owned and answered:
            names = [r.address.thread_id for r in owned]
            self.watch.breaks("hygiene", f"{process} has left in good order and still owns {names}")

    def _tidy(self) -> None:
        gc.collect()
        for problem in self.problems:
            self.watch.breaks("hygiene", problem)

    # --- clients ----------------------------------------------------------------------------------

    async def _thread(self, machine: Any, name: str, at: float) -> None:
        await asyncio.sleep(at)
        session = "talk" if machine is Scribe else None
        data = definition(machine).data.cls()
        await self._insist(lambda where: where.start(machine, data, thread_id=name, session=session))

    async def _signal(self, name: str, number: int) -> None:
        """One signal, at any time, perhaps again and again."""
        rng = self.rng
        event = rng.choice((Review.note, Review.note, Review.approve, Review.hurry))
        word = Word(text=f"{event.name} {number}")
        for _ in range(rng.choice((1, 1, 2, 3))):
            await asyncio.sleep(rng.uniform(0, 12))
            await self._insist(
                lambda where: where.thread(Review, thread_id=name).signal(event, word, id=f"signal {number}")
            )

    async def _end(self, machine: Any, name: str, what: str) -> None:
        """Cancel or terminate a thread at any time, perhaps again."""
        rng = self.rng
        for by in ("ada", "bob")[: rng.choice((1, 1, 2))]:
            await asyncio.sleep(rng.uniform(0, 14))
            self.watch.takeovers += what == "terminate"
            self.tell(f"{by} wants to {what} {name}")
            await self._insist(partial(self._ask_to_end, machine, name, what, by))

    async def _ask_to_end(self, machine: Any, name: str, what: str, by: str, where: Any) -> None:
        thread = where.thread(machine, thread_id=name)
        await (thread.cancel(by=by) if what == "cancel" else thread.terminate(by=by))

    async def _insist(self, ask: Callable[[Any], Awaitable[Any]]) -> None:
        """Ask of some process, or of none, and of another one where there is no answer in time."""
        while True:
            task = self._ask(ask)
            await asyncio.wait([task], timeout=self.rng.uniform(0.5, 4))
            if not task.done():
                task.cancel()
            elif task.exception() is None or isinstance(task.exception(), SignalRefused):
                return
            await asyncio.sleep(0.2)

    def _ask(self, ask: Callable[[Any], Awaitable[Any]]) -> asyncio.Task[Any]:
        here = [p for p in self.processes if p.killed_at is None and p.runtime._client is not None]
        if here and self.rng.random() < 0.7:
            process = self.rng.choice(here)
            return process.inside(lambda: ask(process.runtime))

        async def outside() -> Any:
            return await ask(self._client())

        return self.loop.create_task(outside())

    def _client(self) -> Client:
        self._clients += 1
        env = self.env(f"client {self._clients}", 0.0, lambda _: Mark("here", ""))
        return Client(Wire(self.shore), self.artifacts, env, self.definitions, None)

    _clients = 0


def _some(rng: Random, *choices: float) -> float:
    """Some faults do not happen in a run at all, so that the others go further."""
    return rng.choice((0.0, *choices))


def _trouble(rng: Random) -> Trouble:
    return Trouble(
        lost=_some(rng, 0.05, 0.2),
        rejected=_some(rng, 0.1, 0.3),
        unanswered=_some(rng, 0.1, 0.3),
        broken=_some(rng, 0.1, 0.4),
        slow=_some(rng, 0.1, 0.5),
        unknown=_some(rng, 0.1, 0.5),
        unseen=_some(rng, 0.3, 1.0),
        unread=_some(rng, 0.05, 0.2),
    )


def _weather(rng: Random) -> Weather:
    return Weather(
        unavailable=_some(rng, 0.02, 0.1),
        lost=_some(rng, 0.05, 0.2),
        slow=_some(rng, 0.1, 0.5),
        stalled=_some(rng, 0.01, 0.05),
        dragging=_some(rng, 0.1, 0.5),
    )


@cache
def _set_aside_what_is_there() -> None:
    """Once: the collection at the end of a run looks at what runs have made, and no further."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def simulated_store(clock: Callable[[], Micros]) -> Iterator[WatchedStore]:
    """The store that a seed usually has."""
    yield WatchedStore(clock)


def run_seed(
    seed: int,
    *,
    trace: bool = False,
    place: Callable[[Callable[[], Micros]], AbstractContextManager[WatchedStore]] = simulated_store,
) -> Report:
    """Run one seed in simulated time, on the store that ``place`` opens."""
    lines: list[str] = []
    digest = hashlib.blake2b(digest_size=16)

    async def main(loop: StoppableLoop) -> Report:
        def tell(line: str) -> None:
            text = f"{loop.time():10.4f} {line}"
            digest.update(text.encode())
            if trace:
                lines.append(text)

        with place(loop.now) as store:
            run = Run(loop, seed, tell, store)
            await run.main()
        rows = list(run.shore.store.tables.threads.values())
        counts = {
            "threads": len(rows),
            "ended": sum(row.standing.status == "ended" for row in rows),
            "cancelled": sum(row.standing.reason == "cancelled" for row in rows),
            "terminated": sum(row.standing.reason == "terminated" for row in rows),
            "commits": sum(row.n for row in rows),
            "arrivals": len(run.world.arrivals),
            "kills": run.watch.crashes,
            **{f"parked {r}": 1 for _, r, _ in run.watch.parks},
        }
        return Report(
            seed=seed,
            broken=tuple(run.watch.broken),
            digest=digest.hexdigest(),
            seconds=loop.time(),
            counts=counts,
            trace=lines,
        )

    said = logging.getLogger("perdure")
    level = said.level
    said.setLevel(logging.CRITICAL)
    _set_aside_what_is_there()
    try:
        return simulate(main)
    finally:
        said.setLevel(level)
