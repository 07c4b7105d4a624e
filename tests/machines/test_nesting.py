"""States in states, anywhere, and what the engine reads of them."""

from collections.abc import Sequence
from datetime import timedelta

from perdure.machines import (
    Accept,
    Budget,
    Cancellation,
    Failure,
    Fire,
    Machine,
    Row,
    Spent,
    State,
    Step,
    anywhere,
    definition,
    record,
)

HOUR = timedelta(hours=1)


@record
class Case:
    n: int = 0

    @property
    def big(self) -> bool:
        return self.n > 10


class Review(Machine[Case]):
    reading = State(initial=True)
    reviewing = State()
    asking = State(parent=reviewing, initial=True)
    deep = State(parent=reviewing)
    digging = State(parent=deep, initial=True)
    resting = State(parent=deep)
    done = State(final=True)
    failed = State(final=True)

    broken = anywhere.to(failed).on_failure()
    odd = reviewing.to(reading).on_failure(ValueError)
    own = digging.to(done).on_failure()
    stop = anywhere.to(failed).on_cancel()
    late = reviewing.to(done).after(HOUR)
    ever = anywhere.to(failed).after(24 * HOUR)
    begin = reading.to(reviewing)
    rest = digging.to(resting)
    go_on = asking.to(deep) | reviewing.to(done, when=Case.big) | anywhere.to(failed)
    wake = (resting.to(digging, when=Case.big) | deep.to(asking)).on_signal()

    @reading.handler
    async def read(self, data: Case, step: Step) -> Fire:
        return self.begin()

    @asking.handler
    @digging.handler
    async def work(self, data: Case, step: Step) -> Fire:
        return self.go_on()


PLAN = definition(Review)


def told(rows: Sequence[Row]) -> list[tuple[str, str, str | None]]:
    return [(row.dest, row.scope, row.guard_name) for row in rows]


def test_only_what_a_thread_can_be_in_is_a_state() -> None:
    assert list(PLAN.states) == [
        "reading",
        "reviewing.asking",
        "reviewing.deep.digging",
        "reviewing.deep.resting",
        "done",
        "failed",
    ]
    assert all(state.name == name for name, state in PLAN.states.items())
    assert PLAN.composites == {"reviewing": "reviewing.asking", "reviewing.deep": "reviewing.deep.digging"}


def test_entering_a_composite_enters_its_initial_child_all_the_way_down() -> None:
    assert told(PLAN.states["reading"].rows["begin"]) == [("reviewing.asking", "reading", None)]
    assert told(PLAN.states["reviewing.asking"].rows["go_on"]) == [
        ("reviewing.deep.digging", "reviewing.asking", None)
    ]


def test_a_machine_may_begin_in_a_composite() -> None:
    class Nested(Machine[Case]):
        outer = State(initial=True)
        inner = State(parent=outer, initial=True)
        end = State(final=True)
        go = outer.to(end).on_signal()

    assert definition(Nested).initial == "outer.inner"


def test_a_child_s_own_rows_come_first_then_its_parent_s_then_anywhere_s() -> None:
    assert told(PLAN.states["reviewing.deep.digging"].rows["go_on"]) == [
        ("done", "reviewing", "big"),
        ("failed", "", None),
    ]
    assert told(PLAN.states["reviewing.deep.resting"].rows["wake"]) == [
        ("reviewing.deep.digging", "reviewing.deep.resting", "big"),
        ("reviewing.asking", "reviewing.deep", None),
    ]
    assert told(PLAN.states["reading"].rows["go_on"]) == [("failed", "", None)]
    assert all(
        row.source == name and row.event == event
        for name, state in PLAN.states.items()
        for event, rows in state.rows.items()
        for row in rows
    )


def test_what_stands_behind_a_child_s_unguarded_row_never_comes() -> None:
    assert len(PLAN.states["reviewing.asking"].rows["go_on"]) == 1


def test_a_handler_s_events_come_only_to_children_with_one() -> None:
    resting = PLAN.states["reviewing.deep.resting"]
    assert set(resting.rows) == {"stop", "late", "ever", "wake"}
    assert resting.failures == ()
    assert resting.cancels == ("stop",)


def test_anywhere_leads_out_of_no_final_state() -> None:
    assert PLAN.states["done"].rows == {}
    assert PLAN.states["failed"].rows == {}


def test_a_timeout_tells_whose_it_is() -> None:
    assert [(each.event, each.scope) for each in PLAN.states["reviewing.asking"].timeouts] == [
        ("late", "reviewing"),
        ("ever", ""),
    ]
    assert [(each.event, each.scope) for each in PLAN.states["reading"].timeouts] == [("ever", "")]


def test_the_innermost_failure_event_is_asked_first() -> None:
    failures = {name: [each.event for each in state.failures] for name, state in PLAN.states.items()}
    assert failures["reading"] == ["broken"]
    assert failures["reviewing.asking"] == ["odd", "broken"]
    assert failures["reviewing.deep.digging"] == ["own", "odd", "broken"]


def test_a_subclass_adds_to_a_composite() -> None:
    class Longer(Review):
        checking = State(parent=Review.reviewing)
        check = Review.asking.to(checking).on_signal()
        checked = checking.to(Review.digging).on_signal()

    assert "reviewing.checking" in definition(Longer).states
    assert definition(Longer).states["reviewing.checking"].timeouts[0].scope == "reviewing"
    assert "reviewing.checking" not in PLAN.states


