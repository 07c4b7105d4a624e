"""The immutable mapping that a stored ``Mapping`` comes back as."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenMapping(dict[K, V]):
    """A mapping that cannot be changed, hashable where its values are. Equal to a dict of the same items.

    It is a ``dict`` so that ``json`` and everything else that reads mappings takes it as it is. Whatever
    would change it raises ``TypeError``; ``{**old, "key": value}`` makes a changed copy.
    """

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __repr__(self) -> str:
        return f"FrozenMapping({dict(self)!r})"

    def __copy__(self) -> FrozenMapping[K, V]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenMapping[K, V]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMapping, (dict(self),)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("stored data cannot be changed in place: give the event a new mapping instead")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]
