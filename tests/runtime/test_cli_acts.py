"""``perdure signal``, ``cancel`` and ``terminate``: what they say, refuse, and leave in the store."""

import contextlib
import io
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.cli import FORBIDDEN, NASTY, Perdure

from perdure.runtime import _cli_load, _cli_operate
from perdure.stores import Delivered, OutcomeUnknown, Signal, SQLiteStore

pytest_plugins = ("harness.desk",)

CODE = ("--runtime", "cli_desk:runtime")
APPROVE = ("signal", "review", "approve", "--data", '{"by": "ada"}', *CODE)


def inbox() -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect("perdure.db")) as database:
        rows = database.execute(
            "SELECT i.event, i.id, i.payload FROM inbox i JOIN thread t ON t.id = i.thread "
            "WHERE t.thread_id = 'review' ORDER BY i.number"
        )
        return rows.fetchall()


# --- signal ---------------------------------------------------------------------------------------


def test_a_signal_is_put_into_the_inbox_once_by_its_id(cli: Perdure) -> None:
    for _ in range(2):
        said = cli(*APPROVE, "--id", "a1")
        assert (said.status, said.err) == (0, "")
        assert said.lines == ["signal approve is in the inbox of thread 'review' with id a1"]
    assert inbox() == [("approve", "a1", b'{"amount":0,"by":"ada"}')]


