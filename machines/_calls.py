"""Declared calls to the outside world: reads, effects, and what a lookup answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, overload

import attrs
from typing_extensions import TypeVar

from ._codec import Codec, codec
from ._errors import DefinitionError
from ._limits import Limit, check_limit
from ._parameters import BadCall, Parameters, call_parameters, signature_of, type_hints

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
X = TypeVar("X")
R_co = TypeVar("R_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)
X_co = TypeVar("X_co", covariant=True, default=object)
X_contra = TypeVar("X_contra", contravariant=True)

Async: TypeAlias = Coroutine[Any, Any, R]
_ZERO = timedelta(0)
_LONGEST = timedelta(days=365_000)


@attrs.frozen
class Found(Generic[T_co]):
    """A lookup's answer: the effect with this key did happen, and this is what came of it."""

    value: T_co


@attrs.frozen
class Absent:
    """A lookup's answer: the effect with this key has not happened (so far)."""


@attrs.frozen
class Unknown:
    """A lookup's answer: it could not be found out now; ask again later."""


ABSENT = Absent()
"""What a lookup returns where the effect did not happen."""
UNKNOWN = Unknown()
"""What a lookup returns where the receiver cannot tell: it is asked again later."""


class NotDone(Exception):
    """Raised by an effect that knows: this issue did not happen, and will not."""


class Call(Protocol[X_co]):
    """What a declared call is told about itself; its first argument."""

    @property
    def key(self) -> str:
        """The idempotency key to send to the receiver; the same for every issue of one action."""
        ...

    @property
    def deps(self) -> X_co:
        """What the ``Runtime`` was given as ``deps``."""
        ...

    @property
    def deadline(self) -> datetime:
        """The moment (aware, UTC) at which the runtime aborts this call."""
        ...

    @property
    def attempt(self) -> int:
        """Which issue of this call it is, counted from 1."""
        ...

    @property
    def workspace(self) -> str:
        """Whom the thread belongs to."""
        ...

    @property
    def principal(self) -> str:
        """As whom the thread acts."""
        ...

    @property
    def thread_id(self) -> str:
        """Which thread calls; together with the workspace its address."""
        ...


class Declared(Generic[X_contra, P, R_co]):
    """A call that a machine may list and ``step.call`` may make. It is known in the store by its name."""

    name: str


@attrs.frozen
class _Resolved:
    parameters: Parameters
    result: Codec[Any]


if TYPE_CHECKING:
    _Uncallable = object
else:

    class _Uncallable:
        """Says what to write instead of a plain call; to type checkers it is no callable at all."""

        def __call__(self, *args: object, **kwargs: object) -> object:
            raise BadCall(f"{self.label}: it is called through the step: await step.call({self.name}, ...)")


class _Function(Declared[X_contra, P, R_co], _Uncallable):
    """A declared call that stands for one function. Types are read when a machine lists it, so that a module
    may name types that it defines further down."""

    kind: str

    def __init__(self, fn: Callable[..., Async[Any]], renamed: Sequence[str], limit: Limit | None) -> None:
        self.name = _plain_name(fn, self.kind)
        self.fn = fn
        self.limit = limit
        self.renamed = (renamed,) if isinstance(renamed, str) else tuple(renamed)
        self._resolved: _Resolved | None = None
        check_limit(self.label, limit)
        signature_of(fn, self.label)
        self.__doc__, self.__module__, self.__wrapped__ = fn.__doc__, fn.__module__, fn

    def __repr__(self) -> str:
        return f"<{self.label}>"

    @property
    def label(self) -> str:
        """The call in the words of an error: ``effect publish``."""
        return f"{self.kind} {self.name}"

    def resolve(self) -> None:
        """Read the types, once. Raises ``DefinitionError``, naming the call and the parameter."""
        if self._resolved is None:
            self._resolved = _Resolved(call_parameters(self.fn, self.label), self._result())

    def arguments(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], where: str, /
    ) -> tuple[bytes, dict[str, Any]]:
        """All arguments after ``call``, defaults applied: as canonical JSON (one object, names sorted), and
        as they are read back from it. Raises ``BadCall`` where they do not bind, ``NotStorable`` where one
        cannot be stored."""
        return self._types().parameters.encode(args, kwargs, where)

    def decode_arguments(self, raw: bytes, where: str, /) -> dict[str, Any]:
        """Stored arguments as values by name; one that was stored before its parameter existed gets the
        default. Raises ``Unreadable``."""
        return self._types().parameters.decode(raw, where)

    @property
    def parameters(self) -> Parameters:
        """Every parameter after ``call``, each with its codec and default."""
        return self._types().parameters

    @property
    def result(self) -> Codec[Any]:
        """The codec of what the call returns."""
        return self._types().result

    def _types(self) -> _Resolved:
        if self._resolved is None:
            self.resolve()
        assert self._resolved is not None
        return self._resolved

    def _result(self) -> Codec[Any]:
        hints = type_hints(self.fn, self.label)
        if "return" not in hints:
            raise DefinitionError(f"{self.label}: the result has no type; annotate it with `-> ...`")
        return codec(hints["return"], f"{self.label} (its result)")


