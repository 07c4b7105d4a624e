"""An HTTP receiver in a process of its own: it notes every arrival on the disk before it answers.

    python -m soak.ledger FILE

It prints its port. ``/send`` counts a key once and notes each repeat; ``/find`` answers lookups. The network
before it is slow: some requests take effect late, and answers take a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

LATE = 1.2
"""Seconds by which some requests take effect late. Below any ``settle``."""
SLOW = 0.6
"""Seconds that an answer takes at the most."""


class Ledger:
    """What arrived, by key; the file holds it all."""

    def __init__(self, file: Path) -> None:
        self._out = file.open("ab", buffering=0)
        self._numbers: dict[str, int] = {}

    async def answer(self, path: str, asked: dict[str, Any]) -> Any:
        key: str = asked["key"]
        if path == "/find":
            return self._numbers.get(key)
        effect_late, answer_late = sha256(key.encode()).digest()[:2]
        if effect_late < 50:
            await asyncio.sleep(LATE)
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._out.write(json.dumps({**asked, "at": time.time(), "number": number}).encode() + b"\n")
        os.fsync(self._out.fileno())
        await asyncio.sleep(SLOW * answer_late / 255)
        return number

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # whoever asks may be killed
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            length = next(int(line[15:]) for line in head if line.lower().startswith("content-length:"))
            asked = json.loads(await reader.readexactly(length))
            said = json.dumps(await self.answer(head[0].split()[1], asked)).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said) + said)
            await writer.drain()
        writer.close()


async def post(port: int, path: str, **body: Any) -> Any:
    """One request to the ledger, and its answer. ``ConnectionError`` where it does not come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        said = json.dumps(body).encode()
        writer.write(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(said)) + said)
        answer = await reader.read()
        if not answer:
            raise ConnectionError("the ledger closed the connection")
        return json.loads(answer.partition(b"\r\n\r\n")[2])
    finally:
        writer.close()


async def main(file: Path) -> None:
    """Serve until somebody ends the process."""
    server = await asyncio.start_server(Ledger(file).serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
