"""Timeouts whose time the data tells: what a machine knows of them, and what is refused at class creation."""

from collections.abc import Callable
from datetime import datetime, timedelta
from types import new_class
from typing import Any

import pytest

from perdure.machines import DefinitionError, Machine, State, anywhere, definition, diagram, record

DAY = timedelta(days=1)


@record
class Order:
    remind_at: datetime | None = None
    patience: timedelta = DAY
    paid: bool = False

    @property
    def due(self) -> timedelta | None:
        """How long is waited."""
        return None if self.paid else self.patience

    @property
    def moment(self) -> datetime | None:
        return self.remind_at

    @property
    def title(self) -> str:
        return "order"

    @property
    def unsaid(self):  # type: ignore[no-untyped-def]
        return None


@record
class Hasty(Order):
    @property
    def due(self) -> timedelta:
        """A subclass says it otherwise."""
        return timedelta(hours=1)


class Other:
    @property
    def due(self) -> timedelta:
        return DAY


class Desk(Machine[Order], version=1):
    """Waits as long as the order says."""

    asked = State(initial=True)
    reminded = State()
    gone = State(final=True)

    remind = asked.to(reminded).at(Order.moment)
    lapse = asked.to(gone).after(Order.due)
    forget = anywhere.to(gone).after(lambda order: 2 * order.patience)


class HastyDesk(Machine[Hasty], version=1):
    asked = State(initial=True)
    gone = State(final=True)
    lapse = asked.to(gone).after(Order.due)


def test_a_state_knows_by_what_its_timeouts_are_judged() -> None:
    asked = definition(Desk).states["asked"]
    order = Order(patience=2 * DAY)
    assert [(each.event, each.scope, each.kind, each.label) for each in asked.timeouts] == [
        ("remind", "asked", "at", "moment"),
        ("lapse", "asked", "after", "due"),
        ("forget", "", "after", "<lambda>"),
    ]
    given: list[Any] = [each.given for each in asked.timeouts]
    assert [each(order) for each in given] == [None, 2 * DAY, 4 * DAY]


def test_a_property_is_judged_as_the_data_has_it() -> None:
    (lapse,) = definition(HastyDesk).states["asked"].timeouts
    assert not isinstance(lapse.given, timedelta)
    assert lapse.given(Hasty()) == timedelta(hours=1)


def test_a_diagram_says_what_tells_the_time() -> None:
    drawn = diagram(Desk)
    assert "asked --> reminded: remind (at moment)" in drawn
    assert "asked --> gone: lapse (after due)" in drawn
    assert "forget (after lambda)" in drawn


def made(declare: Callable[[Any], Any]) -> type[Machine[Any, Any]]:
    asked, gone = State(initial=True), State(final=True)
    body = {"asked": asked, "gone": gone, "late": declare(asked.to(gone))}
    return new_class("M", (Machine[Order],), {"version": 1}, lambda names: names.update(body))


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda row: row.at(datetime(2027, 1, 1)), r"M.late: at\(\) takes a derived property \(Order.due\)"),
        (lambda row: row.at(None), r"M.late: at\(\) takes a derived property"),
        (lambda row: row.at(DAY), r"M.late: at\(\) takes a derived property"),
        (lambda row: row.at(Other.due), "M.late: its moment is a property of another class than Order"),
        (lambda row: row.at(Order.due), r"M.late: at\(\) takes what gives a datetime, or None .* due"),
        (lambda row: row.at(lambda order: order.remind_it), "M.late: its moment reads 'remind_it'"),
        (lambda row: row.after(Other.due), "M.late: its delay is a property of another class than Order"),
        (lambda row: row.after(Order.title), r"M.late: after\(\) takes what gives a timedelta, .* title"),
        (lambda row: row.after(Order.moment), r"M.late: after\(\) takes what gives a timedelta"),
        (lambda row: row.after(lambda order: order.patienc), "M.late: its delay reads 'patienc', .*it has"),
        (lambda row: row.after(float("nan")), r"M.late: after\(\) takes a timedelta .*not nan"),
        (lambda row: row.after(timedelta(days=-1)), r"M.late: after\(\) takes a timedelta over zero"),
        (lambda row: row.after(lambda: DAY), r"M.late: after\(\) takes a derived property"),
    ],
)
def test_what_can_give_no_time_is_refused(declare: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        made(declare)


def test_what_only_the_data_can_tell_is_left_to_it() -> None:
    assert made(lambda row: row.after(Order.unsaid))
    assert made(lambda row: row.at(lambda order: order.remind_at))


def test_of_two_that_one_property_times_the_second_never_comes() -> None:
    with pytest.raises(DefinitionError, match=r"Twice.second: first takes asked before it in every case"):

        class Twice(Machine[Order], version=1):
            asked = State(initial=True)
            gone = State(final=True)
            first = asked.to(gone).at(Order.moment)
            second = asked.to(gone).at(Order.moment)


def test_nobody_knows_which_of_two_times_of_the_data_comes_first() -> None:
    class Either(Machine[Order], version=1):
        asked = State(initial=True)
        gone = State(final=True)
        first = asked.to(gone).after(Order.due)
        second = asked.to(gone).after(DAY)
        third = asked.to(gone).at(Order.moment)

    assert len(definition(Either).states["asked"].timeouts) == 3
