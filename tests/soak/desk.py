"""The machines of the soak, and the runtime that its workers serve: ``soak.desk:runtime``.

What a worker needs stands in its environment: ``SOAK_STORE``, a URL, and ``SOAK_LEDGER``, a port.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import anyio
import attrs

from perdure import (
    ABSENT,
    Absent,
    Accept,
    Append,
    Call,
    Fire,
    Found,
    Machine,
    Retry,
    Runtime,
    State,
    Step,
    Unknown,
    effect,
    read,
    record,
)
from soak.ledger import post

LEASE = timedelta(seconds=2)
WITHIN = timedelta(seconds=3)
"""The deadline of an effect."""
SETTLE = timedelta(seconds=2)
ROUNDS = 4
"""Timers that a ``Rounds`` thread waits for."""


@attrs.frozen
class Deps:
    """Where the ledger is."""

    port: int


async def send(call: Call[Deps], effect: str, args: Sequence[object]) -> int:
    """Say to the ledger who asks, when, and until when it may: the judge looks at late ones."""
    about = {"thread": call.thread_id, "pid": os.getpid(), "sent": time.time()}
    until = call.deadline.timestamp()
    answer: int = await post(
        call.deps.port, "/send", key=call.key, effect=effect, args=args, until=until, **about
    )
    return answer


@read(keep=True)
async def quote(call: Call[Deps], item: str) -> int:
    """A costly answer, which is kept."""
    await anyio.sleep(0.02)
    return len(item)


@effect(idempotent=True, deadline=WITHIN, settle=SETTLE)
async def charge(call: Call[Deps], amount: int) -> int:
    """To a receiver that remembers keys."""
    return await send(call, "charge", [amount])


@effect(deadline=WITHIN, settle=SETTLE)
async def ship(call: Call[Deps], item: str) -> int:
    """To a receiver that can only be asked."""
    return await send(call, "ship", [item])


@ship.lookup
async def shipped(call: Call[Deps], item: str) -> Found[int] | Absent | Unknown:
    """Ask the ledger."""
    number = await post(call.deps.port, "/find", key=call.key)
    return ABSENT if number is None else Found(number)


@effect(deadline=WITHIN, settle=SETTLE)
async def ring(call: Call[Deps], bell: str) -> int:
    """To a receiver that knows neither keys nor a lookup."""
    return await send(call, "ring", [bell])


@record
class Mark:
    """What a signal brings."""

    by: str


@record
class Work:
    """The data of all machines."""

    item: str = ""
    marks_wanted: int = 0
    quoted: int | None = None
    charged: int | None = None
    shipped: int | None = None
    approved_by: str | None = None
    rounds: int = 0
    marks: Annotated[Sequence[str], Append()] = ()

    @property
    def complete(self) -> bool:
        """Every mark has come."""
        return len(self.marks) == self.marks_wanted

    @property
    def enough(self) -> bool:
        """Every round is over."""
        return self.rounds == ROUNDS


class Order(Machine[Work, Deps], version=1, calls=[quote, charge, ship]):
    """Quoted, charged, approved by somebody, shipped, and closed when every mark has come."""

    pricing = State(initial=True)
    charging = State()
    review = State()
    shipping = State()
    closing = State()
    done = State(final=True)

    priced = pricing.to(charging)
    paid = charging.to(review)
    approve = review.to(shipping).on_signal(Mark)
    mark = (review.to(review) | closing.to(closing)).on_signal(Mark)
    sent = shipping.to(closing)
    close = closing.to(done, when=Work.complete).on_signal()

    @pricing.handler
    async def price(self, data: Work, step: Step[Deps]) -> Fire:
        return self.priced(quoted=await step.call(quote, data.item))

    @charging.handler
    async def pay(self, data: Work, step: Step[Deps]) -> Fire:
        return self.paid(charged=await step.call(charge, data.quoted or 0))

    @shipping.handler
    async def ship_it(self, data: Work, step: Step[Deps]) -> Fire:
        return self.sent(shipped=await step.call(ship, data.item))

    @approve.received
    def approved(self, data: Work, mark: Mark) -> Accept:
        return self.approve(approved_by=mark.by)

    @mark.received
    def marked(self, data: Work, mark: Mark) -> Accept:
        return self.mark(marks=[mark.by])


class Rounds(Machine[Work, Deps], version=1, calls=[ship]):
    """Waits for the clock, works, and does it again."""

    napping = State(initial=True)
    working = State()
    shipping = State()
    done = State(final=True)

    woke = napping.to(working).after(timedelta(seconds=1.5))
    again = working.to(napping)
    over = working.to(shipping)
    sent = shipping.to(done)

    @working.handler
    async def work(self, data: Work, step: Step[Deps]) -> Fire:
        rounds = data.rounds + 1
        return (self.over if rounds == ROUNDS else self.again)(rounds=rounds, marks=[f"round {rounds}"])

    @shipping.handler
    async def ship_it(self, data: Work, step: Step[Deps]) -> Fire:
        return self.sent(shipped=await step.call(ship, data.item))


class Both(Machine[Work, Deps], version=1, calls=[charge, ship]):
    """Two branches side by side, one effect each."""

    working = State(initial=True)
    done = State(final=True)

    finished = working.to(done)

    @working.handler
    async def pay(self, data: Work, step: Step[Deps]) -> Fire:
        return self.finished(charged=await step.call(charge, 7))

    @working.handler
    async def ship_it(self, data: Work, step: Step[Deps]) -> Fire:
        return self.finished(shipped=await step.call(ship, data.item))


class Bell(Machine[Work, Deps], version=1, calls=[ring]):
    """May park in doubt."""

    ringing = State(initial=True)
    done = State(final=True)

    rung = ringing.to(done)

    @ringing.handler
    async def ring_it(self, data: Work, step: Step[Deps]) -> Fire:
        return self.rung(shipped=await step.call(ring, data.item))


class Fails(Machine[Work, Deps], version=1):
    """Parks as failed."""

    working = State(initial=True, retry=Retry(attempts=2, delay=timedelta(milliseconds=200)))
    done = State(final=True)

    finished = working.to(done)

    @working.handler
    async def work(self, data: Work, step: Step[Deps]) -> Fire:
        raise ValueError("planted")


class Deadly(Machine[Work, Deps], version=1):
    """Kills its worker each time, and parks as poison."""

    working = State(initial=True)
    done = State(final=True)

    finished = working.to(done)

    @working.handler
    async def work(self, data: Work, step: Step[Deps]) -> Fire:
        os.kill(os.getpid(), signal.SIGKILL)
        return self.finished()


MACHINES: Sequence[type[Machine[Any, Deps]]] = (Order, Rounds, Both, Bell, Fails, Deadly)


def runtime_for(store: str, port: int) -> Runtime[Deps]:
    """The runtime on this store, with a short lease so that much happens."""
    return Runtime(
        machines=MACHINES,
        deps=Deps(port),
        store=store,
        artifacts="memory:",
        lease=LEASE,
        grace=timedelta(seconds=4),
        poll=timedelta(milliseconds=200),
    )


runtime = runtime_for(os.environ.get("SOAK_STORE", "memory://"), int(os.environ.get("SOAK_LEDGER", "0")))
