"""How a machine reads what its older versions wrote: renamed and removed names, and upcasters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import attrs

from ._calls import Declared, Effect, Read
from ._errors import DefinitionError, Unreadable
from ._plain import plain_json, plain_value
from ._shape import reason_of
from ._signals import Signal
from ._states import Event, State

if TYPE_CHECKING:
    from ._parts import Parts

U = TypeVar("U", bound=Callable[[Any, Any], Any])
Subject = Event | Signal[Any, Any] | Declared[Any, ..., Any] | None

UPCASTS = "__perdure_upcasts__"


@attrs.frozen
class UpcastMark:
    """What a method is declared to bring one version further."""

    from_version: int
    of: Subject


def upcast(*, from_version: int, of: Subject = None) -> Callable[[U], U]:
    """Declare the method that brings what version ``from_version`` of the machine stored to the next version.

    Without ``of`` it is given a thread's data, ``(self, data: dict[str, Any]) -> dict[str, Any]``: plain JSON
    values by field, without what only the runtime writes, what is not stored, and the conversation, and
    returns those of the next version. With a signal, ``of=approve``, it is given a payload; with a declared
    read or effect, ``of=publish``, the recorded arguments by parameter. Upcasters are chained; a version
    without one changes nothing. They run when a record is read, and stored bytes stay as they are; what one
    raises, or returns that does not fit, parks that thread as unreadable.
    """

    def declare(fn: U, /) -> U:
        if not inspect.isfunction(cast("object", fn)) or inspect.iscoroutinefunction(fn):
            raise DefinitionError(
                f"@upcast goes directly over a plain method of the machine, (self, data), not over {fn!r}"
            )
        setattr(fn, UPCASTS, (*getattr(fn, UPCASTS, ()), UpcastMark(from_version, of)))
        return fn

    return declare


@attrs.frozen(kw_only=True)
class VersionMarks:
    """What a class statement says of versions."""

    version: int = 1
    oldest: int = 1
    removed_events: Sequence[str] = ()
    removed_calls: Sequence[str] = ()


class Upcaster(NamedTuple):
    """One step, from its version to the next: ``method`` names it for people."""

    method: str
    run: Callable[[Any], Any]


Steps = Mapping[int, Upcaster]


@attrs.frozen(kw_only=True)
class Upcasts:
    """What brings values that versions from ``oldest`` on stored to today's, as plain JSON values.

    Each method raises ``Unreadable`` for a version that it does not read, and where an upcaster raises or
    returns what is no JSON; ``where`` begins the message.
    """

    machine: str
    version: int
    oldest: int
    of_data: Steps
    of_events: Mapping[str, Steps]
    of_calls: Mapping[str, Steps]

    def check(self, version: int, where: str) -> None:
        """``Unreadable`` where this code does not read what that version wrote."""
        if version > self.version:
            raise Unreadable(
                f"{where}: needs version >= {version} of {self.machine}, and this code is {self.version}"
            )
        if version < self.oldest:
            raise Unreadable(
                f"{where}: version {version} of {self.machine} wrote it, and this code (version "
                f"{self.version}) reads from version {self.oldest} on: run code that reads version {version} "
                "until the thread has moved on, or lower oldest= and write the upcasters"
            )

    def changes_data(self, version: int) -> bool:
        """Whether an upcaster of the data runs on what that version stored."""
        return any(step >= version for step in self.of_data)

    def data(self, stored: dict[str, Any], version: int, where: str) -> dict[str, Any]:
        """A thread's data, plain values by field, from that version to this one."""
        values = self._chained(self.of_data, stored, version, where)
        for name, value in values.items():
            plain_json(value, f"{where}: field {name!r}, as its upcasters left it")
        return cast("dict[str, Any]", values)

    def payload(self, event: str, payload: bytes, version: int, where: str) -> bytes:
        """The payload of a signal, by the event's name of today."""
        return self._bytes(self.of_events.get(event, {}), payload, version, where, False)

    def arguments(self, call: str, arguments: bytes, version: int, where: str) -> bytes:
        """The recorded arguments of a call, by its name of today: an object by parameter."""
        return self._bytes(self.of_calls.get(call, {}), arguments, version, where, True)

    def _bytes(self, steps: Steps, stored: bytes, version: int, where: str, by_name: bool) -> bytes:
        self.check(version, where)
        if not any(step >= version for step in steps):
            return stored
        values = self._chained(steps, plain_value(stored, where), version, where, by_name=by_name)
        return plain_json(values, f"{where}: as its upcasters left it")

    def _chained(self, steps: Steps, values: Any, version: int, where: str, *, by_name: bool = True) -> Any:
        self.check(version, where)
        for step in range(version, self.version):
            if (upcaster := steps.get(step)) is not None:
                values = _stepped(upcaster, step, values, where, by_name)
        return values


def _stepped(upcaster: Upcaster, step: int, values: Any, where: str, by_name: bool) -> Any:
    said = f"{where}: upcaster {upcaster.method} (from version {step})"
    try:
        found = upcaster.run(values)
    except Exception as error:
        raise Unreadable(f"{said} raised {reason_of(error)}") from error
    if by_name and not _is_by_name(found):
        raise Unreadable(f"{said} returned {type(found).__name__}, not a dict of plain values by name")
    return found


def _is_by_name(found: object) -> bool:
    return isinstance(found, dict) and all(isinstance(name, str) for name in cast("Iterable[object]", found))


# --- at class creation ----------------------------------------------------------------------------


