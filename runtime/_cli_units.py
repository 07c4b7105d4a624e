"""Spans of time, sizes and moments as the command line takes and shows them."""

from __future__ import annotations

import re
from datetime import timedelta

from perdure.stores import Micros

from ._cli_load import BadInput
from ._context import moment

LONGEST = timedelta(days=36500)

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def span_of(text: str, option: str) -> timedelta:
    """``90s``, ``15m``, ``1h``, ``30d`` or ``2w`` as a span of time."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise BadInput(f"{option}: {text!r} is no span of time: write it as in 90s, 15m, 1h, 30d or 2w")
    span = timedelta(**{_UNITS[found[2]]: float(found[1])})
    if span > LONGEST:
        raise BadInput(f"{option}: {text} is longer than a hundred years: leave it out for what never ends")
    return span


def size_text(size: float) -> str:
    """Bytes for people: ``812 bytes``, ``1.5 MB``."""
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def time_text(at: Micros | None) -> str:
    """A moment to the second, UTC; empty for none."""
    return "" if at is None else f"{moment(at):%Y-%m-%d %H:%M:%S}Z"
