"""Two machines in two versions, for the drill of a deploy: what version 2 changes is what deploys change.

Of both a state has another name, and a signal's payload and the arguments of effects are others. Of Desk also
the data: a field is renamed, and a scalar becomes a list. Version 2 is made with its upcasters and old names,
or without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

from harness.engine import World

from perdure.machines import (
    Absent,
    Accept,
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
    upcast,
)

TEN = timedelta(seconds=10)
LATE = timedelta(minutes=30)
RETRY = Retry(attempts=2, delay=timedelta(minutes=5))


def kind(item: str) -> str:
    """What becomes of an item: a receiver of its own, whose replies a test lines up."""
    return item.partition("/")[0]


@read(keep=True)
async def rate(call: Call[World], item: str) -> str:
    """Paid for once."""
    return await call.deps.read("rate", item)


# --- version 1 ------------------------------------------------------------------------------------


@record
class Approval1:
    by: str
    amount: float


@record
class Order1:
    item: str
    price: float
    by: str = ""
    done: Annotated[Sequence[str], Append()] = ()

    @property
    def title(self) -> str:
        """As version 2 calls it."""
        return self.item

    @property
    def prices(self) -> Sequence[float]:
        """As version 2 has it."""
        return (self.price,)


def effects_1() -> tuple[Any, Any, Any]:
    """What it calls: one that can be looked up, one that remembers keys, one that can do neither."""

    @effect(deadline=TEN)
    async def charge(call: Call[World], item: str, price: float) -> str:
        return await call.deps.send(f"charge {kind(item)}", call.key, item)

    @charge.lookup
    async def charged(call: Call[World], item: str, price: float) -> Found[str] | Absent | Unknown:
        return await call.deps.look(f"charge {kind(item)}", call.key)  # type: ignore[no-any-return]

    @effect(deadline=TEN, idempotent=True)
    async def ship(call: Call[World], item: str) -> str:
        return await call.deps.send(f"ship {kind(item)}", call.key, item)

    @effect(deadline=TEN)
    async def tell(call: Call[World], item: str) -> str:
        return await call.deps.send(f"tell {kind(item)}", call.key, item)

    return charge, ship, tell


def version_1(name: str) -> Any:
    """Version 1 of the machine of this name."""
    charge, ship, tell = effects_1()

    class Desk(Machine[Order1, World], version=1, name=name, calls=[rate, charge, ship, tell]):
        """Reads a rate, charges and ships, waits for an approval, tells."""

        buying = State(initial=True, retry=RETRY)
        review = State()
        telling = State(retry=RETRY)
        done = State(final=True)
        lapsed = State(final=True)

        bought = buying.to(review)
        approve = review.to(telling).on_signal(Approval1)
        hurry = telling.to(done).on_signal(Approval1)
        late = review.to(lapsed).after(LATE)
        told = telling.to(done)

        @buying.handler
        async def buy(self, data: Order1, step: Step[World]) -> Fire:
            if kind(data.item) in ("failed", "retrying"):
                raise RuntimeError("no such item")
            value = await step.call(rate, data.item)
            await step.call(charge, data.item, data.price)
            await step.call(ship, data.item)
            return self.bought(done=[f"bought at {value.partition('#')[0]}"])

        @approve.received
        def approved(self, data: Order1, approval: Approval1) -> Accept:
            return self.approve(by=approval.by)

        @telling.handler
        async def say(self, data: Order1, step: Step[World]) -> Fire:
            if kind(data.item) == "in doubt":
                await step.call(tell, data.item)
            return self.told(done=["told"])

    return Desk


# --- version 2 ------------------------------------------------------------------------------------


@record
class Approval2:
    by: str
    amounts: Sequence[float]


@record
class Order2:
    title: str
    prices: Sequence[float]
    by: str = ""
    done: Annotated[Sequence[str], Append()] = ()
    urgent: bool = False


def effects_2() -> tuple[Any, Any, Any]:
    """The same effects, two of them with other arguments."""

    @effect(deadline=TEN)
    async def charge(call: Call[World], title: str, prices: Sequence[float]) -> str:
        return await call.deps.send(f"charge {kind(title)}", call.key, title)

    @charge.lookup
    async def charged(
        call: Call[World], title: str, prices: Sequence[float]
    ) -> Found[str] | Absent | Unknown:
        return await call.deps.look(f"charge {kind(title)}", call.key)  # type: ignore[no-any-return]

    @effect(deadline=TEN, idempotent=True)
    async def ship(call: Call[World], item: str, copies: int = 1) -> str:
        return await call.deps.send(f"ship {kind(item)}", call.key, item)

    @effect(deadline=TEN)
    async def tell(call: Call[World], item: str) -> str:
        return await call.deps.send(f"tell {kind(item)}", call.key, item)

    return charge, ship, tell


def version_2(name: str, *, upcasters: bool = True) -> Any:
    """Version 2 of the machine of this name."""
    charge, ship, tell = effects_2()
    base: Any = Machine[Order2, World] if name == "Desk" else Machine[Order1, World]

    class Second(base, abstract=True, calls=[rate, charge, ship, tell]):  # type: ignore[misc, call-arg]
        buying = State(initial=True, retry=RETRY)
        approval = State(renamed=("review",) if upcasters else ())
        telling = State(retry=RETRY)
        done = State(final=True)
        lapsed = State(final=True)

        bought = buying.to(approval)
        approve = approval.to(telling).on_signal(Approval2)
        hurry = telling.to(done).on_signal(Approval2)
        late = approval.to(lapsed).after(LATE)
        told = telling.to(done)

        @buying.handler
        async def buy(self, data: Any, step: Step[World]) -> Fire:
            value = await step.call(rate, data.title)
            await step.call(charge, data.title, data.prices)
            await step.call(ship, data.title)
            done: Any = [f"bought at {value.partition('#')[0]}"]
            return self.bought(done=done)

        @approve.received
        def approved(self, data: Any, approval: Approval2) -> Accept:
            return self.approve(by=approval.by)  # type: ignore[arg-type]

        @telling.handler
        async def say(self, data: Any, step: Step[World]) -> Fire:
            if kind(data.title) == "in doubt":
                await step.call(tell, data.title)
            return self.told(done=["told"])  # type: ignore[arg-type]

    if not upcasters:

        class Bare(Second, version=2, name=name):  # type: ignore[call-arg]
            """It does not know how version 1 wrote."""

        return Bare

    class Upcasting(Second, version=2, name=name):  # type: ignore[call-arg]
        """It knows."""

        if name == "Desk":

            @upcast(from_version=1)
            def data_2(self, data: dict[str, Any]) -> dict[str, Any]:
                return {**_without(data, "item", "price"), "title": data["item"], "prices": [data["price"]]}

        @upcast(from_version=1, of=charge)
        def charge_2(self, values: dict[str, Any]) -> dict[str, Any]:
            return {"title": values["item"], "prices": [values["price"]]}

        @upcast(from_version=1, of=Second.approve)
        def approval_2(self, values: dict[str, Any]) -> dict[str, Any]:
            return _listed(values)

        @upcast(from_version=1, of=Second.hurry)
        def hurry_2(self, values: dict[str, Any]) -> dict[str, Any]:
            return _listed(values)

    return Upcasting


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _listed(values: dict[str, Any]) -> dict[str, Any]:
    return {**_without(values, "amount"), "amounts": [values["amount"]]}
