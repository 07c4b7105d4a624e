"""What a DynamoDB store asks of its one table: keys, conditions and actions as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

from attrs import field, frozen

Item = Mapping[str, Any]
"""An item's attributes: texts, whole numbers, bytes and lists of texts. None: it is not there."""


class State(Enum):
    """What a condition may want of an attribute instead of a value."""

    ABSENT = "absent"
    PRESENT = "present"


ABSENT: Final = State.ABSENT
PRESENT: Final = State.PRESENT

Wanted = Mapping[str, object]
"""A condition: what each of these attributes has to be. It holds of no item at all where all are ABSENT."""


@frozen
class Key:
    """Where an item lies: both keys are texts."""

    pk: str
    sk: str


@frozen(kw_only=True)
class Put:
    """Writes a whole item."""

    key: Key
    item: Item
    """Without its keys."""
    wanted: Wanted = field(factory=dict[str, object])


@frozen(kw_only=True)
class Update:
    """Sets attributes, removes those that become None, leaves the others; makes an item that is missing."""

    key: Key
    item: Item
    wanted: Wanted = field(factory=dict[str, object])


@frozen(kw_only=True)
class Delete:
    """Removes an item, or nothing where there is none."""

    key: Key
    wanted: Wanted = field(factory=dict[str, object])


@frozen(kw_only=True)
class Check:
    """Changes nothing; only in a transaction."""

    key: Key
    wanted: Wanted


Action = Put | Update | Delete | Check


@frozen(kw_only=True)
class Reason:
    """What became of one action of a transaction that was cancelled."""

    failed: bool
    """Its condition did not hold."""
    item: Item | None = None
    """The item as it stood where the condition did not hold; None: there is none."""


class Cancelled(Exception):
    """Nothing of a write was done: a condition did not hold. ``reasons`` are in the actions' order."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        super().__init__("a condition did not hold")
        self.reasons = tuple(reasons)


@frozen(kw_only=True)
class Span:
    """Items of one partition, of the table or an index, by a range of their sort keys, both ends included."""

    pk: str
    first: str | None = None
    last: str | None = None
    index: str | None = None
    """A secondary index; its reads may be behind. None: the table itself, read consistently."""
    descending: bool = False


class Table(Protocol):
    """The table. Whatever the service refuses but for a condition arrives as an error of the seam:
    ``StoreUnavailable``, and ``OutcomeUnknown`` from a write whose answer was lost. Being throttled, and a
    conflict with another transaction, are waited out."""

    async def get(self, key: Key, /) -> Item | None:
        """An item with its keys ``PK`` and ``SK``, read consistently."""
        ...

    async def get_many(self, keys: Iterable[Key], /) -> dict[Key, Item]:
        """Those items that are there, read consistently, any number of them."""
        ...

    async def query(self, span: Span, /, limit: int | None = None) -> list[Item]:
        """The first items of a span, in order, page by page until there are ``limit``; None: all of them."""
        ...

    async def write(self, action: Put | Update | Delete, /) -> Item | None:
        """One action by itself; an update gives the whole new item. ``Cancelled`` has one reason."""
        ...

    async def transact(self, actions: Sequence[Action], /) -> None:
        """All of them or none: at most 100, no two on one item. ``Cancelled`` has a reason for each."""
        ...

    async def write_many(self, actions: Sequence[Put | Delete], /) -> None:
        """Any number of actions without conditions, each by itself, in any order."""
        ...
