"""What a model is offered, and what becomes of its answer: an offer it can take, or a refusal it can read."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs
import msgspec

from ._calls import Declared, Effect, Keyed, Read
from ._codec import Codec
from ._containers import to_bytes
from ._errors import DefinitionError, Unreadable
from ._plan import EventPlan
from ._record import Message, ToolCall, record
from ._shape import Schemas

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""The names of tools that model APIs take."""
MAX_ARGUMENTS = 1024 * 1024
"""Characters of a tool call's arguments that are looked at."""
MAX_SAID = 2000
"""Characters of a refusal."""


@record
class Choice:
    """Something that a model may choose: an event of the machine, or a declared call. It can be an argument
    of the read that asks the model."""

    name: str
    description: str
    schema: str
    """``parameters`` as JSON text."""

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments: always of an object."""
        schema: dict[str, Any] = json.loads(self.schema)
        return schema

    def openai(self) -> dict[str, Any]:
        """An item of ``tools`` as OpenAI's chat completions take it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }

    def anthropic(self) -> dict[str, Any]:
        """An item of ``tools`` as Anthropic's messages take it."""
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": self.parameters,
        }


@attrs.frozen(kw_only=True)
class Refusal:
    """Why a model's tool call is not followed, in words for the model. Not an error: it may choose again."""

    call_id: str
    """The ``ToolCall.id`` that it answers."""
    text: str
    """What is said to the model."""

    def message(self) -> Message:
        """The tool's answer that tells the model so."""
        return Message(role="tool", content=self.text, tool_call_id=self.call_id, tool_failed=True)


def tool(declared: Declared[Any, ..., Any], /, description: str | None = None) -> Choice:
    """A declared read or effect as something to offer to a model, described by its docstring.

    What the model answers, ``arguments`` turns into the call's. An effect under an explicit key is offered as
    the effect. ``DefinitionError`` where the name or the parameters are not what model APIs take.
    """
    call = _function(declared)
    if not NAME.fullmatch(call.name):
        raise DefinitionError(
            f"{call.label}: model APIs take names of at most 64 ASCII letters, digits, '_' and '-'; rename "
            "it, and give its old name renamed="
        )
    schemas = Schemas()
    parameters = call.parameters
    properties = {name: codec.schema_in(schemas) for name, codec in parameters.codecs.items()}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in parameters.defaults],
        "additionalProperties": False,
    }
    if schemas.definitions:
        schema["$defs"] = schemas.definitions
    said = inspect.getdoc(call.fn) if description is None else description
    return Choice(name=call.name, description=said or "", schema=json.dumps(schema))


def arguments(call: ToolCall, declared: Declared[Any, ..., Any], /) -> dict[str, Any] | Refusal:
    """A model's tool call as the keyword arguments of a declared call, each of its declared type, or why they
    do not fit: ``if not isinstance(found, Refusal): await step.call(get_customer, **found)``.

    Whatever a model writes, it does not raise.
    """
    function = _function(declared)
    if call.name != function.name:
        return refusal(call, f"{_short(call.name)} is not {function.name}")
    plain = decoded(call)
    if isinstance(plain, Refusal):
        return plain
    parameters = function.parameters
    unknown = [name for name in plain if name not in parameters.codecs]
    missing = [name for name in parameters.codecs if name not in plain and name not in parameters.defaults]
    if unknown or missing:
        what = f"has no parameter {_short(unknown[0])}" if unknown else f"lacks {missing[0]}"
        return refusal(call, f"{call.name} {what}; {_parameters(list(parameters.codecs))}")
    found: dict[str, Any] = {}
    for name, value in plain.items():
        fitting = _fitted(parameters.codecs[name], value, f"{call.name}({name})")
        if isinstance(fitting, str):
            return refusal(call, fitting)
        found[name] = fitting.value
    return found


def _parameters(names: Sequence[str]) -> str:
    return f"its parameters: {', '.join(names)}" if names else "it takes no parameters"


def _function(declared: Declared[Any, ..., Any]) -> Any:
    found = cast("object", declared.effect if isinstance(declared, Keyed) else declared)
    if not isinstance(found, (Read, Effect)):
        raise DefinitionError(f"{found!r} is no declared call: put @read or @effect over the function")
    return cast("Any", found)


# --- the events of a state ------------------------------------------------------------------------

NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of an event that takes no payload."""


def choice_of(event: EventPlan) -> Choice:
    """An event as a model is offered it."""
    schema = NOTHING if event.payload is None else _object(event.payload)
    return Choice(name=event.name, description=event.doc, schema=json.dumps(schema))


def _object(payload: Codec[Any]) -> dict[str, Any]:
    """The payload's schema, with what its outermost reference leads to in place of that: an API takes an
    object there."""
    schema = payload.schema()
    definitions: dict[str, Any] = schema.pop("$defs", {})
    reference = schema.pop("$ref", "").rpartition("/")[2]
    if reference:
        schema = {**schema, **definitions[reference]}
        recursive = f'"#/$defs/{reference}"' in json.dumps(definitions)
        if not recursive:
            definitions = {name: one for name, one in definitions.items() if name != reference}
    return {**schema, "$defs": definitions} if definitions else schema


def payload_of(event: EventPlan, call: ToolCall) -> Any | Refusal:
    """What a model's tool call brings an event: None where it takes no payload."""
    plain = decoded(call)
    if isinstance(plain, Refusal):
        return plain
    if event.payload is None:
        said = f"{event.name} takes no arguments, and was given {_short(next(iter(plain)))}" if plain else ""
        return refusal(call, said) if plain else None
    fitting = _fitted(event.payload, plain, event.name)
    return refusal(call, fitting) if isinstance(fitting, str) else fitting.value


# --- what a model writes --------------------------------------------------------------------------


def refusal(call: ToolCall, text: str) -> Refusal:
    """A refusal of bounded length, in text that can be stored."""
    said = text if len(text) <= MAX_SAID else text[: MAX_SAID - 3] + "..."
    return Refusal(call_id=call.id, text=said.encode("utf-8", "backslashreplace").decode())


def decoded(call: ToolCall) -> dict[str, Any] | Refusal:
    """The arguments of a tool call as plain JSON values: one object, in which no name comes twice."""
    text = call.arguments.strip() or "{}"  # a model that has nothing to say may say nothing
    if len(text) > MAX_ARGUMENTS:
        return refusal(
            call, f"the arguments have {len(text):,} characters, and {MAX_ARGUMENTS:,} are allowed: say less"
        )
    try:
        json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        plain = msgspec.json.decode(text.encode())
    except RecursionError:
        return refusal(call, "the arguments are nested too deeply: nest them less")
    except (ValueError, msgspec.MsgspecError) as error:
        return refusal(call, f"the arguments are no valid JSON: {error}: send one JSON object")
    if not isinstance(plain, dict):
        return refusal(
            call, f"the arguments are {_short(text)}: send one JSON object, its keys the parameters"
        )
    return cast("dict[str, Any]", plain)


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"the name {_short(name)} comes twice in one object")
        seen.add(name)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


@attrs.frozen
class _Fitting:
    value: Any


def _fitted(made: Codec[Any], plain: Any, where: str) -> _Fitting | str:
    """The value, as it is stored and read back, or what is wrong with it."""
    try:
        value = made.decode(to_bytes(plain), where)
        return _Fitting(made.roundtrip(value, where)[1])
    except Exception as error:  # a payload's own code may raise anything over what a model wrote
        return str(error) if isinstance(error, Unreadable) else f"{where}: {type(error).__name__}: {error}"


def _short(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "...")
