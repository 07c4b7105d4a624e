"""``perdure data``, ``diff`` and ``journal``: the record as it is stored, and each way in which it breaks."""

import contextlib
import json
import sqlite3
from typing import Any

import anyio
import pytest
from attrs import evolve
from harness.cli import FORBIDDEN, NASTY, Perdure

from perdure.runtime._journal import seal
from perdure.runtime._look import find_thread
from perdure.runtime._verify import Verified, verify
from perdure.stores import Address, SQLiteStore, ThreadRow

pytest_plugins = ("harness.desk",)


def change(*statements: str) -> None:
    """Damage what is stored of the thread ``done``; ``:t`` is its number."""
    with contextlib.closing(sqlite3.connect("perdure.db")) as database, database:
        ((number,),) = database.execute("SELECT id FROM thread WHERE thread_id = 'done'").fetchall()
        for statement in statements:
            assert database.execute(statement, {"t": number}).rowcount, statement


# --- data and diff --------------------------------------------------------------------------------


def test_the_data_at_each_checkpoint(cli: Perdure) -> None:
    told = [json.loads(cli("data", "done", "--at", str(seq), "--json").out) for seq in range(6)]
    assert [(t["seq"], t["state"], t["event"]) for t in told] == [
        (0, "reading", None),
        (1, "noting", "read"),
        (2, "review", "noted"),
        (3, "noting", "again"),
        (4, "review", "noted"),
        (5, "done", "approve"),
    ]
    assert [t["data"]["count"] for t in told] == [1, 1, 2, 2, 3, 3]
    assert [t["data"]["price"] for t in told] == [0.0, *["inf"] * 5]
    assert [t["data"].get("notes", []) for t in told[1:4]] == [
        ["read", NASTY],
        ["read", NASTY, "noted"],
        ["read", NASTY, "noted"],
    ]
    assert told[5]["data"]["notes"] == ["read", NASTY, "noted", "noted", "ada"]
    newest = json.loads(cli("data", "done", "--json").out)
    assert newest == told[5]
    assert json.loads(cli("show", "done", "--json").out)["data"] == newest["data"]


def test_data_reads_in_text(cli: Perdure) -> None:
    said = cli("data", "done", "--at", "2")
    assert said.lines[0].startswith("thread 'done' at seq 2 in review  noted, 20")
    assert json.loads("\n".join(said.lines[1:]))["count"] == 2


def test_diff_is_field_by_field_and_appends_are_appends(cli: Perdure) -> None:
    assert cli("diff", "done", "2", "5").lines == [
        "thread 'done' from seq 2 in review to seq 5 in done",
        "  count  2 -> 3",
        "  notes  2 appended",
        '    + "noted"',
        '    + "ada"',
    ]
    told = json.loads(cli("diff", "done", "0", "1", "--json").out)
    assert (told["from"]["seq"], told["to"]["seq"]) == (0, 1)
    assert told["changes"] == [
        {"field": "price", "change": "set", "before": 0.0, "after": "inf"},
        {"field": "notes", "change": "appended", "items": ["read", NASTY], "dropped": 0},
    ]
    assert cli("diff", "done", "2", "3").lines[1:] == ["  no field is different"]


def test_diff_backwards_takes_away(cli: Perdure) -> None:
    lines = cli("diff", "done", "5", "2").lines
    assert lines[0] == "thread 'done' from seq 5 in done to seq 2 in review"
    assert lines[1] == "  count  3 -> 2"
    assert lines[2].startswith('  notes  ["read", "\\u001b[31mred')


# --- journal --------------------------------------------------------------------------------------


def test_the_journal_is_paged_and_says_what_each_row_holds(cli: Perdure) -> None:
    first = cli("journal", "done", "--limit", "2")
    assert first.lines[0].startswith("    0  seq 0    start       epoch 1  20")
    assert "  -> reading  snapshot" in first.lines[0]
    assert "  reading -> noting  read  sets " in first.lines[1]
    assert first.lines[2] == "more: perdure journal done --after 1"
    rows = [json.loads(line) for line in cli("journal", "done", "--after", "1", "--json").lines]
    assert [(row["n"], row["seq"], row["kind"], row["event"]) for row in rows] == [
        (2, 2, "transition", "noted"),
        (3, 3, "transition", "again"),
        (4, 4, "transition", "noted"),
        (5, 5, "transition", "approve"),
    ]
    assert rows[1]["entries"][0]["k"] == "signal"
    assert rows[1]["entries"][0]["id"] == "once"
    assert "[signal once]" in cli("journal", "done").out
    assert "[intent pay pd_" in cli("journal", "doubt").out


