"""What older versions of a machine wrote, as this code knows it: names of today, and arguments brought over.

Nothing here is written back: a thread's next commit by this code is in this code's words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.machines import BadCall, Definition, Effect, NotStorable, Read, Unreadable
from perdure.stores import InboxRow, LogRow, Micros, Standing

from ._book import Book
from ._journal import Body, Entry, raw
from ._reserved import RESERVED

CALLS = frozenset(("read", "intent", "served"))
"""Kinds of entries that record a call with its arguments."""


def check_standing(definition: Definition, standing: Standing, where: str) -> None:
    """``Unreadable`` where a newer version wrote to the thread, or its state is none of this code's."""
    if standing.version > definition.version:
        definition.upcasts.check(standing.version, where)
    if definition.state_of(standing.state) is None:
        raise Unreadable(
            f"{where} is in state {standing.state!r}, which {definition.name} version {definition.version} "
            f"does not have: put it back, or say State(renamed=({standing.state!r},)) of the one that takes "
            "its place"
        )


def read_visit(definition: Definition, book: Book, row: LogRow, body: Body, version: int, where: str) -> None:
    """Take a row's entries into the book, as this code would have written them. ``version`` wrote the
    checkpoint, and the row too where it does not say otherwise."""
    wrote = version if body.version is None else body.version
    at = f"{where}: row {row.n} of its journal"
    if wrote != definition.version:
        definition.upcasts.check(wrote, at)
    for entry in body.entries:
        if entry["k"] in CALLS:
            book.apply(_call(definition, entry, wrote, at))
        elif entry["k"] != "branch" or _still_holds(definition, entry, wrote):
            book.apply(entry)


def _still_holds(definition: Definition, entry: Entry, version: int) -> bool:
    """Whether a finished branch need not run again. What it set are parts of data, which no upcaster is
    given; run again it is served all that it recorded."""
    if version == definition.version:
        return True
    return entry["event"] in definition.events and not definition.upcasts.changes_data(version)


def _call(definition: Definition, entry: Entry, version: int, at: str) -> Entry:
    declared = definition.calls.get(entry["call"])
    if not isinstance(declared, Read | Effect):
        if entry["k"] != "read" and entry["call"] not in definition.removed_calls:
            raise Unreadable(
                f"{at}: it holds effect {entry['call']} with key {entry['key']}, and {definition.name} "
                f"version {definition.version} lists no such call: list it in calls=, say "
                f"renamed=({entry['call']!r},) of the one that it is now, or name it in removed_calls="
            )
        return entry
    stored = bytes(entry["args"])
    try:
        told = definition.upcasts.arguments(declared.name, stored, version, at)
        today, _ = declared.arguments((), declared.decode_arguments(told, at), at)
    except (Unreadable, BadCall, NotStorable) as error:
        if not isinstance(declared, Effect) or version == definition.version:
            return entry  # a read is asked again; what is of this very version diverges where it does not fit
        raise Unreadable(
            f"{error}: write an upcaster, @upcast(from_version={version}, of={declared.name})"
        ) from error
    return entry if today == stored else {**entry, "args": raw(today), "was": raw(stored)}


def due_today(definition: Definition, due: Mapping[str, Micros], where: str) -> dict[str, Micros]:
    """The visit's timers by the names that their events have today, without those that were removed."""
    found: dict[str, Micros] = {}
    for stored, at in due.items():
        event = _event(definition, stored, f"{where}: a timer")
        if event is not None:
            found[event] = at
    return found


def signal_event(definition: Definition, row: InboxRow, where: str) -> str | None:
    """Today's name of the event that a message is for; None: it was removed."""
    if row.event in RESERVED:
        return row.event
    return _event(definition, row.event, f"{where}: signal {row.id!r}")


def _event(definition: Definition, stored: str, what: str) -> str | None:
    event = definition.event_of(stored)
    if event is not None:
        return event.name
    if stored in definition.removed_events:
        return None
    raise Unreadable(
        f"{what} is for event {stored!r}, which {definition.name} version {definition.version} does not "
        f"have: say .renamed({stored!r}) of the one that it is now, or removed_events=({stored!r},)"
    )


def signal_payload(definition: Definition, event: str, row: InboxRow, version: int, where: str) -> Any:
    """What a signal brings. ``version`` is the checkpoint's, which holds for a payload that does not say."""
    plan = definition.events[event]
    if plan.payload is None:
        return None
    at = f"{where}: signal {row.id!r}"
    payload = definition.upcasts.payload(event, row.payload, row.version or version, at)
    return plan.payload.decode(payload, at)
