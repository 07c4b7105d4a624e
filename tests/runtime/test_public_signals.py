"""Failures that people met with systems like this one, tried here: decisions, cancels, lost replies."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from asyncio import sleep
from pathlib import Path
from typing import Any

import pytest
from harness.cli import Perdure
from harness.engine import CALLS, Note, Sim, World, looked, simulated
from harness.loop import SimLoop, simulate

from perdure.machines import Accept, Cancellation, Fire, Machine, State, Step, record
from perdure.runtime import SignalRefused, _cli_operate, _runtime
from perdure.stores import OutcomeUnknown, SignalConflict, SQLiteStore, Start, Started

pytest_plugins = ("harness.desk",)


@record
class Decision:
    by: str


class Request(Machine[Note, World], version=1, calls=CALLS):
    """A request that one person decides, and an effect that follows from an approval alone."""

    review = State(initial=True)
    approved = State()
    done = State(final=True)
    denied = State(final=True)
    approve = review.to(approved).on_signal(Decision)
    deny = review.to(denied).on_signal(Decision)
    acted = approved.to(done)

    @approve.received
    def by_whom(self, data: Note, said: Decision) -> Accept:
        return self.approve(lines=[said.by])

    @deny.received
    def not_by(self, data: Note, said: Decision) -> Accept:
        return self.deny(lines=[said.by])

    @approved.handler
    async def act(self, data: Note, step: Step[World]) -> Fire:
        return self.acted(text=str(await step.call(looked, data.lines[0])))


PLACE: dict[str, Any] = {"thread_id": "t", "workspace": "w"}


# --- two people approved at once ----------------------------------------------------------------------


@pytest.mark.parametrize("one_id", [True, False], ids=["one request's id", "an id each"])
@simulated
async def test_of_fifty_decisions_at_once_one_is_taken_and_acted_on_once(loop: SimLoop, one_id: bool) -> None:
    sim = Sim(loop, Request)
    first, second = await sim.engine(), await sim.engine()
    thread = await first.start(Request)
    outside = [first.runtime._running, second.runtime._running, sim.client()]

    async def decide(number: int) -> BaseException | None:
        signal = (Request.approve, Request.deny)[number % 2]
        handle = outside[number % 3].thread(Request, **PLACE)
        try:
            named = "request-1" if one_id else f"call-{number}"
            await handle.signal(signal, Decision(by=f"p{number}"), id=named)
        except (SignalConflict, SignalRefused) as refused:
            return refused
        return None

    told = await asyncio.gather(*(decide(number) for number in range(50)))
    ended = await thread.result()
    assert len(ended.data.lines) == 1
    assert len(sim.world.arrivals) == (1 if ended.state == "done" else 0)
    if one_id:  # the id names the decision: whoever is not the first is told that it holds another one
        assert sum(refused is None for refused in told) == 1
        assert {type(refused) for refused in told if refused is not None} <= {SignalConflict, SignalRefused}
    else:  # each was accepted, or told how the thread has ended; those that were too late are listed
        left = [row.id for row in await thread.pending()]
        assert len(left) + 1 == sum(refused is None for refused in told)


def test_processes_that_decide_at_once_are_told_whose_decision_stands(at_desk: Path) -> None:
    command = [sys.executable, "-m", "perdure.runtime._cli", "signal", "review", "approve"]
    commands = [
        [*command, "--data", json.dumps({"by": name}), "--id", "request-1"] for name in ("ada", "eve", "bob")
    ]
    processes = [subprocess.Popen(each, stderr=subprocess.PIPE, text=True) for each in commands]
    told = [(process.communicate()[1], process.returncode) for process in processes]
    assert sorted(status for _, status in told) == [0, 2, 2]
    assert all("request-1" in said for said, status in told if status)


# --- two questions in a row -----------------------------------------------------------------------------


@record
class Answer:
    text: str


class Form(Machine[Note, World], version=1, calls=CALLS):
    """An effect, then question A, then question B."""

    begins = State(initial=True)
    asks_a = State()
    asks_b = State()
    done = State(final=True)
    began = begins.to(asks_a)
    a = asks_a.to(asks_b).on_signal(Answer)
    b = asks_b.to(done).on_signal(Answer)

    @begins.handler
    async def begin(self, data: Note, step: Step[World]) -> Fire:
        return self.began(text=str(await step.call(looked, "opened")))

    @a.received
    def answered_a(self, data: Note, said: Answer) -> Accept:
        return self.a(lines=[f"a: {said.text}"])

    @b.received
    def answered_b(self, data: Note, said: Answer) -> Accept:
        return self.b(lines=[f"b: {said.text}"])


@simulated
async def test_an_answered_question_is_not_asked_again_and_the_open_one_is_not_lost(loop: SimLoop) -> None:
    sim = Sim(loop, Form)
    first = await sim.engine()
    thread = await first.start(Form)
    await thread.settled()
    await thread.signal(Form.b, Answer(text="two"), id="b")  # it comes too early, and is kept
    first.kill()
    await thread.signal(Form.a, Answer(text="one"), id="a")
    seen = sim.thread(Form)
    assert await seen.state() == "asks_a"
    assert [row.event for row in await seen.pending()] == ["b", "a"]
    await sim.engine()
    ended = await thread.result()
    assert ended.data.lines == ("a: one", "b: two")
    assert len(sim.world.arrivals) == 1


@simulated
async def test_the_open_question_is_listed_after_a_restart(loop: SimLoop) -> None:
    sim = Sim(loop, Form)
    first = await sim.engine()
    thread = await first.start(Form)
    await thread.settled()
    await thread.signal(Form.a, Answer(text="one"), id="a")
    await thread.settled()
    first.kill()
    await sim.engine()
    assert "waiting for a signal (b)" in await thread.why()
    await thread.signal(Form.b, Answer(text="two"), id="b")
    assert ((await thread.result()).data.lines, len(sim.world.arrivals)) == (("a: one", "b: two"), 1)


# --- cancel and finish race -----------------------------------------------------------------------------


class Short(Machine[Note, World], version=1, calls=CALLS):
    """Works for a moment, and may be called off meanwhile."""

    works = State(initial=True)
    done = State(final=True)
    off = State(final=True)
    worked = works.to(done)
    call_off = works.to(off).on_cancel()

    @works.handler
    async def work(self, data: Note, step: Step[World]) -> Fire:
        await sleep(0.001 * len(data.text or ""))
        return self.worked()

    @call_off.received
    def called(self, data: Note, asked: Cancellation) -> Accept:
        return self.call_off(lines=[asked.by])


def test_of_a_cancel_and_the_final_commit_one_holds_a_thousand_times() -> None:
    ends: dict[str, int] = {"done": 0, "off": 0}

    async def story(loop: SimLoop) -> None:
        sim = Sim(loop, Short)
        engine = await sim.engine()
        chance = random.Random(7)

        async def race(number: int) -> None:
            name = f"t{number}"
            thread = await engine.start(Short, Note(text="x" * chance.randrange(3)), thread_id=name)
            await sleep(chance.choice([0, 0, 0.001, 0.002]))
            for _ in range(chance.randrange(12)):
                await sleep(0)
            told: str | None = None
            try:
                await (sim.client() if number % 2 else engine.runtime._running).cancel(
                    thread_id=name, workspace="w", by="ada"
                )
            except SignalRefused as refused:
                told = str(refused)
            ended = await thread.result()
            ends[ended.state] += 1
            kinds = [row.kind for row, _ in await sim.rows(name)]
            assert kinds.count("transition") == 1, kinds
            assert ended.data.lines == (("ada",) if ended.state == "off" else ())
            if told is not None:
                assert (ended.state, "has ended: in state 'done'" in told) == ("done", True)

        for batch in range(20):
            await asyncio.gather(*(race(50 * batch + number) for number in range(50)))

    simulate(story)
    assert sum(ends.values()) == 1000
    assert min(ends.values()) > 100, "both must have come first"


# --- a reply that is lost -------------------------------------------------------------------------------


class Silent(SQLiteStore):
    """Every reply to a start is lost; each of them lands."""

    async def start(self, start: Start, /) -> Started:
        await super().start(start)
        raise OutcomeUnknown("the reply was lost")


START = ("start", "cli_desk:runtime", "Desk", "--data", '{"item": "pot"}', "--thread", "pot")
WITH = ("--signal", "approve", "--payload", '{"by": "ada"}', "--id", "a1")


def test_a_start_whose_reply_is_lost_is_unknown_and_may_be_sent_again(
    cli: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(_cli_operate, "PATIENCE", 0.1)
        broken.setattr(_runtime, "open_store", lambda url, clock: Silent("perdure.db"))
        said = cli(*START, *WITH)
    assert (said.status, said.out, said.err.count("\n")) == (75, "", 1)
    assert said.err.rstrip().endswith("start it again with --thread pot and --id a1: it starts once")
    again = cli(*START, *WITH)
    assert again.lines == [
        "thread 'pot' of Desk is in the store, with signal approve (id a1) in its inbox: a worker runs it"
    ]
    ended = cli("run", "cli_desk:runtime", "Desk", "--thread", "pot", "--json")
    assert (ended.status, json.loads(ended.out)["state"]) == (0, "done")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--payload", "{}"], "--payload and --id go with --signal"),
        (["--signal", "nope"], "Desk has no signal 'nope'"),
        (["--signal", "approve"], "--payload: Desk.approve takes a payload of type Approval"),
        (["--signal", "approve", "--payload", '{"by": 3}'], "--payload: Desk.approve.by"),
        (["--priority", "11"], "--priority"),
        (["--data", '{"thing": 1}'], "takes no field 'thing'"),
    ],
)
def test_a_start_that_cannot_be_is_refused_in_a_line(options: list[str], said: str, cli: Perdure) -> None:
    given = () if "--data" in options else START[3:5]
    refused = cli(*START[:3], *given, *options)
    assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert said in refused.err


def test_a_start_says_what_it_did(cli: Perdure) -> None:
    told = json.loads(cli(*START, "--json").out)
    said = {"thread": "pot", "workspace": "default", "machine": "Desk", "signals": [], "state": "reading"}
    assert told == said
    why = cli("why", "pot", "--runtime", "cli_desk:runtime").out
    assert "runnable, and no worker has claimed it yet" in why
