"""What ``perdure health`` looks at, and how it tells it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from anyio import to_thread
from attrs import define, field

from perdure.stores import Micros, Store, ThreadRow, Threads, WorkerRow, Workers

from ._cli_text import Output, Styled, counted
from ._env import Env
from ._health import OVERDUE, Level
from ._look import rows_of
from ._probe import LOOPBACK
from ._survey import MOST_THREADS
from ._uploads import DEFAULT_WORKSPACE

PATIENCE = 5.0
"""Seconds that a process may take to answer."""
MOST_WORKERS = 1000
STYLES = {"ok": "green", "degraded": "yellow", "failing": "red"}


@define(kw_only=True)
class Fares:
    """How the workers and threads of a store fare."""

    now: Micros
    alive: Sequence[WorkerRow] = ()
    dead: Sequence[WorkerRow] = ()
    """Those that died with threads in hand."""
    parked: Counter[str] = field(factory=Counter[str])
    overdue: int = 0
    oldest: ThreadRow | None = None
    """The one that is overdue longest."""
    ready: int = 0
    """Threads that could be run now and that no worker has."""
    sampled: bool = False
    """There are more threads than were looked at."""

    @property
    def status(self) -> Level:
        if not self.alive and self.ready:
            return "failing"
        return "degraded" if self.dead or self.parked or self.overdue or not self.alive else "ok"

    def reasons(self) -> Iterator[str]:
        if not self.alive:
            due = f", and {counted(self.ready, 'thread')} could run" if self.ready else ""
            yield f"no worker is alive{due}: start one with `perdure serve`"
        for row in self.dead:
            yield f"worker {row.id} died with threads in hand: another takes them over once its lease is out"
        for reason, count in sorted(self.parked.items()):
            yield f"{count} parked ({reason}): `perdure ls --status parked` lists them"
        if self.oldest is not None:
            age = (self.now - (self.oldest.standing.wake or 0)) / 1e6
            place = self.oldest.address
            where = "" if place.workspace == DEFAULT_WORKSPACE else f" --workspace {place.workspace}"
            named = f"`perdure why {place.thread_id}{where} --runtime MODULE:NAME` tells"
            late = f"{counted(self.overdue, 'thread')} overdue, {place.thread_id!r} for {age:.0f} s"
            yield f"{late}: no worker has room, or the code that it needs; {named}"


async def tell_of_store(out: Output, asked: Store) -> int:
    """Look at workers and threads; 1 unless all is well."""
    env = Env()
    async with asked as store:
        fares = await _look(store, env)
    if out.as_json:
        out.json(
            {
                "status": fares.status,
                "reasons": list(fares.reasons()),
                "workers": [{"id": w.id, "beat_seconds": _age(fares, w)} for w in fares.alive],
                "parked": dict(sorted(fares.parked.items())),
                "overdue": fares.overdue,
                "ready": fares.ready,
                "sampled": fares.sampled,
            }
        )
    else:
        _tell(out, fares.status, list(fares.reasons()))
        for row in fares.alive:
            host = row.host.partition("/")[0]
            out.line(f"worker {row.id} on {host}, process {row.pid}: heartbeat {_age(fares, row)} s ago")
        if fares.sampled:
            out.line(f"only the first {MOST_THREADS} threads were looked at")
    return 0 if fares.status == "ok" else 1


def tell_of_process(out: Output, port: int) -> int:
    """Ask a process that serves; 1 unless it lives."""
    live, said = _ask(f"http://{LOOPBACK}:{port}/healthz")
    if out.as_json:
        out.json(said)
    else:
        _tell(out, said["status"], said["reasons"])
    return 0 if live else 1


def _tell(out: Output, status: str, reasons: Sequence[str]) -> None:
    out.line(Styled(status, STYLES.get(status, "")))
    for reason in reasons:
        out.line(f"  {reason}")


def _ask(url: str) -> tuple[bool, dict[str, Any]]:
    try:
        # No proxy: one that is set for the whole host does not lead to this process.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=PATIENCE) as answer:
            return True, json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise ValueError(f"{url} answers {error.code}: this is no perdure process") from error
        return False, json.load(error)
    except OSError as error:
        why = getattr(error, "reason", error)
        said = f"{url} does not answer: {getattr(why, 'strerror', None) or why}"
        said += "; `perdure serve --health-port` is what answers there"
        return False, {"status": "failing", "reasons": [said]}


async def _look(store: Store, env: Env) -> Fares:
    fares = Fares(now=env.now())
    rows = (await store.page(Workers(), limit=MOST_WORKERS)).rows
    rows = [row for row in rows if row.host and row.ended is None]  # an operator's command has no host
    recent = [row for row in rows if fares.now <= row.beat + row.lease]
    alive = await to_thread.run_sync(lambda: [row for row in recent if not env.ended(row)])
    held = [row for row in rows if row not in alive]
    fares.alive = alive
    fares.dead = [row for row in held if (await store.page(Threads(owner=row.id), limit=1)).rows]
    async for row in rows_of(store, Threads(status="parked")):
        fares.parked[row.standing.reason or ""] += 1
        if fares.parked.total() == MOST_THREADS:
            break
    await _count_due(store, fares, {row.id for row in alive})
    return fares


async def _count_due(store: Store, fares: Fares, alive: set[str]) -> None:
    seen = 0
    async for row in rows_of(store, Threads()):
        seen += 1
        if seen > MOST_THREADS:
            fares.sampled = True
            return
        standing = row.standing
        if standing.status in ("parked", "ended") or row.owner in alive:
            continue
        due = standing.wake
        if standing.status == "running" or (due is not None and due <= fares.now):
            fares.ready += 1
        if standing.status == "waiting" and due is not None and due < fares.now - OVERDUE:
            fares.overdue += 1
            if fares.oldest is None or due < (fares.oldest.standing.wake or 0):
                fares.oldest = row


def _age(fares: Fares, row: WorkerRow) -> float:
    return round(max(fares.now - row.beat, 0) / 1e6, 1)
