"""How the records of the seam stand in the items of a DynamoDB table."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar

from attrs import evolve, fields, frozen

from ._dynamodb_asks import ABSENT, Item, Wanted
from ._dynamodb_keys import INDEXES, PART, due_pk, groups_pk, joined, number, parked_pk, shard_of, suspects_pk
from ._limits import MAX_PRIORITY
from ._records import Address, ArtifactRow, Micros, Standing, ThreadRow

R = TypeVar("R")

NOT_INDEXED: Item = dict.fromkeys(name for index in INDEXES.values() for name in (index.pk, index.sk))
"""Takes an item out of every index."""


@frozen(kw_only=True)
class Stood:
    """A thread as it stands, and what the store keeps beside it."""

    row: ThreadRow
    since: Micros
    """When it came to have no owner, last."""
    low: int
    """Up to this number everything in its inbox was taken in."""


@cache
def _names_of(kind: Hashable) -> tuple[str, ...]:
    given: Any = kind
    return tuple(each.name for each in fields(given))


def _names(kind: type[Any]) -> tuple[str, ...]:
    record: Any = kind
    return _names_of(record)


def pack(row: Any) -> dict[str, Any]:
    """A record's fields as attributes."""
    return {name: getattr(row, name) for name in _names(row.__class__)}


def unpack(kind: type[R], item: Item) -> R:
    """The record of which the item has the fields."""
    return kind(**{name: item.get(name) for name in _names(kind)})


def pack_artifact(row: ArtifactRow) -> dict[str, Any]:
    return {**pack(row), "derived_from": list(row.derived_from)}


def unpack_artifact(item: Item) -> ArtifactRow:
    row = unpack(ArtifactRow, item)
    return evolve(row, derived_from=tuple(row.derived_from))


def pack_thread(stood: Stood) -> dict[str, Any]:
    row = stood.row
    packed = {**pack(row), **pack(row.standing), "since": stood.since, "low": stood.low}
    del packed["address"], packed["standing"]
    return {**packed, **places(stood)}


def unpack_thread(item: Item | None) -> Stood | None:
    """None: there is nothing, or an inbox that no thread has come to yet."""
    if item is None or item.get("incarnation") is None:
        return None
    given: dict[str, Any] = {name: item.get(name) for name in _names(ThreadRow)}
    given |= {"address": address_of(item), "standing": unpack(Standing, item)}
    return Stood(row=ThreadRow(**given), since=item["since"], low=item["low"])


def address_of(item: Item) -> Address:
    """Whose standing an item is, or an index's entry of it."""
    _, workspace, thread_id = str(item["PK"]).split(PART)
    return Address(workspace=workspace, thread_id=thread_id)


def unchanged(item: Item | None) -> Wanted:
    """Holds as long as a thread stands as it does in this item: commits, claims, releases and what comes in
    each change one of these."""
    found = item or {}
    names = ("incarnation", "n", "epoch", "owner", "inbox")
    return {name: ABSENT if found.get(name) is None else found[name] for name in names}


def places(stood: Stood) -> dict[str, Any]:
    """Under which keys the indexes have a thread; None where they do not.

    Those that are free and run or wait for a moment, and those that are owned, by machine, workspace,
    priority and the moment from which they can be claimed; those that wait, by that moment alone; and those
    with crashes.
    """
    row, found = stood.row, dict(NOT_INDEXED)
    address, standing = row.address, row.standing
    shard = shard_of(address.workspace, address.thread_id)
    waits = standing.status == "waiting" and standing.wake is not None
    kind = "running" if standing.status == "running" else "waiting" if waits else "still"
    moment = number(standing.wake if waits and standing.wake is not None else stood.since)
    group = (address.workspace, priority_part(row.priority))
    if row.owner is not None:
        found["gk"] = groups_pk("owned", row.machine, shard)
        found["gs"] = joined(row.owner, *group, kind, moment, address.thread_id)
    elif kind != "still":
        found["gk"] = groups_pk(kind, row.machine, shard)
        found["gs"] = joined(*group, moment, address.thread_id)
    elif standing.status == "parked":
        found["gk"], found["gs"] = parked_pk(shard), joined(address.workspace, address.thread_id)
    if waits and row.owner is None:
        found["dk"], found["ds"] = due_pk(row.machine, shard), moment
    if row.crashes and kind != "still":
        found["xk"], found["xs"] = suspects_pk(row.machine), number(row.crashes)
    return found


def priority_part(priority: int) -> str:
    """Higher ones come first."""
    return f"{MAX_PRIORITY - priority:02d}"
