"""Transcripts, to and from the messages of the OpenAI and Anthropic APIs."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.machines import (
    BadTranscript,
    Message,
    ToolCall,
    from_anthropic,
    from_openai,
    to_anthropic,
    to_openai,
)

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1).filter(str.strip)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@st.composite
def turns(draw: st.DrawFn, *, failing: bool) -> list[Message]:
    """What an assistant says, with the answers of the tools that it calls; or what a person says."""
    if draw(st.booleans()):
        return [Message(role="user", content=draw(WORDS))]
    names = draw(st.lists(WORDS, max_size=3))
    calls = [
        ToolCall(
            id=f"call_{draw(st.uuids())}",
            name=name,
            arguments=compact(draw(st.dictionaries(WORDS, JSON, max_size=2))),
        )
        for name in names
    ]
    said = draw(st.just("") | WORDS) if calls else draw(WORDS)
    answers = [
        Message(
            role="tool",
            content=draw(st.just("") | WORDS),
            name=call.name,
            tool_call_id=call.id,
            tool_failed=failing and draw(st.booleans()),
        )
        for call in draw(st.permutations(calls))
    ]
    return [Message(role="assistant", content=said, tool_calls=tuple(calls)), *answers]


@st.composite
def transcripts(draw: st.DrawFn, *, failing: bool) -> list[Message]:
    found = [Message(role="system", content=text) for text in draw(st.lists(WORDS, max_size=2))]
    found.append(Message(role="user", content=draw(WORDS)))
    for turn in draw(st.lists(turns(failing=failing), max_size=5)):
        speechless = turn[0].role == found[-1].role == "assistant" and not turn[0].content
        if not speechless:  # to Anthropic its calls would be those of the message before
            found += turn
    return found


@given(transcripts(failing=False))
def test_openai_gives_back_what_it_was_given(messages: list[Message]) -> None:
    written = json.loads(json.dumps(to_openai(messages)))
    assert from_openai(written) == messages
    assert to_openai(from_openai(written)) == written


@given(transcripts(failing=True))
def test_anthropic_gives_back_what_it_was_given(messages: list[Message]) -> None:
    made = to_anthropic(messages)
    written = json.loads(json.dumps(made.messages))
    assert from_anthropic(written, system=made.system) == messages
    again = to_anthropic(from_anthropic(written, system=made.system))
    assert again == made


@given(transcripts(failing=True))
def test_anthropic_s_rules_hold(messages: list[Message]) -> None:
    written = to_anthropic(messages).messages
    roles = [message["role"] for message in written]
    assert roles[0] == "user"
    assert all(a != b for a, b in pairwise(roles))
    asked: set[str] = set()
    for message in written:
        kinds = [block["type"] for block in message["content"]]
        assert kinds
        assert kinds == sorted(kinds, key=["tool_result", "text", "tool_use"].index)
        assert {b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"} == asked
        asked = {block["id"] for block in message["content"] if block["type"] == "tool_use"}
    assert not asked


CALL = ToolCall(id="c1", name="look", arguments='{"at":1}')
ASKS = Message(role="assistant", content="", tool_calls=(CALL,))
TOLD = Message(role="tool", content="no", name="look", tool_call_id="c1", tool_failed=True)
USER = Message(role="user", content="hi")


def test_what_openai_is_sent() -> None:
    developer = Message(role="developer", content="Be brief.", name="house")
    refusal = Message(role="assistant", content="I will not.", refused=True)
    assert to_openai([developer, USER, ASKS, TOLD, refusal]) == [
        {"role": "developer", "content": "Be brief.", "name": "house"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
            ],
        },
        {"role": "tool", "content": "no", "tool_call_id": "c1"},
        {"role": "assistant", "content": None, "refusal": "I will not."},
    ]


def test_an_answer_of_openai_with_all_its_empty_keys() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "refusal": "No.",
        "annotations": [],
        "audio": None,
    }
    assert from_openai(answer) == [Message(role="assistant", content="No.", refused=True)]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert from_openai([{"role": "user", "content": parts}]) == [Message(role="user", content="a\nb")]


def test_what_anthropic_is_sent() -> None:
    late = Message(role="developer", content="Be brief.")
    blank = Message(role="user", content=" \n")
    made = to_anthropic([late, USER, blank, ASKS, TOLD, USER, late])
    assert made.system == [{"type": "text", "text": "Be brief."}]
    assert made.messages == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True},
                {"type": "text", "text": "hi"},
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    ]


def test_an_answer_of_anthropic_with_what_it_tells_of_itself() -> None:
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1},
        "content": [
            {"type": "text", "text": "Let me see.", "citations": None},
            {
                "type": "tool_use",
                "id": "c1",
                "name": "look",
                "input": {"at": 1},
                "caller": {"type": "direct"},
            },
        ],
    }
    assert from_anthropic(answer) == [Message(role="assistant", content="Let me see.", tool_calls=(CALL,))]


def test_no_arguments_are_an_empty_object_to_anthropic() -> None:
    silent = Message(role="assistant", content="", tool_calls=(ToolCall(id="c1", name="look", arguments=""),))
    assert to_anthropic([USER, silent, TOLD]).messages[1]["content"][0]["input"] == {}


def user(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def assistant(**more: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": "x", **more}]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("hello", r"messages: it is of the type str"),
        ([1], r"messages\[0\]: it is of the type int"),
        ([{"content": "x"}], r"messages\[0\]\.role: it is missing"),
        ([{"role": "friend", "content": "x"}], r"messages\[0\]\.role: 'friend' is none of system"),
        ([{"role": "user"}], r"messages\[0\]\.content: it is missing"),
        ([{"role": "user", "content": 1}], r"messages\[0\]\.content: it is of the type int"),
        ([{"role": "tool", "content": "x"}], r"messages\[0\]\.tool_call_id: it is missing"),
        (user({"type": "image_url", "image_url": {}}), r"messages\[0\]\.content\[0\]\.type: .*'image_url'"),
        (user({"type": "text"}), r"messages\[0\]\.content\[0\]\.text: it is missing"),
        (assistant(audio={"id": "a"}), r"messages\[0\]\.audio: "),
        (assistant(function_call={"name": "f"}), r"messages\[0\]\.function_call: "),
        (assistant(refusal="no"), r"messages\[0\]\.refusal: there is content beside it"),
        (assistant(tool_calls="x"), r"messages\[0\]\.tool_calls: it is of the type str"),
        (assistant(tool_calls=[3]), r"messages\[0\]\.tool_calls\[0\]: it is of the type int"),
        (assistant(tool_calls=[{"type": "custom"}]), r"messages\[0\]\.tool_calls\[0\]\.type: .*'custom'"),
        (assistant(tool_calls=[{"id": "1"}]), r"messages\[0\]\.tool_calls\[0\]\.function: it is missing"),
        (
            assistant(tool_calls=[{"id": "1", "function": {"name": "f", "arguments": {}}}]),
            r"messages\[0\]\.tool_calls\[0\]\.function\.arguments: it is of the type dict",
        ),
        ([{"role": "user", "content": "x", "tool_calls": [{}]}], r"messages\[0\]\.tool_calls: only an"),
    ],
)
def test_what_is_wrong_in_openai_s_form_is_named(given: Any, says: str) -> None:
    with pytest.raises(BadTranscript, match=says):
        from_openai(given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"role": "tool", "content": "x"}], r"messages\[0\]\.role: 'tool' is none of user"),
        ([{"role": "user"}], r"messages\[0\]\.content: it is missing"),
        (user({"type": "image"}), r"messages\[0\]\.content\[0\]\.type: .*'image'"),
        (user({"type": "text", "text": "x", "citations": [1]}), r"messages\[0\]\.content\[0\]\.citations"),
        (user({"type": "tool_use"}), r"messages\[0\]\.content\[0\]\.type: a tool_use in a message of"),
        (user({"type": "tool_result"}), r"messages\[0\]\.content\[0\]\.tool_use_id: it is missing"),
        (
            user({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}),
            r"messages\[0\]\.content\[0\]\.content\[0\]\.type: .*'image'",
        ),
        (
            user({"type": "tool_result", "tool_use_id": "1", "is_error": "yes"}),
            r"messages\[0\]\.content\[0\]\.is_error: it is of the type str",
        ),
        (assistant(content=[{"type": "thinking"}]), r"messages\[0\]\.content\[0\]\.type: .*'thinking'"),
        (
            assistant(content=[{"type": "tool_use", "id": "1", "name": "f", "input": "x"}]),
            r"messages\[0\]\.content\[0\]\.input: it is of the type str",
        ),
        (
            assistant(
                content=[
                    {"type": "tool_use", "id": "1", "name": "f", "input": {}},
                    {"type": "text", "text": "x"},
                ]
            ),
            r"messages\[0\]\.content\[1\]: text after a tool_use",
        ),
    ],
)
def test_what_is_wrong_in_anthropic_s_form_is_named(given: Any, says: str) -> None:
    with pytest.raises(BadTranscript, match=says):
        from_anthropic(given)


@pytest.mark.parametrize("convert", [to_openai, to_anthropic])
@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([USER, ASKS], r"messages\[1\]\.tool_calls\[0\]: the call 'c1' is not answered"),
        ([USER, ASKS, USER, TOLD], r"messages\[1\]\.tool_calls\[0\]: the call 'c1' is not answered"),
        ([USER, TOLD], r"messages\[1\]\.tool_call_id: 'c1' is no open call"),
        ([USER, ASKS, TOLD, TOLD], r"messages\[3\]\.tool_call_id: 'c1' is no open call"),
        ([Message(role="friend", content="x")], r"messages\[0\]\.role: 'friend'"),
        ([Message(role="user", content="x", tool_calls=(CALL,))], r"messages\[0\]\.tool_calls: only an"),
        (
            [Message(role="assistant", content="", tool_calls=(CALL, CALL))],
            r"messages\[0\]\.tool_calls\[1\]\.id: two calls have the id 'c1'",
        ),
    ],
)
def test_what_both_would_refuse_is_refused_before(convert: Any, messages: list[Message], says: str) -> None:
    with pytest.raises(BadTranscript, match=says):
        convert(messages)


@pytest.mark.parametrize("arguments", ["{", "[1]", '{"a": NaN}', "[" * 100_000])
def test_arguments_that_are_no_object_are_named(arguments: str) -> None:
    wrong = Message(
        role="assistant", content="", tool_calls=(ToolCall(id="c1", name="look", arguments=arguments),)
    )
    with pytest.raises(BadTranscript, match=r"messages\[1\]\.tool_calls\[0\]\.arguments: "):
        to_anthropic([USER, wrong, TOLD])
    assert to_openai([USER, wrong, TOLD])[1]["tool_calls"][0]["function"]["arguments"] == arguments


def test_an_assistant_does_not_begin() -> None:
    with pytest.raises(BadTranscript, match=r"messages\[1\]\.role: this API has the user begin"):
        to_anthropic([Message(role="system", content="x"), Message(role="assistant", content="hi")])
