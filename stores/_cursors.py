"""The cursors between the pages of a query: what orders a row, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

BIGGEST = 2**63 - 1


def cursor_of(key: Sequence[str | int]) -> str:
    return json.dumps(list(key))


def parse_cursor(after: str, types: Sequence[type]) -> Sequence[Any]:
    """The texts and numbers in a cursor; ``ValueError`` where they are not of these types."""
    try:
        key = msgspec.json.decode(after, type=list[str | int])
    except (msgspec.MsgspecError, UnicodeEncodeError):
        key = []
    if [type(part) for part in key] != list(types) or not all(map(_is_storable, key)):
        raise ValueError(
            f"{after[:80]!r} is no cursor of this query: pass on the `next` of its last page, or None"
        )
    return key


def _is_storable(part: str | int) -> bool:
    return isinstance(part, str) or -BIGGEST <= part <= BIGGEST
