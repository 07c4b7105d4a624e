"""What ``perdure doctor`` looks at: each check is a line that says what it found and what to do."""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from attrs import frozen

from perdure.artifacts import ArtifactBackend, ArtifactError
from perdure.machines import Definition
from perdure.stores import SCHEMA, Micros, Store, StoreFacts, Threads, WorkerRow, Workers

from ._cancel import operator
from ._env import Env
from ._look import rows_of
from ._survey import MOST_THREADS, count_threads

Verdict = Literal["ok", "warn", "wrong"]
PACKAGES = (
    "perdure",
    "anyio",
    "transitions",
    "aiosqlite",
    "attrs",
    "cattrs",
    "msgspec",
    "typer",
    "rich",
    "cronsim",
    "jsonschema",
    "tzdata",
)
OLDEST_PYTHON = (3, 11)
LITTLE_ROOM, NO_ROOM = 1_000_000_000, 100_000_000
"""Bytes free on the store's disk."""
SKEW, LARGE_SKEW = 1_000_000, 5_000_000
"""Microseconds between this clock and the store's."""
NAMED = 5


@frozen(kw_only=True)
class Check:
    """One line of the doctor's."""

    name: str
    verdict: Verdict
    said: str
    todo: str = ""
    """What to do; empty where nothing is."""


def installation() -> Iterator[Check]:
    """Python, SQLite and the packages."""
    old = sys.version_info[:2] < OLDEST_PYTHON
    yield Check(
        name="python",
        verdict="wrong" if old else "ok",
        said=f"{platform.python_version()} on {platform.system()}, SQLite {sqlite3.sqlite_version}",
        todo="run perdure with Python 3.11 or newer" if old else "",
    )
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            yield Check(
                name="packages", verdict="wrong", said=f"{name} is missing", todo="install perdure anew"
            )
    yield Check(
        name="packages", verdict="ok", said=", ".join(f"{name} {number}" for name, number in found.items())
    )


def disk(facts: StoreFacts) -> Iterator[Check]:
    """Where the store's file lies, and how it is written."""
    if facts.kind != "sqlite":
        yield Check(
            name="store kind",
            verdict="ok",
            said=f"{facts.kind}, {facts.place}" if facts.place else facts.kind,
        )
        return
    written = facts.journal_mode == "wal" and facts.synchronous == "FULL"
    size = sum(facts.files.values())
    yield Check(
        name="store file",
        verdict="ok" if written else "wrong",
        said=f"{facts.place}, {size:,} bytes, schema {facts.schema}, rows {SCHEMA}, journal "
        f"{facts.journal_mode}, synchronous {facts.synchronous}",
        todo="" if written else "let no other program change the file's journal mode",
    )
    yield _file_system(facts)
    if facts.free_bytes is not None:
        yield _room(facts.free_bytes)


def _file_system(facts: StoreFacts) -> Check:
    kind, name = facts.file_system or "not known here", "file system"
    if facts.shared == "network":
        todo = "put the file on a local disk: its write-ahead log gets corrupted here"
        return Check(name=name, verdict="wrong", said=f"{kind}, a network's", todo=todo)
    if facts.shared == "host":
        todo = "open the file from one side only, or put it on a local disk"
        return Check(name=name, verdict="warn", said=f"{kind}, shared with the host", todo=todo)
    return Check(name=name, verdict="ok", said=kind)


def _room(free: int) -> Check:
    verdict: Verdict = "wrong" if free < NO_ROOM else "warn" if free < LITTLE_ROOM else "ok"
    todo = "" if verdict == "ok" else "make room: a full disk stops every thread"
    return Check(name="free disk", verdict=verdict, said=f"{free:,} bytes", todo=todo)


async def clock(store: Store, env: Env) -> Check:
    """That the store takes a write, and how far its clock is from this one."""
    before = env.now()
    async with operator(store, env) as worker:
        page = await store.page(Workers(id=worker), limit=1)
    after = env.now()
    said, beat = "takes writes", page.rows[0].beat
    off = max(before - beat, beat - after, 0)
    verdict: Verdict = "wrong" if off > LARGE_SKEW else "warn" if off > SKEW else "ok"
    return Check(
        name="store",
        verdict=verdict,
        said=f"{said}, its clock and this one differ by {off / 1e6:.1f} s" if off else said,
        todo="" if verdict == "ok" else "set the clocks of both by NTP: due times and leases rest on them",
    )


