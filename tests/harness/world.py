"""Calls that reach the kit's world, and a machine of one handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any

from perdure.machines import (
    Absent,
    Append,
    Call,
    Fire,
    Found,
    Machine,
    Retry,
    State,
    Step,
    Unknown,
    effect,
    read,
    record,
)
from perdure.runtime._testing_loop import for_ever
from perdure.runtime._testing_world import HANG, Arrival, Reply, World

__all__ = [
    "CALLS",
    "HANG",
    "TEN",
    "Arrival",
    "Handler",
    "Note",
    "Refused",
    "Reply",
    "World",
    "again",
    "bare",
    "both",
    "brief",
    "fading",
    "for_ever",
    "fresh",
    "job",
    "kept",
    "looked",
    "remembered",
]

TEN = timedelta(seconds=10)


class Refused(Exception):
    """An error that says of itself that the request was not done."""


@effect(deadline=TEN, not_done=[Refused])
async def bare(call: Call[World], what: str) -> str:
    """Its receiver knows neither keys nor lookups."""
    return await call.deps.send("bare", call.key, what)


@effect(deadline=TEN, not_done=[Refused])
async def looked(call: Call[World], what: str) -> str:
    """Its receiver can be asked."""
    return await call.deps.send("looked", call.key, what)


@looked.lookup
async def look_looked(call: Call[World], what: str) -> Found[str] | Absent | Unknown:
    return await call.deps.look("looked", call.key)  # type: ignore[no-any-return]


@effect(deadline=TEN, idempotent=True)
async def remembered(call: Call[World], what: str) -> str:
    """Its receiver remembers keys."""
    return await call.deps.send("remembered", call.key, what)


@effect(deadline=TEN, idempotent=True, key_lifetime=timedelta(seconds=30))
async def fading(call: Call[World], what: str) -> str:
    """Its receiver remembers keys for half a minute."""
    return await call.deps.send("fading", call.key, what)


@effect(deadline=TEN, idempotent=True)
async def both(call: Call[World], what: str) -> str:
    """Its receiver remembers keys and can be asked."""
    return await call.deps.send("both", call.key, what)


@both.lookup
async def look_both(call: Call[World], what: str) -> Found[str] | Absent | Unknown:
    return await call.deps.look("both", call.key)  # type: ignore[no-any-return]


@effect(deadline=TEN, repeatable=True)
async def again(call: Call[World], what: str) -> str:
    """Doing it twice is harmless, late arrivals are not."""
    return await call.deps.send("again", call.key, what)


@read
async def fresh(call: Call[World], what: str) -> str:
    return await call.deps.read("fresh", what)


@read(reuse_for=timedelta(seconds=60))
async def brief(call: Call[World], what: str) -> str:
    return await call.deps.read("brief", what)


@read(keep=True)
async def kept(call: Call[World], what: str) -> str:
    return await call.deps.read("kept", what)


CALLS: Sequence[Any] = [bare, looked, remembered, fading, both, again, fresh, brief, kept]


@record
class Note:
    """The data of ``job`` machines."""

    text: str | None = None
    more: str | None = None
    lines: Annotated[Sequence[str], Append()] = ()


Handler = Callable[[Any, Note, Step[World]], Awaitable[Any]]


def job(
    body: Handler,
    *,
    name: str = "Job",
    version: int = 1,
    calls: Sequence[Any] = CALLS,
    at_once: int | None = None,
    **working_options: Any,
) -> Any:
    """A machine of one state, ``working``, whose handler is ``body(machine, data, step)``, and ``done``, to
    which its event ``finished`` leads. Made again with another body it is the same machine under other code.
    """
    options = {"retry": Retry(attempts=3, delay=timedelta(seconds=1)), **working_options}

    class Job(Machine[Note, World], version=version, calls=calls, name=name, at_once=at_once):
        """One step."""

        working = State(initial=True, **options)
        done = State(final=True)
        finished = working.to(done)

        @working.handler
        async def work(self, data: Note, step: Step[World]) -> Fire:
            fire: Fire = await body(self, data, step)
            return fire

    return Job
