"""All threads of a store that have not ended, or some of them, looked at in this process or in several."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from random import Random

from anyio import to_thread
from attrs import define, field

from perdure.machines import Definition
from perdure.stores import Store, ThreadRow, Threads

from ._check import Checked, Checker
from ._cli_load import load_runtime, store_at
from ._env import Env
from ._look import rows_of

CHUNK = 500
"""Threads that a process is given at a time."""
AHEAD = 64
"""Chunks that wait for a process, at most."""


@define(kw_only=True)
class Report:
    """What was looked at, and what of it would not go on or is worth knowing."""

    looked_at: int = 0
    left_out: int = 0
    """Threads that a sample left out."""
    parked: int = 0
    """Threads that are parked already, of those that were looked at."""
    machines: set[str] = field(factory=set[str])
    found: list[Checked] = field(factory=list[Checked])

    @property
    def stopped(self) -> list[Checked]:
        """Threads that would not go on."""
        return [checked for checked in self.found if not checked.resumes]

    def take(self, checked: Checked) -> None:
        """Count one thread in."""
        self.looked_at += 1
        self.parked += checked.thread.standing.status == "parked"
        self.machines.add(checked.thread.machine)
        if checked.findings:
            self.found.append(checked)


async def check_store(
    store: Store, definitions: Mapping[str, Definition], *, sample: int | None = None
) -> Report:
    """Open a store and look at its threads in this process."""
    report = Report()
    async with store as opened:
        checker = await Checker.of(opened, definitions, Env())
        async for row in _chosen(opened, sample, report):
            checked = await checker.thread(row)
            if checked is not None:
                report.take(checked)
    return report


async def check_store_beside(
    store: Store, url: str, spec: str, pool: ProcessPoolExecutor, *, sample: int | None = None
) -> Report:
    """The same in the pool's processes, each of which imports the runtime and opens the store."""
    report, running = Report(), set[asyncio.Future[list[Checked]]]()
    async with store as opened:
        async for rows in _chunks(_chosen(opened, sample, report)):
            # In a thread, since it may have to start a process.
            running.add(asyncio.wrap_future(await to_thread.run_sync(_submit, pool, spec, url, rows)))
            if len(running) > AHEAD:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                _take_all(report, *[each.result() for each in done])
    _take_all(report, *await asyncio.gather(*running))
    report.found.sort(
        key=lambda checked: (checked.thread.address.workspace, checked.thread.address.thread_id)
    )
    return report


def _take_all(report: Report, *looked_at: list[Checked]) -> None:
    for chunk in looked_at:
        for checked in chunk:
            report.take(checked)


def _submit(pool: ProcessPoolExecutor, spec: str, url: str, rows: list[ThreadRow]) -> Future[list[Checked]]:
    return pool.submit(_check_chunk, spec, url, rows)


def _check_chunk(spec: str, url: str, rows: list[ThreadRow]) -> list[Checked]:
    runtime = load_runtime(spec)
    return asyncio.run(_look_at(store_at(url, runtime, read_only=True), runtime.definitions, rows))


async def _look_at(
    store: Store, definitions: Mapping[str, Definition], rows: list[ThreadRow]
) -> list[Checked]:
    async with store as opened:
        checker = await Checker.of(opened, definitions, Env())
        looked = [await checker.thread(row) for row in rows]
    return [checked for checked in looked if checked is not None]


async def _chunks(rows: AsyncIterator[ThreadRow]) -> AsyncIterator[list[ThreadRow]]:
    chunk: list[ThreadRow] = []
    async for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def live_threads(store: Store) -> AsyncIterator[ThreadRow]:
    """Threads that have not ended. Listed together: one that changes its status meanwhile is not missed."""
    async for row in rows_of(store, Threads()):
        if row.standing.status != "ended":
            yield row


async def _chosen(store: Store, sample: int | None, report: Report) -> AsyncIterator[ThreadRow]:
    if sample is None:
        async for row in live_threads(store):
            yield row
        return
    rows, total = await sampled(live_threads(store), sample, Random())
    report.left_out = total - len(rows)
    for row in rows:
        yield row


async def sampled(rows: AsyncIterator[ThreadRow], size: int, chance: Random) -> tuple[list[ThreadRow], int]:
    """So many of the rows at random, as evenly from each machine, state and version as these have some; and
    how many there were."""
    kept: dict[tuple[str, str, int], list[ThreadRow]] = defaultdict(list)
    seen: dict[tuple[str, str, int], int] = defaultdict(int)
    async for row in rows:
        kind = (row.machine, row.standing.state, row.standing.version)
        seen[kind] += 1
        if len(kept[kind]) < size:
            kept[kind].append(row)
        elif (place := chance.randrange(seen[kind])) < size:
            kept[kind][place] = row
    for group in kept.values():
        chance.shuffle(group)
    taken: list[ThreadRow] = []
    while len(taken) < size and any(kept.values()):
        taken += [group.pop() for group in kept.values() if group][: size - len(taken)]
    return taken, sum(seen.values())
