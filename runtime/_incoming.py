"""Which event from outside a state takes now: a signal, a cancel, a timeout, or a limit of the budget."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from perdure.machines import Definition, Spent
from perdure.stores import InboxRow, Micros

from ._context import Visit
from ._journal import Entry
from ._progress import Progress
from ._reserved import CANCEL, ends_on_cancel, words_of
from ._transition import accepts
from ._versions import signal_event, signal_payload
from ._visit import received

LATE = 1_000_000
"""Microseconds after which a timeout that fires is marked late."""


@frozen
class Incoming:
    """An event from outside that the state accepts now."""

    event: str
    """Empty: the thread is cancelled, and ends where it stands, since its machine has no event for that."""
    updates: Mapping[str, object]
    at: Micros
    signal: InboxRow | None

    def entry(self, now: Micros) -> Entry:
        """What the journal says of it."""
        row = self.signal
        if row is None:
            late = now - self.at
            entry: Entry = {"k": "timeout", "event": self.event, "due": self.at, "at": now}
            return {**entry, "late": late} if late > LATE else entry
        if row.event == CANCEL:
            words = words_of(row)
            said = {"by": words.by, "reason": words.reason}
            return {"k": "cancel", "event": self.event, **said, "number": row.number, "at": row.at}
        return {"k": "signal", "id": row.id, "number": row.number, "at": row.at}


def chosen(
    visit: Visit, progress: Progress, pending: Sequence[InboxRow], now: Micros, *, every: bool
) -> Incoming | None:
    """The earliest event that the state takes: timeouts by due time, signals by accept time. Unless it takes
    ``every`` kind now, those are a cancel, and, before anything was done in the visit, what belongs to the
    states around it."""
    signal = first_accepted(visit, progress, pending, every=every)
    timeout = _first_due(visit, progress, now, every=every)
    if signal is None or timeout is None:
        return signal or timeout
    return signal if signal.at < timeout.at else timeout


def first_accepted(
    visit: Visit, progress: Progress, pending: Sequence[InboxRow], *, every: bool
) -> Incoming | None:
    """The first message that the state accepts."""
    for row in pending:
        taken: Incoming | None = None
        if is_newer(visit.definition, row):
            continue
        event = signal_event(visit.definition, row, visit.where)
        if event == CANCEL:
            taken = _cancelled(visit, progress, row)
        elif every and event in visit.state.signals:
            taken = _signalled(visit, progress, event, row)
        if taken is not None:
            return taken
    return None


def is_newer(definition: Definition, row: InboxRow) -> bool:
    """The payload is of a later version: it is left to a worker that has that code."""
    return row.version > definition.version


def _cancelled(visit: Visit, progress: Progress, row: InboxRow) -> Incoming | None:
    if ends_on_cancel(visit.definition):
        return Incoming("", {}, row.at, row)
    return _first_of(visit, progress, visit.state.cancels, words_of(row), row)


def _signalled(visit: Visit, progress: Progress, event: str, row: InboxRow) -> Incoming | None:
    payload = signal_payload(visit.definition, event, row, progress.version, visit.where)
    return _first_of(visit, progress, (event,), payload, row)


def _first_of(
    visit: Visit, progress: Progress, events: Sequence[str], payload: Any, row: InboxRow
) -> Incoming | None:
    taken = first_taken(visit, progress, events, payload)
    return None if taken is None else Incoming(taken[0], taken[1], row.at, row)


def first_taken(
    visit: Visit, progress: Progress, events: Sequence[str], payload: Any
) -> tuple[str, Mapping[str, object]] | None:
    """The first of these events whose guard is true of the data with what its receiver makes of the
    payload, and those updates."""
    for event in events:
        receiver = visit.definition.events[event].receiver
        updates = received(visit, event, receiver, progress.data, payload)
        if accepts(visit, progress, event, updates):
            return event, updates
    return None


def _first_due(visit: Visit, progress: Progress, now: Micros, *, every: bool) -> Incoming | None:
    if not progress.clocks.due:
        return None
    scopes = {plan.event: plan.scope for plan in visit.state.timeouts}
    for event, due in sorted(progress.clocks.due.items(), key=lambda item: item[1]):
        if due > now:
            return None
        # The clock of a state around this one may have run out while another handler ran.
        around = scopes.get(event) != visit.state.name and untouched(visit)
        if event in scopes and (every or around) and accepts(visit, progress, event, {}):
            return Incoming(event, {}, due, None)
    return None


def untouched(visit: Visit) -> bool:
    """Nothing was recorded in this visit so far."""
    book = visit.book
    return not (book.next_id or book.failed or book.ended or book.artifacts or book.conflicts)


def spent(visit: Visit, progress: Progress) -> tuple[str, Mapping[str, object], Entry] | None:
    """The budget event that is taken in the handler's stead, its updates, and the journal's entry: where a
    limit is reached, and the guard of an event that leaves this state for it is true."""
    for limit in _reached(visit, progress):
        taken = first_taken(visit, progress, visit.state.budgets, limit)
        if taken is not None:
            said = {"limit": limit.limit, "allowed": limit.allowed, "used": limit.used}
            return (*taken, {"k": "budget", "event": taken[0], **said, "at": visit.env.now()})
    return None


def _reached(visit: Visit, progress: Progress) -> list[Spent]:
    name = visit.definition.budget
    if name is None:
        return []
    limits: Mapping[str, float] = getattr(progress.data, name).limits
    return [
        Spent(limit=limit, allowed=allowed, used=used)
        for limit, allowed in limits.items()
        if (used := _number(visit.seq if limit == "steps" else getattr(progress.data, limit))) >= allowed
    ]


def _number(used: Any) -> float:
    """A cost as a float: of a whole number that none can hold, the one nearest to it."""
    try:
        return float(used)
    except OverflowError:
        return sys.float_info.max if used > 0 else -sys.float_info.max
