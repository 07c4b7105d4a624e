"""Failures of other systems under changed code (G51): a class that is gone never becomes None."""

from __future__ import annotations

from types import new_class
from typing import Any

from harness.engine import Sim, World, simulated
from harness.loop import SimLoop

from perdure.machines import Machine, State, record, upcast


@record
class Customer:
    name: str


@record
class Client:
    name: str


@record
class Full:
    name: str
    surname: str


@record
class Before:
    customer: Customer


@record
class Renamed:
    customer: Client


@record
class Otherwise:
    customer: Full


@record
class Gone:
    note: str = ""


def desk(data: type[Any], version: int = 1, **body: Any) -> Any:
    waiting, done = State(initial=True), State(final=True)
    parts = {"waiting": waiting, "done": done, "go": waiting.to(done).on_signal(), **body}
    keywords = {"name": "Desk", "version": version}
    return new_class("Desk", (Machine[data, World],), keywords, lambda ns: ns.update(parts))  # type: ignore[valid-type]


async def parked_under(sim: Sim, machine: Any) -> str:
    """What a worker with this code says of the thread; nothing but a park is written."""
    before = await sim.rows()
    engine = await sim.engine(machine)
    await sim.thread(machine).signal(machine.go, id=machine.__qualname__)
    row = await sim.until("parked")
    assert [log.kind for log, _ in (await sim.rows())[len(before) :]] == ["park"]
    assert (await sim.rows())[: len(before)] == before
    engine.kill()
    return f"{row.standing.reason}: {row.standing.note}"


@simulated
async def test_g51_a_class_that_is_renamed_or_gone_is_told_by_thread_and_field(loop: SimLoop) -> None:
    old = desk(Before)
    sim = Sim(loop, old)
    await sim.client(old).start(old, Before(customer=Customer(name="Ada")), thread_id="t", workspace="w")
    assert await sim.thread(desk(Renamed)).data() == Renamed(customer=Client(name="Ada"))

    said = await parked_under(sim, desk(Otherwise))
    assert said.startswith("unreadable: ")
    assert "Otherwise.customer" in said
    assert "surname" in said

    @upcast(from_version=1)
    def split(self: Any, data: dict[str, Any]) -> dict[str, Any]:
        return {"customer": {**data["customer"], "surname": "Lovelace"}}

    mended = desk(Otherwise, 2, split=split)
    await sim.engine(mended)
    await sim.thread(mended).retry()
    ended = await sim.thread(mended).result()
    assert ended.data == Otherwise(customer=Full(name="Ada", surname="Lovelace"))


@simulated
async def test_g51_a_field_that_is_gone_is_not_dropped_in_silence(loop: SimLoop) -> None:
    old = desk(Before)
    sim = Sim(loop, old)
    await sim.client(old).start(old, Before(customer=Customer(name="Ada")), thread_id="t", workspace="w")
    said = await parked_under(sim, desk(Gone))
    assert "thread 't': Desk: Gone.customer" in said
    assert "it is stored, but is no stored field any more" in said
    assert "@upcast(from_version=)" in said
