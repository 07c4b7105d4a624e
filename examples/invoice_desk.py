"""An invoice comes in as a file, is checked, asked about where something is odd, booked once, and remembered.

    python -m examples.invoice_desk examples/invoices/*.txt

Four kinds of state, each with its own lifetime:

    conversation  what the desk and the clerk said about a supplier   as long as the session, the supplier's
    task          where this invoice stands                           the thread's
    memory        what is known of a supplier                         until somebody deletes it
    artifacts     the file that came in; the slip that was made       thirty days; the workspace's
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Protocol

import anyio
import attrs

from examples._books import Books
from perdure import (
    Accept,
    ArtifactRef,
    Call,
    Conversation,
    Fire,
    Machine,
    Message,
    Namespace,
    Runtime,
    StartConflict,
    State,
    Step,
    Thread,
    effect,
    present,
    record,
)

KEPT = timedelta(days=30)
"""How long a file that came in is kept."""
LARGE = Decimal(1000)
"""From a supplier who is new, nobody pays more without asking."""


class Bookkeeping(Protocol):
    """Who pays; a key that was booked before is booked no second time."""

    async def book(self, key: str, supplier: str, number: str, amount: str) -> int: ...


@attrs.frozen(kw_only=True)
class Deps:
    """What the calls need, and the runtime is given."""

    books: Bookkeeping


@record
class Invoice:
    """What the file says."""

    supplier: str
    number: str
    account: str
    amount: Decimal
    currency: str
    due: date


@record
class Answer:
    """What the clerk says to a question."""

    by: str
    text: str = ""


@record
class Case:
    """The machine's data: the task."""

    upload: ArtifactRef
    invoice: Invoice | None = None
    doubt: str | None = None
    talk: Annotated[Sequence[Message], Conversation()] = ()
    entry: int | None = None
    slip: ArtifactRef | None = None

    @property
    def legible(self) -> bool:
        """The file could be read."""
        return self.invoice is not None

    @property
    def doubtful(self) -> bool:
        """Something about it has to be asked."""
        return self.doubt is not None


@record
class Supplier:
    """What is remembered of a supplier."""

    account: str
    invoices: int
    last: str


suppliers = Namespace("supplier", Supplier)


@effect(idempotent=True)
async def book(call: Call[Deps], supplier: str, number: str, amount: str) -> int:
    """Changes the world: the books remember the key, so that it may be sent again."""
    return await call.deps.books.book(call.key, supplier, number, amount)


class InvoiceDesk(Machine[Case, Deps], version=1, calls=[book]):
    """Book an invoice once; ask a clerk where something is odd."""

    reading = State(initial=True)
    checking = State()
    asking = State()
    booking = State()
    filing = State()
    done = State(final=True)
    rejected = State(final=True)

    was_read = reading.to(checking, when=Case.legible) | reading.to(rejected)
    checked = checking.to(asking, when=Case.doubtful) | checking.to(booking)
    confirm = asking.to(booking).on_signal(Answer)
    refuse = asking.to(rejected).on_signal(Answer)
    unanswered = asking.to(rejected).after(timedelta(days=7))
    booked = booking.to(filing)
    filed = filing.to(done)

    @reading.handler
    async def open_it(self, data: Case, step: Step[Deps]) -> Fire:
        return self.was_read(invoice=parse(await step.artifacts.get(data.upload)))

    @checking.handler
    async def check(self, data: Case, step: Step[Deps]) -> Fire:
        invoice = present(data.invoice)
        known = await step.memory.get(suppliers, invoice.supplier)
        doubt = doubt_about(invoice, known)
        if doubt is None:
            return self.checked()
        return self.checked(doubt=doubt, talk=[Message(role="assistant", content=doubt)])

    @confirm.received
    def confirmed(self, data: Case, answer: Answer) -> Accept:
        said = Message(role="user", name=answer.by, content=answer.text or "Yes.")
        return self.confirm(doubt=None, talk=[said])

    @refuse.received
    def refused(self, data: Case, answer: Answer) -> Accept:
        return self.refuse(talk=[Message(role="user", name=answer.by, content=answer.text or "No.")])

    @booking.handler
    async def book_it(self, data: Case, step: Step[Deps]) -> Fire:
        # The key names the invoice, not this thread: sent in twice, it is booked once.
        invoice = present(data.invoice)
        once = book.keyed(f"{invoice.supplier}/{invoice.number}")
        amount = f"{invoice.amount} {invoice.currency}"
        return self.booked(entry=await step.call(once, invoice.supplier, invoice.number, amount))

    @filing.handler
    async def file_it(self, data: Case, step: Step[Deps]) -> Fire:
        invoice = present(data.invoice)
        text = (
            f"{invoice.supplier} {invoice.number}: {invoice.amount} {invoice.currency}, entry {data.entry}\n"
        )
        slip = await step.artifacts.put(text.encode(), media_type="text/plain", derived_from=[data.upload])

        def known(before: Supplier | None) -> Supplier:
            count = 0 if before is None else before.invoices
            return Supplier(account=invoice.account, invoices=count + 1, last=invoice.number)

        await step.memory.update(suppliers, invoice.supplier, known)
        return self.filed(slip=slip)


def doubt_about(invoice: Invoice, known: Supplier | None) -> str | None:
    """What a clerk has to be asked; None: nothing."""
    if known is None and invoice.amount > LARGE:
        return f"{invoice.supplier} is new here and wants {invoice.amount} {invoice.currency}. Pay it?"
    if known is not None and known.account != invoice.account:
        return f"{invoice.supplier} had account {known.account}; this invoice says {invoice.account}. Pay it?"
    return None


def parse(content: bytes) -> Invoice | None:
    """The invoice that a file of ``name: value`` lines holds; None where it holds none."""
    lines = [line.partition(":") for line in content.decode("utf-8", "replace").splitlines()]
    said = {name.strip().lower(): value.strip() for name, colon, value in lines if colon}
    try:
        amount, currency = said["amount"].split()
        return Invoice(
            supplier=said["supplier"],
            number=said["invoice"],
            account=said["account"],
            amount=Decimal(amount),
            currency=currency,
            due=date.fromisoformat(said["due"]),
        )
    except (KeyError, ValueError, InvalidOperation):
        return None


async def receive(desk: Runtime[Deps], content: bytes) -> Thread[InvoiceDesk, Case]:
    """Keep a file that came in for thirty days, and start its case; the same file is the same case."""
    thread_id = f"invoice-{hashlib.sha256(content).hexdigest()[:12]}"
    upload = await desk.artifacts.put(content, media_type="text/plain", expires=KEPT)
    invoice = parse(content)
    session = None if invoice is None else f"supplier:{invoice.supplier}"
    try:
        return await desk.start(InvoiceDesk, Case(upload=upload), thread_id=thread_id, session=session)
    except StartConflict:  # it came in before, as another upload
        return desk.thread(InvoiceDesk, thread_id=thread_id)


runtime = Runtime(
    machines=[InvoiceDesk],
    deps=Deps(books=Books(path=Path("books.db"))),
    store="sqlite:///perdure.db",
    artifacts="file:perdure-artifacts",
)


async def main(paths: Sequence[str]) -> None:
    """Receive files, one after the other, and say where each stands."""
    async with runtime:
        for path in paths:
            thread = await receive(runtime, await anyio.Path(path).read_bytes())
            await thread.settled()
            print(await thread.why())


if __name__ == "__main__":
    anyio.run(main, sys.argv[1:])
