"""States, events and transitions as they stand in the body of a machine class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    cast,
    overload,
)

import attrs
from typing_extensions import TypeVar

from ._errors import BadUpdate, DefinitionError
from ._record import record
from ._signals import Signal

if TYPE_CHECKING:
    from ._machine import Machine

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")
M = TypeVar("M")
D_co = TypeVar("D_co", covariant=True)
M_co = TypeVar("M_co", covariant=True)
D_contra = TypeVar("D_contra", contravariant=True)

Async: TypeAlias = Coroutine[Any, Any, R]
Guard: TypeAlias = Callable[[Any], bool] | property
Delay: TypeAlias = timedelta | Callable[[Any], timedelta | None] | property
Moment: TypeAlias = Callable[[Any], datetime | None] | property
Kind: TypeAlias = Literal["fire", "choice", "signal", "timeout", "failure", "cancel", "budget"]
H = TypeVar("H", bound=Callable[[Any, Any, Any], Coroutine[Any, Any, "Fire"]])

HANDLES = "__perdure_handles__"
RECEIVES = "__perdure_receives__"


class _Replaceable(Protocol[P]):
    """What can be copied with changes. A checker that synthesises ``__replace__`` types updates from it."""

    def __replace__(self, *args: P.args, **kwargs: P.kwargs) -> object: ...


class _Holds(Protocol[D_co]):
    """Any machine, seen by its data alone (``Machine`` itself is invariant in it)."""

    def _data(self) -> D_co: ...


class Of(Protocol[M_co, D_contra]):
    """A machine class, seen as the pair of machine and data: what ``Runtime.start`` takes."""

    def _machine(self) -> type[M_co]: ...
    def _holds(self, data: D_contra, /) -> None: ...


@attrs.frozen(kw_only=True)
class Retry:
    """How often a state's handler is tried, and how long the runtime waits between two tries.

    ``attempts`` counts the first one too. The wait after the first failure is ``delay``, then ``factor``
    times the wait before it, and never more than ``max_delay``.
    """

    attempts: int = 3
    delay: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    max_delay: timedelta = timedelta(minutes=1)

    def wait_after(self, failed: int, /) -> timedelta:
        """The wait after the ``failed``-th failed attempt (counted from 1)."""
        try:
            seconds = self.delay.total_seconds() * float(self.factor) ** (failed - 1)
        except OverflowError:
            return self.max_delay if self.delay else self.delay
        return self.max_delay if seconds >= self.max_delay.total_seconds() else timedelta(seconds=seconds)


@attrs.frozen(kw_only=True)
class Fire:
    """What a handler returns: the event to fire, and the field updates that go with it."""

    event: str
    updates: Mapping[str, object]

    def also(self, **updates: object) -> Fire:
        """The same event with more updates. ``BadUpdate`` where a field has one already."""
        for name in updates.keys() & self.updates.keys():
            raise BadUpdate(f"{self.event}: {name!r} is updated already; leave it to whoever did that")
        return attrs.evolve(self, updates={**self.updates, **updates})


@attrs.frozen(kw_only=True)
class Accept:
    """What a receiver returns: the incoming event taken in, and the updates that fold it into the data."""

    event: str
    updates: Mapping[str, object]


@record
class Failure:
    """Why a visit failed: what the receiver of an ``on_failure`` event is given."""

    error: str
    message: str
    attempts: int


@record
class Cancellation:
    """Who cancelled the thread, and why: what the receiver of an ``on_cancel`` event is given."""

    by: str
    reason: str


@record
class Spent:
    """The limit of the budget that is reached (``limit`` names it), what it allowed and what is used: what
    the receiver of an ``on_budget`` event is given."""

    limit: str
    allowed: float
    used: float


@attrs.frozen
class Fires(Generic[P]):
    """An event bound to its machine; calling it with updates makes the ``Fire`` that a handler returns."""

    event: str

    def __call__(self, /, *args: P.args, **updates: P.kwargs) -> Fire:
        _refuse_positional(self.event, args)
        return Fire(event=self.event, updates=updates)


@attrs.frozen
class Accepts(Generic[P]):
    """An incoming event bound to its machine; calling it with updates makes the ``Accept`` of a receiver."""

    event: str

    def __call__(self, /, *args: P.args, **updates: P.kwargs) -> Accept:
        _refuse_positional(self.event, args)
        return Accept(event=self.event, updates=updates)


def _refuse_positional(event: str, args: tuple[object, ...]) -> None:
    if args:
        raise BadUpdate(
            f"{event}: {args[0]!r} is given by position; give updates by field name, {event}(field=...)"
        )


class _Named:
    """Remembers every name under which a class body binds it, so that the checks can refuse a second one."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()

    def __set_name__(self, owner: type, name: str) -> None:
        if name not in self.names:
            self.names = (*self.names, name)

    @property
    def name(self) -> str:
        """The attribute's name in its machine; empty while it has none."""
        return self.names[0] if self.names else ""


