"""What is refused when a machine class is created: each fault by name, each with its mend."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import new_class
from typing import Annotated, Any, Generic, TypeVar

import attrs
import pytest

from perdure.machines import (
    Absent,
    Accept,
    Append,
    Call,
    DefinitionError,
    Failure,
    Fire,
    Machine,
    Position,
    Retry,
    State,
    Step,
    anywhere,
    definition,
    effect,
    read,
    record,
    runtime_owned,
)

DAY = timedelta(days=1)


@record
class Data:
    n: int = 0
    log: Annotated[Sequence[str], Append()] = ()
    seq: int = runtime_owned(Position.seq)

    @property
    def big(self) -> bool:
        return self.n > 10


@record
class Other:
    @property
    def big(self) -> bool:
        return True


@record
class Payload:
    by: str


@read
async def look(call: Call) -> int:
    return 1


CASES: dict[str, tuple[Callable[[], object], str]] = {}


def refused(said: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def case(declare: Callable[[], object]) -> Callable[[], object]:
        CASES[declare.__name__] = (declare, said)
        return declare

    return case


T = TypeVar("T")


def any_value(value: object) -> Any:
    """Hides a value's type from the checkers, which would refuse it too."""
    return value


def made(name: str, **body: object) -> object:
    """A machine class, made where the checkers would refuse its text."""
    return new_class(name, (Machine[Data],), {}, lambda namespace: namespace.update(body))


@record
class Unstorable:
    lines: list[str]


class Elsewhere(Machine[Data]):
    here = State(initial=True)
    there = State(final=True)
    go = here.to(there)

    @here.handler
    async def run(self, data: Data, step: Step) -> Fire:
        return self.go()


@refused("M: no state is the initial one; mark one")
def no_initial_state() -> None:
    class M(Machine[Data]):
        a = State()
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: a and b are both initial")
def two_initial_states() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True, initial=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: nothing leads from a to lost, far; add a transition or take it out")
def unreachable_states() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        lost = State()
        far = State(final=True)
        go = a.to(b)
        on = lost.to(far).on_signal()

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.mid: a dead end; give it a transition, or mark it State\(final=True\)")
def a_dead_end() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        mid = State()
        b = State(final=True)
        go = a.to(mid)
        other = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.mid: a dead end")
def a_dead_end_with_a_handler() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        mid = State()
        go = a.to(mid)

        @a.handler
        @mid.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.mid: go_on is for a handler's work, .*give it one \(@mid.handler\)")
def a_waiting_state_that_nothing_wakes() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        mid = State()
        b = State(final=True)
        go = a.to(mid)
        go_on = mid.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.mid: failed is for a handler's work, and the state has no handler")
def a_waiting_state_that_cannot_fail() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        mid = State()
        b = State(final=True)
        go = a.to(mid)
        come = mid.to(b).on_signal()
        failed = mid.to(b).on_failure()

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.mid: its handler has no event to fire")
def a_handler_with_nothing_to_fire() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        mid = State()
        b = State(final=True)
        go = a.to(mid)
        come = mid.to(b).on_signal()

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

        @mid.handler
        async def stay(self, data: Data, step: Step) -> Fire:
            raise NotImplementedError


@refused("M.b: a final state runs nothing, but run is declared for it")
def a_final_state_with_a_handler() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        @b.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.b: a final state is left by nothing, but back leads out of it")
def a_final_state_that_is_left() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        back = b.to(a).on_signal()

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: b = c is one state under several names")
def one_state_of_two_names() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = c = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: go = went is one event under several names")
def one_event_of_two_names() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = went = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M._b: a state's name does not begin with an underscore")
def a_private_name() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        _b = State(final=True)
        go = a.to(_b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.go: from a it always leads to b, never to c: put the transition without a guard last")
def a_transition_behind_an_unguarded_one() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        c = State(final=True)
        go = a.to(b) | a.to(c, when=Data.big)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.go: from a it always leads to b, never to b")
def the_same_transition_twice() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b) | a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.narrow: wide takes a before it in every case")
def a_failure_behind_a_wider_one() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        wide = a.to(b).on_failure(OSError)
        narrow = a.to(b).on_failure(ConnectionError, FileNotFoundError)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.late: early takes a before it in every case")