def test_a_subclass_divides_a_state() -> None:
    class Plain(Machine[Case]):
        waiting = State(initial=True)
        end = State(final=True)
        go = waiting.to(end).on_signal()

    class Divided(Plain):
        first = State(parent=Plain.waiting, initial=True)
        second = State(parent=Plain.waiting)
        more = first.to(second).on_signal()

    assert definition(Plain).initial == "waiting"
    assert definition(Divided).initial == "waiting.first"
    assert told(definition(Divided).states["waiting.second"].rows["go"]) == [("end", "waiting", None)]


def test_a_composite_may_lead_into_itself_and_back_to_its_start() -> None:
    class Again(Machine[Case]):
        outer = State(initial=True)
        first = State(parent=outer, initial=True)
        second = State(parent=outer)
        end = State(final=True)
        restart = outer.to(outer).on_signal()
        step = outer.to(second).on_signal()
        go = outer.to(end).on_signal()

    plan = definition(Again)
    for name in ("outer.first", "outer.second"):
        assert told(plan.states[name].rows["restart"]) == [("outer.first", "outer", None)]
        assert told(plan.states[name].rows["step"]) == [("outer.second", "outer", None)]


def hashed(*, parent: bool = False, wide: bool = False, order: bool = False) -> str:
    class Same(Machine[Case]):
        outer = State(initial=True)
        first = State(parent=outer, initial=True)
        second = State(parent=outer if parent else None)
        end = State(final=True)
        move = first.to(second).on_signal()
        go = ((outer if wide else first).to(end) | second.to(end)).on_signal()
        rows = first.to(end, when=Case.big), first.to(second, when=lambda data: data.n > 1)
        pick = ((rows[1] | rows[0]) if order else (rows[0] | rows[1])).on_signal()

    return definition(Same).hash


def test_the_hash_changes_with_nesting_with_who_declares_and_with_the_order_of_candidates() -> None:
    hashes = [hashed(), hashed(parent=True), hashed(wide=True), hashed(order=True)]
    assert len(set(hashes)) == 4
    assert hashed() == hashes[0]


class Kinds(Machine[Case]):
    working = State(initial=True)
    end = State(final=True)

    go = working.to(end)
    pick = working.to(end).on_choice(Case)
    leave = working.to(end).on_choice()
    stop = working.to(end).on_cancel()
    spent = working.to(end).on_failure()

    @working.handler
    async def work(self, data: Case, step: Step) -> Fire:
        return self.go()

    @pick.received
    def picked(self, data: Case, chosen: Case) -> Accept:
        """Take this number."""
        return self.pick(n=chosen.n)

    @stop.received
    def stopped(self, data: Case, why: Cancellation) -> Accept:
        return self.stop(n=len(why.by + why.reason))

    @spent.received
    def gone(self, data: Case, why: Failure) -> Accept:
        return self.spent()


def test_each_kind_stands_with_the_state_that_it_leaves() -> None:
    state = definition(Kinds).states["working"]
    assert state.choices == ("pick", "leave")
    assert state.cancels == ("stop",)
    assert state.budgets == ()
    kinds = {name: event.kind for name, event in definition(Kinds).events.items()}
    assert kinds == {
        "go": "fire",
        "pick": "choice",
        "leave": "choice",
        "stop": "cancel",
        "spent": "failure",
    }


@record
class Limited:
    n: int = 0
    budget: Budget = Budget(steps=10)


class Spending(Machine[Limited]):
    outer = State(initial=True)
    working = State(parent=outer, initial=True)
    resting = State(parent=outer)
    end = State(final=True)

    spent = anywhere.to(end).on_budget()
    own = outer.to(resting).on_budget()
    rest = working.to(resting)
    wake = resting.to(working).on_signal()

    @working.handler
    async def work(self, data: Limited, step: Step) -> Fire:
        return self.rest()

    @own.received
    def told(self, data: Limited, limit: Spent) -> Accept:
        return self.own(n=int(limit.used))


def test_a_limit_comes_to_states_with_a_handler_the_innermost_event_first() -> None:
    plan = definition(Spending)
    assert plan.budget == "budget"
    assert definition(Kinds).budget is None
    assert plan.states["outer.working"].budgets == ("own", "spent")
    assert plan.states["outer.resting"].budgets == ()
    own = plan.events["own"]
    assert own.payload is not None
    assert own.receiver is not None
    spent = Spent(limit="steps", allowed=10.0, used=12.0)
    assert own.payload.roundtrip(spent, "x")[1] == spent
    assert own.receiver(Limited(), spent).updates == {"n": 12}


def test_their_receivers_fold_what_they_bring() -> None:
    events = definition(Kinds).events
    pick, stop = events["pick"], events["stop"]
    assert pick.receiver is not None
    assert pick.receiver(Case(), Case(n=3)) == Accept(event="pick", updates={"n": 3})
    assert pick.payload is not None
    assert pick.payload.type is Case
    assert events["leave"].payload is None
    assert stop.receiver is not None
    assert stop.receiver(Case(), Cancellation(by="ada", reason="x")).updates == {"n": 4}
    assert stop.payload is not None
    assert stop.payload.roundtrip(Cancellation(by="a", reason=""), "x")[1] == Cancellation(by="a", reason="")
