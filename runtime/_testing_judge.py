"""What a run has in common with the undisturbed one, and what it has not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from perdure.machines import Definition, Effect

from ._testing_paths import path_difference
from ._testing_run import LONGEST_RUN, Outcome
from ._testing_world import WorldLog

MISSING = object()
ADDRESSES = re.compile(" at 0x[0-9a-fA-F]+")
"""Where an object lies in memory, which its repr says and which differs in each run."""


def faults_of(
    plan: Definition, reference: Outcome, outcome: Outcome, may_differ: frozenset[str], *, in_doubt: bool
) -> list[str]:
    """What came out wrong after a kill. A thread left in doubt has not come to its end, and is judged by
    what it has done so far."""
    faults = [] if outcome.broken is None else [f"the journal is broken: {outcome.broken}"]
    if outcome.stuck:
        faults.append(f"it came to no end within {LONGEST_RUN.days} days of simulated time")
    if not in_doubt:
        faults += differences(reference, outcome, may_differ)
    cut_short = in_doubt or outcome.standing.status != reference.standing.status
    return faults + _arrivals(plan, reference, outcome, cut_short)


def differences(reference: Outcome, outcome: Outcome, may_differ: frozenset[str]) -> list[str]:
    """Where two runs ended otherwise, went another way, or hold other data."""
    one, other = reference.standing, outcome.standing
    if (one.status, one.state, one.reason) != (other.status, other.state, other.reason):
        why = f" ({other.reason}: {other.note})" if other.reason else ""
        return [f"the thread is {other.status} in {other.state}{why}, and was {one.status} in {one.state}"]
    said: list[str] = []
    if list(reference.path) != list(outcome.path):
        said.append("it took another path: " + path_difference(reference.path, outcome.path))
    said += _values("field", reference.data, outcome.data, may_differ)
    said += _values("memory", reference.facts, outcome.facts, may_differ)
    return said + _requests(reference, outcome, may_differ)


def _values(
    what: str, one: Mapping[str, Any], other: Mapping[str, Any], may_differ: frozenset[str]
) -> list[str]:
    names = [name for name in {**one, **other} if name not in may_differ]
    pairs = [(name, one.get(name, MISSING), other.get(name, MISSING)) for name in names]
    return [
        f"{what} `{name}` is {_short(now)}, and was {_short(then)}"
        for name, then, now in pairs
        if then != now
    ]


def _requests(reference: Outcome, outcome: Outcome, may_differ: frozenset[str]) -> list[str]:
    """Receivers that were asked for something else; of other numbers ``_arrivals`` speaks."""
    said: list[str] = []
    for world in {**reference.worlds, **outcome.worlds}:
        before, after = (
            _contents(each.worlds.get(world, WorldLog()), may_differ) for each in (reference, outcome)
        )
        for name in (each for each in before if each in after):
            was, now = before[name], after[name]
            if was.total() == now.total() and was != now:
                other, one = (", ".join(map(_cut, left)) for left in (now - was, was - now))
                said.append(f"{name}: asked with {other}, and with {one} without a kill")
    return said


def _contents(log: WorldLog, may_differ: frozenset[str]) -> dict[str, Counter[str]]:
    """What each receiver was asked for; a request that came again under its key counts once."""
    first = {(each.name, each.key): ADDRESSES.sub("", repr(each.args)) for each in reversed(log.arrivals)}
    found: dict[str, Counter[str]] = {}
    for (name, _), args in first.items():
        if name not in may_differ:
            found.setdefault(name, Counter())[args] += 1
    return found


def _short(value: object) -> str:
    return _cut("missing" if value is MISSING else repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _arrivals(plan: Definition, reference: Outcome, outcome: Outcome, cut_short: bool) -> list[str]:
    said: list[str] = []
    for world in {**reference.worlds, **outcome.worlds}:
        expected = reference.worlds.get(world, WorldLog())
        actual = outcome.worlds.get(world, WorldLog())
        names = dict.fromkeys(arrival.name for log in (expected, actual) for arrival in log.arrivals)
        for name in names:
            said += _of_receiver(plan, outcome, name, (expected, actual), world.honours(name), cut_short)
    return said


def _of_receiver(
    plan: Definition,
    outcome: Outcome,
    name: str,
    logs: tuple[WorldLog, WorldLog],
    honours: bool,
    cut_short: bool,
) -> list[str]:
    before, after = (Counter(each.key for each in log.arrivals if each.name == name) for log in logs)
    said = [
        f"{name}: {times} arrivals of {outcome.words.request(key)}"
        for key, times in after.items()
        if times > max(1, before[key]) and not honours and not _harmless(plan, outcome, key)
    ]
    if len(after) > len(before) or (len(after) < len(before) and not cut_short):
        said.append(f"{name}: requests with {_keys(after)} arrived, and with {_keys(before)} without a kill")
    return said


def _keys(arrived: Counter[str]) -> str:
    return f"{len(arrived)} key{'' if len(arrived) == 1 else 's'}"


def _harmless(plan: Definition, outcome: Outcome, key: str) -> bool:
    """Its effect says that doing it twice is harmless."""
    call = plan.calls.get(outcome.words.calls.get(key, ""))
    return isinstance(call, Effect) and call.repeatable
