"""Numbers and spans of time that are none: refused by name, before anything rests on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from harness.engine import Sim, simulated
from harness.loop import SimLoop

from perdure.artifacts import MemoryArtifacts
from perdure.machines import DefinitionError, Machine, State, effect, read, record
from perdure.runtime import Runtime
from perdure.runtime._collect import collect
from perdure.stores import MemoryStore

NO_SPANS: list[Any] = [float("nan"), float("inf"), 5, "5s", None, timedelta(days=-1), timedelta.max]
NO_COUNTS: list[Any] = [float("nan"), float("inf"), 0, -1, True, 1.5, "1", None]


@record
class Nothing:
    text: str = ""


class Idle(Machine[Nothing], version=1):
    waiting = State(initial=True)
    done = State(final=True)
    stop = waiting.to(done).on_signal()


@pytest.mark.parametrize("value", NO_SPANS, ids=repr)
@pytest.mark.parametrize("name", ["lease", "grace", "poll"])
def test_a_runtime_refuses_a_span_that_is_none(name: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=rf"Runtime\({name}=\) takes a timedelta .*not "):
        Runtime(machines=[Idle], **{name: value})


def test_a_grace_may_be_nothing_and_a_lease_not() -> None:
    Runtime(machines=[Idle], grace=timedelta(0))
    for name in ("lease", "poll"):
        with pytest.raises(DefinitionError, match="over zero"):
            Runtime(machines=[Idle], **{name: timedelta(0)})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", NO_COUNTS, ids=repr)
def test_a_runtime_refuses_a_number_that_is_none(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"Runtime\(concurrency=\) takes a whole number from 1 on, not"):
        Runtime(machines=[Idle], concurrency=value)


@pytest.mark.parametrize("value", [each for each in NO_SPANS if each is not None], ids=repr)
@simulated
async def test_memory_and_artifacts_refuse_an_expiry_that_is_none(loop: SimLoop, value: Any) -> None:
    sim = Sim(loop, Idle)
    client = sim.client()
    writes: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.memory.put("facts", "key", 1, workspace="w", expires=value),
        lambda: client.artifacts.put(b"bytes", media_type="text/plain", workspace="w", expires=value),
    ]
    for write in writes:
        with pytest.raises(ValueError, match="expires= takes a timedelta from zero up to a thousand"):
            await write()
    assert await client.memory.get("facts", "key", workspace="w") is None
    with pytest.raises(ValueError, match="grace= takes a timedelta"):
        await collect(MemoryStore(clock=loop.now), MemoryArtifacts(clock=loop.now), loop.now, grace=value)


@pytest.mark.parametrize("option", ["deadline", "settle", "key_retention"])
def test_an_effect_refuses_a_span_that_ends_after_every_calendar(option: str) -> None:
    async def send(call: Any) -> None: ...

    declare: Any = effect
    with pytest.raises(DefinitionError, match=rf"{option}= takes a timedelta .*up to a thousand years"):
        declare(**{option: timedelta.max})(send)


def test_a_read_refuses_it_too() -> None:
    with pytest.raises(DefinitionError, match=r"reuse_for= takes a timedelta .*up to a thousand years"):

        @read(reuse_for=timedelta.max)
        async def look(call: Any) -> None: ...
