"""``perdure run --no-wait``, ``PERDURE_STORE`` and ``-h``: what scripts need."""

import json
from pathlib import Path

import pytest
from harness.cli import Perdure

pytest_plugins = ("harness.desk",)

RUN = ("run", "cli_desk:runtime", "Desk", "--thread", "fresh", "--data", '{"item": "pen"}')


def test_a_thread_that_waits_for_an_event_is_left_with_a_status_of_its_own(cli: Perdure) -> None:
    said = cli(*RUN, "--no-wait")
    assert (said.status, said.lines[-1]) == (3, "thread 'fresh' waits in review at seq 2")
    told = cli(*RUN, "--no-wait", "--json")
    assert (told.status, json.loads(told.out)["status"]) == (3, "waiting")


def test_it_is_run_to_its_end_where_what_it_waits_for_is_there(cli: Perdure) -> None:
    cli(*RUN, "--no-wait")
    cli("signal", "fresh", "approve", "--data", '{"by": "ada"}', "--runtime", "cli_desk:runtime", "--id", "1")
    said = cli(*RUN[:-2], "--no-wait")
    assert (said.status, said.lines[-1]) == (0, "thread 'fresh' has ended in done at seq 3")


def test_the_environment_names_the_store_for_every_command(
    cli: Perdure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERDURE_STORE", f"sqlite:///{tmp_path}/elsewhere.db")
    assert cli(*RUN, "--no-wait").status == 3
    assert (tmp_path / "elsewhere.db").exists()
    assert [line.split("\t")[0] for line in cli("ls").lines] == ["thread", "fresh"]
    assert "fresh" not in cli("ls", "--store", "sqlite:///perdure.db").out


def test_a_short_h_helps(cli: Perdure) -> None:
    assert cli("ls", "-h").out == cli("ls", "--help").out
