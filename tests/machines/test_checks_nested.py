"""What is refused of nested states, anywhere, choices and abstract machines: by name, with the mend."""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from types import new_class
from typing import Any, Generic, TypeVar

import pytest

from perdure.machines import (
    Accept,
    Budget,
    DefinitionError,
    Fire,
    Machine,
    Retry,
    State,
    Step,
    anywhere,
    definition,
    record,
)

HOUR = timedelta(hours=1)
D = TypeVar("D")


@record
class Data:
    n: int = 0

    @property
    def big(self) -> bool:
        return self.n > 10


@record
class Limited:
    budget: Budget = Budget(steps=3)


class Foreign(Machine[Data]):
    there = State(initial=True)
    over = State(final=True)
    leave = there.to(over).on_signal()


def base(**changed: Any) -> dict[str, Any]:
    """States that stand in a machine without a fault, or others in their place."""
    outer = changed.get("outer", State())
    return {
        "a": State(initial=True),
        "outer": outer,
        "first": State(parent=outer, initial=True),
        "second": State(parent=outer),
        "end": State(final=True),
        **changed,
    }


def made(states: Mapping[str, Any], **more: Any) -> type[Machine[Data]]:
    """A machine of these states. ``a`` goes on to ``outer``, whose states wait and go round and out."""
    a, outer, first, second, end = (states[name] for name in ("a", "outer", "first", "second", "end"))
    body = {
        **states,
        "enter": a.to(outer).on_signal(),
        "move": first.to(second).on_signal(),
        "out": outer.to(end).on_signal(),
        **more,
    }
    return new_class("M", (Machine[Data],), exec_body=lambda namespace: namespace.update(body))


def working(fire: str, *states: State) -> Callable[..., Any]:
    async def run(self: Any, data: Data, step: Step) -> Fire:
        fired: Fire = getattr(self, fire)()
        return fired

    marked: Callable[..., Any] = run
    for state in states:
        marked = state.handler(run)
    return marked


def refused(said: str, declare: Callable[[], object]) -> None:
    with pytest.raises(DefinitionError, match=re.escape(said)):
        declare()


def test_the_base_has_no_fault() -> None:
    assert definition(made(base())).composites == {"outer": "outer.first"}


class TestComposites:
    def test_one_of_its_states_is_the_initial_one(self) -> None:
        outer = State()
        states = base(outer=outer, first=State(parent=outer))
        refused("M.outer: none of the states in it (first, second) is its initial one", lambda: made(states))
        refused("State(parent=outer, initial=True)", lambda: made(states))

    def test_only_one_is(self) -> None:
        outer = State()
        states = base(outer=outer, second=State(parent=outer, initial=True))
        refused("M.outer: first and second are both initial in it", lambda: made(states))

    def test_a_child_ends_nothing(self) -> None:
        outer = State()
        states = base(outer=outer, second=State(parent=outer, final=True))
        refused("M.second: a final state ends the thread and stands in no other", lambda: made(states))

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"final": True}, "a thread is never in it itself; take final= away"),
            ({"retry": Retry()}, "say retry= of those that need it"),
            ({"deadline": HOUR}, "say deadline= of those that need it"),
            ({"interruptible": True}, "say interruptible= of those that need it"),
        ],
    )
    def test_it_is_given_nothing_of_its_own(self, options: Any, said: str) -> None:
        states = base(outer=State(**options))
        refused("M.outer: it holds other states (first, second)", lambda: made(states))
        refused(said, lambda: made(states))

    def test_it_has_no_handler(self) -> None:
        states = base()
        run = working("out", states["outer"])
        refused(
            "M.outer: run is declared for it, but a thread is never in it itself; declare the handler for a "
            "state that it holds: first, second",
            lambda: made(states, run=run),
        )

    def test_without_a_child_it_is_a_state(self) -> None:
        class Plain(Machine[Data]):
            outer = State(initial=True, retry=Retry())
            end = State(final=True)
            go = outer.to(end)
            run = working("go", outer)

        assert definition(Plain).states["outer"].handlers


