"""Looking at threads without a claim: data, history, and why a thread is where it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from anyio import to_thread
from attrs import frozen

from perdure.machines import Definition, StatePlan, Unreadable
from perdure.stores import (
    Address,
    Claim,
    Inbox,
    InboxRow,
    Items,
    Log,
    LogRow,
    Micros,
    Page,
    Query,
    Standing,
    Store,
    ThreadRow,
    Threads,
    WorkerRow,
    Workers,
)

from ._book import Book
from ._context import moment
from ._env import Env
from ._errors import NoSuchThread
from ._journal import Body, Entry, decode_body, entries_of_visit, is_checkpoint, said_of
from ._progress import Progress, load
from ._reserved import CANCEL, RESERVED, TERMINATE, ends_on_cancel, said_by
from ._spill import bare, with_body_of


async def rows_of(store: Store, query: Query[Any], limit: int = 500) -> AsyncIterator[Any]:
    """All rows of a query, page by page."""
    after: str | None = None
    while True:
        page: Page[Any] = await store.page(query, after=after, limit=limit)
        for row in page.rows:
            yield row
        if page.next is None:
            return
        after = page.next


async def rows_left(store: Store, query: Query[Any], workspace: str, limit: int = 500) -> AsyncIterator[Any]:
    """All rows of a query where a body that is gone must not keep the others from being read: its row still
    holds an envelope (``is_spilled``)."""
    async for row in rows_of(bare(store), query, limit):
        yield await with_body_of(store, row, workspace)


async def living_workers(store: Store, env: Env) -> list[WorkerRow]:
    """Workers that run threads of the store now, as far as leases and this machine's processes tell."""
    now = env.now()
    beating = [
        row async for row in rows_of(store, Workers()) if row.ended is None and row.beat + row.lease >= now
    ]
    return [row for row in beating if not await to_thread.run_sync(env.ended, row)]


async def find_thread(store: Store, address: Address) -> ThreadRow:
    """The thread's row; ``NoSuchThread`` where there is none."""
    page = await store.page(Threads(workspace=address.workspace, thread_id=address.thread_id), limit=1)
    if not page.rows:
        raise NoSuchThread(
            f"no thread {address.thread_id!r} in workspace {address.workspace!r} of this store: "
            "`perdure ls` lists those that are there"
        )
    return page.rows[0]


def ended_words(standing: Standing) -> str:
    """How a thread has ended: ``in state 'done'``, or ``in state 'review', cancelled by ada``."""
    return f"in state {standing.state!r}" + (
        f", {standing.note or standing.reason}" if standing.reason else ""
    )


async def look(store: Store, definition: Definition, row: ThreadRow) -> Progress:
    """A thread's data as of its newest checkpoint; ``Unreadable`` where it does not fit the code."""
    log: list[LogRow] = [
        r async for r in rows_of(store, Log(address=row.address, after=row.standing.base - 1))
    ]
    checkpoint = max((r.n for r in log if is_checkpoint(r)), default=-1)
    kept = tuple(r for r in log if is_checkpoint(r) or r.n > checkpoint)
    items = tuple([r async for r in rows_of(store, Items(address=row.address, first=row.standing.items))])
    claim = Claim(thread=row, log=kept, items=items, inbox=(), taken_from=None)
    return await load(store, definition, claim)


async def pending_signals(store: Store, address: Address) -> list[InboxRow]:
    """Signals that were accepted and not taken in, in order."""
    return [row async for row in rows_of(store, Inbox(address=address, pending=True))]


# --- history --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class CallSeen:
    """What became of one call within a step."""

    name: str
    kind: str
    outcome: str
    key: str | None = None
    issues: int = 0


@frozen(kw_only=True)
class StepSeen:
    """One step of a thread, as the journal has it: a visit and the transition that ended it, if one did."""

    seq: int
    """The checkpoint that the step led to, or, while it is not over, began with."""
    state: str
    """The state that was visited."""
    event: str | None
    """None: the step is not over."""
    dest: str | None
    at: datetime
    attempts: int
    calls: tuple[CallSeen, ...]
    artifacts: tuple[str, ...]
    decisions: tuple[str, ...]
    """What recovery, the clock, a signal or an operator decided, in order."""
    errors: tuple[str, ...]


RESERVED_EVENTS = {"cancelled": CANCEL, "terminated": TERMINATE}
"""What an entry that ended a thread in its place is shown as: an event that leads nowhere else."""


