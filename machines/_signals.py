"""Signals of a machine, as what stands outside of it addresses and sends them."""

from __future__ import annotations

from typing import Any, Generic, overload

import attrs
from typing_extensions import TypeVar

M = TypeVar("M")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


@attrs.frozen(kw_only=True)
class SignalMessage(Generic[M]):
    """One signal to a thread of machine ``M``, with its payload and its id: what ``Client.start(signals=)``
    takes. Made by ``Signal.message``."""

    machine: type[M]
    name: str
    payload: Any
    id: str


@attrs.frozen(kw_only=True)
class Signal(Generic[M, T_contra]):
    """A signal of a machine, as its class shows it (``Summarise.approve``): what ``Thread.signal`` takes."""

    machine: type[M]
    name: str

    @overload
    def message(self: Signal[M, None], /, *, id: str) -> SignalMessage[M]: ...
    @overload
    def message(self, payload: T_contra, /, *, id: str) -> SignalMessage[M]: ...
    def message(self, payload: Any = None, /, *, id: str) -> SignalMessage[M]:
        """This signal with a payload, to be sent once by ``id``: for the start of a thread, which then finds
        it in its inbox."""
        return SignalMessage(machine=self.machine, name=self.name, payload=payload, id=id)
