"""The model of an agent that runs inside a step: each of its requests is a kept read."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Final, cast

import msgspec
from pydantic import TypeAdapter
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestContext,
    ModelRequestParameters,
    StreamedResponse,
)
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_core import to_jsonable_python

from perdure.machines import Call, Read, Step

NEWEST: Final = 500
"""Characters of the newest message that the record of a request shows."""
_PARAMETERS: Final = TypeAdapter(ModelRequestParameters)
_RUNS_OWN: Final = frozenset({"timestamp", "run_id", "conversation_id", "metadata"})
"""Fields of a message or a part that differ from run to run, and that no model is shown."""

Live = Callable[[], Awaitable[str]]


class Asking:
    """The kept read of one agent's model requests.

    Its arguments name a request; what is sent is too large to be stored with each, and is passed beside them.
    """

    def __init__(self, name: str) -> None:
        self._live: ContextVar[Live] = ContextVar(f"{name}.request")
        live = self._live

        async def request(call: Call[object], model: str, digest: str, messages: int, newest: str) -> str:
            """A request to a model. ``digest``: of all that it is made of. ``newest``: its last message."""
            return await live.get()()

        request.__name__ = f"{name}.request"
        self.read: Read[object, ..., str] = Read(request, keep=True)

    async def ask(self, step: Step[Any], live: Live, named: Mapping[str, Any]) -> str:
        """The recorded answer, or that of ``live``, which is then recorded."""
        token = self._live.set(live)
        try:
            return await step.call(self.read, **named)
        finally:
            self._live.reset(token)


class StepModel(WrapperModel):
    """Asks the model that it wraps through a step."""

    def __init__(self, wrapped: Model, asking: Asking, step: Step[Any], *, agent: str, stream: bool) -> None:
        super().__init__(wrapped)
        self._asking = asking
        self._step = step
        self._agent = agent
        self._stream = stream

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def live() -> str:
            ask = self._streamed if self._stream else self.wrapped.request
            answer = await ask(messages, model_settings, model_request_parameters)
            return ModelMessagesTypeAdapter.dump_json([answer]).decode()

        named = name_request(self.wrapped.model_id, messages, model_settings, model_request_parameters)
        answer = ModelMessagesTypeAdapter.validate_json(await self._asking.ask(self._step, live, named))[0]
        assert isinstance(answer, ModelResponse)
        return answer

    async def _streamed(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async with self.wrapped.request_stream(messages, model_settings, model_request_parameters) as stream:
            async for event in stream:
                match event:
                    case PartStartEvent(part=TextPart(content=text)):
                        self._step.report(agent=self._agent, text=text)
                    case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                        self._step.report(agent=self._agent, text=text)
                    case _:
                        pass
            return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """The whole answer as a stream that has come in already, for handlers of the agent's own."""
        answer = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(
            answer, model_request_parameters=model_request_parameters, replay_events=True
        )


@dataclasses.dataclass(kw_only=True)
class InStep(AbstractCapability[Any]):
    """Puts a ``StepModel`` over whatever model is about to serve a request."""

    wrap: Callable[[Model], StepModel]

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        return dataclasses.replace(request_context, model=self.wrap(request_context.model))


def name_request(
    model: str,
    messages: Sequence[ModelMessage],
    settings: ModelSettings | None,
    parameters: ModelRequestParameters,
) -> dict[str, Any]:
    """What tells a request from others, the same in every process: the arguments of its kept read."""
    told = [_told(message) for message in ModelMessagesTypeAdapter.dump_python(list(messages))]
    asked = [model, told, _plain(dict(settings or {})), _plain(_PARAMETERS.dump_python(parameters))]
    newest = msgspec.json.encode(told[-1]["parts"] if told else [], order="sorted").decode()
    return {
        "model": model,
        "digest": sha256(msgspec.json.encode(asked, order="sorted")).hexdigest(),
        "messages": len(told),
        "newest": newest if len(newest) <= NEWEST else newest[: NEWEST - 3] + "...",
    }


def _told(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without what differs from run to run."""
    kept = {key: _plain(value) for key, value in message.items() if key not in _RUNS_OWN | {"parts"}}
    kept["parts"] = [
        {key: _plain(value) for key, value in part.items() if key not in _RUNS_OWN}
        for part in message["parts"]
    ]
    return kept


def _plain(value: Any) -> Any:
    """JSON that is the same for equal values in every process."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, Any]", value)
        return {str(key): _plain(item) for key, item in pairs.items()}
    if isinstance(value, AbstractSet):
        members = cast("AbstractSet[object]", value)
        return sorted((_plain(item) for item in members), key=repr)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, (bytes, bytearray)):
        return f"sha256:{sha256(value).hexdigest()}"
    return to_jsonable_python(value, fallback=lambda other: type(other).__qualname__)
