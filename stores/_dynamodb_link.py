"""Calls to DynamoDB: made again while the service is busy or does not answer, up to a moment."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import anyio
from attrs import define, field

from ._dynamodb_errors import BOTO, FAILURES, Verdict, cancelled, explain, judge, unknown
from ._dynamodb_place import Place
from ._errors import StoreUnavailable

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
"""Seconds between two tries: at most so much, at random, doubled each time."""
LARGE = 1_000_000
"""Bytes of a body that is sent in pieces."""
TRIES = 2
"""So many fit into the time of a call, where each is answered as late as can be."""


Asked = Mapping[str, Any]
"""What is asked and answered, as the driver has it."""


@define
class Link:
    """A client of one table's service. Whatever the driver raises leaves here as an error of the store."""

    place: Place
    jitter: Callable[[float, float], float]
    """A number between two, at random."""
    _client: Any = field(default=None, init=False, repr=False)

    async def open(self) -> None:
        """Make the client; nothing is sent."""
        try:
            session = await anyio.to_thread.run_sync(_session)
            self._client = await session.create_client(
                "dynamodb",
                region_name=self.place.region,
                endpoint_url=self.place.endpoint,
                config=_config(self.place),
            ).__aenter__()
            self._client.meta.events.register("before-send.dynamodb", _in_pieces)
        except FAILURES as error:
            raise explain(self.place.where, error, opening=True) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    async def read(self, operation: str, asked: Asked, /, *, opening: bool = False) -> Asked:
        """One call that changes nothing, named as the driver names it."""
        return await self._call(operation, asked, writes=False, opening=opening)

    async def write(self, operation: str, asked: Asked, /, *, opening: bool = False) -> Asked:
        """One call that writes. ``Cancelled`` where a condition did not hold and it is known that it was not
        an earlier try of this very call that has changed that."""
        return await self._call(operation, asked, writes=True, opening=opening)

    def tries(self) -> Tries:
        """For one call, from now on."""
        return Tries(self.place.timeout, self.jitter)

    async def _call(self, operation: str, asked: Asked, *, writes: bool, opening: bool) -> Asked:
        tries = self.tries()
        lost = False
        while True:
            try:
                return await self._once(operation, asked)
            except FAILURES as error:
                verdict = judge(error)
                lost = lost or (writes and verdict is Verdict.LOST)
                if verdict in (Verdict.BUSY, Verdict.LOST) and await tries.another():
                    continue
                if lost:
                    raise unknown(self.place.where, error) from error
                if verdict is Verdict.MOVED:
                    raise cancelled(error) from None
                raise explain(self.place.where, error, opening=opening) from error

    async def _once(self, operation: str, asked: Asked) -> Asked:
        if self._client is None:
            raise StoreUnavailable(f"{self.place.where} is not open: use it inside `async with`")
        with anyio.fail_after(_try_seconds(self.place)):
            answer: Asked = await getattr(self._client, operation)(**asked)
        return answer


class Tries:
    """When to try again, and when no more."""

    def __init__(self, seconds: float, jitter: Callable[[float, float], float]) -> None:
        self._jitter = jitter
        self._until = asyncio.get_running_loop().time() + seconds
        self._longest = FIRST_PAUSE

    async def another(self) -> bool:
        """Whether there is time for another try; it has come when this returns."""
        pause = self._jitter(0, self._longest)
        self._longest = min(2 * self._longest, LONGEST_PAUSE)
        if asyncio.get_running_loop().time() + pause > self._until:
            return False
        await anyio.sleep(pause)
        return True


def _session() -> Any:
    """A driver's session that has read its files, so that making a client reads none on the loop."""
    session = import_module("aiobotocore.session").get_session()
    session.warm_up_loader_caches("dynamodb")
    with suppress(BOTO.ProfileNotFound):
        session.full_config  # noqa: B018  # reads the configuration, and keeps it
    return session


def _in_pieces(request: Any, **_: object) -> None:
    """A large body holds the loop up where it is sent as one; aiohttp warns of that."""
    if len(request.body) > LARGE:
        request.body = io.BytesIO(request.body)


def _try_seconds(place: Place) -> float:
    return place.timeout / TRIES


def _config(place: Place) -> Any:
    return import_module("aiobotocore.config").AioConfig(
        max_pool_connections=place.connections,
        connect_timeout=_try_seconds(place),
        read_timeout=_try_seconds(place),
        retries={"mode": "standard", "total_max_attempts": 1},
    )
