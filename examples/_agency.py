"""The agency that the tour orders from: one SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import attrs
from anyio import to_thread

TABLE = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, kind TEXT, key TEXT, what TEXT)"


@attrs.frozen(kw_only=True)
class Agency:
    """Takes orders of some kinds, each with a key."""

    path: Path

    async def order(self, kind: str, key: str, what: str) -> int:
        """Order something; the order's number. A train that was ordered with this key is ordered already."""
        return await to_thread.run_sync(self._order, kind, key, what)

    async def find(self, kind: str, key: str) -> int | None:
        """The number of the order with this key."""
        return await to_thread.run_sync(self._find, kind, key)

    def _order(self, kind: str, key: str, what: str) -> int:
        with closing(sqlite3.connect(self.path, timeout=10)) as orders, orders:
            known = _number(orders, kind, key)
            if known is not None and kind == "train":
                return known
            insert = "INSERT INTO orders (kind, key, what) VALUES (?, ?, ?)"
            return orders.execute(insert, (kind, key, what)).lastrowid or 0

    def _find(self, kind: str, key: str) -> int | None:
        with closing(sqlite3.connect(self.path, timeout=10)) as orders, orders:
            return _number(orders, kind, key)


def _number(orders: sqlite3.Connection, kind: str, key: str) -> int | None:
    orders.execute(TABLE)
    row = orders.execute("SELECT id FROM orders WHERE kind = ? AND key = ?", (kind, key)).fetchone()
    return None if row is None else int(row[0])
