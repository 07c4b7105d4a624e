"""Hints through PostgreSQL's LISTEN and NOTIFY, on a connection of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import asyncpg

from ._postgres_errors import FAILURES
from ._postgres_place import Place, of_each
from ._postgres_session import lock_key

NOTIFY = "SELECT pg_notify(?, ?)"
PAUSE = 2.0
"""Seconds before another connection is made in place of one that was lost."""
CHECK = 30.0
"""Seconds after which a silent connection is asked whether it still is one."""


def channel_of(schema: str) -> str:
    return f"perdure_{lock_key(schema, 'nudges') % 2**64:016x}"


async def listen(place: Place, heard: Callable[[str], None]) -> None:
    """Call ``heard`` for whatever is said on the schema's channel, until cancelled."""
    while True:
        try:
            if not await _listen(place, heard):
                await anyio.sleep_forever()
        except FAILURES:  # a store that is away is told of by whoever reads and writes
            pass
        await anyio.sleep(PAUSE)


async def _listen(place: Place, heard: Callable[[str], None]) -> bool:
    """Until the connection ends; False at once where a pooler hands it to others between transactions, so
    that what is said to it is lost."""
    connection = await asyncpg.connect(place.dsn, **of_each(place))

    def hear(*told: object) -> None:
        heard(str(told[3]))

    try:
        if await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid():
            return False
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        await connection.add_listener(channel_of(place.schema), hear)
        while not ended.is_set():
            with anyio.move_on_after(CHECK):
                await ended.wait()
            if not ended.is_set():
                await connection.fetchval("SELECT 1")
        return True
    finally:
        connection.terminate()
