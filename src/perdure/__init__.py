"""perdure: agents as explicit state machines that do not lose their place.

Everything that a user's code needs is a name of this module, loaded when it is first asked for. Stores and
artifact backends of one's own are written against ``perdure.stores`` and ``perdure.artifacts``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.artifacts import ArtifactError
    from perdure.machines import (
        ABSENT,
        UNKNOWN,
        Absent,
        Accept,
        AnthropicMessages,
        Append,
        ArtifactRef,
        BadCall,
        BadTranscript,
        BadUpdate,
        Budget,
        Call,
        Cancellation,
        Choice,
        Conversation,
        Cost,
        DefinitionError,
        Effect,
        Ephemeral,
        Failure,
        Fire,
        Found,
        Limit,
        Machine,
        Merge,
        Message,
        ModelWritable,
        Namespace,
        NotDone,
        NotStorable,
        Position,
        Read,
        Reducer,
        Refusal,
        Retry,
        Spent,
        State,
        Step,
        ToolCall,
        Unknown,
        Unreadable,
        anywhere,
        arguments,
        diagram,
        dot,
        effect,
        from_anthropic,
        from_openai,
        present,
        read,
        record,
        replace,
        runtime_owned,
        to_anthropic,
        to_openai,
        tool,
    )
    from perdure.runtime import (
        AttemptTimedOut,
        CallMisuse,
        CallSeen,
        CannotResolve,
        Client,
        Ended,
        Fact,
        GuardRefused,
        MemoryConflict,
        NoSuchThread,
        Observation,
        Observer,
        Parked,
        PerdureError,
        Resolution,
        Runtime,
        RuntimeClosed,
        SignalRefused,
        StartConflict,
        StepSeen,
        Thread,
        UnknownMachine,
    )
    from perdure.stores import SignalConflict, StoreError, Threads

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "UNKNOWN",
    "Absent",
    "Accept",
    "AnthropicMessages",
    "Append",
    "ArtifactError",
    "ArtifactRef",
    "AttemptTimedOut",
    "BadCall",
    "BadTranscript",
    "BadUpdate",
    "Budget",
    "Call",
    "CallMisuse",
    "CallSeen",
    "Cancellation",
    "CannotResolve",
    "Choice",
    "Client",
    "Conversation",
    "Cost",
    "DefinitionError",
    "Effect",
    "Ended",
    "Ephemeral",
    "Fact",
    "Failure",
    "Fire",
    "Found",
    "GuardRefused",
    "Limit",
    "Machine",
    "MemoryConflict",
    "Merge",
    "Message",
    "ModelWritable",
    "Namespace",
    "NoSuchThread",
    "NotDone",
    "NotStorable",
    "Observation",
    "Observer",
    "Parked",
    "PerdureError",
    "Position",
    "Read",
    "Reducer",
    "Refusal",
    "Resolution",
    "Retry",
    "Runtime",
    "RuntimeClosed",
    "SignalConflict",
    "SignalRefused",
    "Spent",
    "StartConflict",
    "State",
    "Step",
    "StepSeen",
    "StoreError",
    "Thread",
    "Threads",
    "ToolCall",
    "Unknown",
    "UnknownMachine",
    "Unreadable",
    "__version__",
    "anywhere",
    "arguments",
    "diagram",
    "dot",
    "effect",
    "from_anthropic",
    "from_openai",
    "present",
    "read",
    "record",
    "replace",
    "runtime_owned",
    "to_anthropic",
    "to_openai",
    "tool",
]

_FOLDERS = ("machines", "runtime", "stores", "artifacts")


if not TYPE_CHECKING:  # to a checker it would make every misspelt name an Any

    def __getattr__(name: str) -> Any:
        """Importing the engine takes longer than all else that a short script does, so that it is put off."""
        if name in __all__:
            for folder in _FOLDERS:
                module = import_module(f"perdure.{folder}")
                if hasattr(module, name):
                    globals()[name] = value = getattr(module, name)
                    return value
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
