"""A pydantic-ai agent that runs inside a step, with ``perdure[pydantic-ai]``.

    helper = StepAgent(agent, name="helper", tools=[get_customer, charge])

    class Triage(Machine[Work, Deps], version=1, calls=helper.calls):
        ...
        @deciding.handler
        async def decide(self, data: Work, step: Step[Deps]) -> Fire:
            result = await helper.run(step, data.question)
            return self.decided(answer=result.output)

Each request to the model is a kept read, found again by what it is made of; each tool is a declared call. So
after a crash in the step the agent runs from its beginning, is served everything that it had been answered,
and goes on where it was. What the agent does beside that runs again: system prompts, instructions, output
functions and validators have to give the same for the same, or the model is asked anew.

A request that fails is not recorded, and the next attempt makes it again. A run that the agent gives up,
after too many retries, say, is given up by each attempt, since all are served the same answers: lead such a
state on with an ``on_failure`` event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from typing_extensions import TypeVar

from perdure.machines import Declared, DefinitionError, Message, Step

try:
    from pydantic_ai import Agent
    from pydantic_ai.messages import UserContent
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.usage import UsageLimits
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"perdure.runtime.pydantic_ai needs pydantic-ai ({missing}): pip install 'perdure[pydantic-ai]'",
        name=missing.name,
    ) from missing

from ._pydantic_ai_messages import from_model_messages, to_model_messages
from ._pydantic_ai_model import Asking, InStep, StepModel
from ._pydantic_ai_tools import StepTools, declared_tools, refuse_undeclared

__all__ = ["StepAgent", "from_model_messages", "to_model_messages"]

X = TypeVar("X", contravariant=True, default=object)
D = TypeVar("D", default=None)
O_co = TypeVar("O_co", covariant=True, default=str)


class StepAgent(Generic[X, D, O_co]):
    """An agent as the steps of machines run it.

    ``name`` is how the store knows its calls: keep it. ``tools``: declared reads and effects that the model
    may call, by their own names, described by their docstrings. An effect has its intent, key and outcome as
    anywhere; ``NotDone`` is told the model as the tool's failure. A read is kept for the rest of the step,
    since its answer is a part of the next request. Arguments that do not fit are sent back to the model; any
    other error of a tool fails the attempt. ``pure``: functions of the agent's own tools that neither look at
    nor change anything outside, and so may run again. Raises ``DefinitionError`` for a tool that is neither.
    """

    def __init__(
        self,
        agent: Agent[D, O_co],
        *,
        name: str,
        tools: Sequence[Declared[X, ..., Any]] = (),
        pure: Sequence[Callable[..., Any]] = (),
    ) -> None:
        if not name.isidentifier():
            raise DefinitionError(f"StepAgent: {name!r} is no name for an agent; use letters, digits and '_'")
        self.name = name
        self._agent = agent
        self._pure = tuple(pure)
        self._asking = Asking(name)
        self._tools = declared_tools(name, tools)
        refuse_undeclared(name, agent, self._pure)

    @property
    def calls(self) -> Sequence[Declared[X, ..., Any]]:
        """What a machine lists in ``calls=`` to run the agent: its model requests and its tools."""
        return (self._asking.read, *(tool.call for tool in self._tools.values()))

    async def run(
        self,
        step: Step[X],
        prompt: str | Sequence[UserContent] | None = None,
        *,
        deps: D = None,  # type: ignore[assignment]
        history: Sequence[Message] = (),
        usage_limits: UsageLimits | None = None,
        stream: bool = False,
    ) -> AgentRunResult[O_co]:
        """Run the agent. ``deps`` are the agent's own, ``history`` is what was said before.

        ``from_model_messages(result.new_messages())`` is what to append to a ``Conversation``. ``stream``
        shows the model's text as it comes by ``step.report(agent=, text=)``, which is not durable: what is
        served from the record is not shown again. Runs side by side need a ``step.lane(...)`` each.
        """
        refuse_undeclared(self.name, self._agent, self._pure)
        in_step = InStep(
            wrap=lambda model: StepModel(model, self._asking, step, agent=self.name, stream=stream)
        )
        return await self._agent.run(
            prompt,
            deps=deps,
            message_history=to_model_messages(history) or None,
            usage_limits=usage_limits,
            toolsets=[StepTools(self._tools, step)],
            capabilities=[in_step],
        )
