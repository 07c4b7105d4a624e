"""Triage a customer's inbox: a model decides, up to three tools run side by side, and it decides again.

    perdure run examples.triage:runtime Triage --data '{"customer_id": "cust_02"}' --thread cust_02

The model is a script, unless ``OPENAI_BASE_URL`` names an OpenAI-compatible endpoint. What it may do is what
the machine offers: the tools, and the events ``settle`` and ``hand_over``. All else goes back to it as a
refusal. Ten rounds or 30,000 tokens end it, whatever it says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Protocol

import attrs
import msgspec

from examples._customers import Customer, Mail, Order, load_customers
from examples._models import Answer, Model, model_from_environment
from examples._tickets import Tickets
from perdure import (
    ABSENT,
    Absent,
    Accept,
    Budget,
    Call,
    Choice,
    Conversation,
    Cost,
    Fire,
    Found,
    Machine,
    Message,
    Refusal,
    Retry,
    Runtime,
    State,
    Step,
    ToolCall,
    Unknown,
    anywhere,
    arguments,
    effect,
    read,
    record,
    tool,
)
from perdure.machines import Declared

AT_ONCE = 3
"""So many tools run side by side; the model is told to ask again for the others."""
INSTRUCTIONS = (
    "You triage the inbox of a shop. Look at the customer's messages and orders, open a ticket where they "
    "wait for something that the shop must do, then settle the case. Hand it over where you cannot tell."
)


class TicketDesk(Protocol):
    """Where tickets are opened: each time it is told to, and it can be asked by key."""

    async def open(self, key: str, customer: str, about: str) -> int: ...
    async def find(self, key: str) -> int | None: ...


@attrs.frozen(kw_only=True)
class Deps:
    """What the calls need, and the runtime is given."""

    customers: Mapping[str, Customer]
    tickets: TicketDesk
    model: Model


@record
class Verdict:
    """The case needs nothing more than this."""

    topic: str
    urgent: bool = False


@record
class Reason:
    """Why a person has to look at it."""

    why: str


@record
class Case:
    """The machine's data."""

    customer_id: str
    talk: Annotated[Sequence[Message], Conversation()] = ()
    wanted: Sequence[ToolCall] = ()
    """The tools that the model asked for last."""
    verdict: Verdict | None = None
    handed_over: str | None = None
    rounds: Annotated[int, Cost()] = 0
    tokens: Annotated[int, Cost()] = 0
    budget: Budget = Budget(rounds=10, tokens=30_000)


@read(keep=True)
async def ask_model(call: Call[Deps], talk: Sequence[Message], tools: Sequence[Choice]) -> Answer:
    """Paid for: once its answer is recorded, every resume is served it. What raises here is asked again."""
    return await call.deps.model.complete(talk, tools)


@read
async def read_messages(call: Call[Deps], customer_id: str, newest: int = 3) -> Sequence[Mail]:
    """The newest messages of a customer's inbox, oldest first."""
    return call.deps.customers[customer_id].messages[-newest:]


@read
async def list_orders(call: Call[Deps], customer_id: str) -> Sequence[Order]:
    """A customer's orders, with what was in them and what became of them."""
    return call.deps.customers[customer_id].orders


@effect
async def open_ticket(call: Call[Deps], customer_id: str, about: str, order_id: str | None = None) -> int:
    """Open a ticket for the people of the shop; gives its number."""
    subject = about if order_id is None else f"{about} ({order_id})"
    return await call.deps.tickets.open(call.key, customer_id, subject)


@open_ticket.lookup
async def find_ticket(
    call: Call[Deps], customer_id: str, about: str, order_id: str | None = None
) -> Found[int] | Absent | Unknown:
    """How a resume asks whether the ticket with this key was opened."""
    number = await call.deps.tickets.find(call.key)
    return ABSENT if number is None else Found(number)


