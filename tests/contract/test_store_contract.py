"""Every store keeps every promise of the contract: one check and one store, one test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.stores import MemoryStore, SQLiteStore
from perdure.stores.contract import CHECKS, Check, Clock, Kit


def memory_kit(folder: Path) -> Kit:
    clock = Clock()
    store = MemoryStore(clock)
    return Kit(open=lambda: store, clock=clock)


def sqlite_kit(folder: Path) -> Kit:
    clock = Clock()
    return Kit(open=lambda: SQLiteStore(folder / "perdure.db", clock=clock), clock=clock)


def inline_kit(folder: Path) -> Kit:
    clock = Clock()
    return Kit(open=lambda: SQLiteStore(folder / "perdure.db", clock=clock, inline=True), clock=clock)


KITS: dict[str, Callable[[Path], Kit]] = {
    "memory": memory_kit,
    "sqlite": sqlite_kit,
    "sqlite inline": inline_kit,
}


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("kind", KITS)
async def test_store_contract(kind: str, check: Check, tmp_path: Path) -> None:
    await check.run(KITS[kind](tmp_path))


def test_checks_have_names_of_their_own_and_say_what_they_promise() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert [check.name for check in CHECKS if not check.promise] == []
