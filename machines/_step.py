"""What a handler is written against: the step, its memory and its artifacts, as protocols."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, Protocol
from uuid import UUID

import attrs
from typing_extensions import TypeVar

from ._calls import Declared
from ._choices import Choice, Refusal
from ._codec import Codec, codec
from ._errors import DefinitionError
from ._record import ArtifactRef, ToolCall
from ._states import Fire

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")
X = TypeVar("X")
X_co = TypeVar("X_co", covariant=True, default=object)


def _filled(namespace: Any, attribute: Any, value: str) -> None:
    if not value:
        raise DefinitionError(
            "Namespace: the name is empty; give it one, it is a part of the record's address"
        )


@attrs.frozen
class Namespace(Generic[V]):
    """A named family of memory records of one type: ``Namespace("customer", CustomerFacts)``.

    ``merge``, given the newest stored value and the one to be put, gives the value that takes both in; with
    it a put over a changed record merges, without it that is a ``MemoryConflict``. It is pure, and may run
    again. Raises ``DefinitionError`` where the type cannot be stored.
    """

    name: str = attrs.field(validator=_filled)
    value_type: type[V]
    merge: Callable[[V, V], V] | None = attrs.field(default=None, kw_only=True)
    codec: Codec[V] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        made: Codec[V] = codec(self.value_type, f"namespace {self.name!r}")
        object.__setattr__(self, "codec", made)


class StepMemory(Protocol):
    """The workspace's memory, as one step sees it: its own puts included, others' as of its first look."""

    def get(
        self,
        namespace: Namespace[V],
        key: str,
        /,
        *,
        max_age: timedelta | None = None,
        verify: Declared[Any, [str], V | None] | None = None,
    ) -> Awaitable[V | None]:
        """The record's value, or None. One verified longer than ``max_age`` ago is checked again by the read
        ``verify``, which is given the key."""
        ...

    def put(
        self, namespace: Namespace[V], key: str, value: V, /, *, if_version: int | None = None
    ) -> Awaitable[None]:
        """Put the record with the transition's commit. With ``if_version`` (0: it must not exist) only over
        that version."""
        ...

    def update(self, namespace: Namespace[V], key: str, fn: Callable[[V | None], V], /) -> Awaitable[V]:
        """Apply the pure ``fn`` to the newest value (None: there is no record), again after each conflict."""
        ...


class StepArtifacts(Protocol):
    """Large and binary outputs, kept outside the data."""

    def put(
        self,
        data: bytes | AsyncIterable[bytes],
        /,
        *,
        media_type: str,
        derived_from: Sequence[ArtifactRef] = (),
    ) -> Awaitable[ArtifactRef]:
        """Store the bytes; equal puts of one step give the same ref, also after a crash."""
        ...

    def open(self, ref: ArtifactRef, /) -> AsyncIterator[bytes]:
        """The bytes in chunks, verified against the ref's digest as they are read."""
        ...

    def get(self, ref: ArtifactRef, /) -> Awaitable[bytes]:
        """All the bytes, verified against the ref's digest."""
        ...


class Step(Protocol[X_co]):
    """The work between two checkpoints, as a handler sees it."""

    @property
    def thread_id(self) -> str:
        """The thread's id within its workspace."""
        ...

    @property
    def seq(self) -> int:
        """The checkpoint that this step began at: committed transitions, counted from 0."""
        ...

    @property
    def attempt(self) -> int:
        """Which try at this visit it is, counted from 1."""
        ...

    @property
    def memory(self) -> StepMemory:
        """Facts that outlive the thread; what is put lands with the step's transition."""
        ...

    @property
    def artifacts(self) -> StepArtifacts:
        """Large outputs outside the data; their records land with the step's transition."""
        ...

    def call(
        self: Step[X], declared: Declared[X, P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]:
        """Register a declared call, which fixes its order and its key; awaiting it issues it."""
        ...

    def lane(self, name: str, /) -> Step[X_co]:
        """The named strand of this step, for calls that run beside others."""
        ...

    def now(self) -> Awaitable[datetime]:
        """The time (aware, UTC), recorded as a plain read is: drawn anew after a resume,
        unless an effect may rest on it."""
        ...

    def uuid(self) -> Awaitable[UUID]:
        """A random UUID, recorded as a plain read is: drawn anew after a resume,
        unless an effect may rest on it."""
        ...

    def random(self) -> Awaitable[float]:
        """A random number in [0, 1), recorded as a plain read is: drawn anew after a resume,
        unless an effect may rest on it."""
        ...

    def report(self, **progress: object) -> None:
        """Show progress to whoever watches; it is not durable, and no transition reads it."""
        ...

    def choices(self) -> Sequence[Choice]:
        """What a model may decide in this state: the ``on_choice`` events that leave it, as tools for its API
        (``choice.openai()``, ``choice.anthropic()``)."""
        ...

    def decide(self, call: ToolCall, /) -> Fire | Refusal:
        """What a model's tool call comes to: the event to return from the handler, or a refusal whose
        ``message()`` tells the model why not.

        The event must be one of ``choices()``, the arguments its payload, and its guard true of the data as
        its receiver would leave it. Nothing is written, and whatever the model wrote, it does not raise. A
        model sets no field but those that the receiver sets.
        """
        ...

    def patch_from_model(self, answer: Mapping[str, Any], /) -> dict[str, Any]:
        """The updates that a model's answer may make: ``ModelWritable`` fields alone, each of its declared
        type. Raises ``BadUpdate`` where a value is of another type."""
        ...

    def patch_schema(self) -> dict[str, Any]:
        """The JSON Schema of what ``patch_from_model`` accepts, to be given to the model."""
        ...
