"""Limits as they are declared: of named resources that calls share, and of a machine's threads."""

from datetime import timedelta
from typing import Any

import pytest

from perdure.machines import (
    Call,
    DefinitionError,
    Effect,
    Fire,
    Limit,
    Machine,
    Read,
    State,
    Step,
    definition,
    effect,
    read,
    record,
)

openai = Limit("openai", per_minute=60, at_once=4)


@record
class Note:
    text: str = ""


@read(limit=openai, reuse_for=timedelta(seconds=1))
async def asked(call: Call[object], text: str) -> str:
    return text


@effect(limit=openai)
async def told(call: Call[object], text: str) -> str:
    return text


def limited(**options: Any) -> type[Machine[Note, object]]:
    class Job(Machine[Note, object], calls=[asked, told], **options):
        start = State(initial=True)
        done = State(final=True)
        ended = start.to(done)

        @start.handler
        async def run(self, data: Note, step: Step[object]) -> Fire:
            return self.ended()

    return Job


def test_calls_hold_their_limit() -> None:
    assert isinstance(asked, Read)
    assert isinstance(told, Effect)
    assert asked.limit is openai
    assert told.limit is openai


def test_two_limits_that_say_the_same_are_one() -> None:
    assert openai == Limit("openai", per_minute=60, at_once=4)
    assert openai != Limit("openai", per_minute=61, at_once=4)


@pytest.mark.parametrize("name", ["per_minute", "at_once"])
@pytest.mark.parametrize("value", [0, -1, 1.0, float("nan"), float("inf"), "4", True])
def test_only_whole_numbers_over_zero(name: str, value: object) -> None:
    refused = f"limit 'openai': {name}= takes a whole number over zero, not {value!r}"
    with pytest.raises(DefinitionError, match=refused.replace("(", r"\(")):
        Limit("openai", **{name: value})  # type: ignore[arg-type]


def test_a_limit_that_limits_nothing() -> None:
    with pytest.raises(DefinitionError, match="limit 'openai': it limits nothing; give it per_minute= or"):
        Limit("openai")


@pytest.mark.parametrize("name", ["", "  ", None, 4])
def test_a_limit_without_a_name(name: Any) -> None:
    with pytest.raises(DefinitionError, match="is no name; name the resource"):
        Limit(name, at_once=1)


def test_a_call_takes_a_limit_and_nothing_else() -> None:
    async def sent(call: Call[object]) -> None: ...

    with pytest.raises(DefinitionError, match=r"effect sent: limit= takes a Limit, .* not 'openai'"):
        effect(limit="openai")(sent)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match=r"read sent: limit= takes a Limit, .* not 4"):
        read(limit=4)(sent)  # type: ignore[call-overload]


def test_a_machine_says_how_many_of_its_threads_run_at_once() -> None:
    assert definition(limited()).at_once is None
    assert definition(limited(at_once=10)).at_once == 10
    assert definition(limited()).hash == definition(limited(at_once=10)).hash


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), "10", True])
def test_a_machine_s_places_are_a_whole_number_over_zero(value: object) -> None:
    with pytest.raises(DefinitionError, match="Job: at_once= takes a whole number over zero, not"):
        limited(at_once=value)


def test_an_abstract_machine_runs_nothing_and_limits_nothing() -> None:
    with pytest.raises(DefinitionError, match="give name=, version= and at_once= to the machines"):

        class Base(Machine[Note, object], abstract=True, at_once=2): ...