def test_a_whole_journal_is_told_with_what_is_covered(cli: Perdure) -> None:
    said = cli("journal", "done", "--verify")
    assert said.status == 0
    assert said.lines == [
        "thread 'done': 6 rows follow each other from its incarnation on",
        "beside them: what 5 rows wrote is as it was (items, messages, memory, artifacts, inbox entries "
        "taken in)",
    ]
    told = json.loads(cli("journal", "done", "--verify", "--json").out)
    assert told == {
        "thread": "done",
        "workspace": "default",
        "whole": True,
        "rows": 6,
        "purged": 0,
        "beside": 5,
        "open": [],
        "broken": None,
    }
    for thread in ("review", "doubt"):
        assert cli("journal", thread, "--verify").status == 0


def test_a_purged_row_is_told_and_fine(cli: Perdure) -> None:
    with contextlib.closing(sqlite3.connect("perdure.db")) as database, database:
        ((number, salt, payload),) = database.execute(
            "SELECT l.thread, l.salt, l.payload FROM log l JOIN thread t ON t.id = l.thread "
            "WHERE t.thread_id = 'done' AND l.n = 2"
        ).fetchall()
        sealed = seal(salt, payload)
        database.execute(
            "UPDATE log SET salt = NULL, payload = ? WHERE thread = ? AND n = 2", (sealed, number)
        )
    said = cli("journal", "done", "--verify")
    assert said.status == 0
    assert said.lines[0].endswith(
        "6 rows follow each other from its incarnation on; 1 purged, as the chain says"
    )
    assert "  purged" in cli("journal", "done").lines[2]
    assert "purged" in cli("data", "done", "--at", "3").err


FLIPPED = "substr(payload, 1, 8) || 'z' || substr(payload, 10)"


def replaced(table: str, old: str, new: str, where: str) -> str:
    payload = f"CAST(replace(payload, '{old}', '{new}') AS BLOB)"
    return f"UPDATE {table} SET payload = {payload} WHERE {where}"


