"""Nothing is lost and nothing done twice, wherever a process is killed; and the sweep can tell.

`make test` takes every point of the example and a sample of the rest; with `--full-sweep` every point of
everything, 500 pairs and 200 kills from outside. `--store` names another store than SQLite.
"""

from __future__ import annotations

import pytest

from crash.running import copied, sweep

POINTS_IN_ALL = 200
"""Distinct points of the two jobs together, at the least."""


# How many points a run passes depends a little on time, so a point near the end may not be reached again:
# the counts of kills below say that a sweep did kill, not exactly how often.


def test_every_point_of_the_example(store: str) -> None:
    report = sweep(store, "summary", "points")
    assert report["faults"] == []
    assert report["kills"] == len(report["points"])


def test_points_of_a_machine_that_uses_everything(store: str, full_sweep: bool) -> None:
    report = sweep(store, "everything", "points", "--every", "1" if full_sweep else "29")
    assert report["faults"] == []
    assert report["kills"] >= report["runs"] // 2
    assert len(report["points"]) >= POINTS_IN_ALL - 20


def test_points_of_a_machine_whose_bodies_lie_outside_of_the_store(store: str, full_sweep: bool) -> None:
    """While what nothing holds is deleted again and again, without a grace."""
    report = sweep(store, "spilling", "points", "--every", "1" if full_sweep else "8")
    assert report["faults"] == []
    assert report["kills"] >= report["runs"] // 2
    assert report["points"].count("before upload") >= 8
    if full_sweep:
        assert sweep(store, "spilling", "pairs", "--count", "100", "--seed", "3")["faults"] == []


@pytest.mark.parametrize("job", ["summary", "everything"])
def test_pairs_of_points(store: str, job: str, full_sweep: bool) -> None:
    report = sweep(store, job, "pairs", "--count", "500" if full_sweep else "4", "--seed", "11")
    assert report["faults"] == []
    assert report["kills"] >= report["runs"] // 2


@pytest.mark.parametrize("job", ["summary", "everything"])
def test_kills_from_outside_at_any_time(store: str, job: str, full_sweep: bool) -> None:
    report = sweep(store, job, "random", "--count", "200" if full_sweep else "4", "--seed", "5")
    assert report["faults"] == []


@pytest.mark.parametrize("job", ["summary", "everything"])
def test_a_world_that_answers_differently_each_time(store: str, job: str, full_sweep: bool) -> None:
    every = "1" if full_sweep else "3" if job == "summary" else "37"
    report = sweep(store, job, "points", "--moving", "--every", every)
    assert report["faults"] == []


@pytest.mark.parametrize(
    ("mutant", "arguments"),
    [
        ("no lookup", ["--at", "after send", "after offer"]),
        ("no outcomes", ["--at", "before transition in side_by_side", "before transition in hopeless"]),
        ("no pinning", ["--at", "after ping", "after post", "--moving"]),
    ],
)
def test_the_sweep_finds_what_each_rule_prevents(store: str, mutant: str, arguments: list[str]) -> None:
    report = sweep(store, "everything", "named", "--mutant", mutant, *arguments)
    assert report["faults"] != []


def test_a_copy_that_is_killed_goes_on(full_sweep: bool) -> None:
    """At every write of it: a thread that stands is whole, and the copy begun again ends as the source."""
    report = copied(1 if full_sweep else 11)
    assert report["faults"] == []
    assert report["points"] >= 30
