"""Summarise a customer, have a person approve it within a day, publish it.

    perdure serve examples.approval_desk:runtime &
    perdure start examples.approval_desk:runtime ApprovalDesk --thread may --data '{"customer_id": "cust_01"}'
    perdure signal may approve --data '{"by": "ada"}' --id approval-1

The person is reminded after eight hours. The approval may also come with the start, or before it: whoever
trusts a customer approves in advance.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import attrs
from anyio import to_thread

from examples._board import Board
from examples._customers import Customer, load_customers
from examples._extractive import summarise
from perdure import (
    ABSENT,
    Absent,
    Accept,
    ArtifactRef,
    Call,
    Fire,
    Found,
    Machine,
    Namespace,
    Retry,
    Runtime,
    State,
    Step,
    Unknown,
    effect,
    present,
    read,
    record,
)

REMINDED = timedelta(hours=8)
EXPIRED = timedelta(days=1)


class NoticeBoard(Protocol):
    """Where summaries and reminders hang: a key that is there already is put up no second time."""

    async def put_up(self, key: str, about: str, text: str) -> int: ...
    async def find(self, key: str) -> int | None: ...


@attrs.frozen(kw_only=True)
class Deps:
    """What the calls need, and the runtime is given."""

    customers: Mapping[str, Customer]
    board: NoticeBoard


@record
class Approval:
    """Somebody has read the summary, and lets it be published."""

    by: str


@record
class Rejection:
    """Somebody has read it, and does not."""

    by: str
    why: str


@record
class Brief:
    """The machine's data."""

    customer_id: str
    summary: ArtifactRef | None = None
    approved_by: str | None = None
    rejected: str | None = None
    reminder: int | None = None
    notice: int | None = None

    @property
    def ready(self) -> bool:
        """There is something to look at."""
        return self.summary is not None


@record
class CustomerFacts:
    """What is remembered of a customer when the summary is out."""

    last_summary: ArtifactRef
    approved_by: str


customers = Namespace("published", CustomerFacts)


@read
async def get_customer(call: Call[Deps], customer_id: str) -> Customer:
    """The record; only looks, so after a kill it is simply read again."""
    return call.deps.customers[customer_id]


@read(keep=True)
async def draft_summary(call: Call[Deps], customer: Customer) -> str:
    """Costly, as a model's answer is: once it is recorded, every resume is served the same text."""
    return await to_thread.run_sync(summarise, customer)


@effect(idempotent=True, deadline=timedelta(seconds=10))
async def remind(call: Call[Deps], customer_id: str) -> int:
    """The board remembers keys, so a reminder that is in doubt is simply sent again."""
    return await call.deps.board.put_up(call.key, customer_id, "a summary waits for your approval")


@effect(deadline=timedelta(seconds=10))
async def publish(call: Call[Deps], customer_id: str, text: str) -> int:
    """What everybody sees. Before it is put up again, the board is asked."""
    return await call.deps.board.put_up(call.key, customer_id, text)


@publish.lookup
async def find_published(call: Call[Deps], customer_id: str, text: str) -> Found[int] | Absent | Unknown:
    """How recovery asks whether the notice with this key hangs there."""
    number = await call.deps.board.find(call.key)
    return ABSENT if number is None else Found(number)


class ApprovalDesk(Machine[Brief, Deps], version=1, calls=[get_customer, draft_summary, remind, publish]):
    """Summarise a customer, have a person approve it, publish it."""

    drafting = State(initial=True, retry=Retry(attempts=3), deadline=timedelta(minutes=5))
    review = State()
    fresh = State(parent=review, initial=True)
    reminding = State(parent=review)
    reminded = State(parent=review)
    publishing = State()
    done = State(final=True)
    rejected = State(final=True)
    expired = State(final=True)

    drafted = drafting.to(review, when=Brief.ready)
    gave_up = drafting.to(rejected).on_failure()
    overdue = fresh.to(reminding).after(REMINDED)
    sent = reminding.to(reminded)
    approve = review.to(publishing).on_signal(Approval)
    reject = review.to(rejected).on_signal(Rejection)
    too_late = review.to(expired).after(EXPIRED)
    published = publishing.to(done)

    @drafting.handler
    async def draft(self, data: Brief, step: Step[Deps]) -> Fire:
        customer = await step.call(get_customer, data.customer_id)
        text = await step.call(draft_summary, customer)
        return self.drafted(summary=await step.artifacts.put(text.encode(), media_type="text/plain"))

    @reminding.handler
    async def send_reminder(self, data: Brief, step: Step[Deps]) -> Fire:
        return self.sent(reminder=await step.call(remind, data.customer_id))

    @approve.received
    def approved(self, data: Brief, approval: Approval) -> Accept:
        return self.approve(approved_by=approval.by)

    @reject.received
    def turned_down(self, data: Brief, rejection: Rejection) -> Accept:
        return self.reject(rejected=f"{rejection.by}: {rejection.why}")

    @publishing.handler
    async def publish_it(self, data: Brief, step: Step[Deps]) -> Fire:
        summary = present(data.summary)
        text = (await step.artifacts.get(summary)).decode()
        notice = await step.call(publish, data.customer_id, text)
        facts = CustomerFacts(last_summary=summary, approved_by=present(data.approved_by))
        await step.memory.put(customers, data.customer_id, facts)
        return self.published(notice=notice)


runtime = Runtime(
    machines=[ApprovalDesk],
    deps=Deps(customers=load_customers(), board=Board(path=Path("board.db"))),
    store="sqlite:///perdure.db",
)
