"""Data as it is stored, read without the machine's code: the same as the machine reads back."""

from collections.abc import Sequence
from typing import Annotated

import pytest

from perdure import Append, Fire, Machine, Runtime, State, Step, record
from perdure.stores import Log, MemoryStore

pytestmark = pytest.mark.anyio

ROUNDS = 40


@record
class Pages:
    count: int = 0
    text: str = ""
    lines: Annotated[Sequence[str], Append()] = ()
    early: Annotated[Sequence[int], Append()] = ()
    never: Annotated[Sequence[int], Append()] = ()
    numbers: Sequence[int] = ()


class Writing(Machine[Pages, None], version=1):
    """Changes enough at each transition for several snapshots."""

    writing = State(initial=True)
    done = State(final=True)

    wrote = writing.to(writing)
    finished = writing.to(done)

    @writing.handler
    async def write(self, data: Pages, step: Step[None]) -> Fire:
        if data.count == ROUNDS:
            return self.finished()
        count = data.count + 1
        early = [count] if count < 3 else []
        return self.wrote(
            count=count, text="x" * 500, lines=[f"line {count}"] * 2, early=early, numbers=(count, 0)
        )


@pytest.mark.parametrize(
    "begun", [Pages(), Pages(lines=["zero"], early=[0], numbers=[9])], ids=["empty", "full"]
)
async def test_it_is_what_the_machine_reads_back(begun: Pages) -> None:
    store = MemoryStore()
    async with Runtime(machines=[Writing], store=store, artifacts="memory:") as running:
        thread = await running.start(Writing, begun, thread_id="t")
        data = (await thread.result()).data
        row = await thread.row()
        stored = await thread.stored_data()
        rows = (await store.page(Log(address=row.address), limit=1000)).rows
    assert row.standing.base not in (0, rows[-1].n), "a snapshot was written on the way, and deltas after it"
    stored.setdefault("never", [])
    assert stored == {
        "count": ROUNDS,
        "text": data.text,
        "lines": [*begun.lines, *(f"line {n}" for n in range(1, ROUNDS + 1) for _ in range(2))],
        "early": [*begun.early, 1, 2],
        "never": [],
        "numbers": [ROUNDS, 0],
    }
    assert (list(data.lines), list(data.early)) == (stored["lines"], stored["early"])
