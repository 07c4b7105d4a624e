"""The tickets of the triage desk: one SQLite file, which can be asked for the key of every ticket."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import attrs
from anyio import to_thread

TABLE = "CREATE TABLE IF NOT EXISTS tickets (id INTEGER PRIMARY KEY, key TEXT, customer TEXT, about TEXT)"


@attrs.frozen(kw_only=True)
class Tickets:
    """It opens a ticket each time that it is told to, and finds the one that was opened with a key."""

    path: Path

    async def open(self, key: str, customer: str, about: str) -> int:
        """Open a ticket; its number."""
        return await to_thread.run_sync(self._open, key, customer, about)

    async def find(self, key: str) -> int | None:
        """The ticket that was opened with this key."""
        return await to_thread.run_sync(self._find, key)

    def _open(self, key: str, customer: str, about: str) -> int:
        with closing(sqlite3.connect(self.path, timeout=10)) as tickets, tickets:
            tickets.execute(TABLE)
            insert = "INSERT INTO tickets (key, customer, about) VALUES (?, ?, ?)"
            return tickets.execute(insert, (key, customer, about)).lastrowid or 0

    def _find(self, key: str) -> int | None:
        with closing(sqlite3.connect(self.path, timeout=10)) as tickets, tickets:
            tickets.execute(TABLE)
            row = tickets.execute("SELECT id FROM tickets WHERE key = ?", (key,)).fetchone()
            return None if row is None else int(row[0])
