"""Starting a thread: its first commit, and what becomes of it in the process that starts it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from attrs import evolve, frozen

from perdure.machines import Definition, NotStorable
from perdure.stores import (
    Address,
    Claim,
    ItemsRow,
    Micros,
    Signal,
    Standing,
    Start,
    Started,
    Store,
    ThreadEnded,
    ThreadRow,
)

from ._due import BadTime, Clocks, first_clocks
from ._env import Env
from ._errors import SignalRefused
from ._journal import Body, encode_body, log_row
from ._keys import digest
from ._ledger import side_digest
from ._look import ended_words, find_thread
from ._progress import Progress, conversation_field, owned_values
from ._reliable import released, until_known
from ._reserved import RESERVED
from ._starts import check_same, identity_of
from ._worker import Worker

T = TypeVar("T")


@frozen(kw_only=True)
class AskedStart:
    """What a client asks for."""

    address: Address
    data: Any
    principal: str
    session: str
    priority: int
    signals: tuple[Signal, ...]


class Starting:
    """Starts threads of one machine: for the worker in this process, where there is one with room."""

    def __init__(self, store: Store, env: Env, plan: Definition, worker: Worker | None) -> None:
        self._store = store
        self._env = env
        self._plan = plan
        self._worker = worker

    async def start(self, asked: AskedStart) -> Started:
        """See ``Client.start``."""
        worker = self._worker
        with nullcontext() if worker is None else worker.starting():
            start, progress = self._prepare(asked)
            started = await self._send(start)
            if not started.created:
                await check_same(self._store, self._plan, started.thread, start)
                started = await self._with_signals(started, start)
            elif worker is not None and _is_still_ours(started.thread, start):
                await self._take(worker, started, start, progress)
        return started

    async def _with_signals(self, started: Started, start: Start) -> Started:
        """What the store kept from a thread whose start it takes for another one: this code knows better."""
        left = start.signals[len(started.delivered) :]
        delivered = [await self._answered(start, partial(self._store.deliver, signal)) for signal in left]
        return evolve(started, delivered=(*started.delivered, *delivered))

    async def _take(self, worker: Worker, started: Started, start: Start, progress: Progress) -> None:
        """Run a thread that this process has just created and claimed, or give it up."""
        if not worker.takes_new:
            await until_known(lambda: self._store.release([released(started.thread)]))
            worker.wake()
            await worker.bell.ring(None, but=worker.worker)
            return
        claim = Claim(
            thread=started.thread,
            log=(start.log,),
            items=() if start.items is None else (ItemsRow(n=0, payload=start.items),),
            inbox=started.inbox,
            taken_from=None,
        )
        fresh = conversation_field(self._plan) is None
        worker.take(claim, progress if fresh else None)

    async def _send(self, start: Start) -> Started:
        try:
            return await self._answered(start, partial(self._store.start, start))
        except BaseException:
            if self._worker is not None and start.owner is not None:
                self._worker.be_unsure()  # whoever waited for it has gone, and it may have landed
            raise

    async def _answered(self, start: Start, write: Callable[[], Awaitable[T]]) -> T:
        try:
            return await until_known(write)
        except ThreadEnded as error:
            ended = ended_words((await find_thread(self._store, start.address)).standing)
            raise SignalRefused(
                f"thread {start.address.thread_id!r}: its signals were not delivered: the thread has ended: "
                f"{ended}"
            ) from error

    def _prepare(self, asked: AskedStart) -> tuple[Start, Progress]:
        plan, address, data = self._plan, asked.address, asked.data
        _check_data(plan, address, data)
        now = self._env.now()
        merged = plan.data.started(data, owned_values(address.thread_id, 0))
        base = plan.data.base(merged.data, merged.positions)
        waits = plan.states[plan.initial].waiting
        clocks = _first_clocks(plan, merged.data, now, address)
        parts = {"items": merged.items, "messages": merged.messages}
        side = side_digest(parts)
        body = Body(dest=plan.initial, base=base, version=plan.version, due=clocks.due)
        payload, incarnation = encode_body(body, (), side), self._env.token(16)
        claims = self._worker is not None and self._worker.takes_new and not (waits or plan.at_once)
        start = Start(
            address=address,
            incarnation=incarnation,
            machine=plan.name,
            standing=_first_standing(plan, clocks.due),
            log=log_row(
                incarnation,
                seq=0,
                n=0,
                epoch=1 if claims else 0,
                kind="start",
                at=now,
                salt=self._env.token(16),
                payload=payload,
            ),
            items=merged.items,
            messages=merged.messages,
            session=asked.session,
            principal=asked.principal,
            parent=None,
            priority=asked.priority,
            signals=asked.signals,
            started=identity_of(plan, merged),
            owner=self._worker.worker if claims and self._worker is not None else None,
        )
        progress = Progress(
            data=merged.data,
            live=merged.live,
            positions=merged.positions,
            base_size=len(payload),
            since_base=0,
            clocks=clocks,
            version=plan.version,
        )
        return start, progress


def _check_data(plan: Definition, address: Address, data: Any) -> None:
    if type(data) is not plan.data.cls:
        raise NotStorable(
            f"thread {address.thread_id!r}: machine {plan.name} takes {plan.data.cls.__name__}, not "
            f"{type(data).__name__}"
        )


def refuse_reserved(address: Address, id: str) -> None:
    """``SignalRefused`` where the id is one of the runtime's own messages."""
    if id in RESERVED:
        raise SignalRefused(
            f"thread {address.thread_id!r}: signal {id!r}: this id is the runtime's own: choose another one"
        )


def signal_of(plan: Definition, address: Address, event: str, payload: Any, id: str) -> Signal:
    """A signal as it is delivered; ``SignalRefused`` where the machine takes no such thing."""
    known = plan.events.get(event)
    if known is None or known.kind != "signal":
        signals = ", ".join(n for n, e in plan.events.items() if e.kind == "signal") or "none"
        raise SignalRefused(f"{plan.name} has no signal {event!r}; it has: {signals}")
    where = f"thread {address.thread_id!r}: signal {id!r}"
    refuse_reserved(address, id)
    try:
        encoded = b"null" if known.payload is None else known.payload.roundtrip(payload, where)[0]
    except NotStorable as error:
        raise SignalRefused(str(error)) from error
    if known.payload is None and payload is not None:
        raise SignalRefused(f"{where}: {plan.name}.{event} takes no payload")
    return Signal(
        address=address,
        id=id,
        event=event,
        payload=encoded,
        digest=digest(event, encoded),
        version=plan.version,
    )


def _first_clocks(plan: Definition, data: Any, now: Micros, address: Address) -> Clocks:
    try:
        return first_clocks(plan, data, now)
    except BadTime as error:
        raise NotStorable(f"thread {address.thread_id!r}: {error}") from error


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
