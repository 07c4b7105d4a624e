"""The command line: what it prints, with which exit status, and the one line that it has for bad input."""

import contextlib
import importlib
import json
import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import anyio
import pytest

from perdure import __version__
from perdure.runtime import _cli

APP = '''
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from perdure import (
    Accept, Append, Call, Fire, Machine, Position, Retry, Runtime, State, Step, effect, read, record,
    runtime_owned,
)

NASTY = "\\x1b[31mred\\x9b0m \\u202egnp.exe \\u2066x\\u2069 \\U000e0041 line\\nnext \\x7f Müller 🦀"


@record
class Order:
    item: str
    count: int = 1
    price: float = 0.0
    notes: Annotated[Sequence[str], Append()] = ()
    moves: int = runtime_owned(Position.seq)


@record
class Approval:
    by: str


@read
async def look(call: Call[None], item: str) -> float:
    return math.nan


@effect
async def ship(call: Call[None], item: str) -> str:
    raise ConnectionError(f"lost {NASTY}")


class Shop(Machine[Order, None], version=1, calls=[look]):
    """Takes an order, which a person approves."""

    pricing = State(initial=True)
    review = State()
    noting = State()
    done = State(final=True)
    expired = State(final=True)

    priced = pricing.to(noting)
    noted = noting.to(review)
    approve = review.to(done).on_signal(Approval)
    late = review.to(expired).after(timedelta(days=1))

    @pricing.handler
    async def price(self, data: Order, step: Step[None]) -> Fire:
        return self.priced(price=await step.call(look, data.item), notes=["priced", NASTY])

    @noting.handler
    async def note(self, data: Order, step: Step[None]) -> Fire:
        return self.noted(notes=["noted"])

    @approve.received
    def approved(self, data: Order, approval: Approval) -> Accept:
        return self.approve(notes=[approval.by])


class Quick(Machine[Order, None], version=1, calls=[look]):
    """Ends by itself."""

    pricing = State(initial=True)
    done = State(final=True)
    priced = pricing.to(done)

    @pricing.handler
    async def price(self, data: Order, step: Step[None]) -> Fire:
        step.report(part="[/b]" + NASTY)
        return self.priced(price=await step.call(look, data.item), notes=["priced", NASTY])


class Shipping(Machine[Order, None], version=1, calls=[ship]):
    """Parks in doubt: its receiver knows neither keys nor lookups."""

    sending = State(initial=True)
    done = State(final=True)
    sent = sending.to(done)

    @sending.handler
    async def send(self, data: Order, step: Step[None]) -> Fire:
        return self.sent(notes=[await step.call(ship, data.item)])


class Failing(Machine[Order, None], version=1):
    """Fails once and for all."""

    trying = State(initial=True, retry=Retry(attempts=2, delay=timedelta(milliseconds=1)))
    done = State(final=True)
    tried = trying.to(done)

    @trying.handler
    async def attempt(self, data: Order, step: Step[None]) -> Fire:
        if data.count == 1:
            raise ValueError(NASTY)
        return self.tried()


runtime = Runtime(machines=[Shop, Quick, Shipping, Failing], artifacts="memory:")
other = Runtime(machines=[Quick], artifacts="memory:")
number = 7
'''
MISSPELT = """from cli_app import Machine, Order, State

class Late(Machine[Order, None]):
    pricing = State(initial=True)
    done = State(final=True)
    priced = pricing.to(done)

    @pricing.handler
    async def price(self, data, step):
        return self.pricd()
"""
FORBIDDEN = ("\x1b", "\x9b", "\u202e", "\u2066", "\u2069", "\U000e0041", "\x7f", "\r")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with code and with a store in which threads ended and parked."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "cli_app.py").write_text(APP)
    (folder / "cli_raises.py").write_text("raise RuntimeError('no\\nway')\n")
    (folder / "cli_event.py").write_text(MISSPELT)
    (folder / "cli_exits.py").write_text("raise SystemExit(0)\n")
    (folder / "cli_typo.py").write_text("def f(:\n")
    (folder / "cli_needs.py").write_text("import cli_not_there\n")
    (folder / "broken.db").write_bytes(b"this is no database, and longer than a header" * 100)
    start = "import sys; from perdure.runtime._cli import main; main()"
    for machine, thread, status in (("Quick", "quick", 0), ("Shipping", "ship", 1)):
        command = [sys.executable, "-c", start, "run", "cli_app:runtime", machine]
        command += ["--thread", thread, "--data", '{"item": "kettle"}']
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert ran.returncode == status, ran.stderr
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.startswith("cli_")]:
        del sys.modules[name]


