"""Which limited calls may go out now, and which wait for their turn: a worker's part of each limit."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Protocol

import anyio
import anyio.lowlevel

from perdure.machines import Definition, DefinitionError, Effect, Limit, Read
from perdure.stores import Share, Store, StoreError

from ._env import Env
from ._observe import logger

SHORTEST = 0.001
"""Seconds between two requests for starts, at the least."""
LEFT_TO_OTHERS = 0.1
"""Seconds more than a poll for which a slot is left to the others."""
IDLE = 1.0
"""Seconds after which a slot that no call uses goes back to the store."""
TURN = 5.0
"""Seconds after which a worker that has more to do leaves a slot to the others, where there are any."""


def limits_of(definitions: Mapping[str, Definition]) -> dict[str, Limit]:
    """The limits of all calls by name; ``DefinitionError`` where one name stands for two."""
    found: dict[str, tuple[Limit, str]] = {}
    for plan in definitions.values():
        for call in plan.calls.values():
            if not isinstance(call, (Read, Effect)) or call.limit is None:
                continue
            limit, label = call.limit, f"{call.label} of {plan.name}"
            other, first = found.setdefault(limit.name, (limit, label))
            if other != limit:
                raise DefinitionError(
                    f"Runtime: two limits are named {limit.name!r}, of {first} ({_numbers(other)}) and of "
                    f"{label} ({_numbers(limit)}): share one Limit, or give one of them another name"
                )
    return {name: limit for name, (limit, _) in found.items()}


def _numbers(limit: Limit) -> str:
    given = {"per_minute": limit.per_minute, "at_once": limit.at_once}
    return ", ".join(f"{name}={number}" for name, number in given.items() if number is not None)


class Holder(Protocol):
    """What permits need of the worker whose calls they are."""

    @property
    def env(self) -> Env: ...
    @property
    def lapses(self) -> int: ...
    @property
    def has_others(self) -> bool: ...
    def lease_holds(self) -> bool: ...


class Pool:
    """A worker's part of one limit: slots that it was granted, and calls that wait for one."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.held = 0
        """Slots of ``at_once`` that this worker was granted, used or not."""
        self.used = 0
        """Calls under way."""
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.slots_at = 0.0
        """When to ask for more slots, on the event loop's clock."""
        self.starts_at = 0.0
        """Before this moment the store has no more starts to grant."""
        self.idle_at = 0.0
        """When the last call ended."""
        self.turn_at = 0.0
        """When a slot is left to other workers."""
        self.returns = False
        """A slot was given up, and the store is still to be told."""
        self.unsure_until: float | None = None
        """Until when a wish whose reply was lost may still land, and undo a later one."""
        self.again_at = 0.0
        """When to say again what is held, for as long as that is so."""

    @property
    def free(self) -> int:
        """How many of those that wait could go out now, as far as slots go."""
        room = len(self.waiting) if self.limit.at_once is None else self.held - self.used
        return max(min(room, len(self.waiting)), 0)

    @property
    def lacks_slots(self) -> bool:
        limit = self.limit.at_once
        return limit is not None and self.held < min(limit, self.used + len(self.waiting))

    @property
    def idle(self) -> bool:
        """Whether there are slots that nobody here needs."""
        return not self.waiting and self.held > self.used

    @property
    def due(self) -> float:
        """When there is next something to ask of the store."""
        times = [0.0] if self.returns else []
        if self.lacks_slots:
            times.append(self.slots_at)
        if self.free:
            times.append(self.starts_at)
        if self.idle:
            times.append(self.idle_at + IDLE)
        if self.unsure_until is not None:
            times.append(self.again_at)
        return min(times, default=math.inf)

    def give_up_idle(self, now: float) -> None:
        if self.idle and now >= self.idle_at + IDLE:
            self.held, self.returns = self.used, True

    def wish(self, worker: str) -> Share:
        """What to ask of the store: slots for all that wait, starts for those that have a slot already, since
        a start that is not made at once is lost."""
        limit, held = self.limit, max(self.held, self.used)
        if limit.at_once is not None and not self.returns:
            held = max(held, min(limit.at_once, self.used + len(self.waiting)))
        return Share(
            worker=worker,
            limit=limit.name,
            at_once=limit.at_once,
            per_minute=limit.per_minute,
            held=held,
            starts=0 if limit.per_minute is None else self.free,
        )

    def let_go(self, starts: int) -> None:
        """Let the first that wait go out, at most so many, and as many as there are slots for."""
        while starts > 0 and self.free > 0:
            turn = self.waiting.popleft()
            if not turn.done():  # its call was cancelled in this very loop turn
                self.used += 1
                starts -= 1
                turn.set_result(None)


