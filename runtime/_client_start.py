"""Starting a thread: its first commit, and what becomes of it in the process that starts it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from attrs import frozen

from perdure.machines import Definition, NotStorable
from perdure.stores import Address, Claim, ItemsRow, Standing, Start, Started, Store, ThreadRow

from ._context import micros
from ._env import Env
from ._journal import Body, encode_body, log_row
from ._ledger import side_digest
from ._progress import Progress, conversation_field, owned_values
from ._reliable import released, until_known
from ._starts import check_same, identity_of
from ._worker import Worker


@frozen(kw_only=True)
class AskedStart:
    """What a client asks for."""

    address: Address
    data: Any
    principal: str
    session: str


class Starting:
    """Starts threads of one machine: for the worker in this process, where there is one with room."""

    def __init__(self, store: Store, env: Env, plan: Definition, worker: Worker | None) -> None:
        self._store = store
        self._env = env
        self._plan = plan
        self._worker = worker

    async def start(self, asked: AskedStart) -> ThreadRow:
        """See ``Client.start``."""
        worker = self._worker
        with nullcontext() if worker is None else worker.starting():
            start, progress = self._prepare(asked)
            started = await self._send(start)
            if not started.created:
                await check_same(self._store, self._plan, started.thread, start)
            elif worker is not None and _is_still_ours(started.thread, start):
                await self._take(worker, started, start, progress)
        return started.thread

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
            return await until_known(lambda: self._store.start(start))
        except BaseException:
            if self._worker is not None and start.owner is not None:
                self._worker.be_unsure()  # whoever waited for it has gone, and it may have landed
            raise

    def _prepare(self, asked: AskedStart) -> tuple[Start, Progress]:
        plan, address, data = self._plan, asked.address, asked.data
        if type(data) is not plan.data.cls:
            raise NotStorable(
                f"thread {address.thread_id!r}: machine {plan.name} takes {plan.data.cls.__name__}, not "
                f"{type(data).__name__}"
            )
        now = self._env.now()
        merged = plan.data.started(data, owned_values(address.thread_id, 0))
        base = plan.data.base(merged.data, merged.positions)
        state = plan.states[plan.initial]
        due = {t.event: now + micros(t.after) for t in state.timeouts}
        parts = {"items": merged.items, "messages": merged.messages}
        body = Body(dest=plan.initial, base=base, version=plan.version, due=due, side=side_digest(parts))
        payload, incarnation = encode_body(body), self._env.token(16)
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
                salt=self._env.token(16),
                payload=payload,
            ),
            items=merged.items,
            messages=merged.messages,
            session=asked.session,
            principal=asked.principal,
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
