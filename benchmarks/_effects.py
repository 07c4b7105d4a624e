"""The workload with one effect in every step, 100 threads at once.

python -m benchmarks._effects FOLDER THREADS
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from typing import Any

from benchmarks._ours import TRANSITIONS, Page, Writes, body_of, measure
from perdure import Call, Fire, Step, effect
from perdure.runtime._garbage import spare_collector

CONCURRENCY = 100


@effect
async def send(call: Call, number: int) -> int:
    """Done at once: what it costs is perdure's."""
    return number


class Sending(Writes, version=1, calls=[send]):
    """Ten transitions, each after an effect."""

    @Writes.writing.handler
    async def write(self, data: Page, step: Step) -> Fire:
        number = await step.call(send, data.number)
        return self.page(number + 1, body_of(number))


def commits_per_step(path: str) -> float:
    """Commits, each of which has one row in the log, for each transition; starts are left out."""
    db = sqlite3.connect(path)
    (commits,) = db.execute("SELECT count(*) FROM log WHERE n > 0").fetchone()
    (transitions,) = db.execute("SELECT sum(seq) FROM standing").fetchone()
    db.close()
    return float(commits / transitions)


def main() -> None:
    path, threads = f"{sys.argv[1]}/effects.db", int(sys.argv[2])
    spare_collector()  # as `perdure serve` does
    ran = asyncio.run(measure(path, threads, CONCURRENCY, Sending))
    steps = threads * TRANSITIONS
    result: dict[str, Any] = {
        "transitions_per_second": steps / ran["seconds"],
        "cpu_per_thousand": ran["cpu"] / steps * 1000,
        "commits_per_step": commits_per_step(path),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
