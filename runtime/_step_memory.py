"""Memory as one attempt sees it: reads are recorded, writes wait for the transition."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from attrs import define, field, frozen

from perdure.machines import Declared, Namespace
from perdure.stores import Memory, MemoryCheck, MemoryRow, Micros, check_name

from ._attempt import Attempt
from ._book import signature_of
from ._bounds import check_span
from ._context import Visit
from ._errors import CallMisuse, MemoryConflict
from ._provenance import ids_in
from ._reliable import page_of


@define
class PendingWrite:
    """What a step will write to one key, judged by the transition's commit."""

    namespace: Namespace[Any]
    key: str
    value: Any
    expected: int
    updates: list[Callable[[Any], Any]] = field(factory=list[Callable[[Any], Any]])
    """Pure functions to apply to the newest version; empty: ``value`` is put."""
    exact: bool = False
    """Put over the expected version alone: no merge rule takes another one in."""


@frozen
class Seen:
    """A key as the step first saw it. ``value`` None: there is no record."""

    version: int
    value: Any
    refs: tuple[str, ...] = ()
    """Ids of the artifacts in it."""


class MemoryOfStep:
    """``step.memory``."""

    def __init__(self, attempt: Attempt, lane: str, call: Callable[..., Any]) -> None:
        self._attempt = attempt
        self._lane = lane
        self._call = call

    async def get(
        self,
        namespace: Namespace[Any],
        key: str,
        /,
        *,
        max_age: timedelta | None = None,
        verify: Declared[Any, [str], Any] | None = None,
    ) -> Any:
        self._check(namespace)
        if max_age is not None:
            check_span(f"memory {namespace.name}/{key}: max_age=", max_age, zero=True)
        own = self._attempt.memory_writes.get((namespace.name, key))
        value = own.value if own is not None else (await self._used(namespace, key)).value
        if value is None or max_age is None or verify is None:
            return value
        if not await self._stale(namespace, key, value, max_age):
            return value
        checked = await self._call(verify, key)
        if checked is not None:
            await self.put(namespace, key, checked)
        return checked

    async def put(
        self, namespace: Namespace[Any], key: str, value: Any, /, *, if_version: int | None = None
    ) -> None:
        self._check(namespace)
        where = f"{self._attempt.visit.where}: memory {namespace.name}/{key}"
        _, back = namespace.codec.roundtrip(value, where)
        writes = self._attempt.memory_writes
        own = writes.get((namespace.name, key))
        expected = own.expected if own is not None else (await self._seen(namespace, key)).version
        if if_version is not None and if_version != expected:
            raise MemoryConflict(
                f"{where}: version {if_version} was expected and version {expected} is there"
            )
        self._attempt.check_open()
        exact = if_version is not None or (own is not None and own.exact)
        writes[(namespace.name, key)] = PendingWrite(namespace, key, back, expected, exact=exact)

    async def update(self, namespace: Namespace[Any], key: str, fn: Callable[[Any], Any], /) -> Any:
        self._check(namespace)
        where = f"{self._attempt.visit.where}: memory {namespace.name}/{key}"
        writes = self._attempt.memory_writes
        seen = await self._used(namespace, key)
        own = writes.get((namespace.name, key))
        if own is None:
            own = PendingWrite(namespace, key, seen.value, seen.version)
            own.updates.append(fn)
        elif own.updates:
            own.updates.append(fn)
        self._attempt.check_open()
        _, own.value = namespace.codec.roundtrip(fn(own.value), where)
        writes[(namespace.name, key)] = own
        return own.value

    def _check(self, namespace: object) -> None:
        if not isinstance(namespace, Namespace):
            raise CallMisuse(
                f"{self._attempt.visit.where}: memory is addressed by a Namespace, not {namespace!r}: make "
                "one, as in Namespace('customer', CustomerFacts)"
            )

    async def _used(self, namespace: Namespace[Any], key: str) -> Seen:
        """The same, and what is put from now on may be made from it."""
        seen = await self._seen(namespace, key)
        if seen.value is not None:
            name = f"memory:{namespace.name}/{key}@{seen.version}"
            self._attempt.trail.use(self._lane, (*seen.refs, name))
        return seen

    async def _seen(self, namespace: Namespace[Any], key: str) -> Seen:
        """A key as the attempt first saw it: a put is judged by that version, not by a newer one."""
        visit = self._attempt.visit
        check_name(f"{visit.where}: memory namespace", namespace.name)
        check_name(f"{visit.where}: memory key", key)
        async with self._attempt.memory_looking:
            seen = self._attempt.memory_seen.get((namespace.name, key))
            if seen is None:
                seen = self._attempt.memory_seen[namespace.name, key] = await self._look(namespace, key)
        return seen

    async def _look(self, namespace: Namespace[Any], key: str) -> Seen:
        visit = self._attempt.visit
        where = f"{visit.where}: memory {namespace.name}/{key}"

        async def perform() -> tuple[bytes, Seen]:
            row = await newest(visit, namespace.name, key)
            version = 0 if row is None else row.version
            value = value_at(row, visit.env.now())
            stored = msgspec.json.encode([version, None if value is None else msgspec.Raw(value)])
            return stored, decode(stored)

        def decode(stored: bytes) -> Seen:
            version, value = msgspec.json.decode(stored, type=tuple[int, msgspec.Raw])
            encoded = bytes(value)
            known = None if encoded == b"null" else namespace.codec.decode(encoded, where)
            return Seen(version, known, ids_in(encoded))

        # Whichever strand looks first, in a later attempt as well: the record is the handler's.
        lane = self._attempt.handler.lane
        seen: Seen = await self._plain(lane, "memory.get", [namespace.name, key], perform, decode)
        check = MemoryCheck(namespace=namespace.name, key=key, version=seen.version)
        self._attempt.memory_checks[(namespace.name, key)] = check
        return seen

    async def _stale(self, namespace: Namespace[Any], key: str, value: Any, max_age: timedelta) -> bool:
        """Judged once and recorded, so that a resumed attempt asks for the same."""
        now = datetime.fromtimestamp(self._attempt.visit.env.now() / 1e6, tz=UTC)

        async def perform() -> tuple[bytes, bool]:
            verified: datetime | None = getattr(value, "verified_at", None)
            stale = verified is None or now - verified > max_age
            return (b"true" if stale else b"false"), stale

        def decode(stored: bytes) -> bool:
            return stored == b"true"

        arguments = [namespace.name, key]
        judged: bool = await self._plain(self._lane, "memory.stale", arguments, perform, decode)
        return judged

    async def _plain(self, lane: str, call: str, arguments: list[str], perform: Any, decode: Any) -> Any:
        signature = signature_of(lane, call, msgspec.json.encode(arguments))
        label = f"{call} {'/'.join(arguments)}"
        return await self._attempt.register_plain(
            signature, label=label, kept=False, perform=perform, decode=decode
        )


def value_at(row: MemoryRow | None, now: Micros) -> bytes | None:
    """What a key's newest version says; None: nothing, since it is a deletion or has had its time."""
    if row is None or (row.expires is not None and row.expires <= now):
        return None
    return row.value


async def newest(visit: Visit, namespace: str, key: str) -> MemoryRow | None:
    """The newest version of a key that is there now; a deletion counts as a version without a value."""
    query = Memory(workspace=visit.row.address.workspace, namespace=namespace, key=key)
    page = await page_of(visit.store, query, limit=1)
    return page.rows[0] if page.rows else None
