"""A machine's data class, planned once: what of it is stored, and how updates merge into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import attrs

from ._codec import Codec

D = TypeVar("D")


@attrs.frozen(kw_only=True)
class FieldPlan:
    """One field of a machine's data."""

    name: str
    kind: Literal["plain", "append", "conversation", "ephemeral", "owned"]
    codec: Codec[Any] | None
    """Of the value; of one item in an ``append`` or ``conversation`` field; None where nothing is stored."""
    reducer: Callable[[Any, Any], Any] | None = None
    model_writable: bool = False
    default: Any = attrs.NOTHING
    owned: str | None = None


@attrs.frozen(kw_only=True)
class Merged(Generic[D]):
    """Data after updates."""

    data: D
    live: D
    delta: dict[str, list[Any]]
    items: bytes | None
    messages: tuple[bytes, ...]
    positions: dict[str, tuple[int, int]]
    size: int


@attrs.frozen(kw_only=True)
class Loaded(Generic[D]):
    """Data read back."""

    data: D
    positions: dict[str, tuple[int, int]]


class DataPlan(Generic[D]):
    """How one data class is stored."""

    cls: type[D]
    fields: Mapping[str, FieldPlan]

    def __init__(self, cls: type[D], where: str) -> None:
        raise NotImplementedError

    def started(self, data: D, owned: Mapping[str, object]) -> Merged[D]:
        """A thread's first data, at log position 0."""
        raise NotImplementedError

    def merge(
        self,
        data: D,
        updates: Sequence[tuple[str, Mapping[str, object]]],
        owned: Mapping[str, object],
        *,
        n: int,
        positions: Mapping[str, tuple[int, int]],
    ) -> Merged[D]:
        """``data`` with the updates of each lane, in order, for the commit at log position ``n``."""
        raise NotImplementedError

    def base(self, data: D, positions: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        """A full snapshot."""
        raise NotImplementedError

    def load(
        self,
        base: Mapping[str, Any],
        deltas: Sequence[tuple[int, Mapping[str, Any]]],
        items: Sequence[tuple[int, bytes]],
        messages: Sequence[bytes],
        owned: Mapping[str, object],
    ) -> Loaded[D]:
        """Data from a snapshot, the deltas after it, and the rows of items and messages."""
        raise NotImplementedError

    def patch(self, mapping: Mapping[str, Any]) -> dict[str, object]:
        """Updates from a model's answer."""
        raise NotImplementedError

    def patch_schema(self) -> dict[str, Any]:
        """JSON Schema of what a model may set."""
        raise NotImplementedError
