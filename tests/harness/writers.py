"""Processes that write to one store at once, beside a reader that pauses; as a script, one of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

from anyio import to_thread

from perdure.stores import Inbox, Log, StoreError, open_store
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import (
    address_of,
    after,
    commit_of,
    committed,
    request_of,
    signal_of,
    start_of,
    started,
    worker_of,
)

NAMES = ("a", "b", "c", "d")
SHARED = 100
"""Threads that belong to nobody, for which they race."""


LEASE = 3600 * 1_000_000
"""Microseconds: nobody's lapses, however slow the store is."""


async def processes_that_write_at_once_lose_nothing(url: str, commits: int) -> None:
    """Yuxi#875, uipath-langchain#222: "database is locked", and a slow reader of the history that held it."""
    async with open_store(url) as store:
        thread = await started(store, "history")
        for _ in range(4):
            thread = await committed(store, thread)
        # A reader that has begun with the history, and goes on when all the others are done.
        history = Log(address=thread.address)
        page = await store.page(history, limit=2)
        for number in range(SHARED):
            await started(store, f"shared-{number}", owner=None, machine="Shared")
        writers = [await to_thread.run_sync(_spawn, url, name, commits) for name in NAMES]
        claimed: list[str] = []
        try:
            for writer in writers:
                out, err = await to_thread.run_sync(writer.communicate, None, 300)
                assert (err, writer.returncode) == (b"", 0)
                claimed += out.decode().split()
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
        assert len(claimed) > SHARED // 2
        rest = await store.claim(request_of("w1", machines={"Shared": 1}, limit=SHARED))
        claimed += [claim.thread.address.thread_id for claim in rest.claims]
        assert sorted(claimed) == sorted(f"shared-{number}" for number in range(SHARED))
        for name in NAMES:
            log = await rows(store, Log(address=address_of(name)))
            assert [row.n for row in log] == list(range(commits + 1))
            assert len(await rows(store, Inbox(address=address_of(name)))) == SIGNALS
        others = await store.page(history, after=page.next)
        assert [row.n for row in (*page.rows, *others.rows)] == list(range(5))


SIGNALS = 50
"""What each process sends itself, and how often it claims."""


def _spawn(url: str, name: str, commits: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__)), url, name, str(commits)]
    return subprocess.Popen(command, stdout=PIPE, stderr=PIPE)


async def work(url: str, name: str, commits: str) -> None:
    """One thread of this process, with signals and claims between its commits; tells what it has claimed."""
    claimed: list[str] = []
    async with open_store(url) as store:
        await store.beat(worker_of(name, lease=LEASE))
        thread = (await store.start(start_of(name, owner=name))).thread
        for i in range(int(commits)):
            if i % (int(commits) // SIGNALS) == 0:
                await store.deliver(signal_of(f"s{i}", name))
                request = request_of(name, machines={"Shared": 1}, limit=1)
                claimed += [each.thread.address.thread_id for each in (await store.claim(request)).claims]
            commit = commit_of(thread, payload=os.urandom(500))
            await store.commit(commit)
            thread = after(thread, commit)
    print(*claimed)


if __name__ == "__main__":
    try:
        asyncio.run(work(*sys.argv[1:]))
    except StoreError as error:
        sys.exit(f"{type(error).__name__}: {error}")
