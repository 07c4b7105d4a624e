"""Values to canonical JSON and back, by converters that are made once a type."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.frozen(kw_only=True, eq=False)
class Codec(Generic[T]):
    """Converts values of one declared type to canonical JSON and back."""

    type: Any

    def encode(self, value: T, where: str) -> bytes:
        """The canonical bytes of ``value``: equal values give equal bytes in every process; ``NotStorable``."""
        raise NotImplementedError

    def decode(self, raw: bytes, where: str) -> T:
        """The value that ``raw`` holds; ``Unreadable`` where it does not fit the type."""
        raise NotImplementedError

    def roundtrip(self, value: T, where: str) -> tuple[bytes, T]:
        """``value`` encoded, and as it would be read back; ``NotStorable`` unless that is the same."""
        raise NotImplementedError

    def same(self, one: T, other: T) -> bool:
        """Whether both are equal and of the same types all the way down."""
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the encoded form."""
        raise NotImplementedError


def codec(type_: Any, where: str) -> Codec[Any]:
    """The codec of a type, made once; ``DefinitionError`` where values of that type cannot be stored."""
    raise NotImplementedError