async def blobs(backend: ArtifactBackend) -> Check:
    """That the artifact backend takes a blob; it is not published, and leaves nothing."""
    try:
        async with backend as opened, await opened.put("doctor", _probe()):
            pass
    except (ArtifactError, OSError) as error:
        todo = "make its folder or bucket reachable and writable, or name another with --artifacts"
        return Check(name="artifacts", verdict="wrong", said=str(error), todo=todo)
    return Check(name="artifacts", verdict="ok", said="takes writes")


async def _probe() -> AsyncIterator[bytes]:
    yield b"perdure doctor"


async def workers(store: Store, now: Micros, gone: Callable[[WorkerRow], bool]) -> list[Check]:
    """Who is alive, and who died with threads in hand."""
    page = await store.page(Workers(), limit=1000)
    rows = [row for row in page.rows if row.host]  # an operator's command has none
    dead = [row for row in rows if row.ended is None and (row.beat + row.lease < now or gone(row))]
    alive = [row for row in rows if row.ended is None and row not in dead]
    held: list[str] = []
    for row in dead:
        if (await store.page(Threads(owner=row.id), limit=1)).rows:
            held.append(row.id)
    said = f"{len(alive)} alive, {len(dead)} dead, {len(rows) - len(alive) - len(dead)} left in good order"
    if not held:
        return [Check(name="workers", verdict="ok", said=said)]
    names = ", ".join(held[:NAMED])
    todo = "start a worker with their machines: it takes them over"
    return [Check(name="workers", verdict="warn", said=f"{said}; dead ones hold threads: {names}", todo=todo)]


async def threads(store: Store, definitions: Mapping[str, Definition] | None) -> list[Check]:
    """Parked threads by reason, and those that the named runtime cannot run."""
    count = await count_threads(store, None)
    more = f" (the first {MOST_THREADS} of more)" if count.sampled else ""
    statuses = ", ".join(f"{number} {status}" for status, number in sorted(count.by_status.items()))
    found = [Check(name="threads", verdict="ok", said=(statuses or "none") + more)]
    if count.parked:
        reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(count.parked.items()))
        todo = "`perdure ls --status parked` lists them, `perdure why THREAD` says what to do"
        found.append(Check(name="parked", verdict="warn", said=reasons, todo=todo))
    if definitions is not None:
        found += await _code(store, definitions)
    return found


async def _code(store: Store, definitions: Mapping[str, Definition]) -> list[Check]:
    unknown: dict[str, int] = {}
    newer: dict[str, int] = {}
    lost: dict[str, int] = {}
    seen = 0
    async for row in rows_of(store, Threads()):
        seen += 1
        if seen > MOST_THREADS:
            break
        plan, standing = definitions.get(row.machine), row.standing
        if standing.status == "ended":
            continue
        if plan is None:
            unknown[row.machine] = unknown.get(row.machine, 0) + 1
        elif standing.version > plan.version:
            key = f"{row.machine} version {standing.version}, and this code is {plan.version}"
            newer[key] = newer.get(key, 0) + 1
        elif plan.state_of(standing.state) is None:
            lost[f"{row.machine}.{standing.state}"] = lost.get(f"{row.machine}.{standing.state}", 0) + 1
    checks = [
        _judged(
            "machines", "warn", unknown, "of machines that this runtime does not have", "list them there"
        ),
        _judged("versions", "warn", newer, "need newer code", "deploy it: this worker leaves them alone"),
        _judged("states", "wrong", lost, "in states that this code does not have", "put the state back"),
    ]
    bad = [check for check in checks if check is not None]
    return bad or [
        Check(name="code", verdict="ok", said="this runtime can run every thread that has not ended")
    ]


def _judged(name: str, verdict: Verdict, found: Mapping[str, int], what: str, todo: str) -> Check | None:
    if not found:
        return None
    named = ", ".join(f"{number} of {key}" for key, number in list(found.items())[:NAMED])
    more = " and more" if len(found) > NAMED else ""
    return Check(name=name, verdict=verdict, said=f"threads {what}: {named}{more}", todo=todo)