def a_timeout_behind_an_earlier_one() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        late = a.to(b).after(2 * DAY)
        early = a.to(b).after(DAY)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.go: the state 'there' is not one of this machine")
def a_state_of_another_machine() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(Elsewhere.there)
        end = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.go: it leads from or to a state that the class does not hold")
def a_state_without_a_name() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(State())
        end = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.late: after\(\) takes a timedelta over zero")
def a_timeout_of_nothing() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        late = a.to(b).after(timedelta(0))

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.late: after\(\) takes a timedelta over zero and up to a thousand years")
def a_timeout_that_no_store_could_hold() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        late = a.to(b).after(timedelta.max)


@refused(r"M.go: to\(...\) takes a State of the machine, not 'b'")
def a_transition_to_no_state() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(any_value("b")).on_signal()


@refused(r"M.go: to\(...\) takes a State of the machine, not None")
def a_transition_from_anywhere_to_nothing() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        end = a.to(b).on_signal()
        go = anywhere.to(any_value(None)).on_cancel()


@refused(r"`\|` joins transitions, not .*: say what brings them behind the whole")
def transitions_joined_to_an_event_which_they_would_swallow() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State()
        c = State(final=True)
        go = a.to(b).on_signal()
        stop = a.to(c) | any_value(b.to(c).on_cancel())


@refused("@state.handler goes directly over a method of the machine, not over <staticmethod")
def a_handler_that_is_no_method() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @any_value(a.handler)  # type: ignore[untyped-decorator]
        @staticmethod
        async def run(data: Data, step: Step) -> Fire:
            raise AssertionError


@refused(r"M: calls= takes a list of declared reads and effects, not None")
def calls_that_are_none() -> None:
    class M(Machine[Data], calls=any_value(None)):
        a = State(initial=True)


@refused(r"M.go \(its payload\): \[\] cannot be stored: it is a value: name its type")
def a_payload_that_is_a_value() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b).on_signal(any_value([]))


@refused(r"M.failed: on_failure\(\) takes exception classes, not 'ValueError'")
def a_failure_that_is_no_error() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        failed = a.to(b).on_failure(any_value("ValueError"))

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.go: its guard is a property of another class than Data")
def a_guard_of_another_class() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, when=Other.big)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.go: its guard reads 'm', which Data has not")
def a_guard_that_names_no_field() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, when=lambda data: bool(data.n or data.m))

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.go: when= takes a derived property \(Data.ready\) or a pure function")
def a_guard_that_is_a_field() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, when=any_value(Data.n))

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.go: when= takes a derived property")
def a_guard_that_awaits() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, when=any_value(look.fn))

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.go: when= takes a derived property")
def a_guard_of_two_arguments() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, when=any_value(lambda data, more: True))

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.a: Retry\(attempts=\) takes a whole number from 1 on, not 0")
def no_attempts() -> None:
    class M(Machine[Data]):
        a = State(initial=True, retry=Retry(attempts=0))
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.a: Retry\(attempts=\) takes a whole number from 1 on, not nan")
def attempts_that_are_no_number() -> None:
    class M(Machine[Data]):
        a = State(initial=True, retry=Retry(attempts=any_value(float("nan"))))
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.a: Retry\(attempts=\) takes")
def a_flag_for_attempts() -> None:
    class M(Machine[Data]):
        a = State(initial=True, retry=Retry(attempts=True))
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.a: Retry\(delay=\) takes a timedelta from zero to a thousand years")
def a_negative_delay() -> None:
    class M(Machine[Data]):
        a = State(initial=True, retry=Retry(delay=-DAY))
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.a: Retry\(max_delay=\) takes")
def a_negative_longest_delay() -> None:
    class M(Machine[Data]):
        a = State(initial=True, retry=Retry(max_delay=-DAY))
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.a: Retry\(factor=\) takes a finite number from 1 on, not nan")
def a_factor_that_is_no_number() -> None:
    class M(Machine[Data]):
        a = State(initial=True, retry=Retry(factor=float("nan")))
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.a: Retry\(factor=\) takes")
def a_shrinking_factor() -> None:
    class M(Machine[Data]):
        a = State(initial=True, retry=Retry(factor=0.5))
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.a: deadline= takes a timedelta over zero")
def a_deadline_of_nothing() -> None:
    class M(Machine[Data]):
        a = State(initial=True, deadline=timedelta(0))
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.a: deadline= takes a timedelta over zero and up to a thousand years, not nan")
def a_deadline_that_is_no_duration() -> None:
    class M(Machine[Data]):
        a = State(initial=True, deadline=any_value(float("nan")))
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.mid: deadline= and interruptible= are about a handler, .*mid.to\(...\).after")
def a_deadline_without_a_handler() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        mid = State(deadline=DAY)
        b = State(final=True)
        go = a.to(mid)
        come = mid.to(b).on_signal()

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M.mid: deadline= and interruptible= are about a handler, .*mid.to\(...\).after")
def an_interruption_without_a_handler() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        mid = State(interruptible=True)
        b = State(final=True)
        go = a.to(mid)
        come = mid.to(b).on_signal()

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.run: it fires on, which does not leave a; it leaves mid")
def a_handler_that_fires_another_states_event() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        mid = State()
        b = State(final=True)
        go = a.to(mid)
        on = mid.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go() if data.big else self.on()

        @mid.handler
        async def end(self, data: Data, step: Step) -> Fire:
            return self.on()


