"""Whether threads would resume under the code at hand: each is loaded as a claim would load it, and nothing
is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anyio import to_thread
from attrs import define, field, frozen

from perdure.artifacts import MemoryArtifacts
from perdure.machines import Definition, EventPlan, StatePlan, Unreadable
from perdure.stores import (
    Claim,
    Inbox,
    InboxRow,
    Items,
    Log,
    LogRow,
    Store,
    ThreadRow,
    Threads,
    Workers,
)

from ._check_calls import Finding, look_at_calls, stored_version
from ._context import Parking, Visit
from ._env import Env
from ._incoming import chosen
from ._journal import is_checkpoint
from ._ledger import Ledger
from ._look import rows_of
from ._progress import Progress, loaded, messages_of
from ._reserved import RESERVED
from ._turns import Turns

TRIES = 5
"""How often a thread that moves on while it is read is read again."""


@frozen(kw_only=True)
class Checked:
    """One thread, and what was found of it. Parked ones are looked at as if they were moved on."""

    thread: ThreadRow
    findings: tuple[Finding, ...] = ()
    source: str = ""
    """The file that it was frozen in, if it was."""

    @property
    def resumes(self) -> bool:
        """Nothing that was found keeps it from going on."""
        return not any(finding.fault for finding in self.findings)


@define
class Checker:
    """Looks at threads of one store under one runtime's definitions."""

    store: Store
    definitions: Mapping[str, Definition]
    env: Env
    living: frozenset[str] = frozenset()
    """Workers that run now: what they have sent, they may hear of."""
    artifacts: MemoryArtifacts = field(factory=MemoryArtifacts)

    @classmethod
    async def of(cls, store: Store, definitions: Mapping[str, Definition], env: Env) -> Checker:
        """One that knows which of the store's workers live."""
        now = env.now()
        beating = [
            row
            async for row in rows_of(store, Workers())
            if row.ended is None and row.beat + row.lease >= now
        ]
        living = [row.id for row in beating if not await to_thread.run_sync(env.ended, row)]
        return cls(store, definitions, env, frozenset(living))

    async def thread(self, row: ThreadRow) -> Checked | None:
        """Look at one thread; None where it has ended meanwhile."""
        checked: Checked | None = None
        for _ in range(TRIES):
            if row.standing.status == "ended":
                return None
            checked = await self._look(row)
            newest = await self._again(row) if checked.findings else row
            if newest.n == row.n:
                break
            row = newest
        return checked

    async def _again(self, row: ThreadRow) -> ThreadRow:
        """What was read while a worker wrote is of no one moment, and proves nothing."""
        page = await self.store.page(_only(row), limit=1)
        return page.rows[0] if page.rows else row

    async def _look(self, row: ThreadRow) -> Checked:
        definition = self.definitions.get(row.machine)
        if definition is None:
            return self.claim(_row_of(row), ())
        claim = await claim_of(self.store, row)
        return self.claim(claim, await messages_of(self.store, definition, claim))

    def claim(self, claim: Claim, messages: Sequence[bytes]) -> Checked:
        """Look at one thread as a claim brings it, and at the messages of the session that it sees."""
        found = self._findings(claim, messages)
        return Checked(thread=claim.thread, findings=tuple(dict.fromkeys(found)))

    def _findings(self, claim: Claim, messages: Sequence[bytes]) -> Iterator[Finding]:
        row = claim.thread
        definition = self.definitions.get(row.machine)
        if definition is None:
            yield _unknown(row, self.definitions)
            return
        if row.standing.version > definition.version:
            yield _newer(row, definition)
            return
        if row.standing.version == definition.version and row.standing.definition != definition.hash:
            yield _other_code(row, definition)
        for pending in claim.inbox:
            if (finding := _signal(definition, row, pending)) is not None:
                yield finding
        progress: Progress | None = None
        try:
            progress = loaded(definition, claim, messages)
        except Unreadable as error:
            yield _unreadable(definition, claim, error)
        if progress is not None:
            yield from self._of_progress(definition, claim, progress)

    def _of_progress(self, definition: Definition, claim: Claim, progress: Progress) -> Iterator[Finding]:
        row = claim.thread
        visit = self._visit(definition, row, progress)
        yield from _timers(definition, visit.state, progress)
        yield from look_at_calls(visit, in_flight=row.owner in self.living)
        try:
            chosen(visit, progress, claim.inbox, self.env.now(), every=_takes_all(visit))
        except (Parking, Unreadable) as error:
            yield Finding(
                about="event",
                what=visit.state.name,
                reason=_bare(str(error), row),
                mend=f"guards and receivers of {definition.name} that take the data as it is stored",
            )

    def _visit(self, definition: Definition, row: ThreadRow, progress: Progress) -> Visit:
        """What guards and receivers are judged with; nothing is written through it."""
        return Visit(
            store=self.store,
            artifacts=self.artifacts,
            ledger=Ledger(self.store, self.env, row, "check"),
            book=progress.book,
            env=self.env,
            definition=definition,
            state=definition.states[row.standing.state],
            row=row,
            deps=None,
            lease_holds=lambda: False,
            renew_lease=_nothing,
            worker_of=_nothing,
            report=lambda progress: None,
            has_pending=lambda: False,
            memory_turns=Turns(),
        )


