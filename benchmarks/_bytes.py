"""What a transition takes on the disk: a kilobyte changed, and one small field beside an unchanged kilobyte.

python -m benchmarks._bytes FOLDER TRANSITIONS

The file's size when all is checkpointed into it, journal, history and indexes included, divided by the
transitions. Threads of a hundred transitions run a hundred at a time, so that their starts count for little.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from typing import Any

from benchmarks._ours import Page, Writes, body_of, measure
from perdure import Fire, Machine, Step
from perdure.runtime._garbage import spare_collector

STEPS = 100
CONCURRENCY = 100


class Whole(Writes, version=1):
    """Each transition changes everything."""

    @Writes.writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        return self.page(data.number + 1, body_of(data.number), last=STEPS)


class Part(Writes, version=1):
    """The first transition writes the kilobyte, each further one changes the number beside it."""

    @Writes.writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        return self.page(data.number + 1, data.body or body_of(0), last=STEPS)


def file_size(path: str, machine: type[Machine[Page]], threads: int) -> int:
    """Bytes of a new file at ``path`` in which so many threads have ended."""
    asyncio.run(measure(path, threads, CONCURRENCY, machine))
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    return os.path.getsize(path)


def figures(folder: str, transitions: int) -> dict[str, Any]:
    """Both, for each transition."""
    threads = max(1, transitions // STEPS)
    return {
        "kilobyte_bytes": file_size(f"{folder}/whole.db", Whole, threads) / (threads * STEPS),
        "field_bytes": file_size(f"{folder}/part.db", Part, threads) / (threads * STEPS),
    }


def main() -> None:
    spare_collector()  # as `perdure serve` does
    sys.stdout.write(json.dumps(figures(sys.argv[1], int(sys.argv[2]))) + "\n")


if __name__ == "__main__":
    main()
