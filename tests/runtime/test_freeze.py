"""``perdure freeze``, ``check --frozen`` and ``assert_resumes``: real checkpoints in a project's tests."""

import contextlib
import json
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from attrs import evolve
from harness.cli import NASTY, Perdure
from harness.engine import HANG, Note, Sim, bare, fading, job, looked, simulated
from harness.loop import SimLoop

from perdure import Append, Conversation, Fire, Machine, Message, Runtime, State, Step, record
from perdure.runtime._check import claim_of
from perdure.runtime._freeze import Copy, Kept, copies, freeze, judge, kept_in
from perdure.runtime.testing import assert_resumes
from perdure.stores import Claim, MemoryStore

pytest_plugins = ("harness.desk",)

FREEZE = ("freeze", "cli_desk:runtime", "--out", "tests/frozen")
CHECK = ("check", "cli_desk:runtime", "--frozen", "tests/frozen")


def rewrite(old: str, new: str) -> None:
    code = Path("cli_desk.py").read_text()
    assert old in code
    Path("cli_desk.py").write_text(code.replace(old, new))
    sys.modules.pop("cli_desk", None)


def files(folder: str = "tests/frozen") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.json")}


# --- from the command line ------------------------------------------------------------------------


def test_what_is_written_and_said(cli: Perdure) -> None:
    said = cli(*FREEZE)
    assert said.status == 0
    names = sorted(files())
    assert [name.rpartition("-")[0] for name in names] == [
        "Desk-v2-review-waiting",
        "Paying-v1-sending-in_doubt-pay_in_doubt",
    ]
    assert said.lines[:2] == [
        f"tests/frozen/{names[1]}  Paying version 1, state sending: parked (in doubt), pay in doubt",
        f"tests/frozen/{names[0]}  Desk version 2, state review: waiting",
    ]
    assert said.lines[2] == "2 files, from 2 threads"
    assert said.lines[3].startswith("They hold real data: before you commit them, look at `payload`")
    told = json.loads(files()[names[0]])
    assert (told["frozen"], told["shape"]["state"], told["thread"]["address"]["thread_id"]) == (
        1,
        "review",
        "review",
    )
    assert [row["payload"].get("t") for row in told["log"]] == ["reading", "noting", "review"]
    assert "notes" in told["items"][0]["payload"]
    assert [message["content"] for message in told["messages"]] == [NASTY]


def test_the_same_store_gives_the_same_files_and_is_not_written(cli: Perdure) -> None:
    store = Path("perdure.db").read_bytes()
    first = (cli(*FREEZE).status, files())[1]
    told = json.loads(cli(*FREEZE, "--json").out)
    assert (files(), Path("perdure.db").read_bytes()) == (first, store)
    assert (sorted(told["files"]), told["threads"], told["skipped"]) == (sorted(first), 2, [])


def test_later_code_is_checked_against_them_without_the_store(cli: Perdure) -> None:
    cli(*FREEZE)
    for path in Path().glob("perdure.db*"):
        path.unlink()
    assert cli(*CHECK).lines[-1] == "2 threads looked at: 2 would go on, 0 would not; 1 parked already"
    rewrite("review = State()", "desk = State()")
    rewrite("review", "desk")
    said = cli(*CHECK)
    assert said.status == 1
    assert said.lines[:2] == [
        "stops Desk version 2, state review: Desk version 2 has no state 'review'",
        "      mend: State(renamed=('review',)) of the one that takes its place",
    ]
    assert said.lines[2].startswith("      Desk-v2-review-waiting-")
    told = json.loads(cli(*CHECK, "--json").out)
    assert sorted(thread["file"] for thread in told["threads"]) == sorted(files())


def test_a_thread_that_cannot_be_copied_is_named(cli: Perdure) -> None:
    with contextlib.closing(sqlite3.connect("perdure.db")) as db, db:
        assert db.execute("UPDATE log SET payload = x'7b' WHERE kind = 1").rowcount
    said = cli(*FREEZE)
    (line,) = [line for line in said.lines if line.startswith("left out")]
    assert line.startswith("left out default/review: ")
    assert [name[:6] for name in files()] == ["Paying"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--frozen", "nowhere"), "--frozen 'nowhere' is no folder"),
        (("--frozen", "empty"), "no frozen checkpoints are in 'empty': `perdure freeze` writes them"),
        (("--frozen", "wrong"), "wrong/x.json is no frozen checkpoint: "),
        (("--frozen", "wrong", "--sample", "3"), "--frozen looks at each file"),
    ],
)
def test_bad_input(cli: Perdure, arguments: tuple[str, ...], says: str) -> None:
    Path("empty").mkdir()
    Path("wrong").mkdir()
    Path("wrong/x.json").write_text('{"frozen": 1}')
    said = cli("check", "cli_desk:runtime", *arguments)
    assert (said.status, said.out) == (2, "")
    assert says in said.err


def test_a_later_format_is_refused(cli: Perdure) -> None:
    cli(*FREEZE)
    path = next(Path("tests/frozen").glob("Desk*"))
    path.write_text(path.read_text().replace('"frozen": 1', '"frozen": 2'))
    assert "it is of format 2, and this perdure reads 1" in cli(*CHECK).err


# --- what is kept ---------------------------------------------------------------------------------


