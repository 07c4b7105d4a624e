"""The engine's signatures, as far as the types of a machine reach into them."""
# pyright: strict

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

from perdure.machines import Machine, Of, Signal

M = TypeVar("M")
D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)
T = TypeVar("T")
X = TypeVar("X")


class Ended(Protocol[D_co]):
    @property
    def data(self) -> D_co: ...


class Thread(Generic[M, D]):
    @overload
    async def signal(self, signal: Signal[M, None], /, *, id: str) -> None: ...
    @overload
    async def signal(self, signal: Signal[M, T], payload: T, /, *, id: str) -> None: ...
    async def signal(self, signal: Signal[M, Any], payload: object = None, /, *, id: str) -> None: ...  # noqa: A002

    async def result(self) -> Ended[D]:
        raise NotImplementedError


class Runtime(Generic[X]):
    def __init__(self, *, machines: Sequence[type[Machine[Any, X]]], deps: X) -> None: ...

    async def start(self, machine: Of[M, D], data: D, /, *, thread_id: str) -> Thread[M, D]:
        raise NotImplementedError
