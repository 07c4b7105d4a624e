"""What the command line is pointed at, by name: a runtime, a machine, data, a store, artifacts."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import attrs
import msgspec
from anyio import to_thread

from perdure.artifacts import ArtifactBackend, open_artifacts
from perdure.machines import Definition, NotStorable, Unreadable
from perdure.stores import MAX_ID, MAX_WORKSPACE, Address, Store, check_name, open_store

from ._env import Env
from ._errors import PerdureError
from ._runtime import Runtime
from ._spill import SpillingStore

DEFAULT_STORE = "sqlite:///perdure.db"
DEFAULT_ARTIFACTS = "file:artifacts"
ARTIFACTS_VARIABLE = "PERDURE_ARTIFACTS"


class BadInput(PerdureError):
    """What the user gave cannot be used; the message is one line that says what to give instead."""


class UnknownOutcome(PerdureError):
    """The store has not said what became of a write: it may have landed. The message says how to go on."""


def load_runtime(spec: str) -> Runtime[Any]:
    """The runtime that ``MODULE:NAME`` names, imported from the working directory or what is installed."""
    module_name, colon, attribute = spec.partition(":")
    if not colon or not attribute.isidentifier() or not all(p.isidentifier() for p in module_name.split(".")):
        raise BadInput(f"{spec!r} names no runtime: write MODULE:NAME, as in app:runtime")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _import(module_name)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        named: dict[str, object] = vars(module)
        near = ", ".join(n for n, v in named.items() if isinstance(v, Runtime)) or "none"
        raise BadInput(f"module {module_name!r} has no {attribute!r}; its runtimes: {near}") from None
    if not isinstance(found, Runtime):
        raise BadInput(f"{spec!r} is of type {type(found).__name__}, not a Runtime")
    return found  # pyright: ignore[reportUnknownVariableType]


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise BadInput(
                f"no module {name!r} in {os.getcwd()!r} or among what is installed ({error.msg})"
            ) from None
        raise BadInput(_broken(name, error)) from error
    except (Exception, SystemExit) as error:
        raise BadInput(_broken(name, error)) from error


def _broken(name: str, error: BaseException) -> str:
    """What is wrong, and the last line of that module's own that was run."""
    root = name.partition(".")[0]
    walked = [
        (frame.f_globals.get("__name__", ""), frame, line) for frame, line in walk_tb(error.__traceback__)
    ]
    lines = [(frame, line) for module, frame, line in walked if module.partition(".")[0] == root]
    at = f" (line {lines[-1][1]} of {os.path.relpath(lines[-1][0].f_code.co_filename)})" if lines else ""
    return f"module {name!r} cannot be imported: {type(error).__name__}: {error}{at}"


def machine_of(runtime: Runtime[Any], name: str) -> Definition:
    """The definition of one of the runtime's machines, by name."""
    plan = runtime.definitions.get(name)
    if plan is None:
        known = ", ".join(sorted(runtime.definitions)) or "none"
        raise BadInput(f"no machine {name!r} in this runtime; it has: {known}")
    return plan


def address_of(workspace: str, thread_id: str) -> Address:
    """The address, if it can be one."""
    check_name("workspace", workspace, MAX_WORKSPACE)
    check_name("thread_id", thread_id, MAX_ID)
    return Address(workspace=workspace, thread_id=thread_id)


def store_at(
    url: str | None,
    runtime: Runtime[Any] | None = None,
    *,
    artifacts: str | None = None,
    read_only: bool = False,
) -> Store:
    """The store to look into: the one asked for, else the runtime's, else the default; it must be there.

    Where a row's body lies in the artifacts, those of ``backend_at`` are opened.
    """

    async def opening(stack: AsyncExitStack) -> ArtifactBackend:
        backend = await to_thread.run_sync(backend_at, artifacts, runtime)
        return await stack.enter_async_context(backend)

    given = url or (DEFAULT_STORE if runtime is None else runtime.store)
    store = open_store(given, read_only=read_only, create=False) if isinstance(given, str) else given
    return SpillingStore(store, opening, Env().now)


def backend_at(url: str | None, runtime: Runtime[Any] | None, *, make: bool = False) -> ArtifactBackend:
    """The backend asked for, else that of the environment, the runtime's, or the default; a folder must be
    there unless ``make``."""
    named = url or os.environ.get(ARTIFACTS_VARIABLE)
    given = named or (DEFAULT_ARTIFACTS if runtime is None else runtime.artifacts_at)
    if not isinstance(given, str):
        return given
    backend = open_artifacts(given)
    folder = unquote(given.removeprefix("file:").removeprefix("//")) if given.startswith("file:") else ""
    if folder and not make and not Path(folder).is_dir():
        raise BadInput(
            f"there are no artifacts at {folder!r}: name their folder with --artifacts file:PATH or in "
            f"{ARTIFACTS_VARIABLE}"
        )
    return backend


def parse(text: str, what: str, kind: Any = msgspec.Raw) -> Any:
    """JSON from the command line, its values kept as they are written for the codec of their type."""
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput(f"{what} is not the JSON that is wanted: {error}") from None


def data_from(plan: Definition, text: str) -> Any:
    """A machine's first data from a JSON object of its fields, each in the form in which it is stored."""
    given: dict[str, msgspec.Raw] = parse(text, "--data", dict[str, msgspec.Raw])
    values = {name: _field(plan, name, bytes(value)) for name, value in given.items()}
    cls = plan.data.cls
    needed = [f.name for f in plan.data.fields.values() if f.kind != "owned" and f.default is attrs.NOTHING]
    lacking = [name for name in needed if name not in values]
    if lacking:
        named = ", ".join(f"{name!r}" for name in lacking)
        raise BadInput(f"--data lacks {named}, for which {cls.__name__} has no default")
    try:
        return cls(**values)
    except Exception as error:
        said = " ".join(str(error).split())  # a pydantic model's goes over several lines
        raise BadInput(f"--data: {cls.__name__}: {type(error).__name__}: {said}") from error


def _field(plan: Definition, name: str, value: bytes) -> Any:
    fields = {n: f for n, f in plan.data.fields.items() if f.kind not in ("owned", "ephemeral")}
    field = fields.get(name)
    if field is None or field.codec is None:
        raise BadInput(
            f"--data: {plan.name} takes no field {name!r}; it takes: {', '.join(fields) or 'none'}"
        )
    where = f"--data: field {name!r}"
    try:
        if field.kind in ("append", "conversation"):
            items = parse(value.decode(), where, list[msgspec.Raw])
            return tuple(field.codec.decode(bytes(item), where) for item in items)
        return field.codec.decode(value, where)
    except (Unreadable, NotStorable) as error:
        raise BadInput(str(error)) from None
