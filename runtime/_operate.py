"""What an operator does to a parked thread: retry it, or end a doubt or a divergence by hand."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import msgspec
from attrs import evolve, frozen

from perdure.machines import Definition, Effect, NotStorable, Unreadable
from perdure.stores import (
    Address,
    Claim,
    ClaimRequest,
    KeyWrite,
    Micros,
    Standing,
    Store,
    StoreError,
)

from ._book import Book, EffectRecord
from ._cancel import operator
from ._context import moment
from ._effects import key_freed, key_outcome
from ._env import Env
from ._errors import CannotResolve
from ._journal import Entry, entries_of_visit, raw
from ._ledger import Conclusion, Ledger
from ._look import DAMAGE, find_thread
from ._progress import current_names
from ._reliable import released


@frozen(kw_only=True)
class Resolution:
    """What an operator says of a parked thread.

    In doubt: ``done`` with the effect's result, or ``not done``. Diverged: ``adopt`` the recorded effect as
    the outcome of what the code asks for now, ``run`` what the code asks for as a new effect beside it, or
    ``ignore`` the record. ``effect`` is a record's key, where there are several.
    """

    action: Literal["done", "not done", "adopt", "run", "ignore"]
    value: bytes = b"null"
    """JSON of the effect's result, for ``done``."""
    effect: str | None = None
    by: str = "operator"


class _Held:
    """A parked thread under a claim of the operator's."""

    def __init__(self, ledger: Ledger, book: Book, park: Entry, damage: str | None) -> None:
        self.ledger = ledger
        self.book = book
        self.park = park
        self.damage = damage
        """Why its journal cannot be read; None: it can."""


async def retry(store: Store, env: Env, plan: Definition, address: Address) -> None:
    """Let a parked thread go on from its record. ``CannotResolve`` where it is not parked."""
    async with _hold(store, env, plan, address) as held:
        await _go_on(held, env, [{"k": "retry", "at": env.now()}], ())


async def resolve(store: Store, env: Env, plan: Definition, address: Address, resolution: Resolution) -> None:
    """Record what an operator knows, and let the thread go on."""
    async with _hold(store, env, plan, address) as held:
        entries, keys = _entries(held, env.now(), plan, resolution)
        await _go_on(held, env, entries, keys)


def _entries(
    held: _Held, now: Micros, plan: Definition, resolution: Resolution
) -> tuple[list[Entry], tuple[KeyWrite, ...]]:
    thread_id = held.ledger.row.address.thread_id
    if held.damage is not None:
        raise CannotResolve(f"thread {thread_id!r}: its journal cannot be read here: {held.damage}")
    if resolution.action in ("done", "not done"):
        record = _one(thread_id, [*held.book.doubts()], resolution.effect, "in doubt")
        return _settle(thread_id, record, now, plan, resolution)
    doubts = [*held.book.doubts()]
    if doubts:
        raise CannotResolve(
            f"thread {thread_id!r}: effect {doubts[0].call} with key {doubts[0].key} is in doubt: say --done "
            "or --not-done of it first"
        )
    detail = held.park.get("detail", {})
    held_ids = [h["id"] for h in detail.get("held", ())]
    records = [held.book.effects[i] for i in held_ids if i in held.book.effects]
    if not records:
        raise CannotResolve(
            f"thread {thread_id!r} is not parked as diverged; `perdure why {thread_id}` says why"
        )
    base: Entry = {"k": "resolved", "action": resolution.action, "by": resolution.by, "at": now}
    if resolution.action != "adopt":
        return [{**base, "id": record.id} for record in records], ()
    record = _one(thread_id, records, resolution.effect, "held by its record")
    asked = detail.get("asked", ())
    if len(asked) != 1:
        raise CannotResolve(
            f"thread {thread_id!r}: the code asks for {len(asked)} further effects, and --adopt needs "
            "exactly one: use --run or --ignore"
        )
    (want,) = asked
    adopted: Entry = {
        **base,
        "id": record.id,
        "lane": want["lane"],
        "call": want["call"],
        "args": raw(want["args"].encode()),
        "occ": want["occ"],
    }
    if want.get("explicit") is not None:
        adopted["explicit"] = want["explicit"]
    return [adopted], ()


