"""The command that reads a runtime's schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._cli_options import AsJson, StoreURL, run_async

if TYPE_CHECKING:
    from perdure.stores import Store

    from ._cli_text import Output
    from ._schedules import Schedule

NEXT = 3
"""Slots that are shown of each."""


def register(app: typer.Typer) -> None:
    """Add it."""
    app.command("schedules")(schedules_command)


def schedules_command(
    code: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="The runtime.")],
    store: StoreURL = None,
    as_json: AsJson = False,
) -> None:
    """List a runtime's schedules: how far each has come, and its next three slots."""
    from ._cli_load import load_runtime, store_at
    from ._cli_text import Output

    runtime = load_runtime(code)
    run_async(_show(Output(as_json=as_json), store_at(store, runtime), runtime.schedules))


async def _show(out: Output, opened: Store, schedules: tuple[Schedule[Any], ...]) -> None:
    from ._client_memory import ClientMemory
    from ._env import Env

    env = Env()
    async with opened as store:
        memory = ClientMemory(store, env)
        seen = [await _seen(memory, each, env.now()) for each in schedules]
    if out.as_json:
        out.json(seen)
        return
    head = ("name", "workspace", "machine", "cron", "zone", "catch-up", "until", "next")
    out.table(head, [(*list(each.values())[:-1], ", ".join(each["next"])) for each in seen])


async def _seen(memory: Any, schedule: Schedule[Any], now: int) -> dict[str, Any]:
    from itertools import islice
    from zoneinfo import ZoneInfo

    from perdure.machines import definition

    from ._context import moment
    from ._schedules import handled

    record = await handled(memory, schedule)
    machine: Any = schedule.machine
    return {
        "name": schedule.name,
        "workspace": schedule.workspace,
        "machine": definition(machine).name,
        "cron": schedule.cron,
        "zone": schedule.tz,
        "catch_up": schedule.catch_up,
        "until": ""
        if record is None
        else record.until.astimezone(ZoneInfo(schedule.tz)).isoformat(timespec="seconds"),
        "next": [slot.isoformat() for slot in islice(schedule.slots(moment(now)), NEXT)],
    }