class Said:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err
        self.lines = out.splitlines()


@pytest.fixture
def perdure(here: Path, capsys: pytest.CaptureFixture[str]) -> "Perdure":
    return Perdure(capsys)


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


# --- what it prints -------------------------------------------------------------------------------


def test_run_tells_each_transition_and_the_end(perdure: Perdure) -> None:
    said = perdure("run", "cli_app:runtime", "Quick", "--thread", "new", "--data", '{"item": "pan"}')
    assert said.status == 0
    assert said.lines == [
        "thread 'new' of Quick starts",
        "   1  pricing -> done  priced  look: read",
        "thread 'new' has ended in done at seq 1",
    ]


def test_run_tells_why_an_attempt_failed_before_the_next_begins(perdure: Perdure) -> None:
    said = perdure("run", "cli_app:runtime", "Failing", "--thread", "f", "--data", '{"item": "pan"}')
    assert said.status == 1
    [_, first, last] = said.lines
    line = APP.splitlines().index("            raise ValueError(NASTY)") + 1
    assert first.startswith("      attempt 1 failed: ValueError: \\x1b[31mred")
    assert first.endswith(f" (cli_app.py:{line})")
    assert last.startswith("thread 'f' is parked (failed) in trying at seq 0: ")
    assert f"(cli_app.py:{line}), in attempt 2; mend it, then `perdure retry f --runtime MODULE:NAME`" in last


def test_run_draws_a_thread_id(perdure: Perdure) -> None:
    said = perdure("run", "cli_app:runtime", "Quick", "--data", '{"item": "pan"}', "--json")
    assert said.status == 0
    [line] = said.lines
    thread = json.loads(line)["thread"]
    assert thread.startswith("quick-")
    assert f"thread '{thread}' of Quick starts" in said.err


def test_run_goes_on_with_a_thread_that_is_there(perdure: Perdure) -> None:
    for data in ((), ("--data", '{"item": "kettle"}')):
        said = perdure("run", "cli_app:runtime", "Quick", "--thread", "quick", *data)
        assert (said.status, said.lines) == (0, ["thread 'quick' has ended in done at seq 1"])


def test_run_waits_for_no_thread_that_newer_code_has_written_to(perdure: Perdure) -> None:
    with contextlib.closing(sqlite3.connect("perdure.db")) as database, database:
        database.execute("UPDATE standing SET version = 3")
    said = perdure("run", "cli_app:runtime", "Quick", "--thread", "quick")
    assert said.status == 2
    assert "thread 'quick' needs version >= 3 of Quick, and this code is 1" in said.err


def test_run_ends_with_a_line_and_status_1_when_the_thread_parks(perdure: Perdure) -> None:
    said = perdure("run", "cli_app:runtime", "Shipping", "--thread", "two", "--data", '{"item": "pan"}')
    assert said.status == 1
    assert said.lines[-1].startswith(
        "thread 'two' is parked (in doubt) in sending at seq 0: effect ship with key pd_"
    )
    assert "`perdure resolve two --runtime MODULE:NAME` with `--done VALUE` or `--not-done`" in said.lines[-1]
    again = perdure("run", "cli_app:runtime", "Shipping", "--thread", "two", "--json")
    assert again.status == 1
    assert json.loads(again.out)["reason"] == "in doubt"


def test_ls_pages(perdure: Perdure) -> None:
    first = perdure("ls", "--limit", "1")
    assert first.lines[0] == "thread\tmachine\tstate\tstatus\tseq\tupdated"
    assert first.lines[1].startswith("quick\tQuick\tdone\tended\t1\t")
    cursor = first.lines[2].removeprefix("more: perdure ls --after ")
    second = perdure("ls", "--limit", "1", "--after", cursor)
    assert [line.split("\t")[:4] for line in second.lines[1:2]] == [
        ["ship", "Shipping", "sending", "parked (in doubt)"]
    ]
    page = json.loads(perdure("ls", "--limit", "1", "--json").out)
    assert [row["thread"] for row in page["threads"]] == ["quick"]
    assert page["next"] == cursor


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        (["--status", "parked"], ["ship"]),
        (["--machine", "Quick"], ["quick"]),
        (["--state", "sending"], ["ship"]),
        (["--workspace", "acme"], []),
    ],
)
def test_ls_filters(options: list[str], threads: list[str], perdure: Perdure) -> None:
    page = json.loads(perdure("ls", "--json", *options).out)
    assert [row["thread"] for row in page["threads"]] == threads