class Read(_Function[X_contra, P, R_co]):
    """A declared call that only looks. ``lookup_of`` is the effect that it is the lookup of, if it is one:
    such a read is asked by the runtime, its ``result`` is the effect's, and a machine lists the effect
    instead."""

    kind = "read"

    def __init__(
        self,
        fn: Callable[..., Async[Any]],
        *,
        reuse_for: timedelta | None = None,
        keep: bool = False,
        renamed: Sequence[str] = (),
        limit: Limit | None = None,
        lookup_of: Effect[Any, ..., Any] | None = None,
    ) -> None:
        super().__init__(fn, renamed, limit)
        if reuse_for is not None and keep:
            raise DefinitionError(f"{self.label}: keep=True is for good, and reuse_for= for a time; give one")
        _positive(self.label, "reuse_for", reuse_for)
        self.reuse_for = reuse_for
        self.keep = keep
        self.lookup_of = lookup_of

    def _result(self) -> Codec[Any]:
        return super()._result() if self.lookup_of is None else self.lookup_of.result


class Effect(_Function[X_contra, P, R_co]):
    """A declared call that changes something outside; intent, key and outcome are recorded around it."""

    kind = "effect"

    def __init__(
        self,
        fn: Callable[..., Async[Any]],
        *,
        idempotent: bool = False,
        repeatable: bool = False,
        key_lifetime: timedelta | None = None,
        key_retention: timedelta = timedelta(days=30),
        not_done: Sequence[type[BaseException]] = (),
        deadline: timedelta = timedelta(seconds=60),
        settle: timedelta = timedelta(seconds=1),
        renamed: Sequence[str] = (),
        limit: Limit | None = None,
    ) -> None:
        super().__init__(fn, renamed, limit)
        self.idempotent = idempotent
        self.repeatable = repeatable
        self.key_lifetime = key_lifetime
        self.key_retention = key_retention
        self.not_done = tuple(not_done)
        self.deadline = deadline
        self.settle = settle
        self._lookup: Read[Any, ..., Any] | None = None
        self._check()

    @property
    def lookup_fn(self) -> Callable[..., Async[Found[Any] | Absent | Unknown]] | None:
        """The function that asks the world whether the effect happened: ``(call, **arguments)``."""
        return None if self._lookup is None else self._lookup.fn

    @property
    def key_name(self) -> str:
        """Under which explicit keys are kept: the first name that it had, so that a new name of the effect
        makes no new action of an old key."""
        return self.renamed[0] if self.renamed else self.name

    def keyed(self, key: str, /) -> Keyed[X_contra, P, R_co]:
        """This effect under an explicit key, which names one action in the whole workspace."""
        if not _is_text(key):
            raise BadCall(f"{self.label}: {key!r} is no explicit key; name the action, as in 'invoice-7'")
        return Keyed(self, key)

    def lookup(
        self: Effect[X, P, R], fn: Callable[Concatenate[Call[X], P], Async[Found[R] | Absent | Unknown]], /
    ) -> Read[X, P, Found[R] | Absent | Unknown]:
        """Declare how recovery asks whether this effect happened. It takes the effect's parameters."""
        if self._lookup is not None:
            raise DefinitionError(f"{self.label}: it has a lookup already, {self._lookup.name}; keep one")
        found: Read[X, P, Found[R] | Absent | Unknown] = Read(fn, lookup_of=self)
        self._lookup = found
        return found

    def resolve(self) -> None:
        """Read the types, the lookup's too. Raises ``DefinitionError``, naming call and parameter."""
        super().resolve()
        if self._lookup is not None:
            asked, own = (signature_of(call.fn, call.label) for call in (self._lookup, self))
            if [(p.name, p.kind) for p in asked] != [(p.name, p.kind) for p in own]:
                raise DefinitionError(
                    f"{self._lookup.label}: it is asked with the arguments of {self.label}, and so must "
                    f"have the same parameters: {', '.join(str(p) for p in own) or 'none but `call`'}"
                )

    def _check(self) -> None:
        if self.idempotent and self.repeatable:
            raise DefinitionError(
                f"{self.label}: idempotent=True says that the receiver remembers the key, "
                "repeatable=True that it does not and that twice is harmless; give one"
            )
        if self.key_lifetime is not None and not self.idempotent:
            raise DefinitionError(
                f"{self.label}: key_lifetime= is for a receiver that remembers keys; add idempotent=True"
            )
        for name in ("key_lifetime", "key_retention", "deadline"):
            _positive(self.label, name, getattr(self, name))
        _duration(self.label, "settle", self.settle)
        for wrong in not_errors(self.not_done):
            raise DefinitionError(f"{self.label}: not_done= takes exception classes, not {wrong}")


