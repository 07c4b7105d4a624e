"""A chat-completions endpoint on loopback that answers as it is told, reply by reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs

PIECE = 7
"""Characters of a streamed piece: small, so that names and JSON are cut anywhere."""


@attrs.frozen
class Said:
    """A whole answer: text, and calls of tools as (name, arguments as they are written)."""

    calls: Sequence[tuple[str, str]] = ()
    text: str = ""
    tokens: int = 100


@attrs.frozen
class Fails:
    """A status instead of an answer."""

    status: int
    headers: Sequence[tuple[str, str]] = ()


@attrs.frozen
class Breaks:
    """The stream ends in the middle of an answer."""


@attrs.frozen
class Garbles:
    """The stream holds no JSON."""


@attrs.frozen
class Hangs:
    """Not one byte comes."""


Reply = Said | Fails | Breaks | Garbles | Hangs


@attrs.define
class ChatServer:
    """Answers each request with the next reply; the last one is repeated."""

    replies: list[Reply]
    url: str = ""
    requests: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length:")[2].split()[0])
            self.requests.append(json.loads(await reader.readexactly(length)))
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
            if isinstance(reply, Hangs):
                await reader.read()  # until the client goes
            else:
                writer.write(_bytes(reply, len(self.requests)))
                await writer.drain()
        writer.close()


def _bytes(reply: Said | Fails | Breaks | Garbles, number: int) -> bytes:
    if isinstance(reply, Fails):
        body = b'{"error":{"message":"as it was told","type":"test"}}'
        headers = [*reply.headers, ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        return _head(f"{reply.status} No", headers) + body
    events = (
        ['{"id":'] if isinstance(reply, Garbles) else [json.dumps(each) for each in _chunks(reply, number)]
    )
    if isinstance(reply, Said):
        events.append("[DONE]")
    stream = "".join(f"data: {event}\n\n" for event in events)
    return _head("200 OK", [("Content-Type", "text/event-stream")]) + stream.encode()


def _head(status: str, headers: Sequence[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Connection: close", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _chunks(reply: Said | Breaks, number: int) -> list[dict[str, Any]]:
    if isinstance(reply, Breaks):
        return [_chunk({"role": "assistant", "content": "I think that"})]
    chunks = [_chunk({"role": "assistant", "content": reply.text[:PIECE]})]
    chunks += [_chunk({"content": piece}) for piece in _pieces(reply.text[PIECE:])]
    for index, (name, arguments) in enumerate(reply.calls):
        start = {"index": index, "id": f"call_{number}_{index}", "type": "function"}
        chunks.append(_chunk({"tool_calls": [{**start, "function": {"name": name, "arguments": ""}}]}))
        for piece in _pieces(arguments):
            chunks.append(_chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
    chunks.append(_chunk({}, finish="tool_calls" if reply.calls else "stop"))
    used = {"prompt_tokens": reply.tokens - 1, "completion_tokens": 1, "total_tokens": reply.tokens}
    return [*chunks, {**_chunk({}), "choices": [], "usage": used}]


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


@asynccontextmanager
async def chat_server(*replies: Reply) -> AsyncGenerator[ChatServer]:
    """The server while the block runs."""
    chat = ChatServer(list(replies))
    server = await asyncio.start_server(chat.serve, "127.0.0.1", 0)
    async with server:
        chat.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield chat
