"""The object that users make, that runs, and that the command line loads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, TypeVar

from attrs import asdict, evolve

from perdure.artifacts import ArtifactBackend, open_artifacts
from perdure.machines import Definition, DefinitionError, Machine, Of, SignalMessage, definition
from perdure.stores import MemoryStore, Store, ThreadRow, Threads, open_store

from ._bounds import check_count, check_span
from ._claiming import WorkerOptions
from ._client import Client, Thread
from ._client_memory import ClientMemory
from ._env import Env
from ._errors import RuntimeClosed
from ._observe import Observer, Observers
from ._permits import limits_of
from ._schedules import Schedule, Schedules, by_name
from ._spill import SpillingStore, bare, opened
from ._uploads import DEFAULT_PRINCIPAL, DEFAULT_WORKSPACE, Uploads
from ._worker import Worker

X = TypeVar("X")
M = TypeVar("M")
D = TypeVar("D")


class Runtime(Generic[X]):
    """Machines, what they depend on, and where their record lies.

    ``async with runtime:`` is a worker: it recovers and runs whatever its machines have in the store, and
    drains when it is left. ``runtime.client()`` only starts, signals and looks.

    ``store`` and ``artifacts`` are URLs, or a store and a backend that the caller made. ``lease``: how long
    after its last heartbeat a worker counts as alive. ``grace``: how long running steps may go on when the
    runtime is left. ``concurrency``: threads that run at once. ``schedules``: the machines whose threads the
    calendar starts, while a worker runs. ``DefinitionError`` where two machines, or two schedules, share a
    name, or a number or span of time is none.
    """

    def __init__(
        self,
        *,
        machines: Sequence[type[Machine[Any, X]]],
        deps: X = None,  # type: ignore[assignment]
        store: str | Store = "sqlite:///perdure.db",
        artifacts: str | ArtifactBackend = "file:artifacts",
        concurrency: int = 1000,
        lease: timedelta = timedelta(seconds=15),
        grace: timedelta = timedelta(seconds=10),
        poll: timedelta = timedelta(milliseconds=500),
        schedules: Sequence[Schedule[Any]] = (),
        observers: Sequence[Observer] = (),
        env: Env | None = None,
    ) -> None:
        self.deps = deps
        self.definitions = _by_name(machines)
        limits_of(self.definitions)  # refused here already, and not once a worker begins
        self.schedules = by_name(schedules, self.definitions)
        self.store = store
        self._artifacts = artifacts
        self._options = WorkerOptions(concurrency=concurrency, lease=lease, grace=grace, poll=poll)
        _check_options(self._options)
        self._observers = Observers(observers)
        self._env = env or Env()
        self._clock = None if env is None else env.now
        """What a store reads that is opened by its URL; None: what it reads by itself."""
        self._stack: AsyncExitStack | None = None
        self._client: Client | None = None

    # --- running ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Runtime[X]:
        await self._begin(None)
        return self

    async def _begin(self, on_stall: Callable[[str], None] | None) -> Worker:
        if self._stack is not None:
            raise RuntimeClosed("this runtime is running already: one `async with runtime:` at a time")
        async with AsyncExitStack() as stack:
            store, artifacts = await self._open(stack)
            worker = Worker(
                store,
                artifacts,
                self._env,
                self.deps,
                self.definitions,
                self._options,
                self._observers,
                beside=self._beside(store),
                on_stall=on_stall,
            )
            await worker.begin()
            stack.push_async_callback(worker.end)
            client = self._client = Client(store, artifacts, self._env, self.definitions, worker)
            if self.schedules:
                kept = Schedules(self.schedules, client, worker.env.now, self._options.poll)
                worker.supervise("the schedules", kept.keep)
            self._stack = stack.pop_all()
        return worker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack, self._client = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        """A client without a worker: nothing is run in this process."""
        async with AsyncExitStack() as stack:
            store, artifacts = await self._open(stack)
            yield Client(store, artifacts, self._env, self.definitions, None)

    async def _open(self, stack: AsyncExitStack) -> tuple[Store, ArtifactBackend]:
        store = open_store(self.store, clock=self._clock) if isinstance(self.store, str) else self.store
        artifacts = self._artifacts
        backend = open_artifacts(artifacts) if isinstance(artifacts, str) else artifacts
        opened_store = await stack.enter_async_context(store)
        opened_backend = await stack.enter_async_context(backend)
        return SpillingStore(opened_store, opened(opened_backend), self._env.now), opened_backend

    def _beside(self, store: Store) -> Callable[[], Store] | None:
        """Opens the store a second time, where its URL leads to the same one again."""
        url = self.store
        if not isinstance(url, str) or isinstance(bare(store), MemoryStore):
            return None
        return lambda: open_store(url, clock=self._clock)

    def with_store(self, store: str | Store, /, *, observers: Sequence[Observer] = ()) -> Runtime[X]:
        """The same runtime on another store, with more observers."""
        return self._changed(store=store, observers=observers)

    def _changed(
        self, *, store: str | Store | None = None, observers: Sequence[Observer] = (), **options: Any
    ) -> Runtime[X]:
        """The same runtime with what is given instead; None: as it is here."""
        other = copy(self)
        other.store = self.store if store is None else store
        other._observers = Observers([*self._observers.given, *observers])
        other._options = evolve(self._options, **{k: v for k, v in options.items() if v is not None})
        _check_options(other._options)
        other._stack = other._client = None
        return other

    # --- what a client does -----------------------------------------------------------------------

    @property
    def _running(self) -> Client:
        if self._client is None:
            raise RuntimeClosed(
                "the runtime is not running: use it inside `async with runtime:`, or take `runtime.client()`"
            )
        return self._client

    async def start(
        self,
        machine: Of[M, D],
        data: D,
        /,
        *,
        thread_id: str,
        workspace: str = DEFAULT_WORKSPACE,
        principal: str = DEFAULT_PRINCIPAL,
        session: str | None = None,
        priority: int = 0,
        signals: Sequence[SignalMessage[M]] = (),
    ) -> Thread[M, D]:
        """Start a thread and run it here; see ``Client.start``."""
        return await self._running.start(
            machine,
            data,
            thread_id=thread_id,
            workspace=workspace,
            principal=principal,
            session=session,
            priority=priority,
            signals=signals,
        )

    def thread(
        self, machine: Of[M, D], /, *, thread_id: str, workspace: str = DEFAULT_WORKSPACE
    ) -> Thread[M, D]:
        """A handle on a thread; see ``Client.thread``."""
        return self._running.thread(machine, thread_id=thread_id, workspace=workspace)

    def threads(self, query: Threads) -> AsyncIterator[ThreadRow]:
        """The threads that a query finds."""
        return self._running.threads(query)

    @property
    def artifacts_at(self) -> str | ArtifactBackend:
        """Where artifacts lie: the URL or the backend that it was made with."""
        return self._artifacts

    @property
    def artifacts(self) -> Uploads:
        """Artifacts outside a thread."""
        return self._running.artifacts

    @property
    def memory(self) -> ClientMemory:
        """Memory outside a thread."""
        return self._running.memory


def _check_options(options: WorkerOptions) -> None:
    try:
        for name, value in asdict(options).items():
            if name == "concurrency":
                check_count(f"Runtime({name}=)", value)
            else:
                check_span(f"Runtime({name}=)", value, zero=name == "grace")
    except ValueError as error:
        raise DefinitionError(str(error)) from None


def _by_name(machines: Sequence[type[Machine[Any, Any]]]) -> Mapping[str, Definition]:
    if isinstance(machines, type):
        raise DefinitionError(f"Runtime: machines= takes a list, as in machines=[{machines.__name__}]")
    named: dict[str, Definition] = {}
    for machine in machines:
        if not isinstance(machine, type) or not issubclass(machine, Machine):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"Runtime: machines= lists {machine!r}: list machine classes themselves")
        plan = definition(machine)
        if plan.name in named:
            raise DefinitionError(
                f"Runtime: two machines are named {plan.name!r}: give one of them name=... in its class line"
            )
        named[plan.name] = plan
    return named