@refused("M.run: come is a signal, which comes by itself; no handler fires it")
def a_handler_that_fires_a_signal() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        come = a.to(b).on_signal()

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            fired: Fire = any_value(self.come())
            return fired


@refused(r"M.run: self.goo\(...\) is no event of M; do you mean 'go'\?")
def a_misspelt_event() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            def named(self: Data) -> Any:
                return any_value(self).anything()  # another's `self` is not looked at

            named(data)
            fired: Fire = self.goo()  # type: ignore[attr-defined] # pyright: ignore
            return fired


@refused("M.b: retry= takes a Retry, as in Retry\\(attempts=3\\), not 3")
def a_retry_that_is_a_number() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True, retry=any_value(3))
        go = a.to(b)


@refused(r"M.run: self.go\(...\): 'm' is not a stored field; it has n, log, seq")
def an_update_that_names_no_field() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go(m=1)  # type: ignore[call-arg, unused-ignore]


@refused(r"M.run: self.go\(...\): 'big' is not a stored field")
def an_update_of_a_derived_field() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go(big=True)  # type: ignore[call-arg, unused-ignore]


@refused(r"M.run: self.go\(...\): 'seq' is owned by the runtime")
def an_update_of_an_owned_field() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go(seq=1)  # type: ignore[call-arg, unused-ignore]


@refused(r"M.run: self.go\(...\): updates are given by field name")
def an_update_by_position() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go(any_value(1))  # type: ignore[call-arg, unused-ignore]


