"""``perdure run``: a worker in this process, one thread in view."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from attrs import frozen
from rich.status import Status
from rich.text import Text

from perdure.machines import Definition
from perdure.stores import Address, ThreadRow

from ._cli_load import BadInput, address_of, data_from, load_runtime, machine_of
from ._cli_text import STATUS_STYLES, Output, Styled, safe
from ._client import Thread
from ._errors import NoSuchThread, Parked, StartConflict
from ._observe import Observation
from ._runtime import Runtime


@frozen(kw_only=True)
class Run:
    """What ``perdure run`` was asked for, checked as far as it can be without a store."""

    runtime: Runtime[Any]
    plan: Definition
    address: Address
    data: Any
    """What the thread is to be started with; None: it may be there."""


def asked_run(code: str, machine: str, data: str | None, thread_id: str | None, workspace: str) -> Run:
    """The runtime, machine and data that the arguments name; without ``thread_id`` a new one is drawn."""
    runtime = load_runtime(code)
    plan = machine_of(runtime, machine)
    address = address_of(workspace, thread_id if thread_id is not None else _new_id(plan))
    first = None if data is None and thread_id is not None else data_from(plan, data or "{}")
    return Run(runtime=runtime, plan=plan, address=address, data=first)


def _new_id(plan: Definition) -> str:
    return f"{plan.name.lower()}-{secrets.token_hex(4)}"


WAITS = 3
"""The exit status where the thread waits, and nobody is to wait for it."""


async def run(out: Output, told: Output, asked: Run, url: str | None, *, no_wait: bool = False) -> int:
    """Run a thread until it has ended (status 0) or is parked (status 1); with ``no_wait``, also until it
    waits for an event (status 3). Progress goes to ``told``."""
    runtime = asked.runtime
    with progress(told, asked.plan, asked.address) as seen:
        async with runtime.with_store(url or runtime.store, observers=[seen]) as running:
            thread = await _begin(running, asked, seen)
            if no_wait:
                await thread.settled()
            else:
                with suppress(Parked):
                    await thread.result()
            return await _tell_end(out, thread)


async def _begin(running: Runtime[Any], asked: Run, seen: Progress) -> Thread[Any, Any]:
    plan, place = asked.plan, asked.address
    thread_id, workspace = place.thread_id, place.workspace
    thread: Thread[Any, Any] = running.thread(plan.machine, thread_id=thread_id, workspace=workspace)
    try:
        row = await thread.row()
    except NoSuchThread as error:
        data = _first_data(plan, error) if asked.data is None else asked.data
        seen.say(f"thread {thread_id!r} of {plan.name} starts")
        return await running.start(plan.machine, data, thread_id=thread_id, workspace=workspace)
    if row.machine != plan.name:
        raise BadInput(f"thread {thread_id!r} is of machine {row.machine!r}, not {plan.name!r}")
    if row.standing.version > plan.version:
        raise BadInput(
            f"thread {thread_id!r} needs version >= {row.standing.version} of {plan.name}, and this code is "
            f"{plan.version}: no worker of it would go on with the thread"
        )
    if asked.data is not None:
        try:
            await running.start(plan.machine, asked.data, thread_id=thread_id, workspace=workspace)
        except StartConflict as error:
            raise BadInput(f"{error}; without --data, `perdure run` goes on with it") from error
    seen.resume(row)
    return thread


def _first_data(plan: Definition, missing: NoSuchThread) -> Any:
    """What a thread begins with that is not there and was given no data."""
    try:
        return data_from(plan, "{}")
    except BadInput as error:
        raise BadInput(f"{missing}; to start it, give --data ({error})") from None


async def _tell_end(out: Output, thread: Thread[Any, Any]) -> int:
    row = await thread.row()
    standing = row.standing
    if out.as_json:
        out.json(
            {
                "thread": row.address.thread_id,
                "workspace": row.address.workspace,
                "machine": row.machine,
                "state": standing.state,
                "status": standing.status,
                "reason": standing.reason,
                "note": standing.note,
                "seq": standing.seq,
                "data": await thread.stored_data(),
            }
        )
    elif standing.status == "parked":
        where = f" in {standing.state} at seq {standing.seq}"
        out.line(
            f"thread {row.address.thread_id!r} is ",
            Styled(f"parked ({standing.reason})", STATUS_STYLES["parked"]),
            f"{where}: {standing.note}",
        )
    elif standing.status == "ended":
        out.line(
            f"thread {row.address.thread_id!r} has ",
            Styled("ended", STATUS_STYLES["ended"]),
            f" in {standing.state} at seq {standing.seq}",
        )
    else:
        out.line(
            f"thread {row.address.thread_id!r} ",
            Styled("waits", STATUS_STYLES["waiting"]),
            f" in {standing.state} at seq {standing.seq}",
        )
    return {"ended": 0, "parked": 1}.get(standing.status, WAITS)


# --- progress -------------------------------------------------------------------------------------


@contextmanager
def progress(told: Output, plan: Definition, address: Address) -> Generator[Progress]:
    """An observer that shows one thread; on a terminal with a line that says what goes on now."""
    if not told.console.is_terminal:
        yield Progress(told, plan, address, None)
        return
    with told.console.status("") as status:
        yield Progress(told, plan, address, status)


class Progress:
    """Tells of one thread's commits as they land."""

    def __init__(self, told: Output, plan: Definition, address: Address, status: Status | None) -> None:
        self._told = told
        self._plan = plan
        self._address = address
        self._status = status
        self._state = plan.initial

    def say(self, *parts: object) -> None:
        """A line."""
        self._told.line(*parts)

    def resume(self, row: ThreadRow) -> None:
        """The thread was there."""
        standing = row.standing
        self._state = standing.state
        if standing.status not in ("ended", "parked"):
            self.say(
                f"thread {row.address.thread_id!r} goes on from checkpoint {standing.seq}, "
                f"in state {standing.state}"
            )
            self._waits(standing.state, standing.status)

    def observe(self, seen: Observation) -> None:
        """See ``Observer``."""
        if (seen.workspace, seen.thread_id) != (self._address.workspace, self._address.thread_id):
            return
        if seen.kind == "report":
            said = ", ".join(f"{name}={value}" for name, value in seen.progress.items())
            self._now(seen.state, said)
            return
        if seen.status != "parked":  # the last line tells that one
            for error in seen.errors:
                self.say(Styled(f"      attempt {seen.attempt} failed: {error}", "red"))
        if seen.kind != "transition":
            for call in seen.calls:
                self.say(Styled("      ", "dim"), call)
            self._now(seen.state, ", ".join(seen.calls))
            return
        calls = ", ".join(call for call in seen.calls if not call.endswith(": intent"))
        self.say(
            Styled(f"{seen.seq:>4}  ", "dim"),
            Styled(f"{self._state} -> {seen.state}", "bold"),
            f"  {seen.event}",
            Styled(f"  {calls}" if calls else "", "dim"),
        )
        self._state = seen.state
        self._now(seen.state, "")
        self._waits(seen.state, seen.status)

    def _now(self, state: str, doing: str) -> None:
        if self._status is not None:
            self._status.update(Text(safe(f"{state}  {doing}")))  # a plain string would be read as markup

    def _waits(self, state: str, status: str) -> None:
        known = self._plan.state_of(state)
        if status == "waiting" and known is not None and known.waiting:
            awaited = [*known.signals, *(each.event for each in known.timeouts)]
            self.say(
                Styled(f"      waits in {state} for {' or '.join(awaited)}; Ctrl-C leaves it there", "yellow")
            )
