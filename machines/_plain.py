"""Stored values as upcasters see them: plain JSON."""

from __future__ import annotations

import json
from typing import Any

from ._errors import Unreadable


def plain_value(stored: Any, where: str) -> Any:
    """Stored JSON as plain values. ``Unreadable`` where it is none."""
    try:
        return json.loads(bytes(stored))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{where}: the stored bytes are damaged: {error}") from None


def plain_json(value: Any, where: str) -> bytes:
    """Plain values as JSON. ``Unreadable`` where there is none for them: nan is written as nothing else."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"{where}: no plain JSON value: {error}") from None
