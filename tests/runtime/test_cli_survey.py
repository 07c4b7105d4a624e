"""``perdure graph``, ``tail``, ``stats`` and ``doctor``."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from harness.cli import FORBIDDEN, Perdure

from perdure.runtime import _cli_tail, _doctor, _survey
from perdure.runtime._cli_tail import Follower
from perdure.runtime._doctor import disk
from perdure.runtime._env import Env
from perdure.runtime._look import find_thread
from perdure.stores import Address, SQLiteStore, StoreFacts

pytest_plugins = ("harness.desk",)

DRAW = ("graph", "cli_desk:runtime", "Desk")
CODE = ("--runtime", "cli_desk:runtime")


def store(*statements: str) -> None:
    with contextlib.closing(sqlite3.connect("perdure.db")) as database, database:
        for statement in statements:
            assert database.execute(statement).rowcount, statement


# --- graph ----------------------------------------------------------------------------------------


def test_graph_is_mermaid_and_marks_the_way_of_a_thread(cli: Perdure) -> None:
    said = cli(*DRAW)
    assert (said.status, said.lines[0]) == (0, "stateDiagram-v2")
    assert "    review --> done: approve (signal Approval)" in said.lines
    assert "classDef visited" not in said.out
    marked = cli(*DRAW, "--thread", "done")
    assert "    review --> done: (5) approve (signal Approval)" in marked.lines
    assert "    noting --> review: (2, 4) noted" in marked.lines
    assert "    class expired visited" not in marked.lines
    assert "    class done last" in marked.lines


def test_graph_as_dot_and_json(cli: Perdure) -> None:
    assert cli(*DRAW, "--format", "dot").lines[0] == 'digraph "Desk" {'
    told = json.loads(cli(*DRAW, "--thread", "review", "--json").out)
    assert told["path"] == [
        {"from": "reading", "event": "read", "to": "noting"},
        {"from": "noting", "event": "noted", "to": "review"},
    ]
    assert told["text"].startswith("stateDiagram-v2\n")


def test_graph_as_svg_needs_graphviz(cli: Perdure, at_desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(at_desk))
    said = cli(*DRAW, "--format", "svg")
    assert (said.status, said.out) == (2, "")
    assert "install the package graphviz" in said.err
    tool = at_desk / "dot"
    tool.write_text('#!/bin/sh\n[ "$1" = -Tsvg ] && read line && echo "<svg>$line</svg>"\n')
    tool.chmod(0o755)
    assert cli(*DRAW, "--format", "svg").out == '<svg>digraph "Desk" {</svg>\n'
    tool.write_text("#!/bin/sh\necho '<svg>\x1b[31m\u202e</svg>'\n")
    assert cli(*DRAW, "--format", "svg").out == "<svg>\\x1b[31m\\u202e</svg>\n"
    tool.write_text("#!/bin/sh\necho 'syntax\x1b[31m error' >&2; exit 3\n")
    said = cli(*DRAW, "--format", "svg")
    assert said.status == 2
    assert "`dot` cannot draw it (syntax\\x1b[31m error): take --format mermaid" in said.err


def test_graph_of_a_stored_event_that_is_markup_draws_text(cli: Perdure) -> None:
    store(
        """UPDATE log SET payload = CAST(replace(payload, '"e":"noted"', '"e":"<b onx=1>\\u202ex;"') AS BLOB)
        WHERE n = 2 AND thread = (SELECT id FROM thread WHERE thread_id = 'review')"""
    )
    for form in ("mermaid", "dot"):
        said = cli(*DRAW, "--thread", "review", "--format", form)
        assert said.status == 0
        assert "not in this version" in said.out
        assert not [char for char in FORBIDDEN if char in said.out]
    assert "<b" not in cli(*DRAW, "--thread", "review").out


# --- tail -----------------------------------------------------------------------------------------


def test_tail_of_a_thread_that_is_over_tells_and_ends(cli: Perdure) -> None:
    said = cli("tail", "done")
    assert said.status == 0
    assert [line.split()[0] for line in said.lines[:-1]] == ["0", "1", "2", "3", "4", "5"]
    assert said.lines[-1] == "thread 'done' has ended: in state 'done'"
    parked = cli("tail", "doubt")
    assert parked.status == 1
    assert parked.lines[-1].startswith("thread 'doubt' is parked (in doubt): effect pay with key pd_")
    rows = [json.loads(line) for line in cli("tail", "doubt", "--json").lines]
    assert [row.get("kind") for row in rows] == ["start", "record", "park", None]
    assert rows[-1]["status"] == "parked"


START = [sys.executable, "-c", "from perdure.runtime._cli import main; main()"]


@contextlib.contextmanager
def tailing(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child inherits what is ignored
    try:
        with subprocess.Popen(
            [*START, "tail", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            try:
                yield child
            finally:
                child.kill()
    finally:
        signal.signal(signal.SIGINT, before)


def test_tail_follows_a_thread_to_its_end(cli: Perdure) -> None:
    with tailing("review", "--json") as child:
        assert child.stdout is not None
        seen = [json.loads(child.stdout.readline()) for _ in range(3)]
        assert [row["n"] for row in seen] == [0, 1, 2]
        assert cli("signal", "review", "approve", "--data", '{"by": "ada"}', *CODE).status == 0
        assert cli("run", "cli_desk:runtime", "Desk", "--thread", "review").status == 0
        out, err = child.communicate(timeout=30)
    last = [json.loads(line) for line in out.splitlines()]
    assert (last[0]["event"], last[0]["entries"][0]["k"]) == ("approve", "signal")
    assert (last[-1]["status"], last[-1]["state"]) == ("ended", "done")
    assert (child.returncode, err) == (0, "")


def test_ctrl_c_ends_a_tail_without_a_traceback(cli: Perdure) -> None:
    with tailing("review") as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert (err.count("\n"), err.startswith("perdure: interrupted")) == (1, True)


@pytest.mark.usefixtures("at_desk")
def test_a_look_at_all_threads_is_one_query_and_tells_only_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queries: list[str] = []

    class Counted(SQLiteStore):
        async def page(self, query, /, **options):  # type: ignore[no-untyped-def]
            queries.append(type(query).__name__)
            return await super().page(query, **options)

    told: list[tuple[str, int]] = []
    looks: list[list[str]] = []

    async def follow(since: int) -> None:
        async def pause() -> None:
            looks.append(queries.copy())
            queries.clear()
            if len(looks) == 5:
                raise KeyError("enough")

        monkeypatch.setattr(_cli_tail, "PAGE", 2)
        async with Counted("perdure.db") as opened:
            found = _cli_tail.follow(opened, "default", None, Follower(since), pause)
            async for row, log in found:
                told.append((row.address.thread_id, log.n))

    async def when() -> int:
        async with SQLiteStore("perdure.db") as opened:
            row = await find_thread(opened, Address(workspace="default", thread_id="done"))
        return row.updated

    since = anyio.run(when)
    with pytest.raises(KeyError):
        anyio.run(follow, since)
    assert told == [("done", 5)]
    assert looks == [["Threads", "Log", "Log", "Log"], ["Threads"], ["Threads"], ["Threads"], ["Threads"]]


# --- stats ----------------------------------------------------------------------------------------


def test_stats_counts_threads_and_measures_the_store(cli: Perdure, at_desk: Path) -> None:
    told = json.loads(cli("stats", "--json").out)
    assert (told["threads"], told["sampled"]) == (3, False)
    assert told["status"] == {"ended": 1, "parked": 1, "waiting": 1}
    assert told["machines"] == {"Desk": 2, "Paying": 1}
    assert told["parked"] == {"in doubt": 1}
    assert told["longest"][0] == {"thread": "done", "rows": 6}
    assert told["files"][str(at_desk / "perdure.db")] == os.path.getsize("perdure.db")
    assert told["bytes"] == sum(told["files"].values())
    said = cli("stats")
    assert said.lines[0] == "3 threads in workspace 'default'"
    assert "Desk\tdone\tended\t1" in said.lines
    assert "parked (in doubt)  1: perdure ls --status parked" in said.lines
    assert cli("stats", "--workspace", "other").lines[0] == "0 threads in workspace 'other'"


def test_stats_says_when_it_counts_some(cli: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_survey, "MOST_THREADS", 2)
    assert cli("stats").lines[0] == (
        "2 threads in workspace 'default' (there are more: these are the first 2 by id)"
    )
    monkeypatch.setattr(_survey, "MOST_ROWS", 2)
    assert "journal   6 rows, the newest 2 measured, " in cli("stats", "done").out


def test_stats_of_a_thread(cli: Perdure) -> None:
    told = json.loads(cli("stats", "done", "--json").out)
    with contextlib.closing(sqlite3.connect("perdure.db")) as database:
        ((rows, size),) = database.execute(
            "SELECT count(*), sum(length(payload)) FROM log "
            "WHERE thread = (SELECT id FROM thread WHERE thread_id = 'done')"
        ).fetchall()
    assert (told["rows"], told["measured"], told["log_bytes"]) == (rows, rows, size)
    assert (told["snapshots"], told["items"], told["messages"], told["steps"]) == (1, 4, 1, 5)
    assert told["largest"][0]["field"] == "notes"
    assert 0 < told["newest_step"] < told["log_bytes"]
    said = cli("stats", "done")
    assert said.lines[0] == "thread    done, Desk, done at seq 5"
    assert any(line.startswith("a step    median ") and " of 5, newest " in line for line in said.lines)
    assert any(line.startswith("  field   notes  ") for line in said.lines)


# --- doctor ---------------------------------------------------------------------------------------


def checks(said: str) -> dict[str, dict[str, str]]:
    return {line["check"]: line for line in map(json.loads, said.splitlines())}


def test_doctor_looks_at_everything(cli: Perdure) -> None:
    said = cli("doctor", *CODE, "--json")
    found = checks(said.out)
    assert said.status == 0, said.out
    assert {name: line["verdict"] for name, line in found.items() if name != "free disk"} == {
        "python": "ok",
        "packages": "ok",
        "store file": "ok",
        "file system": "ok",
        "store": "ok",
        "workers": "ok",
        "threads": "ok",
        "parked": "warn",
        "code": "ok",
        "artifacts": "ok",
    }
    assert "journal wal, synchronous FULL" in found["store file"]["said"]
    assert found["parked"]["said"] == "1 in doubt"
    assert "perdure ls --status parked" in found["parked"]["todo"]
    assert "1 left in good order" in found["workers"]["said"]
    text = cli("doctor", *CODE)
    assert text.lines[0].startswith("ok    python      3.")
    assert text.lines[-1].endswith("1 to look at")


def test_doctor_finds_what_the_code_cannot_run(cli: Perdure) -> None:
    store("UPDATE standing SET version = 7 WHERE state = 'review'")
    store("UPDATE standing SET state = 'lost' WHERE machine = 'Paying'")
    said = cli("doctor", *CODE, "--json")
    found = checks(said.out)
    assert said.status == 1
    assert found["versions"]["said"] == "threads need newer code: 1 of Desk version 7, and this code is 2"
    assert (found["states"]["verdict"], found["states"]["said"]) == (
        "wrong",
        "threads in states that this code does not have: 1 of Paying.lost",
    )
    other = checks(cli("doctor", "--runtime", "cli_desk:other", "--json").out)
    assert "of machines that this runtime does not have: 1 of Desk" in other["machines"]["said"]


def test_doctor_names_dead_workers_that_hold_threads(cli: Perdure) -> None:
    store(
        """INSERT INTO worker (id, host, pid, lock, lease, started, beat, schema)
            VALUES ('w-dead', 'host', 1, '/none', 15000000, 1, 1, 2)""",
        "UPDATE standing SET owner = 'w-dead', status = 0 WHERE state = 'review'",
    )
    line = checks(cli("doctor", "--json").out)["workers"]
    assert line["verdict"] == "warn"
    assert "1 dead" in line["said"]
    assert "dead ones hold threads: w-dead" in line["said"]


@pytest.mark.parametrize(
    ("options", "check", "expected"),
    [
        (["--store", "sqlite:///none.db"], "store", "there is no store at 'none.db'"),
        (["--store", "sqlite:///none.db?commit=inline"], "store", "there is no store at 'none.db'"),
        (["--store", "nope://me:p@ss%5E?]@host/db"], "store", "no store is known for nope://"),
        (["--store", "sqlite:///broken.db"], "store", "broken.db"),
        (["--artifacts", "nope://me:p@ss%5E?]@host/b"], "artifacts", ""),
        (["--artifacts", "file:none"], "artifacts", "none"),
    ],
)
def test_doctor_says_what_cannot_be_reached_and_goes_on(
    options: list[str], check: str, expected: str, cli: Perdure, at_desk: Path
) -> None:
    (at_desk / "broken.db").write_bytes(b"this is no database, and longer than a header" * 100)
    said = cli("doctor", *options, "--json")
    found = checks(said.out)
    assert said.status == 1
    assert found[check]["verdict"] == "wrong"
    assert expected in found[check]["said"]
    assert found[check]["todo"]
    assert {"python", "packages", "store", "artifacts"} <= set(found)
    assert "p@ss" not in said.out + said.err
    assert not (at_desk / "none").exists()


@pytest.mark.parametrize(
    ("facts", "check", "verdict"),
    [
        ({"shared": "network", "file_system": "nfs"}, "file system", "wrong"),
        ({"shared": "host", "file_system": "9p"}, "file system", "warn"),
        ({"free_bytes": 10}, "free disk", "wrong"),
        ({"free_bytes": 500_000_000}, "free disk", "warn"),
        ({"free_bytes": 5_000_000_000}, "free disk", "ok"),
        ({"journal_mode": "delete"}, "store file", "wrong"),
    ],
)
def test_doctor_judges_the_disk(facts: dict[str, Any], check: str, verdict: str) -> None:
    good = {"place": "/x.db", "schema": 1, "journal_mode": "wal", "synchronous": "FULL"}
    found = {each.name: each for each in disk(StoreFacts(kind="sqlite", **{**good, **facts}))}
    assert found[check].verdict == verdict
    assert bool(found[check].todo) == (verdict != "ok")


@pytest.mark.usefixtures("at_desk")
@pytest.mark.parametrize(("off", "verdict"), [(0, "ok"), (2_000_000, "warn"), (-60_000_000, "wrong")])
def test_doctor_compares_the_clocks(off: int, verdict: str) -> None:
    async def check() -> _doctor.Check:
        async with SQLiteStore("perdure.db", clock=lambda: 1_000_000_000_000_000) as opened:
            return await _doctor.clock(opened, Env(now=lambda: 1_000_000_000_000_000 + off))

    found = anyio.run(check)
    assert found.verdict == verdict
    assert bool(found.todo) == (verdict != "ok")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([*DRAW, "--thread", "nobody"], "no thread 'nobody'"),
        ([*DRAW, "--thread", "doubt"], "of machine 'Paying', not 'Desk'"),
        ([*DRAW[:2], "Nope"], "no machine 'Nope' in this runtime"),
        ([*DRAW, "--format", "png"], "'--format'"),
        (["graph", "cli_nowhere:runtime", "Desk"], "no module 'cli_nowhere'"),
        (["tail", "nobody"], "no thread 'nobody'"),
        (["tail", "done", "--machine", "Desk"], "--machine is for all threads"),
        (["stats", "nobody"], "no thread 'nobody'"),
        (["stats", "a' OR '1'='1"], "no thread"),
        (["doctor", "--runtime", "cli_nowhere:runtime"], "no module 'cli_nowhere'"),
    ],
)
def test_bad_input_is_one_line(command: list[str], expected: str, cli: Perdure) -> None:
    said = cli(*command)
    assert expected in said.err
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    "command", [["tail", "done"], ["tail", "doubt"], ["stats"], ["stats", "done"], ["doctor"]]
)
@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_stored_text_is_escaped(command: list[str], json_too: tuple[str, ...], cli: Perdure) -> None:
    store(
        "UPDATE standing SET state = 'x' || char(27) || '[31m' || char(8238) || '<b>' WHERE machine = 'Desk'"
    )
    said = cli(*command, *json_too)
    assert not [char for char in FORBIDDEN if char in said.out + said.err]
    if json_too:
        for line in said.lines:
            json.loads(line, parse_constant=pytest.fail)


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)])
def test_output_that_is_closed_is_none_that_is_shown(closed: tuple[int, ...]) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    ended = subprocess.run([*START, "ls"], capture_output=True, text=True, preexec_fn=close, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert bool(ended.stdout) == (1 not in closed)
