"""The base class of every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Self

from typing_extensions import TypeVar

from ._calls import Declared
from ._checks import check_abstract, check_listed
from ._compile import compile_machine
from ._plan import Definition
from ._versions import VersionMarks

D = TypeVar("D")
X_contra = TypeVar("X_contra", contravariant=True, default=object)


class Machine(Generic[D, X_contra]):
    """A machine: states, events and handlers over one record of data, with the dependencies ``X``.

    ``class Summarise(Machine[Brief, Deps], version=1, calls=[...])``. ``version``: counts changes that stored
    threads must be brought over, and ``oldest`` is the oldest one whose records this code still reads (see
    ``upcast``). ``removed_events``, ``removed_calls``: names that older records hold and nothing here has any
    more: such a timer is off, such a signal stays in the inbox, such a call's outcome is set aside.
    ``calls``: every read and effect that it may make; a subclass adds to its bases'. ``name``: what the store
    calls it (the class's name otherwise). ``at_once``: how many of its threads run at once, over all workers;
    one that waits for an event takes no place. The class is checked and compiled when it is created;
    ``DefinitionError`` says what is wrong with it.

    ``abstract=True`` makes it a base that does not run itself, but holds states, events, handlers, receivers
    and calls for others: ``class Desk(Machine[D, X], abstract=True)``, ``class Claims(Desk[Claim, Deps])``.
    """

    _definition: ClassVar[Definition]
    _calls: ClassVar[tuple[Declared[Any, ..., Any], ...]]

    def __init_subclass__(
        cls,
        *,
        version: int = 1,
        oldest: int = 1,
        removed_events: Sequence[str] = (),
        removed_calls: Sequence[str] = (),
        calls: Sequence[Declared[Any, ..., Any]] = (),
        name: str | None = None,
        abstract: bool = False,
        at_once: int | None = None,
        **others: Any,
    ) -> None:
        super().__init_subclass__(**others)
        check_listed(cls.__name__, calls)
        inherited = (call for base in cls.__bases__ for call in vars(base).get("_calls", ()))
        cls._calls = tuple(dict.fromkeys([*inherited, *calls]))
        marks = VersionMarks(
            version=version, oldest=oldest, removed_events=removed_events, removed_calls=removed_calls
        )
        if abstract:
            check_abstract(cls.__name__, name=name, marks=marks, calls=cls._calls, at_once=at_once)
            return
        cls._definition = compile_machine(
            cls, Machine, name=name, marks=marks, calls=cls._calls, at_once=at_once
        )

    @classmethod
    def _machine(cls) -> type[Self]:
        return cls

    @classmethod
    def _holds(cls, data: D, /) -> None:
        """Ties the machine to its data for type checkers: what ``Runtime.start`` takes."""

    def _data(self) -> D:
        """Ties ``self.event(...)`` to the fields of the data for type checkers."""
        raise NotImplementedError
