"""Records: the frozen classes that hold a machine's data, and what marks their fields."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar

import attrs
from typing_extensions import dataclass_transform

from ._pydantic import as_it_is

C = TypeVar("C")
T = TypeVar("T")

OWNED = "perdure.owned"
"""Key of a field's metadata that holds what the runtime puts there."""


class Position:
    """What the runtime can write into a field of a machine's data: see ``runtime_owned``."""

    seq: Final = "seq"
    thread_id: Final = "thread_id"


def runtime_owned(what: Literal["seq", "thread_id"], /, *, init: Literal[False] = False) -> Any:
    """A field that only the runtime writes: ``transitions: int = runtime_owned(Position.seq)``.

    It is no argument of the constructor and no update, is injected whenever data is read, and is not
    stored. Until the runtime has the record, it holds 0 or "".
    """
    owned: dict[str, Any] = {"seq": 0, "thread_id": ""}
    if what not in owned:
        raise ValueError(f"the runtime owns no {what!r}: use Position.seq or Position.thread_id")
    metadata: dict[Any, Any] = {OWNED: what}
    return attrs.field(init=init, default=owned[what], metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(attrs.field, runtime_owned))
def record(cls: type[C]) -> type[C]:
    """Make a class a record: a frozen, slotted, keyword-only attrs class, equal by its fields.

    A list, dict or set given as default is copied for each record. ``copy.replace(record, field=value)``
    (Python 3.13) and ``record.__replace__(field=value)`` make a changed copy.
    """
    if "__replace__" not in cls.__dict__:
        cls.__replace__ = _replace  # type: ignore[attr-defined]
    if "__get_pydantic_core_schema__" not in cls.__dict__:
        cls.__get_pydantic_core_schema__ = classmethod(as_it_is)  # type: ignore[attr-defined]
    return attrs.frozen(kw_only=True, field_transformer=_fresh_defaults)(cls)


def _replace(self: Any, /, **changes: Any) -> Any:
    changed = attrs.evolve(self, **changes)
    fields: tuple[Any, ...] = attrs.fields(self.__class__)
    for attribute in fields:
        if OWNED in attribute.metadata:
            object.__setattr__(changed, attribute.name, getattr(self, attribute.name))
    return changed


_MUTABLE: tuple[type[Any], ...] = (list, dict, set)


def _fresh_defaults(cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    return [
        field.evolve(default=attrs.Factory(partial(copy.deepcopy, field.default)))
        if type(field.default) in _MUTABLE
        else field
        for field in fields
    ]


@attrs.frozen
class Append:
    """Marks a ``Sequence`` field that accumulates: an update gives the items to append.

    With ``keep`` only so many of them, the newest, stay.
    """

    keep: int | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Merge:
    """Marks a ``Mapping`` field whose updates are merged in: their keys win, no key is ever taken out."""


@attrs.frozen
class Reducer:
    """Marks a field whose new value is ``fn(old, update)``, a pure function."""

    fn: Callable[[Any, Any], Any]


@attrs.frozen
class ModelWritable:
    """Marks a field that a model's answer may set: see ``Step.patch_from_model``."""


@attrs.frozen
class Ephemeral:
    """Marks a cache: never stored, of any type. It needs a default, which guards and resumes see."""


@attrs.frozen
class Conversation:
    """Marks the one ``Sequence[Message]`` that lives with the session. An update gives messages to append."""


@attrs.frozen
class Replaced:
    """What ``replace`` makes of a value, until the update that it stands in is merged."""

    value: Any


def replace(value: T, /) -> T:
    """The value itself as an update, past the field's reducer: ``self.tidied(notes=replace([summary]))``.

    An ``Append()`` field then holds these items alone, a cost field this amount. It stands for a whole update
    and nowhere within one; a ``Conversation()`` cannot be replaced.
    """
    made: Any = Replaced(value)
    return made  # type: ignore[no-any-return]


def present(value: T | None, /) -> T:
    """The value, where it is not None; ``ValueError`` at this line where it is."""
    if value is None:
        raise ValueError(
            "a value has to be present here, and it is None: an earlier state should have set it"
        )
    return value


@record
class ArtifactRef:
    """Names one put of an artifact. The bytes are found by ``sha256`` within the workspace."""

    id: str
    sha256: str
    """Hex digest of the bytes."""
    media_type: str
    size_bytes: int


@record
class ToolCall:
    """A model's request to call a tool."""

    id: str
    """Given by the model's provider; the answering message repeats it."""
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


@record
class Message:
    """One message of a conversation, in the form that the transcripts of model providers share."""

    role: str
    """``system`` (or ``developer``), ``user``, ``assistant`` or ``tool``."""
    content: str
    name: str | None = None
    """Who speaks, where a role has several speakers; the tool's name in its answer."""
    tool_calls: Sequence[ToolCall] = ()
    """What an assistant asks for."""
    tool_call_id: str | None = None
    """In a tool's answer: the call that it answers."""
    tool_failed: bool = False
    """In a tool's answer: the content is an error."""
    refused: bool = False
    """In an assistant's answer: the content says why it does not do what was asked."""
