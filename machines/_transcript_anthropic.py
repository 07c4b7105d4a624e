"""A transcript as the Anthropic messages API writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from ._record import Message, ToolCall
from ._transcript import (
    INSTRUCTIONS,
    Json,
    cannot_hold,
    check_transcript,
    enumerated,
    json_object,
    kind_of,
    only,
    refuse,
    text_of,
)


@attrs.frozen(kw_only=True)
class AnthropicMessages:
    """The two arguments of a request to the Anthropic messages API that a transcript fills."""

    system: list[Json]
    """Text blocks: the instructions that stand before everything else."""
    messages: list[Json]


def to_anthropic(messages: Sequence[Message], /) -> AnthropicMessages:
    """The transcript as ``system`` and ``messages`` of a request to the Anthropic messages API.

    System and developer messages at the beginning become ``system``; later ones stay where they are.
    Messages of one role in a row become one, a tool's answers first in the user's turn. Text that is blank is
    left out, since this API refuses it, and with it a message that has nothing else. It has no place for
    names, nor for the mark of a refusal. Raises ``BadTranscript``, also where a tool call is not answered
    directly after it, its arguments are no JSON object, or an assistant begins.
    """
    check_transcript(messages)
    first = next((n for n, m in enumerate(messages) if m.role not in INSTRUCTIONS), len(messages))
    turns: list[Json] = []
    for n, message in enumerate(messages[first:], first):
        role = "system" if message.role in INSTRUCTIONS else message.role
        role = "user" if role == "tool" else role
        blocks = _blocks(message, f"messages[{n}]")
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
        if len(turns) == 1 and role == "assistant":
            refuse(f"messages[{n}].role", "this API has the user begin; put a user's message before it")
    return AnthropicMessages(
        system=[block for message in messages[:first] for block in _text(message.content)],
        messages=turns,
    )


def _text(text: str) -> list[Json]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _blocks(message: Message, at: str) -> list[Json]:
    if message.role == "tool":
        answer: Json = {"type": "tool_result", "tool_use_id": message.tool_call_id}
        if message.content.strip():
            answer["content"] = message.content
        if message.tool_failed:
            answer["is_error"] = True
        return [answer]
    blocks = _text(message.content)
    for n, call in enumerate(message.tool_calls):
        arguments = json_object(call.arguments, f"{at}.tool_calls[{n}].arguments")
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def from_anthropic(
    messages: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    /,
    *,
    system: str | Sequence[Mapping[str, Any]] = (),
) -> list[Message]:
    """The messages of a request to the Anthropic messages API, or the one of an answer, as they are kept.

    They are mappings, such as ``message.model_dump()`` gives. Each text block becomes a message of its own,
    with the tool calls that follow it; each tool's answer is a message, named as the call that it answers.
    Raises ``BadTranscript`` for images, documents, thinking, citations, tools of the provider's own and keys
    that are not known.
    """
    found = [
        Message(role="system", content=text) for text in _texts(system, "system") if text
    ]  # fmt: skip
    names: dict[str, str] = {}
    for at, message in enumerated(messages):
        role = text_of(message, "role", at)
        if role not in ("user", "assistant", "system"):
            refuse(f"{at}.role", f"{role!r} is none of user, assistant, system")
        only(message, _MESSAGE_KEYS, at)
        turn = _turn(role, message.get("content"), f"{at}.content", names)
        names |= {call.id: call.name for kept in turn for call in kept.tool_calls}
        found += turn
    return found


_ANSWER_KEYS: Final = frozenset(
    {
        "id",
        "type",
        "model",
        "stop_reason",
        "stop_sequence",
        "stop_details",
        "usage",
        "container",
        "diagnostics",
    }
)
"""What an answer tells of itself beside what it says."""
_MESSAGE_KEYS: Final = frozenset({"role", "content"}) | _ANSWER_KEYS


def _turn(role: str, content: object, at: str, names: Mapping[str, str]) -> list[Message]:
    if isinstance(content, str):
        return [Message(role=role, content=content)]
    found: list[Message] = []
    for where, block in enumerated(_listed(content, at), at):
        match role, text_of(block, "type", where):
            case _, "text":
                if found and found[-1].tool_calls:
                    refuse(where, "text after a tool_use, which this API refuses: put it before")
                found.append(Message(role=role, content=_text_of(block, where)))
            case "assistant", "tool_use":
                last = found.pop() if found else Message(role=role, content="")
                calls = (*last.tool_calls, _call(block, where))
                found.append(Message(role=role, content=last.content, tool_calls=calls))
            case "user", "tool_result":
                found.append(_answer(block, where, names))
            case _, ("tool_use" | "tool_result") as kind:
                refuse(f"{where}.type", f"a {kind} in a message of the role {role!r}")
            case _, kind:
                cannot_hold(where, kind)
    return found


def _listed(content: object, at: str) -> Sequence[Any]:
    given: Any = content
    if isinstance(content, (str, Mapping)) or not isinstance(content, Sequence):
        refuse(at, f"it is {kind_of(given)}, and has to be text or a list of blocks")
    blocks: Sequence[Any] = given
    return blocks


def _texts(content: object, at: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for where, block in enumerated(_listed(content, at), at):
        if (kind := text_of(block, "type", where)) != "text":
            cannot_hold(where, kind)
        texts.append(_text_of(block, where))
    return texts


def _text_of(block: Mapping[str, Any], at: str) -> str:
    only(block, {"type", "text"}, at)
    return text_of(block, "text", at)


def _call(block: Mapping[str, Any], at: str) -> ToolCall:
    if block.get("caller") == {"type": "direct"}:
        block = {key: value for key, value in block.items() if key != "caller"}
    only(block, {"type", "id", "name", "input"}, at)
    given = block.get("input")
    if not isinstance(given, Mapping):
        refuse(f"{at}.input", f"it is {kind_of(given)}, and has to be an object")
    try:
        arguments = json.dumps(given, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        refuse(f"{at}.input", f"it is no JSON: {error}")
    return ToolCall(id=text_of(block, "id", at), name=text_of(block, "name", at), arguments=arguments)


def _answer(block: Mapping[str, Any], at: str, names: Mapping[str, str]) -> Message:
    only(block, {"type", "tool_use_id", "content", "is_error"}, at)
    content = block.get("content")
    call = text_of(block, "tool_use_id", at)
    failed = block.get("is_error") or False
    if not isinstance(failed, bool):
        refuse(f"{at}.is_error", f"it is {kind_of(failed)}, and has to be true or false")
    return Message(
        role="tool",
        content="" if content is None else "\n".join(_texts(content, f"{at}.content")),
        name=names.get(call),
        tool_call_id=call,
        tool_failed=failed,
    )
