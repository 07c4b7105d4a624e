"""The world outside: receivers that log what arrives, and do with it what a test tells them."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, runtime_checkable

from attrs import define, field, frozen

from perdure.machines import ABSENT, Absent, Found
from perdure.stores import Micros, system_clock

from ._testing_loop import PROCESS, SimLoop, for_ever


@frozen
class Arrival:
    """A request as the receiver saw it, raw: its effect's receiver, its key, its arguments, and when."""

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
"""A reply that never comes: the call goes on until its deadline, or its process dies."""


@runtime_checkable
class Visitor(Protocol):
    """A simulated process that keeps the worlds of its run, and may be killed where it meets them."""

    def log_of(self, world: World, /) -> WorldLog: ...
    async def at(self, words: str, /) -> None: ...


@define(eq=False)
class WorldLog:
    """What became of one world in one run."""

    arrivals: list[Arrival] = field(factory=list[Arrival])
    done: dict[tuple[str, str], str] = field(factory=dict[tuple[str, str], str])
    effects: list[str] = field(factory=list[str])
    made: Counter[str] = field(factory=Counter[str])
    lookups: list[tuple[str, str]] = field(factory=list[tuple[str, str]])
    looked_at: list[Micros] = field(factory=list[Micros])
    asked: list[str] = field(factory=list[str])
    replies: dict[str, deque[Reply]] = field(factory=dict[str, "deque[Reply]"])
    answers: dict[str, deque[Any]] = field(factory=dict[str, "deque[Any]"])
    reads: dict[str, deque[Any]] = field(factory=dict[str, "deque[Any]"])

    def fresh(self) -> WorldLog:
        """A log with nothing in it, and the same lined up."""
        return WorldLog(
            replies={name: deque(each) for name, each in self.replies.items()},
            answers={name: deque(each) for name, each in self.answers.items()},
            reads={name: deque(each) for name, each in self.reads.items()},
        )


class World:
    """Everything outside of the machines under test: its receivers log each arrival and can be asked by key.

    ``reply`` lines up what happens to the next requests of a receiver, ``answer`` what its next lookups say
    (an exception is raised); with none left, requests land and are answered, and lookups tell the truth.
    Every read gives another value. In a crash sweep each run meets the world as it was before the sweep;
    afterwards the world shows what arrived in the run without a kill.
    """

    def __init__(self, loop: SimLoop | None = None) -> None:
        self.loop = loop
        self.remembers = False
        """Every receiver honours keys."""
        self._own = WorldLog()
        self._receivers: dict[str, Receiver] = {}
        self._outside = contextvars.Context()

    def receiver(self, name: str, *, honours_keys: bool = False) -> Receiver:
        """The receiver of this name: an object to be given to a machine's calls in place of a client.

        ``honours_keys``: a request with a key that it has seen does nothing and is answered as the first
        was; otherwise every arrival counts. ``ValueError`` where it was made otherwise before.
        """
        found = self._receivers.setdefault(name, Receiver(self, name, honours_keys=honours_keys))
        if found.honours_keys is not honours_keys:
            raise ValueError(f"receiver {name!r} was made with honours_keys={found.honours_keys}")
        return found

    def honours(self, name: str) -> bool:
        """Whether a receiver does nothing at a key that it has seen."""
        return self.remembers or (name in self._receivers and self._receivers[name].honours_keys)

    def untouched(self) -> WorldLog:
        """A log of this world as one run begins."""
        return self._own.fresh()

    def show(self, log: WorldLog) -> None:
        """Show what arrived in a run, with what is lined up left as it is."""
        lined_up = self._own
        self._own = log
        log.replies, log.answers, log.reads = lined_up.replies, lined_up.answers, lined_up.reads

    @property
    def _log(self) -> WorldLog:
        process = PROCESS.get(None)
        return process.log_of(self) if isinstance(process, Visitor) else self._own

    # --- what a test tells it ------------------------------------------------------------------------

    def reply(self, name: str, *replies: Reply | BaseException) -> None:
        """Line up what happens to the next requests of a receiver; an error is one that did not land."""
        given = [r if isinstance(r, Reply) else Reply(lands=None, error=r) for r in replies]
        self.replies.setdefault(name, deque()).extend(given)

    def answer(self, name: str, *answers: Any) -> None:
        """Line up what the next lookups of a receiver say."""
        self.answers.setdefault(name, deque()).extend(answers)

    def next_reads(self, name: str, *values: Any) -> None:
        """Line up the next answers of a read: values, errors to raise, or a ``Reply`` that takes its time."""
        self.reads.setdefault(name, deque()).extend(values)

    # --- what a test asks it -------------------------------------------------------------------------

    @property
    def arrivals(self) -> list[Arrival]:
        """Every request that arrived, in order, repeated ones too."""
        return self._log.arrivals

    @property
    def keys(self) -> list[str]:
        """The key of each arrival, in order."""
        return [arrival.key for arrival in self.arrivals]

    @property
    def effects(self) -> list[str]:
        """Every value made: where keys are honoured, one for each key."""
        return self._log.effects

    @property
    def lookups(self) -> list[tuple[str, str]]:
        """(what was said, key) of each lookup."""
        return self._log.lookups

    @property
    def looked_at(self) -> list[Micros]:
        """When each lookup was answered."""
        return self._log.looked_at

    @property
    def asked(self) -> list[str]:
        """Every read that reached the world, with its arguments."""
        return self._log.asked

    @property
    def replies(self) -> dict[str, deque[Reply]]:
        """What is lined up for requests, by receiver."""
        return self._log.replies

    @property
    def answers(self) -> dict[str, deque[Any]]:
        """What is lined up for lookups, by receiver."""
        return self._log.answers

    @property
    def reads(self) -> dict[str, deque[Any]]:
        """What is lined up for reads, by name."""
        return self._log.reads

    # --- what calls do -------------------------------------------------------------------------------

    async def send(self, name: str, key: str, *args: Any) -> str:
        """One request, as an effect makes it."""
        await _at(f"before {name} was sent {{key {key}}}")
        log = self._log
        lined_up = log.replies.get(name)
        reply = lined_up.popleft() if lined_up else Reply()
        value = log.done.get((name, key), "") if reply.lands is None else ""
        if reply.lands == 0:
            value = self._land(log, name, key, args, reply)
        elif reply.lands is not None:
            land = partial(self._land, log, name, key, args, reply)
            asyncio.get_running_loop().call_later(reply.lands, land, context=self._outside)
        if reply.then is not None:
            reply.then()
        if reply.lands == 0:
            await _at(f"after {{key {key}}} was done by {name}, before it answered")
        if reply.takes or reply.then is not None:
            await asyncio.sleep(reply.takes)
        if reply.hangs:
            await for_ever()
        if reply.error is not None:
            raise reply.error
        return value

    def _land(self, log: WorldLog, name: str, key: str, args: tuple[Any, ...], reply: Reply) -> str:
        log.arrivals.append(Arrival(name, key, args, self._now()))
        if self.honours(name) and (name, key) in log.done:
            return log.done[name, key]
        value = f"{name}-{self._number(log, name)}" if reply.value is None else reply.value
        log.effects.append(value)
        log.done[name, key] = value
        return value

    def _number(self, log: WorldLog, name: str) -> int:
        """Each receiver counts what it did; names without one are counted together."""
        if name not in self._receivers:
            return len(log.effects) + 1
        log.made[name] += 1
        return log.made[name]

    def _now(self) -> Micros:
        loop = asyncio.get_running_loop()
        return loop.now() if isinstance(loop, SimLoop) else system_clock()

    async def look(self, name: str, key: str) -> Any:
        """The question whether the effect with this key happened: ``Found(value)`` or ``ABSENT``."""
        log = self._log
        lined_up = log.answers.get(name)
        honest = Found(log.done[name, key]) if (name, key) in log.done else ABSENT
        said = lined_up.popleft() if lined_up else honest
        log.lookups.append((type(said).__name__, key))
        log.looked_at.append(self._now())
        if isinstance(said, BaseException):
            raise said
        return said

    async def read(self, name: str, *args: Any) -> str:
        """One read, answered differently each time."""
        log = self._log
        log.asked.append("/".join([name, *args]))
        lined_up = log.reads.get(name)
        n = len(log.asked)
        value = lined_up.popleft() if lined_up else f"{name}#{n}"
        if isinstance(value, Reply):
            await asyncio.sleep(value.takes)
            value = value.error or value.value or f"{name}#{n}"
        if isinstance(value, BaseException):
            raise value
        return str(value)


