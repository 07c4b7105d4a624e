"""The world outside: receivers that know keys, lookups, both or neither, and a network that loses things.

Receivers by kind. K: remembers keys. KL: remembers keys and can be asked. L: can be asked. P: a register,
where a put may be repeated and a late one does harm. N: can do neither.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Literal

import anyio
from _loop import StoppableLoop
from attrs import define, field, frozen

from perdure.machines import ABSENT, UNKNOWN, Call, Found, NotDone

Kind = Literal["K", "KL", "L", "P", "N"]

DEADLINE = 2.0
"""Seconds that one issue of an effect may take."""
SETTLE = 1.0
"""Seconds after the end of its client in which a request may still act, as the effects declare it."""
MAX_SKEW = 0.1
"""Seconds by which a process's clock is off at most. ``settle`` covers the difference of two of them."""
IN_FLIGHT = SETTLE - 2 * MAX_SKEW
"""What that leaves to the network."""


@frozen(kw_only=True)
class Arrival:
    """A request that a receiver acted upon."""

    at: float
    kind: Kind
    key: str
    thread: str
    slot: str
    value: int
    receipt: str
    seen_from: float
    """From when on lookups find it."""


@define(eq=False)
class Request:
    """A request on its way, and whoever waits for its answer."""

    kind: Kind
    key: str
    thread: str
    slot: str
    value: int
    process: Any
    answer: asyncio.Future[tuple[str, Any]]
    late: bool
    not_after: float
    epoch: int
    """Of the claim that intended it."""
    client_end: float | None = None

    @property
    def dies(self) -> float:
        """Until when the network may still carry it."""
        if self.late:
            return float("inf")
        ends = [e for e in (self.not_after, self.client_end, self.process.killed_at) if e is not None]
        return min(ends) + IN_FLIGHT

    def say(self, word: str, what: Any) -> None:
        if not self.answer.done():
            self.answer.set_result((word, what))


@frozen(kw_only=True)
class Trouble:
    """How bad the world is to be: probabilities."""

    lost: float = 0.0
    rejected: float = 0.0
    unanswered: float = 0.0
    broken: float = 0.0
    """The connection breaks; the request may land all the same, later."""
    slow: float = 0.0
    unknown: float = 0.0
    """A lookup does not know, raises or hangs."""
    unseen: float = 0.0
    """Lookups do not see an arrival at first."""
    unread: float = 0.0
    """A read raises."""


CALM = Trouble()


class Planned(Exception):
    """What a handler or a read raises as the simulation has it."""


