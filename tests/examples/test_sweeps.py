"""Each example survives a kill at every boundary that it comes to."""

import hashlib
from pathlib import Path

import attrs
import pytest

from examples._customers import load_customers
from examples._models import Scripted
from examples.invoice_desk import Answer, InvoiceDesk
from examples.invoice_desk import Case as InvoiceCase
from examples.invoice_desk import Deps as InvoiceDeps
from examples.research import DOCS, Research, Work
from examples.research import Deps as ResearchDeps
from examples.tour import Deps as TourDeps
from examples.tour import Tour, Trip, Word
from examples.triage import Case, Triage
from examples.triage import Deps as TriageDeps
from perdure import ArtifactRef
from perdure.runtime.testing import Receiver, World, assert_arrivals, crash_sweep

pytestmark = pytest.mark.anyio

INVOICES = Path(__file__).parents[2] / "examples" / "invoices"


def last_number(answer: str) -> int:
    """The number at the end of a receiver's answer."""
    return int(answer.rpartition("-")[2])


@attrs.frozen
class Tickets:
    """The world's receiver as triage sees it: it opens a ticket each time, and can be asked."""

    receiver: Receiver

    async def open(self, key: str, customer: str, about: str) -> int:
        return last_number(await self.receiver.send(key, customer, about))

    async def find(self, key: str) -> int | None:
        found = await self.receiver.find(key)
        return None if found is None else last_number(found)


@attrs.frozen
class Agency:
    """Three receivers as the tour sees them."""

    world: World

    def _receiver(self, kind: str) -> Receiver:
        return self.world.receiver(kind, honours_keys=kind == "train")

    async def order(self, kind: str, key: str, what: str) -> int:
        return last_number(await self._receiver(kind).send(key, what))

    async def find(self, kind: str, key: str) -> int | None:
        found = await self._receiver(kind).find(key)
        return None if found is None else last_number(found)


async def test_triage(world: World) -> None:
    deps = TriageDeps(
        customers=load_customers(), tickets=Tickets(world.receiver("tickets")), model=Scripted()
    )
    sweep = await crash_sweep(Triage, Case(customer_id="cust_02"), deps=deps)
    sweep.check()
    assert_arrivals(world, "tickets", 1)


async def test_tour(world: World) -> None:
    sweep = await crash_sweep(
        Tour,
        Trip(city="Ghent"),
        deps=TourDeps(agency=Agency(world)),
        signals=[(Tour.change, Word(by="ada", wish="slower")), (Tour.agree, Word(by="ada"))],
        may_differ=["reference", "ended"],
    )
    sweep.check()
    assert {
        kind: len([a for a in world.arrivals if a.name == kind]) for kind in ("train", "room", "card")
    } == {
        "train": 1,
        "room": 1,
        "card": 1,
    }


@attrs.frozen
class Books:
    """The books honour keys."""

    receiver: Receiver

    async def book(self, key: str, supplier: str, number: str, amount: str) -> int:
        return last_number(await self.receiver.send(key, supplier, number, amount))


async def test_the_invoice_desk(world: World) -> None:
    text = (INVOICES / "1_known.txt").read_bytes().replace(b"412.50", b"41250.00")
    digest = hashlib.sha256(text).hexdigest()
    upload = ArtifactRef(id="art_1", sha256=digest, media_type="text/plain", size_bytes=len(text))
    sweep = await crash_sweep(
        InvoiceDesk,
        InvoiceCase(upload=upload),
        deps=InvoiceDeps(books=Books(world.receiver("books", honours_keys=True))),
        uploads=[text],
        signals=[(InvoiceDesk.confirm, Answer(by="ines"))],
    )
    sweep.check()
    assert_arrivals(world, "books", 1)


async def test_research(world: World) -> None:
    sweep = await crash_sweep(
        Research, Work(question="When is a thread parked as diverged?"), deps=ResearchDeps(docs=DOCS)
    )
    sweep.check()
