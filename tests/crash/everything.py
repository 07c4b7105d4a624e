"""A machine that uses every feature of the kernel once, against the receiver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

import attrs

from crash.receiver import ask
from perdure.machines import (
    ABSENT,
    Absent,
    Accept,
    Append,
    ArtifactRef,
    Budget,
    Call,
    Cancellation,
    Conversation,
    Cost,
    Declared,
    Fire,
    Found,
    Machine,
    Merge,
    Message,
    Namespace,
    NotDone,
    Position,
    Retry,
    State,
    Step,
    ToolCall,
    Unknown,
    effect,
    present,
    read,
    record,
    runtime_owned,
)

ROUNDS = 9
SOON = timedelta(seconds=5)
SETTLE = timedelta(milliseconds=30)


@attrs.frozen
class World:
    """The receiver, one run of it, and where this process may be killed."""

    port: int
    run: str
    point: Callable[[str], None]
    moving: bool = False
    """Whether reads answer differently each time."""

    async def arrive(self, effect: str, key: str, **args: Any) -> None:
        self.point(f"before {effect}")
        await ask(self.port, op="arrive", run=self.run, effect=effect, key=key, args=args)
        self.point(f"after {effect}")

    async def find(self, key: str) -> Mapping[str, Any] | None:
        self.point("before lookup")
        found: Mapping[str, Any] | None = await ask(self.port, op="find", run=self.run, key=key)
        self.point("after lookup")
        return found

    async def look(self, what: str) -> str:
        self.point(f"before read {what}")
        n = await ask(self.port, op="read", run=self.run, what=what)
        self.point(f"after read {what}")
        return f"{what}-{n}" if self.moving else what


@record
class Note:
    text: str


@record
class Approval:
    by: str


@record
class Facts:
    seen: int = 0
    last: str | None = None


@record
class Job:
    name: str
    looked: str | None = None
    thought: str | None = None
    reused: str | None = None
    posted: str | None = None
    pinged: Annotated[Sequence[str], Append()] = ()
    flags: Annotated[Sequence[str], Append()] = ()
    picture: ArtifactRef | None = None
    left: str | None = None
    counted: Annotated[Mapping[str, int], Merge()] = attrs.field(factory=dict)
    notes: Annotated[Sequence[Note], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()
    fallen_back: str | None = None
    approved_by: str | None = None
    charged: str | None = None
    budget: Budget = Budget(tokens=10)
    tokens: Annotated[int, Cost()] = 0
    chosen: str | None = None
    stopped_by: str | None = None
    transitions: int = runtime_owned(Position.seq)

    @property
    def all_rounds(self) -> bool:
        """The last round is over."""
        return len(self.pinged) == ROUNDS

    @property
    def more_rounds(self) -> bool:
        """There is another round."""
        return len(self.pinged) < ROUNDS

    @property
    def settled(self) -> bool:
        """Everything was posted."""
        return self.posted is not None


@read
async def look(call: Call[World], name: str) -> str:
    return await call.deps.look(f"look {name}")


@read(reuse_for=timedelta(minutes=1))
async def look_again(call: Call[World], name: str) -> str:
    return await call.deps.look(f"again {name}")


@read(keep=True)
async def think(call: Call[World], about: str) -> str:
    return await call.deps.look(f"thought {about}")


@effect(deadline=SOON, settle=SETTLE)
async def post(call: Call[World], subject: str, body: str) -> str:
    await call.deps.arrive("post", call.key, subject=subject, body=body)
    return f"posted {body}"


@post.lookup
async def find_post(call: Call[World], subject: str, body: str) -> Found[str] | Absent | Unknown:
    found = await call.deps.find(call.key)
    return ABSENT if found is None else Found(f"posted {found['args']['body']}")


@effect(idempotent=True, deadline=SOON, settle=SETTLE)
async def ping(call: Call[World], what: str) -> str:
    await call.deps.arrive("ping", call.key, what=what)
    return f"pinged {what}"


@effect(repeatable=True, deadline=SOON, settle=SETTLE)
async def set_flag(call: Call[World], value: str) -> str:
    await call.deps.arrive("set_flag", call.key, value=value)
    return value


@effect(deadline=SOON, settle=SETTLE)
async def offer(call: Call[World], what: str) -> str:
    if what == "refused":
        call.deps.point("before refusal")
        raise NotDone("the receiver refuses this one")
    await call.deps.arrive("offer", call.key, what=what)
    return what


@offer.lookup
async def find_offer(call: Call[World], what: str) -> Found[str] | Absent | Unknown:
    found = await call.deps.find(call.key)
    return ABSENT if found is None else Found(found["args"]["what"])


@effect(deadline=SOON, settle=SETTLE)
async def charge(call: Call[World], whom: str) -> str:
    await call.deps.arrive("charge", call.key, whom=whom)
    return f"charged {whom}"


@charge.lookup
async def find_charge(call: Call[World], whom: str) -> Found[str] | Absent | Unknown:
    found = await call.deps.find(call.key)
    return ABSENT if found is None else Found(f"charged {found['args']['whom']}")


@effect(deadline=SOON, settle=SETTLE)
async def send(call: Call[World], what: str) -> str:
    await call.deps.arrive("send", call.key, what=what)
    return what


@send.lookup
async def find_sent(call: Call[World], what: str) -> Found[str] | Absent | Unknown:
    found = await call.deps.find(call.key)
    return ABSENT if found is None else Found(found["args"]["what"])


facts = Namespace("facts", Facts)
CALLS: Sequence[Declared[Any, ..., Any]] = [
    look,
    look_again,
    think,
    post,
    ping,
    set_flag,
    send,
    offer,
    charge,
]


class Everything(Machine[Job, World], calls=CALLS):
    """Every feature once."""

    looking = State(initial=True)
    side_by_side = State(deadline=timedelta(seconds=20))
    branching = State()
    failing = State(retry=Retry(attempts=3, delay=timedelta(milliseconds=5)))
    review = State()
    resting = State()
    billing = State()
    hopeless = State(retry=Retry(attempts=1))
    closing = State()
    choosing = State(parent=closing, initial=True)
    spending = State(parent=closing)
    lingering = State(parent=closing)
    cleaning = State()
    late = State(final=True)
    done = State(final=True)

    looked = looking.to(side_by_side, when=Job.settled)
    joined = side_by_side.to(side_by_side, when=Job.more_rounds) | side_by_side.to(
        branching, when=Job.all_rounds
    )
    branched = branching.to(failing)
    recovered = failing.to(review)
    approve = review.to(resting).on_signal(Approval)
    rested = resting.to(billing).after(timedelta(milliseconds=20))
    billed = billing.to(hopeless)
    unreachable_success = hopeless.to(done)
    gave_up = hopeless.to(closing).on_failure(RuntimeError)
    choose = choosing.to(spending).on_choice(Note)
    spend = spending.to(spending)
    used_up = spending.to(lingering).on_budget()
    stop = lingering.to(cleaning).on_cancel()
    overdue = closing.to(late).after(timedelta(minutes=5))
    cleaned = cleaning.to(done)

    @looking.handler
    async def look_at_it(self, data: Job, step: Step[World]) -> Fire:
        looked = await step.call(look, data.name)
        reused = await step.call(look_again, data.name)
        thought = await step.call(think, looked)
        await step.now()
        await step.uuid()
        await step.random()
        posted = await step.call(post, looked, f"{thought} {reused}")
        return self.looked(looked=looked, thought=thought, reused=reused, posted=posted)

    @side_by_side.handler
    async def join(self, data: Job, step: Step[World]) -> Fire:
        what = await step.call(look, "pair")
        pinged, flag = await asyncio.gather(step.call(ping, what), step.lane("flag").call(set_flag, what))
        sent = await step.call(send, "the same each round")
        counted = {f"round {len(data.pinged)}": len(sent)}
        return self.joined(pinged=[pinged], flags=[flag], counted=counted)

    @branching.handler
    async def left_branch(self, data: Job, step: Step[World]) -> Fire:
        left = await step.call(post, "left", await step.call(look, "left"))
        return self.branched(left=left, notes=[Note(text="left")])

    @branching.handler
    async def right_branch(self, data: Job, step: Step[World]) -> Fire:
        picture = await step.artifacts.put(f"picture of {data.name}".encode(), media_type="text/plain")
        again = await step.artifacts.get(picture)
        await step.memory.update(facts, data.name, count_one)
        return self.branched(picture=picture, notes=[Note(text=again.decode())])

    @failing.handler
    async def fail_once(self, data: Job, step: Step[World]) -> Fire:
        try:
            offered = await step.call(offer, "refused")
        except NotDone:
            offered = await step.call(offer, await step.call(look, "offer"))
        if step.attempt == 1:
            raise RuntimeError("the first attempt fails after its effect")
        return self.recovered(fallen_back=offered, notes=[Note(text=f"offered {offered}")])

    @approve.received
    def take_approval(self, data: Job, approval: Approval) -> Accept:
        return self.approve(approved_by=approval.by)

    @billing.handler
    async def bill(self, data: Job, step: Step[World]) -> Fire:
        known = await step.memory.get(facts, data.name) or Facts()
        charged = await step.call(charge.keyed(f"invoice {data.name}"), data.name)
        said = Message(role="assistant", content=charged)
        await step.memory.update(facts, f"last {data.name}", lambda _: Facts(seen=known.seen, last=charged))
        return self.billed(charged=charged, talk=[said])

    @hopeless.handler
    async def despair(self, data: Job, step: Step[World]) -> Fire:
        raise RuntimeError(f"no hope for {present(data.charged)}")

    @choosing.handler
    async def let_a_model_choose(self, data: Job, step: Step[World]) -> Fire:
        said = await step.call(think, "what to choose")
        (offered,) = step.choices()
        decided = step.decide(ToolCall(id="1", name=offered.name, arguments=f'{{"text": "{said}"}}'))
        assert isinstance(decided, Fire), decided.message()
        return decided.also(tokens=10)

    @choose.received
    def chose(self, data: Job, note: Note) -> Accept:
        return self.choose(chosen=note.text)

    @spending.handler
    async def spend_more(self, data: Job, step: Step[World]) -> Fire:
        return self.spend(tokens=1)  # the budget is used up before

    @stop.received
    def stopped(self, data: Job, asked: Cancellation) -> Accept:
        return self.stop(stopped_by=f"{asked.by}: {asked.reason}")

    @cleaning.handler
    async def clean(self, data: Job, step: Step[World]) -> Fire:
        await step.call(post, "cleaned", await step.call(look, "cleaned"))
        return self.cleaned()


def count_one(facts: Facts | None) -> Facts:
    return Facts(seen=1 if facts is None else facts.seen + 1)
