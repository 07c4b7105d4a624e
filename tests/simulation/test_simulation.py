"""Seeds of the simulation: whatever happens, the invariants of docs/protocol.md hold."""

from __future__ import annotations

from collections import Counter

import pytest
from _run import run_seed

QUICK = 250
FULL = 10_000
CHUNK = 50


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Some hundreds of seeds, or all of them, in chunks that several processes can share."""
    if "first" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full-sweep")
        metafunc.parametrize("first", range(0, FULL if full else QUICK, CHUNK))


def test_every_invariant_holds_whatever_happens(first: int) -> None:
    """A failure prints the seed, and the command that repeats it."""
    reports = [run_seed(seed) for seed in range(first, first + CHUNK)]
    failures = [str(report) for report in reports if report.broken]
    assert not failures, "\n".join(failures)
    happened = sum((Counter(report.counts) for report in reports), Counter[str]())
    assert happened["ended"] > CHUNK, happened
    assert happened["kills"] > CHUNK / 2, happened
    assert happened["arrivals"] > 4 * CHUNK, happened
    assert min(happened["cancelled"], happened["terminated"]) >= CHUNK / 50, happened


def test_a_seed_repeats_to_the_last_detail() -> None:
    """Else the command that a failure prints would be worth nothing."""
    for seed in (3, 8, 21):
        assert run_seed(seed).digest == run_seed(seed).digest
