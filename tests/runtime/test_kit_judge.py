"""What the sweep takes for the same, and what not, given runs that no engine should bring about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from attrs import evolve

from perdure.machines import Fire, Machine, State, Step, definition, record
from perdure.runtime._testing_judge import faults_of
from perdure.runtime._testing_loop import SimLoop, simulate
from perdure.runtime._testing_run import Asked, Outcome, Run, broken_link
from perdure.stores import Address, Log, LogRow, Threads


@record
class Count:
    n: int = 0


class Counts(Machine[Count, None], version=1):
    """Counts twice."""

    first = State(initial=True)
    second = State()
    done = State(final=True)
    one = first.to(second)
    two = second.to(done)

    @first.handler
    async def count(self, data: Count, step: Step[None]) -> Fire:
        return self.one(n=1)

    @second.handler
    async def count_again(self, data: Count, step: Step[None]) -> Fire:
        return self.two(n=2)


async def _go(loop: SimLoop) -> tuple[Outcome, bytes, Sequence[LogRow]]:
    plan, data = definition(Counts), Count()
    asked = Asked(plan=plan, machines=[Counts], data=data, deps=None, signals=[], uploads=[], seed=0)
    run = Run(loop, asked, None)
    outcome = await run.go()
    [thread] = (await run.store.page(Threads(workspace="default"))).rows
    place = Address(workspace="default", thread_id=thread.address.thread_id)
    return outcome, thread.incarnation, (await run.store.page(Log(address=place))).rows


OUTCOME, INCARNATION, ROWS = simulate(_go)


def judged(**changes: object) -> list[str]:
    outcome = evolve(OUTCOME, **changes)  # type: ignore[arg-type]
    return faults_of(definition(Counts), OUTCOME, outcome, frozenset(), in_doubt=False)


def test_the_same_is_the_same() -> None:
    assert judged() == []


def test_a_field_that_differs() -> None:
    assert judged(data={"n": 3}) == ["field `n` is 3, and was 2"]
    assert judged(data={}) == ["field `n` is missing, and was 2"]


def test_a_transition_lost_or_run_twice() -> None:
    one, two = OUTCOME.path
    assert judged(path=[one]) == ["it took another path: 1 transitions instead of 2"]
    assert judged(path=[one, one, two]) == [
        "it took another path: step 2 is `one` (first -> second), and was `two` (second -> done)"
    ]


def test_another_end() -> None:
    standing = evolve(OUTCOME.standing, status="parked", state="second", reason="poison", note="it kills")
    assert judged(standing=standing) == [
        "the thread is parked in second (poison: it kills), and was ended in done"
    ]
    assert judged(stuck=True) == ["it came to no end within 400 days of simulated time"]


def test_a_journal_without_a_fault() -> None:
    assert broken_link(INCARNATION, ROWS) is None
    assert judged(broken="row 1") == ["the journal is broken: row 1"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda rows: [*rows[:1], *rows[2:]], "row 2 (seq 2) stands where row 1 (seq 1) should"),
        (lambda rows: [*rows, rows[-1]], "row 2 (seq 2) stands where row 3 (seq 3) should"),
        (
            lambda rows: [rows[0], evolve(rows[1], payload=rows[1].payload + b" "), *rows[2:]],
            "row 1 (seq 1) does not continue the chain",
        ),
    ],
)
def test_a_journal_with_a_fault(damage: Callable[[list[LogRow]], list[LogRow]], said: str) -> None:
    assert broken_link(INCARNATION, damage(list(ROWS))) == said
