"""What a model is offered, in the shapes that its API takes, and how its answers are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.machines import (
    Accept,
    Call,
    Choice,
    DefinitionError,
    Fire,
    Machine,
    Message,
    Refusal,
    State,
    Step,
    ToolCall,
    arguments,
    choice_of,
    codec,
    definition,
    effect,
    payload_of,
    read,
    record,
    tool,
)


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@record
class Part:
    name: str
    parts: Sequence[Part] = ()


@record
class Plan:
    """What to do, and with what."""

    goal: str
    size: Size = Size.SMALL
    inner: Sequence[Part] = ()


@read
async def find(call: Call[object], name: str, newest: int = 3, since: date | None = None) -> str:
    """Look a customer up."""
    return name


@effect(idempotent=True)
async def build(call: Call[object], plan: Plan, tags: Mapping[str, int]) -> None:
    pass


@read
async def ping(call: Call[object]) -> str:
    return "pong"


@record
class Data:
    goal: str = ""


class Planner(Machine[Data], calls=[find, build, ping]):
    """Plans."""

    deciding = State(initial=True)
    done = State(final=True)
    plan = deciding.to(done).on_choice(Plan)
    stop = deciding.to(done).on_choice()
    part = deciding.to(done).on_choice(Part)

    @deciding.handler
    async def decide(self, data: Data, step: Step[object]) -> Fire:
        raise NotImplementedError

    @plan.received
    def planned(self, data: Data, plan: Plan) -> Accept:
        """Everything is known: do this."""
        return self.plan(goal=plan.goal)


EVENTS = definition(Planner).events
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def asked(name: str, arguments: str) -> ToolCall:
    return ToolCall(id="call_1", name=name, arguments=arguments)


# --- offered --------------------------------------------------------------------------------------


def test_an_event_is_offered_with_the_schema_of_its_payload_as_an_object() -> None:
    choice = choice_of(EVENTS["plan"])
    assert (choice.name, choice.description) == ("plan", "Everything is known: do this.")
    assert choice.parameters["type"] == "object"
    assert set(choice.parameters["properties"]) == {"goal", "size", "inner"}
    assert choice.parameters["required"] == ["goal"]
    assert choice.parameters["additionalProperties"] is False
    assert set(choice.parameters["$defs"]) == {"Part"}  # what it holds, and no longer itself


def test_an_event_without_a_payload_takes_an_empty_object() -> None:
    assert choice_of(EVENTS["stop"]).parameters == NOTHING


def test_a_payload_that_holds_itself_keeps_its_definition() -> None:
    parameters = choice_of(EVENTS["part"]).parameters
    assert parameters["type"] == "object"
    assert parameters["properties"]["parts"]["items"] == {"$ref": "#/$defs/Part"}
    assert parameters["$defs"]["Part"]["properties"] == parameters["properties"]


def test_the_dicts_are_those_that_the_apis_take() -> None:
    choice = choice_of(EVENTS["stop"])
    assert choice.openai() == {
        "type": "function",
        "function": {"name": "stop", "description": "", "parameters": NOTHING},
    }
    assert choice.anthropic() == {"name": "stop", "description": "", "input_schema": NOTHING}


def test_what_one_caller_does_to_a_schema_no_other_sees() -> None:
    choice = choice_of(EVENTS["stop"])
    choice.openai()["function"]["parameters"]["properties"]["x"] = {}
    assert choice.parameters == NOTHING


def test_a_choice_can_be_an_argument_of_a_read() -> None:
    choice = choice_of(EVENTS["plan"])
    assert codec(Choice, "test").roundtrip(choice, "test")[1] == choice


def test_a_declared_call_is_offered_by_its_docstring_and_parameters() -> None:
    offered = tool(find)
    assert (offered.name, offered.description) == ("find", "Look a customer up.")
    assert set(offered.parameters["properties"]) == {"name", "newest", "since"}
    assert offered.parameters["required"] == ["name"]
    assert tool(find, "Other words.").description == "Other words."
    assert "Plan" in tool(build).parameters["$defs"]
    assert tool(build.keyed("one")) == tool(build)
    assert tool(ping).parameters == {**NOTHING, "required": []}


def test_what_cannot_be_offered_is_refused_by_name() -> None:
    @read
    async def größe(call: Call[object]) -> str:
        return ""

    with pytest.raises(DefinitionError, match="read größe: model APIs take names"):
        tool(größe)
    with pytest.raises(DefinitionError, match="put @read or @effect over the function"):
        tool(print)  # type: ignore[arg-type]


# --- read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"name": "ada"}', {"name": "ada"}),
        (' {"newest": 5, "name": "ada", "since": "2026-01-02"} ', None),
        ('{"name": "ada", "since": null}', {"name": "ada", "since": None}),
    ],
)
def test_arguments_are_the_calls(text: str, found: Mapping[str, Any] | None) -> None:
    wanted = {"name": "ada", "newest": 5, "since": date(2026, 1, 2)} if found is None else found
    assert arguments(asked("find", text), find) == wanted


def test_arguments_of_records_and_mappings() -> None:
    text = '{"plan": {"goal": "g", "size": "large", "inner": [{"name": "p"}]}, "tags": {"a": 1}}'
    assert arguments(asked("build", text), build) == {
        "plan": Plan(goal="g", size=Size.LARGE, inner=(Part(name="p"),)),
        "tags": {"a": 1},
    }
    assert arguments(asked("ping", ""), ping) == {}
    assert arguments(asked("ping", " \n"), ping) == {}


BAD = [
    ('{"name": "ada"', "no valid JSON"),
    ("[]", "send one JSON object"),
    ('"ada"', "send one JSON object"),
    ("null", "send one JSON object"),
    ('{"name": 7}', r"find\(name\): expected"),
    ('{"name": "a", "name": "b"}', "'name' comes twice"),
    ('{"name": {"x": 1, "x": 2}}', "'x' comes twice"),
    ('{"name": "ada", "newest": NaN}', "NaN is no JSON value"),
    ('{"name": "ada", "newest": -Infinity}', "-Infinity is no JSON value"),
    ('{"name": "ada", "newest": 1e999}', r"find\(newest\)|no valid JSON"),
    ('{"name": "ada", "newest": 3.5}', r"find\(newest\): expected"),
    ('{"name": "ada", "newest": true}', r"find\(newest\): expected"),
    ('{"name": "ada", "newest": ' + "9" * 5000 + "}", "find|valid JSON"),
    ('{"name": "ada", "since": "2026-02-30"}', r"find\(since\): .*no date"),
    ('{"name": "ada", "who": 1}', "has no parameter 'who'; its parameters: name, newest, since"),
    ('{"newest": 1}', "lacks name; its parameters: name, newest, since"),
    ("{" + '"name":' + "[" * 100_000, "nested too deeply|no valid JSON"),
    ('{"name": ' + "[" * 500 + "]" * 500 + "}", r"find\(name\): expected|nested"),
    ('{"name": "' + "x" * 2_000_000 + '"}', "say less"),
    ('{"name": "\\ud800"}', r"find\(name\)|no valid JSON"),
    ('{"name": "\ud800"}', r"find\(name\)|no valid JSON"),
    ('{"name": "a\x00"}', "no valid JSON"),
]


@pytest.mark.parametrize(("text", "said"), BAD, ids=range(len(BAD)))
def test_arguments_that_do_not_fit_are_refused_by_name(text: str, said: str) -> None:
    found = arguments(asked("find", text), find)
    assert isinstance(found, Refusal)
    message = found.message()
    assert (message.role, message.tool_call_id, message.tool_failed) == ("tool", "call_1", True)
    assert len(message.content) <= 2000
    codec(Message, "test").encode(message, "test")  # it can be kept
    assert re.search(said, message.content), message.content


def test_another_calls_name_is_refused() -> None:
    found = arguments(asked("find\ud800" * 100, "{}"), find)
    assert isinstance(found, Refusal)
    assert "is not find" in found.message().content


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(
    st.text()
    | JSONS.map(json.dumps)
    | st.dictionaries(st.sampled_from(["goal", "size", "inner"]), JSONS).map(json.dumps)
)
def test_whatever_a_model_writes_it_is_a_payload_or_a_refusal(text: str) -> None:
    for event in EVENTS.values():
        found = payload_of(event, asked(event.name, text))
        if isinstance(found, Refusal):
            assert 0 < len(found.message().content) <= 2000
        elif event.payload is None:
            assert found is None
        else:
            assert type(found) is event.payload.type
            event.payload.encode(found, "test")


@given(
    st.text()
    | JSONS.map(json.dumps)
    | st.dictionaries(st.sampled_from(["name", "newest", "since"]), JSONS).map(json.dumps)
)
def test_whatever_a_model_writes_it_is_arguments_or_a_refusal(text: str) -> None:
    found = arguments(asked("find", text), find)
    if not isinstance(found, Refusal):
        find.arguments((), found, "test")
