"""The connections of a PostgreSQL store: a bounded pool, which makes new ones where old ones are lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
import asyncpg
from attrs import define, field

from ._errors import StoreError
from ._postgres_errors import AGAIN, FAILURES, READ_ONLY, explain, is_of_one_write, state_of, unknown
from ._postgres_place import Place, arguments
from ._postgres_session import Session
from ._sql_steps import Row

T = TypeVar("T")

TRIES = 20
"""How often a transaction is tried that stands in another's way."""
IDLE = "SET LOCAL idle_in_transaction_session_timeout"
LONGEST = 4
"""So many times as long as a statement may a transaction take."""
LIMITS_TRANSACTIONS = (17,)
"""From this version on the server keeps that limit itself."""
CLOSING = 2.0
"""Seconds that the server has to take leave of the connections when the store is closed."""


@define
class Landing:
    """How far a write got."""

    begun: bool = False
    """From now on it may land, whether the answer comes or not."""


@define
class Link:
    """Sessions on one schema. Whatever the driver raises leaves here as an error of the store."""

    place: Place
    pool: asyncpg.Pool[Any] = field(init=False)

    async def open(self) -> None:
        self.pool = asyncpg.create_pool(self.place.dsn, reset=_nothing, **arguments(self.place))
        try:
            await self.pool
        except (*FAILURES, ValueError) as error:
            raise explain(self.place.where, error, opening=True) from None

    async def close(self) -> None:
        with suppress(*FAILURES):
            await asyncio.wait_for(self.pool.close(), CLOSING)
        self.pool.terminate()

    async def read(self, statement: str, values: Row) -> Sequence[Row]:
        """The rows of one statement that writes nothing; none where it asks for what no row can hold."""

        async def once(session: Session, landing: Landing) -> Sequence[Row]:
            try:
                return await session.fetch(statement, values)
            except FAILURES as error:
                if is_of_one_write(error):
                    return ()
                raise

        return await self._until_alone(once)

    async def write(self, statement: str, values: Row) -> Sequence[Row]:
        """The rows of one statement that writes, by itself: when this returns, the disk has it."""

        async def once(session: Session, landing: Landing) -> Sequence[Row]:
            landing.begun = True
            return await session.fetch(statement, values)

        return await self._until_alone(once)

    async def transact(self, work: Callable[[Session], Awaitable[T]], *, opening: bool = False) -> T:
        """Do some work in a transaction of its own: when this returns, the disk has all of it.

        What the work raises leaves nothing written.
        """

        async def once(session: Session, landing: Landing) -> T:
            await session.connection.execute(self._begin(session, opening))
            try:
                answer = await work(session)
            except Exception as error:
                if _is_refusal(error):
                    await session.connection.execute("ROLLBACK")
                raise
            landing.begun = True
            await session.connection.execute("COMMIT")
            return answer

        return await self._until_alone(once, opening=opening)

    def _begin(self, session: Session, opening: bool) -> str:
        """One round trip. Where the network falls silent, the server hears of no end, and would keep the
        transaction's locks until TCP gives up, which may take it hours."""
        most = int(self.place.timeout * 1000)
        begin = f"BEGIN ISOLATION LEVEL READ COMMITTED; {IDLE} = {most}"
        if opening or session.connection.get_server_version() < LIMITS_TRANSACTIONS:
            return begin
        # Between preparing a statement and running it, a transaction does not count as idle.
        return f"{begin}; SET LOCAL transaction_timeout = {LONGEST * most}"

    async def _until_alone(
        self, once: Callable[[Session, Landing], Awaitable[T]], *, opening: bool = False
    ) -> T:
        """Write or read, and again where it and another write stood in each other's way, or, once, where
        the connection turned out to be lost before anything was written."""
        tries = 0
        while True:
            landing = Landing()
            try:
                async with self._session() as session:
                    return await once(session, landing)
            except FAILURES as error:
                lost = _is_lost(error)
                if lost or state_of(error) == READ_ONLY:
                    # The others were lost with it, or lead to what was the primary once.
                    await self._renew()
                if landing.begun and not _is_refusal(error):
                    raise unknown(self.place.where, error) from error
                tries += 1
                most = TRIES if state_of(error) in AGAIN else 1 + lost
                if tries >= most:
                    raise explain(self.place.where, error, opening=opening) from error
            await anyio.sleep(random.uniform(0, 0.002 * tries))

    async def _renew(self) -> None:
        """Let every call from now on have a connection that is made after it."""
        with suppress(asyncpg.InterfaceError):  # the store is being closed
            await self.pool.expire_connections()

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[Session, None]:
        """A connection. One on which something failed is not used again: it may be in any state."""
        async with self.pool.acquire() as connection:
            try:
                yield Session(connection, self.place.schema, self.place.where)
            except BaseException as error:
                if not _is_refusal(error):
                    with suppress(asyncpg.InterfaceError):  # it ended and left the pool by itself
                        connection.terminate()
                raise


def _is_refusal(error: BaseException) -> bool:
    """The store, the server, or the driver before it sent anything, said no: nothing was written."""
    return isinstance(error, StoreError) or bool(state_of(error)) or is_of_one_write(error)


def _is_lost(error: BaseException) -> bool:
    """The connection ended. Whoever has waited in vain waits no second time."""
    return not state_of(error) and not isinstance(error, TimeoutError)


async def _nothing(connection: object) -> None:
    """A connection carries nothing from one use to the next, so there is nothing to reset: that would cost
    each write a second round trip."""