def _settle(
    thread_id: str, record: EffectRecord, now: Micros, plan: Definition, resolution: Resolution
) -> tuple[list[Entry], tuple[KeyWrite, ...]]:
    declared = plan.calls.get(record.call)
    effect = declared if isinstance(declared, Effect) else None
    if resolution.action == "not done":
        if now < record.settled:
            raise CannotResolve(
                f"thread {thread_id!r}: effect {record.call} may still happen until "
                f"{moment(record.settled).isoformat()}: say --not-done after that"
            )
        entry: Entry = {
            "k": "resolved",
            "action": "not done",
            "id": record.id,
            "by": resolution.by,
            "at": now,
        }
        return [entry], _some(key_freed(record, record.call if effect is None else effect.key_name))
    if effect is None and record.call in plan.removed_calls:
        return _told(record, now, resolution, _checked_json(thread_id, resolution.value)), ()
    if effect is None:
        raise CannotResolve(f"thread {thread_id!r}: {plan.name} lists no effect {record.call!r} in calls=")
    value = _checked_value(thread_id, effect, resolution.value)
    return _told(record, now, resolution, value), _some(key_outcome(effect, record, value, now))


def _told(record: EffectRecord, now: Micros, resolution: Resolution, value: bytes) -> list[Entry]:
    return [
        {"k": "resolution", "action": "done", "id": record.id, "by": resolution.by, "at": now},
        {"k": "done", "id": record.id, "value": raw(value), "at": now, "adopted": True},
    ]


def _checked_json(thread_id: str, value: bytes) -> bytes:
    try:
        msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CannotResolve(f"thread {thread_id!r}: the result is no JSON: {error}") from error
    return value


def _some(write: KeyWrite | None) -> tuple[KeyWrite, ...]:
    return () if write is None else (write,)


def _checked_value(thread_id: str, effect: Effect[Any, ..., Any], value: bytes) -> bytes:
    where = f"thread {thread_id!r}: result of {effect.label}"
    try:
        return effect.result.encode(effect.result.decode(value, where), where)
    except (Unreadable, NotStorable) as error:
        raise CannotResolve(f"{error}: give the result as JSON of its declared type") from error


def _one(thread_id: str, records: list[EffectRecord], key: str | None, what: str) -> EffectRecord:
    fitting = [r for r in records if key is None or key in (r.key, r.call, r.explicit)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(f"{r.call} ({r.key})" for r in records) or "none"
    ask = "name one by its key with --effect" if fitting else "see `perdure why`"
    raise CannotResolve(f"thread {thread_id!r}: effects {what}: {names}; {ask}")


# --- the claim ------------------------------------------------------------------------------------


@asynccontextmanager
async def _hold(store: Store, env: Env, plan: Definition, address: Address) -> AsyncGenerator[_Held]:
    row = await find_thread(store, address)
    if row.standing.status != "parked":
        raise CannotResolve(
            f"thread {address.thread_id!r} is {row.standing.status}, not parked: nothing can be retried or "
            "resolved"
        )
    async with operator(store, env) as worker:
        request = ClaimRequest(worker=worker, machines={plan.name: plan.version}, limit=1, only=address)
        claimed = await store.claim(request)
        if not claimed.claims:
            raise CannotResolve(
                f"thread {address.thread_id!r} cannot be claimed now: it needs version >= "
                f"{row.standing.version} of {plan.name}, or somebody else is at it"
            )
        claim = claimed.claims[0]
        try:
            if claim.thread.n != row.n:
                raise CannotResolve(f"thread {address.thread_id!r} went on meanwhile: look at it again")
            yield _read(store, env, plan, claim, row.standing, worker)
        except Exception:
            with suppress(StoreError):
                await store.release(
                    [released(claim.thread, "parked" if claim.thread.n == row.n else "running")]
                )
            raise


def _read(store: Store, env: Env, plan: Definition, claim: Claim, before: Standing, worker: str) -> _Held:
    ledger = Ledger(store, env, claim.thread, worker, code=plan)
    ledger.standing = before
    book = Book(names=current_names(plan))
    park: Entry = {}
    damage: str | None = None
    try:
        for row in claim.log:
            entries = entries_of_visit(row, before.seq)
            book.apply_all(entries)
            park = next((e for e in entries if e["k"] == "park"), park)
    except DAMAGE as error:
        damage = f"{type(error).__name__}: {error}"
    return _Held(ledger, book, park, damage)


async def _go_on(held: _Held, env: Env, entries: list[Entry], keys: tuple[KeyWrite, ...]) -> None:
    standing = evolve(held.ledger.standing, status="running", reason=None, note=None, wake=None)
    await held.ledger.conclude(
        Conclusion(
            kind="resolve",
            standing=standing,
            release=True,
            at=env.now(),
            entries=entries,
            parts={"keys": keys} if keys else {},
        )
    )
