"""Fixtures: a desk's threads in a store of their own, in the folder in which a command runs."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from .cli import DESK, Perdure


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``review`` waits, ``done`` has ended, ``doubt`` is parked in doubt."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "cli_desk.py").write_text(DESK)
    sys.path.insert(0, str(folder))
    try:
        app = importlib.import_module("cli_desk")
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("cli_desk", None)

    async def make() -> None:
        async with app.runtime.with_store(f"sqlite:///{folder}/perdure.db") as running:
            done = await running.start(app.Desk, app.Claim(item="pan"), thread_id="done")
            review = await running.start(app.Desk, app.Claim(item="kettle"), thread_id="review")
            doubt = await running.start(app.Paying, app.Claim(item="cup"), thread_id="doubt")
            for thread in (done, review, doubt):
                await thread.settled()
            await done.signal(app.Desk.again, id="once")
            await done.settled()
            await done.signal(app.Desk.approve, app.Approval(by="ada"), id="yes")
            await done.result()

    anyio.run(make)
    return folder


@pytest.fixture
def at_desk(desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the desk's folder, as the working directory."""
    folder = tmp_path / "desk"
    shutil.copytree(desk, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("cli_desk", None)


@pytest.fixture
def cli(at_desk: Path, capsys: pytest.CaptureFixture[str]) -> Perdure:
    """The command line at the desk."""
    return Perdure(capsys)