class Receiver:
    """One receiver of a world: what a machine's effects are sent to. Made by ``World.receiver``."""

    def __init__(self, world: World, name: str, *, honours_keys: bool) -> None:
        self._world = world
        self.name = name
        self.honours_keys = honours_keys

    def __repr__(self) -> str:
        return f"<Receiver {self.name}>"

    async def send(self, key: str, *args: Any) -> str:
        """One request with its key. The answer numbers what was done: ``bank-1``, ``bank-2``."""
        return await self._world.send(self.name, key, *args)

    async def find(self, key: str) -> str | None:
        """What was answered to the request with this key; None: none such arrived."""
        found: Found[Any] | Absent = await self._world.look(self.name, key)
        return str(found.value) if isinstance(found, Found) else None

    @property
    def arrivals(self) -> Sequence[Arrival]:
        """Every request that arrived here, in order, repeated ones too."""
        return [each for each in self._world.arrivals if each.name == self.name]

    def fail(self, *, times: int = 1, error: Exception | None = None) -> None:
        """The next requests do not arrive, and the caller is told ``error`` (``ConnectionError``)."""
        said = ConnectionRefusedError(f"{self.name} cannot be reached") if error is None else error
        self._world.reply(self.name, *[Reply(lands=None, error=said)] * times)

    def lose_reply(self, *, times: int = 1) -> None:
        """The next requests are done, and the caller has a ``ConnectionError`` for an answer."""
        lost = ConnectionResetError(f"{self.name} closed the connection")
        self._world.reply(self.name, *[Reply(error=lost)] * times)

    def time_out(self, *, times: int = 1) -> None:
        """The next requests are done and never answered."""
        self._world.reply(self.name, *[HANG] * times)

    def answer_late(self, after: timedelta, *, times: int = 1) -> None:
        """The next requests are done at once and answered ``after`` that long."""
        self._world.reply(self.name, *[Reply(takes=after.total_seconds())] * times)


async def _at(words: str) -> None:
    process = PROCESS.get(None)
    if isinstance(process, Visitor):
        await process.at(words)