class State(_Named):
    """A state of a machine: a class attribute, which gives it its name.

    ``parent``: the state that this one stands in, which makes that one a composite: what leaves it leaves
    each state in it, unless that state has a transition of its own for the event. A thread is never in a
    composite itself: entering it enters its initial child. ``initial``: threads start here, and a parent is
    entered here (exactly one of the outermost states, and one of each composite's). ``final``: threads end
    here. ``retry``: how often the handler is tried. ``deadline``: bounds one attempt. ``interruptible``: a
    signal or timeout need not wait for the handler. A state without a handler is one where the thread waits
    for an event. ``renamed``: names under which older records hold it, or a state that it takes the place of;
    dotted where that one stood in another, and of a composite for all states in it.
    """

    def __init__(
        self,
        *,
        parent: State | None = None,
        initial: bool = False,
        final: bool = False,
        retry: Retry | None = None,
        deadline: timedelta | None = None,
        interruptible: bool = False,
        renamed: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if parent is not None and not isinstance(parent, State):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"State(parent=) takes the State that this one stands in, not {parent!r}")
        self.parent = parent
        self.initial = initial
        self.final = final
        self.retry = retry
        self.deadline = deadline
        self.interruptible = interruptible
        self.renamed = renamed

    @property
    def dotted(self) -> str:
        """Its name after those of the states around it, as the store and people know it."""
        return self.name if self.parent is None else f"{self.parent.dotted}.{self.name}"

    def to(self, dest: State, *, when: Guard | None = None) -> Transition:
        """A transition from here to ``dest``, taken where the guard ``when`` (a derived property of the data,
        or a pure function of it) is true on the merged data."""
        return Transition((Arrow(source=self, dest=dest, guard=when),))

    def handler(self, fn: H, /) -> H:
        """Declare the method that does this state's work. Several of them are branches, run side by side."""
        return _mark(fn, HANDLES, self)


class Anywhere:
    """Every state of a machine that is not final: the type of ``anywhere``."""

    def to(self, dest: State, *, when: Guard | None = None) -> Transition:
        """A transition to ``dest`` from every state that is not final, behind the state's own and its
        parents' for the same event. ``when``: its guard, as in ``State.to``."""
        return Transition((Arrow(source=None, dest=dest, guard=when),))


anywhere: Final = Anywhere()
"""Stands for every state of a machine that is not final: ``failed = anywhere.to(broken).on_failure()``."""


@attrs.frozen(kw_only=True)
class Arrow:
    """One declared transition, before names are known. Without ``source`` it leads from anywhere."""

    source: State | None
    dest: State
    guard: Guard | None


class Event(_Named):
    """What moves a thread along one of its arrows; the class attribute's name is the event's."""

    kind: ClassVar[Kind]
    payload: type[Any] | None = None

    def __init__(self, arrows: Sequence[Arrow]) -> None:
        super().__init__()
        self.arrows = tuple(arrows)
        self.old_names: tuple[str, ...] = ()

    def renamed(self, *names: str) -> Self:
        """The same event, which older records hold under these names. It stands behind all else that is said
        of the event: ``review.to(done).on_signal(Approval).renamed("accept")``."""
        self.old_names = names
        return self


class Transition(Event):
    """An event that a handler fires; ``|`` joins several sources to one event."""

    kind = "fire"

    def __or__(self, other: Transition, /) -> Transition:
        # Anything else has arrows too, and joined to them would lose what brings it.
        if not isinstance(other, Transition):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"`|` joins transitions, not {other!r}: say what brings them behind the whole, as in "
                "(a.to(c) | b.to(c)).on_signal()"
            )
        return Transition(self._unnamed() + other._unnamed())

    def _unnamed(self) -> tuple[Arrow, ...]:
        """The arrows, for another event that would not know this one's older names."""
        if self.old_names:
            raise DefinitionError(
                f"renamed{self.old_names!r} stands behind all else that is said of an event, as in "
                "a.to(b).on_signal().renamed('old')"
            )
        return self.arrows

    @overload
    def on_signal(self, /) -> OnSignal[None]: ...
    @overload
    def on_signal(self, payload: type[T], /) -> OnSignal[T]: ...
    def on_signal(self, payload: type[Any] | None = None, /) -> OnSignal[Any]:
        """The same transition, moved from outside by a signal with a payload of this type (or none)."""
        return OnSignal(self._unnamed(), payload)

    def after(self, delay: Delay, /) -> After:
        """The same transition, moved by the clock ``delay`` after the source state was entered. From a
        composite (or from ``anywhere``) it counts on while the thread moves between the states in it.

        ``delay``: a timedelta, or what gives one: a derived property of the data, or a pure function of it,
        judged on the data with which the state is entered. Where it gives None there is no timer, until a
        transition in a composite finds that it gives one. What raises, is negative, or leads past the year
        9999 parks the thread; a start is refused."""
        return After(self._unnamed(), delay)

    def at(self, moment: Moment, /) -> At:
        """The same transition, moved by the clock at a moment that the data tells: ``moment`` is a derived
        property of it, or a pure function, and gives an aware datetime, or None for no timer.

        It is judged anew at each transition, so that a moment that moves takes its timer along; one that is
        over is due at once. The moment that brought the event last does not bring it again. What raises, has
        no zone, or is past the year 9999 parks the thread; a start is refused."""
        return At(self._unnamed(), moment)

    def on_failure(self, *errors: type[BaseException]) -> OnFailure:
        """The same transition, taken when the attempts of the source state are used up and the last one
        raised one of ``errors`` (any error where none is named)."""
        return OnFailure(self._unnamed(), errors)

    @overload
    def on_choice(self, /) -> OnChoice[None]: ...
    @overload
    def on_choice(self, payload: type[T], /) -> OnChoice[T]: ...
    def on_choice(self, payload: type[Any] | None = None, /) -> OnChoice[Any]:
        """The same transition, one that a model may propose, with arguments of this type (or none): it is
        among ``step.choices()``, and ``step.decide`` makes the ``Fire`` of it that a handler returns."""
        return OnChoice(self._unnamed(), payload)

    def on_cancel(self) -> OnCancel:
        """The same transition, taken when the thread is cancelled in the source state."""
        return OnCancel(self._unnamed(), Cancellation)

    def on_budget(self) -> OnBudget:
        """The same transition, taken in place of the source state's handler when a limit of the data's
        budget is reached."""
        return OnBudget(self._unnamed(), Spent)

    @overload
    def __get__(self, instance: None, owner: type[Any], /) -> Self: ...
    @overload
    def __get__(self, instance: _Holds[_Replaceable[P]], owner: type[Any], /) -> Fires[P]: ...
    @overload
    def __get__(self, instance: Machine[Any, Any], owner: type[Any], /) -> Fires[...]: ...
    def __get__(self, instance: object, owner: type[Any], /) -> Self | Fires[...]:
        return self if instance is None else Fires(self.name)


