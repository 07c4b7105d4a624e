"""What a claim costs does not grow with what is stored: counted in steps of SQLite's machine, not in time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from perdure.stores import ClaimRequest
from perdure.stores._contract_make import MACHINE, T0, request_of
from perdure.stores._sqlite_claims import Found, find_next_wake, look
from perdure.stores._sqlite_commits import Transaction
from perdure.stores._sqlite_schema import MIGRATIONS

FILL = """WITH RECURSIVE numbers (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i + 1 < :count)
    INSERT INTO standing (incarnation, machine, state, seq, version, definition, status, base, n, epoch,
        owner, crashes, inbox, wake, items, schema, workspace, priority, since)
    SELECT x'', 'Summarise', 's', 0, 1, 'd', :status, 0, 1, 0, :owner, 0, 0, :wake + i * (:wake > 0), 0, 2,
        printf(:workspace, i % :workspaces), i % 3, :wake + i FROM numbers"""

KINDS: dict[str, dict[str, object]] = {
    "runs": {"status": 0, "owner": None, "wake": 0},
    "waits": {"status": 1, "owner": None, "wake": T0 + 10**9},
    "due": {"status": 1, "owner": None, "wake": T0 - 10**9},
    "left": {"status": 0, "owner": "dead", "wake": 0},
}

LIMITS: list[dict[str, object]] = [
    {},
    {"at_once": {MACHINE: 5}},
    {"late_before": T0 - 1, "late_limit": 3},
    {"late_before": T0 - 10**10, "late_limit": 3},  # none is
]


@contextmanager
def holding(count: int, kind: str, workspaces: int = 1) -> Iterator[Transaction]:
    """A store with so many threads of one kind, and one thread of another workspace that runs."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for migration in MIGRATIONS:
            for statement in migration:
                db.execute(statement)
        db.execute("BEGIN")
        rows = {"count": count, "workspace": "big %d", "workspaces": workspaces, **KINDS[kind]}
        db.execute(FILL, rows)
        db.execute(FILL, {**rows, **KINDS["runs"], "count": 1, "workspace": "small"})
        db.execute("COMMIT")
        yield Transaction(db, now=T0)


def steps(tx: Transaction, request: ClaimRequest) -> tuple[int, Found]:
    count = 0

    def step() -> None:
        nonlocal count
        count += 1

    tx.db.set_progress_handler(step, 1)
    found = look(tx, request)
    find_next_wake(tx, request, found)
    tx.db.set_progress_handler(None, 0)
    return count, found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limits", LIMITS)
def test_a_claim_does_not_grow_with_one_workspace(kind: str, limits: dict[str, object]) -> None:
    request = request_of("w1", limit=10, **limits)
    found: list[Found] = []
    costs: list[int] = []
    for count in (1_000, 100_000) if not limits else (1_000, 30_000):
        with holding(count, kind) as tx:
            cost, claimed = steps(tx, request)
            costs.append(cost)
            found.append(claimed)
            assert count + 1 in claimed.numbers  # the other workspace's one
    assert costs[1] < 1.2 * costs[0]
    assert costs[1] < 5_000
    assert len(found[0].numbers) == len(found[1].numbers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_does_not_grow_with_the_workspaces(kind: str) -> None:
    request = request_of("w1", limit=10)
    costs: list[int] = []
    for workspaces in (100, 1_000):
        with holding(10 * workspaces, kind, workspaces) as tx:
            cost, claimed = steps(tx, request)
            costs.append(cost)
            assert len(claimed.numbers) == (1 if kind == "waits" else 10)
    assert costs[1] < 1.2 * costs[0]
    assert costs[1] < 10_000
