"""How often, and how many at once: limits on what machines run and call."""

from __future__ import annotations

from typing import Any

import attrs

from ._errors import DefinitionError


@attrs.frozen
class Limit:
    """A named resource that calls share, and what it bears over all workers together.

    ``openai = Limit("openai", per_minute=60, at_once=4)``, then ``@read(limit=openai)``. ``per_minute``:
    calls begun in any 60 seconds. ``at_once``: calls under way. At least one of them is given.
    ``DefinitionError`` for anything but whole numbers over zero.
    """

    name: str
    per_minute: int | None = attrs.field(default=None, kw_only=True)
    at_once: int | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"Limit: {self.name!r} is no name; name the resource, as in 'openai'")
        label = f"limit {self.name!r}"
        for what, given in (("per_minute", self.per_minute), ("at_once", self.at_once)):
            check_count(label, what, given)
        if self.per_minute is None and self.at_once is None:
            raise DefinitionError(f"{label}: it limits nothing; give it per_minute= or at_once=")


def check_count(label: str, name: str, given: object) -> None:
    """``DefinitionError`` unless it is None or a whole number over zero."""
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise DefinitionError(f"{label}: {name}= takes a whole number over zero, not {given!r}")


def check_limit(label: str, limit: Any) -> None:
    """``DefinitionError`` unless it is None or a ``Limit``."""
    if limit is not None and not isinstance(limit, Limit):
        raise DefinitionError(
            f"{label}: limit= takes a Limit, as in limit=Limit('openai', at_once=4), not {limit!r}"
        )