TOOLS: Mapping[str, Declared[Deps, ..., Any]] = {
    each.name: each for each in (read_messages, list_orders, open_ticket)
}


class Triage(Machine[Case, Deps], version=1, calls=[ask_model, read_messages, list_orders, open_ticket]):
    """Let a model decide what a customer's inbox needs, within what it may do and may cost."""

    deciding = State(initial=True, retry=Retry(attempts=4, delay=timedelta(milliseconds=200)))
    acting = State()
    settled = State(final=True)
    with_people = State(final=True)
    spent = State(final=True)

    act = deciding.to(acting)
    acted = acting.to(deciding)
    again = deciding.to(deciding)
    settle = deciding.to(settled).on_choice(Verdict)
    hand_over = deciding.to(with_people).on_choice(Reason)
    used_up = deciding.to(spent).on_budget()
    stop = anywhere.to(with_people).on_cancel()

    @deciding.handler
    async def decide(self, data: Case, step: Step[Deps]) -> Fire:
        start = () if data.talk else _opening(data.customer_id)
        offered = [*step.choices(), *(tool(each) for each in TOOLS.values())]
        answer = await step.call(ask_model, [*data.talk, *start], offered)
        said, tokens = [*start, answer.message], answer.tokens
        calls = answer.message.tool_calls
        if not calls:
            told = Message(role="user", content="Call a tool: settle or hand_over where you are done.")
            return self.again(talk=[*said, told], rounds=1, tokens=tokens)
        if all(call.name in TOOLS for call in calls):
            return self.act(talk=said, wanted=calls, rounds=1, tokens=tokens)
        decision = step.decide(calls[0])
        if isinstance(decision, Refusal) or len(calls) > 1:
            refused = [_refused(step, call) for call in calls]
            return self.again(talk=[*said, *refused], rounds=1, tokens=tokens)
        return decision.also(talk=said, rounds=1, tokens=tokens)

    @acting.handler
    async def run_tools(self, data: Case, step: Step[Deps]) -> Fire:
        running = [_run(step, call) for call in data.wanted[:AT_ONCE]]
        results = await asyncio.gather(*running)
        late = [
            Refusal(call_id=call.id, text=f"not run: at most {AT_ONCE} at once; ask again").message()
            for call in data.wanted[AT_ONCE:]
        ]
        return self.acted(talk=[*results, *late], wanted=())

    @settle.received
    def settled_as(self, data: Case, verdict: Verdict) -> Accept:
        """The case is understood, and whatever the shop must do has a ticket."""
        return self.settle(verdict=verdict)

    @hand_over.received
    def handed_over_because(self, data: Case, reason: Reason) -> Accept:
        """You cannot tell what the customer needs: a person looks at the case."""
        return self.hand_over(handed_over=reason.why)


def _opening(customer_id: str) -> tuple[Message, ...]:
    return Message(role="system", content=INSTRUCTIONS), Message(role="user", content=customer_id)


def _refused(step: Step[Deps], call: ToolCall) -> Message:
    """Why a call was not taken, for the model to read."""
    decision = None if call.name in TOOLS else step.decide(call)
    if isinstance(decision, Refusal):
        return decision.message()
    return Refusal(call_id=call.id, text="tools run first, and an event comes alone: ask again").message()


async def _run(step: Step[Deps], call: ToolCall) -> Message:
    """What a tool answered, or why it did not."""
    given = arguments(call, TOOLS[call.name])
    if isinstance(given, Refusal):
        return given.message()
    found: Any = await step.call(TOOLS[call.name], **given)
    said = msgspec.json.encode(found).decode()
    return Message(role="tool", name=call.name, tool_call_id=call.id, content=said)


runtime = Runtime(
    machines=[Triage],
    deps=Deps(
        customers=load_customers(),
        tickets=Tickets(path=Path("tickets.db")),
        model=model_from_environment(),
    ),
    store="sqlite:///perdure.db",
)
