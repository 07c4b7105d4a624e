"""Values to canonical JSON and back, by converters that are made once a type."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar

import attrs
import msgspec

from ._containers import from_bytes, to_bytes
from ._errors import DefinitionError, NotStorable, Unreadable
from ._shape import Refused, Schemas, Shape, identity, misfit, reason_of, unstorable
from ._types import Compiler

T = TypeVar("T")

MAX_BYTES = 16 * 1024 * 1024
"""Bytes that one encoded value may have."""


@attrs.frozen(kw_only=True, eq=False)
class Codec(Generic[T]):
    """Converts values of one declared type to canonical JSON and back. Made by ``codec``."""

    type: Any
    same: Callable[[Any, Any], bool]
    """Whether a value and one that was read back are equal, and of the same types all the way down."""
    _shape: Shape = attrs.field(alias="shape")
    _recursive: bool = attrs.field(alias="recursive")
    _exact: type | None = attrs.field(alias="exact")
    _write: Callable[[Any], bytes] = attrs.field(alias="write")
    _load: Callable[..., Any] = attrs.field(alias="load")

    def encode(self, value: T, where: str) -> bytes:
        """The canonical bytes of ``value``: compact UTF-8 JSON, keys of objects and items of sets sorted.

        The same value gives the same bytes in every process. ``NotStorable`` as in ``roundtrip``.
        """
        return self.roundtrip(value, where)[0]

    def decode(self, raw: bytes | msgspec.Raw, where: str) -> T:
        """The value that ``raw`` holds. ``Unreadable`` names ``where`` and the path of what does not fit.

        Nothing that the bytes name is imported or run: types come from the declaration alone.
        """
        try:
            plain = from_bytes(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(f"{where}: the stored bytes are no JSON: {error}") from None
        return self.structure(plain, where)

    def structure(self, plain: Any, where: str) -> T:
        """The value that decoded JSON holds; ``Unreadable`` as in ``decode``."""
        try:
            value: T = self._load(plain, None)
        except Exception as error:
            path, reason = misfit(self._shape, plain) or ("", reason_of(error))
            raise Unreadable(f"{where}{path}: {reason}") from error
        return value

    def roundtrip(self, value: T, where: str) -> tuple[bytes, T]:
        """``value`` encoded, and as it would be read back.

        ``NotStorable`` names ``where``, the path and the reason, unless what is read back is equal and of
        the same types all the way down; also over 100 levels of nesting or 16 MiB. A list given for a
        ``Sequence`` comes back as a tuple, a set for an ``AbstractSet`` as a frozenset, a dict for a
        ``Mapping`` as a mapping that cannot be changed.
        """
        if self._recursive:
            self._check(value, where)
        try:
            raw = self._write(value)
            if type(value) is self._exact:  # text, int or bool: JSON brings back the very same
                back, same = value, True
            else:
                back = self._load(from_bytes(raw), None)
                same = self.same(value, back)
        except Exception as error:
            self._check(value, where)
            raise NotStorable(f"{where}: {reason_of(error)}") from error
        if not same:
            self._check(value, where)
            raise NotStorable(f"{where}: it would not come back equal: a constructor or converter changes it")
        if len(raw) > MAX_BYTES:
            raise NotStorable(
                f"{where}: it has {len(raw):,} bytes, {MAX_BYTES:,} are allowed: put it into an artifact"
            )
        return raw, back

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the encoded form, for models and for people."""
        schemas = Schemas()
        schema = self.schema_in(schemas)
        return {**schema, "$defs": schemas.definitions} if schemas.definitions else schema

    def schema_in(self, schemas: Schemas) -> dict[str, Any]:
        """The same as a part of a larger schema, which keeps the definitions."""
        return self._shape.schema(schemas)

    def snapshot(self, value: T) -> bytes:
        """The bytes of a value that ``roundtrip`` or ``decode`` returned: nothing is checked again."""
        return self._write(value)

    def _check(self, value: T, where: str) -> None:
        found = unstorable(self._shape, value)
        if found is not None:
            raise NotStorable(f"{where}{found[0]}: {found[1]}")


def codec(type_: Any, where: str) -> Codec[Any]:
    """The codec of a type, made once; ``DefinitionError`` names ``where`` and what cannot be stored."""
    try:
        try:
            return _cached(type_)
        except TypeError:
            return _make(type_)
    except Refused as refused:
        raise DefinitionError(f"{where}{refused.path}: {refused.reason}") from refused.__cause__


def _make(type_: Any) -> Codec[Any]:
    compiler = Compiler()
    shape = compiler.shape(type_)
    dump = shape.dump

    def dump_and_write(value: Any) -> bytes:
        return to_bytes(dump(value))

    return Codec(
        type=type_,
        same=shape.same,
        shape=shape,
        recursive=compiler.recursive,
        exact=shape.exact,
        write=to_bytes if dump is identity else dump_and_write,
        load=shape.load,
    )


_cached = lru_cache(maxsize=1024)(_make)
