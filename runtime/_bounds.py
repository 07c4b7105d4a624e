"""Spans of time and numbers from outside: refused by name before anything rests on them."""

from __future__ import annotations

from datetime import timedelta

LONGEST = timedelta(days=365_000)
"""A thousand years: what ends then can still be stored."""
ZERO = timedelta(0)


def check_span(what: str, value: object, *, zero: bool = False) -> None:
    """Refuse what is no span of time up to a thousand years; ``ValueError`` names it."""
    if isinstance(value, timedelta) and (ZERO < value <= LONGEST or (zero and value == ZERO)):
        return
    least = "from zero" if zero else "over zero and"
    raise ValueError(f"{what} takes a timedelta {least} up to a thousand years, not {value!r}")


def check_count(what: str, value: object) -> None:
    """Refuse what is no whole number from 1 on; ``ValueError`` names it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what} takes a whole number from 1 on, not {value!r}")
