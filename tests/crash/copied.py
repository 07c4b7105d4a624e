"""Kill a copy at its durable writes, start it again, and see that the target is the source.

Run as a process of its own (it forks a child a run, so it must not have threads):

    python tests/crash/copied.py --every 1

Prints one JSON object: the points that an undisturbed copy passes, kills, and what was found wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.copying import Silent

from crash.killing import KillingStore, Points
from perdure.runtime._copy import copy_store
from perdure.runtime._env import Env
from perdure.stores import ROW_KINDS, ClaimRequest, Rows, SQLiteStore, Store, Threads
from perdure.stores._contract_make import artifact_of, commit_of, signal_of, start_of, write_of

THREADS = 40
STUCK = 60
"""Seconds after which a child is killed by its own alarm."""


async def fill(folder: Path) -> None:
    async with SQLiteStore(folder / "source.db") as store:
        for number in range(THREADS):
            name = f"t{number:03}"
            thread = (await store.start(start_of(name, messages=(b"hello",), items=b"i"))).thread
            artifact = artifact_of(f"a{number}", name)
            await store.commit(commit_of(thread, memory=(write_of(name, b"1", 0),), artifacts=(artifact,)))
            await store.deliver(signal_of("s", name))


async def copy(folder: Path, target: Path, kill_at: int | None) -> None:
    points = Points(kill_at)
    source = SQLiteStore(folder / "source.db", read_only=True)
    async with source as old, KillingStore(SQLiteStore(target), points) as new:
        await copy_store(old, new, Env(), Silent())
    (folder / "points").write_text(json.dumps(points.names))


async def see_whole(target: Path) -> None:
    """Each thread that stands can be claimed, and has all that belongs to it."""
    async with SQLiteStore(target) as store:
        threads = (await store.page(Threads(), limit=1000)).rows
        claimed = await store.claim(ClaimRequest(worker="w2", machines={"Summarise": 1}, limit=1000))
        if len(claimed.claims) != len(threads):
            raise AssertionError(f"{len(claimed.claims)} of {len(threads)} threads can be claimed")
        if any(len(claim.log) != 2 or len(claim.inbox) != 1 for claim in claimed.claims):
            raise AssertionError("a thread stands without what belongs to it")


async def compare(folder: Path, target: Path) -> None:
    async with SQLiteStore(folder / "source.db") as old, SQLiteStore(target) as new:
        for kind in ROW_KINDS:
            if await rows(old, Rows(kind=kind)) != await rows(new, Rows(kind=kind)):
                raise AssertionError(f"{kind} rows differ")


async def rows(store: Store, query: Rows) -> Any:
    return (await store.page(query, limit=10_000)).rows


def child(work: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Run it in a process of its own; 0, its exit status, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(STUCK)
        status = 1
        try:
            asyncio.run(work())
            status = 0
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def one(folder: Path, point: int) -> str:
    """Kill a copy at one point, look at what it left, then copy again; what was wrong."""
    target, left = folder / f"target{point}.db", folder / f"left{point}.db"
    killed = child(lambda: copy(folder, target, point))
    if killed != -signal.SIGKILL:
        return f"point {point}: was not killed, and ended with {killed}"
    for ending in ("", "-wal"):
        if Path(f"{target}{ending}").exists():
            shutil.copy(f"{target}{ending}", f"{left}{ending}")
    for what, work in (
        ("what was left", lambda: see_whole(left)),
        ("copied again", lambda: copy(folder, target, None)),
        ("compared", lambda: compare(folder, target)),
    ):
        status = child(work)
        if status:
            return f"point {point}: {what}: ended with {status}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    every = parser.parse_args().every
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        failed = child(lambda: fill(folder)) or child(lambda: copy(folder, folder / "whole.db", None))
        if failed:
            raise SystemExit(f"an undisturbed copy ended with {failed}")
        points = json.loads((folder / "points").read_text())
        killed = range(1, len(points) + 1, every)
        faults = [fault for point in killed if (fault := one(folder, point))]
    print(json.dumps({"points": len(points), "kills": len(killed), "faults": faults}))


if __name__ == "__main__":
    main()
