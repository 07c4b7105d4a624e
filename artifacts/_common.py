"""What the backends share: the clock, and what is checked before anything is looked for."""

from __future__ import annotations

import re
import time

from ._backend import NoSuchBlob

MOST_BLOBS = 1000
"""The longest page of a listing."""

CHUNK = 1 << 20
"""Bytes that are moved in one piece: large beside the cost of a thread hop, small in memory."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def system_clock() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def no_such_blob(workspace: str, sha256: str) -> NoSuchBlob:
    return NoSuchBlob(f"workspace {workspace!r} holds no blob {sha256!r}")


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def check_digest(workspace: str, sha256: str) -> None:
    if not is_digest(sha256):
        raise NoSuchBlob(
            f"workspace {workspace!r} holds no blob {sha256!r}: a digest is 64 lower-case hex digits"
        )


def check_range(start: int, end: int | None) -> None:
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"no range of bytes: start={start}, end={end}; it takes 0 <= start <= end")


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MOST_BLOBS:
        raise ValueError(f"limit={limit}: a page holds between 1 and {MOST_BLOBS} blobs")


def cursor_of(workspace: str, sha256: str) -> str:
    """The digest comes first, since its length is fixed and a workspace may hold any character."""
    return sha256 + workspace


def place_of(cursor: str | None) -> tuple[str, str]:
    """The (workspace, sha256) that a cursor stands for; without one, what sorts before every blob."""
    if cursor is None:
        return "", ""
    sha256, workspace = cursor[:64], cursor[64:]
    if not is_digest(sha256):
        raise ValueError(f"after={cursor!r} is no cursor: pass the `next` of the page before")
    return workspace, sha256