def test_show_has_state_data_and_what_may_come_next(perdure: Perdure) -> None:
    said = perdure("show", "ship", "--runtime", "cli_app:runtime")
    assert said.status == 0
    assert "state     sending, seq 0" in said.lines
    assert "status    parked (in doubt)" in said.lines
    assert "events    sent -> done (by its handler)" in said.lines
    shown = json.loads(perdure("show", "ship", "--runtime", "cli_app:runtime", "--json").out)
    assert shown["events"] == [
        {"event": "sent", "kind": "fire", "to": ["done"], "after": None, "timer": None}
    ]
    assert shown["data"] == {"item": "kettle", "count": 1, "price": 0.0}


def test_show_needs_no_code(perdure: Perdure) -> None:
    shown = json.loads(perdure("show", "quick", "--json").out)
    assert shown["events"] is None
    assert shown["data"]["notes"][0] == "priced"
    assert "events    none, it has ended" in perdure("show", "quick").lines
    text = perdure("show", "ship")
    assert "events    known with --runtime MODULE:NAME" in text.lines
    text = perdure("show", "ship", "--runtime", "cli_app:other")
    assert any("cli_app:other has no machine 'Shipping'" in line for line in text.lines)


def test_history_is_one_line_a_step(perdure: Perdure) -> None:
    said = perdure("history", "quick")
    assert said.lines == ["   0  -> pricing  start", "   1  pricing -> done  priced  look: read"]
    [start, open_step] = perdure("history", "ship").lines
    assert start == "   0  -> sending  start"
    assert open_step.startswith("   0  sending, not over  ship: in doubt pd_")
    assert "[parked (in doubt): effect ship" in open_step
    steps = [json.loads(line) for line in perdure("history", "ship", "--json").lines]
    assert [(s["state"], s["event"], s["to"]) for s in steps] == [
        (None, "start", "sending"),
        ("sending", None, None),
    ]
    assert steps[1]["calls"][0]["outcome"] == "in doubt"


def test_why_answers_with_and_without_code(perdure: Perdure) -> None:
    for code in ((), ("--runtime", "cli_app:runtime")):
        said = perdure("why", "ship", *code)
        assert said.out.startswith(
            "thread 'ship' of Shipping is in state 'sending' at seq 0: parked (in doubt)."
        )
        assert "is in doubt; that it is not done is believed " in said.out
    assert json.loads(perdure("why", "quick", "--json").out)["why"].endswith("at seq 1: ended.")


def test_a_signal_in_the_inbox_is_shown_with_and_without_code(here: Path, perdure: Perdure) -> None:
    async def send() -> None:
        app = importlib.import_module("cli_app")
        async with app.runtime.client() as client:
            order = app.Order(item="pan")
            thread = await client.start(app.Shop, order, thread_id="shop")
            await thread.signal(app.Shop.approve, app.Approval(by="ada"), id="yes")

    assert "inbox" not in perdure("show", "quick").out
    anyio.run(send)
    assert "inbox     yes (approve)" in perdure("show", "shop").lines
    [signal] = json.loads(perdure("show", "shop", "--json").out)["inbox"]
    assert (signal["id"], signal["event"]) == ("yes", "approve")
    said = perdure("why", "shop").out
    assert "Signals in its inbox: yes (approve)." in said
    assert "name it with --runtime MODULE:NAME" in said


def test_resolve_and_go_on(perdure: Perdure) -> None:
    said = perdure("resolve", "ship", "--done", '"shipped"', "--runtime", "cli_app:runtime")
    assert said.lines == [
        "thread 'ship' goes on with the next worker, such as "
        "`perdure run cli_app:runtime Shipping --thread ship`"
    ]
    assert perdure("run", "cli_app:runtime", "Shipping", "--thread", "ship").status == 0
    assert json.loads(perdure("show", "ship", "--json").out)["data"]["notes"] == ["shipped"]
    [_, step] = perdure("history", "ship").lines
    assert "ship: done (adopted)" in step


