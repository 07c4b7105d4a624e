"""Processes killed on PostgreSQL: nothing is lost and nothing done twice there either.

A sample; all of it with `make crash STORE=postgres`.
"""

from __future__ import annotations

import pytest
from crash.running import sweep


def test_distinct_points_of_the_example(postgres_server: str) -> None:
    report = sweep(postgres_server, "summary", "distinct", "--every", "2")
    assert report["faults"] == []
    assert report["kills"] >= report["runs"] // 2


@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_distinct_points_of_a_machine_that_uses_everything(seed: str, postgres_server: str) -> None:
    report = sweep(postgres_server, "everything", "distinct", "--every", "8", "--seed", seed)
    assert report["faults"] == []
    assert report["kills"] >= report["runs"] // 2


@pytest.mark.long
@pytest.mark.parametrize("mode", ["pairs", "random"])
def test_kills_of_a_process_and_its_successor_and_from_outside(mode: str, postgres_server: str) -> None:
    report = sweep(postgres_server, "everything", mode, "--count", "3")
    assert report["faults"] == []
    assert report["kills"] >= report["runs"] // 2
