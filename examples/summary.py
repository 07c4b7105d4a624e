"""Summarise a customer: load the record, summarise its messages, store the summary, remember when.

    python examples/_objects.py --dir objects --port 8321 &
    perdure run examples.summary:runtime Summary --data '{"customer_id": "cust_01"}' --thread cust_01

Each transition is a checkpoint: A follows the load, B the summary, C the object, D the memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta

import attrs
from anyio import to_thread

from examples._customers import Customer, load_customers
from examples._extractive import summarise
from examples._objects import ObjectStorage, Refused, Unreachable
from perdure import (
    ABSENT,
    Absent,
    ArtifactRef,
    Call,
    Fire,
    Found,
    Machine,
    Namespace,
    Runtime,
    State,
    Step,
    Unknown,
    effect,
    present,
    read,
    record,
)


@attrs.frozen(kw_only=True)
class Deps:
    """What the calls need, and the runtime is given."""

    customers: Mapping[str, Customer]
    storage: ObjectStorage


@record
class Receipt:
    """What the object storage says that it holds."""

    name: str
    sha256: str


@record
class Brief:
    """The machine's data."""

    customer_id: str
    customer: Customer | None = None
    summary: ArtifactRef | None = None
    stored: Receipt | None = None
    remembered: datetime | None = None


@record
class CustomerFacts:
    """What is remembered of a customer when the thread has ended."""

    last_summary: ArtifactRef
    summarised: datetime
    summaries: int


customers = Namespace("customer", CustomerFacts)


@read
async def load_customer(call: Call[Deps], customer_id: str) -> Customer:
    """The record; only looks, so after a kill it is simply read again."""
    return call.deps.customers[customer_id]


@read(keep=True)
async def summarise_messages(call: Call[Deps], customer: Customer) -> str:
    """Costly, as a model's answer is: once it is recorded, every resume is served the same text."""
    return await to_thread.run_sync(summarise, customer)


@effect(not_done=(Unreachable, Refused), deadline=timedelta(seconds=10), settle=timedelta(seconds=1))
async def put_object(call: Call[Deps], name: str, text: str) -> Receipt:
    """Changes the world: an intent is recorded before it, its outcome before the thread goes on."""
    stored = await call.deps.storage.put(name, text.encode(), key=call.key)
    return Receipt(name=stored.name, sha256=stored.sha256)


@put_object.lookup
async def find_object(call: Call[Deps], name: str, text: str) -> Found[Receipt] | Absent | Unknown:
    """How a resume asks the storage whether the put with this key happened."""
    stored = await call.deps.storage.find(call.key)
    return ABSENT if stored is None else Found(Receipt(name=stored.name, sha256=stored.sha256))


class Summary(Machine[Brief, Deps], version=1, calls=[load_customer, summarise_messages, put_object]):
    """Summarise a customer's messages, store the summary, and remember when that was."""

    loading = State(initial=True)
    summarising = State()
    storing = State()
    remembering = State()
    done = State(final=True)

    loaded = loading.to(summarising)
    summarised = summarising.to(storing)
    put = storing.to(remembering)
    remembered = remembering.to(done)

    @loading.handler
    async def load(self, data: Brief, step: Step[Deps]) -> Fire:
        return self.loaded(customer=await step.call(load_customer, data.customer_id))

    @summarising.handler
    async def summarise(self, data: Brief, step: Step[Deps]) -> Fire:
        text = await step.call(summarise_messages, present(data.customer))
        return self.summarised(summary=await step.artifacts.put(text.encode(), media_type="text/plain"))

    @storing.handler
    async def store(self, data: Brief, step: Step[Deps]) -> Fire:
        text = (await step.artifacts.get(present(data.summary))).decode()
        return self.put(stored=await step.call(put_object, f"summaries/{data.customer_id}.txt", text))

    @remembering.handler
    async def remember(self, data: Brief, step: Step[Deps]) -> Fire:
        now, summary = await step.now(), present(data.summary)

        def counted(facts: CustomerFacts | None) -> CustomerFacts:
            before = 0 if facts is None else facts.summaries
            return CustomerFacts(last_summary=summary, summarised=now, summaries=before + 1)

        await step.memory.update(customers, data.customer_id, counted)
        return self.remembered(remembered=now)


runtime = Runtime(
    machines=[Summary],
    deps=Deps(
        customers=load_customers(),
        storage=ObjectStorage(int(os.environ.get("OBJECT_STORAGE_PORT", "8321"))),
    ),
    store="sqlite:///perdure.db",
    artifacts="file:perdure-artifacts",
)
