"""The names that ``import perdure`` offers, how light it is, and that checkers and the running code agree."""

import ast
import importlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

NAMES = """
    ABSENT UNKNOWN Absent Accept AnthropicMessages Append ArtifactError ArtifactRef AttemptTimedOut BadCall
    BadTranscript BadUpdate Budget Call CallMisuse CallSeen Cancellation CannotResolve Choice Client
    Conversation Cost DefinitionError Effect Ended Ephemeral Fact Failure Fire Found GuardRefused Limit
    Machine MemoryConflict Merge Message ModelWritable Namespace NoSuchThread NotDone NotStorable
    Observation Observer Parked PerdureError Position Read Reducer Refusal Resolution Retry Runtime
    RuntimeClosed Schedule SignalConflict SignalRefused Spent StartConflict State Step StepSeen Stop
    StoreError Thread Threads ToolCall Unknown UnknownMachine Unreadable __version__ anywhere arguments
    diagram dot effect from_anthropic from_openai present read record replace runtime_owned serve
    to_anthropic to_openai tool upcast
"""
HEAVY = ("transitions", "cattrs", "msgspec", "aiosqlite", "anyio", "asyncio", "typer", "rich")


def for_checkers() -> dict[str, str]:
    """What the branch that only checkers read imports, each name with its folder."""
    tree = ast.parse(Path(perdure.__file__).read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    found: dict[str, str] = {}
    for node in branch.body:
        assert isinstance(node, ast.ImportFrom)
        found |= {alias.name: node.module or "" for alias in node.names}
    return found


def test_the_names() -> None:
    assert perdure.__all__ == NAMES.split()
    assert set(dir(perdure)) == set(NAMES.split())


def test_each_name_is_what_checkers_take_it_for() -> None:
    imported = for_checkers()
    assert set(imported) == set(NAMES.split()) - {"__version__"}
    for name, module in imported.items():
        assert getattr(perdure, name) is getattr(importlib.import_module(module), name), name


def test_the_version_is_the_package_s() -> None:
    assert perdure.__version__ == importlib.metadata.version("perdure")


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'perdure' has no attribute 'Flow'"):
        perdure.Flow  # type: ignore[attr-defined] # noqa: B018


def loaded_by(source: str) -> set[str]:
    """The modules that a new interpreter has loaded after ``source``."""
    code = f"{source}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout))


def test_import_perdure_loads_next_to_nothing() -> None:
    bare = loaded_by("import importlib, typing")
    more = loaded_by("import importlib, typing, perdure") - bare
    assert more == {"perdure"}


def test_only_the_command_line_loads_what_draws() -> None:
    loaded = loaded_by("from perdure import Runtime, Machine")
    assert not {name.partition(".")[0] for name in loaded} & {"typer", "rich", "click"}
    drawing = loaded_by(
        "import typer, perdure.runtime._cli_run, perdure.runtime._cli_text as t; t.Output(as_json=0)"
    )
    assert set(HEAVY) <= {name.partition(".")[0] for name in drawing}


def test_help_waits_for_no_engine() -> None:
    loaded = {name.partition(".")[0] for name in loaded_by("import perdure.runtime._cli")}
    assert loaded & set(HEAVY) == {"typer"}
