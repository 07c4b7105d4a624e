"""A kept conversation as the message history of a pydantic-ai agent, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic_ai.messages import (
    ERROR_OUTCOMES,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    RetryFeedbackPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from perdure.machines import BadTranscript, Message, ToolCall


def to_model_messages(messages: Sequence[Message], /) -> list[ModelMessage]:
    """The history that an agent is given as ``message_history``. Raises ``BadTranscript``."""
    found: list[ModelMessage] = []
    names: dict[str, str] = {}
    for n, message in enumerate(messages):
        if message.role == "assistant":
            names |= {call.id: call.name for call in message.tool_calls}
            found.append(ModelResponse(parts=_response_parts(message)))
            continue
        last = found[-1] if found else None
        before = last.parts if isinstance(last, ModelRequest) else ()
        if before:
            found.pop()
        found.append(ModelRequest(parts=[*before, _request_part(message, names, f"messages[{n}]")]))
    return found


def _response_parts(message: Message) -> list[ModelResponsePart]:
    text: list[ModelResponsePart] = [TextPart(content=message.content)] if message.content else []
    return [*text, *(ToolCallPart(c.name, c.arguments, c.id) for c in message.tool_calls)]


def _request_part(message: Message, names: dict[str, str], at: str) -> ModelRequestPart:
    match message.role:
        case "system" | "developer":
            return SystemPromptPart(content=message.content)
        case "user":
            return UserPromptPart(content=message.content)
        case "tool":
            call = message.tool_call_id or ""
            name = message.name or names.get(call)
            if name is None:
                raise BadTranscript(
                    f"{at}.name: the tool's name is missing, and no call here has the id {call!r}"
                )
            outcome: Literal["failed", "success"] = "failed" if message.tool_failed else "success"
            return ToolReturnPart(name, message.content, call, outcome=outcome)
        case role:
            raise BadTranscript(f"{at}.role: {role!r} is none of system, developer, user, assistant, tool")


def from_model_messages(messages: Sequence[ModelMessage], /) -> list[Message]:
    """An agent's messages, as ``result.new_messages()`` gives them, to be kept in a ``Conversation`` field.

    Thinking is left out: it is of use only within the run that it belongs to. Instructions are the agent's,
    and are given anew in each run. Raises ``BadTranscript`` for images and other files.
    """
    found: list[Message] = []
    for n, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            found += _answered(message, f"messages[{n}]")
        else:
            found += [_asked(part, f"messages[{n}].parts[{m}]") for m, part in enumerate(message.parts)]
    return found


def _answered(message: ModelResponse, at: str) -> list[Message]:
    texts: list[str] = []
    calls: list[ToolCall] = []
    for n, part in enumerate(message.parts):
        match part:
            case TextPart():
                texts.append(part.content)
            case ToolCallPart():
                calls.append(
                    ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=part.args_as_json_str())
                )
            case ThinkingPart():
                pass
            case _:
                _refuse(part, f"{at}.parts[{n}]")
    if not texts and not calls:
        return []
    return [Message(role="assistant", content="".join(texts), tool_calls=tuple(calls))]


def _asked(part: ModelRequestPart, at: str) -> Message:
    match part:
        case SystemPromptPart():
            return Message(role="system", content=part.content)
        case UserPromptPart():
            return Message(role="user", content=_prompt(part, at))
        case RetryFeedbackPart():
            return Message(role="user", content=part.model_response())
        case ToolReturnPart():
            return Message(
                role="tool",
                content=part.model_response_str(wrap_if_error=False),
                name=part.tool_name,
                tool_call_id=part.tool_call_id,
                tool_failed=part.outcome in ERROR_OUTCOMES,
            )
        case _:
            _refuse(part, at)
            raise AssertionError


def _prompt(part: UserPromptPart, at: str) -> str:
    if isinstance(part.content, str):
        return part.content
    texts: list[str] = []
    for n, item in enumerate(part.content):
        if isinstance(item, TextContent):
            texts.append(item.content)
        elif isinstance(item, str):
            texts.append(item)
        else:
            _refuse(item, f"{at}.content[{n}]")
    return "\n".join(texts)


def _refuse(what: object, at: str) -> None:
    raise BadTranscript(
        f"{at}: a kept message holds text and tool calls, and no {type(what).__name__}: take it out "
        "before, and keep it in an artifact or in a field of its own"
    )
