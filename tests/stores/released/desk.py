"""The machine whose threads lie in the stores of earlier releases. Its code stays as it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import attrs

from perdure.machines import (
    Append,
    ArtifactRef,
    Call,
    Conversation,
    Fire,
    Machine,
    Message,
    Namespace,
    Retry,
    State,
    Step,
    effect,
    read,
    record,
)


@attrs.frozen(kw_only=True)
class World:
    """What the desk works with. In the process that writes the store it breaks off, by name of the thread."""

    breaks: bool = False
    posted: list[str] = attrs.field(factory=list[str])


@record
class Approval:
    by: str


@record
class Facts:
    last: str


@record
class Order:
    name: str
    approved: bool = False
    notes: Annotated[Sequence[str], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()
    picture: ArtifactRef | None = None
    posted: str | None = None


orders = Namespace("orders", Facts)


@read
async def look(call: Call[World], name: str) -> str:
    if call.deps.breaks and name == "fails":
        raise ValueError("this order cannot be read")
    if call.deps.breaks and name == "runs":
        await asyncio.get_running_loop().create_future()
    return name


@effect(idempotent=True)
async def post(call: Call[World], name: str) -> str:
    if call.deps.breaks and name == "in-doubt":
        os._exit(9)
    call.deps.posted.append(name)
    return f"posted {name}"


class Desk(Machine[Order, World], version=1, calls=[look, post]):
    """Reads an order, has it approved, posts it."""

    reading = State(initial=True, retry=Retry(attempts=1))
    review = State()
    posting = State()
    done = State(final=True)
    expired = State(final=True)

    checked = reading.to(review)
    urgent = reading.to(posting)
    approve = review.to(posting).on_signal(Approval)
    forgotten = review.to(expired).after(timedelta(days=36_500))
    sent = posting.to(done)

    @reading.handler
    async def read_it(self, data: Order, step: Step[World]) -> Fire:
        await step.call(look, data.name)
        picture = await step.artifacts.put(data.name.encode(), media_type="text/plain")
        await step.memory.put(orders, data.name, Facts(last=data.name))
        said = [Message(role="assistant", content=f"{data.name} is read")]
        event = self.urgent if data.name in ("ends", "in-doubt") else self.checked
        return event(picture=picture, notes=["read", f"it is {data.name}"], talk=said)

    @posting.handler
    async def post_it(self, data: Order, step: Step[World]) -> Fire:
        return self.sent(posted=await step.call(post.keyed(data.name), data.name), notes=["posted"])
