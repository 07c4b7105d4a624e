"""``perdure artifacts`` and ``gc``: what they print, refuse, and leave on the disk."""

import contextlib
import hashlib
import io
import json
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from attrs import evolve
from harness.cli import FORBIDDEN, NASTY, Perdure

from perdure import (
    Append,
    ArtifactRef,
    Call,
    Fire,
    Machine,
    Namespace,
    Runtime,
    State,
    Step,
    effect,
    read,
    record,
)
from perdure.artifacts import open_artifacts
from perdure.runtime import _cli_lineage
from perdure.runtime._cli_blobs import put_by
from perdure.stores import Artifacts, SQLiteStore
from perdure.stores._contract_make import artifact_of

PAGE, DRAFT, REPORT = b"a page", b"a draft", b"the report"


@record
class Plan:
    topic: str
    page: ArtifactRef
    made: Annotated[Sequence[ArtifactRef], Append()] = ()


@record
class Source:
    page: ArtifactRef


sources = Namespace("source", Source)


@read
async def look_up(call: Call[None], topic: str) -> str:
    return topic.upper()


@effect
async def announce(call: Call[None], ref: ArtifactRef) -> str:
    return "announced"


class Writing(Machine[Plan, None], version=1, calls=[look_up, announce]):
    """Drafts from a page, and writes a report from the draft."""

    drafting = State(initial=True)
    reporting = State()
    done = State(final=True)
    drafted = drafting.to(reporting)
    reported = reporting.to(done)

    @drafting.handler
    async def draft(self, data: Plan, step: Step[None]) -> Fire:
        await step.artifacts.get(data.page)
        await step.call(look_up, data.topic)
        await step.memory.get(sources, data.topic)
        ref = await step.artifacts.put(DRAFT, media_type="text/plain")
        return self.drafted(made=[ref])

    @reporting.handler
    async def report(self, data: Plan, step: Step[None]) -> Fire:
        await step.artifacts.get(data.made[0])
        await step.call(announce, data.made[0])
        ref = await step.artifacts.put(REPORT, media_type="text/html")
        return self.reported(made=[ref])


Ids = dict[str, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ids]:
    """A thread's draft and report, and the page that a customer uploaded."""
    folder = tmp_path_factory.mktemp("shelf")
    runtime = Runtime(
        machines=[Writing], store=f"sqlite:///{folder}/perdure.db", artifacts=f"file:{folder}/artifacts"
    )

    async def make() -> Ids:
        async with runtime:
            page = await runtime.artifacts.put(PAGE, media_type="application/pdf", principal="user:ada")
            await runtime.memory.put(sources, "birds", Source(page=page))
            plan = Plan(topic="birds", page=page)
            thread = await runtime.start(Writing, plan, thread_id="book/1", principal="agent:writer")
            draft, report = (await thread.result()).data.made
        return {"page": page.id, "draft": draft.id, "report": report.id}

    return folder, anyio.run(make)


