"""Abstract machines that others are made of, and what events are for in the words of their class."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import new_class
from typing import Annotated, Any, Generic, TypeVar

import pytest

from perdure.machines import (
    Accept,
    Append,
    Call,
    Cancellation,
    DefinitionError,
    Failure,
    Fire,
    Machine,
    State,
    Step,
    anywhere,
    definition,
    read,
    record,
)

D = TypeVar("D")
X = TypeVar("X", contravariant=True)
T = TypeVar("T")


@record
class Claim:
    n: int = 0
    notes: Annotated[Sequence[str], Append()] = ()


@record
class Envelope(Generic[T]):
    inside: T
    notes: Annotated[Sequence[str], Append()] = ()


@dataclass(frozen=True)
class Deps:
    url: str


@read
async def first_look(call: Call[Any]) -> int:
    return 1


@read
async def second_look(call: Call[Any]) -> int:
    return 2


class Desk(Machine[D, X], Generic[D, X], abstract=True, calls=[first_look]):
    """What every machine of the desk has."""

    failed = State(final=True)
    stopped = State(final=True)

    broken = anywhere.to(failed).on_failure()
    stop = anywhere.to(stopped).on_cancel()

    @broken.received
    def note_failure(self, data: D, failure: Failure) -> Accept:
        return self.broken(notes=[failure.message])

    @stop.received
    def note_stop(self, data: D, why: Cancellation) -> Accept:
        return self.stop(notes=[why.reason])


class Timed(Desk[D, Any], Generic[D], abstract=True, calls=[second_look]):
    resting = State()
    rest = anywhere.to(resting).on_signal()
    wake = resting.to(Desk.stopped).on_signal()


class Claims(Timed[Claim], version=3, calls=[first_look]):
    reading = State(initial=True)
    odd = reading.to(Desk.failed).on_failure(ValueError)
    go = reading.to(Timed.resting)

    @reading.handler
    async def run(self, data: Claim, step: Step[Deps]) -> Fire:
        return self.go()


class Letters(Desk[Envelope[int], Deps]):
    opening = State(initial=True)
    go = opening.to(Desk.stopped)

    @opening.handler
    async def run(self, data: Envelope[int], step: Step[Deps]) -> Fire:
        return self.go()

    def note_stop(self, data: Envelope[int], why: Cancellation) -> Accept:
        return self.stop(notes=[f"letter {data.inside}: {why.reason}"])


class Mail(Machine[Envelope[T], Any], Generic[T], abstract=True):
    sent = State(final=True)


class Post(Mail[Claim]):
    writing = State(initial=True)
    go = writing.to(Mail.sent).on_signal()


class TestBases:
    def test_a_machine_has_what_its_bases_hold(self) -> None:
        plan = definition(Claims)
        assert set(plan.states) == {"failed", "stopped", "resting", "reading"}
        assert plan.states["reading"].cancels == ("stop",)
        assert plan.states["resting"].signals == ("wake", "rest")
        assert plan.version == 3

    def test_its_own_failure_event_comes_before_its_bases(self) -> None:
        assert [each.event for each in definition(Claims).states["reading"].failures] == ["odd", "broken"]

    def test_the_data_is_what_reaches_machine_through_the_bases(self) -> None:
        assert set(definition(Claims).data.fields) == {"n", "notes"}
        assert set(definition(Letters).data.fields) == {"inside", "notes"}
        inside = definition(Post).data.fields["inside"].codec
        assert inside is not None
        assert inside.type is Claim

    def test_bases_agree_on_the_data(self) -> None:
        class Both(Claims, Timed[Claim]):
            pass

        assert definition(Both).data.fields.keys() == {"n", "notes"}
        with pytest.raises(DefinitionError, match="M: its bases give it Claim and Envelope as its data"):
            new_class("M", (Timed[Claim], Mail[Talk]))

    def test_calls_add_up(self) -> None:
        assert set(definition(Claims).calls) == {"first_look", "second_look"}
        assert set(definition(Letters).calls) == {"first_look"}

    def test_receivers_are_inherited_and_overridden(self) -> None:
        stop = definition(Claims).events["stop"].receiver
        assert stop is not None
        assert stop(Claim(), Cancellation(by="a", reason="why")).updates == {"notes": ["why"]}
        stop = definition(Letters).events["stop"].receiver
        assert stop is not None
        told = stop(Envelope(inside=7), Cancellation(by="a", reason="why")).updates
        assert told == {"notes": ["letter 7: why"]}

    def test_what_a_base_does_is_checked_against_the_data_of_each_machine(self) -> None:
        @record
        class Bare:
            n: int = 0

        with pytest.raises(DefinitionError, match=r"M.note_failure: self.broken\(...\): 'notes' is not a"):

            class M(Desk[Bare, object]):
                a = State(initial=True)
                go = a.to(Desk.stopped)

                @a.handler
                async def run(self, data: Bare, step: Step) -> Fire:
                    return self.go()

    def test_a_handler_of_a_base_runs_in_each_machine(self) -> None:
        class Work(Machine[D], Generic[D], abstract=True):
            working = State(initial=True)
            end = State(final=True)
            go = working.to(end)

            @working.handler
            async def run(self, data: D, step: Step) -> Fire:
                return self.go()

        class One(Work[Claim]):
            pass

        (handler,) = definition(One).states["working"].handlers
        assert isinstance(handler.run.__self__, One)  # type: ignore[attr-defined]

    def test_a_runnable_machine_may_have_an_abstract_one_made_of_it(self) -> None:
        class Wider(Letters, abstract=True, calls=[second_look]):
            pass

        class Last(Wider):
            pass

        with pytest.raises(DefinitionError, match="Wider is abstract"):
            definition(Wider)
        assert set(definition(Last).calls) == {"first_look", "second_look"}


@record
class Question:
    """Ask a person a question."""

    words: str


@dataclass(frozen=True)
class Undocumented:
    words: str


@record
class Talk:
    n: int = 0

    @property
    def long(self) -> bool:
        """There is enough to talk about."""
        return self.n > 3


class Talking(Machine[Talk]):
    start = State(initial=True)
    end = State(final=True)

    said = start.to(end).on_choice(Question)
    """Not this: its receiver says it."""
    under = start.to(end).on_choice(Question)
    """Under the event,
    in two lines."""
    payload = start.to(end).on_choice(Question)
    own = start.to(end, when=Talk.long).on_choice(Undocumented)
    plain = start.to(end, when=Talk.long).on_signal(int)
    nothing = start.to(end).on_signal(str)
    failed = start.to(end).on_failure()

    @start.handler
    async def run(self, data: Talk, step: Step) -> Fire:
        raise NotImplementedError

    @said.received
    def say(self, data: Talk, question: Question) -> Accept:
        """What the receiver says."""
        return self.said()


class Common(Machine[D, X], Generic[D, X], abstract=True):
    """Ends for handlers that fail, models that give up and limits that are reached."""

    failed = State(final=True)
    used_up = State(final=True)
    gave_up = anywhere.to(failed).on_failure()
    drop = anywhere.to(failed)
    refuse = anywhere.to(failed).on_choice()
    spent = anywhere.to(used_up).on_budget()


class TestABaseOfMachinesThatOnlyWait:
    def test_what_it_has_for_a_handler_s_work_leads_nowhere_there(self) -> None:
        class Waits(Common[Claim, None]):
            idle = State(initial=True)
            done = State(final=True)
            close = idle.to(done).on_signal()

        plan = definition(Waits).states["idle"]
        assert [*plan.rows] == ["close"]
        assert [*plan.failures, *plan.choices, *plan.budgets] == []
        assert definition(Waits).states["used_up"].final

    def test_where_there_is_a_handler_a_limit_is_asked_for(self) -> None:
        with pytest.raises(DefinitionError, match=r"Works\.spent: no limit brings it: give Claim a field"):

            class Works(Common[Claim, None]):
                idle = State(initial=True)

                @idle.handler
                async def run(self, data: Claim, step: Step[None]) -> Fire:
                    return self.drop()

    def test_what_the_machine_declares_itself_must_come_to_something(self) -> None:
        with pytest.raises(DefinitionError, match=r"Waits\.broke: it is for a handler's work"):

            class Waits(Common[Claim, None]):
                idle = State(initial=True)
                done = State(final=True)
                close = idle.to(done).on_signal()
                broke = anywhere.to(done).on_failure()


class TestWhatAnEventIsFor:
    def test_the_nearest_words_count(self) -> None:
        docs = {name: event.doc for name, event in definition(Talking).events.items()}
        assert docs == {
            "said": "What the receiver says.",
            "under": "Under the event,\nin two lines.",
            "payload": "Ask a person a question.",
            "own": "There is enough to talk about.",
            "plain": "There is enough to talk about.",
            "nothing": "",
            "failed": "",
        }

    def test_a_subclass_has_its_base_s_words(self) -> None:
        class More(Talking):
            pass

        assert definition(More).events["under"].doc == "Under the event,\nin two lines."

    def test_a_class_without_source_has_the_others(self) -> None:
        code = (
            "class M(Machine[Talk]):\n    a = State(initial=True)\n    b = State(final=True)\n"
            "    go = a.to(b).on_signal(Question)\n    'Not read.'\n"
        )
        scope: dict[str, Any] = {**globals(), "__name__": "nowhere"}
        exec(code, scope)
        assert definition(scope["M"]).events["go"].doc == "Ask a person a question."