class Permits:
    """A worker's part of every limit; asks the store for more in its own loop, for all that wait together."""

    def __init__(
        self,
        store: Store,
        worker: str,
        limits: Mapping[str, Limit],
        holder: Holder,
        *,
        lease: timedelta,
        poll: timedelta,
    ) -> None:
        self._store = store
        self._worker = worker
        self._pools = {name: Pool(limit) for name, limit in limits.items()}
        self._holder = holder
        self._lease = lease.total_seconds()
        self._poll = poll.total_seconds()
        self._nudge = asyncio.Event()
        self._lapses = 0

    @property
    def wanted(self) -> bool:
        """Whether there is any limit."""
        return bool(self._pools)

    async def take(self, limit: Limit, waits: Callable[[], None]) -> None:
        """Wait for the limit, first come first served; ``waits`` is called where it is not had at once.
        Cancelled, nothing is taken."""
        pool = self._pools[limit.name]
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pool.waiting.append(turn)
        self._let_go(pool)
        if turn.done():
            return
        self._nudge.set()
        waits()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(limit)
            elif turn in pool.waiting:
                pool.waiting.remove(turn)
            raise

    def give_back(self, limit: Limit) -> None:
        """The call has ended."""
        pool = self._pools[limit.name]
        now = asyncio.get_running_loop().time()
        pool.used -= 1
        pool.idle_at = now
        if pool.waiting and now >= pool.turn_at:
            if pool.turn_at and pool.held > pool.used and self._holder.has_others:
                pool.held, pool.returns = pool.held - 1, True
                pool.slots_at = now + self._poll + LEFT_TO_OTHERS
            pool.turn_at = now + TURN
        self._let_go(pool)
        self._nudge.set()

    def _let_go(self, pool: Pool) -> None:
        """Let go out what needs no further word of the store's."""
        if pool.limit.per_minute is None and self._is_sure():
            pool.let_go(len(pool.waiting))

    def _is_sure(self) -> bool:
        """Whether what the store granted still holds: while others took this worker for dead, its slots were
        theirs."""
        if self._lapses != self._holder.lapses:
            self._lapses = self._holder.lapses
            for pool in self._pools.values():
                pool.held, pool.returns = 0, True
        return self._holder.lease_holds()

    # --- the loop -----------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Ask the store for what calls wait for, and give back what none uses, while the worker lives."""
        while True:
            self._nudge.clear()
            await anyio.lowlevel.checkpoint()  # what comes in the same turn is asked for together
            for pool in self._pools.values():
                try:
                    await self._see_to(pool)
                except StoreError as error:
                    logger.warning("worker %s: limit %r: %s", self._worker, pool.limit.name, error)
                    await anyio.sleep(self._poll)
            with anyio.move_on_after(self._pause()):
                await self._nudge.wait()

    async def _see_to(self, pool: Pool) -> None:
        if not self._is_sure():
            return
        self._let_go(pool)
        now = asyncio.get_running_loop().time()
        if now >= pool.due:
            pool.give_up_idle(now)
            await self._ask(pool)

    async def _ask(self, pool: Pool) -> None:
        wish, lapses, asked = pool.wish(self._worker), self._lapses, asyncio.get_running_loop().time()
        pool.returns = False
        try:
            shared = await self._store.share(wish)
        except StoreError:
            pool.returns = True  # what the store has written of it is set right
            pool.unsure_until = asyncio.get_running_loop().time() + self._lease
            raise
        if pool.unsure_until is not None and asked >= pool.unsure_until:
            pool.unsure_until = None
        pool.again_at = asyncio.get_running_loop().time() + self._poll
        if not self._is_sure() or lapses != self._lapses:
            return
        now = asyncio.get_running_loop().time()
        if pool.limit.at_once is not None and not pool.returns:  # nothing was given up meanwhile
            pool.held = shared.held
            if shared.held < wish.held:
                pool.slots_at = now + self._poll
        pool.let_go(len(pool.waiting) if pool.limit.per_minute is None else shared.starts)
        if shared.again is not None:
            pool.starts_at = now + max((shared.again - self._holder.env.now()) / 1e6, SHORTEST)

    def _pause(self) -> float:
        if not self._is_sure():
            return self._poll
        now = asyncio.get_running_loop().time()
        due = min(pool.due for pool in self._pools.values())
        return min(max(due - now, 0), self._poll)
