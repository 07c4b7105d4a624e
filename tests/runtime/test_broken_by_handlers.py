"""Handlers and receivers that do what nobody expected: the thread says clearly what was wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from harness.engine import Note, Sim, World, fresh, job, simulated
from harness.loop import SimLoop

from perdure.machines import Absent, Call, Found, Retry, Step, Unknown, effect
from perdure.runtime import UnknownMachine
from perdure.stores import ThreadRow


@effect(deadline=timedelta(seconds=1), settle=timedelta(seconds=0))
async def odd(call: Call[World], what: str) -> str:
    """An effect that fails, and whose lookup returns rubbish."""
    raise OSError("down")


@odd.lookup
async def find_odd(call: Call[World], what: str) -> Found[str] | Absent | Unknown:
    answers: dict[str, Any] = {"class": Absent, "value": 42, "nothing": None}
    answer: Absent = answers[what]
    return answer


Body = Callable[[Any, Note, Step[World]], Awaitable[Any]]


async def parked(loop: SimLoop, body: Body, *calls: Any) -> ThreadRow:
    machine = job(body, calls=calls) if calls else job(body)
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine)
    return await sim.until("ended", "parked")


@simulated
async def test_a_call_awaited_in_another_event_loop_is_refused_at_once(loop: SimLoop) -> None:
    """It would hang there until the state's deadline, and take the thread's claim with it."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        call = step.call(fresh, "r")

        async def elsewhere() -> Any:
            return await call

        other = asyncio.new_event_loop()
        asyncio._set_running_loop(None)  # as in a thread of its own
        try:
            other.run_until_complete(elsewhere())
        finally:
            asyncio._set_running_loop(loop)
            other.close()

    row = await parked(loop, body)
    assert "in another thread or event loop than its handler's" in (row.standing.note or "")
    assert loop.elapsed < 60


@simulated
async def test_a_call_registered_in_another_thread_is_refused(loop: SimLoop) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        asyncio._set_running_loop(None)  # as in a thread of its own
        try:
            call = step.call(fresh, "r")
        finally:
            asyncio._set_running_loop(loop)
        return machine.finished(text=await call)

    row = await parked(loop, body)
    assert "in another thread or event loop than its handler's" in (row.standing.note or "")


@simulated
async def test_the_errors_of_a_group_are_told_and_not_only_counted(loop: SimLoop) -> None:
    async def fails(what: str) -> None:
        raise ValueError(what)

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails("the first"))
            group.create_task(fails("the second"))

    row = await parked(loop, body)
    assert "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): " in (row.standing.note or "")
    assert "ValueError: the first; ValueError: the second" in (row.standing.note or "")


@simulated
async def test_a_handler_that_is_deaf_to_its_deadline_is_named_in_the_log(
    loop: SimLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    machine = job(body, deadline=timedelta(seconds=5), retry=Retry(attempts=1))
    sim = Sim(loop, machine)
    engine = await sim.engine()
    await engine.start(machine)
    row = await sim.until("ended", "parked")
    assert "no event within the deadline of 0:00:05" in (row.standing.note or "")
    assert "thread 't', state 'working': the handler goes on although it was cancelled" in caplog.text


@simulated
async def test_a_call_given_to_a_task_by_itself_is_refused_without_telling_what_it_was_called_with(
    loop: SimLoop,
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(step.call(fresh, "a secret"))  # type: ignore[arg-type]  # pyright: ignore

    row = await parked(loop, body)
    assert "TypeError: a coroutine was expected, got <a call of read fresh" in (row.standing.note or "")
    assert "secret" not in (row.standing.note or "")


@pytest.mark.parametrize(
    ("what", "said"), [("class", "the class Absent"), ("value", "int"), ("nothing", "NoneType")]
)
@simulated
async def test_a_lookup_that_returns_rubbish_is_named_as_what_is_wrong(
    loop: SimLoop, what: str, said: str
) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished(text=await step.call(odd, what))

    row = await parked(loop, body, odd)
    assert row.standing.reason == "in doubt"
    assert f"lookup: it returned {said}, not Found(...), ABSENT or UNKNOWN" in (row.standing.note or "")


@pytest.mark.parametrize("name", ["\ud800", "a\x00b", "x" * 300], ids=["surrogate", "NUL", "long"])
@simulated
async def test_odd_names_of_lanes_and_media_types_are_refused_by_what_they_name(
    loop: SimLoop, name: str
) -> None:
    async def lane(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.lane(name).call(fresh, "r")

    async def artifact(machine: Any, data: Note, step: Step[World]) -> Any:
        await step.artifacts.put(b"bytes", media_type=name)

    for body, what in ((lane, "the name of a lane"), (artifact, "media type of an artifact")):
        row = await parked(loop, body)
        assert row.standing.reason == "failed"
        assert f"thread 't', state 'working': {what}" in (row.standing.note or "")


@pytest.mark.parametrize("odd_id", [7, None, b"t"], ids=["int", "None", "bytes"])
@simulated
async def test_an_id_that_is_no_text_is_refused_by_name(loop: SimLoop, odd_id: Any) -> None:
    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished()

    sim = Sim(loop, job(body))
    with pytest.raises(TypeError, match=r"^thread_id is .*: it must be text$"):
        await sim.client().start(sim.machines[0], Note(), thread_id=odd_id)


@simulated
async def test_a_handle_taken_for_another_machine_is_refused_and_waits_for_nothing(loop: SimLoop) -> None:
    """It would wait for ever for a thread that nobody here runs, or read its data as another machine's."""

    async def body(machine: Any, data: Note, step: Step[World]) -> Any:
        return machine.finished()

    mine, other = job(body), job(body, name="Other")
    sim = Sim(loop, mine, other)
    await sim.client().start(mine, Note(), thread_id="t", workspace="w")
    handle = sim.thread(other)
    for asked in (handle.result, handle.data, handle.state, handle.history, handle.why):
        with pytest.raises(UnknownMachine, match="thread 't' is of machine 'Job', not 'Other'"):
            await asked()
