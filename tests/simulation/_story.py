"""What the machines of the simulation are made of: calls to each kind of receiver, data, common steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from operator import add
from typing import Annotated, Any

from _world import DEADLINE, SETTLE, Link, Planned

from perdure.machines import (
    Absent,
    Append,
    ArtifactRef,
    Budget,
    Call,
    Conversation,
    Cost,
    Found,
    Limit,
    Message,
    NotDone,
    Position,
    Reducer,
    Retry,
    Step,
    Unknown,
    effect,
    read,
    record,
    runtime_owned,
)

BOUNDS: dict[str, Any] = {"deadline": timedelta(seconds=DEADLINE), "settle": timedelta(seconds=SETTLE)}
RETRY = Retry(attempts=3, delay=timedelta(seconds=0.5))

# --- calls ----------------------------------------------------------------------------------------


@effect(idempotent=True, **BOUNDS)
async def charge(call: Call[Link], slot: str, value: int) -> str:
    """K: the receiver remembers keys."""
    return await call.deps.send("K", call, slot, value)


@effect(idempotent=True, limit=Limit("KL", at_once=1), **BOUNDS)
async def transfer(call: Call[Link], slot: str, value: int) -> str:
    """KL: it remembers keys and can be asked, and takes one request at a time."""
    return await call.deps.send("KL", call, slot, value)


@transfer.lookup
async def find_transfer(call: Call[Link], slot: str, value: int) -> Found[str] | Absent | Unknown:
    return await call.deps.lookup(call)  # type: ignore[no-any-return]


@effect(**BOUNDS)
async def publish(call: Call[Link], slot: str, value: int) -> str:
    """L: it can be asked."""
    return await call.deps.send("L", call, slot, value)


@publish.lookup
async def find_published(call: Call[Link], slot: str, value: int) -> Found[str] | Absent | Unknown:
    return await call.deps.lookup(call)  # type: ignore[no-any-return]


@effect(repeatable=True, **BOUNDS)
async def put(call: Call[Link], slot: str, value: int) -> str:
    """P: a register."""
    return await call.deps.send("P", call, slot, value)


@effect(**BOUNDS)
async def post(call: Call[Link], slot: str, value: int) -> str:
    """N: neither."""
    return await call.deps.send("N", call, slot, value)


@read
async def price(call: Call[Link], what: str) -> int:
    return await call.deps.world.read(what)


@read(keep=True)
async def quote(call: Call[Link], what: str) -> int:
    return await call.deps.world.read(what)


@read(reuse_for=timedelta(seconds=3))
async def rate(call: Call[Link], what: str) -> int:
    return await call.deps.world.read(what)


@read
async def mood(call: Call[Link]) -> bool:
    """Whether the handler is to fail now."""
    return await call.deps.world.mood()


@read
async def slowly(call: Call[Link], what: str) -> int:
    await asyncio.sleep(1)
    return await call.deps.world.read(what)


CALLS: Sequence[Any] = [charge, transfer, publish, put, post, price, quote, rate, mood, slowly]

# --- data -----------------------------------------------------------------------------------------


@record
class Did:
    """An effect as the handler saw it end. ``receipt`` is empty where it was told that it was not done."""

    slot: str
    value: int
    receipt: str
    visit: int


@record
class Story:
    """The data of every machine here."""

    trail: Annotated[Sequence[str], Append()] = ()
    did: Annotated[Sequence[Did], Append()] = ()
    heard: Annotated[Sequence[str], Append()] = ()
    files: Annotated[Sequence[ArtifactRef], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()
    bumps: Annotated[int, Reducer(add)] = 0
    rounds: int = 0
    notes: int = 0
    seq: int = runtime_owned(Position.seq)

    @property
    def often(self) -> bool:
        """Three rounds were made."""
        return self.rounds >= 3

    @property
    def noted(self) -> bool:
        """Somebody left a note."""
        return self.notes > 0


@record
class Spending(Story):
    """The same, with what it may use and what it has used."""

    budget: Budget = Budget(tokens=40, steps=9)
    tokens: Annotated[int, Cost()] = 0
    used_up: str = ""


@record
class Word:
    """A signal's payload."""

    text: str


async def act(step: Step[Link], look: Any, issue: Any, slot: str) -> Did:
    """Read something, and issue an effect with what was read."""
    value: int = await step.call(look, slot)
    return Did(slot=slot, value=value, receipt=await step.call(issue, slot, value), visit=step.seq)


async def try_to(step: Step[Link], issue: Any, slot: str, value: int) -> Did:
    """Issue an effect; that it was not done is an answer like another."""
    try:
        receipt: str = await step.call(issue, slot, value)
    except NotDone:
        receipt = ""
    return Did(slot=slot, value=value, receipt=receipt, visit=step.seq)


async def falter(step: Step[Link]) -> None:
    """Fail, where the simulation has it."""
    if await step.call(mood):
        raise Planned("the handler fails")