class TestParents:
    def test_it_is_one_of_the_machine_s(self) -> None:
        stray = State(parent=Foreign.there)
        refused(
            "M.second: its parent 'there' is not a state of this machine", lambda: made(base(second=stray))
        )

    def test_it_has_a_name(self) -> None:
        stray = State(parent=State())
        refused(
            "M.second: its parent 'State()' is not a state of this machine", lambda: made(base(second=stray))
        )

    def test_it_is_a_state(self) -> None:
        wrong: Any = "outer"
        refused(
            "State(parent=) takes the State that this one stands in, not 'outer'", lambda: State(parent=wrong)
        )


class TestRows:
    def test_a_child_that_nothing_reaches(self) -> None:
        states = base()
        refused(
            "M: nothing leads from a to outer.second",
            lambda: made(states, move=states["first"].to(states["first"]).on_signal()),
        )

    def test_an_initial_child_that_is_always_passed_by(self) -> None:
        states = base()
        refused(
            "M: nothing leads from a to outer.first",
            lambda: made(states, enter=states["a"].to(states["second"]).on_signal()),
        )

    def test_a_child_is_no_dead_end_where_its_parent_leads_out(self) -> None:
        assert set(definition(made(base())).states["outer.second"].rows) == {"out"}

    def test_a_child_that_its_parent_does_not_lead_out_of_is_one(self) -> None:
        states = base()
        refused(
            "M.outer.second: a dead end",
            lambda: made(states, out=states["first"].to(states["end"]).on_signal()),
        )

    def test_an_own_row_overrides_and_is_no_fault(self) -> None:
        states = base()
        out = (states["second"].to(states["first"]) | states["outer"].to(states["end"])).on_signal()
        plan = definition(made(states, out=out))
        assert [row.dest for row in plan.states["outer.second"].rows["out"]] == ["outer.first"]

    @pytest.mark.parametrize("scope", ["outer", "anywhere"])
    def test_what_every_child_overrides_is_one(self, scope: str) -> None:
        states = base()
        a, first, second, end = (states[name] for name in ("a", "first", "second", "end"))
        wide = states["outer"] if scope == "outer" else anywhere
        rows = first.to(end) | second.to(end) | a.to(states["outer"]) | wide.to(end, when=Data.big)
        around = "in outer" if scope == "outer" else "that is not final"
        refused(
            f"M.out: every state {around} has a transition of its own for it that is always taken, so that "
            f"the one from {scope} never is",
            lambda: made(states, out=rows.on_signal()),
        )

    def test_the_narrower_comes_first_within_one_state(self) -> None:
        states = base()
        rows = states["outer"].to(states["end"]) | states["outer"].to(states["a"], when=Data.big)
        refused(
            "M.out: from outer it always leads to end, never to a", lambda: made(states, out=rows.on_signal())
        )
        rows = anywhere.to(states["end"]) | anywhere.to(states["a"])
        refused("M.x: from anywhere it always leads to end", lambda: made(states, x=rows.on_signal()))

    @pytest.mark.parametrize("kind", ["fire", "on_choice", "on_failure"])
    @pytest.mark.parametrize("scope", ["outer", "anywhere"])
    def test_what_is_for_a_handler_needs_one_inside(self, kind: str, scope: str) -> None:
        states = base()
        row = (states["outer"] if scope == "outer" else anywhere).to(states["end"])
        event = row if kind == "fire" else getattr(row, kind)()
        around = "in outer" if scope == "outer" else "that is not final"
        refused(
            f"M.x: it is for a handler's work, and no state {around} has a handler",
            lambda: made(states, x=event),
        )
        states = base()
        row = (states["outer"] if scope == "outer" else anywhere).to(states["end"])
        event = row if kind == "fire" else getattr(row, kind)()
        go = states["first"].to(states["end"])
        plan = definition(made(states, x=event, go=go, run=working("go", states["first"])))
        assert "x" in plan.states["outer.first"].rows
        assert "x" not in plan.states["outer.second"].rows

    def test_a_wait_that_nothing_but_a_cancel_ends(self) -> None:
        states = base()
        out = states["first"].to(states["end"]).on_signal()
        refused(
            "M.outer.second: it has no handler, and nothing but a cancel (stop) can end the wait; add "
            "second.to(...).on_signal(...)",
            lambda: made(states, out=out, stop=anywhere.to(states["end"]).on_cancel()),
        )

    def test_two_cancels_of_one_state(self) -> None:
        states = base()
        end = states["end"]
        both = {"one": anywhere.to(end).on_cancel(), "two": anywhere.to(end).on_cancel()}
        refused("M.two: one takes a before it in every case", lambda: made(states, **both))
        states = base()
        end = states["end"]
        inner = {"one": anywhere.to(end).on_cancel(), "two": states["outer"].to(end).on_cancel()}
        assert definition(made(states, **inner)).states["outer.first"].cancels == ("two", "one")

    @pytest.mark.parametrize("scope", ["outer", "anywhere"])
    def test_a_limit_is_for_a_handler_s_work(self, scope: str) -> None:
        states = base()
        spent = (states["outer"] if scope == "outer" else anywhere).to(states["end"]).on_budget()
        refused("M.spent: it is for a handler's work, and no state", lambda: made(states, spent=spent))

    def test_two_limits_of_one_state(self) -> None:
        def declare() -> None:
            class M(Machine[Limited]):
                a = State(initial=True)
                end = State(final=True)
                go = a.to(end)
                one = a.to(end).on_budget()
                two = anywhere.to(end).on_budget() if inner else a.to(end).on_budget()

                @a.handler
                async def run(self, data: Limited, step: Step) -> Fire:
                    return self.go()

        inner = False
        refused("M.two: one takes a before it in every case", declare)
        inner = True
        declare()