class World:
    """Receivers, network and answers. ``arrived`` is told of arrivals, ``epoch_of`` knows a key's claim."""

    def __init__(
        self, loop: StoppableLoop, rng: Random, trouble: Trouble, tell: Callable[[str], None]
    ) -> None:
        self.loop = loop
        self.trouble = trouble
        self.arrivals: list[Arrival] = []
        self.arrived: Callable[[Arrival], None] = lambda _: None
        self.epoch_of: Callable[[str], int] = lambda _: 0
        self.open: dict[str, list[Request]] = {}
        """Requests by key whose client still waits."""
        self._unknown_in_a_row: dict[tuple[str, str], int] = {}
        """By process and key: a stale worker that is answered does not help the one that has the thread."""
        self.most_unknown: dict[str, int] = {}
        """How many of a process's lookups of a key in a row got no answer, or a useless one, at most."""
        self.issues: dict[str, int] = {}
        self.in_flight = 0
        self._rng = rng
        self._tell = tell
        self._flying: Counter[str] = Counter()
        self._known: dict[str, str] = {}
        self._moods = 0

    # --- requests ---------------------------------------------------------------------------------

    async def send(self, process: Any, kind: Kind, call: Call[Any], slot: str, value: int) -> str:
        """One request, as an effect makes it: a receipt, an error, or nothing until its caller gives up."""
        key, thread = call.key, call.thread_id
        await asyncio.sleep(0)  # where the process may be suspended between its check and the send
        request = self._request(process, kind, key, thread, slot, value)
        waiting = self.open.setdefault(key, [])
        waiting.append(request)
        try:
            word, what = await request.answer
        finally:
            request.client_end = self.loop.time()
            waiting.remove(request)
        if word == "raise":
            raise what
        return str(what)

    def _request(self, process: Any, kind: Kind, key: str, thread: str, slot: str, value: int) -> Request:
        not_after = (
            anyio.current_effective_deadline()
        )  # by which the runtime aborts it, whatever its clock says
        late = self.loop.time() > not_after
        request = Request(
            kind=kind,
            key=key,
            thread=thread,
            slot=slot,
            value=value,
            process=process,
            answer=self.loop.create_future(),
            late=late,
            not_after=not_after,
            epoch=self.epoch_of(key),
        )
        self.issues[key] = self.issues.get(key, 0) + 1
        self._tell(f"{process} sends {kind} {thread}/{slot}={value} {key[:9]}{' LATE' if late else ''}")
        if not late or kind == "K":  # the others are the window that is documented as open
            self.in_flight += 1
            self.loop.outside(self._carry(request))
        return request

    async def _carry(self, request: Request) -> None:
        rng, trouble = self._rng, self.trouble
        there, back = self._transit(), self._transit()
        if rng.random() < trouble.broken:
            error = ConnectionError("the connection broke")
            self.loop.call_later(rng.random() * there * 2, request.say, "raise", error)
            there += rng.choice((0.0, IN_FLIGHT)) * rng.random()  # it may land all the same, and late
        crowded = self._flying[request.key] and trouble.rejected  # the one before it is still on its way
        rejected = rng.random() < (0.5 if crowded else trouble.rejected)
        lost = rng.random() < trouble.lost
        unanswered = rng.random() < trouble.unanswered
        self._flying[request.key] += 1
        await asyncio.sleep(there)
        self._flying[request.key] -= 1
        self.in_flight -= 1
        if lost or self.loop.time() > request.dies:
            self._tell(f"lost {request.thread}/{request.slot} {request.key[:9]}")
            return
        word, what = self._receive(request, rejected)
        if unanswered:
            return
        await asyncio.sleep(back)
        request.say(word, what)

    def _transit(self) -> float:
        rng = self._rng
        if rng.random() < self.trouble.slow:
            return rng.choice((0.3, 1.0, 2.0, 3.0)) * rng.random()
        return 0.001 + 0.02 * rng.random()

    def _receive(self, request: Request, rejected: bool) -> tuple[str, Any]:
        if request.kind in ("K", "KL") and request.key in self._known:
            return "value", self._known[request.key]
        if rejected:
            self._tell(f"rejected {request.thread}/{request.slot} {request.key[:9]}")
            return "raise", NotDone("the receiver will not have it")
        now, receipt = self.loop.time(), f"{request.kind}{len(self.arrivals) + 1}"
        unseen = self._rng.random() * IN_FLIGHT if self._rng.random() < self.trouble.unseen else 0.0
        arrival = Arrival(
            at=now,
            kind=request.kind,
            key=request.key,
            thread=request.thread,
            slot=request.slot,
            value=request.value,
            receipt=receipt,
            seen_from=min(now + unseen, max(now, request.dies)),
        )
        self._known[request.key] = receipt
        self.arrivals.append(arrival)
        self._tell(
            f"arrived {request.kind} {request.thread}/{request.slot}={request.value} {request.key[:9]}"
        )
        self.arrived(arrival)
        return "value", receipt

    # --- questions --------------------------------------------------------------------------------

    async def lookup(self, process: Any, call: Call[Any]) -> Any:
        """What the receiver knows of a key: stale for a while, unknown, an error, or no answer at all."""
        key = call.key
        asked = (str(process), key)
        row = self._unknown_in_a_row[asked] = self._unknown_in_a_row.get(asked, 0) + 1
        self.most_unknown[key] = max(row, self.most_unknown.get(key, 0))
        await asyncio.sleep(self._transit())
        answer = self._answer(key)
        self._tell(f"{process} looks up {key[:9]}: {answer}")
        await asyncio.sleep(self._transit())
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await self.loop.create_future()
        if answer is not UNKNOWN:
            self._unknown_in_a_row[asked] = 0
        return answer

    def _answer(self, key: str) -> Any:
        if self._rng.random() < self.trouble.unknown:
            return self._rng.choice((UNKNOWN, UNKNOWN, ConnectionError("no route"), None))
        now = self.loop.time()
        seen = [a for a in self.arrivals if a.key == key and a.seen_from <= now]
        return Found(seen[-1].receipt) if seen else ABSENT

    async def read(self, what: str) -> int:
        """A read: another answer each time."""
        await asyncio.sleep(self._transit())
        if self._rng.random() < self.trouble.unread:
            raise Planned(f"{what} cannot be read")
        self._moods += 1
        return self._moods

    async def mood(self) -> bool:
        """Whether a handler is to fail here, other than by a call."""
        await asyncio.sleep(self._transit())
        return self._rng.random() < self.trouble.unread


@define(eq=False)
class Link:
    """What a process's calls are given as ``deps``: the world as it reaches it."""

    world: World
    process: Any = field(default=None)

    async def send(self, kind: Kind, call: Call[Any], slot: str, value: int) -> str:
        return await self.world.send(self.process, kind, call, slot, value)

    async def lookup(self, call: Call[Any]) -> Any:
        return await self.world.lookup(self.process, call)