def test_without_an_id_one_is_drawn_and_told(cli: Perdure) -> None:
    text = cli(*APPROVE)
    [first] = inbox()
    assert text.lines == [
        f"signal approve is in the inbox of thread 'review' with id {first[1]}, drawn at random: to send "
        "this very signal again, give that id"
    ]
    told = json.loads(cli("signal", "review", "again", *CODE, "--json").out)
    assert inbox()[1] == ("again", told["id"], b"null")
    assert told["id"] != first[1]
    assert told == {
        "thread": "review",
        "workspace": "default",
        "signal": "again",
        "id": told["id"],
        "drawn": True,
    }


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["signal", "review", "nope", *CODE], "Desk has no signal 'nope'; it has: approve, again"),
        (["signal", "review", "late", *CODE], "Desk has no signal 'late'"),
        (["signal", "review", "approve", *CODE], "--data: Desk.approve takes a payload of type Approval"),
        (["signal", "review", "approve", "--data", "{", *CODE], "--data is not"),
        (["signal", "review", "approve", "--data", '{"by": 3}', *CODE], "--data: Desk.approve.by"),
        (["signal", "review", "approve", "--data", '{"who": "x"}', *CODE], "Desk.approve"),
        (["signal", "review", "again", "--data", "{}", *CODE], "takes no payload: leave it away"),
        (["signal", "review", "nope"], "version 2 of Desk has no signal 'nope'; it has: again, approve"),
        (["signal", "review", "approve", "--data", '{"by": 3}'], "by: 3 is not of type 'string'"),
        (["signal", "review", "again", "--runtime", "cli_desk:other"], "of machine 'Desk', not known to"),
        (["signal", "nobody", "again", *CODE], "no thread 'nobody'"),
        (["signal", "done", "again", *CODE], "the thread has ended: in state 'done'"),
        (["signal", "review", "again", "--id", ":cancel", *CODE], "this id is the runtime's own"),
        (["signal", "review", "again", "--id", "", *CODE], "empty"),
        (["cancel", "nobody"], "no thread 'nobody'"),
        (["cancel", "done"], "thread 'done' has ended: in state 'done'"),
        (["cancel", "review", "--by", ""], "by is empty"),
        (["cancel", "review", "--by", "a\x1bb"], "control character"),
        (["terminate", "nobody", "--yes"], "no thread 'nobody'"),
        (["terminate", "done", "--yes"], "thread 'done' has ended: in state 'done'"),
        (["terminate", "review"], "ends it for good, without asking its code: say --yes"),
        (["terminate", "review' OR 1=1 --", "--yes"], 'no thread "review\' OR 1=1 --"'),
        (["cancel", "review", "--store", "nope://me:p@ss%5E?]@host/db"], "no store is known for nope://"),
    ],
    ids=lambda value: None if isinstance(value, str) else ascii(" ".join(value))[1:60],
)
def test_what_is_refused_is_one_line_and_writes_nothing(
    command: list[str], expected: str, cli: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    said = cli(*command)
    assert expected in said.err
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    assert "p@ss" not in said.err
    assert inbox() == []
    assert json.loads(cli("show", "review", "--json").out)["status"] == "waiting"


def test_an_id_with_another_payload_is_a_conflict(cli: Perdure) -> None:
    cli(*APPROVE, "--id", "a1")
    said = cli("signal", "review", "approve", "--data", '{"by": "eve"}', "--id", "a1", *CODE)
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert "a1" in said.err
    assert [row[2] for row in inbox()] == [b'{"amount":0,"by":"ada"}']


class Silent(SQLiteStore):
    """Every reply to a delivery is lost; the first of them lands."""

    async def deliver(self, signal: Signal, /) -> Delivered:
        await super().deliver(signal)
        raise OutcomeUnknown("the reply was lost")


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ([*APPROVE, "--id", "a1"], "send it again with --id a1: it counts once"),
        (["cancel", "review"], "ask again: it counts once"),
        (["terminate", "review", "--yes"], "terminate it again: it ends once"),
    ],
)
def test_a_lost_reply_is_unknown_and_not_failed(
    command: list[str], advice: str, cli: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(_cli_operate, "PATIENCE", 0.1)
        broken.setattr(_cli_load, "open_store", lambda url, **_: Silent("perdure.db"))
        said = cli(*command)
    assert (said.status, said.out, said.err.count("\n")) == (75, "", 1)
    assert said.err.startswith("perdure: unknown: the store does not answer whether ")
    assert said.err.rstrip().endswith(advice)
    assert len(inbox()) == 1
    assert cli(*command).status == 0
    assert len(inbox()) == 1


def test_an_id_that_was_drawn_is_told_when_the_reply_is_lost(
    cli: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cli_operate, "PATIENCE", 0.1)
    monkeypatch.setattr(_cli_load, "open_store", lambda url, **_: Silent("perdure.db"))
    said = cli(*APPROVE)
    [(_, drawn, _)] = inbox()
    assert f"send it again with --id {drawn}: it counts once" in said.err


# --- cancel and terminate -------------------------------------------------------------------------


def test_the_first_cancel_s_words_stand(cli: Perdure) -> None:
    said = cli("cancel", "review", "--reason", "too late", "--by", "ada")
    assert said.lines == [
        "thread 'review' is asked to end (cancel by ada: too late): a worker does it, and `perdure why "
        "review` says where it stands"
    ]
    again = cli("cancel", "review", "--by", "eve")
    assert again.lines == [
        "thread 'review' was asked to end before, and those words stand: cancel by ada: too late"
    ]
    told = json.loads(cli("cancel", "review", "--by", "eve", "--json").out)
    assert (told["message"], told["new"], told["taken"]) == ("cancel by ada: too late", False, False)
    assert "cancel by ada: too late" in cli("why", "review", *CODE).out


def test_terminate_ends_it_and_says_what_stays(cli: Perdure) -> None:
    said = cli("terminate", "doubt", "--yes", "--by", "ada", "--reason", "stuck")
    assert said.status == 0
    [line] = said.lines
    assert line.startswith(
        "thread 'doubt' has ended: in state 'sending', terminated by ada: stuck; in doubt stay: pay (pd_"
    )
    shown = json.loads(cli("show", "doubt", "--json").out)
    assert (shown["status"], shown["reason"], shown["state"]) == ("ended", "terminated", "sending")
    assert "terminated by ada: stuck" in cli("history", "doubt").out
    assert "terminated by ada: stuck" in cli("why", "doubt").out


def test_terminate_as_json(cli: Perdure) -> None:
    told = json.loads(cli("terminate", "review", "--yes", "--json").out)
    assert (told["thread"], told["status"], told["reason"]) == ("review", "ended", "terminated")


@pytest.mark.parametrize(("answer", "status", "after"), [("y\n", 0, "ended"), ("\n", 1, "waiting")])
def test_on_a_terminal_terminate_asks(
    answer: str, status: int, after: str, cli: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    said = cli("terminate", "review")
    assert said.status == status
    assert "terminate thread 'review' of Desk, in state 'review'? It ends for good" in said.err
    assert json.loads(cli("show", "review", "--json").out)["status"] == after


def test_words_that_a_terminal_would_obey_are_shown_as_text(cli: Perdure, at_desk: Path) -> None:
    for command in (
        ["cancel", "review", "--reason", NASTY],
        ["cancel", "review", "--json"],
        ["why", "review"],
        ["terminate", "review", "--yes", "--reason", NASTY],
        ["show", "review"],
        ["history", "review", "--json"],
        ["why", "review", "--json"],
    ):
        said = cli(*command)
        assert said.status == 0
        assert not [char for char in FORBIDDEN if char in said.out + said.err], command
