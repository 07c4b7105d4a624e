"""The customers that the examples work on: 50 invented people, their orders and their messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from perdure.machines import record

CUSTOMERS = Path(__file__).with_name("customers.json")


@record
class Item:
    name: str
    quantity: int
    price: Decimal


@record
class Order:
    id: str
    placed: date
    status: str
    """processing, shipped, delivered, returned, cancelled or lost."""
    currency: str
    items: Sequence[Item]
    total: Decimal
    refunded: Decimal | None = None


@record
class Mail:
    """A message in a customer's inbox, from the customer or to them."""

    at: datetime
    sender: str
    """``customer``, ``auto`` for a machine's reply, or the name of who answered."""
    channel: str
    subject: str
    text: str


@record
class Customer:
    id: str
    name: str
    email: str
    since: date
    language: str
    orders: Sequence[Order] = ()
    messages: Sequence[Mail] = ()


def load_customers(path: Path = CUSTOMERS) -> dict[str, Customer]:
    """All customers by their ids, in the order of the file."""
    rows = json.loads(path.read_text(encoding="utf-8"))["customers"]
    return {row["id"]: _customer(row) for row in rows}


def _customer(row: dict[str, Any]) -> Customer:
    return Customer(
        id=row["id"],
        name=row["name"],
        email=row["email"],
        since=date.fromisoformat(row["since"]),
        language=row["language"],
        orders=tuple(_order(each) for each in row["orders"]),
        messages=tuple(_mail(each) for each in row["messages"]),
    )


def _order(row: dict[str, Any]) -> Order:
    return Order(
        id=row["id"],
        placed=date.fromisoformat(row["placed"]),
        status=row["status"],
        currency=row["currency"],
        items=tuple(
            Item(name=each["name"], quantity=each["quantity"], price=Decimal(each["price"]))
            for each in row["items"]
        ),
        total=Decimal(row["total"]),
        refunded=None if row["refunded"] is None else Decimal(row["refunded"]),
    )


def _mail(row: dict[str, Any]) -> Mail:
    return Mail(
        at=datetime.fromisoformat(row["at"]),
        sender=row["sender"],
        channel=row["channel"],
        subject=row["subject"],
        text=row["text"],
    )
