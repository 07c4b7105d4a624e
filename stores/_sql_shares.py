"""Limits that hold over all workers, as SQL databases keep them."""

from __future__ import annotations

from ._records import Micros
from ._shares import pace
from ._sql_steps import Steps
from ._workers import Share, Shared

OTHERS = """SELECT CAST(coalesce(sum(s.held), 0) AS BIGINT) FROM slot s JOIN worker w ON w.id = s.worker
    WHERE s.name = ? AND s.worker <> ? AND w.ended IS NULL AND ? - w.beat <= w.lease"""
FORGET = "DELETE FROM slot WHERE name = ? AND worker NOT IN (SELECT id FROM worker)"
HOLD = """INSERT INTO slot (name, worker, held) VALUES (?, ?, ?)
    ON CONFLICT (name, worker) DO UPDATE SET held = excluded.held"""
PACED = "SELECT full_at FROM pace WHERE name = ?"
PACE = """INSERT INTO pace (name, full_at) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET full_at = excluded.full_at"""


def share(request: Share, now: Micros) -> Steps[Shared]:
    held = request.held
    if request.at_once is not None:
        [(others,)] = yield OTHERS, (request.limit, request.worker, now)
        held = min(held, max(request.at_once - others, 0))
        yield FORGET, (request.limit,)
        yield HOLD, (request.limit, request.worker, held)
    rows = yield PACED, (request.limit,)
    paced = pace(request, rows[0][0] if rows else 0, now)
    if paced.starts:
        yield PACE, (request.limit, paced.full_at)
    return Shared(held=held, starts=paced.starts, again=paced.again)
