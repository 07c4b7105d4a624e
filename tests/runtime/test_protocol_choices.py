"""Rows R170 to R172 of docs/protocol.md: what a model may decide, and what becomes of what it says."""

from __future__ import annotations

import json
from asyncio import sleep
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from harness.engine import Sim, World, carrying, kept, simulated
from harness.loop import SimLoop, simulate
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.machines import (
    Accept,
    Append,
    Choice,
    Fire,
    Machine,
    ModelWritable,
    Refusal,
    State,
    Step,
    ToolCall,
    record,
    tool,
)


@record
class Refund:
    """Money back."""

    amount: int
    why: str = ""


@record
class Case:
    limit: int = 100
    refunded: int = 0
    notes: Annotated[Sequence[str], Append()] = ()
    seen: Annotated[str | None, ModelWritable()] = None

    @property
    def within(self) -> bool:
        """No more than the limit is given back."""
        return self.refunded <= self.limit

    @property
    def never(self) -> bool:
        raise ZeroDivisionError("the guard itself fails")


class Desk(Machine[Case, World], version=1, calls=[kept]):
    """A model decides; what it may decide stands here."""

    deciding = State(initial=True)
    elsewhere = State()
    done = State(final=True)
    refund = deciding.to(done, when=Case.within).on_choice(Refund)
    close = deciding.to(done).on_choice()
    fail = deciding.to(done, when=Case.never).on_choice()
    picky = deciding.to(done).on_choice(Refund)
    wait = deciding.to(elsewhere)
    hidden = elsewhere.to(done).on_signal()

    @deciding.handler
    async def decide(self, data: Case, step: Step[World]) -> Fire:
        answer = await step.call(kept, "what now?")
        await sleep(1)  # its record is written meanwhile
        call = ToolCall(**json.loads(answer))
        decided = step.decide(call)
        if isinstance(decided, Refusal):
            return self.wait(notes=[decided.message().content])
        return decided.also(notes=["decided"])

    @refund.received
    def refunded(self, data: Case, refund: Refund) -> Accept:
        """Give the customer money back."""
        return self.refund(refunded=data.refunded + refund.amount, seen=refund.why)

    @picky.received
    def picked(self, data: Case, refund: Refund) -> Accept:
        return self.picky(refunded=100 // refund.amount)


async def told(sim: Sim, name: str, arguments: str) -> tuple[str, Any]:
    """Where the thread stands after the model said this, and its data."""
    sim.world.next_reads("kept", json.dumps({"id": "call_7", "name": name, "arguments": arguments}))
    await (await sim.engine()).start(Desk, Case())
    row = await sim.until("ended", "waiting", "parked")
    return row.standing.state, await sim.thread(Desk).data()


@simulated
async def test_r170_the_choices_are_the_events_that_leave_this_state_and_no_others(loop: SimLoop) -> None:
    offered: list[Choice] = []

    class Looks(Desk, name="Looks"):
        """Looks at what is on offer."""

        async def decide(self, data: Case, step: Step[World]) -> Fire:
            offered.extend([*step.choices(), *step.lane("x").choices(), tool(kept)])
            return self.wait()

    sim = Sim(loop, Looks)
    await (await sim.engine()).start(Looks, Case())
    await sim.until("waiting")
    assert [choice.name for choice in offered] == ["refund", "close", "fail", "picky"] * 2 + ["kept"]
    refund = offered[0]
    assert refund.description == "Give the customer money back."
    assert refund.parameters["required"] == ["amount"]


@simulated
async def test_r171_a_choice_is_fired_with_what_its_receiver_makes_of_it_and_what_it_cost(
    loop: SimLoop,
) -> None:
    state, data = await told(Sim(loop, Desk), "refund", '{"amount": 40, "why": "late"}')
    assert (state, data.refunded, data.seen, data.notes) == ("done", 40, "late", ("decided",))


@simulated
async def test_r171_a_resume_decides_the_same_from_the_recorded_answer(loop: SimLoop) -> None:
    sim = Sim(loop, Desk)
    engine = await sim.engine()
    engine.store.fault("kill before", carrying("transition"))
    sim.world.next_reads("kept", json.dumps({"id": "c", "name": "close", "arguments": ""}))
    await engine.start(Desk, Case())
    await sim.until_dead(engine)
    sim.world.next_reads("kept", json.dumps({"id": "c", "name": "refund", "arguments": '{"amount": 1}'}))
    await sim.engine()
    assert (await sim.until("ended")).standing.state == "done"
    assert (await sim.thread(Desk).history())[-1].event == "close"


REFUSED = [
    (
        "refund",
        '{"amount": 400}',
        "refund is not allowed now. It is where: No more than the limit is given back",
    ),
    ("refund", "{}", "refund: the field 'amount' of Refund is missing"),
    ("refund", '{"amount": "40"}', "refund.amount: expected"),
    ("refund", '{"amount": 4, "limit": 1000}', "refund: Refund has no field 'limit'"),
    ("refund", '{"amount": 4', "the arguments are no valid JSON"),
    ("refund", '{"amount": 4, "amount": 500}', "the name 'amount' comes twice"),
    ("close", '{"amount": 4}', "close takes no arguments, and was given 'amount'"),
    ("picky", '{"amount": 0}', "picky cannot take this: ZeroDivisionError"),
    ("fail", "{}", "fail cannot be judged: ZeroDivisionError: the guard itself fails"),
    (
        "hidden",
        "{}",
        "'hidden' is not on offer in state 'deciding': choose one of refund, close, fail, picky",
    ),
    ("wait", "{}", "'wait' is not on offer"),
    ("", "", "'' is not on offer"),
    ("__init__", "", "is not on offer"),
    ("refund ", '{"amount": 4}', "is not on offer"),
]


@pytest.mark.parametrize(("name", "arguments", "said"), REFUSED, ids=range(len(REFUSED)))
@simulated
async def test_r172_what_does_not_fit_is_refused_in_words_for_the_model(
    loop: SimLoop, name: str, arguments: str, said: str
) -> None:
    state, data = await told(Sim(loop, Desk), name, arguments)
    assert state == "elsewhere"
    assert said in data.notes[0]
    assert (data.refunded, data.limit) == (0, 100)


def test_r172_a_state_that_offers_nothing_says_so() -> None:
    async def main(loop: SimLoop) -> None:
        class Quiet(Machine[Case, World], calls=[kept]):
            """Offers nothing."""

            working = State(initial=True)
            done = State(final=True)
            worked = working.to(done)

            @working.handler
            async def work(self, data: Case, step: Step[World]) -> Fire:
                assert step.choices() == ()
                refusal = step.decide(ToolCall(id="1", name="worked", arguments="{}"))
                assert isinstance(refusal, Refusal)
                return self.worked(notes=[refusal.message().content])

        sim = Sim(loop, Quiet)
        await (await sim.engine()).start(Quiet, Case())
        await sim.until("ended")
        (note,) = (await sim.thread(Quiet).data()).notes
        assert note == "'worked' is not on offer in state 'working': there is none to choose here"

    simulate(main)


@settings(max_examples=60)
@given(
    st.sampled_from(["refund", "close", "picky", "fail", "wait", "hidden"]) | st.text(max_size=20),
    st.text(max_size=40)
    | st.dictionaries(
        st.sampled_from(["amount", "why", "limit"]),
        st.integers(-(10**30), 10**30) | st.text(max_size=9) | st.none() | st.floats() | st.lists(st.none()),
    ).map(json.dumps),
)
def test_r172_whatever_a_model_says_it_sets_nothing_but_what_the_receiver_sets(name: str, text: str) -> None:
    """Decided in one handler, over and over; the thread goes on."""
    decisions: list[Fire | Refusal] = []

    async def main(loop: SimLoop) -> None:
        class Asked(Desk, name="Asked"):
            """Is told by the test what the model says."""

            async def decide(self, data: Case, step: Step[World]) -> Fire:
                decided = step.decide(ToolCall(id="1", name=name, arguments=text))
                assert decided == step.decide(ToolCall(id="1", name=name, arguments=text))
                decisions.append(decided)
                return self.wait() if isinstance(decided, Refusal) else decided

        sim = Sim(loop, Asked)
        await (await sim.engine()).start(Asked, Case())
        row = await sim.until("ended", "waiting", "parked")
        data = await sim.thread(Asked).data()
        assert (row.standing.state == "done") == isinstance(decisions[0], Fire)
        assert (row.standing.status == "waiting") == isinstance(decisions[0], Refusal)
        assert data.limit == 100
        assert data.refunded <= 100

    simulate(main)
    (decided,) = decisions
    if isinstance(decided, Fire):
        assert decided.event == name
        assert decided.event in {"refund", "close", "picky"}
        assert set(decided.updates) <= {"refunded", "seen"}
