"""What has to hold at the end: each rule looks at the store and the ledger, and names what breaks it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

from perdure.runtime._journal import Entry, decode_body
from perdure.runtime._look import rows_of
from perdure.runtime._verify import verify
from perdure.stores import Inbox, InboxRow, Log, Store, ThreadRow, Threads

from .crew import Stopped
from .desk import ROUNDS, SETTLE
from .ledger import LATE
from .plan import Plan, Planned

PARKED = {"Bell": "in doubt", "Fails": "failed", "Deadly": "poison"}
"""What is planted."""
EFFECTS = {"Order": ("charge", "ship"), "Both": ("charge", "ship"), "Rounds": ("ship",), "Bell": ("ring",)}
WOKEN = 0.5
"""Seconds within which a process that goes on again does what it was about to do; the network may then take
its time as well."""


@define
class Findings:
    """What was counted, and what is wrong."""

    threads: Counter[str] = field(factory=Counter[str])
    figures: Counter[str] = field(factory=Counter[str])
    wrong: list[str] = field(factory=list[str])


def read_ledger(file: Path) -> list[dict[str, Any]]:
    """Every arrival, in order."""
    return [json.loads(line) for line in file.read_text().splitlines()]


class Judge:
    """Compares the end of a soak with its plan."""

    def __init__(
        self, plan: Plan, store: Store, arrivals: Sequence[dict[str, Any]], stops: Sequence[Stopped]
    ) -> None:
        self._plan = plan
        self._store = store
        self._stops = stops
        self._by_thread: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for arrival in arrivals:
            self._by_thread[arrival["thread"]].append(arrival)
        self.found = Findings()

    async def run(self) -> Findings:
        """Judge every thread."""
        rows = {row.address.thread_id: row async for row in rows_of(self._store, Threads())}
        for planned in self._plan.threads:
            row = rows.pop(planned.name, None)
            wrong = ["is not in the store"] if row is None else await self._thread(planned, row)
            self.found.wrong.extend(f"thread {planned.name} {each}" for each in wrong)
        self.found.wrong.extend(f"thread {name} was not planned" for name in rows)
        return self.found

    async def _thread(self, planned: Planned, row: ThreadRow) -> list[str]:
        standing, figures = row.standing, self.found.figures
        outcome = standing.reason or standing.state
        self.found.threads[f"{planned.kind}: {standing.status}, {outcome}"] += 1
        verified = await verify(self._store, row)
        figures["journal rows verified"] += verified.rows
        figures["commits"] += row.n
        entries = [entry async for entry in self._entries(row)]
        inbox = [each async for each in rows_of(self._store, Inbox(address=row.address))]
        wrong = [] if verified.broken is None else [f"has a broken journal: {verified.broken}"]
        wrong += _ended_wrongly(planned, row)
        wrong += self._effects(planned, row)
        wrong += self._signals(planned, row, inbox, entries)
        timeouts = sum(entry["k"] == "timeout" for entry in entries)
        figures["timers fired"] += timeouts
        if planned.kind == "Rounds" and timeouts != ROUNDS:
            wrong.append(f"has {timeouts} timeouts in its journal, not {ROUNDS}")
        return wrong

    async def _entries(self, row: ThreadRow) -> AsyncIterator[Entry]:
        async for log in rows_of(self._store, Log(address=row.address)):
            for entry in decode_body(log.payload or b"").entries:
                yield entry

    # --- effects ----------------------------------------------------------------------------------

    def _effects(self, planned: Planned, row: ThreadRow) -> Iterator[str]:
        arrivals, figures = self._by_thread[planned.name], self.found.figures
        keys: dict[str, set[str]] = defaultdict(set)
        for arrival in arrivals:
            keys[arrival["effect"]].add(arrival["key"])
        figures["arrivals"] += len(arrivals)
        figures["keys"] += sum(map(len, keys.values()))
        for effect, its in keys.items():
            if len(its) > 1:
                yield f"sent {effect} under {len(its)} keys: {sorted(its)}"
            yield from self._repeats(effect, [each for each in arrivals if each["effect"] == effect])
        wanted = set(EFFECTS.get(planned.kind, ())) if _is_done(row) else set[str]()
        for effect in wanted - keys.keys():
            yield f"is done, and its {effect} never arrived"

    def _repeats(self, effect: str, arrivals: Sequence[dict[str, Any]]) -> Iterator[str]:
        repeats = len(arrivals) - len({each["key"] for each in arrivals})
        if not repeats:
            return
        if effect == "charge":  # its receiver remembers keys
            self.found.figures["repeats to the receiver that remembers keys"] += repeats
        elif self._was_suspended(arrivals):
            self.found.figures["repeats after a suspension, as documented"] += repeats
        else:
            yield f"sent {effect} {repeats + 1} times: {arrivals}"

    def _was_suspended(self, arrivals: Sequence[dict[str, Any]]) -> bool:
        """One of them was sent by a process that was suspended between the check and the send, for longer
        than ``not_after`` plus ``settle``."""
        return any(
            each["pid"] == stop.pid
            and stop.until <= each["at"] <= stop.until + WOKEN + LATE
            and each["at"] > each["until"] + SETTLE.total_seconds()
            for each in arrivals
            for stop in self._stops
        )

    # --- signals ----------------------------------------------------------------------------------

    def _signals(
        self, planned: Planned, row: ThreadRow, inbox: Sequence[InboxRow], entries: Sequence[Any]
    ) -> Iterator[str]:
        sent = sorted(send.id for send in planned.sends)
        held = sorted(each.id for each in inbox if not each.event.startswith(":"))
        if held != sent:
            yield f"was sent {sent}, and its inbox holds {held}"
        taken = Counter(entry["id"] for entry in entries if entry["k"] == "signal")
        self.found.figures["signals sent"] += len(sent)
        self.found.figures["signals counted"] += sum(taken.values())
        if (
            row.standing.status == "ended"
            and row.standing.reason is None
            and sorted(taken.elements()) != sent
        ):
            yield f"was sent {sent}, and took in {sorted(taken.elements())}"
        for each in inbox:
            if (each.consumed is not None) != (taken[each.id] == 1) and not each.event.startswith(":"):
                yield f"has taken in {each.id} {taken[each.id]} times, and its inbox says {each.consumed}"


def _is_done(row: ThreadRow) -> bool:
    return row.standing.status == "ended" and row.standing.reason is None


def _ended_wrongly(planned: Planned, row: ThreadRow) -> Iterator[str]:
    standing = row.standing
    if planned.kind == "Cancelled":
        fine = (standing.status, standing.reason) == ("ended", "cancelled")
    elif standing.status == "parked":
        fine = standing.reason == PARKED.get(planned.kind)
    else:
        planted = planned.kind in ("Fails", "Deadly")
        fine = (standing.status, standing.state) == ("ended", "done") and not planted
    if not fine:
        yield f"is {standing.status} in {standing.state} ({standing.reason}: {standing.note})"
