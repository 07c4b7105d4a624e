"""Limits that hold over all workers, as SQLite keeps them."""

from __future__ import annotations

from ._shares import pace
from ._sqlite_commits import Transaction
from ._workers import Share, Shared

OTHERS = """SELECT ifnull(sum(s.held), 0) FROM slot s JOIN worker w ON w.id = s.worker
    WHERE s.name = ? AND s.worker <> ? AND w.ended IS NULL AND ? - w.beat <= w.lease"""
FORGET = """DELETE FROM slot WHERE name = ? AND worker NOT IN (SELECT id FROM worker)"""
HOLD = """INSERT INTO slot (name, worker, held) VALUES (?, ?, ?)
    ON CONFLICT (name, worker) DO UPDATE SET held = excluded.held"""
PACE = """INSERT INTO pace (name, full_at) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET full_at = excluded.full_at"""


def share(tx: Transaction, request: Share) -> Shared:
    held = request.held
    if request.at_once is not None:
        (others,) = tx.db.execute(OTHERS, (request.limit, request.worker, tx.now)).fetchone()
        held = min(held, max(request.at_once - others, 0))
        tx.db.execute(FORGET, (request.limit,))
        tx.db.execute(HOLD, (request.limit, request.worker, held))
    row = tx.db.execute("SELECT full_at FROM pace WHERE name = ?", (request.limit,)).fetchone()
    paced = pace(request, 0 if row is None else row[0], tx.now)
    if paced.starts:
        tx.db.execute(PACE, (request.limit, paced.full_at))
    return Shared(held=held, starts=paced.starts, again=paced.again)