class Keyed(Declared[X_contra, P, R_co]):
    """An effect with an explicit key: ``publish.keyed("invoice-7")``."""

    def __init__(self, effect: Effect[X_contra, P, R_co], key: str) -> None:
        self.name = effect.name
        self.effect = effect
        self.key = key

    def __repr__(self) -> str:
        return f"<{self.effect.label} keyed {self.key!r}>"


class _ReadDecorator(Protocol):
    def __call__(self, fn: Callable[Concatenate[Call[X], P], Async[R]], /) -> Read[X, P, R]: ...


class _EffectDecorator(Protocol):
    def __call__(self, fn: Callable[Concatenate[Call[X], P], Async[R]], /) -> Effect[X, P, R]: ...


@overload
def read(fn: Callable[Concatenate[Call[X], P], Async[R]], /) -> Read[X, P, R]: ...
@overload
def read(
    *,
    reuse_for: timedelta | None = None,
    keep: bool = False,
    renamed: Sequence[str] = (),
    limit: Limit | None = None,
) -> _ReadDecorator: ...
def read(
    fn: Callable[..., Async[Any]] | None = None,
    /,
    *,
    reuse_for: timedelta | None = None,
    keep: bool = False,
    renamed: Sequence[str] = (),
    limit: Limit | None = None,
) -> Any:
    """Declare a call that only looks. It is made again after a resume, unless an older answer may do:
    ``reuse_for`` that long, ``keep`` for good. ``renamed``: names under which older records hold it.
    ``limit``: it waits for its turn there before it is made."""

    def declare(fn: Callable[..., Async[Any]], /) -> Read[Any, ..., Any]:
        return Read(fn, reuse_for=reuse_for, keep=keep, renamed=renamed, limit=limit)

    return declare if fn is None else declare(fn)


@overload
def effect(fn: Callable[Concatenate[Call[X], P], Async[R]], /) -> Effect[X, P, R]: ...
@overload
def effect(
    *,
    idempotent: bool = False,
    repeatable: bool = False,
    key_lifetime: timedelta | None = None,
    key_retention: timedelta = timedelta(days=30),
    not_done: Sequence[type[BaseException]] = (),
    deadline: timedelta = timedelta(seconds=60),
    settle: timedelta = timedelta(seconds=1),
    renamed: Sequence[str] = (),
    limit: Limit | None = None,
) -> _EffectDecorator: ...
def effect(
    fn: Callable[..., Async[Any]] | None = None,
    /,
    *,
    idempotent: bool = False,
    repeatable: bool = False,
    key_lifetime: timedelta | None = None,
    key_retention: timedelta = timedelta(days=30),
    not_done: Sequence[type[BaseException]] = (),
    deadline: timedelta = timedelta(seconds=60),
    settle: timedelta = timedelta(seconds=1),
    renamed: Sequence[str] = (),
    limit: Limit | None = None,
) -> Any:
    """Declare a call that changes something outside.

    ``idempotent``: its receiver remembers the key (for ``key_lifetime``, where it forgets). ``repeatable``:
    doing it twice is harmless, late arrivals are not. ``not_done``: errors that mean it did not happen, and
    will not. ``deadline``: how long one issue may take. ``settle``: how long after its client is gone a
    request may still act. ``key_retention``: how long an explicit key outlives the journal. ``renamed``:
    names under which older records hold it, the first one first: explicit keys stay with that one. ``limit``:
    each issue waits for its turn there, before its intent is written.
    """

    def declare(fn: Callable[..., Async[Any]], /) -> Effect[Any, ..., Any]:
        return Effect(
            fn,
            idempotent=idempotent,
            repeatable=repeatable,
            key_lifetime=key_lifetime,
            key_retention=key_retention,
            not_done=not_done,
            deadline=deadline,
            settle=settle,
            renamed=renamed,
            limit=limit,
        )

    return declare if fn is None else declare(fn)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != "" and not any("\ud800" <= char <= "\udfff" for char in value)


def _plain_name(fn: object, kind: str) -> str:
    name = getattr(fn, "__name__", None)
    if not (inspect.isfunction(fn) and inspect.iscoroutinefunction(fn)):
        raise DefinitionError(f"{kind} {name or repr(fn)}: declare an `async def` function with @{kind}")
    return fn.__name__


def not_errors(errors: Iterable[object]) -> list[str]:
    """What of these is no exception class, as text."""
    return [repr(each) for each in errors if not _is_error(each)]


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _duration(label: str, name: str, value: object) -> None:
    if not isinstance(value, timedelta) or not _ZERO <= value <= _LONGEST:
        raise DefinitionError(
            f"{label}: {name}= takes a timedelta that is not negative, up to a thousand years, not {value!r}"
        )


def _positive(label: str, name: str, value: object) -> None:
    if value is not None and (not isinstance(value, timedelta) or not _ZERO < value <= _LONGEST):
        raise DefinitionError(
            f"{label}: {name}= takes a timedelta over zero, up to a thousand years, not {value!r}"
        )
