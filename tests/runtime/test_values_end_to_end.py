"""Values that other systems have lost or changed: through every place that stores one, on two stores, over a
resume, they are equal and of the same type."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from harness.values import Base, Mood, Opened, Sub, Values, a_lone_surrogate_is_refused, parts, values_survive

from perdure.stores import MemoryStore, SQLiteStore

pytestmark = pytest.mark.anyio


def test_parts_tell_values_apart() -> None:
    """The measure of the tests below can fail."""
    apart: Sequence[tuple[Any, Any]] = [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (Base(name="a"), Sub(name="a")),
        (Values().early, Values().late),
        (Decimal("1.5"), Decimal("1.50")),
        ("good", Mood.GOOD),
        (frozenset({1}), frozenset({True})),
    ]
    assert all(parts(one) != parts(other) for one, other in apart)
    assert parts(float("nan")) == parts(float("nan"))


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens the same store, as often as it is asked."""
    if request.param == "sqlite":
        return lambda: SQLiteStore(tmp_path / "perdure.db")
    store = MemoryStore()
    return lambda: store


@pytest.mark.parametrize("doubtful", [False, True])
async def test_values_survive_every_place_and_a_resume(opened: Opened, doubtful: bool) -> None:
    await values_survive(opened, doubtful)


async def test_a_lone_surrogate_is_refused_alike_on_every_store(opened: Opened) -> None:
    await a_lone_surrogate_is_refused(opened)
