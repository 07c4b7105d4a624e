"""The summary that the examples compute, and the customers that they work on."""

import json
import re
import subprocess
import sys
from collections import Counter
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from examples import _extractive
from examples._customers import CUSTOMERS, Customer, Item, Mail, Order, load_customers
from examples._extractive import summarise

ALL = load_customers()
CALM = (
    "Morning light crosses the wooden floor.",
    "Grandmother knitted seven green scarves.",
    "Trains between those villages run hourly.",
    "Several pigeons live above our bakery.",
    "Paper boats float down toward harbour.",
    "Nobody remembers where umbrellas went.",
    "Clouds gathered quickly over Wednesday.",
    "Fresh bread smells best before dawn.",
    "Yellow bicycles lean against every fence.",
    "Children draw whales using chalk.",
)
"""Sentences that have no word in common and no haste."""

START = datetime.fromisoformat("2026-11-01T09:00:00+00:00")


def customer(*texts: str, senders: str = "", orders: tuple[Order, ...] = ()) -> Customer:
    """Somebody who wrote these texts; in ``senders``, ``s`` stands for the shop and ``a`` for a machine."""
    messages = tuple(
        Mail(
            at=START + timedelta(days=day),
            sender={"s": "Maya", "a": "auto"}.get(senders[day : day + 1], "customer"),
            channel="email",
            subject="",
            text=text,
        )
        for day, text in enumerate(texts)
    )
    return Customer(
        id="cust_99",
        name="Ada Example",
        email="ada@mail.example",
        since=date(2020, 1, 2),
        language="en",
        orders=orders,
        messages=messages,
    )


def order(number: str, status: str, currency: str, price: str, refunded: str | None = None) -> Order:
    item = Item(name="Kettle", quantity=2, price=Decimal(price))
    return Order(
        id=number,
        placed=date(2026, 10, 1),
        status=status,
        currency=currency,
        items=(item,),
        total=2 * Decimal(price),
        refunded=None if refunded is None else Decimal(refunded),
    )


def said(summary: str) -> list[str]:
    """The sentences that were picked, without date and sender."""
    return [line.split(": ", 1)[1] for line in summary.splitlines() if line.startswith("- ")]


def test_facts_are_computed_from_the_orders() -> None:
    orders = (
        order("A-2", "returned", "EUR", "5.25", refunded="10.50"),
        order("A-1", "delivered", "EUR", "10.50"),
        order("A-3", "shipped", "GBP", "3.00"),
        order("A-4", "delivered", "EUR", "1.00"),
    )
    assert summarise(customer(orders=orders)).splitlines() == [
        "Ada Example (cust_99), customer since 2020-01-02, language en.",
        "Orders: 2 delivered, 1 returned, 1 shipped, 23.00 EUR after refunds, 6.00 GBP after refunds.",
        "Open: A-3 of 2026-10-01, shipped: 2 x Kettle.",
        "Inbox: empty.",
    ]
    assert "Orders: none.\n" in summarise(customer())


def test_quotes_signatures_and_greetings_are_dropped() -> None:
    text = (
        "Dear all,\n\nThe blue kettle arrived with a dented handle yesterday.\n\n"
        "> the quoted kettle sentence must never appear here\n"
        "On Tue, Nov 24, 2026 at 8:31 AM Shop <help@shop.example> wrote:\n"
        "Kind regards\nAda\n\n--\nAda Example, somewhere beside the kettle factory\n"
    )
    assert said(summarise(customer(text))) == ["The blue kettle arrived with a dented handle yesterday."]
    phone = "The blue kettle arrived with a dented handle.\nSent from my telephone that nobody needs"
    assert said(summarise(customer(phone))) == ["The blue kettle arrived with a dented handle."]
    old = (
        "The blue kettle arrived with a dented handle.\n-----Original Message-----\nSomebody else wrote this"
    )
    assert said(summarise(customer(old))) == ["The blue kettle arrived with a dented handle."]


def test_markup_is_dropped() -> None:
    text = (
        "The&nbsp;blue kettle arrived dented &amp; scratched.<br><br>Could somebody replace this kettle?<BR/>"
    )
    spoken = said(summarise(customer(text.replace("<BR/>", ""))))
    assert spoken == ["The blue kettle arrived dented & scratched.", "Could somebody replace this kettle?"]


def test_repetitions_are_told_once() -> None:
    text = "The blue kettle arrived with a dented handle yesterday."
    summary = summarise(customer(text, text, f"Hello,\n{text}\n\n--\nAda", ""))
    assert said(summary) == [text]
    assert "Inbox: 4 messages, 3 dropped; last word: the customer, 2026-11-01." in summary
    near = "So the blue kettle arrived yesterday with a dented handle!"
    assert len(said(summarise(customer(text, near)))) == 1


def test_urgent_sentences_win() -> None:
    urgent = "There is a dangerous odour coming from somewhere."
    for place in range(len(CALM)):
        texts = [*CALM[:place], urgent, *CALM[place:]]
        assert urgent in said(summarise(customer(*texts)))