class Incoming(Event, Generic[T]):
    """An event that is not fired by a handler, and that may have a receiver for what it brings."""

    def __init__(self, arrows: Sequence[Arrow], payload: type[T] | None) -> None:
        super().__init__(arrows)
        self.payload: type[Any] | None = payload

    def received(self, fn: Callable[[M, D, T], Accept], /) -> Callable[[M, D, T], Accept]:
        """Declare the receiver: a pure method that folds the payload into the data, inside the commit."""
        return _mark(fn, RECEIVES, self)


class OnSignal(Incoming[T]):
    """An event that a signal brings."""

    kind = "signal"

    @overload
    def __get__(self, instance: None, owner: type[M], /) -> Signal[M, T]: ...
    @overload
    def __get__(self, instance: _Holds[_Replaceable[P]], owner: type[Any], /) -> Accepts[P]: ...
    @overload
    def __get__(self, instance: Machine[Any, Any], owner: type[Any], /) -> Accepts[...]: ...
    def __get__(self, instance: object, owner: type[Any], /) -> Signal[Any, T] | Accepts[...]:
        return Signal[Any, T](machine=owner, name=self.name) if instance is None else Accepts(self.name)


class Taken(Incoming[T]):
    """An incoming event that its machine's class shows as it is: nobody outside addresses it."""

    @overload
    def __get__(self, instance: None, owner: type[Any], /) -> Self: ...
    @overload
    def __get__(self, instance: _Holds[_Replaceable[P]], owner: type[Any], /) -> Accepts[P]: ...
    @overload
    def __get__(self, instance: Machine[Any, Any], owner: type[Any], /) -> Accepts[...]: ...
    def __get__(self, instance: object, owner: type[Any], /) -> Self | Accepts[...]:
        return self if instance is None else Accepts(self.name)


class OnChoice(Taken[T]):
    """An event that a model may propose."""

    kind = "choice"


class OnFailure(Taken[Failure]):
    """An event that the failure of a visit brings."""

    kind = "failure"

    def __init__(self, arrows: Sequence[Arrow], errors: Sequence[type[BaseException]]) -> None:
        super().__init__(arrows, Failure)
        self.errors = tuple(errors)


class OnCancel(Taken[Cancellation]):
    """An event that the cancelling of a thread brings."""

    kind = "cancel"


class OnBudget(Taken[Spent]):
    """An event that a limit of the budget brings."""

    kind = "budget"


class After(Event):
    """An event that the clock brings; nothing calls it, and it has no payload."""

    kind = "timeout"

    def __init__(self, arrows: Sequence[Arrow], delay: Delay) -> None:
        super().__init__(arrows)
        self.delay = delay


class At(Event):
    """An event that the clock brings at a moment of the data's; as ``After`` otherwise."""

    kind = "timeout"

    def __init__(self, arrows: Sequence[Arrow], moment: Moment) -> None:
        super().__init__(arrows)
        self.moment = moment


def _mark(fn: H2, mark: str, what: State | Event) -> H2:
    # The function itself stays what it is, so that a subclass may override it like any other method.
    if not inspect.isfunction(cast("object", fn)):
        way = "@state.handler" if mark == HANDLES else "@event.received"
        raise DefinitionError(f"{way} goes directly over a method of the machine, not over {fn!r}")
    setattr(fn, mark, (*getattr(fn, mark, ()), what))
    return fn


H2 = TypeVar("H2", bound=Callable[..., Any])
