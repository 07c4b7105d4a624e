"""One effect: intent before act, outcome before progress, and the question to the world where there is doubt.

The rules are section "Effects" of docs/protocol.md. Nothing here sees a handler: the same work settles a
call that just failed, one that a killed process left, and one that no handler asks for any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec

from perdure.machines import (
    UNKNOWN,
    Absent,
    Definition,
    Effect,
    Found,
    Limit,
    NotDone,
    NotStorable,
    Unknown,
    Unreadable,
)
from perdure.stores import KeyWrite, Micros

from ._book import EffectRecord
from ._context import Abandoned, KeyHeld, LeaseLost, Parking, Stopped, Visit, micros, moment
from ._journal import Entry, describe_error, raw

ISSUES_A_CALL = 6
"""How often one call issues its effect before it parks: a receiver that fails so often needs a person."""
LOOKUPS_A_CALL = 6
"""How many UNKNOWN answers in a row one call takes before it parks, once nothing can land any more."""
FIRST_WAIT = 0.1
"""Seconds before the second issue or lookup; doubled each time up to ``LONGEST_WAIT``."""
LONGEST_WAIT = 5.0

KEY_POLL = 0.2
"""Seconds between looks at an explicit key that another thread has in doubt."""

Intend = Callable[["EffectWork"], Awaitable[Micros]]
"""Commits the work's intent and returns its ``not_after``."""