async def _nothing(*_: object) -> None:
    return None


def _takes_all(visit: Visit) -> bool:
    return visit.state.waiting or visit.state.interruptible or bool(visit.book.failed)


def _row_of(row: ThreadRow) -> Claim:
    """A thread whose log nobody can read, having no code."""
    return Claim(thread=row, log=(), items=(), inbox=(), taken_from=None)


def _only(row: ThreadRow) -> Threads:
    return Threads(workspace=row.address.workspace, thread_id=row.address.thread_id)


async def claim_of(store: Store, row: ThreadRow) -> Claim:
    """What a claim of the thread would bring, found by reads alone."""
    standing, address = row.standing, row.address
    log: list[LogRow] = [
        r
        async for r in rows_of(store, Log(address=address, after=standing.base - 1))
        if is_checkpoint(r) or r.seq == standing.seq
    ]
    items = rows_of(store, Items(address=address, first=standing.items))
    pending = rows_of(store, Inbox(address=address, pending=True))
    return Claim(
        thread=row,
        log=tuple(log),
        items=tuple([r async for r in items]) if standing.items < row.n else (),
        inbox=tuple([r async for r in pending]) if row.inbox else (),
        taken_from=None,
    )


# --- what is found --------------------------------------------------------------------------------


def _unknown(row: ThreadRow, definitions: Mapping[str, Definition]) -> Finding:
    known = ", ".join(sorted(definitions)) or "none"
    return Finding(
        about="machine",
        what=row.machine,
        reason=f"this runtime has no machine {row.machine!r}; it has: {known}",
        mend=f"machines=[..., {row.machine}] of the runtime, or, where it was renamed, name={row.machine!r} "
        "in its class line",
    )


def _newer(row: ThreadRow, definition: Definition) -> Finding:
    return Finding(
        about="version",
        what=str(row.standing.version),
        reason=f"needs version >= {row.standing.version}, and this code is {definition.version}",
        mend=f"none: code of version {row.standing.version} goes on with it, and till then it stays as it is",
    )


def _other_code(row: ThreadRow, definition: Definition) -> Finding:
    return Finding(
        about="definition",
        what=str(definition.version),
        reason=f"written by another {row.machine} of this version: states, events or fields differ",
        mend=f"version={definition.version + 1} in the class line of {definition.machine.__name__}",
        fault=False,
    )


def _unreadable(definition: Definition, claim: Claim, error: Unreadable) -> Finding:
    standing = claim.thread.standing
    if standing.state not in definition.states:
        return Finding(
            about="state",
            what=standing.state,
            reason=f"{definition.name} version {definition.version} has no state {standing.state!r}",
            mend=f"renamed=({standing.state!r},) on the state that took its place",
        )
    version = stored_version(claim)
    return Finding(
        about="data",
        what=definition.data.cls.__name__,
        reason=_bare(str(error), claim.thread),
        mend=f"@upcast(from_version={version}) in {definition.machine.__name__}"
        if version < definition.version
        else f"version={version + 1} in the class line of {definition.machine.__name__}, and "
        f"@upcast(from_version={version})",
    )


def _signal(definition: Definition, row: ThreadRow, pending: InboxRow) -> Finding | None:
    """A pending signal, whether the state takes it now or a later one does."""
    if pending.event in RESERVED:
        return None
    plan = definition.events.get(pending.event)
    if plan is None or plan.kind != "signal":
        return Finding(
            about="signal",
            what=pending.event,
            reason=f"{definition.name} version {definition.version} has no signal {pending.event!r}",
            mend=_event_mend(pending.event),
        )
    return _payload(definition, row, plan, pending)


def _payload(definition: Definition, row: ThreadRow, plan: EventPlan, pending: InboxRow) -> Finding | None:
    if plan.payload is None:
        return None
    try:
        plan.payload.decode(pending.payload, f"the payload of {pending.event}")
    except Unreadable as error:
        version = row.standing.version
        mend = f"@upcast(from_version={version}, of={plan.name}) in {definition.machine.__name__}"
        return Finding(about="signal", what=pending.event, reason=str(error), mend=mend)
    return None


def _timers(definition: Definition, state: StatePlan, progress: Progress) -> Iterator[Finding]:
    for event in progress.due:
        if event not in definition.events:
            yield Finding(
                about="timer",
                what=event,
                reason=f"{definition.name} version {definition.version} has no timeout {event!r}, which runs",
                mend=_event_mend(event),
            )


def _event_mend(event: str) -> str:
    return f".renamed({event!r}) on the event that took its place, or removed_events=({event!r},)"


def _bare(reason: str, row: ThreadRow) -> str:
    """An error of the engine's without the thread, which the reader knows, so that equal ones are equal."""
    thread, state = f"thread {row.address.thread_id!r}", f", state {row.standing.state!r}"
    bare = reason.removeprefix(thread).removeprefix(state).removeprefix(": ")
    return bare.removeprefix("a stored record cannot be read: ") or reason