@refused("M.run: a handler is `async def run")
def a_handler_that_is_not_async() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler  # type: ignore[type-var]
        def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.run: a handler is `async def run")
def a_handler_of_other_parameters() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler  # type: ignore[type-var]
        async def run(self, data: Data) -> Fire:
            return self.go()


@refused("M.run: it declares Other, but is given Data")
def a_handler_of_other_data() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Other, step: Step) -> Fire:
            return self.go()


@refused("M.a: the function hides the state that it is declared for; give the function a name")
def a_handler_that_hides_its_state() -> None:
    a = State(initial=True)
    b = State(final=True)

    async def run(self: Any, data: Data, step: Step) -> Fire:
        raise NotImplementedError

    made("M", a=a.handler(run), b=b, go=a.to(b))


@refused("M.run: the state 'there' that it is declared for is not one of this machine")
def a_handler_of_another_machines_state() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        @Elsewhere.there.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M.come: the function hides the event")
def a_receiver_that_hides_its_event() -> None:
    a = State(initial=True)
    b = State(final=True)
    come = a.to(b).on_signal(Payload)

    def came(self: Any, data: Data, payload: Payload) -> Accept:
        raise NotImplementedError

    made("M", a=a, b=b, come=come.received(came))


@refused(r"M.came: it receives come, but returns leave; return self.come\(...\)")
def a_receiver_of_the_wrong_event() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        come = a.to(b).on_signal(Payload)
        leave = a.to(b).on_signal(Payload)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

        @come.received
        def came(self, data: Data, payload: Payload) -> Accept:
            return self.leave()


@refused("M.came: it receives come, but returns go")
def a_receiver_that_fires() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        come = a.to(b).on_signal(Payload)
        leave = a.to(b).on_signal(Payload)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

        @come.received
        def came(self, data: Data, payload: Payload) -> Accept:
            accepted: Accept = any_value(self.go())
            return accepted


@refused("M.came: it declares Other, but is given Payload")
def a_receiver_of_another_payload() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        come = a.to(b).on_signal(Payload)
        leave = a.to(b).on_signal(Payload)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

        @come.received  # type: ignore[arg-type]
        def came(self, data: Data, payload: Other) -> Accept:
            return self.come()


@refused(r"M.came: self.come\(...\): 'm' is not a stored field")
def a_receiver_whose_updates_name_no_field() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        come = a.to(b).on_signal(Payload)
        leave = a.to(b).on_signal(Payload)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

        @come.received
        def came(self, data: Data, payload: Payload) -> Accept:
            return self.come(m=payload.by)  # pyright: ignore[reportCallIssue]


@refused("M.came: a receiver is pure: `def came")
def a_receiver_that_awaits() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        come = a.to(b).on_signal(Payload)
        leave = a.to(b).on_signal(Payload)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

        @come.received  # type: ignore[arg-type]
        async def came(self, data: Data, payload: Payload) -> Accept:
            return self.come()


@refused("M.come: one and two both receive it; keep one receiver")
def two_receivers() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        come = a.to(b).on_signal(Payload)
        leave = a.to(b).on_signal(Payload)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

        @come.received
        def one(self, data: Data, payload: Payload) -> Accept:
            return self.come()

        @come.received
        def two(self, data: Data, payload: Payload) -> Accept:
            return self.come()


@refused(r"M.come \(its payload\)")
def a_payload_that_cannot_be_stored() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        come = a.to(b).on_signal(object)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"M: it has no data type; say class M\(Machine\[YourRecord\]\)")
def no_data_type() -> None:
    class M(
        Machine  # type: ignore[type-arg]
    ):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: its data ~T is not a class")
