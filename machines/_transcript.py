"""A transcript as the OpenAI chat-completions API writes it, and what both providers' transcripts share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias, cast

from ._record import Message, ToolCall

Json: TypeAlias = dict[str, Any]

INSTRUCTIONS: Final = ("system", "developer")
ROLES: Final = (*INSTRUCTIONS, "user", "assistant", "tool")
_NOTHING: Final[tuple[object, ...]] = (None, "", [], (), {})
_HINTS: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Keys that say how to ask and not what was said."""


class BadTranscript(Exception):
    """A transcript does not have the form that it should have, or holds what a ``Message`` cannot.

    The message reads ``messages[index].key: reason``.
    """


def to_openai(messages: Sequence[Message], /) -> list[Json]:
    """The transcript as the ``messages`` of a chat-completions request.

    A tool's name is not written (its call has it), nor ``tool_failed``, for which this API has no place: let
    the content say it. Raises ``BadTranscript``, also where a tool call is not answered directly after it.
    """
    check_transcript(messages)
    return [_openai_message(message) for message in messages]


def from_openai(messages: Mapping[str, Any] | Sequence[Mapping[str, Any]], /) -> list[Message]:
    """The messages of a chat-completions request, or the one of an answer, as they are kept.

    They are mappings, such as ``message.model_dump()`` gives. Several text parts are joined with a newline;
    a tool's answer gets the name of the call that it answers, where that is in the list. Raises
    ``BadTranscript`` for images, audio, files, annotations, custom tools and keys that are not known.
    """
    found: list[Message] = []
    names: dict[str, str] = {}
    for at, message in enumerated(messages):
        kept = _from_openai_message(message, at, names)
        names |= {call.id: call.name for call in kept.tool_calls}
        found.append(kept)
    return found


