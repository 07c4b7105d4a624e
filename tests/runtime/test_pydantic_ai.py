"""A pydantic-ai agent inside a step: no request is paid for twice, and its tools act once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest
from harness.engine import CALLS, Engine, Note, Sim, World, carrying, job, simulate, simulated
from harness.loop import PROCESS, SimLoop
from pydantic import TypeAdapter
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from perdure.machines import BadTranscript, Call, DefinitionError, Message, ToolCall, effect, read
from perdure.runtime.pydantic_ai import StepAgent, from_model_messages, to_model_messages


@effect(idempotent=True)
async def charge(call: Call[World], amount: int) -> str:
    """Charge the customer's card."""
    return await call.deps.send("charge", call.key, str(amount))


@effect
async def bare_charge(call: Call[World], amount: int) -> str:
    return await call.deps.send("bare", call.key, str(amount))


class NoCard(Exception):
    """The request was refused."""


@effect(not_done=[NoCard])
async def refusing(call: Call[World], amount: int) -> str:
    return await call.deps.send("refusing", call.key, str(amount))


@read
async def customer(call: Call[World], id: str) -> Mapping[str, str]:
    """Look a customer up."""
    return {"name": await call.deps.read("customer", id)}


class Scripted:
    """A model that says the n-th of its rounds once n of its answers stand in the request."""

    def __init__(self, *rounds: Sequence[Any]) -> None:
        self.rounds = rounds
        self.asked: list[list[ModelMessage]] = []
        self.dead: set[object] = set()
        self.model = FunctionModel(self.answer)

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if PROCESS.get(None) in self.dead:
            await asyncio.get_running_loop().create_future()
        self.asked.append(messages)
        said = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=list(self.rounds[said]))

    def told(self, n: int) -> list[ToolReturnPart]:
        """What the tools answered, as the n-th request shows it."""
        return [part for part in self.asked[n][-1].parts if isinstance(part, ToolReturnPart)]


