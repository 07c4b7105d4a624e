"""Rules of the engine switched off, one at a time: the sweep must find what each of them prevents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.runtime._book import Book
from perdure.runtime._effects import EffectWork


def no_lookup() -> None:
    """An effect in doubt is issued again without asking anybody."""

    async def issue_again(self: EffectWork, record: Any) -> bool:
        return True

    EffectWork._may_issue_again = issue_again  # type: ignore[method-assign]


def no_outcomes() -> None:
    """Outcomes are known to the process, and not recorded."""

    def forget(self: EffectWork, record: Any, encoded: bytes, *, adopted: bool) -> None:
        self.visit.book.apply({"k": "done", "id": record.id, "value": encoded, "adopted": adopted})

    EffectWork._done = forget  # type: ignore[method-assign]
    no_lookup()


def no_pinning() -> None:
    """A later attempt asks again for what an effect was decided on."""
    Book.pinned = lambda self, read: False  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "no lookup": no_lookup,
    "no outcomes": no_outcomes,
    "no pinning": no_pinning,
}
