"""What an asyncio program can do: the very rows that perdure wrote, through a bare group-commit loop.

python -m benchmarks._group SOURCE PATH CONCURRENCY

As many coroutines as threads run at once, each waiting for a row to be on the disk before it hands over the
next one; one writer thread, which takes all that waits into one transaction and wakes the loop once for it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks._raw import Row, land, prepared

Request = tuple[Row, "asyncio.Future[None]"]


class Writer:
    """The thread that writes."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._turn: list[Request] = []
        """What came in this turn of the loop: handed over together, at its end."""
        self._handed: SimpleQueue[list[Request] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def write(self, row: Row) -> asyncio.Future[None]:
        """Done once the disk has the row."""
        future: asyncio.Future[None] = self._loop.create_future()
        if not self._turn:
            self._loop.call_soon(self._hand_over)
        self._turn.append((row, future))
        return future

    def close(self) -> None:
        """Wait for the thread's end."""
        self._handed.put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        self._handed.put(self._turn)
        self._turn = []

    def _run(self) -> None:
        while batch := self._take():
            land(self._db, [row for row, _ in batch])
            self._loop.call_soon_threadsafe(_settle, batch)

    def _take(self) -> Sequence[Request]:
        batch = list(self._handed.get() or ())
        while batch:
            try:
                batch += self._handed.get_nowait() or ()
            except Empty:
                break
        return batch


def _settle(batch: Sequence[Request]) -> None:
    for _, future in batch:
        future.set_result(None)


async def _write_threads(writer: Writer, threads: Iterator[list[Row]]) -> None:
    for rows in threads:
        for row in rows:
            await writer.write(row)


async def measure(source: str, path: str, concurrency: int) -> dict[str, Any]:
    """Seconds for all rows."""
    db, rows = prepared(source, path)
    writer, threads = Writer(db), iter(rows)
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(_write_threads(writer, threads) for _ in range(concurrency)))
    result = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    writer.close()
    return result


def main() -> None:
    source, path, concurrency = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sys.stdout.write(json.dumps(asyncio.run(measure(source, path, concurrency))) + "\n")


if __name__ == "__main__":
    main()
