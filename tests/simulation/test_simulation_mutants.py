"""Each rule of a step, switched off: some seed has to go red, with the invariant that the rule upholds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from _run import run_seed

from perdure.machines import ABSENT
from perdure.runtime import _cancel, _ledger, _run
from perdure.runtime._attempt import Attempt
from perdure.runtime._book import Book, EffectRecord
from perdure.runtime._effects import EffectWork
from perdure.runtime._run import Run
from perdure.stores import Commit, MemoryStore, OutcomeUnknown, StaleClaim, StoreUnavailable, ThreadRow
from perdure.stores import _memory as memory_store

Patch = pytest.MonkeyPatch
SEEDS = 150
"""Within which a mutant has to be caught."""


def pinning(patch: Patch) -> None:
    """A later attempt makes its reads again, whatever was done with them."""
    patch.setattr(Book, "pinned", lambda self, read: False)


def settling(patch: Patch) -> None:
    """ABSENT is believed at once."""

    async def at_once(self: EffectWork, record: EffectRecord) -> int:
        return 0

    patch.setattr(EffectWork, "settled_at", at_once)


def lookups(patch: Patch) -> None:
    """Nobody is asked: what is in doubt has not happened."""

    async def unasked(self: EffectWork, record: EffectRecord) -> Any:
        return ABSENT

    patch.setattr(EffectWork, "_lookup", unasked)


def fencing(patch: Patch) -> None:
    """The store takes writes of any epoch."""

    def holds(thread: ThreadRow, incarnation: bytes, epoch: int) -> bool:
        return thread.incarnation == incarnation and thread.owner is not None

    patch.setattr(memory_store, "holds", holds)


def divergence(patch: Patch) -> None:
    """An attempt may act beside the record of an earlier one."""
    patch.setattr(Attempt, "unmatched", lambda self, lane=None: [])


def outcomes(patch: Patch) -> None:
    """What came of an effect is known to this process alone."""
    noted = Run._visit_of

    def forgetful(self: Run, progress: Any) -> Any:
        visit = noted(self, progress)
        patch.setattr(type(visit), "note_behind", unwritten)
        return visit

    def unwritten(self: Any, entry: Any, key: Any = None) -> None:
        self.book.apply(entry)
        if entry["k"] not in ("done", "not_done"):
            self.ledger.note_behind(entry, key)

    patch.setattr(Run, "_visit_of", forgetful)


def earlier_issues(patch: Patch) -> None:
    """NotDone speaks for every issue of its key."""
    failed = EffectWork._failed

    def for_all(self: EffectWork, record: EffectRecord, error: BaseException) -> None:
        del record.unsettled[1:]
        failed(self, record, error)

    patch.setattr(EffectWork, "_failed", for_all)


def resending(patch: Patch) -> None:
    """A commit that has landed lands again when it is sent again."""

    def judge(self: MemoryStore, commit: Commit) -> None:
        thread = self._tables.threads.get(commit.address)
        if thread is None or thread.epoch != commit.epoch or thread.owner is None:
            raise StaleClaim("stale")

    patch.setattr(MemoryStore, "_landed", lambda self, commit: False)
    patch.setattr(MemoryStore, "_judge", judge)


def asking_again(patch: Patch) -> None:
    """A write without a reply is taken to have landed."""

    async def once(call: Callable[[], Any]) -> Any:
        try:
            return await call()
        except (OutcomeUnknown, StoreUnavailable):
            return None

    patch.setattr(_ledger, "until_known", once)


def cancels(patch: Patch) -> None:
    """An event from outside waits for no effect."""

    async def at_once(visit: Any) -> None:
        return None

    patch.setattr(_run, "settle_doubts", at_once)


def ends(patch: Patch) -> None:
    """A thread that was ended from outside is not given up, and goes on."""
    ended = _cancel.end_in_place

    async def in_words(ledger: Any, *what: Any, **more: Any) -> None:
        before = ledger.standing
        await ended(ledger, *what, **more)
        ledger.standing = before

    patch.setattr(_run, "end_in_place", in_words)
    patch.setattr(memory_store, "holds", lambda thread, incarnation, epoch: True)


RULES: Mapping[Callable[[Patch], None], set[str]] = {
    pinning: {"S8"},
    settling: {"S3", "S6"},
    lookups: {"S3", "S6"},
    fencing: {"S1"},
    divergence: {"S3", "S6"},
    outcomes: {"S5"},
    earlier_issues: {"S6"},
    resending: {"S1"},
    asking_again: {"intent", "S5", "S6", "chain"},
    cancels: {"S5"},
    ends: {"S11"},
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_without(rule: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """The rule is upheld by no other, and the simulation sees where it is not."""
    rule(monkeypatch)
    found: dict[int, set[str]] = {}
    for seed in range(SEEDS):
        found[seed] = {broken.invariant for broken in run_seed(seed).broken}
        if found[seed] & RULES[rule]:
            return
    pytest.fail(f"without {rule.__name__} {SEEDS} seeds found only { {s: f for s, f in found.items() if f} }")
