"""``perdure resolve`` and ``perdure retry``: what an operator says of a parked thread."""

from __future__ import annotations

from ._cli_load import BadInput, address_of, parse
from ._cli_look import Place
from ._cli_text import Output
from ._env import Env
from ._look import find_thread
from ._operate import Resolution, resolve, retry

ACTIONS = "--done JSON, --not-done, --adopt, --run or --ignore"


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
        raise BadInput(
            "name the code of the thread's machine with --runtime MODULE:NAME, as `perdure run` takes it"
        )
    async with place.store as store:
        row = await find_thread(store, address)
        plan = place.definitions.get(row.machine)
        if plan is None:
            raise BadInput(f"thread {thread_id!r} is of machine {row.machine!r}, not known to {place.code}")
        env = Env()
        if resolution is None:
            await retry(store, env, plan, address)
        else:
            await resolve(store, env, plan, address, resolution)
    if out.as_json:
        out.json({"thread": thread_id, "workspace": place.workspace, "status": "running"})
    else:
        out.line(
            f"thread {thread_id!r} goes on with the next worker, such as "
            f"`perdure run {place.code} {row.machine} --thread {thread_id}`"
        )
