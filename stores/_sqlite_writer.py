"""The one thread that writes to a SQLite store. What arrives while it is busy makes up its next batch.

A thread of its own and not one of aiosqlite's connections, because there each statement is a hop between
threads, which costs more than the statement.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from ._errors import StoreUnavailable
from ._records import Commit, Micros
from ._sql_requests import BATCH_BYTES, BATCH_WRITES, Answer, Request, Write, settle, weight
from ._sqlite_batches import PATIENCE, Batches, Occupied
from ._sqlite_files import connect

INLINE_BYTES = 64 * 1024
"""Bodies of a commit that may hold the event loop up."""


class Writer:
    """Takes writes from one event loop, lands them in batches, and answers each batch with one wake-up.

    ``inline``: a commit that comes alone, while the thread has nothing to do, is landed by whoever runs the
    loop; where another process holds the file, the thread waits for it.
    """

    def __init__(self, path: str, clock: Callable[[], Micros], *, inline: bool = False) -> None:
        self._path = path
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._closing = False
        self._turn: list[Request] = []
        """What came in this turn of the loop: handed over together, at its end."""
        self._handed: SimpleQueue[list[Request] | None] = SimpleQueue()
        self._unanswered = 0
        """Writes that the thread has: none, and it does nothing with the connection."""
        self._inline = inline
        self._batches: Batches | None = None
        self._waiting: deque[Request] = deque()
        self._ending = False
        # Not joined at exit: whoever leaves the loop without closing the store is as good as killed.
        self._thread = Thread(target=self._run, name="perdure-sqlite-writer", daemon=True)

    async def open(self) -> None:
        """Start the thread; the driver's error where it cannot open the file."""
        self._thread.start()
        await self._opened

    def write(self, write: Write) -> asyncio.Future[Answer]:
        """Land a write. Whoever is cancelled while waiting for the answer has written all the same."""
        if self._closing:
            raise StoreUnavailable(f"the store {self._path} is closed")
        future: asyncio.Future[Answer] = self._loop.create_future()
        if not self._turn:
            self._loop.call_soon(self._hand_over)
        self._turn.append((write, future))
        return future

    async def close(self) -> None:
        """Finish what was begun, then end the thread."""
        self._closing = True
        self._hand_over()
        self._handed.put(None)
        await asyncio.shield(self._closed)

    def _hand_over(self) -> None:
        turn, self._turn = self._turn, []
        if turn and not (self._inline and self._landed_here(turn)):
            self._unanswered += len(turn)
            self._handed.put(turn)

    def _landed_here(self, turn: Sequence[Request]) -> bool:
        """Whether the turn's one commit could be landed at once; the hop to the thread and back costs about
        as much as the engine's part of a step."""
        if len(turn) > 1 or self._unanswered or self._batches is None:
            return False
        write = turn[0][0]
        if not isinstance(write, Commit) or weight(write) > INLINE_BYTES:
            return False
        try:
            answers = self._batches.run_at_once([write])
        except Occupied:
            return False
        except Exception as error:  # a fault of ours: who waits must hear of it
            answers = [error]
        settle([turn[0][1]], answers)
        return True

    def _run(self) -> None:
        try:
            db = connect(self._path, PATIENCE)
            db.execute("PRAGMA busy_timeout = 0")  # a batch waits by itself
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._post(settle, [self._opened, self._closed], [error, None])
            return
        self._post(settle, [self._opened], [None])
        try:
            batches = self._batches = Batches(db, self._path, self._clock)
            while batch := self._take():
                self._post(self._answer, [future for _, future in batch], self._land(batches, batch))
        finally:
            db.close()
            self._post(settle, [self._closed], [None])

    def _land(self, batches: Batches, batch: Sequence[Request]) -> Sequence[Answer]:
        try:
            return batches.run([write for write, _ in batch])
        except Exception as error:  # a fault of ours: those who wait must hear of it
            return [error] * len(batch)

    def _answer(self, futures: Sequence[asyncio.Future[Any]], answers: Sequence[Answer]) -> None:
        self._unanswered -= len(futures)
        settle(futures, answers)

    def _take(self) -> Sequence[Request]:
        """The next batch, as large as what has arrived; empty when the writer is closed."""
        if not self._waiting and not self._ending:
            self._receive(self._handed.get())
        while not self._ending and len(self._waiting) < BATCH_WRITES:
            try:
                self._receive(self._handed.get_nowait())
            except Empty:
                break
        return self._cut()

    def _receive(self, handed: list[Request] | None) -> None:
        if handed is None:
            self._ending = True
        else:
            self._waiting.extend(handed)

    def _cut(self) -> Sequence[Request]:
        batch: list[Request] = []
        size = 0
        while self._waiting and len(batch) < BATCH_WRITES:
            size += weight(self._waiting[0][0])
            if batch and size > BATCH_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            # The loop is closed: nobody is left who could be told.
            self._ending = True
