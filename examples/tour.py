"""Every feature once, in one job: plan a tour with a model, have the traveller agree, book it, remember it.

    perdure run examples.tour:runtime Tour --data '{"city": "Ghent"}' --thread ghent --no-wait
    perdure signal ghent agree --data '{"by": "ada"}' --runtime examples.tour:runtime
    perdure run examples.tour:runtime Tour --thread ghent
    perdure history ghent

The first command leaves the thread where it waits for the traveller's word, for a day at most.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import attrs

from examples._agency import Agency
from perdure import (
    ABSENT,
    Absent,
    Accept,
    Append,
    ArtifactRef,
    Budget,
    Call,
    Cancellation,
    Choice,
    Conversation,
    Cost,
    Ephemeral,
    Failure,
    Fire,
    Found,
    Machine,
    Merge,
    Message,
    ModelWritable,
    Namespace,
    Position,
    Reducer,
    Refusal,
    Retry,
    Runtime,
    Spent,
    State,
    Step,
    ToolCall,
    Unknown,
    anywhere,
    effect,
    present,
    read,
    record,
    replace,
    runtime_owned,
)

# --- what the outside world is ---------------------------------------------------------------------


class Orders(Protocol):
    """Where things are ordered."""

    async def order(self, kind: str, key: str, what: str) -> int: ...
    async def find(self, kind: str, key: str) -> int | None: ...


@attrs.frozen(kw_only=True)
class Deps:
    """What the calls need, and the runtime is given."""

    agency: Orders


@record
class Offer:
    """Something that can be booked."""

    what: str
    price: Decimal


@read(reuse_for=timedelta(minutes=10))  # after a resume an answer of the last ten minutes will do
async def find_trains(call: Call[Deps], city: str) -> Sequence[Offer]:
    """Trains to a city."""
    return [
        Offer(what=f"early train to {city}", price=Decimal(39)),
        Offer(what=f"late train to {city}", price=Decimal(24)),
    ]


@read  # after a resume it is asked again
async def find_rooms(call: Call[Deps], city: str, nights: int) -> Sequence[Offer]:
    """Rooms in a city."""
    return [Offer(what=f"{nights} nights by the canal", price=Decimal(80) * nights)]


@read(keep=True)  # paid for once
async def ask_model(call: Call[Deps], talk: Sequence[Message], choices: Sequence[Choice]) -> Message:
    """In a model's place: it asks for what is not on offer first, and proposes a plan once it was refused."""
    refused = any(message.tool_failed for message in talk)
    plan = json.dumps({"title": "Two slow days", "ideas": ["the altarpiece", "a boat", "waffles", "a tower"]})
    name, arguments = ("propose", plan) if refused else ("book_everything", "{}")
    wanted = ToolCall(id=f"call_{len(talk)}", name=name, arguments=arguments)
    return Message(role="assistant", content="", tool_calls=[wanted])


@effect(idempotent=True)  # the railway remembers keys: issued again at once
async def book_train(call: Call[Deps], what: str) -> int:
    """Book a train; its ticket's number."""
    return await call.deps.agency.order("train", call.key, what)


@effect(deadline=timedelta(seconds=20))  # the hotel can be asked: looked up first
async def book_room(call: Call[Deps], what: str) -> int:
    """Book a room; the booking's number."""
    return await call.deps.agency.order("room", call.key, what)


@book_room.lookup
async def find_room(call: Call[Deps], what: str) -> Found[int] | Absent | Unknown:
    """Whether the hotel has a booking with this key."""
    number = await call.deps.agency.find("room", call.key)
    return ABSENT if number is None else Found(number)


@effect(repeatable=True)  # the same words put in the same place twice: harmless, once nothing is on its way
async def pin_card(call: Call[Deps], what: str) -> None:
    """Pin a card to the traveller's board, where the one of the same words hangs already or not."""
    await call.deps.agency.order("card", call.key, what)


# --- what a thread knows ---------------------------------------------------------------------------


def cheaper(old: Decimal, new: Decimal) -> Decimal:
    """The lower of two prices; zero stands for none so far."""
    return new if old == 0 else min(old, new)


class Scratch:
    """Anything at all: it is never stored."""

    ranked: Sequence[Offer] = ()


@record
class Trip:
    """The machine's data."""

    city: str
    nights: int = 2
    offers: Annotated[Sequence[Offer], Append()] = ()
    prices: Annotated[Mapping[str, Decimal], Merge()] = {}
    lowest: Annotated[Decimal, Reducer(cheaper)] = Decimal(0)
    title: Annotated[str | None, ModelWritable()] = None
    ideas: Annotated[Sequence[str], Append(keep=3)] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()
    questions: Annotated[int, Cost()] = 0
    budget: Budget = Budget(questions=5, steps=40)
    itinerary: ArtifactRef | None = None
    reference: str | None = None
    agreed_by: str | None = None
    numbers: Mapping[str, int] = {}
    trouble: str | None = None
    ended: datetime | None = None
    transitions: int = runtime_owned(Position.seq)
    scratch: Annotated[Scratch | None, Ephemeral()] = None

    @property
    def planned(self) -> bool:
        """There is a title, and at least one idea."""
        return self.title is not None and bool(self.ideas)


@record
class Plan:
    """What a model proposes."""

    title: str
    ideas: Sequence[str]


@record
class Word:
    """What the traveller says."""

    by: str
    wish: str = ""


@record
class Visited:
    """What is remembered of a city."""

    tours: int
    last: ArtifactRef | None = None


def both(stored: Visited, put: Visited) -> Visited:
    """The memory's merge rule: two tours that ended at once both count."""
    return Visited(tours=stored.tours + 1, last=put.last)


