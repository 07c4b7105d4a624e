"""Whether what lies beside a thread's data fits the code at hand, part by part: its state, messages, timers,
and the calls of an unfinished visit. Each is read by the function with which a worker reads it."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from perdure.machines import Definition, Unreadable
from perdure.stores import Claim, InboxRow, LogRow, ThreadRow

from ._book import Book
from ._journal import Body, Entry, decode_body, is_checkpoint
from ._look import DAMAGE
from ._reserved import RESERVED
from ._versions import CALLS, due_today, read_visit, signal_event, signal_payload


@frozen(kw_only=True)
class Finding:
    """Something about one thread that the code at hand does not take as it is stored."""

    about: str
    """What it is about: machine, version, definition, state, data, signal, timer, event, read, effect,
    branch, body."""
    what: str
    """Which one, by name."""
    reason: str
    mend: str
    """The declaration that would mend it, or what else to do."""
    fault: bool = True
    """The thread would not go on; False: worth knowing before a deploy."""


def look_at_record(definition: Definition, claim: Claim) -> Iterator[Finding]:
    """What of the record no declaration of the code takes. Damage is not looked for: loading meets it."""
    version = stored_version(claim)
    yield from _state(definition, claim.thread)
    for message in claim.inbox:
        yield from _signal(definition, message, version)
    try:
        bodies = [(row, decode_body(row.payload)) for row in claim.log if row.salt is not None]
    except DAMAGE:
        return
    newest = max((row.n for row, _ in bodies if is_checkpoint(row)), default=-1)
    for row, body in bodies:
        if row.n == newest:
            yield from _timers(definition, body)
        elif row.n > newest:
            for entry in body.entries:
                yield from _call(definition, row, body, entry, version)


def stored_version(claim: Claim) -> int:
    """The version of the machine whose data the newest snapshot holds, as far as that can be read."""
    standing = claim.thread.standing
    for row in claim.log:
        if row.n == standing.base and row.salt is not None:
            try:
                return decode_body(row.payload).version or standing.version
            except DAMAGE:
                break
    return standing.version


def _state(definition: Definition, row: ThreadRow) -> Iterator[Finding]:
    stored = row.standing.state
    if definition.state_of(stored) is None:
        yield Finding(
            about="state",
            what=stored,
            reason=f"{definition.name} version {definition.version} has no state {stored!r}",
            mend=f"State(renamed=({stored!r},)) of the one that takes its place",
        )


def _signal(definition: Definition, message: InboxRow, version: int) -> Iterator[Finding]:
    """A pending message, whether the state takes it now or a later one does."""
    try:
        event = signal_event(definition, message, "here")
    except Unreadable:
        yield Finding(
            about="signal",
            what=message.event,
            reason=f"{definition.name} version {definition.version} has no event {message.event!r}",
            mend=_event_mend(message.event),
        )
        return
    if event is None or event in RESERVED:
        return
    try:
        signal_payload(definition, event, message, version, "here")
    except Unreadable as error:
        yield Finding(
            about="signal",
            what=message.event,
            reason=f"its payload{str(error).removeprefix(f'here: signal {message.id!r}')}",
            mend=f"@upcast(from_version={message.version or version}, of={event})",
        )


def _timers(definition: Definition, body: Body) -> Iterator[Finding]:
    for stored, at in body.due.items():
        try:
            due_today(definition, {stored: at}, "here")
        except Unreadable:
            yield Finding(
                about="timer",
                what=stored,
                reason=f"it runs, and {definition.name} version {definition.version} has no event {stored!r}",
                mend=_event_mend(stored),
            )


def _call(definition: Definition, row: LogRow, body: Body, entry: Entry, version: int) -> Iterator[Finding]:
    if entry["k"] not in CALLS:
        return
    alone = Body(version=body.version, entries=[entry])
    try:
        read_visit(definition, Book(), row, alone, version, "here")
    except Unreadable as error:
        name, wrote = entry["call"], body.version or version
        known = definition.calls.get(name)
        yield Finding(
            about="effect",
            what=name,
            reason=str(error).removeprefix(f"here: row {row.n} of its journal: ")
            if known is not None
            else f"it is recorded, and {definition.name} lists no effect of that name",
            mend=call_mend(name) if known is None else f"@upcast(from_version={wrote}, of={known.name})",
        )


def _event_mend(event: str) -> str:
    return f".renamed({event!r}) of the event that it is now, or removed_events=({event!r},)"


def call_mend(name: str) -> str:
    """What to declare for a call that the code does not list."""
    return f"renamed=({name!r},) of the call that it is now, or removed_calls=({name!r},)"