class TestTimeouts:
    def clocks(self, inner: timedelta, outer: timedelta, **more: Any) -> type[Machine[Data]]:
        states = base()
        late = states["outer"].to(states["end"]).after(outer)
        return made(states, soon=states["first"].to(states["a"]).after(inner), late=late)

    def test_a_parent_s_clock_runs_as_long_or_longer(self) -> None:
        refused(
            "M.soon: late takes outer.first before it in every case",
            lambda: self.clocks(inner=2 * HOUR, outer=HOUR),
        )
        assert len(definition(self.clocks(inner=HOUR, outer=2 * HOUR)).states["outer.first"].timeouts) == 2

    def test_one_timeout_of_two_clocks(self) -> None:
        states = base()
        rows = states["first"].to(states["a"], when=Data.big) | states["outer"].to(states["end"])
        refused(
            "M.late: from outer.first it counts from the entry of outer.first and of outer at once",
            lambda: made(states, late=rows.after(HOUR)),
        )


class TestWhatHandlersFire:
    def test_an_event_of_the_parent_s_leaves_its_children(self) -> None:
        class M(Machine[Data]):
            outer = State(initial=True)
            first = State(parent=outer, initial=True)
            end = State(final=True)
            go = outer.to(end)
            give_up = anywhere.to(end)

            @first.handler
            async def run(self, data: Data, step: Step) -> Fire:
                return self.go() if data.big else self.give_up()

        assert set(definition(M).states["outer.first"].rows) == {"go", "give_up"}

    def test_one_that_the_state_overrides_with_another_kind_of_place_does_not(self) -> None:
        def declare() -> None:
            class M(Machine[Data]):
                a = State(initial=True)
                outer = State()
                first = State(parent=outer, initial=True)
                end = State(final=True)
                enter = a.to(outer)
                go = outer.to(end)

                @a.handler
                async def begin(self, data: Data, step: Step) -> Fire:
                    return self.go()

                @first.handler
                async def run(self, data: Data, step: Step) -> Fire:
                    return self.go()

        refused("M.begin: it fires go, which does not leave a; it leaves outer.first", declare)

    def test_a_choice_is_the_model_s(self) -> None:
        def declare() -> None:
            class M(Machine[Data]):
                a = State(initial=True)
                end = State(final=True)
                pick = a.to(end).on_choice()

                @a.handler
                async def run(self, data: Data, step: Step) -> Fire:
                    return self.pick()  # type: ignore[return-value] # pyright: ignore[reportReturnType]

        refused("M.run: pick is a model's choice; return what step.decide(...) makes of its answer", declare)

    def test_a_cancel_comes_by_itself(self) -> None:
        def declare() -> None:
            class M(Machine[Data]):
                a = State(initial=True)
                end = State(final=True)
                go = a.to(end)
                stop = a.to(end).on_cancel()

                @a.handler
                async def run(self, data: Data, step: Step) -> Fire:
                    self.stop()
                    return self.go()

        refused("M.run: stop is a cancel, which comes by itself; no handler fires it", declare)

    def test_a_receiver_says_what_it_is_given(self) -> None:
        def declare() -> None:
            class M(Machine[Data]):
                a = State(initial=True)
                end = State(final=True)
                go = a.to(end).on_signal()
                stop = a.to(end).on_cancel()

                @any_type(stop).received  # type: ignore[untyped-decorator]
                def stopped(self, data: Data, why: Data) -> Accept:
                    return self.stop()

        refused("M.stopped: it declares Data, but is given Cancellation", declare)


