"""Memory from outside of any thread: read and written at once, conditional where that is asked for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, overload

import msgspec
from attrs import frozen
from typing_extensions import TypeVar as DefaultTypeVar

from perdure.machines import Namespace, NotStorable, Unreadable
from perdure.stores import MAX_WORKSPACE, Memory, MemoryMoved, MemoryRow, Remember, Store, check_name

from ._bounds import check_span
from ._context import micros, moment
from ._env import Env
from ._errors import MemoryConflict
from ._look import rows_of
from ._reliable import page_of, until_known
from ._step_memory import value_at
from ._uploads import DEFAULT_PRINCIPAL, DEFAULT_WORKSPACE

V = TypeVar("V")
V_co = DefaultTypeVar("V_co", covariant=True, default=Any)


@frozen(kw_only=True)
class Fact(Generic[V_co]):
    """One version of one memory record, with who wrote it and when."""

    namespace: str
    key: str
    version: int
    """Counted from 1 over the key's whole life, deletions included."""
    value: V_co
    at: datetime
    """When it was written (aware, UTC)."""
    principal: str
    """As whom it was written."""
    thread_id: str | None
    """The thread that wrote it; None: it was written from outside."""
    seq: int | None
    """The checkpoint with which the thread wrote it."""
    expires: datetime | None
    """From when on nobody sees it any more (aware, UTC); None: it stays until it is replaced or deleted."""


class ClientMemory:
    """``client.memory``: the facts of a workspace, addressed by a ``Namespace``, or by a namespace's name.

    Under a bare name values are plain JSON values, and nothing checks them against the namespace's type.
    A write is durable when its call returns, and is seen by every step that first looks after that; a step
    that rests on an older version is refused when it commits.
    """

    def __init__(self, store: Store, env: Env) -> None:
        self._store = store
        self._env = env

    @overload
    async def get(self, namespace: Namespace[V], key: str, /, *, workspace: str = ...) -> Fact[V] | None: ...
    @overload
    async def get(self, namespace: str, key: str, /, *, workspace: str = ...) -> Fact[Any] | None: ...
    async def get(
        self, namespace: Namespace[Any] | str, key: str, /, *, workspace: str = DEFAULT_WORKSPACE
    ) -> Fact[Any] | None:
        """The newest version; None where there is none, it was deleted, or it has expired.

        ``Unreadable`` where what is stored is not of the namespace's type.
        """
        row = await self._newest(workspace, _name_of(namespace), key)
        if row is None or value_at(row, self._env.now()) is None:
            return None
        return fact_of(namespace, row)

    @overload
    async def put(
        self,
        namespace: Namespace[V],
        key: str,
        value: V,
        /,
        *,
        workspace: str = ...,
        principal: str = ...,
        if_version: int | None = ...,
        expires: timedelta | None = ...,
    ) -> Fact[V]: ...
    @overload
    async def put(
        self,
        namespace: str,
        key: str,
        value: object,
        /,
        *,
        workspace: str = ...,
        principal: str = ...,
        if_version: int | None = ...,
        expires: timedelta | None = ...,
    ) -> Fact[Any]: ...
    async def put(
        self,
        namespace: Namespace[Any] | str,
        key: str,
        value: Any,
        /,
        *,
        workspace: str = DEFAULT_WORKSPACE,
        principal: str = DEFAULT_PRINCIPAL,
        if_version: int | None = None,
        expires: timedelta | None = None,
    ) -> Fact[Any]:
        """Write the next version, over whatever is there, and return it.

        With ``if_version`` only over that version (0: there must be no record): ``MemoryConflict`` where
        another one is there, and nothing is written. ``expires``: how long it is seen. ``NotStorable`` where
        the value is not of the namespace's type, or is None: delete the key instead. ``ValueError`` where
        ``expires`` is no span of time.
        """
        where = f"memory {_name_of(namespace)}/{key}"
        if expires is not None:
            check_span(f"{where}: expires=", expires, zero=True)
        encoded = _encode(namespace, value, where)
        if encoded == b"null":
            raise NotStorable(f"{where}: None is no fact: delete the key instead")
        row = await self._write(namespace, key, encoded, workspace, principal, if_version, expires)
        return fact_of(namespace, row)

    async def delete(
        self,
        namespace: Namespace[Any] | str,
        key: str,
        /,
        *,
        workspace: str = DEFAULT_WORKSPACE,
        principal: str = DEFAULT_PRINCIPAL,
        if_version: int | None = None,
    ) -> bool:
        """Delete a record; False where there is none. Its earlier versions stay as history.

        ``MemoryConflict`` where ``if_version`` is given and is not the version that is there.
        """
        row = await self._newest(workspace, _name_of(namespace), key)
        if row is None or row.value is None:
            _check_version(namespace, key, row, if_version)
            return False
        await self._write(namespace, key, None, workspace, principal, if_version, None)
        return True

    @overload
    def list(self, namespace: Namespace[V], /, *, workspace: str = ...) -> AsyncIterator[Fact[V]]: ...
    @overload
    def list(self, namespace: str | None = ..., /, *, workspace: str = ...) -> AsyncIterator[Fact[Any]]: ...
    async def list(
        self, namespace: Namespace[Any] | str | None = None, /, *, workspace: str = DEFAULT_WORKSPACE
    ) -> AsyncIterator[Fact[Any]]:
        """The newest versions by namespace and key, without what was deleted or has expired.

        Without a namespace, those of all, as plain JSON values. Read page by page.
        """
        name = None if namespace is None else _name_of(namespace)
        check_name("workspace", workspace, MAX_WORKSPACE)
        async for row in rows_of(self._store, Memory(workspace=workspace, namespace=name)):
            if value_at(row, self._env.now()) is not None:
                yield fact_of(row.namespace if namespace is None else namespace, row)

    @overload
    def history(
        self, namespace: Namespace[V], key: str, /, *, workspace: str = ...
    ) -> AsyncIterator[Fact[V | None]]: ...
    @overload
    def history(self, namespace: str, key: str, /, *, workspace: str = ...) -> AsyncIterator[Fact[Any]]: ...
    async def history(
        self, namespace: Namespace[Any] | str, key: str, /, *, workspace: str = DEFAULT_WORKSPACE
    ) -> AsyncIterator[Fact[Any]]:
        """Every version that is still there, oldest first; of a deletion the value is None."""
        check_name("workspace", workspace, MAX_WORKSPACE)
        query = Memory(workspace=workspace, namespace=_name_of(namespace), key=key, history=True)
        async for row in rows_of(self._store, query):
            yield fact_of(namespace, row)

    async def _newest(self, workspace: str, namespace: str, key: str) -> MemoryRow | None:
        check_name("workspace", workspace, MAX_WORKSPACE)
        check_name("memory namespace", namespace)
        check_name("memory key", key)
        query = Memory(workspace=workspace, namespace=namespace, key=key)
        page = await page_of(self._store, query, limit=1)
        return page.rows[0] if page.rows else None

    async def _write(
        self,
        namespace: Namespace[Any] | str,
        key: str,
        value: bytes | None,
        workspace: str,
        principal: str,
        if_version: int | None,
        expires: timedelta | None,
    ) -> MemoryRow:
        now, expected = self._env.now(), if_version
        if if_version == 0:
            row = await self._newest(workspace, _name_of(namespace), key)
            if row is not None and value_at(row, now) is None:
                expected = row.version  # deleted or expired: there is no record, and its versions count on
        write = Remember(
            id=self._env.token(16).hex(),
            workspace=workspace,
            namespace=_name_of(namespace),
            key=key,
            value=value,
            expected=expected,
            principal=principal,
            expires=None if expires is None else now + micros(expires),
        )
        try:
            return await until_known(lambda: self._store.remember(write))
        except MemoryMoved as moved:
            row = moved.rows[0] if moved.rows else None
            raise _conflict(namespace, key, row, if_version) from None


