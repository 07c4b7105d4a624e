"""``perdure resolve`` and ``perdure retry``: what an operator says of a parked thread."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from perdure.machines import Definition
from perdure.stores import OutcomeUnknown, StoreUnavailable, ThreadRow

from ._cli_load import BadInput, UnknownOutcome, address_of, parse
from ._cli_look import Place
from ._cli_text import Output
from ._env import Env
from ._look import find_thread
from ._operate import Resolution, resolve, retry
from ._wakeup import Bell

ACTIONS = "--done JSON, --not-done, --adopt, --run or --ignore"

NAME_THE_CODE = "name the code of the thread's machine with --runtime MODULE:NAME, as `perdure run` takes it"
PATIENCE = 30.0
"""Seconds that a command waits for the store to answer a write, sending it again meanwhile."""


@contextmanager
def answered(question: str, advice: str) -> Generator[None]:
    """Bounds the wait for a write: one without an answer may have landed, and is no failure."""
    try:
        with anyio.fail_after(PATIENCE):
            yield
    except (TimeoutError, OutcomeUnknown, StoreUnavailable):
        raise UnknownOutcome(f"unknown: the store does not answer {question}; {advice}") from None


def known_machine(place: Place, row: ThreadRow) -> Definition:
    """The thread's machine, in the code that was named."""
    if place.code is None:
        raise BadInput(NAME_THE_CODE)
    plan = place.definitions.get(row.machine)
    if plan is None:
        raise BadInput(
            f"thread {row.address.thread_id!r} is of machine {row.machine!r}, not known to {place.code}"
        )
    return plan


def resolution_of(
    *, done: str | None, not_done: bool, adopt: bool, run: bool, ignore: bool, effect: str | None
) -> Resolution:
    """The one thing that was said; ``BadInput`` where it is none or several."""
    flags = {"not done": not_done, "adopt": adopt, "run": run, "ignore": ignore, "done": done is not None}
    match [action for action, said in flags.items() if said]:
        case ["done"]:
            return Resolution(action="done", value=bytes(parse(done or "", "--done")), effect=effect)
        case ["not done" | "adopt" | "run" | "ignore" as action]:
            return Resolution(action=action, effect=effect)
        case _:
            raise BadInput(f"say one of {ACTIONS}")


async def operate(out: Output, place: Place, thread_id: str, resolution: Resolution | None) -> None:
    """Resolve, or without a resolution retry; the thread is runnable then."""
    address = address_of(place.workspace, thread_id)
    if place.code is None:
        raise BadInput(NAME_THE_CODE)
    async with place.store as store:
        row = await find_thread(store, address)
        plan = known_machine(place, row)
        env = Env()
        advice = f"`perdure why {thread_id}` tells, and to say it again is safe"
        with answered(f"whether that was recorded for thread {thread_id!r}", advice):
            if resolution is None:
                await retry(store, env, plan, address)
            else:
                await resolve(store, env, plan, address, resolution)
        await Bell(store, env).ring(address)
    if out.as_json:
        out.json({"thread": thread_id, "workspace": place.workspace, "status": "running"})
    else:
        out.line(
            f"thread {thread_id!r} goes on with the next worker, such as "
            f"`perdure run {place.code} {row.machine} --thread {thread_id}`"
        )
