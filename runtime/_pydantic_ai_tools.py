"""Declared calls as the tools of an agent, and the check that it has no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import attrs
import msgspec
from pydantic import ValidationError
from pydantic_ai import Agent
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset, FunctionToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from perdure.machines import BadCall, DefinitionError, Effect, NotDone, Read, Step

from ._errors import PerdureError


@attrs.frozen(kw_only=True, eq=False)
class DeclaredTool:
    """A declared call as a model is offered it."""

    name: str
    call: Effect[Any, ..., Any] | Read[Any, ..., Any]
    definition: ToolDefinition
    validator: SchemaValidator


def declared_tools(agent: str, tools: Sequence[object]) -> dict[str, DeclaredTool]:
    """The tools by the names that the model calls them by. A read that is not kept becomes one that is: its
    answer is a part of the next request, which would otherwise be another one after a crash, and paid again.
    """
    found: dict[str, DeclaredTool] = {}
    for tool in tools:
        if not isinstance(tool, (Effect, Read)):
            raise DefinitionError(
                f"agent {agent}: tools= lists {tool!r}, which is not declared: put @read or @effect over it"
            )
        call = cast("Effect[Any, ..., Any] | Read[Any, ..., Any]", tool)
        if call.name in found:
            raise DefinitionError(f"agent {agent}: two of its tools are called {call.name!r}: rename one")
        found[call.name] = _declared_tool(agent, call)
    return found


def _declared_tool(agent: str, call: Effect[Any, ..., Any] | Read[Any, ..., Any]) -> DeclaredTool:
    name, parameters = call.name, call.parameters

    def structured(given: dict[str, Any]) -> dict[str, Any]:
        try:
            return parameters.from_json(given, name)
        except BadCall as error:
            raise ValueError(str(error)) from error

    shape = core_schema.dict_schema(keys_schema=core_schema.str_schema())
    return DeclaredTool(
        name=name,
        call=_kept(agent, call) if isinstance(call, Read) and not call.keep else call,
        definition=ToolDefinition(
            name=name, description=call.__doc__, parameters_json_schema=parameters.schema()
        ),
        validator=SchemaValidator(core_schema.no_info_after_validator_function(structured, shape)),
    )


def _kept(agent: str, call: Read[Any, ..., Any]) -> Read[Any, ..., Any]:
    kept: Read[Any, ..., Any] = Read(call.fn, keep=True, renamed=[f"{agent}.{old}" for old in call.renamed])
    kept.name = f"{agent}.{call.name}"
    return kept


class StepTools(AbstractToolset[Any]):
    """Calls declared tools through a step."""

    def __init__(self, tools: Mapping[str, DeclaredTool], step: Step[Any]) -> None:
        self._tools = tools
        self._step = step

    @property
    def id(self) -> str:
        return "perdure"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=tool.definition,
                max_retries=ctx.max_retries,
                args_validator=tool.validator,
            )
            for name, tool in self._tools.items()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        call = self._tools[name].call
        try:
            answer = await self._step.call(call, **tool_args)
        except NotDone as error:
            raise ToolFailed(str(error) or "it was not done") from error
        except ValidationError as error:  # it is the call's own, and no fault of the arguments
            raise PerdureError(f"{call.label}: {error}") from error
        return msgspec.json.decode(call.result.snapshot(answer))


def refuse_undeclared(name: str, agent: Agent[Any, Any], pure: Sequence[Callable[..., Any]]) -> None:
    """Refuse a tool of the agent's own that nothing is known of."""

    def look(toolset: AbstractToolset[Any]) -> None:
        if isinstance(toolset, ExternalToolset):
            return  # nothing of it is ever run here
        if not isinstance(toolset, FunctionToolset):
            raise DefinitionError(
                f"agent {name}: the tools of its {toolset.label} are not declared, and would run again after "
                "every crash: declare what they do with @read or @effect and give those in tools="
            )
        for tool in toolset.tools.values():
            if tool.function not in pure:
                raise DefinitionError(
                    f"agent {name}: its tool {tool.name!r} is not declared, and would run again after every "
                    "crash: take it from the agent, declare it with @read or @effect and give it in tools=, "
                    "or list its function in pure= where it neither looks at nor changes anything outside"
                )

    for toolset in agent.toolsets:
        toolset.apply(look)