def _check_version(
    namespace: Namespace[Any] | str, key: str, row: MemoryRow | None, if_version: int | None
) -> None:
    if if_version not in (None, 0, 0 if row is None else row.version):
        raise _conflict(namespace, key, row, if_version)


def _conflict(
    namespace: Namespace[Any] | str, key: str, row: MemoryRow | None, if_version: int | None
) -> MemoryConflict:
    there = "there is none"
    if row is not None:
        what = "a deletion" if row.value is None else "a record"
        by = row.principal if row.thread_id is None else f"thread {row.thread_id!r}"
        there = (
            f"version {row.version} is there, {what} that {by} wrote at {moment(row.at):%Y-%m-%d %H:%M:%S}Z"
        )
    return MemoryConflict(
        f"memory {_name_of(namespace)}/{key}: version {if_version} was expected and {there}: look at it again"
    )


def _name_of(namespace: Namespace[Any] | str) -> str:
    return namespace if isinstance(namespace, str) else namespace.name


def _encode(namespace: Namespace[Any] | str, value: Any, where: str) -> bytes:
    if not isinstance(namespace, str):
        encoded, _ = namespace.codec.roundtrip(value, where)
        return bytes(encoded)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotStorable(f"{where}: under a bare name a value is plain JSON: {error}") from None


def fact_of(namespace: Namespace[Any] | str, row: MemoryRow) -> Fact[Any]:
    """A stored version as a client sees it; ``Unreadable`` where it is not of the namespace's type."""
    where = f"memory {row.namespace}/{row.key}, version {row.version}"
    return Fact(
        namespace=row.namespace,
        key=row.key,
        version=row.version,
        value=None if row.value is None else _decode(namespace, row.value, where),
        at=moment(row.at),
        principal=row.principal,
        thread_id=row.thread_id,
        seq=row.seq,
        expires=None if row.expires is None else moment(row.expires),
    )


def _decode(namespace: Namespace[Any] | str, stored: bytes, where: str) -> Any:
    if not isinstance(namespace, str):
        return namespace.codec.decode(stored, where)
    try:
        return msgspec.json.decode(stored)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"{where}: what is stored is no JSON: {error}") from None
