"""A relay before a server that keeps what clients send."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from attrs import define, field


@define(eq=False)
class Recorder:
    """What was sent, connection by connection, and where to send it."""

    endpoint: str = ""
    sent: list[bytearray] = field(factory=list[bytearray])

    def headers(self, name: str) -> dict[str, list[str]]:
        """What a header held, by the method and the kind of each request that had it."""
        found: dict[str, list[str]] = {}
        for sent in self.sent:
            for head in re.findall(rb"^(?:GET|PUT|POST) .*?\r\n\r\n", bytes(sent), re.DOTALL | re.MULTILINE):
                value = re.search(rb"^" + name.encode() + rb": (.*)\r$", head, re.IGNORECASE | re.MULTILINE)
                if value is not None:
                    copied = re.search(rb"^x-amz-copy-source:", head, re.IGNORECASE | re.MULTILINE)
                    kind = head.split(b" ")[0].decode() + (" copy" if copied else "")
                    found.setdefault(kind, []).append(value[1].decode())
        return found


@asynccontextmanager
async def recorder(host: str, port: int) -> AsyncGenerator[Recorder]:
    """A relay before the server that listens there."""
    made = Recorder()
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection(host, port)
        seen = bytearray()
        made.sent.append(seen)
        try:
            with contextlib.suppress(OSError):
                await asyncio.gather(_pass(reader, far_writer, seen), _pass(far_reader, writer, bytearray()))
        finally:
            for each in (writer, far_writer):
                each.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray) -> None:
    while piece := await reader.read(65536):
        seen += piece
        writer.write(piece)
        await writer.drain()
    raise ConnectionError("one side is gone")
