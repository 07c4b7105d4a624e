"""Whether the records of an unfinished visit fit the code at hand: reads that it would be served, effects
that are done or in doubt, and branches that have finished."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from perdure.machines import Effect, Read, Unreadable

from ._book import EffectRecord, LaneEnd, ReadRecord, family
from ._check_record import Finding, call_mend
from ._context import Visit, micros
from ._progress import decode_updates

OWN = ("memory.", "step.")
"""What the names of the engine's own reads begin with: no machine lists them."""


def look_at_calls(visit: Visit, *, in_flight: bool) -> Iterator[Finding]:
    """What of the visit's record the code would stop at. ``in_flight``: a worker lives that may still hear
    what became of an effect in doubt."""
    for read in visit.book.reads.values():
        if not read.signature[1].startswith(OWN):
            yield from _read(visit, read)
    for effect in visit.book.effects.values():
        if effect.outcome != "free" and not effect.set_aside:
            yield from _effect(visit, effect, in_flight)
    for lane, end in visit.book.ended.items():
        yield from _branch(visit, lane, end)


def _read(visit: Visit, record: ReadRecord) -> Iterator[Finding]:
    name = record.signature[1]
    declared = visit.definition.calls.get(name)
    if not (record.kept or visit.book.pinned(record)) or record.value is None:
        return
    if not isinstance(declared, Read):
        yield Finding(
            about="read",
            what=name,
            reason=f"its answer is kept, and {visit.definition.name} lists no read of that name: "
            "one of another name is paid for again",
            mend=call_mend(name),
            fault=False,
        )
        return
    yield from _value(visit, declared, record.value)


def _effect(visit: Visit, record: EffectRecord, in_flight: bool) -> Iterator[Finding]:
    declared = visit.definition.calls.get(record.call)
    if not isinstance(declared, Effect):
        yield Finding(
            about="effect",
            what=record.call,
            reason=f"it is {record.outcome}, and {visit.definition.name} lists no effect of that name",
            mend=call_mend(record.call),
        )
        return
    lanes = {handler.lane for handler in visit.state.handlers}
    if lanes and family(record.lane) not in lanes:
        yield Finding(
            about="effect",
            what=record.call,
            reason=f"it is {record.outcome} in lane {family(record.lane)!r}, and state "
            f"{visit.state.name!r} has no such handler",
            mend=f"the handlers that the state had, until these threads have left {visit.state.name!r}",
        )
    yield from _arguments(visit, declared, record)
    if record.outcome == "done" and record.value is not None:
        yield from _value(visit, declared, record.value)
    elif record.outcome == "in doubt":
        yield from _doubt(visit, declared, record, in_flight)


def _arguments(visit: Visit, effect: Effect[Any, ..., Any], record: EffectRecord) -> Iterator[Finding]:
    """Whether a call of today can be the recorded one; those of older versions were read so already."""
    try:
        effect.decode_arguments(record.arguments, effect.label)
    except (Unreadable, msgspec.MsgspecError) as error:
        version = visit.ledger.standing.version
        yield Finding(
            about="effect",
            what=record.call,
            reason=f"it is {record.outcome}; {error}",
            mend=f"version={version + 1} in the class line of {visit.definition.machine.__name__}, and "
            f"@upcast(from_version={version}, of={effect.name})",
        )


def _value(
    visit: Visit, declared: Read[Any, ..., Any] | Effect[Any, ..., Any], value: bytes
) -> Iterator[Finding]:
    try:
        declared.result.decode(value, f"{declared.label}: recorded result")
    except Unreadable as error:
        mend = f"a result type of {declared.name} that reads what is recorded"
        yield Finding(about=declared.kind, what=declared.name, reason=str(error), mend=mend)


def _doubt(
    visit: Visit, effect: Effect[Any, ..., Any], record: EffectRecord, in_flight: bool
) -> Iterator[Finding]:
    lifetime = effect.key_lifetime
    forgotten = lifetime is not None and visit.env.now() >= record.first_issued + micros(lifetime)
    if effect.lookup_fn is not None or effect.repeatable or (effect.idempotent and not forgotten):
        return
    why = "no longer remembers its key" if forgotten else "knows neither keys nor a lookup"
    parked = visit.row.standing.reason == "in doubt"
    what = "is parked for it" if parked else "parks, unless its worker hears of it" if in_flight else "parks"
    yield Finding(
        about="effect",
        what=record.call,
        reason=f"it is in doubt, and its receiver {why}: the thread {what}",
        mend=f"@{effect.name}.lookup; or ask its receiver, then `perdure resolve`",
        fault=not (parked or in_flight),
    )


def _branch(visit: Visit, lane: str, end: LaneEnd) -> Iterator[Finding]:
    name, lanes = visit.state.name, [handler.lane for handler in visit.state.handlers]
    if lane not in lanes:
        yield Finding(
            about="branch",
            what=lane,
            reason=f"it has finished, and state {name!r} has no such handler: what it set is left out",
            mend=f"a handler {lane!r} of {name!r}, until these threads have left the state",
            fault=False,
        )
        return
    if end.event not in visit.state.rows:
        yield Finding(
            about="branch",
            what=lane,
            reason=f"it has fired {end.event!r}, which does not leave {name!r}: the attempt fails, and the "
            "branches run again",
            mend=f"an event {end.event!r} that leaves {name!r}, until these threads have left the state",
            fault=False,
        )
    try:
        decode_updates(visit.definition, end.updates, f"branch {lane!r}")
    except (Unreadable, msgspec.MsgspecError) as error:
        version = visit.ledger.standing.version
        mend = f"@upcast(from_version={version}) in {visit.definition.machine.__name__}"
        yield Finding(about="branch", what=lane, reason=str(error), mend=mend)
