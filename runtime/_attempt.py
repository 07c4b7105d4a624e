"""One attempt of one handler: its calls in order, matched to their records, and how it ends."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import cached_property
from typing import Any, cast

from perdure.machines import Declared, Effect, Fire, HandlerPlan, Keyed, Read
from perdure.stores import KeyRow, KeyTaken, KeyWrite, MemoryCheck, Micros

from ._book import EffectRecord, Signature, family, signature_of
from ._context import FOREVER, KeyHeld, Parking, Stopped, Visit, micros
from ._divergence import divergence
from ._effects import KEY_POLL, intent_entry
from ._ends import WEIGHT, Drained, End, Fired, MustPark, Raised
from ._errors import AttemptTimedOut, CallMisuse
from ._journal import Entry, raw
from ._keys import digest
from ._observe import logger
from ._open_calls import OpenCall, OpenEffect, OpenRead
from ._provenance import Trail

TURNS_TO_MATCH = 20
"""Loop turns that a strand whose call was just answered has to make its next one, before the attempt is taken
to have diverged."""


class Attempt:
    """Runs one handler once and keeps what it asks for in order."""

    def __init__(self, visit: Visit, handler: HandlerPlan, number: int) -> None:
        self.visit = visit
        self.handler = handler
        self.number = number
        self.calls: list[OpenCall] = []
        self.calls_answered = 0
        self.unrecorded: list[Entry] = []
        self.artifact_ids: set[str] = set()
        self.artifact_counts: dict[tuple[str, str, str], int] = {}
        self.trail = Trail(visit.seq)
        self.memory_seen: dict[tuple[str, str], Any] = {}
        """Each key as the attempt first saw it, whichever strand did."""
        self.memory_checks: dict[tuple[str, str], MemoryCheck] = {}
        self.memory_writes: dict[tuple[str, str], Any] = {}
        self.background: set[asyncio.Task[Any]] = set()
        """Writes that a cancelled strand has begun."""
        self._counts: dict[Signature, int] = {}
        self._wires: dict[Signature, set[int]] = {}
        self._matched: set[int] = set()
        self._over: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._waiting: list[asyncio.Future[None]] = []
        """Who waits for the next call that is registered or finished."""
        self._intents: list[OpenEffect] = []
        self._task: asyncio.Task[None] | None = None

    # Made once they are needed: most attempts need neither.
    @cached_property
    def memory_looking(self) -> asyncio.Lock:
        return asyncio.Lock()

    @cached_property
    def _intending(self) -> asyncio.Lock:
        return asyncio.Lock()

    # --- registering ------------------------------------------------------------------------------

    def register(
        self, lane: str, declared: Declared[Any, ..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> OpenCall:
        """Fix a call's order and match it to its record, at once."""
        self.check_open()
        explicit = declared.key if isinstance(declared, Keyed) else None
        call = cast(Any, declared.effect if isinstance(declared, Keyed) else declared)
        if not isinstance(call, (Effect, Read)):
            raise CallMisuse(
                f"{self.visit.where}: step.call was given {declared!r}, which is not a declared call: put "
                f"@read or @effect on the function and list it in calls="
            )
        if self.visit.definition.calls.get(call.name) is not call:
            raise CallMisuse(
                f"{self.visit.where}: {call.label} is not in the machine's calls=[...]: list it there"
            )
        where = f"{self.visit.where}: {call.label}"
        arguments, values = call.arguments(args, kwargs, where)
        if isinstance(call, Read):
            return self._register_read(lane, cast("Read[Any, ..., Any]", call), arguments, values)
        return self._register_effect(lane, cast("Effect[Any, ..., Any]", call), arguments, values, explicit)

    def check_open(self) -> None:
        """Refuse whatever comes once the attempt is over: it would belong to no step, or to the next one."""
        self.check_loop()
        if self._over.done():
            raise CallMisuse(
                f"{self.visit.where}: this attempt is over: await what a handler has begun before it returns"
            )

    def check_loop(self) -> None:
        """Refuse another thread and another event loop: it would hang or mix up the order of calls."""
        if asyncio._get_running_loop() is not self._over.get_loop():
            raise CallMisuse(
                f"{self.visit.where}: the step was used in another thread or event loop than its handler's: "
                "await its calls in the handler, and give threads plain values"
            )

    def _occurrence(self, signature: Signature) -> int:
        n = self._counts.get(signature, 0)
        self._counts[signature] = n + 1
        return n

    def _register_read(
        self, lane: str, read: Read[Any, ..., Any], arguments: bytes, values: dict[str, Any]
    ) -> OpenRead:
        visit = self.visit
        where = f"{visit.where}: {read.label}"

        async def perform() -> tuple[bytes, Any]:
            answer = await visit.limited(
                read, lambda: read.fn(visit.call_context("", FOREVER, self.number), **values)
            )
            return read.result.roundtrip(answer, f"{where}: result")

        reuse = read.reuse_for
        return self.register_plain(
            signature_of(lane, read.name, arguments),
            label=read.label,
            kept=read.keep,
            perform=perform,
            decode=lambda stored: read.result.decode(stored, f"{where}: recorded result"),
            young=None if reuse is None else lambda at: visit.env.now() - at <= micros(reuse),
        )

    def register_plain(
        self,
        signature: Signature,
        *,
        label: str,
        kept: bool,
        perform: Callable[[], Awaitable[tuple[bytes, Any]]],
        decode: Callable[[bytes], Any],
        young: Callable[[Micros], bool] | None = None,
    ) -> OpenRead:
        """Register something that is recorded and served as reads are."""
        self.check_open()
        occurrence = self._occurrence(signature)
        call = OpenRead(
            self,
            label,
            signature,
            occurrence,
            kept=kept,
            perform=perform,
            decode=decode,
            young=young,
            record=self.visit.book.read(signature, occurrence),
        )
        self.calls.append(call)
        self.changed()
        return call

    def _register_effect(
        self,
        lane: str,
        effect: Effect[Any, ..., Any],
        arguments: bytes,
        values: dict[str, Any],
        explicit: str | None,
    ) -> OpenEffect:
        signature = signature_of(lane, effect.name, arguments, explicit)
        occurrence = self._occurrence(signature)
        record = self.visit.book.effect(signature, occurrence)
        used = self._wires.setdefault(signature, set(self.visit.book.given_away.get(signature, ())))
        wire = record.wire if record is not None else next(n for n in range(len(used) + 1) if n not in used)
        used.add(wire)
        if record is not None:
            self._matched.add(record.id)
        call = OpenEffect(
            self,
            effect.label,
            signature,
            occurrence,
            effect=effect,
            values=values,
            explicit=explicit,
            record=record,
            wire=wire,
            registered_after=self.calls_answered,
        )
        self.calls.append(call)
        self.changed()
        return call

    def release_wire(self, call: OpenEffect) -> None:
        """A call that ended in NotDone gives its key back: the same call again has the same key."""
        self._wires[call.signature].discard(call.wire)

    # --- divergence -------------------------------------------------------------------------------

    def unmatched(self, lane: str | None = None) -> list[EffectRecord]:
        """Effect records of a lane (None: of the handler) that no call of this attempt has matched."""
        if not self.visit.book.effects:
            return []
        return [
            e
            for e in self.visit.book.of(family(self.handler.lane))
            if (lane is None or e.lane == lane)
            and e.id not in self._matched
            and e.outcome != "free"
            and not e.set_aside
        ]

    def changed(self) -> None:
        """Something was registered or finished: those that wait look again."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def until_matched(self, call: OpenEffect) -> None:
        """Hold a new key back while its lane has a record that nothing has matched."""
        while self.unmatched(call.signature[0]):
            call.waits = True
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            self.look_for_divergence()
            await waiter
        call.waits = False

    def look_for_divergence(self) -> None:
        """Once every open call waits and goes on waiting, the attempt has diverged from its record."""
        if any(call.waits for call in self.calls):
            self._look(TURNS_TO_MATCH, len(self.calls), self.calls_answered)

    def _look(self, turns: int, registered: int, answered: int) -> None:
        if (registered, answered) != (len(self.calls), self.calls_answered) or self._over.done():
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._look, turns - 1, registered, answered)
            return
        still = [call for call in self.calls if call.awaited and not call.finished]
        waiting = [call for call in still if call.waits]
        if waiting and len(waiting) == len(still):
            self.stop(MustPark(self.divergence(waiting)))

    def divergence(self, asked: list[OpenCall]) -> Parking:
        """The parking that names what was asked for and what the record holds."""
        return divergence(self.visit, asked, self.unmatched())

    # --- intents ----------------------------------------------------------------------------------

    async def intend(self, call: OpenEffect) -> Micros:
        """Commit a call's intent together with the reads so far and with what its siblings intend."""
        call.intended = None
        if self._over.done() and call.is_new:
            raise Stopped
        self._intents.append(call)
        async with self._intending:
            if call.intended is None:
                await asyncio.sleep(0)  # what was registered in the same turn rides along
                if call not in self._intents:  # a sibling's commit of it was refused
                    self._intents.append(call)
                if call.explicit is None:
                    await self._commit_intents([c for c in self._intents if c.explicit is None])
                else:
                    await self._claim_key(call)
        assert call.intended is not None
        return call.intended

    async def _commit_intents(self, batch: list[OpenEffect], **parts: Any) -> None:
        self._intents = [c for c in self._intents if c not in batch]
        visit, reads = self.visit, list(self.unrecorded)
        entries = [intent_entry(visit, call.effect, call.named()) for call in batch]
        # One that was intended before pins what it was decided on: no newer memory can refuse it any more.
        anew = any(call.record is None for call in batch)
        checks = tuple(self.memory_checks.values()) if anew else ()
        await visit.ledger.record([*reads, *entries], checks=checks, **parts)
        del self.unrecorded[: len(reads)]
        visit.book.apply_all([*reads, *entries])
        for call, entry in zip(batch, entries, strict=True):
            self._now_recorded(call, entry)
            call.intended = entry["not_after"]

    def _now_recorded(self, call: OpenEffect, entry: Entry) -> None:
        call.record = self.visit.book.effects[entry["id"]]
        self._matched.add(entry["id"])
        assert call.work is not None
        call.work.record = call.record

    async def _claim_key(self, call: OpenEffect) -> None:
        """Take an explicit key for this visit, or be served what another visit made of it."""
        assert call.explicit is not None
        salt = self.visit.env.token(16)
        write = KeyWrite(
            effect=call.effect.key_name,
            key=call.explicit,
            action="claim",
            arguments=digest(salt, call.signature[2]),
            salt=salt,
        )
        try:
            await self._commit_intents([call], keys=(write,))
        except KeyTaken as taken:
            self._taken(call, taken.row)

    def _taken(self, call: OpenEffect, row: KeyRow) -> None:
        visit, label = self.visit, call.effect.label
        if row.arguments != digest(row.salt, call.signature[2]):
            raise CallMisuse(
                f"{visit.where}: {label}: key {call.explicit!r} was used with other arguments "
                f"by thread {row.thread_id!r}; one key names one action"
            ) from None
        if row.outcome is not None:
            self._serve(call, row.outcome)
            return
        if call.held_for >= (call.effect.deadline + call.effect.settle).total_seconds():
            raise Parking(
                "in doubt",
                f"{visit.where}: {label}: key {call.explicit!r} is in doubt in thread "
                f"{row.thread_id!r}; see to that one, then "
                f"`perdure retry {visit.row.address.thread_id} --runtime MODULE:NAME`",
            ) from None
        call.held_for += KEY_POLL
        raise KeyHeld from None

    def _serve(self, call: OpenEffect, outcome: bytes) -> None:
        visit, now = self.visit, self.visit.env.now()
        entry: Entry = {"k": "served", **call.named(), "value": raw(outcome), "at": now}
        self._intents = [c for c in self._intents if c is not call]
        visit.note_behind(entry)
        self._now_recorded(call, entry)
        call.intended = now

    # --- running ----------------------------------------------------------------------------------

    def stop(self, end: End) -> None:
        """End the attempt. A weightier reason overrides one that came before it."""
        if not self._over.done():
            self._over.set_result(end)
        elif self._over.cancelled():  # the task that runs it ends
            return
        elif WEIGHT.index(type(end)) > WEIGHT.index(type(self._over.result())):
            self._over = asyncio.get_running_loop().create_future()
            self._over.set_result(end)

    def abandon(self) -> None:
        """The worker leaves now: the handler and every call are aborted, and the doubts stay."""
        self.stop(Drained())
        for call in self.calls:
            if isinstance(call, OpenEffect) and call.work is not None:
                call.work.abandon()

    async def run(self, step: Any, data: Any) -> End:
        """Run the handler to its end, cancel its reads, and wait for its effects."""
        loop = asyncio.get_running_loop()
        self._task = _begun(self._handle(step, data), loop, self.visit.named)
        limit = self.visit.state.deadline
        timer = None if limit is None else loop.call_later(limit.total_seconds(), self._expire)
        try:
            if not self._over.done():
                await self._over
            if self.calls or self.background or not self._task.done():
                await self._wind_up()
        except asyncio.CancelledError:
            if self._over.cancelled():  # with this task, which awaits it
                self._over = loop.create_future()
                self._over.set_result(Drained())
            self._cancel_everything()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        end = self._over.result()
        return self._checked(end) if isinstance(end, Fired) else end

    def _expire(self) -> None:
        limit = self.visit.state.deadline
        self.stop(Raised(AttemptTimedOut(f"{self.visit.where}: no event within the deadline of {limit}")))

    async def _handle(self, step: Any, data: Any) -> None:
        try:
            fire: Any = await self.handler.run(data, step)
        except asyncio.CancelledError as error:
            if not self._over.done():  # nobody of ours has cancelled it
                self.stop(Raised(error))
        except (
            BaseException
        ) as error:  # KeyboardInterrupt and the like are this handler's failure, not the loop's
            self.stop(Raised(error))
        else:
            self.stop(Fired(fire) if isinstance(fire, Fire) else Raised(_not_a_fire(self.visit.where, fire)))

    async def _wind_up(self) -> None:
        """No strand, read or effect of the attempt outlives it."""
        task = self._task
        while task is not None and not task.done():
            task.cancel()
            _, deaf = await asyncio.wait([task], timeout=1)
            if deaf:
                logger.warning("%s: the handler goes on although it was cancelled", self.visit.where)
        own = [c.task for c in self.calls if isinstance(c, OpenRead) and c.task is not None]
        for strand in own:
            if not strand.done():
                strand.cancel()
        works = [c.task for c in self.calls if isinstance(c, OpenEffect) and c.task is not None]
        pending = [t for t in (*works, *self.background) if not t.done()]
        while pending:
            self._unblock()
            _, rest = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            pending = list(rest)

    def let_go(self) -> None:
        """Its end has been drawn from it: calls point back to it, and both would be left to the garbage
        collector."""
        for call in self.calls:
            call.used = None
        self.calls.clear()

    def _cancel_everything(self) -> None:
        """The process ends now: what is left is as after a kill."""
        strands = [self._task, *(call.task for call in self.calls), *self.background]
        for strand in strands:
            if strand is not None:
                strand.cancel()

    def _unblock(self) -> None:
        """A call that waits for its lane to be matched will not be made any more."""
        for call in self.calls:
            if isinstance(call, OpenEffect) and call.work is not None:
                call.work.unwant()
            if call.waits and call.task is not None and not call.task.done():
                call.task.cancel()

    def _checked(self, end: Fired) -> End:
        if not self.calls and not self.visit.book.effects:
            return end
        forgotten = [c for c in self.calls if not c.awaited]
        if forgotten:
            names = ", ".join(sorted({c.label for c in forgotten}))
            return Raised(
                CallMisuse(
                    f"{self.visit.where}: {names}: called and never awaited; put `await` before step.call"
                )
            )
        if self.unmatched():
            waiting = [c for c in self.calls if c.waits]
            return MustPark(self.divergence(waiting))
        return end

    def to_drop(self) -> list[int]:
        """Ids of the NotDone records that a failed attempt forgets: no effect that is done or in doubt was
        registered after the handler had their answer."""
        order: dict[int, tuple[float, float]] = {}
        for call in self.calls:
            if isinstance(call, OpenEffect) and call.record is not None:
                answered = math.inf if call.answered_as is None else call.answered_as
                order[call.record.id] = (call.registered_after, answered)
        lanes = list(self.visit.book.of(family(self.handler.lane)))
        acting = [
            order.get(e.id, (math.inf, math.inf))[0] for e in lanes if e.outcome in ("done", "in doubt")
        ]
        latest = max(acting, default=-1.0)
        return [
            e.id
            for e in lanes
            if e.outcome == "not done" and latest < order.get(e.id, (math.inf, math.inf))[1]
        ]


def _begun(
    coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, name: str
) -> asyncio.Task[None]:
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        # It runs up to its first wait at once, which saves 7 % of a plain step.
        return asyncio.Task(coroutine, loop=loop, name=name, eager_start=True)
    return loop.create_task(coroutine, name=name)


def _not_a_fire(where: str, returned: object) -> CallMisuse:
    if callable(returned) and isinstance(event := getattr(returned, "event", None), str):
        named = f"self.{event}"
        return CallMisuse(
            f"{where}: the handler returned {named}, which is no event yet: return {named}(...)"
        )
    return CallMisuse(
        f"{where}: the handler returned {type(returned).__name__}, not an event: return self.<event>(...)"
    )
