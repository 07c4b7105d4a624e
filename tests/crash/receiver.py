"""A receiver in a process of its own: it logs every raw arrival, never drops a repeated one, answers lookups.

One JSON object a line in, one out. ``run`` names the run that a request belongs to, so that one process
serves a whole sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import defaultdict
from typing import Any


class Receiver:
    """What arrived, by run."""

    def __init__(self) -> None:
        self.arrivals: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.reads: dict[tuple[str, str], int] = defaultdict(int)

    def answer(self, asked: dict[str, Any]) -> Any:
        run = asked["run"]
        match asked["op"]:
            case "arrive":
                self.arrivals[run].append({k: asked[k] for k in ("effect", "key", "args")})
                return len(self.arrivals[run])
            case "find":
                return next((a for a in self.arrivals[run] if a["key"] == asked["key"]), None)
            case "read":
                self.reads[run, asked["what"]] += 1
                return self.reads[run, asked["what"]]
            case "arrivals":
                return self.arrivals[run]
            case other:
                raise ValueError(f"unknown request {other!r}")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # whoever asks may be killed
            while line := await reader.readline():
                writer.write(json.dumps(self.answer(json.loads(line))).encode() + b"\n")
                await writer.drain()
        writer.close()


def start_receiver() -> tuple[int, int]:
    """Fork the receiver; its process id and port on loopback."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        with os.fdopen(read_end) as told:
            return pid, int(told.read())
    try:
        os.close(read_end)
        asyncio.run(_serve(write_end))
    finally:
        os._exit(0)


async def _serve(write_end: int) -> None:
    server = await asyncio.start_server(Receiver().serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with os.fdopen(write_end, "w") as told:
        told.write(str(port))
    async with server:
        await server.serve_forever()


def stop_receiver(pid: int) -> None:
    """End the receiver that ``start_receiver`` forked."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


async def ask(port: int, **request: Any) -> Any:
    """One request to the receiver."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise ConnectionError("the receiver closed the connection")
        return json.loads(line)
    finally:
        writer.close()