BROKEN: dict[str, tuple[list[str], int, str]] = {
    "payload": (
        [f"UPDATE log SET payload = CAST({FLIPPED} AS BLOB) WHERE thread = :t AND n = 2"],
        2,
        "content",
    ),
    "salt": (["UPDATE log SET salt = zeroblob(16) WHERE thread = :t AND n = 2"], 2, "content"),
    "time": (["UPDATE log SET at = at + 1 WHERE thread = :t AND n = 4"], 4, "content"),
    "kind": (["UPDATE log SET kind = 2 WHERE thread = :t AND n = 3"], 3, "kind"),
    "seq": (["UPDATE log SET seq = 1 WHERE thread = :t AND n = 3"], 3, "seq"),
    "epoch": (["UPDATE log SET epoch = 0 WHERE thread = :t AND n = 1"], 1, "epoch"),
    "head": (["UPDATE log SET head = zeroblob(32) WHERE thread = :t AND n = 1"], 1, "head"),
    "last head": (["UPDATE log SET head = zeroblob(32) WHERE thread = :t AND n = 5"], 5, "content"),
    "gap": (["DELETE FROM log WHERE thread = :t AND n = 2"], 2, "gap"),
    "first gone": (["DELETE FROM log WHERE thread = :t AND n = 0"], 0, "gap"),
    "order": (
        [
            "UPDATE log SET n = 99 WHERE thread = :t AND n = 2",
            "UPDATE log SET n = 2 WHERE thread = :t AND n = 4",
            "UPDATE log SET n = 4 WHERE thread = :t AND n = 99",
        ],
        2,
        "order",
    ),
    "incarnation": (["UPDATE standing SET incarnation = zeroblob(16) WHERE id = :t"], 0, "content"),
    "items": ([replaced("items", "read", "lead", "thread = :t AND n = 1")], 1, "beside"),
    "items gone": (["DELETE FROM items WHERE thread = :t AND n = 4"], 4, "beside"),
    "message": ([replaced("message", "red", "bed", "session = 'done' AND :t")], 1, "beside"),
    "taken by another": (["UPDATE inbox SET consumed = 1 WHERE thread = :t AND id = 'once'"], 3, "beside"),
    "signal": ([replaced("inbox", "ada", "eve", "thread = :t AND id = 'yes'")], 6, "inbox"),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_the_first_broken_link_is_named(damage: str, cli: Perdure) -> None:
    statements, n, part = BROKEN[damage]
    change(*statements)
    said = cli("journal", "done", "--verify")
    assert said.status == 1
    [line] = said.lines
    assert line.startswith("thread 'done': broken at row ")
    assert f" at row {n} (seq " in line
    assert f", {part}: " in line
    told = json.loads(cli("journal", "done", "--verify", "--json").out)
    assert (told["whole"], told["broken"]["n"], told["broken"]["part"]) == (False, n, part)
    assert cli("journal", "review", "--verify").status == 0


@pytest.mark.usefixtures("at_desk")
@pytest.mark.parametrize("head", [None, b"another"])
def test_a_record_that_ends_early_is_broken(head: bytes | None) -> None:
    """A store may keep a thread's row apart from its log, and then they can disagree."""

    async def verified() -> Verified:
        async with SQLiteStore("perdure.db") as store:
            row = await find_thread(store, Address(workspace="default", thread_id="done"))
            other = evolve(row, n=row.n + 1) if head is None else evolve(row, head=head)
            return await verify(store, other)

    found = anyio.run(verified)
    assert (found.rows, found.broken and found.broken.part) == (6, "end")


def test_rows_that_come_while_it_looks_are_no_damage(cli: Perdure) -> None:
    async def standing() -> ThreadRow:
        async with SQLiteStore("perdure.db") as store:
            return await find_thread(store, Address(workspace="default", thread_id="review"))

    async def verified(row: ThreadRow) -> Verified:
        async with SQLiteStore("perdure.db") as store:
            return await verify(store, row)

    before = anyio.run(standing)
    code = ("--runtime", "cli_desk:runtime")
    assert cli("signal", "review", "approve", "--data", '{"by": "ada"}', *code).status == 0
    assert cli("run", "cli_desk:runtime", "Desk", "--thread", "review").status == 0
    assert anyio.run(standing).n > before.n
    found = anyio.run(verified, before)
    assert (found.broken, found.rows) == (None, before.n)


@pytest.mark.parametrize("payload", [b"", b"{", b"[1]", b'{"x": [{}]}', b"\xff\xfe"])
def test_a_row_that_cannot_be_read_is_shown_as_such(payload: bytes, cli: Perdure) -> None:
    with contextlib.closing(sqlite3.connect("perdure.db")) as database, database:
        database.execute("UPDATE log SET payload = ? WHERE n = 1", (payload,))
    said = cli("journal", "done")
    assert (said.status, said.err) == (0, "")
    assert "cannot be read: " in said.lines[1]
    for line in cli("journal", "done", "--json").lines:
        json.loads(line)
    assert cli("journal", "done", "--verify").status == 1
    for command in (["data", "done", "--at", "1"], ["diff", "done", "0", "2"]):
        said = cli(*command)
        if payload != b'{"x": [{}]}':
            assert (said.status, said.err.count("\n")) == (2, 1)
            assert "cannot be read" in said.err


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["data", "nobody"], "no thread 'nobody'"),
        (["data", "done", "--at", "6"], "has checkpoints 0 to 5, and none 6: `perdure history done`"),
        (["data", "done", "--at", "-1"], "has checkpoints 0 to 5, and none -1"),
        (["data", "done", "--at", "x"], "'--at'"),
        (["diff", "done", "0"], "Missing argument"),
        (["diff", "done", "0", "9"], "none 9"),
        (["journal", "nobody"], "no thread 'nobody'"),
        (["journal", "nobody", "--verify"], "no thread 'nobody'"),
        (["journal", "done", "--limit", "0"], "'--limit'"),
        (["journal", "done", "--after", "-2"], "'--after'"),
        (["journal", "x'); DROP TABLE log; --"], "no thread"),
        (["data", "done", "--store", "nope://me:p@ss%5E?]@host/db"], "no store is known for nope://"),
    ],
)
def test_bad_input_is_one_line(command: list[str], expected: str, cli: Perdure) -> None:
    said = cli(*command)
    assert expected in said.err
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    assert "p@ss" not in said.err


@pytest.mark.parametrize("json_too", [(), ("--json",)])
@pytest.mark.parametrize(
    "command", [["data", "done"], ["diff", "done", "0", "5"], ["journal", "done"], ["journal", "doubt"]]
)
def test_stored_text_is_escaped(command: list[str], json_too: tuple[str, ...], cli: Perdure) -> None:
    said = cli(*command, *json_too)
    assert said.status == 0
    assert not [char for char in FORBIDDEN if char in said.out]
    if json_too:
        documents: list[Any] = [json.loads(line, parse_constant=pytest.fail) for line in said.lines]
        assert documents
