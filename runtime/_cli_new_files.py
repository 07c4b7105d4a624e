"""The files that ``perdure new`` writes, with ``NAME`` for the project's name."""

MACHINE = '''"""Pay an expense: look up what may be paid at once, ask a person for more, pay it once.

    perdure run NAME:runtime Expense --data '{"amount": 50}'
"""

import json
from pathlib import Path
from typing import Protocol

import anyio
import attrs
from perdure import (
    ABSENT,
    Absent,
    Accept,
    Call,
    Fire,
    Found,
    Machine,
    Runtime,
    State,
    Step,
    Unknown,
    effect,
    read,
    record,
)


class Bank(Protocol):
    """What the effect needs of a bank: requests carry a key, and can be asked about by it."""

    async def send(self, key: str, amount: int, /) -> str: ...
    async def find(self, key: str, /) -> str | None: ...


@attrs.frozen(kw_only=True)
class Deps:
    """What the calls need; the runtime below is given the real ones, a test its own."""

    bank: Bank
    limit: int = 100


@record
class Claim:
    """What a thread knows. Every transition stores what has changed of it."""

    amount: int
    limit: int | None = None
    approved_by: str | None = None
    receipt: str | None = None

    @property
    def small(self) -> bool:
        """It may be paid without asking anybody."""
        return self.limit is not None and self.amount <= self.limit


@record
class Approval:
    """What a person says."""

    by: str


@read
async def look_up_limit(call: Call[Deps]) -> int:
    """A read only looks: after a crash it is simply made again."""
    return call.deps.limit


@effect
async def pay(call: Call[Deps], amount: int) -> str:
    """An effect changes the world: that it is about to happen is recorded before, what came of it after."""
    return await call.deps.bank.send(call.key, amount)


@pay.lookup
async def find_payment(call: Call[Deps], amount: int) -> Found[str] | Absent | Unknown:
    """After a crash in between, the bank is asked whether the payment with this key happened."""
    receipt = await call.deps.bank.find(call.key)
    return ABSENT if receipt is None else Found(receipt)


class Expense(Machine[Claim, Deps], version=1, calls=[look_up_limit, pay]):
    """Look up the limit, have a person approve what is above it, pay."""

    checking = State(initial=True)
    review = State()
    paying = State()
    done = State(final=True)

    passed = checking.to(paying, when=Claim.small)
    asked = checking.to(review)
    approve = review.to(paying).on_signal(Approval)
    paid = paying.to(done)

    @checking.handler
    async def check(self, data: Claim, step: Step[Deps]) -> Fire:
        limit = await step.call(look_up_limit)
        if data.amount <= limit:
            return self.passed(limit=limit)
        return self.asked(limit=limit)

    @approve.received
    def approved(self, data: Claim, approval: Approval) -> Accept:
        return self.approve(approved_by=approval.by)

    @paying.handler
    async def pay_it(self, data: Claim, step: Step[Deps]) -> Fire:
        return self.paid(receipt=await step.call(pay, data.amount))


class FileBank:
    """A bank for a first try: its payments are the lines of a file."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    async def send(self, key: str, amount: int, /) -> str:
        """Pay, and answer with a receipt."""

        def append() -> str:
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "amount": amount}) + "\\n")
            return f"receipt-{key[-6:]}"

        return await anyio.to_thread.run_sync(append)

    async def find(self, key: str, /) -> str | None:
        """The receipt of the payment with this key, if there was one."""

        def search() -> str | None:
            lines = self.path.read_text().splitlines() if self.path.exists() else []
            return f"receipt-{key[-6:]}" if any(json.loads(line)["key"] == key for line in lines) else None

        return await anyio.to_thread.run_sync(search)


runtime = Runtime(
    machines=[Expense],
    deps=Deps(bank=FileBank("payments.jsonl")),
)
'''

TEST = '''"""The machine is killed at every boundary it comes to, resumed, and must come out the same."""

import pytest
from perdure.runtime.testing import World, assert_arrivals, crash_sweep

from NAME import Approval, Claim, Deps, Expense

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_small_expense_survives_every_crash(world: World) -> None:
    sweep = await crash_sweep(Expense, Claim(amount=50), deps=Deps(bank=world.receiver("bank")))
    sweep.check()
    assert_arrivals(world, "bank", 1)


async def test_an_approved_expense_survives_every_crash(world: World) -> None:
    sweep = await crash_sweep(
        Expense,
        Claim(amount=5000),
        deps=Deps(bank=world.receiver("bank")),
        signals=[(Expense.approve, Approval(by="ada"))],
    )
    sweep.check()
    assert_arrivals(world, "bank", 1)
'''

README = """# NAME

A machine that pays an expense, and a test that kills it everywhere.

    pip install perdure pytest
    pytest
    perdure run NAME:runtime Expense --data '{"amount": 50}'

`NAME.py` is the machine: a read, an effect with a lookup, a state in which a person is waited for.
`test_NAME.py` runs it once, then kills it at every boundary that it came to, resumes it, and compares.

The payments are in `payments.jsonl`, the threads in `perdure.db`: `perdure ls` lists them, and
`perdure history THREAD` shows what one did.

Above 100 a person is waited for. `perdure run` waits with it until Ctrl-C; a second terminal says yes:

    perdure run NAME:runtime Expense --data '{"amount": 5000}' --thread big
    perdure signal big approve --data '{"by": "ada"}' --runtime NAME:runtime

## See the test go red

In `NAME.py`, let the lookup forget what happened:

    return ABSENT if receipt is None else Found(receipt)      # before
    return ABSENT                                             # after

`pytest` now names each crash after which the bank is paid twice.
"""

PYPROJECT = """[project]
name = "DIST"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["perdure"]

[project.optional-dependencies]
test = ["pytest"]

[tool.setuptools]
py-modules = ["NAME"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

FILES = {"NAME.py": MACHINE, "test_NAME.py": TEST, "README.md": README, "pyproject.toml": PYPROJECT}