def uses(name: str, /, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(name, arguments)


DONE = [TextPart("done")]


def machine(helper: StepAgent[Any, Any, Any], **run: Any) -> Any:
    """A machine whose only step runs the agent."""

    async def body(self: Any, data: Note, step: Any) -> Any:
        result = await helper.run(step, "go", **run)
        return self.finished(text=str(result.output))

    return job(body, calls=[*CALLS, *helper.calls])


async def ends(sim: Sim, made: Any, *, status: str = "ended") -> Any:
    """The thread's row once it stands, in a process of its own."""
    engine = await sim.engine(made)
    await engine.start(made)
    row = await sim.until("ended", "parked")
    assert row.standing.status == status, row
    return row


async def text(sim: Sim, made: Any) -> Any:
    return (await sim.thread(made).data()).text


# --- what runs --------------------------------------------------------------------------------------


@simulated
async def test_an_agent_runs_in_a_step_with_declared_tools(loop: SimLoop) -> None:
    script = Scripted([uses("customer", id="c1")], [uses("charge", amount=5)], DONE)
    made = machine(StepAgent(Agent(script.model), name="helper", tools=[customer, charge]))
    sim = Sim(loop, made)
    await ends(sim, made)
    assert await text(sim, made) == "done"
    assert [a.args for a in sim.world.arrivals] == [("5",)]
    assert script.told(1)[0].content == {"name": "customer#1"}
    assert script.told(2)[0].content == "charge-1"


@simulated
async def test_the_test_model_calls_each_tool_by_its_schema(loop: SimLoop) -> None:
    made = machine(StepAgent(Agent(TestModel()), name="helper", tools=[customer, charge]))
    sim = Sim(loop, made)
    await ends(sim, made)
    assert [a.args for a in sim.world.arrivals] == [("0",)]
    assert sim.world.asked == ["customer/a"]


@simulated
async def test_arguments_that_do_not_fit_go_back_to_the_model(loop: SimLoop) -> None:
    script = Scripted(
        [uses("charge", amount="much")], [uses("charge", amuont=5)], [uses("charge", amount=5)], DONE
    )
    agent = Agent(script.model, retries=3)
    made = machine(StepAgent(agent, name="helper", tools=[charge]))
    sim = Sim(loop, made)
    await ends(sim, made)
    assert [a.args for a in sim.world.arrivals] == [("5",)]
    refused = [script.told(n)[0] for n in (1, 2)]
    assert [part.outcome for part in refused] == ["retried", "retried"]
    assert "amount" in refused[0].model_response_str()
    assert "amuont" in refused[1].model_response_str()


@simulated
async def test_an_effect_that_was_not_done_is_told_the_model(loop: SimLoop) -> None:
    script = Scripted([uses("refusing", amount=5)], DONE)
    made = machine(StepAgent(Agent(script.model), name="helper", tools=[refusing]))
    sim = Sim(loop, made)
    sim.world.reply("refusing", NoCard("no card"))
    await ends(sim, made)
    assert script.told(1)[0].outcome == "failed"
    assert "no card" in str(script.told(1)[0].content)


@simulated
async def test_an_effect_in_doubt_parks_and_the_model_hears_nothing(loop: SimLoop) -> None:
    script = Scripted([uses("bare_charge", amount=5)], DONE)
    made = machine(StepAgent(Agent(script.model), name="helper", tools=[bare_charge]))
    sim = Sim(loop, made)
    sim.world.reply("bare", ModelRetry("try again"))
    row = await ends(sim, made, status="parked")
    assert row.standing.reason == "in doubt"
    assert len(script.asked) == 1


@simulated
async def test_an_error_of_a_read_fails_the_attempt_and_is_no_retry_prompt(loop: SimLoop) -> None:
    script = Scripted([uses("customer", id="c1")], DONE)
    made = machine(StepAgent(Agent(script.model), name="helper", tools=[customer]))
    sim = Sim(loop, made)
    sim.world.next_reads("customer", OSError("no line"), "Ada")
    await ends(sim, made)
    assert [entry["attempt"] for entry in await sim.entries("failed")] == [1]
    assert "no line" in str(await sim.entries("failed"))
    assert len(script.asked) == 2
    assert script.told(1)[0].content == {"name": "Ada"}


@simulated
async def test_a_validation_error_inside_a_tool_is_the_tool_s_and_not_the_model_s(loop: SimLoop) -> None:
    @read
    async def parsing(call: Call[World], id: str) -> int:
        return TypeAdapter(int).validate_python(await call.deps.read("parsing", id))

    script = Scripted([uses("parsing", id="c1")], DONE)
    made = machine(StepAgent(Agent(script.model), name="helper", tools=[parsing]))
    sim = Sim(loop, made)
    sim.world.next_reads("parsing", "seven", "7")
    await ends(sim, made)
    assert "read helper.parsing: 1 validation error" in str(await sim.entries("failed"))
    assert len(script.asked) == 2
    assert script.told(1)[0].content == 7


@simulated
async def test_a_model_that_fails_is_asked_again_by_the_next_attempt(loop: SimLoop) -> None:
    asked: list[int] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(len(messages))
        if len(asked) == 2:
            raise OSError("overloaded")
        return ModelResponse(parts=[uses("charge", amount=5)] if len(messages) == 1 else DONE)

    made = machine(StepAgent(Agent(FunctionModel(answer)), name="helper", tools=[charge]))
    sim = Sim(loop, made)
    await ends(sim, made)
    assert asked == [1, 3, 3]
    assert len(sim.world.arrivals) == 1


@simulated
async def test_a_model_given_by_override_is_asked_through_the_step_too(loop: SimLoop) -> None:
    script = Scripted(DONE)
    agent = Agent(TestModel())
    helper = StepAgent(agent, name="helper")

    async def body(self: Any, data: Note, step: Any) -> Any:
        with agent.override(model=script.model):
            return self.finished(text=(await helper.run(step, "go")).output)

    made = job(body, calls=[*CALLS, *helper.calls])
    sim = Sim(loop, made)
    await ends(sim, made)
    assert len(script.asked) == 1
    assert [entry["call"] for entry in await sim.entries("read")] == ["helper.request"]


class Seen:
    """An observer that keeps what it is told."""

    def __init__(self, seen: list[Any]) -> None:
        self.observe = seen.append


@simulated
async def test_text_is_reported_as_it_comes(loop: SimLoop) -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncGenerator[str]:
        yield "do"
        yield "ne"

    seen: list[Any] = []
    made = machine(StepAgent(Agent(FunctionModel(stream_function=stream)), name="helper"), stream=True)
    sim = Sim(loop, made)
    engine = await sim.engine(made, observers=[Seen(seen)])
    await engine.start(made)
    await sim.until("ended")
    assert await text(sim, made) == "done"
    assert "do" in str(seen)


# --- crashes ----------------------------------------------------------------------------------------


def dies(sim: Sim, engine: Engine, script: Scripted, when: Any, *, applied: bool, skip: int = 0) -> None:
    """From that write on the process gets nothing done: no write, no request. It is not torn down as a kill
    would, since what pydantic-ai has begun starts tasks where it is closed."""

    def dead() -> None:
        script.dead.add(engine)
        sim.gone.add(engine.id)
        engine.died.set()

    engine.store.kill = dead
    engine.store.fault("kill after" if applied else "kill before", when, skip=skip)
    engine.store.fault("kill before", lambda *_: engine in script.dead, times=1_000_000)


ROUNDS: Sequence[Sequence[Any]] = (
    [uses("customer", id="c1")],
    [uses("charge", amount=5), uses("charge", amount=5), uses("customer", id="c2"), uses("charge", amount=6)],
    DONE,
)


def sweep(k: int, *, applied: bool) -> tuple[bool, Scripted, Sim]:
    """Kill the first process at its k-th write; whether it died."""
    script = Scripted(*ROUNDS)
    made = machine(StepAgent(Agent(script.model), name="helper", tools=[customer, charge]))
    found: list[tuple[bool, Scripted, Sim]] = []

    async def story(loop: SimLoop) -> None:
        sim = Sim(loop, made)
        sim.world.remembers = True
        first = await sim.engine(made)
        dies(sim, first, script, lambda *_: True, applied=applied, skip=k)
        await first.start(made)
        died = first.died.is_set()
        while not died and (await sim.row()).standing.status not in ("ended", "parked"):
            changed = sim._changed
            await first.unless_killed(changed.wait())
            died = first.died.is_set()
        if died:
            second = await sim.engine(made)
            if not await sim.exists():
                await second.start(made)
            await sim.until("ended")
        assert await text(sim, made) == "done"
        found.append((died, script, sim))

    simulate(story)
    return found[0]


@pytest.mark.parametrize("applied", [False, True])
def test_killed_at_any_write_no_effect_acts_twice_and_no_recorded_answer_is_paid_again(applied: bool) -> None:
    k = 1
    paid: list[int] = []
    while True:
        died, script, sim = sweep(k, applied=applied)
        assert sorted(sim.world.effects) == ["charge-1", "charge-2", "charge-3"], k
        paid.append(len(script.asked))
        if not died:
            break
        k += 1
    assert k >= 5
    assert paid[-1] == 3
    if applied:  # what was recorded is never asked again
        assert set(paid) == {3}
    else:  # only the answer whose record the kill prevented is
        assert max(paid) == 4


@simulated
async def test_killed_between_an_effect_and_its_outcome_the_key_is_the_same(loop: SimLoop) -> None:
    script = Scripted([uses("charge", amount=5)], DONE)
    made = machine(StepAgent(Agent(script.model), name="helper", tools=[charge]))
    sim = Sim(loop, made)
    sim.world.remembers = True
    first = await sim.engine(made)
    dies(sim, first, script, carrying("done"), applied=False)
    await first.start(made)
    await sim.until_dead(first)
    await sim.engine(made)
    await sim.until("ended")
    assert len(sim.world.keys) == 2
    assert len(set(sim.world.keys)) == 1
    assert sim.world.effects == ["charge-1"]
    assert len(script.asked) == 2


@simulated
async def test_killed_after_the_model_answered_it_is_not_asked_again(loop: SimLoop) -> None:
    script = Scripted([uses("customer", id="c1")], DONE)
    made = machine(StepAgent(Agent(script.model), name="helper", tools=[customer]))
    sim = Sim(loop, made)
    first = await sim.engine(made)
    dies(sim, first, script, carrying("read"), applied=True, skip=1)
    await first.start(made)
    await sim.until_dead(first)
    await sim.engine(made)
    await sim.until("ended")
    assert len(script.asked) == 2
    assert sim.world.asked == ["customer/c1"]


# --- what is refused ----------------------------------------------------------------------------------


def double(x: int) -> int:
    """Twice as much."""
    return 2 * x


def test_a_tool_of_the_agent_s_own_is_refused_by_name() -> None:
    with pytest.raises(DefinitionError, match=r"agent helper: its tool 'double' is not declared"):
        StepAgent(Agent(TestModel(), tools=[double]), name="helper")
    with pytest.raises(DefinitionError, match=r"its tool 'double' is not declared"):
        StepAgent(Agent(TestModel(), toolsets=[FunctionToolset([double]).prefixed("x")]), name="helper")
    with pytest.raises(DefinitionError, match=r"the tools of its DynamicToolset are not declared"):
        StepAgent(Agent(TestModel(), toolsets=[lambda ctx: FunctionToolset([double])]), name="helper")


@simulated
async def test_a_run_that_the_agent_gives_up_is_paid_for_once(loop: SimLoop) -> None:
    script = Scripted(
        [uses("charge", amount="a")], [uses("charge", amount="b")], [uses("charge", amount="c")]
    )
    made = machine(StepAgent(Agent(script.model), name="helper", tools=[charge]))
    sim = Sim(loop, made)
    row = await ends(sim, made, status="parked")
    assert row.standing.reason == "failed"
    assert [entry["attempt"] for entry in await sim.entries("failed")] == [1, 2, 3]
    assert len(script.asked) == 2


@simulated
async def test_a_pure_tool_may_run_again(loop: SimLoop) -> None:
    script = Scripted([uses("double", x=2)], DONE)
    made = machine(StepAgent(Agent(script.model, tools=[double]), name="helper", pure=[double]))
    await ends(Sim(loop, made), made)
    assert script.told(1)[0].content == 4


@simulated
async def test_a_tool_that_was_added_later_is_refused_when_it_runs(loop: SimLoop) -> None:
    agent = Agent(TestModel())
    made = machine(StepAgent(agent, name="helper"))
    agent.tool_plain(double)
    sim = Sim(loop, made)
    await ends(sim, made, status="parked")
    assert "its tool 'double' is not declared" in str(await sim.entries("failed"))


def test_a_plain_function_as_a_tool_and_a_name_twice() -> None:
    agent = Agent(TestModel())
    with pytest.raises(DefinitionError, match="put @read or @effect over it"):
        StepAgent(agent, name="helper", tools=[double])  # type: ignore[list-item]
    with pytest.raises(DefinitionError, match="two of its tools are called 'charge'"):
        StepAgent(agent, name="helper", tools=[charge, charge])
    with pytest.raises(DefinitionError, match="is no name for an agent"):
        StepAgent(agent, name="my helper")


def test_without_pydantic_ai_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['pydantic_ai'] = None; import perdure.runtime.pydantic_ai"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "pip install 'perdure[pydantic-ai]'" in ran.stderr.splitlines()[-1]


def test_the_engine_does_not_load_pydantic_ai() -> None:
    code = "import sys, perdure.runtime, perdure.machines; assert 'pydantic_ai' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- conversations ------------------------------------------------------------------------------------

TALK = [
    Message(role="system", content="Be brief."),
    Message(role="user", content="How much?"),
    Message(
        role="assistant",
        content="Let me see.",
        tool_calls=(ToolCall(id="1", name="look", arguments='{"a":1}'),),
    ),
    Message(role="tool", content="no", name="look", tool_call_id="1", tool_failed=True),
    Message(role="assistant", content="I cannot say."),
]


def test_a_conversation_comes_back_as_it_was() -> None:
    assert from_model_messages(to_model_messages(TALK)) == TALK


def test_what_a_message_cannot_hold_is_named() -> None:
    image = ModelRequest(parts=[UserPromptPart(["see", ImageUrl(url="https://example.org/a.png")])])
    with pytest.raises(BadTranscript, match=r"messages\[0\]\.parts\[0\]\.content\[1\]: .* no ImageUrl"):
        from_model_messages([image])
    with pytest.raises(BadTranscript, match=r"messages\[0\]\.name: "):
        to_model_messages([Message(role="tool", content="x", tool_call_id="9")])
    with pytest.raises(BadTranscript, match=r"messages\[0\]\.role: 'friend'"):
        to_model_messages([Message(role="friend", content="x")])


@simulated
async def test_what_was_said_before_goes_to_the_model(loop: SimLoop) -> None:
    asked: list[list[ModelMessage]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(messages)
        return ModelResponse(parts=DONE)

    made = machine(StepAgent(Agent(FunctionModel(answer)), name="helper"), history=TALK)
    await ends(Sim(loop, made), made)
    assert [m.content for m in from_model_messages(asked[0])] == [*(m.content for m in TALK), "go"]
