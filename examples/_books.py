"""The books of the invoice desk: one SQLite file, which remembers the key of every entry."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import attrs
from anyio import to_thread


@attrs.frozen(kw_only=True)
class Books:
    """Who pays. A key that was booked before is answered with its entry, and booked no second time."""

    path: Path

    async def book(self, key: str, supplier: str, number: str, amount: str) -> int:
        """Book an invoice; the entry's number."""
        return await to_thread.run_sync(self._book, key, supplier, number, amount)

    def _book(self, key: str, supplier: str, number: str, amount: str) -> int:
        with closing(sqlite3.connect(self.path, timeout=10)) as books, books:
            books.execute(
                "CREATE TABLE IF NOT EXISTS entries "
                "(id INTEGER PRIMARY KEY, key TEXT UNIQUE, supplier TEXT, number TEXT, amount TEXT)"
            )
            books.execute(
                "INSERT INTO entries (key, supplier, number, amount) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (key) DO NOTHING",
                (key, supplier, number, amount),
            )
            [(entry,)] = books.execute("SELECT id FROM entries WHERE key = ?", (key,))
            return int(entry)
