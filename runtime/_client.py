"""What starts, signals and looks: with or without a worker in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic, TypeVar, overload

import anyio
from attrs import evolve, frozen

from perdure.artifacts import ArtifactBackend
from perdure.machines import Definition, Of, Signal, SignalMessage, definition
from perdure.stores import (
    MAX_ID,
    MAX_WORKSPACE,
    Address,
    InboxRow,
    Micros,
    Standing,
    Store,
    ThreadEnded,
    ThreadRow,
    Threads,
    check_name,
)
from perdure.stores import Signal as StoredSignal

from ._cancel import cancel, terminate
from ._client_memory import ClientMemory
from ._client_start import AskedStart, Starting, signal_of
from ._env import Env
from ._errors import Parked, SignalRefused, UnknownMachine
from ._look import (
    StepSeen,
    ended_words,
    find_thread,
    history,
    look,
    pending_signals,
    rows_of,
    why,
)
from ._operate import Resolution, resolve, retry
from ._reliable import until_known
from ._run import Left
from ._schemas import OtherVersions
from ._stored_data import stored_data
from ._uploads import DEFAULT_PRINCIPAL, DEFAULT_WORKSPACE, Uploads
from ._wakeup import Bell
from ._worker import Watch, Worker

M = TypeVar("M")
D = TypeVar("D")
T = TypeVar("T")
D_co = TypeVar("D_co", covariant=True)

FIRST_LOOK = 0.01
LONGEST_LOOK = 1.0
"""Seconds between looks at a thread that another process runs."""
LOOKS = 0.1
"""What part of the time that it took so far a wait may be longer than it must."""


@frozen(kw_only=True)
class Ended(Generic[D_co]):
    """How a thread ended."""

    state: str
    """The final state; where the thread was ended from outside, the one in which it stood."""
    data: D_co
    reason: str | None
    """None: by a transition to a final state. ``cancelled`` and ``terminated``: from outside."""


class Thread(Generic[M, D]):
    """A handle on one thread. It holds nothing: every answer comes from the store, but for a result that
    a run of this process has just committed."""

    def __init__(self, client: Client, plan: Definition, address: Address) -> None:
        self._client = client
        self._plan = plan
        self.address = address

    def __repr__(self) -> str:
        return f"<Thread {self._plan.name} {self.address.workspace}/{self.address.thread_id}>"

    @property
    def thread_id(self) -> str:
        """Its id within its workspace."""
        return self.address.thread_id

    @overload
    async def signal(self, signal: Signal[M, None], /, *, id: str) -> None: ...
    @overload
    async def signal(self, signal: Signal[M, T], payload: T, /, *, id: str) -> None: ...
    async def signal(self, signal: Signal[M, Any], payload: Any = None, /, *, id: str) -> None:
        """Put a signal into the thread's inbox, once by id: the same id again changes nothing.

        ``SignalRefused`` where the machine has no such signal, the payload is of another type, or the thread
        has ended; ``SignalConflict`` where the id was used with another payload.
        """
        if not issubclass(self._plan.machine, signal.machine):
            raise SignalRefused(
                f"thread {self.thread_id!r} is of machine {self._plan.name}, and the signal {signal.name!r} "
                f"is one of {signal.machine.__name__}: take a handle on the thread that is meant"
            )
        await self._client.send(self._plan, self.address, signal.name, payload, id)

    async def cancel(self, *, reason: str = "", by: str = "operator") -> None:
        """Ask the thread to end: a message, once a thread (the first one's words stand).

        It stops a running handler wherever an ``on_cancel`` event leaves the state: reads are cancelled,
        effects awaited and settled, and that event is taken instead. Elsewhere it waits in the inbox, as a
        signal does. A thread whose machine has no such event ends where it stands, with the reason
        ``cancelled``. What became of it, ``result`` tells: one that comes while the last transition is
        being committed is left in the inbox. ``SignalRefused`` says how the thread has ended, where it has.
        """
        await self._client.cancel(
            thread_id=self.thread_id, workspace=self.address.workspace, reason=reason, by=by
        )

    async def terminate(self, *, reason: str = "", by: str = "operator") -> None:
        """End the thread at once, whoever runs it and whatever is wrong with it, with the reason
        ``terminated``. No handler is asked; effects in doubt stay so, and ``why`` and ``history`` name them.

        ``SignalRefused`` says how the thread has ended, where it has ended otherwise; ``NoSuchThread``.
        """
        await self._client.terminate(
            thread_id=self.thread_id, workspace=self.address.workspace, reason=reason, by=by
        )

    async def result(self) -> Ended[D]:
        """Wait until the thread has ended. ``Parked`` where it is parked instead; ``Unreadable`` where it was
        terminated and its data does not fit the code."""
        found = await self._client.until(self.address, self._plan, _is_over)
        standing = found.standing
        if standing.status == "parked":
            raise Parked(self.thread_id, standing.reason or "", standing.note or "")
        data: D = found.data if isinstance(found, Left) else await until_known(lambda: self._data(found))
        return Ended(state=standing.state, data=data, reason=standing.reason)

    async def settled(self) -> str:
        """Wait until only an event or the clock of a state moves it on, or nothing does. Returns its status:
        ``waiting``, ``parked`` or ``ended``. A retry's delay is waited for."""
        now, plan = self._client.env.now, self._plan
        row = await self._client.until(
            self.address, plan, lambda seen: _is_over(seen) or _waits(seen.standing, plan, now())
        )
        return row.standing.status

    async def row(self) -> ThreadRow:
        """The thread as it stands in the store."""
        row = await find_thread(self._client.store, self.address)
        _same_machine(row, self._plan, self.address)
        return row

    async def state(self) -> str:
        """The state it is in."""
        return (await self.row()).standing.state

    async def data(self) -> D:
        """Its data as of its newest checkpoint."""
        return await self._data(await self.row())

    async def _data(self, row: ThreadRow) -> D:
        data: D = (await look(self._client.store, self._plan, row)).data
        return data

    async def stored_data(self) -> dict[str, Any]:
        """Its data as plain JSON values, as they are stored."""
        return await stored_data(self._client.store, await self.row())

    async def history(self) -> list[StepSeen]:
        """Its steps so far, from the journal."""
        return [step async for step in history(self._client.store, await self.row())]

    async def pending(self) -> list[InboxRow]:
        """Signals that it has not taken in, in order."""
        return await pending_signals(self._client.store, self.address)

    async def why(self) -> str:
        """Why it is where it is, and what moves it on."""
        env = self._client.env
        return await why(self._client.store, self._plan, await self.row(), env.now(), env.ended)

    async def retry(self) -> None:
        """Let a parked thread go on from its record, with its attempts counted anew."""
        await retry(self._client.store, self._client.env, self._plan, self.address)
        await self._client.tell(self.address)

    async def resolve(self, resolution: Resolution) -> None:
        """End a doubt or a divergence by hand; ``CannotResolve`` says why it cannot be done now."""
        await resolve(self._client.store, self._client.env, self._plan, self.address, resolution)
        await self._client.tell(self.address)


class Client:
    """Starts, signals and looks at threads in one store."""

    def __init__(
        self,
        store: Store,
        artifacts: ArtifactBackend,
        env: Env,
        definitions: Mapping[str, Definition],
        worker: Worker | None,
    ) -> None:
        self.store = store
        self.env = env
        self.artifacts = Uploads(store, artifacts, env)
        self.memory = ClientMemory(store, env)
        self._definitions = definitions
        self._worker = worker
        self._bell = Bell(store, env) if worker is None else worker.bell
        self._versions = OtherVersions(store=store)

    async def tell(self, address: Address, *, owner: str | None = None) -> None:
        """Whoever has this thread, or may claim it, is to look at it now."""
        worker = self._worker
        if worker is not None:
            worker.wake()
            if owner in (None, worker.worker) and worker.takes_new:
                return  # it goes on here
        await self._bell.ring(address, owner=owner)

    def plan_of(self, machine: Any) -> Definition:
        """The definition of one of this runtime's machines."""
        plan = definition(machine)
        if self._definitions.get(plan.name) is not plan:
            known = ", ".join(sorted(self._definitions)) or "none"
            raise UnknownMachine(
                f"machine {plan.name!r} is not in Runtime(machines=[...]), which has: {known}"
            )
        return plan

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
        """Start a thread, once by (workspace, thread_id): again with the same data, it is the thread there.

        ``priority`` (-10 to 10): each point counts as a minute of waiting for a worker. ``signals``
        (``Summarise.approve.message(Approval(by="ada"), id="a1")``) are in its inbox from the first moment
        on, behind what was sent to this id before; where the thread is there already they are delivered to
        it. Start and signals land together or not at all.

        ``StartConflict`` where that thread was started with another machine or other data; ``NotStorable``
        names a field whose value cannot be stored, or a timeout for which the data gives no time;
        ``SignalRefused`` and ``SignalConflict`` as in ``Thread.signal``. Nothing is written then.
        """
        plan = self.plan_of(machine)
        check_name("workspace", workspace, MAX_WORKSPACE)
        check_name("thread_id", thread_id, MAX_ID)
        address = Address(workspace=workspace, thread_id=thread_id)
        asked = AskedStart(
            address=address,
            data=data,
            principal=principal,
            session=session or thread_id,
            priority=priority,
            signals=tuple([await self._signal_with(plan, address, message) for message in signals]),
        )
        started = await Starting(self.store, self.env, plan, self._worker).start(asked)
        if started.thread.owner is None:
            await self.tell(address)
        elif not started.created:
            for each in started.delivered:
                if each.new:
                    await self._told(address, each.row, each.thread)
        return Thread(self, plan, address)

    async def _signal_with(
        self, plan: Definition, address: Address, message: SignalMessage[Any]
    ) -> StoredSignal:
        if not isinstance(message, SignalMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SignalRefused(
                f"thread {address.thread_id!r}: signals= takes messages, as {plan.name}.approve.message(...) "
                f"makes them, not {message!r}"
            )
        if not issubclass(plan.machine, message.machine):
            raise SignalRefused(
                f"thread {address.thread_id!r} is of machine {plan.name}, and the signal {message.name!r} is "
                f"one of {message.machine.__name__}"
            )
        return await self._signal(plan, address, message.name, message.payload, message.id)

    def thread(
        self, machine: Of[M, D], /, *, thread_id: str, workspace: str = DEFAULT_WORKSPACE
    ) -> Thread[M, D]:
        """A handle on a thread, whether it has started yet or not: a signal sent before the start is kept."""
        return Thread(self, self.plan_of(machine), Address(workspace=workspace, thread_id=thread_id))

    async def find(self, *, thread_id: str, workspace: str = DEFAULT_WORKSPACE) -> Thread[Any, Any]:
        """A handle on a thread that is there, whatever its machine. ``NoSuchThread``, ``UnknownMachine``."""
        row = await find_thread(self.store, Address(workspace=workspace, thread_id=thread_id))
        plan = self._definitions.get(row.machine)
        if plan is None:
            raise UnknownMachine(
                f"thread {thread_id!r} is of machine {row.machine!r}, which is not known here"
            )
        return Thread(self, plan, row.address)

    def threads(self, query: Threads) -> AsyncIterator[ThreadRow]:
        """The threads that a query finds, page by page."""
        return rows_of(self.store, query)

    async def send(self, plan: Definition, address: Address, event: str, payload: Any, id: str) -> None:
        """Deliver one signal; see ``Thread.signal``."""
        await self.deliver(await self._signal(plan, address, event, payload, id))

    async def deliver(self, signal: StoredSignal) -> None:
        """Deliver one signal that was checked."""
        address = signal.address
        try:
            delivered = await until_known(lambda: self.store.deliver(signal))
        except ThreadEnded as error:
            ended = ended_words((await find_thread(self.store, address)).standing)
            raise SignalRefused(
                f"thread {address.thread_id!r}: signal {signal.id!r}: the thread has ended: {ended}"
            ) from error
        if delivered.new:
            await self._told(address, delivered.row, delivered.thread)

    async def _signal(
        self, plan: Definition, address: Address, event: str, payload: Any, id: str
    ) -> StoredSignal:
        signal = signal_of(plan, address, event, payload, id)
        where, now = f"thread {address.thread_id!r}: signal {id!r}", self.env.now()
        wire = await self._versions.wire(plan, address, event, signal.payload, where, now)
        return evolve(signal, event=wire.event, version=wire.version)

    async def cancel(
        self,
        *,
        thread_id: str,
        workspace: str = DEFAULT_WORKSPACE,
        reason: str = "",
        by: str = "operator",
    ) -> None:
        """Ask a thread to end, whatever its machine; see ``Thread.cancel``."""
        address = Address(workspace=workspace, thread_id=thread_id)
        sent = await cancel(self.store, address, by=by, reason=reason)
        if sent.new:
            await self._told(address, sent.row, sent.thread)

    async def terminate(
        self,
        *,
        thread_id: str,
        workspace: str = DEFAULT_WORKSPACE,
        reason: str = "",
        by: str = "operator",
    ) -> None:
        """End a thread at once, whatever its machine; see ``Thread.terminate``."""
        address = Address(workspace=workspace, thread_id=thread_id)
        owner = await terminate(self.store, self.env, address, by=by, reason=reason)
        if self._worker is not None:
            self._worker.fenced(address)
        if owner is not None:
            await self._bell.ring(address, owner=owner)

    async def _told(self, address: Address, row: InboxRow, thread: ThreadRow | None) -> None:
        """A message is in the inbox: whoever has the thread, or may claim it, is told."""
        worker, owner = self._worker, None if thread is None else thread.owner
        here = worker is not None and worker.offer(address, row) and owner in (None, worker.worker)
        if thread is not None and not here:
            await self._bell.ring(address, owner=owner)

    async def _found(self, address: Address) -> ThreadRow:
        """Its row: who waits for a thread waits for a store that is out of reach too."""
        return await until_known(lambda: find_thread(self.store, address))

    async def until(
        self, address: Address, plan: Definition, reached: Callable[[ThreadRow | Left], bool]
    ) -> ThreadRow | Left:
        """The thread of this machine, once it is as asked: its row, or how a run of this process left it."""
        worker, now = self._worker, asyncio.get_running_loop().time
        began = now()
        with nullcontext(Watch()) if worker is None else worker.watching(address) as watch:
            if worker is not None and address in worker.runs:  # which says when it has changed
                with anyio.move_on_after(LONGEST_LOOK):
                    await watch.changed.wait()
            while True:
                watch.changed.clear()
                seen = watch.left or await self._found(address)
                _same_machine(seen, plan, address)
                if reached(seen):
                    return seen
                here = worker is not None and address in worker.runs
                pause = LONGEST_LOOK if here else max(LOOKS * (now() - began), FIRST_LOOK)
                with anyio.move_on_after(min(pause, LONGEST_LOOK)):
                    await watch.changed.wait()


def _is_over(seen: ThreadRow | Left) -> bool:
    return seen.standing.status in ("parked", "ended")


def _waits(standing: Standing, plan: Definition, now: Micros) -> bool:
    state = plan.state_of(standing.state)
    idle = state is None or state.waiting
    return standing.status == "waiting" and idle and (standing.wake is None or standing.wake > now)


def _same_machine(seen: ThreadRow | Left, plan: Definition, address: Address) -> None:
    if seen.machine != plan.name:
        raise UnknownMachine(
            f"thread {address.thread_id!r} is of machine {seen.machine!r}, not {plan.name!r}: "
            "take a handle for its own machine"
        )
