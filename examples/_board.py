"""A notice board: one SQLite file that remembers keys, so that what comes twice hangs there once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import attrs
from anyio import to_thread

TABLE = "CREATE TABLE IF NOT EXISTS notices (id INTEGER PRIMARY KEY, key TEXT UNIQUE, about TEXT, text TEXT)"


@attrs.frozen(kw_only=True)
class Board:
    """Puts notices up, and finds the one that was put up with a key."""

    path: Path

    async def put_up(self, key: str, about: str, text: str) -> int:
        """Put a notice up, once by its key; its number."""
        return await to_thread.run_sync(self._put_up, key, about, text)

    async def find(self, key: str) -> int | None:
        """The notice that was put up with this key."""
        return await to_thread.run_sync(self._find, key)

    def _put_up(self, key: str, about: str, text: str) -> int:
        with closing(sqlite3.connect(self.path, timeout=10)) as board, board:
            board.execute(TABLE)
            insert = "INSERT OR IGNORE INTO notices (key, about, text) VALUES (?, ?, ?)"
            board.execute(insert, (key, about, text))
        return self._find(key) or 0

    def _find(self, key: str) -> int | None:
        with closing(sqlite3.connect(self.path, timeout=10)) as board, board:
            board.execute(TABLE)
            row = board.execute("SELECT id FROM notices WHERE key = ?", (key,)).fetchone()
            return None if row is None else int(row[0])
