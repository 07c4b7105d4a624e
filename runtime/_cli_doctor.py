"""``perdure doctor``: one line a check, and what to do where it is not well."""

from __future__ import annotations

from typing import Any

from perdure.artifacts import ArtifactError
from perdure.stores import Store, StoreError, store_facts

from ._cli_load import BadInput, backend_at, load_runtime, store_at
from ._cli_operate import answered
from ._cli_options import run_async
from ._cli_text import Output, Styled
from ._doctor import Check, blobs, clock, disk, installation, threads, workers
from ._env import Env
from ._runtime import Runtime
from ._spill import bare

STYLES = {"ok": "green", "warn": "yellow", "wrong": "red"}


def examine(out: Output, store_url: str | None, artifacts_url: str | None, code: str | None) -> int:
    """Every check, also where an earlier one found something; status 1 where one is wrong."""
    checks = [*installation()]
    runtime = None if code is None else load_runtime(code)
    checks += _store(store_url, runtime)
    checks += _artifacts(artifacts_url, runtime)
    for check in checks:
        _tell(out, check)
    wrong = sum(check.verdict == "wrong" for check in checks)
    warned = sum(check.verdict == "warn" for check in checks)
    if not out.as_json:
        out.line(f"{wrong} wrong, {warned} to look at" if wrong or warned else "all is well")
    return 1 if wrong else 0


def _store(url: str | None, runtime: Runtime[Any] | None) -> list[Check]:
    try:
        store = store_at(url, runtime)
        found = run_async(_look(store, runtime))
        return [*disk(store_facts(bare(store))), *found]
    except (StoreError, BadInput, OSError) as error:
        todo = "until then, what is in it cannot be looked at"
        return [Check(name="store", verdict="wrong", said=str(error), todo=todo)]


async def _look(store: Store, runtime: Runtime[Any] | None) -> list[Check]:
    env = Env()
    async with store as opened:
        with answered("whether it takes writes", "see that nothing holds its file locked"):
            checks = [await clock(opened, env)]
        checks += await workers(opened, env.now(), env.ended)
        checks += await threads(opened, None if runtime is None else runtime.definitions)
    return checks


def _artifacts(url: str | None, runtime: Runtime[Any] | None) -> list[Check]:
    try:
        return [run_async(blobs(backend_at(url, runtime)))]
    except BadInput as error:
        if url is None:  # nothing was put yet, or there is nothing to put
            return [Check(name="artifacts", verdict="ok", said=f"none yet: {error}")]
        return [Check(name="artifacts", verdict="wrong", said=str(error), todo="name them with --artifacts")]
    except (ArtifactError, OSError) as error:
        return [Check(name="artifacts", verdict="wrong", said=str(error), todo="name them with --artifacts")]


def _tell(out: Output, check: Check) -> None:
    if out.as_json:
        said = {"check": check.name, "verdict": check.verdict, "said": check.said}
        out.json({**said, "todo": check.todo or None})
        return
    todo = f": {check.todo}" if check.todo else ""
    name = Styled(f"{check.name:<12}", "bold")
    out.line(Styled(f"{check.verdict:<6}", STYLES[check.verdict]), name, f"{check.said}{todo}")
