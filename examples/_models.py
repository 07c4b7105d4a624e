"""The models that the examples ask: one that follows a script, and any OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from perdure import Choice, Message, ToolCall, record, to_openai


@record
class Answer:
    """What a model said, and what it cost."""

    message: Message
    tokens: int


class Model(Protocol):
    """Something that continues a conversation, and may call tools."""

    async def complete(self, talk: Sequence[Message], tools: Sequence[Choice]) -> Answer: ...


@attrs.frozen(kw_only=True)
class ChatCompletions:
    """A model behind the chat-completions API, answering as a stream.

    Nothing is tried again in here: what raises is not kept, and the state's own attempts ask again.
    """

    model: str
    base_url: str
    api_key: str
    timeout: float = 60.0
    """Seconds without a byte of the answer."""

    async def complete(self, talk: Sequence[Message], tools: Sequence[Choice]) -> Answer:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(
            base_url=self.base_url, api_key=self.api_key, timeout=self.timeout, max_retries=0
        ) as client:
            completions: Any = client.chat.completions
            chunks = await completions.create(
                model=self.model,
                messages=to_openai(talk),
                tools=[tool.openai() for tool in tools],
                stream=True,
                stream_options={"include_usage": True},
            )
            return await _collected(chunks)


async def _collected(chunks: Any) -> Answer:
    """The whole answer from its pieces. ``ValueError`` where the stream ended before the answer did."""
    content, calls, tokens, finished = "", dict[int, dict[str, str]](), 0, False
    async for chunk in chunks:
        tokens = chunk.usage.total_tokens if chunk.usage else tokens
        for choice in chunk.choices[:1]:
            finished = finished or choice.finish_reason is not None
            content += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = piece.id or call["id"]
                call["name"] += piece.function.name or ""
                call["arguments"] += piece.function.arguments or ""
    if not finished:
        raise ValueError("the model's answer broke off")
    asked = [ToolCall(**calls[index]) for index in sorted(calls)]
    return Answer(message=Message(role="assistant", content=content, tool_calls=asked), tokens=tokens)


@attrs.frozen(kw_only=True)
class Scripted:
    """A model that needs no network: it looks, opens a ticket where a customer waits, and concludes."""

    waits: Sequence[str] = ("?", "still", "broken", "wrong", "not ", "nicht", "never", "refund", "missing")

    async def complete(self, talk: Sequence[Message], tools: Sequence[Choice]) -> Answer:
        results = {message.name: message.content for message in talk if message.role == "tool"}
        calls = self._next(talk[1].content, results)
        asked = [
            ToolCall(id=f"call_{len(talk)}_{i}", name=name, arguments=json.dumps(arguments))
            for i, (name, arguments) in enumerate(calls)
        ]
        spent = sum(len(message.content) for message in talk) // 4
        return Answer(message=Message(role="assistant", content="", tool_calls=asked), tokens=spent)

    def _next(self, customer: str, results: Mapping[str | None, str]) -> list[tuple[str, dict[str, Any]]]:
        if "read_messages" not in results:
            looks = (
                ("read_messages", {"customer_id": customer, "newest": 3}),
                ("list_orders", {"customer_id": customer}),
            )
            return list(looks)
        mails, orders = json.loads(results["read_messages"]), json.loads(results["list_orders"])
        newest = mails[-1] if mails else None
        if newest is None or newest["sender"] != "customer":
            return [("settle", {"topic": "nothing is open", "urgent": False})]
        if "open_ticket" not in results and any(word in newest["text"].lower() for word in self.waits):
            order = orders[-1]["id"] if orders else None
            return [("open_ticket", {"customer_id": customer, "order_id": order, "about": newest["subject"]})]
        return [("settle", {"topic": newest["subject"], "urgent": "open_ticket" in results})]


def model_from_environment() -> Model:
    """The endpoint in ``OPENAI_BASE_URL``, with ``OPENAI_API_KEY`` and ``OPENAI_MODEL``; else a script."""
    url = os.environ.get("OPENAI_BASE_URL")
    if not url:
        return Scripted()
    return ChatCompletions(
        model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"),
        base_url=url,
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
