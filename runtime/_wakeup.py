"""The wake-up channel: a datagram that makes a worker on the same host look into the store at once, or, where
none reaches it, a nudge through the store.

It is a hint and nothing else. What a worker does, it does because of what the store says; a hint that is lost
costs the time until its next poll, and a false one costs a query.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from perdure.stores import Address, Micros, Nudging, Store, StoreError, WorkerRow, Workers

from ._env import Env
from ._look import rows_of
from ._spill import bare

SCHEME = "unix:"
LONGEST_PATH = 100
"""Bytes that a socket's path may have on every system."""
LONGEST_HINT = 8192
"""Bytes of a datagram that are read: more than the longest names need."""
AT_ONCE = 64
"""Datagrams read before the loop gets its turn again."""
RUNG = 16
"""Workers that are told of one thing which any of them may take."""
KNOWN_FOR: Micros = 1_000_000
"""How long a sender goes by the workers' rows that it has read."""
MOST_ROWS = 1000

Heard = Callable[[Address | None], None]
"""Told of a thread that may have got something; of None: that something may be runnable."""


class Ear:
    """A worker's socket, bound beside its mark."""

    def __init__(self, listening: socket.socket, path: str) -> None:
        self._socket = listening
        self._path = path
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def hint(self) -> str:
        """Where it listens, as a worker's row says it."""
        return f"{SCHEME}{self._path}"

    def listen(self, heard: Heard) -> None:
        """Tell ``heard`` of each hint from now on, where the loop can watch sockets."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):
            loop.add_reader(self._socket, self._read, heard)
            self._loop = loop

    def _read(self, heard: Heard) -> None:
        for _ in range(AT_ONCE):
            try:
                said = self._socket.recv(LONGEST_HINT)
            except OSError:  # nothing more
                return
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                named = msgspec.json.decode(said, type=tuple[str, str] | None)
                heard(None if named is None else Address(workspace=named[0], thread_id=named[1]))

    def leave(self) -> None:
        """Hear nothing more."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop = None

    def remove(self) -> None:
        """Take the socket away."""
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def open_ear(lock: str) -> Ear | None:
    """The socket of the worker that holds this mark; None where there can be none that only its user's
    processes reach."""
    if not lock or not hasattr(socket, "AF_UNIX"):
        return None
    path = Path(lock).with_suffix(".sock")
    if len(os.fsencode(path)) > LONGEST_PATH:
        return None
    with contextlib.suppress(OSError):
        folder = path.parent.stat()
        if folder.st_uid != os.getuid() or stat.S_IMODE(folder.st_mode) & 0o077:
            return None
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            listening.setblocking(False)
            listening.bind(str(path))
        except OSError:
            listening.close()
            return None
        return Ear(listening, str(path))
    return None


class Bell:
    """Tells workers that something may be runnable. It never fails and never waits for them."""

    def __init__(self, store: Store, env: Env) -> None:
        self._store = store
        self._env = env
        self._hints: dict[str, str] = {}
        """By worker: where it is told; empty: nowhere."""
        self._lively: set[str] = set()
        """Those whose lease held when the rows were read."""
        self._read_at: Micros | None = None

    async def ring(
        self, address: Address | None, *, owner: str | None = None, but: str | None = None
    ) -> None:
        """Of a thread that may have got something: its owner, where it has one, else whoever may claim it,
        without ``but``, the worker that asks. Of None: something may be runnable."""
        await self._know_workers(owner)
        if owner is not None:
            tell = [owner] if owner in self._hints else []
        else:
            tell = [worker for worker in self._hints if worker != but]
            random.shuffle(tell)
        far: Sequence[str] = self._send(tell, _said(address)) if tell else ()
        if far and isinstance(store := bare(self._store), Nudging):
            with contextlib.suppress(StoreError):
                await store.nudge(nudge_of(far, address))

    async def _know_workers(self, owner: str | None) -> None:
        now = self._env.now()
        known = self._read_at is not None and 0 <= now - self._read_at < KNOWN_FOR
        if known and (owner is None or owner in self._hints):
            return
        with contextlib.suppress(StoreError):
            rows = await _rows(self._store)
            self._hints = _hints(rows)
            self._lively = {row.id for row in rows if row.beat + row.lease >= now}
            self._read_at = now

    def _send(self, tell: Iterable[str], said: bytes) -> Sequence[str]:
        """Tell as many as are to be told, and return those of them that no datagram reaches."""
        left, far = RUNG, list[str]()
        if not hasattr(socket, "AF_UNIX"):
            return [worker for worker in tell if worker in self._lively][:RUNG]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.setblocking(False)
            for worker in tell:
                if self._reaches(sending, worker, said):
                    left -= 1
                elif worker in self._lively:
                    far.append(worker)
                    left -= 1
                if not left:
                    break
        return far

    def _reaches(self, sending: socket.socket, worker: str, said: bytes) -> bool:
        if not self._hints[worker]:
            return False
        try:
            sending.sendto(said, self._hints[worker])
        except BlockingIOError:  # it has more to look at than its buffer holds: it will look
            return True
        except OSError:  # its process is gone, or lives on another host
            self._hints[worker] = ""
            return False
        return True


def nudge_of(workers: Sequence[str], address: Address | None) -> str:
    """What the store passes on to these workers."""
    named = None if address is None else (address.workspace, address.thread_id)
    return msgspec.json.encode((workers, named)).decode()


def hear_nudge(said: str, worker: str, heard: Heard) -> None:
    """Tell ``heard`` of a nudge that is meant for this worker."""
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        workers, named = msgspec.json.decode(said, type=tuple[list[str], tuple[str, str] | None])
        if worker in workers:
            heard(None if named is None else Address(workspace=named[0], thread_id=named[1]))


def _said(address: Address | None) -> bytes:
    named = None if address is None else (address.workspace, address.thread_id)
    return msgspec.json.encode(named)


async def _rows(store: Store) -> list[WorkerRow]:
    rows: list[WorkerRow] = []
    async for row in rows_of(store, Workers()):
        rows.append(row)
        if len(rows) == MOST_ROWS:
            break
    return rows


def _hints(rows: Iterable[WorkerRow]) -> dict[str, str]:
    return {
        row.id: row.hint.removeprefix(SCHEME) if row.hint.startswith(SCHEME) else ""
        for row in rows
        if row.ended is None
    }
