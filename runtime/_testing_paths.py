"""Paths: what a thread has gone, compared in words; and those that a machine's table has, for hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import ndiff
from typing import TYPE_CHECKING, Any, Protocol

from perdure.machines import Machine, Row, definition

from ._testing_world import World

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

    from ._look import StepSeen

Wanted = str | tuple[str, str]
"""A state, or the event that led to it and the state."""


class HasHistory(Protocol):
    """A handle on a thread."""

    @property
    def thread_id(self) -> str: ...
    async def history(self) -> list[StepSeen]: ...


async def assert_path(thread: HasHistory, path: Sequence[Wanted], /) -> None:
    """Raise ``AssertionError`` with a diff, unless the thread went through exactly these states, in order,
    the initial one included.

    An item is a state's dotted name, or ``(event, state)`` where the event that led there counts as well.
    """
    __tracebackhide__ = True
    steps = await thread.history()
    gone: list[tuple[str, str]] = [
        (step.event or "" if step.state else "", step.dest) for step in steps if step.dest is not None
    ]
    wanted = [("", each) if isinstance(each, str) else each for each in path]
    named = [each if isinstance(each, tuple) else None for each in path]
    if len(wanted) == len(gone) and all(
        item[1] == state and (exact is None or exact[0] == event)
        for item, exact, (event, state) in zip(wanted, named, gone, strict=True)
    ):
        return
    with_events = any(exact is not None for exact in named)
    shown = [_line(event, state, with_events) for event, state in gone]
    diff = ndiff([_line(*each, with_events) for each in wanted], shown)
    lines = [line for line in diff if not line.startswith("?")]
    raise AssertionError(
        "\n".join([f"thread {thread.thread_id!r} went another way (- wanted, + gone):", *lines])
    )


def _line(event: str, state: str, with_events: bool) -> str:
    return f"{state}  by {event}" if with_events and event else state


def path_difference(before: Sequence[tuple[str, str, str]], now: Sequence[tuple[str, str, str]]) -> str:
    """The first step of two paths that differs."""
    for place, (one, other) in enumerate(zip(before, now, strict=False), 1):
        if one != other:
            return f"step {place} is {_step(other)}, and was {_step(one)}"
    return f"{len(now)} transitions instead of {len(before)}"


def _step(step: tuple[str, str, str]) -> str:
    event, source, dest = step
    return f"`{event}` ({source} -> {dest})"


def assert_arrivals(world: World, receiver: str, times: int, /) -> None:
    """Raise ``AssertionError`` that lists them, unless so many requests arrived at a receiver."""
    __tracebackhide__ = True
    arrived = [each for each in world.arrivals if each.name == receiver]
    if len(arrived) == times:
        return
    others = sorted({each.name for each in world.arrivals} - {receiver})
    lines = [f"  {each.key}  {each.args!r}" for each in arrived]
    elsewhere = f" (there were at: {', '.join(others)})" if others and not arrived else ""
    raise AssertionError(
        "\n".join([f"{len(arrived)} arrivals at {receiver!r}, not {times}{elsewhere}", *lines])
    )


def paths(machine: type[Machine[Any, Any]], /, *, max_length: int = 20) -> SearchStrategy[list[Row]]:
    """A hypothesis strategy of paths through a machine's table: its rows one after the other, from the
    initial state to a final one or for ``max_length`` rows.

    A row's ``event``, ``source`` and ``dest`` say what it is: one that a handler fires, a signal, a timeout,
    a failure, a cancel or a limit reached. Guards are not asked: a path is what the table allows.
    ``ModuleNotFoundError`` where hypothesis is not installed.
    """
    try:
        from hypothesis import strategies
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "paths() makes a hypothesis strategy, and hypothesis is not installed: pip install hypothesis"
        ) from error
    plan = definition(machine)

    @strategies.composite
    def drawn(draw: DrawFn) -> list[Row]:
        state, path = plan.initial, list[Row]()
        while len(path) < max_length and not plan.states[state].final:
            rows = [row for rows in plan.states[state].rows.values() for row in rows]
            path.append(draw(strategies.sampled_from(rows)))
            state = path[-1].dest
        return path

    return drawn()
