"""What versions of a machine accept, as workers record it: by this a signal is checked without the code.

A document is JSON, ``{"signals": {name: JSON Schema of the payload, or null where there is none}}``. It is
data of other processes: no schema is fetched from anywhere, and payload and document are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from attrs import field, frozen

from perdure.machines import Definition
from perdure.stores import Address, DefinitionRow, Definitions, Micros, Standing, Store, ThreadRow, Threads

from ._errors import SignalRefused
from ._look import rows_of

KNOWN_FOR: Micros = 1_000_000
"""How long a sender goes by the versions that it has found stored."""
LARGEST_DOCUMENT = 1024 * 1024
LARGEST_PAYLOAD = 1024 * 1024
"""Bytes of JSON that are checked by a stored schema; the code of the machine checks more."""
DEEPEST = 100

Schemas = Mapping[str, Any]
"""By signal: its payload's schema; None where it has no payload."""


class _Document(msgspec.Struct):
    signals: dict[str, Any]


def row_of(plan: Definition, now: Micros) -> DefinitionRow:
    """What a worker records of one of its machines."""
    signals = {name: schema_of(plan, name) for name, event in plan.events.items() if event.kind == "signal"}
    document = msgspec.json.encode({"signals": signals}, order="sorted")
    return DefinitionRow(machine=plan.name, version=plan.version, hash=plan.hash, document=document, at=now)


def schema_of(plan: Definition, event: str) -> Any:
    """JSON Schema of a signal's payload; None: it has none."""
    payload = plan.events[event].payload
    return None if payload is None else payload.schema()


async def schemas_of(store: Store, machine: str, version: int, hash: str) -> Schemas | None:
    """What this version accepts; None where no worker has recorded it, or none can read the record."""
    found: DefinitionRow | None = None
    async for row in rows_of(store, Definitions(machine=machine, version=version)):
        if found is None or row.hash == hash:
            found = row
    if found is None or len(found.document) > LARGEST_DOCUMENT:
        return None
    try:
        return msgspec.json.decode(found.document, type=_Document).signals
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def checked(schemas: Schemas, event: str, payload: bytes | None, where: str, said: str) -> bytes:
    """The canonical bytes of a payload that the stored schema takes. ``SignalRefused``: it does not.

    ``where`` names the signal, ``said`` machine and version.
    """
    if event not in schemas:
        named = ", ".join(sorted(schemas)) or "none"
        raise SignalRefused(f"{where}: {said} has no signal {event!r}; it has: {named}")
    schema = schemas[event]
    if schema is None:
        if payload not in (None, b"null"):
            raise SignalRefused(f"{where}: {said}: {event} takes no payload: leave it away")
        return b"null"
    if payload is None:
        raise SignalRefused(f"{where}: {said}: {event} takes a payload: give it as JSON")
    plain = _plain(payload, where)
    wrong = _misfit(schema, plain)
    if wrong is not None:
        raise SignalRefused(f"{where}: the payload does not fit what {said} takes as {event}: {wrong}")
    return msgspec.json.encode(plain, order="sorted")


def _plain(payload: bytes, where: str) -> Any:
    if len(payload) > LARGEST_PAYLOAD:
        raise SignalRefused(
            f"{where}: the payload has {len(payload):,} bytes, and {LARGEST_PAYLOAD:,} are checked without "
            "the machine's code: name it with --runtime, or put the bytes into an artifact"
        )
    try:
        plain: Any = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SignalRefused(f"{where}: the payload is no JSON that can be read: {error}") from None
    if _deeper(plain, DEEPEST):
        raise SignalRefused(f"{where}: the payload is nested deeper than {DEEPEST} levels")
    return plain


def _deeper(value: Any, levels: int) -> bool:
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        layer = [
            inner
            for each in layer
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)  # pyright: ignore
        ]
        if not layer:
            return False
    return True


FORMATS: Mapping[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "decimal": Decimal,
    "time": time.fromisoformat,
    "uuid": UUID,
}
"""What schemas say of texts, and who reads such a text."""


def _is_read_by(parse: Callable[[str], object]) -> Callable[[object], bool]:
    def is_read(value: object) -> bool:
        if isinstance(value, str):
            parse(value)
        return True

    return is_read


def _misfit(schema: Any, plain: Any) -> str | None:
    """The first thing that does not fit, with its path; None: all fits."""
    import jsonschema  # put off: only who checks without code needs them
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        formats = jsonschema.FormatChecker(formats=())
        for name, parse in FORMATS.items():
            formats.checks(name, raises=(ValueError, ArithmeticError))(_is_read_by(parse))
        validator: Any = jsonschema.Draft202012Validator(
            schema,
            registry=Registry(),  # an empty one: a reference to elsewhere is an error, and never a request
            format_checker=formats,
        )
        error = next(iter(validator.iter_errors(plain)), None)
    except (
        Unresolvable,
        RecursionError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ) as odd:
        return f"the stored schema cannot be used ({type(odd).__name__}): name the code with --runtime"
    if error is None:
        return None
    path = error.json_path.removeprefix("$").removeprefix(".")
    return f"{path}: {error.message[:300]}" if path else error.message[:300]


@frozen(kw_only=True)
class _Seen:
    versions: frozenset[int]
    at: Micros


@frozen(kw_only=True)
class Wire:
    """Under which name and version a signal goes into an inbox."""

    event: str
    version: int


@frozen(kw_only=True)
class OtherVersions:
    """How a signal that was made with the code of one version goes to a thread of another."""

    store: Store
    _seen: dict[str, _Seen] = field(factory=dict[str, _Seen])

    async def wire(
        self, plan: Definition, address: Address, event: str, payload: bytes, where: str, now: Micros
    ) -> Wire:
        """Name and version to be recorded with the payload. Nothing is read of the thread while only this one
        version is stored.

        A thread of an older version that takes the very same gets it as of that version, so that either code
        may go on with it; where it does not, only newer code does. ``SignalRefused`` where a thread of a
        newer version does not take the payload."""
        mine = Wire(event=event, version=plan.version)
        if await self._versions(plan.name, now) <= {plan.version}:
            return mine
        row = await self._thread(address)
        if row is None or row.standing.version == plan.version or row.machine != plan.name:
            return mine
        standing: Standing = row.standing
        schemas = await schemas_of(self.store, plan.name, standing.version, standing.definition)
        if schemas is None:
            return mine
        if standing.version > plan.version:
            checked(schemas, event, payload, where, f"version {standing.version} of {plan.name}")
            return Wire(event=event, version=standing.version)
        names = [event, *(old for old, new in plan.event_names.items() if new == event)]
        taken = schema_of(plan, event)
        alike = (name for name in names if name in schemas and schemas[name] == taken)
        return next((Wire(event=name, version=standing.version) for name in alike), mine)

    async def _versions(self, machine: str, now: Micros) -> frozenset[int]:
        seen = self._seen.get(machine)
        if seen is None or not 0 <= now - seen.at < KNOWN_FOR:
            rows = [row.version async for row in rows_of(self.store, Definitions(machine=machine))]
            seen = self._seen[machine] = _Seen(versions=frozenset(rows), at=now)
        return seen.versions

    async def _thread(self, address: Address) -> ThreadRow | None:
        query = Threads(workspace=address.workspace, thread_id=address.thread_id)
        page = await self.store.page(query, limit=1)
        return page.rows[0] if page.rows else None
