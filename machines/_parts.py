"""What a machine class declares, found in its body and in its bases."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import attrs

from ._errors import DefinitionError
from ._states import HANDLES, RECEIVES, Event, Incoming, State
from ._versions import UPCASTS, UpcastMark

if TYPE_CHECKING:
    from ._machine import Machine

Method = Callable[..., Any]


def _leaves(parts: Parts) -> Mapping[str, State]:
    parents = {state.parent for state in parts.states.values()}
    return {state.dotted: state for state in parts.states.values() if state not in parents}


@attrs.frozen(kw_only=True)
class Parts:
    """A machine's declarations by name, a subclass's over its bases', before anything is checked or compiled.

    ``handlers``, ``receivers`` and ``upcasts`` hold what each marked method was declared for; ``lineage`` is
    the class and its bases, the outermost base first.
    """

    label: str
    machine: type[Machine[Any, Any]]
    lineage: tuple[type[Any], ...]
    data: Any
    states: Mapping[str, State]
    events: Mapping[str, Event]
    handlers: Mapping[str, tuple[State, ...]]
    receivers: Mapping[str, tuple[Incoming[Any], ...]]
    upcasts: Mapping[str, tuple[UpcastMark, ...]]
    leaves: Mapping[str, State] = attrs.field(init=False, default=attrs.Factory(_leaves, takes_self=True))
    """The states that a thread can be in, by their dotted names: those that hold no others."""

    @property
    def data_class(self) -> type[Any]:
        """The data's class, also where it is a generic one with arguments."""
        found: type[Any] = get_origin(self.data) or self.data
        return found

    def state_name(self, state: State) -> str | None:
        return state.name if self.states.get(state.name) is state else None

    def event_name(self, event: Event) -> str | None:
        return event.name if self.events.get(event.name) is event else None

    def children_of(self, parent: State | None) -> tuple[State, ...]:
        """The states that stand in this one, or in none."""
        return tuple(state for state in self.states.values() if state.parent is parent)

    def method(self, name: str) -> Method:
        found: Method = inspect.getattr_static(self.machine, name)
        return found

    def handlers_of(self, state: State) -> tuple[str, ...]:
        return tuple(name for name, states in self.handlers.items() if state in states)

    def receiver_of(self, event: str) -> str | None:
        return next((name for name, events in self.receivers.items() if self.events[event] in events), None)


def collect(machine: type[Machine[Any, Any]], root: type[Any]) -> Parts:
    """Find the parts. Raises ``DefinitionError`` where names do not stand for one thing each."""
    label = machine.__name__
    lineage = tuple(klass for klass in reversed(machine.__mro__) if klass not in root.__mro__)
    members = {name: value for klass in lineage for name, value in vars(klass).items()}
    parts = Parts(
        label=label,
        machine=machine,
        lineage=lineage,
        data=_data_type(machine, root, label),
        states={name: value for name, value in members.items() if isinstance(value, State)},
        events={name: value for name, value in members.items() if isinstance(value, Event)},
        handlers=_marked(lineage, HANDLES),
        receivers=_marked(lineage, RECEIVES),
        upcasts=_marked(lineage, UPCASTS),
    )
    _refuse_init(lineage, label)
    _check_names(parts, lineage)
    return parts


def _data_type(machine: type[Any], root: type[Any], label: str) -> Any:
    given = list(dict.fromkeys(_given_to(root, machine)))
    base = next((base.__name__ for base in machine.__bases__ if issubclass(base, root)), root.__name__)
    if not given:
        raise DefinitionError(f"{label}: it has no data type; say class {label}({base}[YourRecord])")
    if len(given) > 1:
        names = " and ".join(getattr(each, "__name__", repr(each)) for each in given)
        raise DefinitionError(f"{label}: its bases give it {names} as its data; give each the same")
    if not isinstance(get_origin(given[0]) or given[0], type):
        raise DefinitionError(
            f"{label}: its data {given[0]!r} is not a class; say class {label}({base}[YourRecord])"
        )
    return given[0]


def _given_to(root: type[Any], klass: type[Any]) -> Iterator[Any]:
    """The first arguments that reach ``root`` from a class, through generic bases."""
    for base in vars(klass).get("__orig_bases__", klass.__bases__):
        origin, arguments = get_origin(base) or base, get_args(base)
        if origin is root:
            yield from arguments[:1]
        elif isinstance(origin, type) and issubclass(origin, root):
            filled = dict(zip(_parameters(origin), arguments, strict=False))
            yield from (_filled(found, filled) for found in _given_to(root, origin))


def _filled(declared: Any, arguments: Mapping[Any, Any]) -> Any:
    if isinstance(declared, TypeVar):
        return arguments.get(declared, declared)
    if isinstance(declared, type) or not _parameters(declared):
        return declared
    return declared[tuple(arguments.get(each, each) for each in _parameters(declared))]


def _parameters(declared: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = getattr(declared, "__parameters__", ())
    return found


def _marked(lineage: Sequence[type[Any]], mark: str) -> dict[str, tuple[Any, ...]]:
    # By name: a method that overrides a base's handler is that state's handler, marked again or not.
    found: dict[str, tuple[Any, ...]] = {}
    for klass in lineage:
        for name, value in vars(klass).items():
            for what in getattr(value, mark, ()) if inspect.isfunction(value) else ():
                if what not in found.get(name, ()):
                    found[name] = (*found.get(name, ()), what)
    return found


def _refuse_init(lineage: Sequence[type[Any]], label: str) -> None:
    for klass in lineage:
        if "__init__" in vars(klass) or "__new__" in vars(klass):
            raise DefinitionError(
                f"{label}: {klass.__name__} has a constructor, but a machine holds nothing of its own; what "
                "a thread knows goes into its data, what the outside world needs into the runtime's deps"
            )


def _check_names(parts: Parts, lineage: Sequence[type[Any]]) -> None:
    for name, what in [*parts.states.items(), *parts.events.items()]:
        kind = "state" if isinstance(what, State) else "event"
        if len(what.names) > 1:
            raise DefinitionError(
                f"{parts.label}: {' = '.join(what.names)} is one {kind} under several names; declare one each"
            )
        if name.startswith("_"):
            raise DefinitionError(f"{parts.label}.{name}: a {kind}'s name does not begin with an underscore")
        if not name.isidentifier():
            raise DefinitionError(f"{parts.label}.{name}: a {kind}'s name is one that code can use")
    _check_hidden(parts, lineage)
    for name, state in _pairs(parts.handlers):
        if parts.state_name(state) is None:
            raise DefinitionError(f"{parts.label}.{name}: {_lost('state', state.name)}")
    for name, event in _pairs(parts.receivers):
        if parts.event_name(event) is None:
            raise DefinitionError(f"{parts.label}.{name}: {_lost('event', event.name)}")


def _pairs(marked: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, Any]]:
    return ((name, what) for name, whats in marked.items() for what in whats)


def _lost(kind: str, name: str) -> str:
    if name:
        return (
            f"the {kind} {name!r} that it is declared for is not one of this machine; declare it for one "
            "of its own"
        )
    return f"the function hides the {kind} that it is declared for; give the function a name of its own"


def _check_hidden(parts: Parts, lineage: Sequence[type[Any]]) -> None:
    for klass in lineage:
        for name, value in vars(klass).items():
            kind = next((kind for kind in (State, Event) if isinstance(value, kind)), None)
            if kind is not None and not isinstance(inspect.getattr_static(parts.machine, name), kind):
                raise DefinitionError(
                    f"{parts.label}.{name}: it hides the {kind.__name__.lower()} "
                    f"{name!r} of {klass.__name__}; give it another name"
                )
