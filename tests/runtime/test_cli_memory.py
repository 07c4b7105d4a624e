"""``perdure memory``: what it prints, refuses, and leaves in the store."""

import io
import json
import sys
from pathlib import Path

import anyio
import pytest
from harness.cli import FORBIDDEN, NASTY, Perdure

from perdure import Namespace, record
from perdure.runtime._client_memory import ClientMemory
from perdure.runtime._env import Env
from perdure.stores import MAX_BODY, Expire, SQLiteStore


@record
class Liking:
    colour: str
    since: int = 0


likings = Namespace("customer", Liking)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Perdure:
    """The command line beside a store with one fact, which code wrote."""
    monkeypatch.chdir(tmp_path)

    async def make() -> None:
        async with SQLiteStore("perdure.db") as store:
            await ClientMemory(store, Env()).put(likings, "ada", Liking(colour="red"), principal="user:bo")

    anyio.run(make)
    return Perdure(capsys)


def test_get_prints_the_value_and_says_where_there_is_none(cli: Perdure) -> None:
    said = cli("memory", "get", "customer", "ada")
    assert (said.status, json.loads(said.out)) == (0, {"colour": "red", "since": 0})
    told = json.loads(cli("memory", "get", "customer", "ada", "--json").out)
    assert (told["version"], told["principal"], told["thread"], told["expires"]) == (1, "user:bo", None, None)
    none = cli("memory", "get", "customer", "nobody")
    assert (none.status, none.out) == (1, "")
    assert none.err == "perdure: workspace 'default' has no memory customer/nobody\n"


def test_what_the_shell_puts_code_reads(cli: Perdure) -> None:
    said = cli("memory", "put", "customer", "ada", '{"colour": "blue", "since": 7}')
    assert (said.status, said.lines) == (0, ["memory customer/ada is at version 2"])

    async def look() -> object:
        async with SQLiteStore("perdure.db") as store:
            fact = await ClientMemory(store, Env()).get(likings, "ada")
            return None if fact is None else fact.value

    assert anyio.run(look) == Liking(colour="blue", since=7)


def test_put_takes_the_input(cli: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"colour": "green"}'))
    assert cli("memory", "put", "customer", "ada", "-").status == 0
    assert json.loads(cli("memory", "get", "customer", "ada").out) == {"colour": "green"}


def test_if_version_holds_a_write_to_what_was_looked_at(cli: Perdure) -> None:
    for command in (["put", "customer", "ada", "1"], ["rm", "customer", "ada"]):
        said = cli("memory", *command, "--if-version", "2")
        assert said.status == 2
        assert "version 2 was expected and version 1 is there, a record that user:bo wrote at" in said.err
        assert len(said.err.splitlines()) == 1
    assert cli("memory", "put", "customer", "ada", "1", "--if-version", "0").status == 2
    assert cli("memory", "put", "customer", "new", "1", "--if-version", "0").status == 0
    assert cli("memory", "put", "customer", "ada", "1", "--if-version", "1").status == 0
    assert cli("memory", "rm", "customer", "ada", "--if-version", "2").status == 0


def test_rm_leaves_the_history(cli: Perdure) -> None:
    assert cli("memory", "rm", "customer", "ada", "--principal", "op").lines == [
        "memory customer/ada is deleted"
    ]
    assert cli("memory", "rm", "customer", "ada").lines == ["memory customer/ada was not there"]
    assert json.loads(cli("memory", "rm", "customer", "ada", "--json").out)["deleted"] is False
    assert cli("memory", "get", "customer", "ada").status == 1
    [first, second] = cli("memory", "history", "customer", "ada").lines
    assert first.startswith("   1  20")
    assert first.endswith('Z  user:bo  {"colour": "red", "since": 0}')
    assert second.endswith("Z  op  deleted")
    versions = [json.loads(line) for line in cli("memory", "history", "customer", "ada", "--json").lines]
    assert [(each["version"], each["value"]) for each in versions] == [
        (1, {"colour": "red", "since": 0}),
        (2, None),
    ]


