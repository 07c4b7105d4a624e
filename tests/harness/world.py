"""A receiver that does what a test tells it, the calls that reach it, and a machine of one handler."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from attrs import frozen

from perdure.machines import (
    ABSENT,
    Absent,
    Append,
    Call,
    Fire,
    Found,
    Machine,
    Retry,
    State,
    Step,
    Unknown,
    effect,
    read,
    record,
)
from perdure.stores import Micros

from .loop import SimLoop


async def for_ever() -> Any:
    """A reply that never comes."""
    await asyncio.get_running_loop().create_future()


@frozen
class Arrival:
    """A request as the receiver saw it, raw."""

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


class World:
    """A receiver that logs each arrival, can be asked by key, and remembers keys where ``remembers`` is set.

    ``reply`` lines up what happens to the next requests of an effect, ``answer`` what its next lookups say
    (an exception is raised); with none left, requests land and are answered, and lookups tell the truth.
    Every read gives another value.
    """

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.remembers = False
        self.arrivals: list[Arrival] = []
        self.done: dict[str, str] = {}
        """The value that the receiver made of each key."""
        self.effects: list[str] = []
        """Every value made: with ``remembers``, one for each key."""
        self.lookups: list[tuple[str, str]] = []
        """(what was said, key) of each lookup."""
        self.looked_at: list[Micros] = []
        self.asked: list[str] = []
        """Every read that reached the world, with its arguments."""
        self.replies: dict[str, deque[Reply]] = {}
        self.answers: dict[str, deque[Any]] = {}
        self.reads: dict[str, deque[Any]] = {}
        self._outside = contextvars.Context()

    def reply(self, name: str, *replies: Reply | BaseException) -> None:
        """Line up what happens to the next requests of an effect; an error is one that did not land."""
        given = [r if isinstance(r, Reply) else Reply(lands=None, error=r) for r in replies]
        self.replies.setdefault(name, deque()).extend(given)

    def answer(self, name: str, *answers: Any) -> None:
        """Line up what the next lookups of an effect say."""
        self.answers.setdefault(name, deque()).extend(answers)

    def next_reads(self, name: str, *values: Any) -> None:
        """Line up the next answers of a read: values, errors to raise, or a ``Reply`` that takes its time."""
        self.reads.setdefault(name, deque()).extend(values)

    @property
    def keys(self) -> list[str]:
        """The key of each arrival, in order."""
        return [arrival.key for arrival in self.arrivals]

    async def send(self, name: str, key: str, *args: Any) -> str:
        """One request, as an effect makes it."""
        lined_up = self.replies.get(name)
        reply = lined_up.popleft() if lined_up else Reply()
        value = self.done.get(key, "") if reply.lands is None else ""
        if reply.lands == 0:
            value = self._land(name, key, args, reply)
        elif reply.lands is not None:
            land = partial(self._land, name, key, args, reply)
            self.loop.call_later(reply.lands, land, context=self._outside)
        if reply.then is not None:
            reply.then()
        if reply.takes or reply.then is not None:
            await asyncio.sleep(reply.takes)
        if reply.hangs:
            await for_ever()
        if reply.error is not None:
            raise reply.error
        return value

    def _land(self, name: str, key: str, args: tuple[Any, ...], reply: Reply) -> str:
        self.arrivals.append(Arrival(name, key, args, self.loop.now()))
        if self.remembers and key in self.done:
            return self.done[key]
        value = f"{name}-{len(self.effects) + 1}" if reply.value is None else reply.value
        self.effects.append(value)
        self.done[key] = value
        return value

    async def look(self, name: str, key: str) -> Any:
        """The question whether the effect with this key happened."""
        lined_up = self.answers.get(name)
        honest = Found(self.done[key]) if key in self.done else ABSENT
        said = lined_up.popleft() if lined_up else honest
        self.lookups.append((type(said).__name__, key))
        self.looked_at.append(self.loop.now())
        if isinstance(said, BaseException):
            raise said
        return said

    async def read(self, name: str, *args: Any) -> str:
        """One read, answered differently each time."""
        self.asked.append("/".join([name, *args]))
        lined_up = self.reads.get(name)
        n = len(self.asked)
        value = lined_up.popleft() if lined_up else f"{name}#{n}"
        if isinstance(value, Reply):
            await asyncio.sleep(value.takes)
            value = value.error or value.value or f"{name}#{n}"
        if isinstance(value, BaseException):
            raise value
        return str(value)


TEN = timedelta(seconds=10)


class Refused(Exception):
    """An error that says of itself that the request was not done."""


@effect(deadline=TEN, not_done=[Refused])
async def bare(call: Call[World], what: str) -> str:
    """Its receiver knows neither keys nor lookups."""
    return await call.deps.send("bare", call.key, what)


@effect(deadline=TEN, not_done=[Refused])
async def looked(call: Call[World], what: str) -> str:
    """Its receiver can be asked."""
    return await call.deps.send("looked", call.key, what)


@looked.lookup
async def look_looked(call: Call[World], what: str) -> Found[str] | Absent | Unknown:
    return await call.deps.look("looked", call.key)  # type: ignore[no-any-return]


@effect(deadline=TEN, idempotent=True)
async def remembered(call: Call[World], what: str) -> str:
    """Its receiver remembers keys."""
    return await call.deps.send("remembered", call.key, what)


@effect(deadline=TEN, idempotent=True, key_lifetime=timedelta(seconds=30))
async def fading(call: Call[World], what: str) -> str:
    """Its receiver remembers keys for half a minute."""
    return await call.deps.send("fading", call.key, what)


@effect(deadline=TEN, idempotent=True)
async def both(call: Call[World], what: str) -> str:
    """Its receiver remembers keys and can be asked."""
    return await call.deps.send("both", call.key, what)


@both.lookup
async def look_both(call: Call[World], what: str) -> Found[str] | Absent | Unknown:
    return await call.deps.look("both", call.key)  # type: ignore[no-any-return]


@effect(deadline=TEN, repeatable=True)
async def again(call: Call[World], what: str) -> str:
    """Doing it twice is harmless, late arrivals are not."""
    return await call.deps.send("again", call.key, what)


@read
async def fresh(call: Call[World], what: str) -> str:
    return await call.deps.read("fresh", what)


@read(reuse_for=timedelta(seconds=60))
async def brief(call: Call[World], what: str) -> str:
    return await call.deps.read("brief", what)


@read(keep=True)
async def kept(call: Call[World], what: str) -> str:
    return await call.deps.read("kept", what)


CALLS: Sequence[Any] = [bare, looked, remembered, fading, both, again, fresh, brief, kept]


@record
class Note:
    """The data of ``job`` machines."""

    text: str | None = None
    more: str | None = None
    lines: Annotated[Sequence[str], Append()] = ()


Handler = Callable[[Any, Note, Step[World]], Awaitable[Any]]


def job(
    body: Handler,
    *,
    name: str = "Job",
    version: int = 1,
    calls: Sequence[Any] = CALLS,
    **working_options: Any,
) -> Any:
    """A machine of one state, ``working``, whose handler is ``body(machine, data, step)``, and ``done``, to
    which its event ``finished`` leads. Made again with another body it is the same machine under other code.
    """
    options = {"retry": Retry(attempts=3, delay=timedelta(seconds=1)), **working_options}

    class Job(Machine[Note, World], version=version, calls=calls, name=name):
        """One step."""

        working = State(initial=True, **options)
        done = State(final=True)
        finished = working.to(done)

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            fire: Fire = await body(self, data, step)
            return fire

    return Job
