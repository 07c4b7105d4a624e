"""What happens in a soak, and when: all of it from one seed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from attrs import field, frozen

KINDS = {"Order": 55, "Rounds": 22, "Both": 12, "Bell": 5, "Fails": 4, "Cancelled": 2}
"""How many of a hundred threads are of which machine. ``Cancelled`` is an order that somebody cancels."""
WORKERS = 4
HITS = ("kill", "kill", "stop", "stop", "terminate")
STOPS = (2.5, 8.0)
"""Seconds for which a worker is stopped: longer than its lease."""


@frozen(kw_only=True)
class Send:
    """A signal to a thread at a moment, by one sender or by two at once."""

    at: float
    event: str
    id: str
    twice: bool


@frozen(kw_only=True)
class Planned:
    """A thread, when it starts, and what it is sent, which may come before."""

    name: str
    kind: str
    at: float
    sends: tuple[Send, ...] = ()
    cancel: float | None = None

    @property
    def marks(self) -> list[str]:
        return [send.id for send in self.sends if send.event == "mark"]


@frozen(kw_only=True)
class Hit:
    """What a worker suffers: ``kill``, ``terminate``, or ``stop`` for some seconds."""

    at: float
    worker: int
    what: str
    seconds: float = 0.0


@frozen(kw_only=True)
class Plan:
    """Everything that the seed decides."""

    seed: int
    seconds: float
    threads: tuple[Planned, ...] = field(repr=False)
    hits: tuple[Hit, ...] = field(repr=False)


def plan(seed: int, seconds: float, threads: int, pause: tuple[float, float]) -> Plan:
    """Threads start during the first three quarters; a worker is hit after each ``pause``."""
    dice = Random(seed)
    kinds, shares = tuple(KINDS), tuple(KINDS.values())
    made = [
        _thread(dice, f"{n:04}", dice.choices(kinds, shares)[0], dice.uniform(0.0, 0.75 * seconds))
        for n in range(threads)
    ]
    for n in range(max(1, threads // 500)):
        made.append(Planned(name=f"deadly-{n}", kind="Deadly", at=dice.uniform(0.1, 0.6) * seconds))
    return Plan(
        seed=seed,
        seconds=seconds,
        threads=tuple(sorted(made, key=lambda each: each.at)),
        hits=tuple(_hits(dice, 0.95 * seconds, pause)),
    )


def _thread(dice: Random, name: str, kind: str, at: float) -> Planned:
    name = f"{kind.lower()}-{name}"
    if kind == "Cancelled":
        return Planned(name=name, kind=kind, at=at, cancel=at + dice.uniform(0.0, 2.0))
    if kind != "Order":
        return Planned(name=name, kind=kind, at=at)
    events = ["approve", "close", *["mark"] * dice.randint(0, 4)]
    sends = [
        Send(at=max(0.0, at + dice.uniform(-1.0, 6.0)), event=e, id=f"{e}-{n}", twice=dice.random() < 0.2)
        for n, e in enumerate(events)
    ]
    return Planned(name=name, kind=kind, at=at, sends=tuple(sorted(sends, key=lambda each: each.at)))


def _hits(dice: Random, until: float, pause: tuple[float, float]) -> Iterator[Hit]:
    at, free = 1.0, [0.0] * WORKERS
    while (at := at + dice.uniform(*pause)) < until:
        able = [worker for worker in range(WORKERS) if free[worker] <= at]
        if len(able) < 2:  # somebody has to go on
            continue
        worker, what = dice.choice(able), dice.choice(HITS)
        seconds = dice.uniform(*STOPS) if what == "stop" else 0.0
        free[worker] = at + seconds
        yield Hit(at=at, worker=worker, what=what, seconds=seconds)
