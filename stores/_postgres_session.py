"""One PostgreSQL connection in use: statements for the store's schema, locks, and work that asks for both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define

from ._sql_steps import Dialect, Row, Steps

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

T = TypeVar("T")

POSTGRES = Dialect(
    join="JOIN",
    index="",
    numbers="unnest(CAST(? AS BIGINT[])) AS j (value)",
    derived="workspace = ? AND derived_from @> to_jsonb(CAST(? AS TEXT))",
    row="ctid",
    lock="FOR UPDATE SKIP LOCKED",
)

TABLE = re.compile(
    r"\b(FROM|JOIN|INTO|UPDATE|TABLE|ON)\s+(perdure|thread|standing|log|items|inbox|message|memory|artifact"
    r"|effect_key|outbox|worker|definition|slot|pace)\b(?!\.)"
)

HOUR = 3600.0
"""Seconds that a change of the schema may take, as where it makes an index over many rows."""

LOCKS = "SELECT pg_advisory_xact_lock(key) FROM unnest(CAST(? AS BIGINT[])) AS key"


@lru_cache(maxsize=2048)
def translate(statement: str, quoted: str) -> str:
    """The statement as the driver takes it: its tables by the schema's name, since no connection remembers a
    search path behind a pooler, and its values numbered."""
    numbers = count(1)
    named = TABLE.sub(lambda found: f"{found[1]} {quoted}.{found[2]}", statement)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", named)


def quote(name: str) -> str:
    """A name as PostgreSQL takes it, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def lock_key(*names: str) -> int:
    """The number of an advisory lock for what bears these names. Two things with one number only wait for
    each other."""
    digest = blake2b("\0".join(names).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


@define
class Session:
    """A connection with an open transaction, or, for one statement that stands alone, without."""

    connection: PoolConnectionProxy[Any]
    schema: str
    where: str
    """The store, for people: without credentials."""

    @property
    def quoted(self) -> str:
        return quote(self.schema)

    async def fetch(self, statement: str, values: Row) -> Sequence[Row]:
        rows: Sequence[Row] = await self.connection.fetch(translate(statement, self.quoted), *values)
        return rows

    async def run(self, statement: str) -> None:
        """Run a statement without values, however long it takes."""
        await self.connection.execute(translate(statement, self.quoted), timeout=HOUR)

    async def lock(self, keys: Iterable[int]) -> None:
        """Wait for the turn of this transaction; all take their locks in one order, so that none waits for
        one that waits for it."""
        await self.fetch(LOCKS, (sorted(set(keys)),))

    async def take(self, steps: Steps[T]) -> T:
        """Run work to its end, and answer what it does."""
        try:
            ask = next(steps)
            while True:
                ask = steps.send(await self.fetch(*ask))
        except StopIteration as done:
            answer: T = done.value
            return answer
