"""Writes a store that holds something of everything, with the perdure that is imported.

Before the schema changes, keep what the released perdure writes, from the folder ``tests/stores``:
``python -m released.write_store released/schemaN.db``.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure.runtime import Runtime
from released.desk import Approval, Desk, Order, World


async def break_off(runtime: Runtime[World]) -> None:
    """Leave threads that ended, wait and are parked, and die while others run."""
    async with runtime:
        for name in ("ends", "waits", "fails"):
            thread = await runtime.start(Desk, Order(name=name), thread_id=name, principal="agent:desk")
            await thread.settled()
        runs = await runtime.start(Desk, Order(name="runs"), thread_id="runs", session="talk")
        await runs.signal(Desk.approve, Approval(by="ada"), id="approval-1")
        doubt = await runtime.start(Desk, Order(name="in-doubt"), thread_id="in-doubt", session="talk")
        await doubt.settled()


async def add(runtime: Runtime[World]) -> None:
    """Start what no worker has taken yet, and send a signal ahead of its thread."""
    async with runtime.client() as client:
        await client.start(Desk, Order(name="unowned"), thread_id="unowned", workspace="acme")
        early = client.thread(Desk, thread_id="early")
        await early.signal(Desk.approve, Approval(by="bob"), id="approval-1")


def main(path: str) -> None:
    with TemporaryDirectory() as folder:
        url, artifacts = f"sqlite:///{folder}/perdure.db", f"file://{folder}/artifacts"
        child = os.fork()
        if child == 0:
            runtime = Runtime(machines=[Desk], deps=World(breaks=True), store=url, artifacts=artifacts)
            asyncio.run(break_off(runtime))
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        asyncio.run(add(Runtime(machines=[Desk], deps=World(), store=url, artifacts=artifacts)))
        with closing(sqlite3.connect(f"{folder}/perdure.db", isolation_level=None)) as db:
            # Neither of them is of use to whoever reads the file elsewhere.
            db.execute("UPDATE worker SET host = 'another host', lock = '/nowhere', pid = 1")
            db.execute("PRAGMA journal_mode = DELETE")
            db.execute("PRAGMA page_size = 1024")
            db.execute("VACUUM")
        Path(path).write_bytes(Path(f"{folder}/perdure.db").read_bytes())


if __name__ == "__main__":
    main(sys.argv[1])
