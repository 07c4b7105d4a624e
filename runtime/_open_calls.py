"""The calls that a handler has registered: served from their record, or made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol

from attrs import define, field

from perdure.machines import Effect, NotDone, Unreadable
from perdure.stores import MemoryMoved, Micros, StaleClaim

from ._book import EffectRecord, ReadRecord, Signature, action_entry
from ._context import Abandoned, LeaseLost, Parking, Stopped, Visit
from ._effects import EffectWork
from ._ends import Drained, End, Lost, Moved, MustPark, Raised
from ._errors import CallMisuse
from ._journal import Entry, raw
from ._keys import derived_key, explicit_key


class Asker(Protocol):
    """What a call needs of the attempt that it is made in."""

    visit: Visit
    calls_answered: int
    unrecorded: list[Entry]

    def check_loop(self) -> None: ...
    def stop(self, end: End) -> None: ...
    def changed(self) -> None: ...
    def look_for_divergence(self) -> None: ...
    def release_wire(self, call: OpenEffect) -> None: ...
    async def until_matched(self, call: OpenEffect) -> None: ...
    async def intend(self, call: OpenEffect) -> Micros: ...


@define(eq=False, repr=False)
class OpenCall:
    """A call that the handler has registered."""

    attempt: Asker
    label: str
    signature: Signature
    occurrence: int
    awaited: bool = False
    finished: bool = False
    waits: bool = False
    """It would issue a new key while its lane holds a record that nothing has matched."""
    task: asyncio.Task[Any] | None = None
    used: Callable[[bytes], None] | None = None
    """Told the encoded answer when the handler is given one."""

    def __repr__(self) -> str:
        return f"<a call of {self.label}, to be awaited>"  # not its values, which errors would carry on

    def __await__(self) -> Generator[Any, None, Any]:
        self.attempt.check_loop()
        if self.awaited:
            raise CallMisuse(f"{self.label}: this call was awaited already; call again for another one")
        self.awaited = True
        return self._run().__await__()

    async def _run(self) -> Any:
        raise NotImplementedError

    async def told(self, decode: Callable[[bytes], Any], recorded: bytes) -> Any:
        """A recorded answer. One that does not fit its declared type any more parks the thread: asking again
        would pay twice, and the handler could only guess."""
        try:
            return decode(recorded)
        except Unreadable as error:
            visit = self.attempt.visit
            note = (
                f"{error}; it was recorded in the visit that began at seq {visit.seq} (call "
                f"{self.occurrence + 1} of its kind): let the type of the result read both"
            )
            self.attempt.stop(MustPark(Parking("unreadable", note)))
            return await asyncio.get_running_loop().create_future()

    def answered(self) -> None:
        """The handler has its answer."""
        self.finished = True
        self.attempt.calls_answered += 1
        self.attempt.look_for_divergence()


@define(eq=False, repr=False)
class OpenRead(OpenCall):
    """A read; it runs in the strand that awaits it, and is cancelled with it."""

    kept: bool = field(kw_only=True)
    perform: Callable[[], Awaitable[tuple[bytes, Any]]] = field(kw_only=True)
    """Ask outside: the answer, encoded and as it is read back."""
    decode: Callable[[bytes], Any] = field(kw_only=True)
    young: Callable[[Micros], bool] | None = field(default=None, kw_only=True)
    """Whether an unpinned answer of that age may be served again after a resume."""
    record: ReadRecord | None = field(default=None, kw_only=True)

    async def _run(self) -> Any:
        self.task = asyncio.current_task()
        try:
            served = self._served()
            if served is not None:
                value, encoded = await self.told(self.decode, served), served
            else:
                encoded, value = await self.perform()
                self._recorded(encoded)
            if self.used is not None:
                self.used(encoded)
            return value
        except (KeyboardInterrupt, SystemExit) as error:
            # asyncio lets these two through a task, and the loop would end with them
            self.attempt.stop(Raised(error))
            await asyncio.get_running_loop().create_future()
        finally:
            self.answered()

    def _served(self) -> bytes | None:
        record, visit = self.record, self.attempt.visit
        if record is None or record.value is None:
            return None
        if record.kept or visit.book.pinned(record):
            return record.value
        if self.young is None:
            return None
        fresh = self.young(record.at)
        visit.note({"k": "reuse", "id": record.id, "fresh": fresh, "at": visit.env.now()})
        return record.value if fresh else None

    def _recorded(self, encoded: bytes) -> None:
        visit = self.attempt.visit
        lane, call, arguments = self.signature
        entry: Entry = {
            "k": "read",
            "id": visit.book.allot(),
            "lane": lane,
            "call": call,
            "args": raw(arguments),
            "occ": self.occurrence,
            "value": raw(encoded),
            "at": visit.env.now(),
        }
        if self.kept:
            entry["kept"] = True
            visit.note_behind(entry)
        else:
            self.attempt.unrecorded.append(entry)


@define(eq=False, repr=False)
class OpenEffect(OpenCall):
    """An effect; it runs in a task of the runtime's, whatever becomes of the strand that awaits it."""

    effect: Effect[Any, ..., Any] = field(kw_only=True)
    values: dict[str, Any] = field(kw_only=True)
    explicit: str | None = field(kw_only=True)
    record: EffectRecord | None = field(kw_only=True)
    wire: int = field(kw_only=True)
    registered_after: int = field(kw_only=True)
    """How many calls the handler had seen answered when it registered this one."""
    answered_as: int | None = None
    """Which answer of the attempt its NotDone was."""
    work: EffectWork | None = None
    intended: Micros | None = None
    held_for: float = 0.0
    """Seconds for which another thread has been seen to have the explicit key in doubt."""

    async def _run(self) -> Any:
        record = self.record
        if record is None or record.outcome not in ("done", "not done"):
            if self.task is None:
                self.work = EffectWork(self.attempt.visit, self.effect, self.values, self.record)
                named = f"{self.attempt.visit.named}, {self.label}"
                task = asyncio.get_running_loop().create_task(self._complete(self.work), name=named)
                self.task = task
            record = await asyncio.shield(self.task)
            if record is None:
                await asyncio.get_running_loop().create_future()  # the attempt is being stopped
        assert record is not None
        self.answered()
        if record.outcome == "not done":
            self.answered_as = self.attempt.calls_answered
            self.attempt.release_wire(self)
            raise NotDone(record.error)
        assert record.value is not None
        if self.used is not None:
            self.used(record.value)
        visit = self.attempt.visit
        where = f"{visit.where}: {self.effect.label}: recorded result"
        return await self.told(lambda value: self.effect.result.decode(value, where), record.value)

    async def _complete(self, work: EffectWork) -> EffectRecord | None:
        """None where the attempt has to stop instead of going on with an answer."""
        attempt = self.attempt
        try:
            if self.is_new:
                await attempt.until_matched(self)
            return await work.complete(lambda _: attempt.intend(self))
        except Parking as parking:
            attempt.stop(MustPark(parking))
        except (StaleClaim, LeaseLost):
            attempt.stop(Lost())
        except MemoryMoved as error:
            attempt.stop(Moved(error))
        except Abandoned:
            attempt.stop(Drained())
        except Stopped:
            pass
        except Exception as error:
            attempt.stop(Raised(error))
        finally:
            self.finished = True
            attempt.changed()
        return None

    @property
    def is_new(self) -> bool:
        """Nothing of this action can have happened: to issue it would be the first time."""
        return self.record is None or self.record.outcome == "free"

    def named(self) -> Entry:
        """The action, as entries name it; one without a record is given the next id."""
        if self.record is not None:
            return self.record.named()
        number = self.attempt.visit.book.allot()
        return action_entry(number, self.signature, self.occurrence, self.wire, self.key, self.explicit)

    @property
    def key(self) -> str:
        """The key of an action that has no record yet."""
        visit = self.attempt.visit
        if self.explicit is not None:
            return explicit_key(visit.row.address.workspace, self.effect.key_name, self.explicit)
        lane, _, arguments = self.signature
        name = self.effect.name
        return derived_key(visit.row.incarnation, visit.seq, lane, name, arguments, self.wire)
