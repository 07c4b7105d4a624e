"""Checks: what workers tell of themselves, and what they share."""

from __future__ import annotations

from random import Random
from typing import Any

from attrs import evolve

from ._contract_kit import SECOND, Check, Kit, check_of, refused, rows, same
from ._contract_make import MACHINE, worker_of
from ._queries import Definitions, Workers
from ._store import Store
from ._workers import DefinitionRow, Share

LONG = 10**6 * SECOND
MINUTE = 60 * SECOND


def _share(worker: str, held: int = 0, starts: int = 0, **parts: Any) -> Share:
    given: dict[str, Any] = {"limit": "openai", "at_once": 4, "per_minute": None, **parts}
    return Share(worker=worker, held=held, starts=starts, **given)


def _definition(version: int = 1, hash_: str = "h1", machine: str = MACHINE) -> DefinitionRow:
    return DefinitionRow(machine=machine, version=version, hash=hash_, document=b"{}", at=0)


async def _living(store: Store, *workers: str) -> None:
    for worker in workers:
        await store.beat(worker_of(worker, lease=LONG))


async def check_slots(kit: Kit) -> None:
    """A worker gets as many slots of a limit as others leave; what it asks for replaces what it had."""
    async with kit.open() as one, kit.open() as two:
        await _living(one, "w1", "w2")
        got = [
            (await one.share(_share("w1", 3))).held,
            (await two.share(_share("w2", 3))).held,
            (await one.share(_share("w1", 3))).held,
            (await one.share(_share("w1", 9))).held,
            (await one.share(_share("w1", 1))).held,
            (await two.share(_share("w2", 9))).held,
            (await two.share(_share("w2", 9, limit="another", at_once=7))).held,
            (await two.share(_share("w2", 9, limit="unlimited", at_once=None))).held,
        ]
        same("slots, one wish after another", got, [3, 1, 3, 3, 1, 3, 7, 9])


async def check_slots_of_the_dead(kit: Kit) -> None:
    """Slots of a worker that ended, is silent for longer than its lease, or is unknown do not count."""
    async with kit.open() as store:
        await _living(store, "w2")
        await store.beat(worker_of("silent", lease=10 * SECOND))
        await store.beat(worker_of("ended"))
        for worker in ("silent", "ended", "unknown"):
            await store.share(_share(worker, 1))
        same("slots beside two that live", (await store.share(_share("w2", 9))).held, 2)
        await store.beat(worker_of("ended", ended=kit.clock()))
        same("slots beside one that lives", (await store.share(_share("w2", 9))).held, 3)
        kit.clock.advance(10 * SECOND)
        same("slots at the end of its lease", (await store.share(_share("w2", 9))).held, 3)
        kit.clock.advance(1)
        same("slots after its lease", (await store.share(_share("w2", 9))).held, 4)


async def check_starts(kit: Kit) -> None:
    """A tenth of a minute's starts are granted at once, then no more until the moment that is named."""
    async with kit.open() as store:
        await _living(store, "w1", "w2")
        first = await store.share(_share("w1", starts=4, per_minute=60))
        same("what is granted within the first tenth", (first.starts, first.again), (4, None))
        second = await store.share(_share("w2", starts=9, per_minute=60))
        same("what is left of it", second.starts, 2)
        third = await store.share(_share("w1", starts=9, per_minute=60))
        same("what comes then, and when", (third.starts, third.again), (0, second.again))
        other = await store.share(_share("w1", starts=9, per_minute=None))
        same("what is granted without a limit", (other.starts, other.again), (9, None))
        same("whether a moment is named", third.again is None, False)
        kit.clock.advance((third.again or 0) - kit.clock())
        same(
            "what is granted at that moment",
            (await store.share(_share("w1", starts=9, per_minute=60))).starts,
            1,
        )
        kit.clock.advance(MINUTE)
        same(
            "what is granted after a pause",
            (await store.share(_share("w1", starts=9, per_minute=60))).starts,
            6,
        )


