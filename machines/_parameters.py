"""The parameters of a declared call: bound, turned into canonical JSON and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import attrs
import msgspec

from ._codec import Codec, codec
from ._errors import DefinitionError, Unreadable
from ._shape import Schemas


class BadCall(Exception):
    """The arguments of a call do not fit its parameters, or its explicit key cannot be one."""


_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_SINGLE = (_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)


@attrs.frozen(kw_only=True)
class Parameters:
    """Every parameter after ``call``, in the order of their names, which is that of the canonical JSON."""

    call: str
    positional: tuple[str, ...]
    codecs: Mapping[str, Codec[Any]]
    labels: Mapping[str, bytes]
    defaults: Mapping[str, object]

    def encode(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], where: str
    ) -> tuple[bytes, dict[str, Any]]:
        bound = self._bind(args, kwargs, where)
        parts: list[bytes] = []
        back: dict[str, Any] = {}
        for name, made in self.codecs.items():
            raw, back[name] = made.roundtrip(bound[name], f"{where}: {self.call}({name})")
            parts.append(self.labels[name] + raw)
        return b"{" + b",".join(parts) + b"}", back

    def decode(self, raw: bytes, where: str) -> dict[str, Any]:
        where = f"{where}: {self.call}"
        try:
            stored = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise Unreadable(f"{where}: the stored arguments are not a JSON object: {error}") from error
        unknown = [name for name in stored if name not in self.codecs]
        if unknown:
            raise Unreadable(f"{where}({unknown[0]}): stored, but the call has no such parameter any more")
        return {name: self._value(name, stored, where) for name in self.codecs}

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the object of arguments, for models and for people."""
        schemas = Schemas()
        properties = {name: made.schema_in(schemas) for name, made in self.codecs.items()}
        required = [name for name in self.codecs if name not in self.defaults]
        schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
        schema["additionalProperties"] = False
        return {**schema, "$defs": schemas.definitions} if schemas.definitions else schema

    def from_json(self, given: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The arguments in an object of JSON that a model wrote; ``BadCall`` says what does not fit."""
        bound = dict(self._bind((), given, where))
        for name, plain in given.items():
            try:
                bound[name] = self.codecs[name].decode(msgspec.json.encode(plain), f"{where}({name})")
            except Unreadable as error:
                raise BadCall(str(error)) from error
        return bound

    def _value(self, name: str, stored: Mapping[str, msgspec.Raw], where: str) -> object:
        if name in stored:
            return self.codecs[name].decode(bytes(stored[name]), f"{where}({name})")
        if name in self.defaults:
            return self.defaults[name]
        raise Unreadable(f"{where}({name}): not stored, and the parameter has no default")

    def _bind(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], where: str
    ) -> Mapping[str, object]:
        if len(args) > len(self.positional):
            raise BadCall(
                f"{where}: {self.call}() takes {len(self.positional)} "
                f"arguments by position, {len(args)} given"
            )
        bound = {**self.defaults, **dict(zip(self.positional, args, strict=False))}
        given = set(self.positional[: len(args)])
        for name, value in kwargs.items():
            if name not in self.codecs:
                raise BadCall(f"{where}: {self.call}() has no parameter {name!r}{self._known()}")
            if name in given:
                raise BadCall(f"{where}: {self.call}() is given {name!r} twice, by position and by name")
            bound[name] = value
        missing = [name for name in self.codecs if name not in bound]
        if missing:
            raise BadCall(f"{where}: {self.call}() lacks {', '.join(map(repr, missing))}")
        return bound

    def _known(self) -> str:
        return f"; it has {', '.join(map(repr, self.codecs))}" if self.codecs else "; it has none"


def call_parameters(fn: Callable[..., Any], call: str) -> Parameters:
    """Read the signature of a declared call. Raises ``DefinitionError``: the call, and the parameter."""
    after_call = signature_of(fn, call)
    hints = type_hints(fn, call)
    codecs: dict[str, Codec[Any]] = {}
    for parameter in sorted(after_call, key=lambda parameter: parameter.name):
        where = f"{call}({parameter.name})"
        if parameter.name not in hints:
            raise DefinitionError(f"{where}: the parameter has no type; annotate it")
        codecs[parameter.name] = codec(hints[parameter.name], where)
    return Parameters(
        call=call,
        positional=tuple(p.name for p in after_call if p.kind is _POSITIONAL),
        codecs=codecs,
        labels={name: msgspec.json.encode(name) + b":" for name in codecs},
        defaults={p.name: p.default for p in after_call if p.default is not p.empty},
    )


def signature_of(fn: Callable[..., Any], call: str) -> list[inspect.Parameter]:
    """The parameters after ``call``, each of a kind that has a name of its own."""
    parameters = list(inspect.signature(fn).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise DefinitionError(f"{call}: the first parameter must be `call: Call[...]`")
    for parameter in parameters[1:]:
        if parameter.kind not in _SINGLE:
            raise DefinitionError(
                f"{call}({parameter}): arguments are recorded by name, so that *args, "
                "**kwargs and positional-only parameters cannot be; name each parameter"
            )
    return parameters[1:]


def type_hints(fn: Callable[..., Any], call: str) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise DefinitionError(
            f"{call}: an annotation cannot be resolved ({error}); the types "
            "that it names must be importable at run time, from module level"
        ) from error
