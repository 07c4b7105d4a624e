"""A real store under a seed: it answers each request, and the model beside it has to answer the same.

The real one runs in a thread and a loop of its own, and whoever asks stands still until it has answered. So
nothing else happens meanwhile, simulated time stands, and a seed goes on as it does without a real store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from _run import Report, run_seed
from _store import WatchedStore
from anyio.from_thread import BlockingPortal, start_blocking_portal
from attrs import define, evolve
from harness.beside import settled
from servers.rooms import room

from perdure.stores import (
    ArtifactRow,
    Artifacts,
    Claimed,
    ClaimRequest,
    Commit,
    DefinitionRow,
    Definitions,
    Delivered,
    Expire,
    Expired,
    Inbox,
    Items,
    Keys,
    Log,
    Memory,
    MemoryRow,
    Messages,
    Micros,
    Outbox,
    Page,
    Query,
    Release,
    Remember,
    Share,
    Shared,
    Signal,
    Start,
    Started,
    Store,
    Threads,
    WorkerRow,
    Workers,
    open_store,
)

T = TypeVar("T")
Clock = Callable[[], Micros]
Place = Callable[[Clock], AbstractContextManager[WatchedStore]]


@define
class Real:
    """A store that is open in another thread."""

    portal: BlockingPortal
    store: Store

    def ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Its answer; an error is one too."""

        async def asked() -> Any:
            try:
                return await getattr(self.store, method)(*args, **options)
            except Exception as error:
                return error

        return self.portal.call(asked)


class BesideStore(WatchedStore):
    """Asks the real store, then the model. Answers with what the real one has answered."""

    def __init__(self, clock: Clock, real: Real) -> None:
        super().__init__(clock)
        self._real = real
        self._differs: list[str] = []
        self._cursors: dict[str, str | None] = {}
        """The model's, by the real one's: each store has its own."""

    async def start(self, start: Start, /) -> Started:
        theirs = self._real.ask("start", start)
        return await self._agreed("start", theirs, super().start(start))

    async def claim(self, request: ClaimRequest, /) -> Claimed:
        theirs = self._real.ask("claim", request)
        return await self._agreed("claim", theirs, super().claim(request))

    async def commit(self, commit: Commit, /) -> None:
        theirs = self._real.ask("commit", commit)
        await self._agreed("commit", theirs, super().commit(commit))

    async def release(self, releases: Sequence[Release], /) -> None:
        theirs = self._real.ask("release", releases)
        await self._agreed("release", theirs, super().release(releases))

    async def deliver(self, signal: Signal, /) -> Delivered:
        theirs = self._real.ask("deliver", signal)
        return await self._agreed("deliver", theirs, super().deliver(signal))

    async def beat(self, worker: WorkerRow, definitions: Sequence[DefinitionRow] = (), /) -> Micros:
        theirs = self._real.ask("beat", worker, definitions)
        return await self._agreed("beat", theirs, super().beat(worker, definitions))

    async def share(self, request: Share, /) -> Shared:
        theirs = self._real.ask("share", request)
        return await self._agreed("share", theirs, super().share(request))

    async def upload(self, artifact: ArtifactRow, /) -> None:
        theirs = self._real.ask("upload", artifact)
        await self._agreed("upload", theirs, super().upload(artifact))

    async def remember(self, write: Remember, /) -> MemoryRow:
        theirs = self._real.ask("remember", write)
        return await self._agreed("remember", theirs, super().remember(write))

    async def expire(self, request: Expire, /) -> Expired:
        theirs = self._real.ask("expire", request)
        return await self._agreed("expire", theirs, super().expire(request))

    async def page(self, query: Query[Any], /, *, after: str | None = None, limit: int = 100) -> Page[Any]:
        theirs = self._real.ask("page", query, after=after, limit=limit)
        ours = await super().page(query, after=None if after is None else self._cursors[after], limit=limit)
        if isinstance(theirs, Exception):
            raise theirs
        if theirs.next is not None:
            self._cursors[theirs.next] = ours.next
            ours = ours if ours.next is None else evolve(ours, next=theirs.next)
        return await self._agreed(f"{query}", theirs, done(ours))

    async def _agreed(self, what: str, theirs: Any, work: Awaitable[T]) -> T:
        ours: Any
        try:
            ours = await work
        except Exception as error:
            ours = error
        if settled(theirs) != settled(ours):
            self._differs.append(f"{what}: the store answers {theirs!r}, the model {ours!r}")
        if isinstance(theirs, Exception):
            raise theirs
        return theirs  # type: ignore[no-any-return]

    async def at_the_end(self) -> Sequence[str]:
        """Look at everything that both hold, and say where they differed."""
        for query in self._everything():
            after: str | None = None
            while True:
                after = (await self.page(query, after=after)).next
                if after is None:
                    break
        return self._differs

    def _everything(self) -> Iterator[Query[Any]]:
        tables = self.tables
        yield from (Threads(), Workers(), Definitions())
        for workspace in {address.workspace for address in tables.threads}:
            yield Memory(workspace=workspace, history=True)
            yield Artifacts(workspace=workspace)
        for workspace, effect in {(key[0], key[1]) for key in tables.keys}:
            yield Keys(workspace=workspace, effect=effect)
        for workspace, session in tables.messages:
            yield Messages(workspace=workspace, session=session)
        for address in tables.threads:
            yield from (query(address=address) for query in (Log, Items, Inbox, Outbox))


async def done(answer: T) -> T:
    return answer


@contextmanager
def beside(portal: BlockingPortal, server: str, folder: Path) -> Iterator[Place]:
    """Where one seed runs: in a room of its own on the server, or in the folder."""
    with room(server, folder) as url:

        @contextmanager
        def place(clock: Clock) -> Iterator[WatchedStore]:
            store = open_store(url, clock=clock)
            with portal.wrap_async_context_manager(store):
                yield BesideStore(clock, Real(portal, store))

        yield place


def reports(server: str, folder: Path, seeds: Iterable[int], *, trace: bool = False) -> Iterator[Report]:
    """What becomes of each seed on such a store."""
    with start_blocking_portal("asyncio") as portal:
        for seed in seeds:
            own = folder / f"{seed}"
            own.mkdir()
            with beside(portal, server, own) as place:
                yield run_seed(seed, trace=trace, place=place)
