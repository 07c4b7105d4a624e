"""What the runtime raises for its users. Flat: each error says what happened and what to do next."""

from __future__ import annotations


class PerdureError(Exception):
    """Base of the errors that the runtime raises."""


class NoSuchThread(PerdureError):
    """No thread has this address in this store."""


class UnknownMachine(PerdureError):
    """The machine is not among those that this runtime was given."""


class StartConflict(PerdureError):
    """A thread with this id exists and was started with another machine or other data."""


class SignalRefused(PerdureError):
    """The machine has no such signal, its payload has another type, or the thread has ended: how, it says."""


class Parked(PerdureError):
    """The thread is parked: nothing runs it until an operator or other code moves it on.

    ``reason`` is one of: in doubt, diverged, failed, conflict, unreadable, poison.
    """

    def __init__(self, thread_id: str, reason: str, note: str) -> None:
        super().__init__(f"thread {thread_id!r} is parked ({reason}): {note}")
        self.thread_id = thread_id
        self.reason = reason
        self.note = note


class GuardRefused(PerdureError):
    """No transition of the fired event has a true guard: the visit has failed, without another attempt."""


class MemoryConflict(PerdureError):
    """A memory key changed since the step first touched it, and its namespace has no merge rule."""


class CallMisuse(PerdureError):
    """A call was made in a way that cannot be recorded; the message names the call and the mend."""


class AttemptTimedOut(PerdureError):
    """The state's deadline for one attempt passed."""


class RuntimeClosed(PerdureError):
    """The runtime is not running: use it inside ``async with runtime:``."""


class CannotResolve(PerdureError):
    """What was asked of ``resolve``, ``retry`` or ``terminate`` does not fit the thread as it stands; nothing
    was done."""