@record
class Talk:
    price: float
    count: int = 0
    lines: Annotated[Sequence[str], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()


class Talking(Machine[Talk, None]):
    """Says something, and waits."""

    saying = State(initial=True)
    waiting = State()
    done = State(final=True)
    said = saying.to(waiting)
    go = waiting.to(done).on_signal(Talk)

    @saying.handler
    async def say(self, data: Talk, step: Step[None]) -> Fire:
        message = Message(role="user", content='a \\ "b"\n é 🦀')
        return self.said(lines=["x  y", "\u2028"], talk=[message], count=2**60, price=1e22)


def same(claim: Claim) -> Claim:
    """Without what a file does not hold."""
    return evolve(
        claim,
        thread=evolve(claim.thread, started=b"", head=b""),
        log=tuple(evolve(row, head=b"", salt=b"") for row in claim.log),
        inbox=tuple(evolve(row, digest=b"") for row in claim.inbox),
    )


@pytest.mark.anyio
async def test_a_file_holds_what_a_claim_brings_byte_for_byte(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Runtime(machines=[Talking], store=store, artifacts="memory:") as running:
        thread = await running.start(Talking, Talk(price=float("inf")), thread_id="t")
        await thread.settled()
    async with Runtime(machines=[Talking], store=store, artifacts="memory:").client() as client:
        late = client.thread(Talking, thread_id="t")
        await late.signal(Talking.go, Talk(price=float("nan"), lines=["  "]), id="g")
        row = await late.row()
        written = await freeze(store, {"Talking": Talking._definition}, tmp_path, 1)
    ((path, stored),) = await anyio.to_thread.run_sync(lambda: list(kept_in(tmp_path)))
    (name,) = written.files
    assert path == str(tmp_path / name)
    kept_one = Kept.decoded(stored, path)
    assert kept_one.claim == same(await claim_of(store, row))
    assert written.files[name].pending == ("go",)
    assert len(kept_one.messages) == 1
    await anyio.to_thread.run_sync(assert_resumes, Runtime(machines=[Talking]), tmp_path)


@simulated
async def test_a_file_says_the_same_whenever_it_is_read(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("fading", HANG)

    async def body(machine: Any, data: Note, step: Step[Any]) -> Any:
        await step.call(fading, "a")
        return machine.finished()

    machine = job(body)
    engine = await sim.engine(machine)
    await engine.start(machine)
    await anyio.sleep(1)
    engine.kill(known=True)
    (copy,) = [each async for each in copies(sim.store, {"Job": machine._definition}, 1)]
    assert isinstance(copy, Copy)
    # Its receiver remembers the key for half a minute, which was over long ago where this is read.
    assert judge({"Job": machine._definition}, copy.name, copy.content).findings == ()


@simulated
async def test_at_most_so_many_of_a_shape_and_each_open_call_is_one(loop: SimLoop) -> None:
    sim = Sim(loop)
    sim.world.reply("looked", HANG, HANG, HANG)
    sim.world.reply("bare", HANG)

    async def body(machine: Any, data: Note, step: Step[Any]) -> Any:
        await step.call(bare if data.text == "bare" else looked, "a")
        return machine.finished()

    machine = job(body)
    engine = await sim.engine(machine)
    for n, text in enumerate(("a", "b", "c", "bare")):
        await engine.start(machine, Note(text=text), thread_id=f"t{n}")
    await anyio.sleep(1)
    engine.kill(known=True)
    for each, wanted in (
        (1, ["t0: looked in doubt", "t3: bare in doubt"]),
        (2, ["t0: looked in doubt", "t1: looked in doubt", "t3: bare in doubt"]),
    ):
        found = [copy async for copy in copies(sim.store, {"Job": machine._definition}, each)]
        assert len(found) == 4
        made = [copy for copy in found if isinstance(copy, Copy)]
        assert [f"{c.thread.address.thread_id}: {', '.join(c.shape.calls)}" for c in made] == wanted
        assert len({copy.name for copy in made}) == len(made)


# --- in a project's tests -------------------------------------------------------------------------


@record
class Priced:
    cost: float
    count: int = 0
    lines: Annotated[Sequence[str], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()


def other() -> Any:
    class Talking(Machine[Priced, None], version=2):
        saying = State(initial=True)
        waiting = State()
        done = State(final=True)
        said = saying.to(waiting)
        go = waiting.to(done).on_signal(Talk)

        @saying.handler
        async def say(self, data: Priced, step: Step[None]) -> Fire:
            return self.said()

    return Talking


@pytest.mark.anyio
async def test_a_project_is_told_which_file_does_not_fit(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Runtime(machines=[Talking], store=store, artifacts="memory:") as running:
        await (await running.start(Talking, Talk(price=1.0), thread_id="t")).settled()
    (name,) = (await freeze(store, {"Talking": Talking._definition}, tmp_path, 1)).files
    with pytest.raises(AssertionError) as told:
        await anyio.to_thread.run_sync(assert_resumes, Runtime(machines=[other()]), tmp_path)
    lines = str(told.value).splitlines()
    assert lines[0].startswith(
        "Talking version 1, data Priced: Talking: Priced.price: it is stored, but is no"
    )
    assert lines[1:] == [
        "  mend: @upcast(from_version=1) in Talking",
        f"  {name}  state waiting, seq 1, waiting",
    ]


def test_a_folder_without_files_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no frozen checkpoints are in"):
        assert_resumes(Runtime(machines=[Talking]), tmp_path)