def test_a_fact_is_seen_for_as_long_as_it_was_put_for(cli: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("memory", "put", "customer", "ada", '"30 days"', "--expires", "30d")
    cli("memory", "put", "customer", "bo", '"a moment"', "--expires", "0s")
    assert cli("memory", "get", "customer", "bo").status == 1
    [line] = [json.loads(cli("memory", "get", "customer", "ada", "--json").out)]
    assert line["expires"][:10] > line["at"][:10]
    assert [each["key"] for each in json.loads(cli("memory", "ls", "--json").out)["facts"]] == ["ada"]

    async def end() -> int:
        async with SQLiteStore("perdure.db") as store:
            return (await store.expire(Expire(at=Env().now(), limit=10))).memory

    assert anyio.run(end) == 1
    assert cli("memory", "put", "customer", "bo", "1").lines == ["memory customer/bo is at version 2"]


def test_ls_pages_and_shows_who_wrote(cli: Perdure) -> None:
    cli("memory", "put", "order", "7", json.dumps("x" * 300))
    first = cli("memory", "ls", "--limit", "1")
    assert first.lines[0] == "namespace\tkey\tversion\twritten\tby\texpires\tvalue"
    assert first.lines[1].split("\t")[:3] == ["customer", "ada", "1"]
    cursor = first.lines[2].removeprefix("more: perdure memory ls --after ")
    [row] = cli("memory", "ls", "--after", cursor).lines[1:]
    assert row.split("\t")[:3] == ["order", "7", "1"]
    assert len(row.split("\t")[-1]) < 210
    assert len(cli("memory", "ls", "order").lines) == 2
    assert cli("memory", "ls", "--workspace", "other").lines[1:] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["put", "n", "k", "{"], "JSON is not the JSON that is wanted"),
        (["put", "n", "k", "null"], "None is no fact"),
        (["put", "n", "", "1"], "memory key is empty"),
        (["put", "n" * 256, "k", "1"], "at most 255"),
        (["put", "n", "k", "1", "--expires", "later"], "--expires: 'later' is no span of time"),
        (["put", "n", "k", "1", "--if-version", "-1"], "--if-version"),
        (["put", "n", "k", "1", "--workspace", ""], "workspace is empty"),
        (["get", "n", "k\n"], "memory key"),
        (["ls", "--after", "x"], "--after: 'x' is no cursor"),
        (["get", "n", "k", "--store", "sqlite:///none.db"], "there is no store at 'none.db'"),
        (["get", "n"], "KEY"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(cli: Perdure, arguments: list[str], words: str) -> None:
    said = cli("memory", *arguments)
    assert (said.status, said.out) == (2, "")
    assert words in said.err
    assert len(said.err.splitlines()) == 1
    assert len(cli("memory", "ls").lines) == 2


def test_nothing_that_a_terminal_would_obey_is_shown(cli: Perdure) -> None:
    assert (
        cli("memory", "put", "n", "\u202ek", json.dumps({NASTY: NASTY}), "--principal", "\u2066p").status == 0
    )
    for arguments in (["ls"], ["get", "n", "\u202ek"], ["history", "n", "\u202ek"], ["rm", "n", "\u202ek"]):
        for more in ([], ["--json"]):
            said = cli("memory", *arguments, *more)
            assert not any(each in said.out + said.err for each in FORBIDDEN), arguments


def test_what_cannot_be_read_keeps_no_other_fact_from_being_listed(
    cli: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("artifacts").mkdir()
    for version in ("a", "b"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(version * MAX_BODY)))
        assert cli("memory", "put", "customer", "ada", "-").status == 0
    [blob] = [path for path in Path("artifacts").rglob("*") if path.is_file() and b"bbb" in path.read_bytes()]
    blob.unlink()
    assert cli("memory", "put", "customer", "bo", '"here"').status == 0
    lost = f"its {MAX_BODY + 2:,} bytes lie in the artifacts as blob "
    ada, bo = cli("memory", "ls").lines[1:]
    assert lost in ada
    assert bo.endswith('"here"')
    [ada, bo] = json.loads(cli("memory", "ls", "--json").out)["facts"]
    assert (ada["key"], ada["version"], ada["value"], ada["wrong"][: len(lost)]) == ("ada", 3, None, lost)
    assert (bo["value"], "wrong" in bo) == ("here", False)
    code, large, gone = cli("memory", "history", "customer", "ada").lines
    assert ("red" in code, '"aaa' in large, lost in gone) == (True, True, True)
    told = cli("memory", "get", "customer", "ada")
    assert (told.status, "put it back from a backup" in told.err) == (2, True)
    dangling = cli("artifacts", "dangling")
    assert (dangling.status, dangling.lines) == (0, ["nothing dangles"])
    assert dangling.err.startswith("memory customer/ada: passed over, since it cannot be read: its ")