async def history(store: Store, row: ThreadRow) -> AsyncIterator[StepSeen]:
    """A thread's steps from its start on."""
    state = ""
    gathered: list[Entry] = []
    last: LogRow | None = None
    async for log in rows_of(store, Log(address=row.address)):
        body = _body(row, log)
        gathered += body.entries
        last = log
        if log.kind == "start":
            state = body.dest or ""
            yield _seen(row, log, "", "start", state, [])
            gathered = []
        elif log.kind == "transition":
            yield _seen(row, log, state, body.event, body.dest, gathered)
            state, gathered = body.dest or state, []
    if gathered and last is not None:
        ended = next((RESERVED_EVENTS[e["k"]] for e in gathered if e.get("k") in RESERVED_EVENTS), None)
        yield _seen(row, last, state, ended, None if ended is None else state, gathered)


DAMAGE = (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What comes of reading entries that no engine has written."""


def _body(row: ThreadRow, log: LogRow) -> Body:
    try:
        return Body() if log.salt is None else decode_body(log.payload)
    except DAMAGE as error:
        raise _damaged(row, log, error) from error


def _seen(row: ThreadRow, log: LogRow, *step: Any) -> StepSeen:
    try:
        return _step(log, *step)
    except DAMAGE as error:
        raise _damaged(row, log, error) from error


def _damaged(row: ThreadRow, log: LogRow, error: Exception) -> Unreadable:
    where = f"thread {row.address.thread_id!r}: row {log.n} of its journal"
    return Unreadable(f"{where} cannot be read: {type(error).__name__}: {error}")


def _step(log: LogRow, state: str, event: str | None, dest: str | None, entries: list[Entry]) -> StepSeen:
    failed = [e for e in entries if e["k"] == "failed"]
    attempts = [e["attempt"] for e in entries if e["k"] in ("failed", "attempt")]
    return StepSeen(
        seq=log.seq,
        state=state,
        event=event,
        dest=dest,
        at=moment(log.at),
        attempts=max(attempts, default=1),
        calls=tuple(_calls(entries)),
        artifacts=tuple(e["id"] for e in entries if e["k"] == "artifact"),
        decisions=tuple(line for e in entries if (line := decision(e, entries)) is not None),
        errors=tuple(said_of(e["error"]) for e in failed),
    )


def _calls(entries: list[Entry]) -> list[CallSeen]:
    reads: dict[str, int] = {}
    kept: dict[str, bool] = {}
    for e in entries:
        if e["k"] == "read":
            reads[e["call"]] = reads.get(e["call"], 0) + 1
            kept[e["call"]] = e.get("kept", False)
    seen = [
        CallSeen(name=name, kind="read", outcome="kept" if kept[name] else "read", issues=n)
        for name, n in reads.items()
    ]
    effects: dict[int, dict[str, Any]] = {}
    for e in entries:
        if e["k"] in ("intent", "served"):
            effect = effects.setdefault(e["id"], {"name": e["call"], "key": e["key"], "issues": 0})
            effect["issues"] += e["k"] == "intent"
            effect["outcome"] = "in doubt" if e["k"] == "intent" else "done (by its key)"
        elif e["k"] == "done":
            effects[e["id"]]["outcome"] = "done (adopted)" if e.get("adopted") else "done"
        elif e["k"] == "not_done":
            effects[e["id"]]["outcome"] = f"not done ({e['error']})"
    return seen + [
        CallSeen(name=f["name"], kind="effect", outcome=f["outcome"], key=f["key"], issues=f["issues"])
        for f in effects.values()
    ]


def decision(e: Entry, entries: list[Entry]) -> str | None:
    """One entry in words, where it is a decision rather than a record."""
    name = next((x["call"] for x in entries if x["k"] == "intent" and x["id"] == e.get("id")), "effect")
    match e["k"]:
        case "resumed":
            cause = "after its worker died" if "from" in e else "after a release"
            return f"resumed {cause}"
        case "lookup":
            follows = {"found": "found, adopted", "absent": "absent", "unknown": "unknown"}[e["answer"]]
            if e["answer"] == "absent" and any(x["k"] == "intent" and x["at"] >= e["at"] for x in entries):
                follows = "absent, issued with the same key"
            return f"{name}: looked up, {follows}"
        case "reuse":
            return f"recorded read {'served' if e['fresh'] else 'too old, made again'}"
        case "timeout":
            late = f" ({late_words(e['late'])})" if "late" in e else ""
            return f"timeout {e['event']}{late}"
        case "signal":
            return f"signal {e['id']}"
        case "cancel":
            return f"cancelled by {_who(e)}"
        case "cancelled" | "terminated":
            left = ", ".join(f"{call} ({key})" for call, key in e.get("in_doubt", ()))
            unread = "; the record could not be read" if e.get("unreadable") else ""
            return f"{e['k']} by {_who(e)}{f'; in doubt stay: {left}' if left else ''}{unread}"
        case "budget":
            return f"budget: {e['limit']} allowed {e['allowed']:g}, used {e['used']:g}"
        case "conflict":
            return "memory changed meanwhile, run again"
        case "park":
            return f"parked ({e['reason']}): {e['note']}"
        case "resolved" | "resolution":
            return f"{name}: resolved as {e['action']} by {e['by']}"
        case "retry":
            return "retried by an operator"
        case _:
            return None


def late_words(late: Micros) -> str:
    """By how much something is late: ``3 h 20 min late``, in its two largest units."""
    parts, rest = list[str](), round(late / 1_000_000)
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, seconds)
        parts += [f"{count} {unit}"] if count or parts else []
    return f"{' '.join(parts[:2]) or '0 s'} late"


def _who(e: Entry) -> str:
    return f"{e['by']}: {e['reason']}" if e["reason"] else str(e["by"])


# --- why ------------------------------------------------------------------------------------------


async def why(
    store: Store,
    definition: Definition | None,
    row: ThreadRow,
    now: int,
    gone: Callable[[WorkerRow], bool] = lambda worker: False,
) -> str:
    """One paragraph: why the thread is where it is, and what moves it on. Always answers.

    ``gone``: whether a worker's process is known to have ended.
    """
    standing = row.standing
    newer = definition is not None and standing.version > definition.version
    thread = f"thread {row.address.thread_id!r} of {row.machine}"
    where = f"{thread} is in state {standing.state!r} at seq {standing.seq}"
    if standing.status == "parked":
        lines = [f"{where}: parked ({standing.reason}). {(standing.note or '').rstrip('.')}."]
        lines += _asked_to_end(True, await _inbox_of(store, row.address))
    elif standing.status == "ended":
        left = await _inbox_of(store, row.address)
        lines = [f"{where}: ended{f', {standing.note or standing.reason}' if standing.reason else ''}."]
        if left:
            lines.append(f"Signals left in its inbox: {named_signals(left)}.")
    elif standing.status == "running" and row.owner is not None:
        lines = [await _running(store, row, row.owner, where, now, gone)]
        lines += _asked_to_end(False, await _inbox_of(store, row.address))
    elif definition is None:
        lines = [await _without_code(store, row, where, now)]
    elif newer:
        lines = [f"{where}: {standing.status}."]
    elif await _lacks_a_place(store, definition, row, now):
        lines = [f"{where}: waits for a place: {definition.at_once} of {row.machine} run at once."]
    elif standing.status == "waiting":
        lines = [await _waits(store, definition, row, where, now)]
    else:
        lines = [f"{where}: runnable, and no worker has claimed it yet."]
    if definition is not None and newer and standing.status != "ended":
        lines.append(f"It needs version >= {standing.version}, and this code is {definition.version}.")
    return " ".join([*lines, *await _doubts(store, row, now)])


async def _inbox_of(store: Store, address: Address) -> list[InboxRow]:
    """Pending signals, without what large ones say: that may be gone, and is not asked for."""
    return await pending_signals(bare(store), address)


async def _lacks_a_place(store: Store, definition: Definition, row: ThreadRow, now: int) -> bool:
    """Whether it could run but for its machine, of which living workers run as many threads as may run."""
    at_once, machine, standing = definition.at_once, row.machine, row.standing
    due = standing.status == "waiting" and standing.wake is not None and standing.wake <= now
    if at_once is None or not (due or standing.status == "running"):
        return False
    running = 0
    async for worker in rows_of(store, Workers()):
        if worker.ended is None and worker.beat + worker.lease >= now:
            query = Threads(owner=worker.id, machine=machine, status="running")
            running += len((await store.page(query, limit=at_once)).rows)
    return running >= at_once


def _due(wake: int, now: int) -> str:
    overdue = " (overdue: no worker runs it)" if wake < now else ""
    return f"due {moment(wake).isoformat(timespec='seconds')}{overdue}"


async def _waits(store: Store, definition: Definition, row: ThreadRow, where: str, now: int) -> str:
    state = definition.state_of(row.standing.state)
    parts: list[str] = []
    if state is not None and state.signals:
        parts.append(f"for a signal ({', '.join(state.signals)})")
    if row.standing.wake is not None:
        what = "for its next attempt or timeout" if state is not None and state.handlers else "for a timeout"
        parts.append(f"{what}, {_due(row.standing.wake, now)}")
    held = _held(definition, state, await _inbox_of(store, row.address))
    return " ".join([f"{where}: waiting {' or '.join(parts) or 'for nothing that can come'}.", *held])


def _held(definition: Definition, state: StatePlan | None, pending: Sequence[InboxRow]) -> Iterator[str]:
    """What becomes of the messages in a waiting thread's inbox."""
    guarded = {} if state is None else _guarded(definition, state)
    for text, signals in (
        ("The next worker takes in", [r for r in pending if not all(guarded.get(r.event, (True,)))]),
        (
            "Held back by a guard, or not looked at yet",
            [r for r in pending if guarded.get(r.event) and all(guarded[r.event])],
        ),
        ("Not accepted here", [r for r in pending if not guarded.get(r.event)]),
    ):
        if signals:
            yield f"{text}: {named_signals(signals)}."
    if state is not None and not guarded[CANCEL] and any(r.event == CANCEL for r in pending):
        yield "To terminate the thread ends it now."


def _guarded(definition: Definition, state: StatePlan) -> dict[str, list[bool]]:
    """By message: whether each row that it may take from this state has a guard."""
    found = {event: [row.guard is not None for row in state.rows[event]] for event in state.signals}
    found |= {old: found[name] for old, name in definition.event_names.items() if name in found}
    cancels = [row.guard is not None for event in state.cancels for row in state.rows[event]]
    return {**found, TERMINATE: [False], CANCEL: [False] if ends_on_cancel(definition) else cancels}


def _asked_to_end(parked: bool, pending: Sequence[InboxRow]) -> Iterator[str]:
    """What a thread that does not wait has been asked from outside."""
    for row in pending:
        if row.event in RESERVED:
            until = " until it goes on; to terminate it ends it now" if parked else ""
            yield f"In its inbox is a {said_by(row)}{until}."


def named_signals(signals: Sequence[InboxRow]) -> str:
    """The first of these signals by id and event, and how many there are beside them."""
    more = f" and {len(signals) - 10} more" if len(signals) > 10 else ""
    names = [said_by(r) if r.event in RESERVED else f"{r.id} ({r.event})" for r in signals[:10]]
    return ", ".join(names) + more


async def _without_code(store: Store, row: ThreadRow, where: str, now: int) -> str:
    lines = [f"{where}: {row.standing.status}."]
    if row.standing.wake is not None:
        lines.append(f"It is {_due(row.standing.wake, now)}.")
    if pending := await _inbox_of(store, row.address):
        lines.append(f"Signals in its inbox: {named_signals(pending)}.")
    lines.append(
        f"No code of the machine {row.machine!r} was given: name it with --runtime MODULE:NAME to see what "
        "it waits for."
    )
    return " ".join(lines)


async def _running(
    store: Store, row: ThreadRow, owner: str, where: str, now: int, gone: Callable[[WorkerRow], bool]
) -> str:
    page = await store.page(Workers(id=owner), limit=1)
    worker = page.rows[0] if page.rows else None
    crashes = f" {row.crashes} workers died on it without progress." if row.crashes else ""
    if worker is None or worker.ended is not None or gone(worker):
        return f"{where}: its worker {owner} is gone, and the next worker goes on with it.{crashes}"
    if worker.beat + worker.lease < now:
        since = moment(worker.beat).isoformat(timespec="seconds")
        return (
            f"{where}: its worker {owner} was last heard of at {since}, and the next worker goes on with "
            f"it.{crashes}"
        )
    return f"{where}: worker {owner} runs it (epoch {row.epoch}).{crashes}"


async def _doubts(store: Store, row: ThreadRow, now: int) -> list[str]:
    """Effects in doubt, each with the moment from which ABSENT is believed."""
    if row.standing.status == "ended":
        return []
    said: list[str] = []
    try:
        for name, key, until in await doubts_of(store, row):
            believed = "by now" if until <= now else f"from {moment(until).isoformat()} on"
            said.append(
                f"Effect {name} with key {key} is in doubt; that it is not done is believed {believed}."
            )
    except DAMAGE as error:
        said.append(f"Its journal cannot be read here: {type(error).__name__}: {error}.")
    return said


async def doubts_of(store: Store, row: ThreadRow) -> list[tuple[str, str, int]]:
    """Name, key and the latest settling moment of every effect in doubt."""
    book = Book()
    async for log in rows_of(store, Log(address=row.address, seq=row.standing.seq)):
        book.apply_all(entries_of_visit(log, row.standing.seq))
    return [(record.call, record.key, record.settled) for record in book.doubts()]
