"""A TCP proxy before a server, at which connections fail at a chosen byte, in every way in which they can."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from enum import Enum, auto

from attrs import define, field

PIECE = 65536
AT_ONCE_ON_CLOSE = struct.pack("ii", 1, 0)
"""Linger for no time: what closes then is reset."""


class Fault(Enum):
    """What becomes of a connection."""

    CUT = auto()
    """Both sides are told that it has ended."""
    RESET = auto()
    """Both sides are told that it is void."""
    SILENCE = auto()
    """Nobody is told anything, and nothing passes any more until the proxy resumes: late, and not lost."""


@define(eq=False)
class Connection:
    """One that passes through."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    passing: asyncio.Event

    def end(self, fault: Fault) -> None:
        for writer in (self.near, self.far):
            with contextlib.suppress(OSError):
                if fault is Fault.RESET:
                    raw = writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE_ON_CLOSE)
                    writer.transport.abort()
                else:
                    writer.close()


@define(eq=False)
class Proxy:
    """Passes bytes on, until it is told otherwise."""

    host: str
    port_of_server: int
    passed: dict[bool, int] = field(factory=lambda: {False: 0, True: 0}, init=False)
    """Bytes of requests (False) and of answers (True) that were passed on."""
    pieces: dict[bool, list[int]] = field(factory=lambda: {False: [], True: []}, init=False)
    """At which of these bytes each began that was sent at once."""
    struck: asyncio.Event = field(factory=asyncio.Event, init=False)
    """Set when a fault that was asked for has come."""
    _fault: Fault = field(default=Fault.CUT, init=False)
    _at: dict[bool, int] = field(factory=dict[bool, int], init=False)
    """At which byte of requests or of answers it strikes."""
    _marks: bytes = field(default=b"", init=False)
    """The request in place of whose answer it strikes."""
    _awake: asyncio.Event = field(factory=asyncio.Event, init=False)
    _server: asyncio.Server | None = field(default=None, init=False)
    _connections: set[Connection] = field(factory=set[Connection], init=False)
    _tasks: set[asyncio.Task[None]] = field(factory=set[asyncio.Task[None]], init=False)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def fail_after(self, count: int, fault: Fault, *, answers: bool) -> None:
        """Once: let so many more bytes of requests or of answers through, over all connections, and strike
        the connection that brings the next one."""
        self._fault, self._at = fault, {answers: self.passed[answers] + count}
        self.struck.clear()

    def fail_at_answer_to(self, request: bytes, fault: Fault) -> None:
        """Once: pass on what holds these bytes, and strike the connection in place of the answer."""
        self._fault, self._marks = fault, request
        self.struck.clear()

    def behave(self) -> None:
        """Forget a fault that was asked for and has not come."""
        self._at, self._marks = {}, b""

    def fall_silent(self) -> None:
        """Pass nothing on, on any connection, and make no new one."""
        self._awake.clear()
        for connection in self._connections:
            connection.passing.clear()

    def resume(self) -> None:
        """Pass on whatever was kept back, and what comes."""
        self._awake.set()
        for connection in self._connections:
            connection.passing.set()

    async def open(self) -> None:
        self._awake.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._awake.wait()
            far_reader, far = await asyncio.open_connection(self.host, self.port_of_server)
            await self._pass(near_reader, near, far_reader, far)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            near.transport.abort()
            self._tasks.discard(task)

    async def _pass(
        self,
        near_reader: asyncio.StreamReader,
        near: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far: asyncio.StreamWriter,
    ) -> None:
        connection = Connection(near, far, asyncio.Event())
        connection.passing.set()
        self._connections.add(connection)
        try:
            with contextlib.suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(connection, near_reader, far, answers=False))
                    both.create_task(self._pump(connection, far_reader, near, answers=True))
        finally:
            self._connections.discard(connection)
            connection.end(Fault.CUT)

    async def _pump(
        self,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        answers: bool,
    ) -> None:
        while piece := await reader.read(PIECE):
            await connection.passing.wait()
            for part, then in self._parts(piece, answers=answers):
                writer.write(part)
                await writer.drain()
                if then is Fault.SILENCE:
                    connection.passing.clear()
                elif then is not None:
                    connection.end(then)
                    raise ConnectionError("the proxy ended it")
                await connection.passing.wait()
        raise ConnectionError("one side is gone")

    def _parts(self, piece: bytes, *, answers: bool) -> list[tuple[bytes, Fault | None]]:
        """What is passed on at once, each with what happens after it."""
        before = self.passed[answers]
        self.pieces[answers].append(before)
        self.passed[answers] += len(piece)
        if not answers and self._marks and self._marks in piece:
            self._marks = b""
            self._at = {True: self.passed[True]}
        at = self._at.get(answers)
        if at is None or self.passed[answers] <= at:
            return [(piece, None)]
        self._at = {}
        self.struck.set()
        cut = at - before
        return [(piece[:cut], self._fault), (piece[cut:], None)]


@asynccontextmanager
async def proxy(host: str, port: int) -> AsyncGenerator[Proxy, None]:
    """A proxy before a server that listens there."""
    made = Proxy(host, port)
    await made.open()
    try:
        yield made
    finally:
        await made.close()
