"""Whether threads would resume under the code at hand: each is loaded as a claim would load it, and nothing
is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import define, evolve, field, frozen

from perdure.artifacts import MemoryArtifacts
from perdure.machines import Definition, Unreadable
from perdure.stores import (
    Claim,
    Inbox,
    Items,
    Log,
    LogRow,
    Store,
    ThreadRow,
    Threads,
)

from ._check_calls import look_at_calls
from ._check_record import Finding, look_at_record, stored_version
from ._context import Parking, Visit
from ._env import Env
from ._incoming import chosen
from ._journal import is_checkpoint
from ._ledger import Ledger
from ._look import living_workers, rows_of
from ._progress import Progress, loaded, messages_of
from ._spill import bare, whole
from ._spilled import PUT_BACK, BodyLost
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
        living = [row.id for row in await living_workers(store, env)]
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
        claim = await claim_of(bare(self.store), row)
        try:
            claim = await whole(self.store, claim)
            messages = await messages_of(self.store, definition, claim)
        except BodyLost as error:
            return Checked(thread=row, findings=(_lost(row, error),))
        return self.claim(claim, messages)

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
        found = list(look_at_record(definition, claim))
        yield from found
        try:
            progress = loaded(definition, claim, messages)
        except Unreadable as error:
            yield from _unreadable(definition, claim, messages, error, found)
        else:
            yield from self._of_progress(definition, claim, progress, judged=not found)

    def _of_progress(
        self, definition: Definition, claim: Claim, progress: Progress, *, judged: bool
    ) -> Iterator[Finding]:
        row = claim.thread
        visit = self._visit(definition, row, progress)
        yield from look_at_calls(visit, in_flight=row.owner in self.living)
        if not judged:
            return  # an event that cannot be read is told of already
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
        state = definition.state_of(row.standing.state)
        assert state is not None  # or it could not be loaded
        return Visit(
            store=self.store,
            artifacts=self.artifacts,
            ledger=Ledger(self.store, self.env, row, "check"),
            book=progress.book,
            env=self.env,
            definition=definition,
            state=state,
            row=row,
            deps=None,
            lease_holds=lambda: False,
            renew_lease=_nothing,
            worker_of=_nothing,
            report=lambda progress: None,
            has_pending=lambda: False,
            memory_turns=Turns(),
            permits=None,
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


def _lost(row: ThreadRow, error: BodyLost) -> Finding:
    mend = f"none: {PUT_BACK}; until then the thread parks as unreadable, and can be terminated"
    return Finding(about="body", what=f"of {_bare(error.where, row)}", reason=error.said, mend=mend)


def _unreadable(
    definition: Definition,
    claim: Claim,
    messages: Sequence[bytes],
    error: Unreadable,
    found: Sequence[Finding],
) -> Iterator[Finding]:
    if not found:
        yield _misfit(definition, claim, error)
    elif all(finding.about != "timer" for finding in found):
        # It stops at one of these; whether the data fits as well is seen without them.
        standing = evolve(claim.thread.standing, state=definition.initial)
        thread, log = evolve(claim.thread, standing=standing), tuple(filter(is_checkpoint, claim.log))
        try:
            loaded(definition, evolve(claim, thread=thread, log=log), messages)
        except Unreadable as other:
            yield _misfit(definition, claim, other)


def _misfit(definition: Definition, claim: Claim, error: Unreadable) -> Finding:
    version, label = stored_version(claim), definition.machine.__name__
    if version < definition.oldest:
        mend = f"oldest={version} in the class line of {label}, and its upcasters"
    elif version < definition.version:
        mend = f"@upcast(from_version={version}) in {label}"
    else:
        mend = f"version={version + 1} in the class line of {label}, and @upcast(from_version={version})"
    reason = _bare(str(error), claim.thread)
    return Finding(about="data", what=definition.data.cls.__name__, reason=reason, mend=mend)


def _bare(reason: str, row: ThreadRow) -> str:
    """An error of the engine's without the thread, which the reader knows, so that equal ones are equal."""
    thread, state = f"thread {row.address.thread_id!r}", f", state {row.standing.state!r}"
    bare = reason.removeprefix(thread).removeprefix(state).removeprefix(": ")
    return bare.removeprefix("a stored record cannot be read: ") or reason