def test_retry_lets_it_go_on(perdure: Perdure) -> None:
    said = perdure("retry", "ship", "--runtime", "cli_app:runtime", "--json")
    assert json.loads(said.out) == {"thread": "ship", "workspace": "default", "status": "running"}
    assert json.loads(perdure("show", "ship", "--json").out)["status"] == "running"


# --- what a terminal would obey -------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["show", "quick"],
        ["show", "quick", "--json"],
        ["history", "ship"],
        ["history", "ship", "--json"],
        ["why", "ship"],
        ["why", "ship", "--json"],
        ["show", "ship", "--json"],
        ["ls", "--json"],
        ["run", "cli_app:runtime", "Shipping", "--thread", "ship"],
        ["run", "cli_app:runtime", "Shipping", "--thread", "ship", "--json"],
        ["run", "cli_app:runtime", "Quick", "--thread", "quick", "--json"],
    ],
)
def test_stored_text_is_escaped(command: list[str], perdure: Perdure) -> None:
    said = perdure(*command)
    assert not [char for char in FORBIDDEN if char in said.out + said.err]
    if "--json" in command:
        for line in said.lines:
            json.loads(line, parse_constant=pytest.fail)


def test_escapes_say_what_was_there(perdure: Perdure) -> None:
    assert "\\x1b[31mred\\x9b0m \\u202egnp.exe" in perdure("why", "ship").out
    shown = perdure("show", "quick", "--json").out
    assert "Müller 🦀" in shown
    nasty = json.loads(shown)["data"]["notes"][1]
    assert nasty == "\x1b[31mred\x9b0m \u202egnp.exe \u2066x\u2069 \U000e0041 line\nnext \x7f Müller 🦀"
    assert json.loads(shown)["data"]["price"] == "nan"


# --- bad input ------------------------------------------------------------------------------------

CODE = ["--runtime", "cli_app:runtime"]
ON_A_THREAD = {
    "show": ["show", "ship"],
    "history": ["history", "ship"],
    "why": ["why", "ship"],
    "resolve": ["resolve", "ship", "--not-done", *CODE],
    "retry": ["retry", "ship", *CODE],
}
RUN = ["run", "cli_app:runtime", "Quick", "--data", '{"item": "x"}']
ALL = {**ON_A_THREAD, "ls": ["ls"], "run": RUN}


def everywhere(
    options: list[str], expected: str, commands: dict[str, list[str]]
) -> list[tuple[list[str], str]]:
    return [([*command, *options], expected) for command in commands.values()]


def code_named(spec: str, expected: str) -> list[tuple[list[str], str]]:
    named = [["run", spec, "Quick", "--data", "{}"]]
    named += [[name, "ship", "--runtime", spec] for name in ("show", "why", "retry")]
    named += [["resolve", "ship", "--not-done", "--runtime", spec]]
    return [(command, expected) for command in named]