async def check_starts_in_any_minute(kit: Kit) -> None:
    """However two workers ask, 60 seconds never hold more starts than the limit."""
    async with kit.open() as store:
        await _living(store, "w1", "w2")
        for per_minute in (1, 7, 60):
            rng, granted, begun = Random(per_minute), list[int](), kit.clock()
            while kit.clock() < begun + 4 * MINUTE:
                parts: dict[str, Any] = {"limit": f"{per_minute}", "per_minute": per_minute}
                wish = _share(rng.choice(("w1", "w2")), starts=rng.randrange(1, 9), **parts)
                granted += [kit.clock()] * (await store.share(wish)).starts
                kit.clock.advance(rng.choice((1, rng.randrange(SECOND), 5 * SECOND, rng.randrange(MINUTE))))
            most = max(sum(at <= other < at + MINUTE for other in granted) for at in granted)
            same("whether a minute held more starts than the limit", most > per_minute, False)


async def check_starts_do_not_dry_up(kit: Kit) -> None:
    """Whoever asks when it is told to has four fifths of the limit's starts at the least, in the long run."""
    async with kit.open() as store:
        await _living(store, "w1")
        for per_minute in (1, 7, 60):
            granted, begun = 0, kit.clock()
            while kit.clock() < begun + 3 * MINUTE:
                wish = _share("w1", starts=9, limit=f"{per_minute}", per_minute=per_minute)
                shared = await store.share(wish)
                granted += shared.starts
                same("whether it is told when", shared.again is None, shared.starts == 9)
                kit.clock.advance(0 if shared.again is None else max(shared.again - kit.clock(), 1))
            same("whether it had its starts", 5 * granted >= 12 * per_minute, True)


async def check_wishes_that_mean_nothing(kit: Kit) -> None:
    """Limits under 1, wishes under 0 and limits without a name are refused."""
    async with kit.open() as store:
        for parts in ({"at_once": 0}, {"per_minute": 0}, {"held": -1}, {"starts": -1}, {"limit": ""}):
            await refused(ValueError, f"a share with {parts}", store.share(evolve(_share("w1"), **parts)))


async def check_definitions(kit: Kit) -> None:
    """What a worker can run is recorded once by machine, version and hash, and found by the former two."""
    async with kit.open() as store:
        first, changed, newer = _definition(), _definition(hash_="h2"), _definition(2)
        other = _definition(machine="Other")
        at = kit.clock()
        same("what a beat answers", await store.beat(worker_of("w1"), [first, other]), at)
        kit.clock.advance(SECOND)
        again = evolve(first, document=b"[]")
        await store.beat(worker_of("w2"), [again, newer, changed])
        stored = [evolve(first, at=at), evolve(changed, at=at + SECOND), evolve(newer, at=at + SECOND)]
        await store.beat(worker_of("w1"))
        same("a machine's definitions", list(await rows(store, Definitions(machine=MACHINE), 1)), stored)
        same("a version's", list(await rows(store, Definitions(machine=MACHINE, version=1))), stored[:2])
        same("all", len(await rows(store, Definitions())), 4)


async def check_hints(kit: Kit) -> None:
    """A worker's row says where it is told that something came, as of its last beat."""
    async with kit.open() as store:
        for hint in ("", "unix:/run/one", "unix:/run/two"):
            await store.beat(worker_of("w1", hint=hint))
            (row,) = await rows(store, Workers(id="w1"))
            same("the hint", row.hint, hint)


WORKERS: tuple[Check, ...] = tuple(
    check_of(check)
    for check in (
        check_slots,
        check_slots_of_the_dead,
        check_starts,
        check_starts_in_any_minute,
        check_starts_do_not_dry_up,
        check_wishes_that_mean_nothing,
        check_definitions,
        check_hints,
    )
)
