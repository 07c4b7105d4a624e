"""What all parts of a DynamoDB store work with: the table, the clock, and what this handle knows for sure."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from attrs import define, field

from ._dynamodb_asks import ABSENT, Cancelled, Delete, Key, Put, Table, Update
from ._dynamodb_items import Stood
from ._dynamodb_keys import machine_key, workspace_key
from ._errors import StoreUnavailable
from ._records import Address, Micros

T = TypeVar("T")

REMEMBERED = 10_000
"""How many threads' standings a handle keeps, so that a commit need not read first."""
LISTED = 100_000
"""How many names a handle knows to be listed."""
ATTEMPTS = 60
"""How often a write is planned anew where others changed meanwhile what it rests on."""
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.2
"""Seconds between two attempts: at most so much, at random, doubled each time."""


@define
class Desk:
    table: Table
    clock: Callable[[], Micros]
    idle: dict[str, Micros] = field(factory=dict[str, Micros])
    """Dead workers that owned nothing, by the index, and need not be asked about up to a moment."""
    stood: OrderedDict[Address, Stood] = field(factory=OrderedDict[Address, Stood])
    """Threads as this handle last left them; others may have changed them since."""
    turn: dict[str, str] = field(factory=dict[str, str])
    """At which workspace, of each machine and way, the next claim goes on."""
    listed: set[Key] = field(factory=set[Key])
    registered: dict[str, Micros] = field(factory=dict[str, Micros])
    """Workers that are known to be in the index of leases up to a moment, so that what they own is found."""

    def keep(self, stood: Stood) -> None:
        self.stood[stood.row.address] = stood
        self.stood.move_to_end(stood.row.address)
        if len(self.stood) > REMEMBERED:
            self.stood.popitem(last=False)

    async def list_thread(self, workspace: str, machine: str) -> None:
        """See to it that a thread's workspace and machine are listed, before it is there."""
        await self.list_workspace(workspace)
        await self.list_once(Put(key=machine_key(machine), item={"listed": 1}, wanted={"listed": ABSENT}))

    async def list_workspace(self, workspace: str) -> None:
        """The same for anything in a workspace."""
        await self.list_once(Put(key=workspace_key(workspace), item={"listed": 1}, wanted={"listed": ABSENT}))

    async def list_once(self, put: Put) -> None:
        """Put what never goes again, if this handle does not know that it is there."""
        if put.key not in self.listed:
            await self.try_to(put)
            if len(self.listed) < LISTED:
                self.listed.add(put.key)

    async def try_to(self, action: Put | Update | Delete) -> None:
        """Do it where its condition holds."""
        with suppress(Cancelled):
            await self.table.write(action)


async def turn_on(table: Table, pointer: Key, last: int) -> None:
    """Let a pointer name at least this number; it never turns back."""
    try:
        await table.write(Put(key=pointer, item={"number": last}, wanted={"number": ABSENT}))
    except Cancelled as cancelled:
        there = cancelled.reasons[0].item
        before = 0 if there is None else int(there["number"])
        if before < last:
            await table.write(Update(key=pointer, item={"number": last}, wanted={"number": before}))


async def persist(attempt: Callable[[], Awaitable[T]], what: str) -> T:
    """Make attempts until one is not cancelled; each reads anew what it rests on."""
    pause = FIRST_PAUSE
    for _ in range(ATTEMPTS):
        try:
            return await attempt()
        except Cancelled:
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(2 * pause, LONGEST_PAUSE)
    raise StoreUnavailable(f"{what} was changed by others each of {ATTEMPTS} times: try again later")