class EffectWork:
    """Brings one effect to an outcome: ``done`` or ``not done``, or raises ``Parking``."""

    def __init__(
        self,
        visit: Visit,
        effect: Effect[Any, ..., Any],
        values: dict[str, Any],
        record: EffectRecord | None,
        *,
        asked: bool = True,
    ) -> None:
        self.visit = visit
        self.effect = effect
        self.values = values
        self.record = record
        self.asked = asked
        """A call of the handler waits for it; False: only its outcome is wanted, not that it be done."""
        self.issued_here = 0
        self.scope: anyio.CancelScope | None = None
        self.abandoned = False
        self.unwanted = False
        """The attempt is over: nothing that has no intent yet is issued."""
        self.queued = False
        """It waits for its limit."""
        self.last_error: str | None = None

    def abandon(self) -> None:
        """Abort whatever is being awaited outside; the effect stays in doubt."""
        self.abandoned = True
        if self.scope is not None:
            self.scope.cancel()

    def unwant(self) -> None:
        """Give up waiting for the limit, where nothing has been intended yet."""
        self.unwanted = True
        if self.queued and self.scope is not None and not self._in_doubt_already:
            self.scope.cancel()

    @property
    def _in_doubt_already(self) -> bool:
        return self.record is not None and self.record.outcome == "in doubt"

    async def complete(self, intend: Intend) -> EffectRecord:
        """Issue, settle, issue again as the rules allow, until there is an outcome."""
        while True:
            record = self.record
            if record is None or record.outcome == "free":
                await self._issue(intend)
            elif record.outcome != "in doubt":
                return record
            elif await self._may_issue_again(record):
                await self._issue(intend)

    # --- issuing ----------------------------------------------------------------------------------

    async def _issue(self, intend: Intend) -> None:
        limit = self.effect.limit
        while True:
            if limit is not None:
                await self._queue(limit)
            try:
                await self._issue_now(intend)
                return
            except KeyHeld:
                pass  # and meanwhile nobody is kept from the limit
            finally:
                if limit is not None:
                    self.visit.give_back(limit)
            await self.sleep(KEY_POLL)

    async def _queue(self, limit: Limit) -> None:
        """Wait for the limit: before the intent, so that what waits is not in doubt."""
        taken = False
        if not self.abandoned and (not self.unwanted or self._in_doubt_already):
            with anyio.CancelScope() as scope:
                self.scope, self.queued = scope, True
                await self.visit.take_turn(limit, self.effect.name)
                taken = True
            self.scope, self.queued = None, False
        if taken and not self.abandoned:
            return
        if taken:
            self.visit.give_back(limit)
        raise Abandoned if self.abandoned else Stopped

    async def _issue_now(self, intend: Intend) -> None:
        if not self.visit.lease_holds():
            # The loop was blocked, say. Whether others took the thread meanwhile, the intent's fence tells.
            await self.visit.renew_lease()
        not_after = await intend(self)
        record = self.record
        assert record is not None
        if record.outcome == "done":
            return  # an explicit key, served
        if not self.visit.lease_holds():
            raise LeaseLost
        now = self.visit.env.now()
        if now >= not_after:
            self.visit.note({"k": "unsent", "id": record.id, "at": now})
            return  # nothing of this issue can land: a new intent follows
        self.issued_here += 1
        call = self.visit.call_context(record.key, moment(not_after), record.issues)
        try:
            value = await self._within((not_after - now) / 1e6, lambda: self.effect.fn(call, **self.values))
            encoded, _ = self.effect.result.roundtrip(
                value, f"{self.visit.where}: {self.effect.label}: result"
            )
        except (Abandoned, LeaseLost):
            self._note_end(record)
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._failed(record, error)
        else:
            self._done(record, encoded, adopted=False)

    async def _within(self, seconds: float, run: Callable[[], Awaitable[Any]]) -> Any:
        """Await something outside, bounded, so that a drain can abort it and nothing it raises escapes."""
        if self.abandoned:
            raise Abandoned
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
            self.scope = scope
            try:
                return await run()
            except asyncio.CancelledError as error:
                if scope.cancel_called or (task and task.cancelling() > before):
                    raise
                raise RuntimeError("the call raised CancelledError of its own accord") from error
            finally:
                self.scope = None
        if self.abandoned:
            raise Abandoned
        raise TimeoutError(f"no answer after {seconds:.3g} s")

    def _failed(self, record: EffectRecord, error: BaseException) -> None:
        said = describe_error(error)
        self.last_error = f"{said['type']}: {said['message']}"
        declared = isinstance(error, (NotDone, *self.effect.not_done))
        if declared and len(record.unsettled) <= 1:
            self._not_done(record, said["message"] or said["type"], absent=False)
        else:
            self._note_end(record)

    def _note_end(self, record: EffectRecord) -> None:
        worker = self.visit.ledger.worker
        self.visit.note({"k": "call_ended", "id": record.id, "worker": worker, "at": self.visit.env.now()})

    # --- outcomes ---------------------------------------------------------------------------------

    def _done(self, record: EffectRecord, encoded: bytes, *, adopted: bool) -> None:
        now = self.visit.env.now()
        entry: Entry = {"k": "done", "id": record.id, "value": raw(encoded), "at": now}
        if adopted:
            entry["adopted"] = True
        self.visit.note_behind(entry, key_outcome(self.effect, record, encoded, now))

    def _not_done(self, record: EffectRecord, error: str, *, absent: bool) -> None:
        entry: Entry = {"k": "not_done", "id": record.id, "error": error, "at": self.visit.env.now()}
        if absent:
            entry["absent"] = True
        self.visit.note_behind(entry, key_freed(record, self.effect.key_name))

    # --- doubt ------------------------------------------------------------------------------------

    async def _may_issue_again(self, record: EffectRecord) -> bool:
        """Settle a doubt: True, and nothing of it can land any more or matter; or an outcome is recorded."""
        remembered = self.effect.idempotent and not self._key_expired(record)
        if self.effect.lookup_fn is not None:
            return await self._ask(record, remembered)
        if remembered:
            await self._pause_between_issues(record)
            return True
        if self.effect.repeatable:
            await self._sleep_until(await self.settled_at(record))
            await self._pause_between_issues(record)
            return True
        raise self._in_doubt(record, "its receiver knows neither keys nor a lookup")

    async def _ask(self, record: EffectRecord, remembered: bool) -> bool:
        wait, unknown = FIRST_WAIT, 0
        while True:
            settled = await self.settled_at(record)
            asked_at = self.visit.env.now()
            answer = await self._lookup(record)
            if isinstance(answer, Found):
                self._note_lookup(record, "found", believed=True)
                self._done(record, self._encode_found(record, answer.value), adopted=True)
                return False
            if remembered and self.asked:
                self._note_lookup(
                    record, "absent" if isinstance(answer, Absent) else "unknown", believed=False
                )
                await self._pause_between_issues(record)
                return True
            if isinstance(answer, Absent) and asked_at >= settled:
                self._note_lookup(record, "absent", believed=True)
                if self.asked and self.issued_here == 0:
                    return True
                self._not_done(
                    record, self.last_error or "the receiver says that it did not happen", absent=True
                )
                return False
            if not isinstance(answer, Absent):
                unknown = unknown + 1 if asked_at >= settled else 0
                if unknown >= LOOKUPS_A_CALL:
                    self._note_lookup(record, "unknown", believed=False)
                    raise self._in_doubt(record, "its lookup does not know")
            left = (settled - self.visit.env.now()) / 1e6
            await self.sleep(min(wait, left) if left > 0 else wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _lookup(self, record: EffectRecord) -> Found[Any] | Absent | Unknown:
        ask = self.effect.lookup_fn
        assert ask is not None
        seconds = self.effect.deadline.total_seconds()
        deadline = moment(self.visit.env.now() + int(seconds * 1e6))
        call = self.visit.call_context(record.key, deadline, record.issues)
        try:
            answer: Found[Any] | Absent | Unknown = await self._within(
                seconds, lambda: ask(call, **self.values)
            )
        except (Abandoned, asyncio.CancelledError):
            raise
        except BaseException as error:
            said = describe_error(error)
            self.last_error = f"lookup: {said['type']}: {said['message']}"
            return UNKNOWN
        if not isinstance(answer, (Found, Absent, Unknown)):  # pyright: ignore[reportUnnecessaryIsInstance]
            self.last_error = f"lookup: it returned {_short(answer)}, not Found(...), ABSENT or UNKNOWN"
            return UNKNOWN
        return answer

    def _encode_found(self, record: EffectRecord, value: Any) -> bytes:
        try:
            where = f"{self.visit.where}: lookup of {self.effect.label}"
            return self.effect.result.roundtrip(value, where)[0]
        except NotStorable as error:
            raise self._in_doubt(record, str(error)) from error

    def _note_lookup(self, record: EffectRecord, answer: str, *, believed: bool) -> None:
        entry: Entry = {"k": "lookup", "id": record.id, "answer": answer, "at": self.visit.env.now()}
        if believed:
            entry["believed"] = True
        self.visit.note(entry)

    async def settled_at(self, record: EffectRecord) -> Micros:
        """From when on, by this worker's clock, no issue of this effect can still land: only then is ABSENT
        believed. The clock that recorded the ends may have been off, and so may be this one."""
        latest = 0
        for issue in record.unsettled:
            gone = await self.visit.process_end(issue.worker) if issue.ended is None else None
            latest = max(latest, issue.settled(gone))
        return latest + self.visit.env.unsure()

    def _key_expired(self, record: EffectRecord) -> bool:
        lifetime = self.effect.key_lifetime
        if lifetime is None:
            return False
        return self.visit.env.now() >= record.first_issued + micros(lifetime)

    async def _pause_between_issues(self, record: EffectRecord) -> None:
        if self.issued_here >= ISSUES_A_CALL:
            raise self._in_doubt(record, f"it failed {self.issued_here} times in a row")
        if self.issued_here:
            await self.sleep(min(FIRST_WAIT * 2 ** (self.issued_here - 1), LONGEST_WAIT))

    async def _sleep_until(self, at: Micros) -> None:
        while (left := at - self.visit.env.now()) > 0:
            await self.sleep(left / 1e6)

    async def sleep(self, seconds: float) -> None:
        """A wait that a drain cuts short."""
        if self.abandoned:
            raise Abandoned
        with anyio.CancelScope() as scope:
            self.scope = scope
            await anyio.sleep(seconds)
        self.scope = None
        if self.abandoned:
            raise Abandoned

    def _in_doubt(self, record: EffectRecord, why: str) -> Parking:
        last = f" (last error: {self.last_error})" if self.last_error else ""
        note = (
            f"effect {record.call} with key {record.key} is in doubt: {why}{last}. Ask its receiver, then "
            f"`perdure resolve {self.visit.row.address.thread_id} --runtime MODULE:NAME` with "
            "`--done VALUE` or `--not-done`"
        )
        return Parking("in doubt", note, {"id": record.id, "call": record.call, "key": record.key})


def _short(answer: Any) -> str:
    return f"the class {answer.__name__}" if isinstance(answer, type) else type(answer).__name__


def intent_entry(visit: Visit, effect: Effect[Any, ..., Any], action: Entry) -> Entry:
    """The journal's entry for the next issue of an action."""
    now = visit.env.now()
    return {
        "k": "intent",
        **action,
        "not_after": now + micros(effect.deadline),
        "settle": micros(effect.settle) + visit.env.unsure(),
        "worker": visit.ledger.worker,
        "at": now,
    }


def key_outcome(
    effect: Effect[Any, ..., Any], record: EffectRecord, outcome: bytes, now: Micros
) -> KeyWrite | None:
    """What an effect's outcome does to its explicit key, if it has one: it is kept for ``key_retention``."""
    if record.explicit is None:
        return None
    expires = now + micros(effect.key_retention)
    return KeyWrite(
        effect=effect.key_name, key=record.explicit, action="outcome", outcome=outcome, expires=expires
    )


def key_freed(record: EffectRecord, key_name: str) -> KeyWrite | None:
    """What it does to an explicit key, which is kept under that name, that the effect was not done."""
    if record.explicit is None:
        return None
    return KeyWrite(effect=key_name, key=record.explicit, action="free")


async def settle_doubts(visit: Visit) -> None:
    """Bring every effect of the visit to an outcome before an event that is not the handler's commits."""
    for record in list(visit.book.doubts()):
        await settle_unasked(visit, record)


def unlisted(definition: Definition, thread_id: str, record: EffectRecord) -> Parking:
    """The parking for a doubt of an effect that the machine does not list: nobody can be asked."""
    return Parking(
        "in doubt",
        f"effect {record.call} with key {record.key} is in doubt, and {definition.name} lists no effect of "
        f"that name: list it in calls=, give its new name renamed=({record.call!r},), or say what became of "
        f"it with `perdure resolve {thread_id} --runtime MODULE:NAME`",
        {"id": record.id, "call": record.call, "key": record.key},
    )


async def settle_unasked(visit: Visit, record: EffectRecord) -> None:
    """Bring an effect that no call of the handler matches to an outcome, or raise ``Parking``."""
    declared = visit.definition.calls.get(record.call)
    if not isinstance(declared, Effect):
        raise unlisted(visit.definition, visit.row.address.thread_id, record)
    try:
        values = declared.decode_arguments(record.arguments, f"{visit.where}: {declared.label}")
    except (Unreadable, msgspec.MsgspecError) as error:
        raise Parking("unreadable", str(error), {"id": record.id, "call": record.call}) from error

    async def intend(work: EffectWork) -> Micros:
        entry = intent_entry(visit, declared, record.named())
        await visit.ledger.record([entry])
        visit.book.apply(entry)
        not_after: Micros = entry["not_after"]
        return not_after

    await EffectWork(visit, declared, values, record, asked=False).complete(intend)