BAD: list[tuple[list[str], str]] = [
    (["fly"], "No such command 'fly'"),
    (["show"], "Missing argument 'THREAD'"),
    (["ls", "--colour"], "No such option"),
    (["ls", "--limit", "0"], "'--limit'"),
    (["ls", "--limit", "many"], "'--limit'"),
    (["ls", "--status", "odd"], "'--status'"),
    (["ls", "--after", "xyz"], "--after"),
    *everywhere(["--store", "nope://me:s3cret@host/db"], "no store is known for nope:// URLs", ALL),
    *everywhere(["--store", "perdure.db"], "this is no store URL", ALL),
    *everywhere(["--store", "sqlite://perdure.db"], "three slashes", ALL),
    *everywhere(["--store", "sqlite:///broken.db"], "broken.db", ALL),
    *everywhere(["--store", "sqlite:///none/x.db"], "none", ALL),
    *everywhere(["--store", "sqlite:///."], "folder", {**ALL}),
    *everywhere(
        ["--store", "sqlite:///none.db"], "there is no store at 'none.db'", {**ON_A_THREAD, "ls": ["ls"]}
    ),
    *everywhere(["--store", "memory://"], "no thread 'ship'", ON_A_THREAD),
    *everywhere(["--workspace", ""], "workspace is empty", ALL),
    *everywhere(["--workspace", "other"], "no thread 'ship' in workspace 'other'", ON_A_THREAD),
    *everywhere(["--workspace", "a\x1bb"], "control character", ALL),
    *[([command[0], "nobody", *command[2:]], "no thread 'nobody'") for command in ON_A_THREAD.values()],
    *[([command[0], "", *command[2:]], "thread_id is empty") for command in ON_A_THREAD.values()],
    *[([command[0], "x" * 600, *command[2:]], "600 bytes") for command in ON_A_THREAD.values()],
    *[([command[0], "\udcff", *command[2:]], "lone surrogate") for command in ON_A_THREAD.values()],
    *code_named("cli_app", "names no runtime"),
    *code_named("cli_app:", "names no runtime"),
    *code_named("../x:runtime", "names no runtime"),
    *code_named("cli_nowhere:runtime", "no module 'cli_nowhere'"),
    *code_named("cli_app.sub:runtime", "no module 'cli_app.sub'"),
    *code_named("cli_app:nothing", "module 'cli_app' has no 'nothing'; its runtimes: runtime, other"),
    *code_named("cli_app:number", "of type int, not a Runtime"),
    *code_named(
        "cli_raises:runtime",
        "module 'cli_raises' cannot be imported: RuntimeError: no\\nway (line 1 of cli_raises.py)",
    ),
    *code_named("cli_event:runtime", "do you mean 'priced'? (line 3 of cli_event.py)"),
    *code_named("cli_exits:runtime", "module 'cli_exits' cannot be imported: SystemExit"),
    *code_named("cli_typo:runtime", "module 'cli_typo' cannot be imported: SyntaxError"),
    *code_named("cli_needs:runtime", "No module named 'cli_not_there'"),
    (["run", "cli_app:runtime", "Nope"], "no machine 'Nope' in this runtime; it has: Failing, Quick"),
    (["run", "cli_app:runtime", "Quick"], "--data lacks 'item', for which Order has no default"),
    (["run", "cli_app:runtime", "Quick", "--thread", "no"], "no thread 'no' in workspace 'default'"),
    (["run", "cli_app:runtime", "Quick", "--thread", "no"], "to start it, give --data (--data lacks 'item'"),
    ([*RUN[:3], "--data", "{"], "--data is not"),
    ([*RUN[:3], "--data", "[1]"], "--data is not"),
    ([*RUN[:3], "--data", '{"item": NaN}'], "--data"),
    ([*RUN[:3], "--data", '{"item": "\udcff"}'], "--data is not"),
    ([*RUN[:3], "--data", '{"itme": "x"}'], "takes no field 'itme'; it takes: item, count, price, notes"),
    ([*RUN[:3], "--data", '{"item": "x", "moves": 3}'], "takes no field 'moves'"),
    ([*RUN[:3], "--data", '{"item": 3}'], "field 'item'"),
    ([*RUN[:3], "--data", '{"item": "x", "notes": "y"}'], "field 'notes'"),
    ([*RUN[:3], "--data", '{"item": "x", "notes": [1]}'], "field 'notes'"),
    ([*RUN, "--thread", ""], "thread_id is empty"),
    ([*RUN, "--thread", "a\nb"], "control character"),
    ([*RUN, "--thread", "quick"], "was started at"),
    ([*RUN, "--thread", "quick"], "without --data, `perdure run` goes on with it"),
    ([*RUN, "--thread", "ship"], "thread 'ship' is of machine 'Shipping', not 'Quick'"),
    (["resolve", "ship", "--not-done"], "name the code of the thread's machine with --runtime"),
    (["retry", "ship"], "name the code of the thread's machine with --runtime"),
    (["retry", "ship", "--runtime", "cli_app:other"], "of machine 'Shipping', not known to cli_app:other"),
    (["retry", "quick", *CODE], "thread 'quick' is ended, not parked"),
    (["resolve", "ship", *CODE], "say one of --done JSON, --not-done"),
    (["resolve", "ship", "--adopt", "--not-done", *CODE], "say one of --done JSON, --not-done"),
    (["resolve", "ship", "--done", "{", *CODE], "--done is not"),
    (["resolve", "ship", "--done", "3", *CODE], "result of effect ship"),
    (["resolve", "ship", "--adopt", *CODE], "is in doubt: say --done or --not-done"),
    (["resolve", "ship", "--not-done", "--effect", "pd_x", *CODE], "effects in doubt: ship (pd_"),
]