def check_marks(label: str, marks: VersionMarks) -> None:
    """The class statement's own words. Raises ``DefinitionError``, as all of these do."""
    if not _whole(marks.version):
        raise DefinitionError(f"{label}: version= takes a whole number from 1 on, not {marks.version!r}")
    if not _whole(marks.oldest) or marks.oldest > marks.version:
        raise DefinitionError(
            f"{label}: oldest= takes the oldest version that this code still reads, 1 to {marks.version}, "
            f"not {marks.oldest!r}"
        )
    for what in ("removed_events", "removed_calls"):
        given: object = getattr(marks, what)
        if not _are_names(given):
            raise DefinitionError(f"{label}: {what}= takes a tuple of names, as in ('old',), not {given!r}")


def old_states(parts: Parts) -> dict[str, str]:
    """Each older name that the store may hold for a state that a thread can be in, and today's."""
    found: dict[str, str] = {}
    for state in parts.states.values():
        for old in _names(f"{parts.label}.{state.name}", "State(renamed=)", state.renamed):
            for leaf in _leaves_in(parts, state):
                name = old + leaf.removeprefix(state.dotted)
                _take(found, parts.label, "state", name, leaf, parts.leaves)
    return found


def _leaves_in(parts: Parts, state: State) -> list[str]:
    outer = state.dotted
    return [leaf for leaf in parts.leaves if leaf == outer or leaf.startswith(f"{outer}.")]


def old_events(parts: Parts, removed: Sequence[str]) -> dict[str, str]:
    """Each older name of an event, and today's; removed ones are neither."""
    found: dict[str, str] = {}
    for name, event in parts.events.items():
        for old in _names(f"{parts.label}.{name}", "renamed()", event.old_names):
            _take(found, parts.label, "event", old, name, parts.events)
    _check_removed(parts.label, "event", removed, {*parts.events, *found})
    return found


def check_removed_calls(label: str, removed: Sequence[str], calls: Mapping[str, Any]) -> None:
    _check_removed(label, "call", removed, calls)


def _check_removed(label: str, kind: str, removed: Sequence[str], known: Iterable[str]) -> None:
    for name in removed:
        if name in known:
            raise DefinitionError(
                f"{label}: removed_{kind}s= names {name!r}, which is a name of one of its {kind}s; take it "
                "out of one of the two"
            )


def _names(where: str, what: str, given: object) -> tuple[str, ...]:
    names: object = (given,) if isinstance(given, str) else given
    if not _are_names(names):
        raise DefinitionError(f"{where}: {what} takes the names that it had, as text, not {given!r}")
    return tuple(cast("Iterable[str]", names))


def _are_names(given: object) -> bool:
    return isinstance(given, list | tuple) and all(
        isinstance(name, str) and name for name in cast("Iterable[object]", given)
    )


def _take(
    found: dict[str, str], label: str, kind: str, old: str, name: str, today: Mapping[str, Any]
) -> None:
    if old in today:
        raise DefinitionError(
            f"{label}.{name}: {old!r}, which it is said to have been named, is one of its {kind}s now; "
            f"a stored {old!r} would mean both: give the new one another name"
        )
    if found.setdefault(old, name) != name:
        raise DefinitionError(
            f"{label}: {found[old]} and {name} are both said to have been named {old!r}; say it of one"
        )


def upcasts_of(
    parts: Parts, name: str, marks: VersionMarks, machine: Any, calls: Mapping[str, Any]
) -> Upcasts:
    """The machine's upcasters, checked and put in order."""
    found: dict[str, dict[str, dict[int, Upcaster]]] = {"data": {"": {}}, "event": {}, "call": {}}
    for method, mark in _marked(parts):
        where = f"{parts.label}.{method}"
        _check_step(where, mark, marks, parts.method(method))
        kind, of = _subject(where, parts, mark.of, calls)
        steps = found[kind].setdefault(of, {})
        before = steps.setdefault(mark.from_version, Upcaster(method, getattr(machine, method)))
        if before.method != method:
            raise DefinitionError(
                f"{where}: {before.method} already brings {of or 'the data'} on from version "
                f"{mark.from_version}; keep one of them"
            )
    return Upcasts(
        machine=name,
        version=marks.version,
        oldest=marks.oldest,
        of_data=found["data"][""],
        of_events=found["event"],
        of_calls=found["call"],
    )


def _marked(parts: Parts) -> Iterator[tuple[str, UpcastMark]]:
    return ((method, mark) for method, found in parts.upcasts.items() for mark in found)


def _check_step(where: str, mark: UpcastMark, marks: VersionMarks, fn: Callable[..., Any]) -> None:
    step = mark.from_version
    if not _whole(step) or step >= marks.version:
        older = f"1 to {marks.version - 1}" if marks.version > 1 else "of which there is none: raise version="
        raise DefinitionError(f"{where}: from_version= takes an older version, {older}, not {step!r}")
    if step < marks.oldest:
        raise DefinitionError(
            f"{where}: nothing runs it: oldest={marks.oldest} leaves what version {step} wrote unread; take "
            "it out, or lower oldest="
        )
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        raise DefinitionError(f"{where}: an upcaster takes (self, values), and returns the values") from None


def _subject(where: str, parts: Parts, of: object, calls: Mapping[str, Any]) -> tuple[str, str]:
    if of is None:
        return "data", ""
    if isinstance(of, Read | Effect):
        if of not in calls.values():
            raise DefinitionError(f"{where}: {of.label} is not one of its calls; list it in calls=")
        return "call", of.name
    name: str = getattr(of, "name", "") if isinstance(of, (Event, Signal)) else ""  # pyright: ignore[reportUnknownArgumentType]
    event = parts.events.get(name)
    if event is None or event.kind != "signal" or event.payload is None:
        raise DefinitionError(
            f"{where}: of= takes a signal of the machine that has a payload, or a read or effect that it "
            f"lists, not {name or of!r}"
        )
    return "event", name


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
