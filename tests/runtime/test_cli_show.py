"""What ``perdure show``, ``why`` and ``history`` say of owned fields, conversations, and each way to end."""

import importlib
import json
import sys
from pathlib import Path

import anyio
import pytest
from harness.cli import FORBIDDEN, NASTY, Perdure

pytest_plugins = ("harness.desk",)

ENDS = '''
from typing import Annotated

from perdure import Accept, Budget, Cancellation, Cost, Fire, Machine, Runtime, Spent, State, Step, record


@record
class Job:
    said: str = ""
    tokens: Annotated[int, Cost()] = 0
    budget: Budget = Budget(tokens=30)


@record
class Pick:
    what: str


class Loop(Machine[Job, None], version=1):
    """Works until somebody stops it, or its tokens are spent."""

    asking = State(initial=True)
    working = State()
    stopped = State(final=True)
    spent = State(final=True)

    go = asking.to(working).on_signal()
    pick = working.to(asking).on_choice(Pick)
    more = working.to(working)
    stop = asking.to(stopped).on_cancel()
    over = working.to(spent).on_budget()

    @working.handler
    async def work(self, data: Job, step: Step[None]) -> Fire:
        return self.more(tokens=20)

    @stop.received
    def stopping(self, data: Job, words: Cancellation) -> Accept:
        return self.stop(said=words.reason)

    @over.received
    def ending(self, data: Job, spent: Spent) -> Accept:
        return self.over(said=spent.limit)


runtime = Runtime(machines=[Loop], artifacts="memory:")
'''
CODE = ("--runtime", "cli_ends:runtime")


@pytest.fixture
def ends(at_desk: Path) -> None:
    """``asks`` waits; ``stopped`` was cancelled; ``spent`` ran into its limit; ``killed`` was terminated."""
    (at_desk / "cli_ends.py").write_text(ENDS)
    sys.modules.pop("cli_ends", None)
    app = importlib.import_module("cli_ends")

    async def make() -> None:
        async with app.runtime as running:
            asks, stopped, spent, killed = [
                await running.start(app.Loop, app.Job(), thread_id=name)
                for name in ("asks", "stopped", "spent", "killed")
            ]
            await asks.settled()
            await stopped.cancel(reason=NASTY, by="ada")
            await spent.signal(app.Loop.go, id="go")
            await killed.terminate(reason="stuck", by="eve")
            for thread in (stopped, spent, killed):
                await thread.result()

    anyio.run(make)


def test_show_has_what_the_runtime_owns_and_the_conversation(cli: Perdure) -> None:
    said = cli("show", "done", "--runtime", "cli_desk:runtime")
    assert "owned     moves=5, me='done'" in said.lines
    [talk] = [line for line in said.lines if line.startswith("talk ")]
    assert talk.startswith('talk      1 messages, the last assistant: "\\u001b[31mred')
    told = json.loads(cli("show", "done", "--runtime", "cli_desk:runtime", "--json").out)
    assert told["owned"] == {"moves": 5, "me": "done"}
    assert told["conversation"]["messages"] == 1
    assert told["conversation"]["last"]["content"] == NASTY


def test_show_without_code_knows_no_owned_fields_and_every_conversation(cli: Perdure) -> None:
    told = json.loads(cli("show", "done", "--json").out)
    assert told["owned"] is None
    assert told["conversation"]["messages"] == 1
    assert json.loads(cli("show", "doubt", "--json").out)["conversation"] is None
    assert "owned" not in cli("show", "done").out
    assert "talk" not in cli("show", "doubt").out


@pytest.mark.usefixtures("ends")
def test_show_names_events_of_every_kind(cli: Perdure) -> None:
    [line] = [line for line in cli("show", "asks", *CODE).lines if line.startswith("events ")]
    assert line == "events    go -> working (signal), stop -> stopped (on a cancel)"


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize(
    ("thread", "state", "words"),
    [
        ("stopped", "stopped", "cancelled by ada: \\x1b[31mred"),
        ("spent", "spent", "budget: tokens allowed 30, used 40"),
        ("killed", "asking", "terminated by eve: stuck"),
    ],
)
def test_each_way_to_end_reads_well(thread: str, state: str, words: str, cli: Perdure) -> None:
    assert words in cli("history", thread).lines[-1]
    why = cli("why", thread, *CODE)
    assert why.out.startswith(f"thread '{thread}' of Loop is in state '{state}' at seq ")
    assert "ended" in why.out
    assert f"state     {state}, seq " in cli("show", thread, *CODE).out
    assert json.loads(cli("show", thread, "--json").out)["status"] == "ended"
    assert cli("journal", thread, "--verify").status == 0
    for command in (["history", thread], ["why", thread], ["show", thread], ["journal", thread]):
        for json_too in ((), ("--json",)):
            said = cli(*command, *json_too)
            assert not [char for char in FORBIDDEN if char in said.out]