def test_what_the_conversation_is_about_wins() -> None:
    about = "The turntable motor hums."
    more = ("My turntable hums whenever somebody enters.", "Its motor hums without any turntable belt.")
    texts = [*CALM[:3], about, *CALM[3:6], *more, *CALM[6:]]
    assert about in said(summarise(customer(*texts)))
    assert about not in said(summarise(customer(*CALM[:3], about, *CALM[3:])))


def test_sentences_keep_their_order_and_are_few() -> None:
    picked = said(summarise(customer(*CALM)))
    assert len(picked) == 5
    assert [CALM.index(sentence) for sentence in picked] == sorted(CALM.index(each) for each in picked)
    assert {CALM[0], CALM[-1]} < set(picked), "how it began and where it stands"


def test_one_message_does_not_take_all_the_room() -> None:
    urgent = " ".join(sentence.replace(".", "!!") for sentence in CALM[1:])
    picked = said(summarise(customer(CALM[0], urgent)))
    assert sum("!!" in sentence for sentence in picked) == 2
    assert len(picked) == 3


def test_the_customers_words_weigh_more_than_the_shops() -> None:
    picked = said(summarise(customer(*CALM, senders=" s" * 5)))
    assert sum(CALM.index(sentence) % 2 for sentence in picked) < 2


def test_a_message_begins_with_what_it_is_about() -> None:
    pairs = [f"{CALM[n]} {CALM[n + 3]}" for n in (1, 2, 3)]
    assert said(summarise(customer(CALM[0], *pairs, CALM[9]))) == [*CALM[:4], CALM[9]]


def test_automatic_replies_say_nothing() -> None:
    summary = summarise(customer(CALM[0], CALM[1], senders=" a"))
    assert said(summary) == [CALM[0]]
    assert "Inbox: 2 messages, 1 dropped; last word: the customer, 2026-11-01." in summary


def test_a_sentence_is_bounded() -> None:
    [sentence] = said(summarise(customer("word " * 10 + "another thing entirely " * 10_000)))
    assert len(sentence) == 280


@pytest.mark.parametrize(
    "text", ["", " \n\t", "👍", "???", "\x00", "> only quoted words stand here", "<br>" * 50]
)
def test_texts_without_a_sentence(text: str) -> None:
    assert said(summarise(customer(text))) == []


def test_the_same_customer_gives_the_same_summary_in_every_process() -> None:
    program = (
        "import hashlib\n"
        "from examples._customers import load_customers\n"
        "from examples._extractive import summarise\n"
        "text = '\\n'.join(map(summarise, load_customers().values()))\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )

    def digest(seed: str) -> str:
        root = Path(_extractive.__file__).parents[1]
        command = [sys.executable, "-c", program]
        ran = subprocess.run(
            command, cwd=root, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        return ran.stdout

    assert digest("1") == digest("2")


@pytest.mark.parametrize("who", ALL.values(), ids=lambda each: each.id)
def test_every_customer_is_summarised(who: Customer) -> None:
    summary = summarise(who)
    assert summary == summarise(who)
    assert summary.startswith(f"{who.name} ({who.id}), customer since {who.since}")
    assert len(summary) < 2500
    own = " ".join(" ".join(mail.text.replace("&nbsp;", " ").split()) for mail in who.messages)
    assert all(sentence in own for sentence in said(summary))
    assert (len(said(summary)) >= 3) == bool(who.messages)
    assert not re.search(r"^- .*: (>|--|Sent from|Gesendet von)", summary, re.MULTILINE)


def test_a_summary_that_a_reader_would_give() -> None:
    summary = summarise(ALL["cust_06"])
    assert "649.00 was refunded today in full" in summary
    assert "chargeback" in summary
    assert "Orders: 1 delivered, 0.00 EUR after refunds." in summary


def test_the_customers() -> None:
    assert list(ALL) == [f"cust_{n:02}" for n in range(1, 51)]
    sizes = Counter(len(who.messages) for who in ALL.values())
    assert sizes.pop(0) == 1, "one inbox is empty"
    assert min(sizes) >= 3
    assert max(sizes) <= 15
    numbers = [each.id for who in ALL.values() for each in who.orders]
    assert len(numbers) == len(set(numbers))
    assert len({who.name for who in ALL.values()}) == len({who.email for who in ALL.values()}) == 50
    for who in ALL.values():
        for each in who.orders:
            assert each.total == sum((item.price * item.quantity for item in each.items), Decimal())
            assert (each.refunded or 0) <= each.total
    assert all(mail.at.tzinfo for who in ALL.values() for mail in who.messages)


def test_nobody_repeats_another() -> None:
    """Written one by one: no text stands in two inboxes."""
    owners: dict[str, set[str]] = {}
    for who in ALL.values():
        for mail in who.messages:
            if len(mail.text) > 20:
                owners.setdefault(mail.text, set()).add(who.id)
    assert [text for text, ids in owners.items() if len(ids) > 1] == []


def test_the_file_is_plain_json() -> None:
    assert 150_000 <= CUSTOMERS.stat().st_size <= 300_000
    assert set(json.loads(CUSTOMERS.read_text(encoding="utf-8"))) == {"customers"}