@pytest.fixture
def ids(made: tuple[Path, Ids], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ids:
    folder = tmp_path / "shelf"
    shutil.copytree(made[0], folder)
    monkeypatch.chdir(folder)
    return made[1]


@pytest.fixture
def cli(ids: Ids, capsys: pytest.CaptureFixture[str]) -> Perdure:
    return Perdure(capsys)


def files() -> list[str]:
    """What lies in the working folder beside the store and the blobs."""
    return sorted(name for name in os.listdir() if not name.startswith(("perdure.db", "artifacts")))


def blob(content: bytes) -> Path:
    sha256 = hashlib.sha256(content).hexdigest()
    [found] = Path("artifacts").rglob(sha256)
    return found


def insert(**columns: Any) -> None:
    """A record that nobody made in this way."""
    given = {"id": "art_" + "0" * 32, "workspace": "default", "sha256": "0" * 64, "size_bytes": 1}
    given |= {
        "media_type": "text/plain",
        "principal": "owner",
        "derived_from": "[]",
        "created": 1,
        "schema": 1,
    }
    row = given | columns
    with contextlib.closing(sqlite3.connect("perdure.db")) as db, db:
        marks = ", ".join("?" * len(row))
        db.execute(f"INSERT INTO artifact ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


# --- ls and show ------------------------------------------------------------------------------------


def test_ls_pages_in_the_order_of_the_puts(cli: Perdure, ids: Ids) -> None:
    first = cli("artifacts", "ls", "--limit", "2")
    assert first.lines[0] == "artifact\tmedia type\tsize\tput by\tcreated\texpires"
    assert [line.split("\t")[:4] for line in first.lines[1:3]] == [
        [ids["page"], "application/pdf", "6 bytes", "upload by user:ada"],
        [ids["draft"], "text/plain", "7 bytes", "book/1@0"],
    ]
    cursor = first.lines[3].removeprefix("more: perdure artifacts ls --after ")
    page = json.loads(cli("artifacts", "ls", "--after", cursor, "--json").out)
    assert ([row["id"] for row in page["artifacts"]], page["next"]) == ([ids["report"]], None)
    of_thread = json.loads(cli("artifacts", "ls", "--thread", "book/1", "--json").out)["artifacts"]
    assert [row["id"] for row in of_thread] == [ids["draft"], ids["report"]]
    assert cli("artifacts", "ls", "--workspace", "other").lines[1:] == []


def test_show_tells_who_put_it_from_what_and_whether_its_bytes_are_there(cli: Perdure, ids: Ids) -> None:
    said = cli("artifacts", "show", ids["draft"])
    assert said.lines[:2] == [f"artifact  {ids['draft']}", "media type text/plain"]
    assert "bytes     there" in said.lines
    assert "put by    book/1@0" in said.lines
    assert "principal agent:writer" in said.lines
    assert said.lines[-3:] == [
        "made from read:look_up@0/main/0",
        f"          {ids['page']}",
        "          memory:source/birds@1",
    ]
    by_digest = json.loads(cli("artifacts", "show", hashlib.sha256(DRAFT).hexdigest().upper(), "--json").out)
    assert (by_digest["id"], by_digest["bytes"]) == (ids["draft"], "there")
    assert by_digest["derived_from"] == ["read:look_up@0/main/0", ids["page"], "memory:source/birds@1"]
    blob(DRAFT).unlink()
    assert (
        "bytes     missing: putting the same bytes again mends it"
        in cli("artifacts", "show", ids["draft"]).lines
    )


@pytest.mark.parametrize(
    "ref", ["art_none", "../../x", "/etc/passwd", "", "%2e%2e/x", "a\nb", NASTY, "0" * 64]
)
@pytest.mark.parametrize("command", ["show", "from", "verify", "get"])
def test_a_ref_that_names_nothing_is_refused_in_a_line(cli: Perdure, command: str, ref: str) -> None:
    said = cli("artifacts", command, ref, *(["out"] if command == "get" else []))
    assert said.status == 2
    [line] = said.err.splitlines()
    assert "has no artifact" in line
    assert not any(each in line for each in FORBIDDEN)
    assert files() == []


def test_bytes_that_were_put_several_times_are_named_by_an_id(cli: Perdure, ids: Ids) -> None:
    Path("page.pdf").write_bytes(PAGE)
    again = json.loads(cli("artifacts", "put", "page.pdf", "--json").out)
    said = cli("artifacts", "show", again["sha256"])
    assert said.status == 2
    assert f"put several times, as {ids['page']}, {again['id']}: name one by its id" in said.err


# --- where it came from, and what came from it ------------------------------------------------------


def test_from_is_the_tree_of_what_it_was_made_from(cli: Perdure, ids: Ids) -> None:
    said = cli("artifacts", "from", ids["report"])
    names = [(len(line) - len(line.lstrip()), line.split()[0]) for line in said.lines]
    [key] = [name for _, name in names if name.startswith("effect:announce@pd_")]
    assert names == [
        (0, ids["report"]),
        (2, ids["draft"]),
        (4, "read:look_up@0/main/0"),
        (4, ids["page"]),
        (4, "memory:source/birds@1"),
        (2, key),
    ]
    assert said.lines[0].startswith(f"{ids['report']}  text/html, 10 bytes, book/1@1, 20")
    tree = json.loads(cli("artifacts", "from", ids["report"], "--json").out)
    assert [(node["depth"], node["name"]) for node in tree["tree"]] == [(d // 2, name) for d, name in names]
    assert [node["record"] is not None for node in tree["tree"]] == [True, True, False, True, False, False]


def test_into_is_the_tree_of_what_was_made_from_it(cli: Perdure, ids: Ids) -> None:
    names = [line.split()[0] for line in cli("artifacts", "into", ids["page"]).lines]
    assert names == [ids["page"], ids["draft"], ids["report"]]
    said = cli("artifacts", "into", "memory:source/birds@1")
    assert [line.split()[0] for line in said.lines] == ["memory:source/birds@1", ids["draft"], ids["report"]]
    assert cli("artifacts", "into", "read:nothing@0/main/0").lines == ["read:nothing@0/main/0"]
    assert cli("artifacts", "into", "art_none").status == 2


def test_a_tree_shows_what_it_has_shown_once_ends_where_records_end_and_is_bounded(
    cli: Perdure, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = "art_" + "1" * 32, "art_" + "2" * 32
    insert(id=one, derived_from=json.dumps([two, ids["page"], two]))
    insert(id=two, derived_from=json.dumps([one, "art_gone", "more"]))
    said = cli("artifacts", "from", one)
    assert [line.strip().partition("  ")[0] for line in said.lines] == [
        one,
        two,
        one,
        "art_gone",
        "others before, which are not kept",
        ids["page"],
        two,
    ]
    assert said.lines[2].endswith("(see above)")
    assert said.lines[3].endswith("its record is gone")
    monkeypatch.setattr(_cli_lineage, "MOST_NODES", 3)
    said = cli("artifacts", "from", one)
    assert len(said.lines) == 4
    assert said.lines[-1] == "... more than 3 lines: go on from one of these"
    assert json.loads(cli("artifacts", "from", one, "--json").out)["cut"] is True


# --- dangling and verify ----------------------------------------------------------------------------


def test_dangling_names_refs_in_data_and_memory_whose_record_or_bytes_are_missing(
    cli: Perdure, ids: Ids
) -> None:
    assert (cli("artifacts", "dangling").status, cli("artifacts", "dangling").lines) == (
        0,
        ["nothing dangles"],
    )
    blob(DRAFT).unlink()
    with contextlib.closing(sqlite3.connect("perdure.db")) as db, db:
        db.execute("DELETE FROM artifact WHERE id = ?", (ids["page"],))
    blob(PAGE).unlink()
    said = cli("artifacts", "dangling")
    assert said.status == 1
    assert sorted(said.lines) == sorted(
        [
            f"thread 'book/1': {ids['page']}: no record and no bytes",
            f"thread 'book/1': {ids['draft']}: no bytes",
            f"memory source/birds: {ids['page']}: no record and no bytes",
            "3 dangling",
        ]
    )
    told = [json.loads(line) for line in cli("artifacts", "dangling", "--json").lines]
    assert {(each["where"], each["id"], tuple(each["missing"])) for each in told} == {
        ("thread 'book/1'", ids["page"], ("record", "bytes")),
        ("thread 'book/1'", ids["draft"], ("bytes",)),
        ("memory source/birds", ids["page"], ("record", "bytes")),
    }


def test_verify_reads_all_and_names_what_is_damaged_or_missing(cli: Perdure, ids: Ids) -> None:
    assert (cli("artifacts", "verify").status, cli("artifacts", "verify").lines) == (
        0,
        ["3 good, 0 damaged or missing"],
    )
    blob(DRAFT).write_bytes(b"another")
    blob(PAGE).unlink()
    said = cli("artifacts", "verify")
    assert said.status == 1
    [page, draft, count] = said.lines
    assert page.startswith(f"{ids['page']}  missing: upload by user:ada, sha256 ")
    assert draft.startswith(f"{ids['draft']}  damaged: book/1@0, sha256 ")
    assert count == "1 good, 2 damaged or missing"
    told = [json.loads(line) for line in cli("artifacts", "verify", "--json").lines]
    assert [each.get("wrong") for each in told] == ["missing", "damaged", None]
    assert told[-1] == {"good": 1, "bad": 2}
    only = cli("artifacts", "verify", ids["report"])
    assert (only.status, only.lines) == (0, ["1 good, 0 damaged or missing"])


# --- get --------------------------------------------------------------------------------------------


def test_get_writes_a_whole_file_and_replaces_none_unasked(cli: Perdure, ids: Ids) -> None:
    said = cli("artifacts", "get", ids["report"], "out.html")
    assert (said.status, said.out, Path("out.html").read_bytes()) == (0, "", REPORT)
    assert said.err == f"{ids['report']} is in out.html (10 bytes)\n"
    refused = cli("artifacts", "get", ids["draft"], "out.html")
    assert refused.status == 2
    assert "'out.html' is there already: name another file, or say --force" in refused.err
    assert Path("out.html").read_bytes() == REPORT
    assert cli("artifacts", "get", ids["draft"], "out.html", "--force").status == 0
    assert Path("out.html").read_bytes() == DRAFT
    assert files() == ["out.html"]


def test_get_to_the_output_writes_the_bytes_alone(
    ids: Ids, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    from perdure.runtime import _cli

    with pytest.raises(SystemExit) as left:
        _cli.main(["artifacts", "get", ids["report"], "-"])
    assert left.value.code == 0
    assert capsysbinary.readouterr().out == REPORT


def test_get_leaves_nothing_behind_where_the_bytes_are_damaged_or_missing(cli: Perdure, ids: Ids) -> None:
    blob(REPORT).write_bytes(b"x" * len(REPORT))
    Path("there").write_bytes(b"kept")
    for file, force in (("out", ()), ("there", ("--force",))):
        said = cli("artifacts", "get", ids["report"], file, *force)
        assert said.status == 2
        assert "does not have its digest" in said.err
    blob(REPORT).unlink()
    assert cli("artifacts", "get", ids["report"], "out").status == 2
    assert (files(), Path("there").read_bytes()) == (["there"], b"kept")


def test_get_refuses_what_is_no_new_file(cli: Perdure, ids: Ids) -> None:
    Path("folder").mkdir()
    Path("link").symlink_to("elsewhere")
    assert "is a folder: name a file in it" in cli("artifacts", "get", ids["page"], "folder").err
    assert "is there already" in cli("artifacts", "get", ids["page"], "link").err
    assert cli("artifacts", "get", ids["page"], "nowhere/file").status == 2
    assert files() == ["folder", "link"]
    assert cli("artifacts", "get", ids["page"], "link", "--force").status == 0
    assert (Path("link").is_symlink(), Path("link").read_bytes(), files()) == (
        False,
        PAGE,
        ["folder", "link"],
    )


def test_a_file_made_meanwhile_is_not_replaced(
    cli: Perdure, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(source: Any, target: Any, **more: Any) -> None:
        if str(target) == "out":
            Path("out").write_bytes(b"theirs")
        link(source, target, **more)

    monkeypatch.setattr(os, "link", late)
    said = cli("artifacts", "get", ids["page"], "out")
    assert said.status == 2
    assert "'out' has been made meanwhile: nothing was replaced" in said.err
    assert (files(), Path("out").read_bytes()) == (["out"], b"theirs")


# --- put --------------------------------------------------------------------------------------------


def test_put_records_type_expiry_and_principal(cli: Perdure, ids: Ids) -> None:
    Path("notes.md").write_bytes(b"# notes")
    said = cli("artifacts", "put", "notes.md", "--expires", "30d", "--principal", "user:bo", "--json")
    ref = json.loads(said.out)
    assert ref == {
        "id": ref["id"],
        "sha256": hashlib.sha256(b"# notes").hexdigest(),
        "media_type": "text/markdown",
        "size_bytes": 7,
    }
    row = json.loads(cli("artifacts", "show", ref["id"], "--json").out)
    assert (row["principal"], row["thread"], row["derived_from"]) == ("user:bo", None, [])
    assert row["expires"][:10] > row["created"][:10]
    plain = cli("artifacts", "put", "notes.md", "--media-type", "text/x-notes", "--workspace", "w")
    assert plain.lines[0].split("  ")[1].startswith("text/x-notes, 7 bytes, sha256 ")
    assert len(cli("artifacts", "ls", "--workspace", "w").lines) == 2


def test_put_takes_the_input_and_makes_the_folder_of_the_blobs(
    cli: Perdure, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bytes(range(256)) * 9000)))
    said = cli("artifacts", "put", "-", "--artifacts", "file:new%20place", "--json")
    assert (said.status, json.loads(said.out)["media_type"]) == (0, "application/octet-stream")
    assert json.loads(said.out)["size_bytes"] == 256 * 9000
    assert Path("new place/blobs").is_dir()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["put", "none.txt"], "No such file or directory: 'none.txt'"),
        (["put", "artifacts"], "'artifacts' is a folder"),
        (["put", "f", "--expires", "soon"], "--expires: 'soon' is no span of time: write it as in 90s"),
        (["put", "f", "--expires", "99999w"], "longer than a hundred years"),
        (["put", "f", "--media-type", "a\nb"], "media type"),
        (["put", "f", "--principal", ""], "principal is empty"),
        (["put", "f", "--workspace", "w" * 129], "workspace"),
        (["show", "x", "--artifacts", "file:nowhere"], "there are no artifacts at 'nowhere'"),
        (["show", "x", "--artifacts", "ftp:x"], "unknown artifacts URL scheme"),
        (["ls", "--store", "sqlite:///none.db"], "there is no store at 'none.db'"),
        (["ls", "--after", "x"], "is no cursor"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    cli: Perdure, ids: Ids, arguments: list[str], words: str
) -> None:
    Path("f").write_bytes(b"bytes")
    said = cli("artifacts", *arguments)
    assert (said.status, said.out) == (2, "")
    assert words in said.err
    assert len(said.err.splitlines()) == 1
    assert files() == ["f"]
    assert len(cli("artifacts", "ls").lines) == 4


@pytest.mark.parametrize("workspace", ["../../x", "/etc/x", "C:\\x", "%2e%2e/x", "a#/../x", "..", "."])
def test_a_crafted_workspace_is_a_plain_label(cli: Perdure, ids: Ids, workspace: str) -> None:
    before = {path for path in Path.cwd().parent.rglob("*") if "artifacts" not in path.parts}
    Path("f").write_bytes(b"theirs")
    ref = json.loads(cli("artifacts", "put", "f", "--workspace", workspace, "--json").out)
    assert cli("artifacts", "get", ref["id"], "g", "--workspace", workspace).status == 0
    assert Path("g").read_bytes() == b"theirs"
    assert cli("artifacts", "show", ref["id"]).status == 2
    after = {path for path in Path.cwd().parent.rglob("*") if "artifacts" not in path.parts}
    made = {path.name for path in after - before if not path.name.startswith("perdure.db")}
    assert made == {"f", "g"}


def test_a_link_among_the_blobs_is_not_followed(cli: Perdure, ids: Ids, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(REPORT)
    place = blob(REPORT)
    place.unlink()
    place.symlink_to(secret)
    said = cli("artifacts", "get", ids["report"], "out")
    assert (said.status, files()) == (2, [])
    assert "is a link or no file: put it again" in said.err
    assert cli("artifacts", "verify").status == 1


def test_nothing_that_a_terminal_would_obey_is_shown(cli: Perdure, ids: Ids) -> None:
    insert(
        media_type=NASTY, principal=NASTY, thread_id=NASTY, seq=1, derived_from=json.dumps([NASTY, "more"])
    )
    ref = "art_" + "0" * 32
    for arguments in (["ls"], ["show", ref], ["from", ref], ["into", NASTY], ["verify"], ["dangling"]):
        for more in ([], ["--json"]):
            said = cli("artifacts", *arguments, *more)
            assert not any(each in said.out + said.err for each in FORBIDDEN), arguments
            assert said.status in (0, 1)


# --- gc ---------------------------------------------------------------------------------------------


def test_gc_tells_what_went_and_a_dry_run_deletes_nothing(cli: Perdure, ids: Ids) -> None:
    with contextlib.closing(sqlite3.connect("perdure.db")) as db, db:
        db.execute("UPDATE artifact SET expires = 5 WHERE id = ?", (ids["page"],))
        db.execute("UPDATE memory SET expires = 5")
    os.utime(blob(PAGE), (1, 1))
    told = {
        "expired": {"memory": 1, "uploads": 1, "keys": 0},
        "blobs": 1,
        "size_bytes": 6,
        "held": 0,
        "young": 2,
    }
    assert json.loads(cli("gc", "--dry-run", "--json").out) == {"dry_run": True, **told}
    assert cli("gc", "--dry-run").lines == [
        "would be expired: 1 memory version, 1 upload, 0 explicit keys",
        "would be deleted: 1 blob (6 bytes)",
        "left: 0 blobs held, 2 blobs younger than the grace",
    ]
    assert cli("artifacts", "verify").status == 0
    assert json.loads(cli("gc", "--json").out) == {"dry_run": False, **told}
    assert json.loads(cli("gc", "--grace", "0s", "--json").out)["held"] == 2
    assert [line.split("\t")[0] for line in cli("artifacts", "ls").lines[1:]] == [ids["draft"], ids["report"]]
    assert cli("artifacts", "verify").lines == ["2 good, 0 damaged or missing"]


@pytest.mark.parametrize("grace", ["", "1", "h", "-1h", "1 h", "1e3s", "nan", "10000w"])
def test_a_grace_that_is_none_is_refused(cli: Perdure, ids: Ids, grace: str) -> None:
    said = cli("gc", "--grace", grace)
    assert said.status == 2
    assert "--grace" in said.err


# --- progress ---------------------------------------------------------------------------------------


def test_a_bar_is_drawn_on_a_terminal_alone(cli: Perdure, ids: Ids) -> None:
    start = "from perdure.runtime._cli import main; main()"
    command = [sys.executable, "-c", start, "artifacts", "get", ids["report"], "out"]
    upper, lower = pty.openpty()
    try:
        ran = subprocess.run(command, stdout=lower, stderr=lower, stdin=lower, check=False)
    finally:
        os.close(lower)
    shown = b""
    with contextlib.suppress(OSError):
        while some := os.read(upper, 65536):
            shown += some
    os.close(upper)
    assert (ran.returncode, Path("out").read_bytes()) == (0, REPORT)
    assert b"\x1b[" in shown
    piped = subprocess.run([*command[:-1], "other"], capture_output=True, check=True)
    assert piped.stdout == b""
    assert b"\x1b[" not in piped.stderr


def test_what_the_shell_put_a_client_reads(cli: Perdure, ids: Ids) -> None:
    Path("f").write_bytes(b"from the shell")
    ref = json.loads(cli("artifacts", "put", "f", "--json").out)

    async def look() -> tuple[str, bytes]:
        async with SQLiteStore("perdure.db") as store, open_artifacts("file:artifacts") as blobs:
            [row] = (await store.page(Artifacts(workspace="default", id=ref["id"]))).rows
            return row.sha256, b"".join([chunk async for chunk in blobs.open("default", row.sha256)])

    assert anyio.run(look) == (ref["sha256"], b"from the shell")


def test_who_put_a_record_is_a_step_an_upload_or_a_signal() -> None:
    row = artifact_of("art_1", "t")
    assert put_by(evolve(row, seq=3)) == "t@3"
    assert put_by(evolve(row, seq=None)) == "signal to t", "what a signal brought in has no step"
    assert put_by(evolve(row, thread_id=None, seq=None, principal="ada")) == "upload by ada"
