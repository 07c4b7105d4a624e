"""The command line in this process, and a desk whose threads it shows."""

import pytest

from perdure.runtime import _cli

NASTY = "\x1b[31mred\x9b0m \u202egnp.exe \u2066x\u2069 line\nnext \x7f <img src=x onerror=alert(1)> Müller 🦀"
FORBIDDEN = ("\x1b", "\x9b", "\u202e", "\u2066", "\u2069", "\x7f", "\r")

DESK = '''
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from perdure import (
    Accept, Append, Call, Conversation, Fire, Machine, Message, Position, Runtime, State, Step, effect,
    record, runtime_owned,
)

NASTY = {nasty!r}


@record
class Claim:
    item: str
    count: int = 1
    price: float = 0.0
    notes: Annotated[Sequence[str], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()
    moves: int = runtime_owned(Position.seq)
    me: str = runtime_owned(Position.thread_id)


@record
class Approval:
    by: str
    amount: int = 0


@effect
async def pay(call: Call[None], item: str) -> str:
    raise ConnectionError("lost")


class Desk(Machine[Claim, None], version=2):
    """Looks at a claim twice; a person approves it."""

    reading = State(initial=True)
    noting = State()
    review = State()
    done = State(final=True)
    expired = State(final=True)

    read = reading.to(noting)
    noted = noting.to(review)
    approve = review.to(done).on_signal(Approval)
    again = review.to(noting).on_signal()
    late = review.to(expired).after(timedelta(days=1))

    @reading.handler
    async def look(self, data: Claim, step: Step[None]) -> Fire:
        said = Message(role="assistant", content=NASTY)
        return self.read(price=math.inf, notes=["read", NASTY], talk=[said])

    @noting.handler
    async def note(self, data: Claim, step: Step[None]) -> Fire:
        return self.noted(count=data.count + 1, notes=["noted"])

    @approve.received
    def approved(self, data: Claim, approval: Approval) -> Accept:
        return self.approve(notes=[approval.by])


class Paying(Machine[Claim, None], version=1, calls=[pay]):
    """Parks in doubt."""

    sending = State(initial=True)
    done = State(final=True)
    sent = sending.to(done)

    @sending.handler
    async def send(self, data: Claim, step: Step[None]) -> Fire:
        return self.sent(notes=[await step.call(pay, data.item)])


runtime = Runtime(machines=[Desk, Paying], artifacts="memory:")
other = Runtime(machines=[Paying], artifacts="memory:")
'''.replace("{nasty!r}", repr(NASTY))


class Said:
    """What a command said, and its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err
        self.lines = out.splitlines()


class Perdure:
    """The command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Said:
        with pytest.raises(SystemExit) as left:
            _cli.main(arguments)
        said = self._capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Said(left.value.code, said.out, said.err)
