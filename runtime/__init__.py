"""The engine: it claims threads, runs their steps, settles doubts, and keeps inbox, timers and memory."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from ._schedules import Schedule
    from ._serve import Stop, serve

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
    "Schedule",
    "SignalRefused",
    "StartConflict",
    "StepSeen",
    "Stop",
    "Thread",
    "UnknownMachine",
    "serve",
]

_MODULES = (
    "_client",
    "_client_memory",
    "_errors",
    "_look",
    "_observe",
    "_operate",
    "_runtime",
    "_schedules",
    "_serve",
)


if not TYPE_CHECKING:  # to a checker it would make every misspelt name an Any

    def __getattr__(name: str) -> Any:
        """Importing the engine takes longer than all else that `perdure --help` does, so it is put off."""
        if name in __all__:
            for module in _MODULES:
                found = vars(import_module(f"{__name__}.{module}"))
                if name in found:
                    globals()[name] = found[name]
                    return found[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
