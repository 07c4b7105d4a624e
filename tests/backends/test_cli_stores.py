"""The command line on stores that need a server: what it says of them, and that looking makes none."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from harness.cli import Perdure

from perdure.stores import BadStoreURL, open_store
from perdure.stores._contract_make import start_of

SECRET = "hunter2"


@pytest.fixture
def url(postgres_schema: str) -> str:
    """A store that is not there yet, under a URL with a password, which the server does not ask for."""
    return postgres_schema.replace("postgres@", f"postgres:{SECRET}@")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Perdure:
    monkeypatch.chdir(tmp_path)  # where doctor looks for artifacts
    return Perdure(capsys)


async def start(url: str) -> None:
    async with open_store(url) as store:
        await store.start(start_of("t1"))


async def is_missing(url: str) -> bool:
    try:
        async with open_store(url, create=False):
            return False
    except BadStoreURL:
        return True


@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["show", "t"],
        ["why", "t"],
        ["history", "t"],
        ["stats"],
        ["doctor"],
        ["memory", "ls"],
        ["signal", "t", "go"],
    ],
    ids=" ".join,
)
def test_a_mistyped_store_is_named_and_not_made(command: list[str], url: str, cli: Perdure) -> None:
    said = cli(*command, "--store", url)
    assert said.status != 0
    told = said.out + said.err
    assert f"there is no store in schema '{url.rpartition('=')[2]}' of the PostgreSQL database" in told
    assert SECRET not in told
    assert anyio.run(is_missing, url)


def test_doctor_and_stats_say_which_store_they_looked_at(url: str, cli: Perdure) -> None:
    anyio.run(start, url)
    place = f"schema '{url.rpartition('=')[2]}' of the PostgreSQL database 127.0.0.1:"
    for command in ("doctor", "stats"):
        said = cli(command, "--store", url)
        assert place in said.out, said
        assert SECRET not in said.out + said.err