class TestChoices:
    def choosing(self, payload: Any, name: str = "pick") -> type[Machine[Data]]:
        states = base()
        pick = states["first"].to(states["end"]).on_choice(payload)
        return made(states, **{name: pick, "run": working("go", states["first"])})

    def test_a_model_gives_arguments_by_name(self) -> None:
        refused(
            "M.pick: a model gives arguments by name, so that on_choice() takes a record, not int",
            lambda: self.choosing(int),
        )
        refused(
            "takes a record, not test_checks_nested.Data | None", lambda: self.choosing(any_type(Data | None))
        )
        assert definition(self.choosing(Data)).states["outer.first"].choices == ("pick",)
        assert definition(self.choosing(any_type(Mapping[str, int]))).events["pick"].payload is not None

    def test_it_knows_the_event_by_a_name_that_its_api_takes(self) -> None:
        refused("M.größe: a model knows the event by its name", lambda: self.choosing(Data, "größe"))
        refused("no more than 64 ASCII letters", lambda: self.choosing(Data, "x" * 65))


def any_type(value: object) -> Any:
    return value


class TestAbstractMachines:
    def test_it_has_no_name_and_no_version(self) -> None:
        for given in ({"version": 2}, {"name": "desk"}):
            refused(
                "Desk: it is abstract, and the store never sees it; give name=, version= and at_once= to the",
                partial(new_class, "Desk", (Machine[Data],), {"abstract": True, **given}),
            )

    def test_its_calls_are_checked(self) -> None:
        refused(
            "Desk: calls= lists test_the_base_has_no_fault, which is not declared",
            lambda: new_class(
                "Desk", (Machine[Data],), {"abstract": True, "calls": [test_the_base_has_no_fault]}
            ),
        )

    def test_it_does_not_run(self) -> None:
        class Desk(Machine[Data], abstract=True):
            pass

        refused("Desk is abstract: subclass it without abstract=True", lambda: definition(Desk))

    def test_a_subclass_says_which_data_it_has(self) -> None:
        class Desk(Machine[D], Generic[D], abstract=True):
            end = State(final=True)

        refused(
            "Claims: its data ~D is not a class; say class Claims(Desk[YourRecord])",
            lambda: new_class("Claims", (Desk,)),
        )


def test_a_name_with_a_dot_in_it_is_not_one() -> None:
    refused(
        "M.a.b: a state's name is one that code can use", lambda: made(base(), **{"a.b": State(final=True)})
    )
