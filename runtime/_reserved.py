"""The inbox's reserved messages: no machine can have an event of their names."""

from __future__ import annotations

import msgspec

from perdure.machines import Cancellation, Definition
from perdure.stores import InboxRow

CANCEL = ":cancel"
TERMINATE = ":terminate"
RESERVED = (CANCEL, TERMINATE)
"""Event and id in one: each comes once a thread."""


class _Words(msgspec.Struct):
    by: str = ""
    reason: str = ""


def words_of(row: InboxRow) -> Cancellation:
    """Who sent a reserved message, and why; empty where the bytes say no such thing."""
    try:
        words = msgspec.json.decode(row.payload, type=_Words)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        words = _Words()
    return Cancellation(by=words.by, reason=words.reason)


def said_by(row: InboxRow) -> str:
    """A reserved message in words: ``cancel by ada: too late``."""
    words = words_of(row)
    return f"{row.event[1:]} by {words.by}" + (f": {words.reason}" if words.reason else "")


def ends_on_cancel(definition: Definition) -> bool:
    """No event of the machine takes a cancel: the thread ends where it stands."""
    return all(event.kind != "cancel" for event in definition.events.values())
