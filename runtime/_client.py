"""What starts, signals and looks: with or without a worker in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext
from typing import Any, Generic, TypeVar, overload

import anyio
from attrs import frozen

from perdure.artifacts import ArtifactBackend
from perdure.machines import Definition, NotStorable, Of, Signal, definition
from perdure.stores import (
    MAX_ID,
    MAX_WORKSPACE,
    Address,
    Claim,
    InboxRow,
    ItemsRow,
    Micros,
    Standing,
    Start,
    Started,
    Store,
    ThreadEnded,
    ThreadRow,
    Threads,
    check_name,
)
from perdure.stores import Signal as StoredSignal

from ._cancel import cancel, terminate
from ._client_memory import ClientMemory
from ._context import micros
from ._env import Env
from ._errors import Parked, SignalRefused, UnknownMachine
from ._journal import Body, encode_body, log_row
from ._keys import digest
from ._ledger import side_digest
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
from ._progress import Progress, conversation_field, owned_values
from ._reliable import released, until_known
from ._reserved import RESERVED
from ._starts import check_same, identity_of
from ._stored_data import stored_data
from ._uploads import DEFAULT_PRINCIPAL, DEFAULT_WORKSPACE, Uploads
from ._worker import Worker

M = TypeVar("M")
D = TypeVar("D")
T = TypeVar("T")
D_co = TypeVar("D_co", covariant=True)

FIRST_LOOK = 0.02
LONGEST_LOOK = 1.0
"""Seconds between looks at a thread that another process runs."""


@frozen(kw_only=True)
class Ended(Generic[D_co]):
    """How a thread ended."""

    state: str
    """The final state; where the thread was ended from outside, the one in which it stood."""
    data: D_co
    reason: str | None
    """None: by a transition to a final state. ``cancelled`` and ``terminated``: from outside."""


class Thread(Generic[M, D]):
    """A handle on one thread. It holds nothing: every answer comes from the store."""

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
        row = await self._client.until(self.address, self._plan, _is_over)
        if row.standing.status == "parked":
            raise Parked(self.thread_id, row.standing.reason or "", row.standing.note or "")
        data: D = (await look(self._client.store, self._plan, row)).data
        return Ended(state=row.standing.state, data=data, reason=row.standing.reason)

    async def settled(self) -> str:
        """Wait until only an event or the clock of a state moves it on, or nothing does. Returns its status:
        ``waiting``, ``parked`` or ``ended``. A retry's delay is waited for."""
        now, plan = self._client.env.now, self._plan
        row = await self._client.until(
            self.address, plan, lambda row: _is_over(row) or _waits(row, plan, now())
        )
        return row.standing.status

    async def row(self) -> ThreadRow:
        """The thread as it stands in the store."""
        row = await find_thread(self._client.store, self.address)
        _same_machine(row, self._plan)
        return row

    async def state(self) -> str:
        """The state it is in."""
        return (await self.row()).standing.state

    async def data(self) -> D:
        """Its data as of its newest checkpoint."""
        data: D = (await look(self._client.store, self._plan, await self.row())).data
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
        self._client.nudge()

    async def resolve(self, resolution: Resolution) -> None:
        """End a doubt or a divergence by hand; ``CannotResolve`` says why it cannot be done now."""
        await resolve(self._client.store, self._client.env, self._plan, self.address, resolution)
        self._client.nudge()


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

    def nudge(self) -> None:
        """Something may be runnable now."""
        if self._worker is not None:
            self._worker.wake()

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
    ) -> Thread[M, D]:
        """Start a thread, once by (workspace, thread_id): again with the same data, it is the thread there.

        ``StartConflict`` where that thread was started with another machine or other data; ``NotStorable``
        names a field whose value cannot be stored. Nothing is written then.
        """
        plan = self.plan_of(machine)
        check_name("workspace", workspace, MAX_WORKSPACE)
        check_name("thread_id", thread_id, MAX_ID)
        address = Address(workspace=workspace, thread_id=thread_id)
        with nullcontext() if self._worker is None else self._worker.starting():
            start, progress = self._prepare(plan, address, data, principal, session or thread_id)
            started = await self._send(start)
            if not started.created:
                await check_same(self.store, plan, started.thread, start)
            elif self._worker is not None and _is_still_ours(started.thread, start):
                await self._take(self._worker, started, start, progress)
        self.nudge()
        return Thread(self, plan, address)

    async def _take(self, worker: Worker, started: Started, start: Start, progress: Progress) -> None:
        """Run a thread that this process has just created and claimed, or give it up."""
        if not worker.takes_new:
            await until_known(lambda: self.store.release([released(started.thread)]))
            return
        claim = Claim(
            thread=started.thread,
            log=(start.log,),
            items=() if start.items is None else (ItemsRow(n=0, payload=start.items),),
            inbox=started.inbox,
            taken_from=None,
        )
        fresh = conversation_field(self._definitions[start.machine]) is None
        worker.take(claim, progress if fresh else None)

    async def _send(self, start: Start) -> Started:
        try:
            return await until_known(lambda: self.store.start(start))
        except BaseException:
            if self._worker is not None and start.owner is not None:
                self._worker.be_unsure()  # whoever waited for it has gone, and it may have landed
            raise

    def _prepare(
        self, plan: Definition, address: Address, data: Any, principal: str, session: str
    ) -> tuple[Start, Progress]:
        if type(data) is not plan.data.cls:
            raise NotStorable(
                f"thread {address.thread_id!r}: machine {plan.name} takes {plan.data.cls.__name__}, not "
                f"{type(data).__name__}"
            )
        now = self.env.now()
        merged = plan.data.started(data, owned_values(address.thread_id, 0))
        base = plan.data.base(merged.data, merged.positions)
        state = plan.states[plan.initial]
        due = {t.event: now + micros(t.after) for t in state.timeouts}
        parts = {"items": merged.items, "messages": merged.messages}
        body = Body(dest=plan.initial, base=base, version=plan.version, due=due, side=side_digest(parts))
        payload, incarnation = encode_body(body), self.env.token(16)
        claims = self._worker is not None and self._worker.takes_new and not state.waiting
        start = Start(
            address=address,
            incarnation=incarnation,
            machine=plan.name,
            standing=_first_standing(plan, due),
            log=log_row(
                incarnation,
                seq=0,
                n=0,
                epoch=1 if claims else 0,
                kind="start",
                at=now,
                salt=self.env.token(16),
                payload=payload,
            ),
            items=merged.items,
            messages=merged.messages,
            session=session,
            principal=principal,
            parent=None,
            started=identity_of(plan, merged),
            owner=self._worker.worker if claims and self._worker is not None else None,
        )
        progress = Progress(
            data=merged.data,
            live=merged.live,
            positions=merged.positions,
            base_size=len(payload),
            since_base=0,
            due=due,
            version=plan.version,
        )
        return start, progress

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
        known = plan.events.get(event)
        if known is None or known.kind != "signal":
            signals = ", ".join(n for n, e in plan.events.items() if e.kind == "signal") or "none"
            raise SignalRefused(f"{plan.name} has no signal {event!r}; it has: {signals}")
        where = f"thread {address.thread_id!r}: signal {id!r}"
        if id in RESERVED:
            raise SignalRefused(f"{where}: this id is the runtime's own: choose another one")
        try:
            encoded = b"null" if known.payload is None else known.payload.roundtrip(payload, where)[0]
        except NotStorable as error:
            raise SignalRefused(str(error)) from error
        if known.payload is None and payload is not None:
            raise SignalRefused(f"{where}: {plan.name}.{event} takes no payload")
        signal = StoredSignal(
            address=address, id=id, event=event, payload=encoded, digest=digest(event, encoded)
        )
        try:
            delivered = await until_known(lambda: self.store.deliver(signal))
        except ThreadEnded as error:
            ended = ended_words((await find_thread(self.store, address)).standing)
            raise SignalRefused(f"{where}: the thread has ended: {ended}") from error
        if self._worker is not None and delivered.new:
            self._worker.offer(address, delivered.row)

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
        if self._worker is not None and sent.new:
            self._worker.offer(address, sent.row)

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
        await terminate(self.store, self.env, address, by=by, reason=reason)
        if self._worker is not None:
            self._worker.fenced(address)

    async def until(
        self, address: Address, plan: Definition, reached: Callable[[ThreadRow], bool]
    ) -> ThreadRow:
        """The row of a thread of this machine, once it is as asked for."""
        worker, pause = self._worker, FIRST_LOOK
        with nullcontext(asyncio.Event()) if worker is None else worker.watching(address) as changed:
            while True:
                changed.clear()
                row = await find_thread(self.store, address)
                _same_machine(row, plan)
                if reached(row):
                    return row
                with anyio.move_on_after(pause):
                    await changed.wait()
                pause = min(2 * pause, LONGEST_LOOK)


def _is_over(row: ThreadRow) -> bool:
    return row.standing.status in ("parked", "ended")


def _waits(row: ThreadRow, plan: Definition, now: Micros) -> bool:
    standing, state = row.standing, plan.state_of(row.standing.state)
    idle = state is None or state.waiting
    return standing.status == "waiting" and idle and (standing.wake is None or standing.wake > now)


def _first_standing(plan: Definition, due: Mapping[str, int]) -> Standing:
    waiting = plan.states[plan.initial].waiting
    return Standing(
        state=plan.initial,
        seq=0,
        version=plan.version,
        definition=plan.hash,
        status="waiting" if waiting else "running",
        base=0,
        wake=min(due.values(), default=None) if waiting else None,
    )


def _is_still_ours(thread: ThreadRow, start: Start) -> bool:
    """The start's claim stands: one that was sent again may find that others went on meanwhile."""
    return start.owner is not None and (thread.owner, thread.epoch, thread.n) == (start.owner, 1, 1)


def _same_machine(thread: ThreadRow, plan: Definition) -> None:
    if thread.machine != plan.name:
        raise UnknownMachine(
            f"thread {thread.address.thread_id!r} is of machine {thread.machine!r}, not {plan.name!r}: "
            "take a handle for its own machine"
        )
