"""``examples/invoice_desk.py``: one entry an invoice, and four kinds of state with four lifetimes."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from examples._books import Books
from examples.invoice_desk import KEPT, Answer, Case, Deps, InvoiceDesk, parse, receive, suppliers
from perdure import Runtime, Thread, present
from perdure.stores import Artifacts, Memory, MemoryStore

pytestmark = pytest.mark.anyio

INVOICES = Path(__file__).parents[2] / "examples" / "invoices"
KNOWN = (INVOICES / "1_known.txt").read_bytes()
CHANGED = (INVOICES / "2_changed_account.txt").read_bytes()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Runtime[Deps]]:
    deps = Deps(books=Books(path=tmp_path / "books.db"))
    async with Runtime(machines=[InvoiceDesk], deps=deps, store=MemoryStore(), artifacts="memory:") as desk:
        yield desk


def entries(desk: Runtime[Deps]) -> list[tuple[str, str, str]]:
    books = desk.deps.books
    assert isinstance(books, Books)
    with closing(sqlite3.connect(books.path)) as connection:
        return connection.execute("SELECT supplier, number, amount FROM entries ORDER BY id").fetchall()


async def state_of(thread: Thread[InvoiceDesk, Case]) -> str:
    await thread.settled()
    return await thread.state()


async def test_an_invoice_of_a_supplier_is_booked_once_however_often_it_comes_in(desk: Runtime[Deps]) -> None:
    assert await state_of(await receive(desk, KNOWN)) == "done"
    assert await state_of(await receive(desk, KNOWN)) == "done"
    assert await state_of(await receive(desk, KNOWN + b"\n")) == "done"  # another file, the same invoice
    assert entries(desk) == [("Harbour Timber", "HT-2291", "412.50 GBP")]


async def test_another_account_is_asked_about_and_the_answer_moves_it(desk: Runtime[Deps]) -> None:
    await (await receive(desk, KNOWN)).result()
    thread = await receive(desk, CHANGED)
    assert await state_of(thread) == "asking"
    assert len(entries(desk)) == 1
    await thread.signal(InvoiceDesk.confirm, Answer(by="ines", text="They moved banks."), id="1")
    ended = await thread.result()
    assert (ended.state, ended.data.doubt, len(entries(desk))) == ("done", None, 2)
    third = await receive(desk, CHANGED.replace(b"HT-2307", b"HT-2308"))
    seen = (await third.result()).data
    said = [(message.role, message.name, message.content) for message in seen.talk]
    # The session is the supplier's: the third invoice's thread sees what was said about the second.
    assert [role for role, _, _ in said] == ["assistant", "user"]
    assert said[1] == ("user", "ines", "They moved banks.")


async def test_what_is_refused_is_not_booked(desk: Runtime[Deps]) -> None:
    await (await receive(desk, KNOWN)).result()
    thread = await receive(desk, CHANGED)
    await thread.signal(InvoiceDesk.refuse, Answer(by="ines"), id="1")
    assert (await thread.result()).state == "rejected"
    assert len(entries(desk)) == 1


async def test_a_large_first_invoice_is_asked_about(desk: Runtime[Deps]) -> None:
    assert await state_of(await receive(desk, KNOWN.replace(b"412.50", b"41250.00"))) == "asking"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"Amount: lots", KNOWN.replace(b"412.50", b"four")])
async def test_what_is_no_invoice_is_rejected(desk: Runtime[Deps], content: bytes) -> None:
    assert parse(content) is None
    assert await state_of(await receive(desk, content)) == "rejected"


async def test_each_kind_of_state_has_its_own_lifetime(desk: Runtime[Deps]) -> None:
    ended = await (await receive(desk, KNOWN)).result()
    store = desk.store
    assert isinstance(store, MemoryStore)
    async with store:
        rows = (await store.page(Artifacts(workspace="default"))).rows
        [fact] = (await store.page(Memory(workspace="default"))).rows
    upload = next(row for row in rows if row.id == ended.data.upload.id)
    slip = next(row for row in rows if row.id == present(ended.data.slip).id)
    assert present(upload.expires) - upload.created == KEPT.total_seconds() * 1e6
    assert slip.expires is None
    assert upload.id in slip.derived_from
    assert (fact.expires, fact.key) == (None, "Harbour Timber")
    assert suppliers.codec.decode(fact.value or b"", "memory").invoices == 1