@pytest.mark.parametrize(
    ("command", "expected"),
    BAD,
    ids=lambda value: (
        None if isinstance(value, str) else " ".join(value)[:60].encode("ascii", "backslashreplace").decode()
    ),
)
def test_bad_input_is_one_line_and_status_2(command: list[str], expected: str, perdure: Perdure) -> None:
    said = perdure(*command)
    assert expected in said.err
    assert said.status == 2
    assert said.err.count("\n") == 1
    assert said.err.startswith("perdure: ")
    assert "Traceback" not in said.err
    assert "s3cret" not in said.err
    assert said.out == ""
    assert not [char for char in FORBIDDEN if char in said.err]


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[1]", b'{"x": [{}]}', b'{"x": [{"k": "done", "id": 5}]}', b"\xff\xfe"]
)
def test_a_damaged_record_is_told_and_why_always_answers(payload: bytes, perdure: Perdure) -> None:
    with contextlib.closing(sqlite3.connect("perdure.db")) as database, database:
        database.execute("UPDATE log SET payload = ? WHERE thread = 2", (payload,))
    assert perdure("why", "ship").status == 0
    assert perdure("ls").status == 0
    for command in (*ON_A_THREAD.values(), RUN):
        said = perdure(*command)
        assert said.status == (0 if command[0] in ("why", "retry", "run") else 2), (command, said.err)
        assert said.err.count("\n") <= 1
        assert "fault of perdure's own" not in said.err


def test_nothing_is_made_where_only_a_look_was_asked_for(perdure: Perdure, here: Path) -> None:
    before = sorted(os.listdir(here))
    perdure("ls", "--store", "sqlite:///none.db")
    perdure("show", "ship", "--runtime", "cli_app:runtime", "--store", "sqlite:///none.db")
    assert [name for name in sorted(os.listdir(here)) if name != "__pycache__"] == [
        name for name in before if name != "__pycache__"
    ]


# --- processes ------------------------------------------------------------------------------------

START = [sys.executable, "-c", "from perdure.runtime._cli import main; main()"]


@contextlib.contextmanager
def heeding_ctrl_c() -> Generator[None]:
    """A shell starts what runs in its background with SIGINT ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_waiting_thread_is_left_by_ctrl_c(here: Path) -> None:
    command = [*START, "run", "cli_app:runtime", "Shop", "--thread", "shop", "--data", '{"item": "pan"}']
    with (
        heeding_ctrl_c(),
        subprocess.Popen(
            command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child,
    ):
        try:
            assert child.stdout is not None
            lines = []
            for line in child.stdout:
                lines.append(line)
                if "waits in review for approve or late" in line:
                    break
            child.send_signal(signal.SIGINT)
            _, err = child.communicate(timeout=30)
        finally:
            child.kill()
    assert lines[1].startswith("   1  pricing -> noting  priced")
    assert child.returncode == 130
    assert (
        err == "perdure: interrupted: what is recorded is kept, and a thread goes on when it is run again\n"
    )


def on_a_terminal(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit status, and what a terminal is sent."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    said = b""
    with subprocess.Popen(
        [*START, *arguments], cwd=folder, env=environment, stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
            while chunk := os.read(ours, 65536):
                said += chunk
        os.close(ours)
    return child.returncode, said.decode()


def test_on_a_terminal_it_has_colours_and_still_no_stored_escapes(here: Path) -> None:
    status, said = on_a_terminal(here, "show", "quick")
    assert status == 0
    assert "\x1b[32mended" in said
    assert "\x1b[31mred" not in said
    assert "\u202e" not in said


def test_live_progress_is_text_and_no_markup(here: Path) -> None:
    run = ["run", "cli_app:runtime", "Quick", "--thread", "live", "--data", '{"item": "pan"}']
    status, said = on_a_terminal(here, *run)
    assert status == 0
    assert "thread 'live' has \x1b[32mended" in said
    assert "raised" not in said
    assert "\x1b[31mred" not in said
    assert "\u202e" not in said


def test_a_reader_that_goes_away_is_no_error(here: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    ran = subprocess.run(
        [*START, "history", "quick"], cwd=here, stdout=writes, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writes)
    assert ran.returncode == 1
    assert ran.stderr == ""


def test_the_version_is_that_of_the_package(perdure: Perdure) -> None:
    said = perdure("--version")
    assert (said.status, said.lines) == (0, [f"perdure {__version__}"])
