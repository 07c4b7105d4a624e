"""Code that both checkers must accept, in strict mode and at every target."""
# pyright: strict

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Generic, assert_type

from typing_extensions import TypeVar

from perdure.machines import (
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
    Message,
    ModelWritable,
    Namespace,
    Position,
    Refusal,
    Retry,
    Spent,
    State,
    Step,
    Unknown,
    anywhere,
    definition,
    diagram,
    dot,
    effect,
    present,
    read,
    record,
    replace,
    runtime_owned,
)
from perdure.runtime import Runtime, Thread


@dataclass
class Deps:
    url: str


@record
class Customer:
    name: str


@record
class Note:
    text: str


@record
class Approval:
    by: str


@record
class Rejection:
    why: str


@record
class Receipt:
    number: int


@record
class CustomerFacts:
    last_summary: ArtifactRef


class Cache: ...


@record
class Brief:
    customer_id: str
    customer: Customer | None = None
    draft: Annotated[str | None, ModelWritable()] = None
    summary: ArtifactRef | None = None
    approved_by: str | None = None
    notes: Annotated[Sequence[Note], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()
    transitions: int = runtime_owned(Position.seq)
    scratch: Annotated[Cache | None, Ephemeral()] = None

    @property
    def ready(self) -> bool:
        return self.draft is not None

    @property
    def patience(self) -> timedelta | None:
        return None if self.ready else timedelta(hours=1)

    @property
    def meeting(self) -> datetime | None:
        return None


def _soon(data: Brief) -> datetime | None:
    return data.meeting


@read(reuse_for=timedelta(seconds=60))
async def get_customer(call: Call[Deps], customer_id: str) -> Customer:
    return Customer(name=call.deps.url + customer_id)


@read(keep=True)
async def draft_summary(call: Call[Deps], customer: Customer, *, words: int = 100) -> str:
    return customer.name


@read
async def today(call: Call) -> str:
    return call.workspace


@effect
async def publish(call: Call[Deps], ref: ArtifactRef) -> Receipt:
    return Receipt(number=len(call.key))


@publish.lookup
async def find_published(call: Call[Deps], ref: ArtifactRef) -> Found[Receipt] | Absent | Unknown:
    return Found(Receipt(number=1))


@effect(idempotent=True, deadline=timedelta(seconds=5))
async def notify(call: Call[Deps], who: str) -> None: ...


@notify.lookup
async def find_notified(call: Call[Deps], who: str) -> Absent:
    return Absent()


customers = Namespace("customer", CustomerFacts)


class Summarise(Machine[Brief, Deps], version=1, calls=[get_customer, draft_summary, publish, notify, today]):
    """Summarise a customer, have a person approve it, publish it."""

    loading = State(initial=True)
    drafting = State(retry=Retry(attempts=3), deadline=timedelta(minutes=5))
    review = State()
    publishing = State()
    done = State(final=True)
    rejected = State(final=True)

    loaded = loading.to(drafting)
    drafted = drafting.to(review, when=Brief.ready)
    approve = review.to(publishing).on_signal(Approval)
    reject = review.to(rejected).on_signal(Rejection)
    nudge = review.to(review).on_signal()
    expired = review.to(rejected).after(timedelta(days=1))
    bored = review.to(rejected).after(Brief.patience)
    begun = review.to(rejected).at(Brief.meeting)
    soon = review.to(review).at(_soon)
    gave_up = drafting.to(rejected).on_failure(ValueError)
    published = publishing.to(done)
    stopped = loading.to(rejected) | publishing.to(rejected, when=lambda data: bool(data.approved_by))

    @loading.handler
    async def load(self, data: Brief, step: Step[Deps]) -> Fire:
        return self.loaded(customer=await step.call(get_customer, data.customer_id))

    @drafting.handler
    async def draft(self, data: Brief, step: Step[Deps]) -> Fire:
        text = await step.call(draft_summary, present(data.customer), words=50)
        assert_type(text, str)
        ref = await step.artifacts.put(text.encode(), media_type="text/plain")
        return self.drafted(draft=text, summary=ref, notes=[Note(text="drafted")])

    @approve.received
    def approved(self, data: Brief, approval: Approval) -> Accept:
        return self.approve(approved_by=approval.by)

    @gave_up.received
    def given_up(self, data: Brief, failure: Failure) -> Accept:
        return self.gave_up(notes=[Note(text=failure.message)])

    @publishing.handler
    async def publish_it(self, data: Brief, step: Step[Deps]) -> Fire:
        ref = present(data.summary)
        assert_type(ref, ArtifactRef)
        receipt = await step.call(publish, ref)
        assert_type(receipt, Receipt)
        await step.call(publish.keyed("invoice-7"), ref)
        await step.call(notify, who="ada")
        one, two = await asyncio.gather(step.call(today), step.lane("x").call(get_customer, "a"))
        assert_type(one, str)
        assert_type(two, Customer)
        await step.memory.put(customers, data.customer_id, CustomerFacts(last_summary=ref))
        facts = await step.memory.get(customers, data.customer_id, max_age=timedelta(days=1))
        assert_type(facts, CustomerFacts | None)
        return self.published(**step.patch_from_model({"draft": "x"}))


class Careful(Summarise, version=2):
    """A subclass adds to its base."""

    checking = State()
    check = Summarise.review.to(checking).on_signal(Rejection)
    checked = checking.to(Summarise.done)

    @checking.handler
    async def look(self, data: Brief, step: Step[Deps]) -> Fire:
        return self.checked(approved_by="nobody")


@record
class Question:
    words: str


class Reviewing(Summarise):
    """States in a state, and every kind of event."""

    talk = State()
    asking = State(parent=talk, initial=True)
    resting = State(parent=talk)

    begin = Summarise.loading.to(talk)
    ask = asking.to(resting, when=Brief.ready).on_choice(Question)
    leave = talk.to(Summarise.done).on_choice()
    settled = talk.to(Summarise.done) | anywhere.to(Summarise.rejected)
    stop = anywhere.to(Summarise.rejected).on_cancel()
    wake = resting.to(asking).on_signal(Question)
    broken = anywhere.to(Summarise.rejected, when=Brief.ready).on_failure()

    @asking.handler
    async def talk_on(self, data: Brief, step: Step[Deps]) -> Fire:
        assert_type(step.choices(), Sequence[Choice])
        for call in data.talk[-1].tool_calls:
            decided = step.decide(call)
            assert_type(decided, Fire | Refusal)
            if isinstance(decided, Fire):
                return decided
        return self.settled(draft="said")

    @ask.received
    def asked(self, data: Brief, question: Question) -> Accept:
        return self.ask(draft=question.words)

    @leave.received
    def left(self, data: Brief, nothing: None) -> Accept:
        return self.leave()

    @stop.received
    def halt(self, data: Brief, why: Cancellation) -> Accept:
        assert_type(why.reason, str)
        return self.stop(approved_by=why.by)


@record
class Limited:
    budget: Budget = Budget(steps=30, tokens=20_000)
    tokens: Annotated[int, Cost()] = 0
    newest: Annotated[Sequence[Note], Append(keep=5)] = ()


class Limits(Machine[Limited]):
    """Counts what it uses, and stops where that is enough."""

    working = State(initial=True)
    enough = State(final=True)
    more = working.to(working)
    spent = working.to(enough).on_budget()

    @working.handler
    async def work(self, data: Limited, step: Step) -> Fire:
        return self.more(tokens=30, newest=replace((Note(text="only"),)))

    @spent.received
    def stopped_short(self, data: Limited, limit: Spent) -> Accept:
        assert_type(limit.used, float)
        return self.spent(newest=[Note(text=limit.limit)], budget=Budget(steps=data.tokens))


D = TypeVar("D")
X = TypeVar("X", contravariant=True, default=object)


class Desk(Machine[D, X], Generic[D, X], abstract=True, calls=[today]):
    """What several machines share."""

    failed = State(final=True)
    broken = anywhere.to(failed).on_failure()
    stop = anywhere.to(failed).on_cancel()

    @broken.received
    def note(self, data: D, failure: Failure) -> Accept:
        return self.broken(draft=failure.message)


class Claims(Desk[Brief, Deps]):
    """Takes the base's data and dependencies, typed."""

    start = State(initial=True)
    go = start.to(Desk.failed)

    @start.handler
    async def run(self, data: Brief, step: Step[Deps]) -> Fire:
        return self.go(draft=data.customer_id)

    @Desk.stop.received
    def stopped(self, data: Brief, why: Cancellation) -> Accept:
        return self.stop(approved_by=why.by)


@record
class Empty: ...


class Plain(Machine[Empty], calls=[today]):
    """Needs no dependencies."""

    start = State(initial=True)
    end = State(final=True)
    go = start.to(end)

    @start.handler
    async def run(self, data: Empty, step: Step) -> Fire:
        await step.call(today)
        return self.go()


runtime = Runtime(machines=[Summarise, Careful, Plain, Claims], deps=Deps(url=""))
drawn = diagram(Summarise, path=[("loading", "loaded", "drafting")]) + dot(definition(Summarise))


async def main(answer: Mapping[str, Any]) -> None:
    thread = await runtime.start(Summarise, Brief(customer_id="cust_42"), thread_id="cust_42/june")
    assert_type(thread, Thread[Summarise, Brief])
    await thread.signal(Summarise.approve, Approval(by="ada"), id="approval-1")
    await thread.signal(Summarise.nudge, id="nudge-1")
    await thread.cancel(reason="too late", by="ada")
    await thread.terminate()
    ended = await thread.result()
    assert_type(ended.data, Brief)
    claims = await runtime.start(Claims, Brief(customer_id="cust_42"), thread_id="cust_42/claims")
    assert_type(claims, Thread[Claims, Brief])
