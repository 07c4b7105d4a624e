"""Seeds on a real store: every invariant holds on what it has answered, and the model answers the same.

`make test` runs some on SQLite, `make crash` more, on the store that it is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from _beside import BesideStore, Clock, Place, Real, reports
from _run import run_seed
from anyio.from_thread import start_blocking_portal
from attrs import evolve

from perdure.stores import Delivered, MemoryStore, Signal

QUICK = 6
FULL = 300
CHUNK = 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In chunks that several processes can share."""
    if "first" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full-sweep")
        metafunc.parametrize("first", range(0, FULL if full else QUICK, CHUNK))


def test_every_invariant_holds_on_a_real_store(store: str, tmp_path: Path, first: int) -> None:
    happened: Counter[str] = Counter()
    for report in reports(store, tmp_path, range(first, first + CHUNK)):
        assert not report.broken, f"{report} --store {store}"
        happened.update(report.counts)
    assert happened["commits"] > 10 * CHUNK, happened


class TakesItTwice(MemoryStore):
    """Calls a signal new that it has already."""

    async def deliver(self, signal: Signal, /) -> Delivered:
        return evolve(await super().deliver(signal), new=True)


def test_a_store_that_answers_otherwise_is_found() -> None:
    @contextmanager
    def place(clock: Clock) -> Iterator[BesideStore]:
        yield BesideStore(clock, Real(portal, TakesItTwice(clock)))

    with start_blocking_portal("asyncio") as portal:
        assert any("the store" in invariants_broken(seed, place) for seed in range(20))


def invariants_broken(seed: int, place: Place) -> set[str]:
    return {broken.invariant for broken in run_seed(seed, place=place).broken}