cities = Namespace("city", Visited, merge=both)

# --- what every machine of this desk has -----------------------------------------------------------

D = TypeVar("D")
X = TypeVar("X")


class Ending(Machine[D, X], abstract=True):
    """Common ends: given up, called off, forgotten."""

    failed = State(final=True)
    called_off = State(final=True)
    forgotten = State(final=True)

    gave_up = anywhere.to(failed).on_failure()
    call_off = anywhere.to(called_off).on_cancel()
    forget = anywhere.to(forgotten).after(timedelta(days=30))


class Tour(
    Ending[Trip, Deps], version=1, calls=[find_trains, find_rooms, ask_model, book_train, book_room, pin_card]
):
    """Plan a tour, have the traveller agree to it, book it."""

    gathering = State(initial=True)
    planning = State()
    drafting = State(parent=planning, initial=True, retry=Retry(attempts=2), deadline=timedelta(minutes=2))
    reviewing = State(parent=planning)
    booking = State(interruptible=True)
    filing = State()
    done = State(final=True)

    gathered = gathering.to(planning)
    again = drafting.to(drafting)
    propose = drafting.to(reviewing, when=Trip.planned).on_choice(Plan)
    change = reviewing.to(drafting).on_signal(Word)
    agree = reviewing.to(booking).on_signal(Word)
    no_answer = planning.to(Ending.called_off).after(timedelta(days=1))
    used_up = planning.to(Ending.failed).on_budget()
    booked = booking.to(filing)
    filed = filing.to(done)

    @gathering.handler
    async def trains(self, data: Trip, step: Step[Deps]) -> Fire:
        """One of two branches: they run side by side, and their updates merge."""
        found = await step.call(find_trains, data.city)
        prices = {offer.what: offer.price for offer in found}
        return self.gathered(offers=found, prices=prices, lowest=min(prices.values()))

    @gathering.handler
    async def rooms(self, data: Trip, step: Step[Deps]) -> Fire:
        """The other branch."""
        found = await step.call(find_rooms, data.city, data.nights)
        return self.gathered(offers=found, prices={offer.what: offer.price for offer in found})

    @drafting.handler
    async def draft(self, data: Trip, step: Step[Deps]) -> Fire:
        """Let the model choose among the events that leave this state; send it back what it may not do."""
        before = await step.memory.get(cities, data.city)
        told = f"{data.city}, visited {before.tours if before else 0} times before"
        start = [] if data.talk else [Message(role="user", content=told)]
        answer = await step.call(ask_model, [*data.talk, *start], step.choices())
        step.report(question=data.questions + 1)
        decision = step.decide(answer.tool_calls[0])
        if isinstance(decision, Refusal):
            return self.again(talk=[*start, answer, decision.message()], questions=1)
        return decision.also(talk=[*start, answer], questions=1)

    @propose.received
    def proposed(self, data: Trip, plan: Plan) -> Accept:
        """Propose a tour: a title, and what to see there."""
        return self.propose(title=plan.title, ideas=replace(plan.ideas))

    @change.received
    def changed(self, data: Trip, word: Word) -> Accept:
        return self.change(talk=[Message(role="user", name=word.by, content=word.wish)])

    @agree.received
    def agreed(self, data: Trip, word: Word) -> Accept:
        return self.agree(agreed_by=word.by)

    @booking.handler
    async def book(self, data: Trip, step: Step[Deps]) -> Fire:
        """Two strands of one step, and a key that names the city and not this thread."""
        train = min((offer for offer in data.offers if "train" in offer.what), key=lambda offer: offer.price)
        room = next(offer for offer in data.offers if "nights" in offer.what)
        by_rail, to_sleep = step.lane("rail"), step.lane("room")
        ticket, bed = await asyncio.gather(
            by_rail.call(book_train, train.what), to_sleep.call(book_room, room.what)
        )
        await step.call(pin_card.keyed(f"{step.thread_id}/card"), present(data.title))
        scratch = Scratch()
        scratch.ranked = sorted(data.offers, key=lambda offer: offer.price)
        return self.booked(numbers={"train": ticket, "room": bed}, scratch=scratch)

    @filing.handler
    async def file(self, data: Trip, step: Step[Deps]) -> Fire:
        """An artifact, a fact for later tours, and what only the step may draw: a time and a random id."""
        ranked = data.scratch.ranked if data.scratch else sorted(data.offers, key=lambda offer: offer.price)
        lines = [present(data.title), *data.ideas, *(f"{offer.what}: {offer.price}" for offer in ranked)]
        ref = await step.artifacts.put("\n".join(lines).encode(), media_type="text/plain")
        before = await step.memory.get(cities, data.city)
        await step.memory.put(cities, data.city, Visited(tours=(before.tours if before else 0) + 1, last=ref))
        return self.filed(itinerary=ref, reference=str(await step.uuid()), ended=await step.now())

    @Ending.gave_up.received
    def note_trouble(self, data: Trip, failure: Failure) -> Accept:
        return self.gave_up(trouble=f"{failure.error}: {failure.message}")

    @Ending.call_off.received
    def note_who(self, data: Trip, asked: Cancellation) -> Accept:
        return self.call_off(trouble=f"called off by {asked.by}: {asked.reason}")

    @used_up.received
    def note_limit(self, data: Trip, spent: Spent) -> Accept:
        return self.used_up(trouble=f"{spent.limit}: {spent.used:g} of {spent.allowed:g}")


runtime = Runtime(
    machines=[Tour],
    deps=Deps(agency=Agency(path=Path("agency.db"))),
    store="sqlite:///perdure.db",
    artifacts="file:perdure-artifacts",
)