def an_open_data_type() -> None:
    class M(Machine[T], Generic[T]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: Unstorable.lines")
def data_that_cannot_be_stored() -> None:
    class M(Machine[Unstorable]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: version= takes a whole number from 1 on, not 0")
def a_version_below_one() -> None:
    class M(Machine[Data], version=0):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: name= takes the name")
def an_empty_name() -> None:
    class M(Machine[Data], name=""):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: calls= lists fn, which is not declared; put @read or @effect over it")
def a_call_that_is_not_declared() -> None:
    async def fn(call: Call) -> int:
        return 1

    class M(Machine[Data], calls=[any_value(fn)]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: calls= lists fn with a key; list the effect itself")
def a_call_with_a_key() -> None:
    @effect
    async def fn(call: Call) -> int:
        return 1

    class M(Machine[Data], calls=[fn.keyed("a")]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: find is a lookup; list its effect, fn")
def a_lookup_as_a_call() -> None:
    @effect
    async def fn(call: Call) -> int:
        return 1

    @fn.lookup
    async def find(call: Call) -> Absent:
        return Absent()

    class M(Machine[Data], calls=[find]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused(r"read fn\(line\)")
def a_call_that_cannot_be_stored() -> None:
    @read
    async def fn(call: Call, line: object) -> int:
        return 1

    class M(Machine[Data], calls=[fn]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: two of its calls are stored as 'look' .*rename one")
def two_calls_of_one_name() -> None:
    @read(renamed="look")
    async def another(call: Call) -> int:
        return 1

    class M(Machine[Data], calls=[look, another]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()


@refused("M: M has a constructor, but a machine holds nothing of its own")
def a_constructor() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

        def __init__(self) -> None:
            self.count = 0


@refused("M.there: it hides the state 'there' of Elsewhere")
def a_base_state_hidden() -> None:
    class M(Elsewhere):
        there = any_value(None)


@refused("M.go: its state 'there' is not the one that the class now has under this name")
def a_base_state_replaced() -> None:
    class M(Elsewhere):
        there = State(final=True)


@pytest.mark.parametrize("case", CASES)
def test_a_faulty_machine_is_refused_by_name(case: str) -> None:
    declare, said = CASES[case]
    with pytest.raises(DefinitionError, match=said):
        declare()


def test_an_overridden_property_is_the_guard() -> None:
    @record
    class Late(Data):
        @property
        def big(self) -> bool:
            return self.n > 100

    class M(Machine[Late]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, when=Data.big)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

    (row,) = definition(M).states["a"].rows["go"]
    assert row.guard is not None
    assert (row.guard_name, row.guard(Late(n=50)), row.guard(Late(n=200))) == ("big", False, True)


def test_a_guard_may_read_fields_that_are_no_class_attributes() -> None:
    @attrs.frozen(kw_only=True, slots=False)
    class Loose:
        n: int

    class M(Machine[Loose]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, when=lambda data: data.n > 1)

        @a.handler
        async def run(self, data: Loose, step: Step) -> Fire:
            return self.go()

    assert definition(M).states["a"].rows["go"][0].guard_name == "<lambda>"


def test_guards_and_narrower_failures_keep_their_turn() -> None:
    class M(Machine[Data]):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        gone = a.to(b).on_failure(FileNotFoundError)
        broken = a.to(b, when=Data.big).on_failure()
        other = a.to(b).on_failure(OSError)
        early = a.to(b, when=Data.big).after(DAY)
        late = a.to(b, when=Data.big).after(2 * DAY)
        late_too = a.to(b).after(2 * DAY)

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

        @gone.received
        @other.received
        def failed(self, data: Data, failure: Failure) -> Accept:
            return self.gone(log=[failure.message]) if data.big else self.other(n=failure.attempts)

    state = definition(M).states["a"]
    assert [failure.event for failure in state.failures] == ["gone", "broken", "other"]
    assert [timeout.event for timeout in state.timeouts] == ["early", "late", "late_too"]
    receiver = definition(M).events["other"].receiver
    assert receiver is not None
    failure = Failure(error="OSError", message="full", attempts=2)
    assert receiver(Data(), failure) == Accept(event="other", updates={"n": 2})


def test_states_do_not_forestall_each_other() -> None:
    class M(Machine[Data]):
        a = State(initial=True, retry=Retry(delay=timedelta(0), max_delay=timedelta(0), factor=1))
        b = State()
        c = State(final=True)
        go = a.to(b)
        gone = b.to(c)
        failed = a.to(c).on_failure()
        failed_too = b.to(c).on_failure()

        @a.handler
        async def run(self, data: Data, step: Step) -> Fire:
            return self.go()

        @b.handler
        async def end(self, data: Data, step: Step) -> Fire:
            return self.gone()

    states = definition(M).states
    assert [[failure.event for failure in state.failures] for state in states.values()] == [
        ["failed"],
        ["failed_too"],
        [],
    ]


def test_code_without_source_is_left_to_the_commit() -> None:
    scope: dict[str, Any] = {"Machine": Machine, "State": State, "Data": Data}
    exec(
        "class M(Machine[Data]):\n"
        "    a = State(initial=True)\n"
        "    b = State(final=True)\n"
        "    go = a.to(b)\n"
        "    @a.handler\n"
        "    async def run(self, data, step):\n"
        "        return self.go(m=1)\n",
        scope,
    )
    assert definition(scope["M"]).initial == "a"
