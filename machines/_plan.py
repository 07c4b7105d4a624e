"""A machine as the engine reads it: compiled once, at class creation."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import attrs

from ._calls import Declared
from ._codec import Codec
from ._data import DataPlan
from ._errors import DefinitionError
from ._states import Accept, Fire, Kind, Retry
from ._versions import Upcasts

if TYPE_CHECKING:
    from ._machine import Machine


@attrs.frozen(kw_only=True)
class Row:
    """One row of the table. ``guard`` is given the merged data; ``guard_name`` is what people call it;
    ``scope`` is the dotted name of the state that declares the row ("" for ``anywhere``): ``source``, or one
    around it."""

    event: str
    source: str
    dest: str
    scope: str
    guard: Callable[[Any], bool] | None
    guard_name: str | None


@attrs.frozen(kw_only=True)
class HandlerPlan:
    """A handler, bound to its machine: ``run(data, step)``. ``lane`` is "main" for a state's only handler."""

    lane: str
    run: Callable[[Any, Any], Coroutine[Any, Any, Fire]]


@attrs.frozen(kw_only=True)
class TimeoutPlan:
    """A timeout event of a state. ``scope`` is the dotted name of the state that declares it ("" for
    ``anywhere``, which the thread enters when it starts).

    ``kind`` "after": due so long after the scope was entered; a transition between states in the scope leaves
    it running, unless the scope itself or one around it declares that transition. "at": due at a moment,
    judged at each transition. ``given`` is the delay, or what gives it (or the moment) for the data, and
    ``label`` what people call that: "1 h 30 min", or the property's name.
    """

    event: str
    scope: str
    kind: Literal["after", "at"]
    given: timedelta | Callable[[Any], Any]
    label: str


@attrs.frozen(kw_only=True)
class FailurePlan:
    """A failure event of a state, and the errors that it takes (none named: any)."""

    event: str
    errors: tuple[type[BaseException], ...]


@attrs.frozen(kw_only=True)
class StatePlan:
    """A state: its handlers, its rows by event (candidates in order), and the events that can come to it.

    ``name`` is dotted where the state stands in another one. Where several events of a kind can come, those
    that the state itself declares stand before those of the states around it.
    """

    name: str
    final: bool
    handlers: tuple[HandlerPlan, ...]
    retry: Retry
    deadline: timedelta | None
    interruptible: bool
    rows: Mapping[str, tuple[Row, ...]]
    signals: tuple[str, ...]
    timeouts: tuple[TimeoutPlan, ...]
    failures: tuple[FailurePlan, ...]
    cancels: tuple[str, ...]
    budgets: tuple[str, ...]
    choices: tuple[str, ...]

    @property
    def waiting(self) -> bool:
        """Nothing runs here: the thread waits for an event."""
        return not self.handlers and not self.final


@attrs.frozen(kw_only=True)
class EventPlan:
    """An event: its kind, the codec of its payload (None: it has none), its receiver ``(data, payload)``."""

    name: str
    kind: Kind
    payload: Codec[Any] | None
    receiver: Callable[[Any, Any], Accept] | None
    doc: str


@attrs.frozen(kw_only=True)
class Definition:
    """A machine, whole. ``hash`` changes with states, rows, events with the types of their payloads, the
    names and types of fields, and what is declared of older versions;
    ``states`` holds those that a thread can be in, ``composites`` those around them, each with the state that
    entering it leads to; ``calls`` finds a declared call by its name and by every
    name that it had before; ``budget`` names the data field that holds the thread's limits;
    ``at_once``: how many of its threads run at once over all workers (None: as many as there are).

    ``oldest`` is the oldest version whose records it reads, ``state_names`` and ``event_names`` have today's
    name of each that had another, and ``upcasts`` brings older values to today's."""

    name: str
    version: int
    hash: str
    machine: type[Machine[Any, Any]]
    data: DataPlan[Any]
    initial: str
    states: Mapping[str, StatePlan]
    composites: Mapping[str, str]
    events: Mapping[str, EventPlan]
    calls: Mapping[str, Declared[Any, ..., Any]]
    budget: str | None
    oldest: int
    state_names: Mapping[str, str]
    event_names: Mapping[str, str]
    removed_events: frozenset[str]
    removed_calls: frozenset[str]
    upcasts: Upcasts
    at_once: int | None = None

    def state_of(self, stored: str) -> StatePlan | None:
        """The state that a record names, under whichever of its names; None: there is none."""
        return self.states.get(self.state_names.get(stored, stored))

    def event_of(self, stored: str) -> EventPlan | None:
        """The event that a record names, under whichever of its names; None: there is none any more."""
        return self.events.get(self.event_names.get(stored, stored))


def is_in(state: str, other: str) -> bool:
    """Whether a state, by its dotted name, is the other one or stands in it."""
    return state == other or state.startswith(f"{other}.")


def definition(machine: type[Machine[Any, Any]], /) -> Definition:
    """The compiled definition of a machine class. Raises ``DefinitionError`` for ``Machine`` itself."""
    found = vars(machine).get("_definition")
    if not isinstance(found, Definition):
        if "_calls" in vars(machine):
            raise DefinitionError(
                f"{machine.__name__} is abstract: subclass it without abstract=True, and use the subclass"
            )
        raise DefinitionError(
            f"{machine.__name__} is not a machine: subclass Machine[Data] and give it states"
        )
    return found
