"""The engine: it claims threads, runs their steps, settles doubts, and keeps inbox, timers and memory."""

from ._client import Client, Ended, Thread
from ._client_memory import Fact
from ._errors import (
    AttemptTimedOut,
    CallMisuse,
    CannotResolve,
    GuardRefused,
    MemoryConflict,
    NoSuchThread,
    Parked,
    PerdureError,
    RuntimeClosed,
    SignalRefused,
    StartConflict,
    UnknownMachine,
)
from ._look import CallSeen, StepSeen
from ._observe import Observation, Observer
from ._operate import Resolution
from ._runtime import Runtime

__all__ = [
    "AttemptTimedOut",
    "CallMisuse",
    "CallSeen",
    "CannotResolve",
    "Client",
    "Ended",
    "Fact",
    "GuardRefused",
    "MemoryConflict",
    "NoSuchThread",
    "Observation",
    "Observer",
    "Parked",
    "PerdureError",
    "Resolution",
    "Runtime",
    "RuntimeClosed",
    "SignalRefused",
    "StartConflict",
    "StepSeen",
    "Thread",
    "UnknownMachine",
]