def _openai_message(message: Message) -> Json:
    made: Json = {"role": message.role, "content": message.content}
    if message.role == "tool":
        return made | {"tool_call_id": message.tool_call_id}
    if message.name is not None:
        made["name"] = message.name
    if message.refused:
        made |= {"content": None, "refusal": message.content}
    if message.tool_calls:
        made["content"] = message.content or None
        made["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    return made


_OPENAI_KEYS: Final = frozenset({"role", "content", "name", "refusal", "tool_calls", "tool_call_id"})


def _from_openai_message(message: Mapping[str, Any], at: str, names: Mapping[str, str]) -> Message:
    role = text_of(message, "role", at)
    if role not in ROLES:
        refuse(f"{at}.role", f"{role!r} is none of {', '.join(ROLES)}")
    only(message, _OPENAI_KEYS, at)
    content, refusal = _openai_content(message, at)
    name = optional_text(message, "name", at)
    calls = optional_list(message, "tool_calls", at)
    if calls and role != "assistant":
        refuse(f"{at}.tool_calls", f"only an assistant calls tools, and the role is {role!r}")
    answers = text_of(message, "tool_call_id", at) if role == "tool" else None
    return Message(
        role=role,
        content=refusal or content,
        refused=bool(refusal),
        name=names.get(answers, name) if answers is not None else name,
        tool_calls=tuple(_from_openai_call(c, f"{at}.tool_calls[{n}]") for n, c in enumerate(calls)),
        tool_call_id=answers,
    )


def _openai_content(message: Mapping[str, Any], at: str) -> tuple[str, str]:
    """What is said, and the refusal, of which at most one is not empty."""
    given = message.get("content")
    refusal = optional_text(message, "refusal", at) or ""
    if given is None:
        if message["role"] != "assistant":
            refuse(f"{at}.content", "it is missing, and only an assistant's may be")
        return "", refusal
    if isinstance(given, str):
        texts, refusals = [given], [refusal] if refusal else []
    else:
        texts, refusals = _openai_parts(given, f"{at}.content")
        refusals = [refusal] * bool(refusal) + refusals
    if any(texts) and refusals:
        refuse(f"{at}.refusal", "there is content beside it; a message is the one or the other")
    return "\n".join(texts), "\n".join(refusals)


def _openai_parts(parts: object, at: str) -> tuple[list[str], list[str]]:
    texts: list[str] = []
    refusals: list[str] = []
    for where, part in enumerated(parts, at):
        kind = text_of(part, "type", where)
        if kind not in ("text", "refusal"):
            cannot_hold(where, kind)
        only(part, {"type", kind}, where)
        (texts if kind == "text" else refusals).append(text_of(part, kind, where))
    return texts, refusals


def _from_openai_call(call: object, at: str) -> ToolCall:
    if not isinstance(call, Mapping):
        refuse(at, f"it is {kind_of(call)}, and has to be an object")
    fields = cast("Mapping[str, Any]", call)
    kind = fields.get("type", "function")
    if kind != "function":
        cannot_hold(at, str(kind))
    only(fields, {"id", "type", "function"}, at)
    function = fields.get("function")
    if not isinstance(function, Mapping):
        refuse(f"{at}.function", f"it is {kind_of(function)}, and has to be an object")
    called = cast("Mapping[str, Any]", function)
    only(called, {"name", "arguments"}, f"{at}.function")
    return ToolCall(
        id=text_of(fields, "id", at),
        name=text_of(called, "name", f"{at}.function"),
        arguments=text_of(called, "arguments", f"{at}.function"),
    )


# --- what both providers demand -------------------------------------------------------------------


def check_transcript(messages: Sequence[Message]) -> None:
    """Refuse what both providers would: each tool call is answered, once, by a tool directly after it."""
    open_calls: dict[str, str] = {}
    for n, message in enumerate(messages):
        at = f"messages[{n}]"
        if message.role not in ROLES:
            refuse(f"{at}.role", f"{message.role!r} is none of {', '.join(ROLES)}")
        if message.role == "tool":
            if open_calls.pop(message.tool_call_id or "", None) is None:
                refuse(
                    f"{at}.tool_call_id", f"{message.tool_call_id!r} is no open call of the message before"
                )
        elif open_calls:
            _unanswered(open_calls)
        _check_calls(message, at, open_calls)
    _unanswered(open_calls)


def _check_calls(message: Message, at: str, open_calls: dict[str, str]) -> None:
    if message.tool_calls and message.role != "assistant":
        refuse(f"{at}.tool_calls", f"only an assistant calls tools, and the role is {message.role!r}")
    if message.refused and (message.tool_calls or message.role != "assistant"):
        refuse(f"{at}.refused", "only an assistant refuses, and then calls no tools")
    for n, call in enumerate(message.tool_calls):
        if call.id in open_calls:
            refuse(f"{at}.tool_calls[{n}].id", f"two calls have the id {call.id!r}")
        open_calls[call.id] = f"{at}.tool_calls[{n}]"


def _unanswered(open_calls: Mapping[str, str]) -> None:
    for call, at in open_calls.items():
        refuse(at, f"the call {call!r} is not answered directly after it: add a message of the role 'tool'")


# --- reading mappings ------------------------------------------------------------------------------


def refuse(at: str, reason: str) -> NoReturn:
    raise BadTranscript(f"{at}: {reason}")


def cannot_hold(at: str, kind: str) -> NoReturn:
    """Refuse what was said in another form than text."""
    refuse(
        f"{at}.type",
        f"a kept message holds text and tool calls, and no {kind!r}: take it out before, and keep it in an "
        "artifact or in a field of its own",
    )


def kind_of(value: object) -> str:
    return "missing" if value is None else f"of the type {type(value).__name__}"


def enumerated(given: object, at: str = "messages") -> list[tuple[str, Mapping[str, Any]]]:
    """Each object of a list (or the one that is given instead), with where it stands."""
    if isinstance(given, Mapping):
        return [(f"{at}[0]", cast("Mapping[str, Any]", given))]
    if isinstance(given, str) or not isinstance(given, Sequence):
        refuse(at, f"it is {kind_of(given)}, and has to be a list of objects")
    found: list[tuple[str, Mapping[str, Any]]] = []
    items = cast("Sequence[object]", given)
    for n, item in enumerate(items):
        if not isinstance(item, Mapping):
            refuse(f"{at}[{n}]", f"it is {kind_of(item)}, and has to be an object, as model_dump() makes it")
        found.append((f"{at}[{n}]", cast("Mapping[str, Any]", item)))
    return found


def only(given: Mapping[str, Any], known: frozenset[str] | set[str], at: str) -> None:
    """Refuse a key that is not known and holds something."""
    for key, value in given.items():
        if key not in known and key not in _HINTS and value not in _NOTHING:
            refuse(f"{at}.{key}", "a kept message has no place for it: take it out before, or keep it apart")


def text_of(given: Mapping[str, Any], key: str, at: str) -> str:
    value = given.get(key)
    if not isinstance(value, str):
        refuse(f"{at}.{key}", f"it is {kind_of(value)}, and has to be text")
    return value


def optional_text(given: Mapping[str, Any], key: str, at: str) -> str | None:
    return None if given.get(key) is None else text_of(given, key, at)


def optional_list(given: Mapping[str, Any], key: str, at: str) -> list[Any]:
    value = given.get(key)
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        refuse(f"{at}.{key}", f"it is {kind_of(value)}, and has to be a list")
    return list(cast("Sequence[object]", value))


def json_object(text: str, at: str) -> Json:
    """A call's arguments as the object that they have to be; no text at all is none."""

    def no_number(constant: str) -> NoReturn:
        refuse(at, f"{constant} is no JSON")

    try:
        value = json.loads(text or "{}", parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        refuse(at, f"it is no JSON ({error}): answer such a call with the error, and have it made again")
    if not isinstance(value, dict):
        refuse(at, "it is JSON, and no object")
    return cast("Json", value)
