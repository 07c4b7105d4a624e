"""How many more threads of limited machines may be claimed.

Claims of such a machine pass a gate: each counts what living workers own, and what claims before it were let
in for, and lets itself in where nobody else was meanwhile. The index of what is owned may be behind; who was
let in is read consistently, and counts until the thread itself shows what became of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from attrs import define, field

from ._dynamodb_asks import ABSENT, Action, Cancelled, Delete, Item, Key, Put, Span
from ._dynamodb_desk import Desk
from ._dynamodb_fair import read_entry
from ._dynamodb_items import Stood, unpack_thread
from ._dynamodb_keys import (
    GROUPS,
    INDEXES,
    PART,
    every_shard,
    groups_pk,
    joined,
    room_pk,
    standing_key,
    worker_key,
)
from ._dynamodb_workers import is_gone
from ._records import Address, ClaimRequest, Micros, ThreadRow

ENOUGH: Micros = 60_000_000
"""After so long whoever was let in and took nothing takes nothing any more."""
MOST = 90
"""How many threads one claim is let in for, so that they fit into one transaction."""


@define
class Room:
    """The places that a claim found, and its way through the gates."""

    desk: Desk
    request: ClaimRequest
    now: Micros
    left: dict[str, int] = field(factory=dict[str, int], init=False)
    """How many more threads of machines may be owned, where that is limited."""
    turns: dict[str, int] = field(factory=dict[str, int], init=False)
    """How often the gate was passed."""

    async def look(self) -> None:
        for machine, most in self.request.at_once.items():
            items = await self.desk.table.query(Span(pk=room_pk(machine)))
            slots = {str(item["SK"]): item for item in items}
            self.turns[machine] = int(slots.pop("gate", {"turn": 0})["turn"])
            owners = await self._owners(machine)
            living = await self._living(set(owners.values()))
            taken = {address for address, owner in owners.items() if owner in living}
            taken |= await self._let_in(machine, list(slots.values()))
            self.left[machine] = min(most - len(taken), MOST)

    async def admit(self, threads: Sequence[Stood]) -> set[Address]:
        """Those of them that may be claimed."""
        admitted = {stood.row.address for stood in threads if stood.row.machine not in self.left}
        for machine, left in self.left.items():
            some = [stood.row for stood in threads if stood.row.machine == machine][: max(left, 0)]
            if some and await self._pass(machine, some):
                admitted |= {row.address for row in some}
        return admitted

    async def give_back(self, row: ThreadRow) -> None:
        """The claim that was to give this was not made."""
        if row.machine in self.left:
            wanted = {"epoch": row.epoch}
            await self.desk.try_to(Delete(key=_slot_key(row.machine, row.address), wanted=wanted))
            self.left[row.machine] += 1

    async def _pass(self, machine: str, rows: Sequence[ThreadRow]) -> bool:
        turn = self.turns[machine]
        gate = Key(room_pk(machine), "gate")
        actions: list[Action] = [Put(key=gate, item={"turn": turn + 1}, wanted={"turn": turn or ABSENT})]
        for row in rows:
            slot = {"epoch": row.epoch + 1, "made": self.now}
            actions.append(Put(key=_slot_key(machine, row.address), item=slot))
        try:
            await self.desk.table.transact(actions)
        except Cancelled:
            return False  # somebody passed meanwhile: the next claim counts again
        self.turns[machine] = turn + 1
        self.left[machine] -= len(rows)
        return True

    async def _owners(self, machine: str) -> dict[Address, str]:
        """Who owns what of a machine, as the index has it."""
        pks = [groups_pk("owned", machine, shard) for shard in every_shard()]
        found = await asyncio.gather(*(self.desk.table.query(Span(pk=pk, index=GROUPS)) for pk in pks))
        place = INDEXES[GROUPS].sk
        return {
            read_entry(item).address: str(item[place]).split(PART)[0] for items in found for item in items
        }

    async def _living(self, owners: set[str]) -> set[str]:
        keys = {worker_key(owner): owner for owner in owners}
        rows = await self.desk.table.get_many(keys) if keys else {}
        request = self.request
        dead = {
            owner
            for key, owner in keys.items()
            if owner != request.worker and (owner in request.dead or is_gone(rows.get(key), self.now))
        }
        return owners - dead

    async def _let_in(self, machine: str, slots: Sequence[Item]) -> set[Address]:
        """The threads that earlier claims were let in for, and that were not given up since."""
        keys = {standing_key(_address(slot)): slot for slot in slots}
        items = await self.desk.table.get_many(keys) if keys else {}
        stood = {key: unpack_thread(items.get(key)) for key in keys}
        owners = {it.row.owner for it in stood.values() if it is not None and it.row.owner is not None}
        living = await self._living(owners)
        taken: set[Address] = set()
        for key, slot in keys.items():
            thread = stood[key]
            claimed = thread is not None and thread.row.epoch >= int(slot["epoch"])
            if thread is not None and thread.row.owner in living if claimed else self._is_new(slot):
                taken.add(_address(slot))
            else:
                slot_key = Key(str(slot["PK"]), str(slot["SK"]))
                await self.desk.try_to(Delete(key=slot_key, wanted={"epoch": slot["epoch"]}))
        return taken

    def _is_new(self, slot: Item) -> bool:
        return self.now - int(slot["made"]) <= ENOUGH


def _slot_key(machine: str, address: Address) -> Key:
    return Key(room_pk(machine), joined("slot", address.workspace, address.thread_id))


def _address(slot: Item) -> Address:
    _, workspace, thread_id = str(slot["SK"]).split(PART)
    return Address(workspace=workspace, thread_id=thread_id)
