"""A TCP proxy before a server, which can cut connections off at a chosen moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Proxy:
    """Passes bytes on, until it is told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._server: asyncio.Server | None = None
        self._swallows: bytes | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def lose_answer_to(self, request: bytes) -> None:
        """Once: pass on what holds these bytes, and cut the connection in place of the answer."""
        self._swallows = request

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for pair in list(self._pairs):
            _cut(pair)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        pair = writer, far_writer
        self._pairs.add(pair)
        lost = asyncio.Event()
        try:
            await asyncio.gather(
                self._requests(reader, far_writer, lost), self._answers(far_reader, writer, lost)
            )
        except OSError:
            pass
        finally:
            _cut(pair)
            self._pairs.discard(pair)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        while piece := await reader.read(65536):
            if self._swallows is not None and self._swallows in piece:
                self._swallows = None
                lost.set()
            writer.write(piece)
            await writer.drain()
        raise ConnectionError("the client is gone")

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        while piece := await reader.read(65536):
            if lost.is_set():
                raise ConnectionError("cut in place of an answer")
            writer.write(piece)
            await writer.drain()
        raise ConnectionError("the server is gone")


def _cut(pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
    for writer in pair:
        with contextlib.suppress(OSError):
            writer.transport.abort()


@asynccontextmanager
async def proxy(host: str, port: int) -> AsyncGenerator[Proxy, None]:
    """A proxy before a server that listens there."""
    made = Proxy(host, port)
    await made.open()
    try:
        yield made
    finally:
        await made.close()
