"""The crash sweep: a thread is run once undisturbed, then killed at each boundary that it came to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any, Literal, TypeVar

from anyio import to_thread
from attrs import evolve, frozen

from perdure.machines import Definition, Machine, Of, Signal, definition

from ._runtime import Runtime
from ._testing_judge import differences, faults_of
from ._testing_loop import simulate
from ._testing_run import Asked, Outcome, Run, Sent

M = TypeVar("M")
D = TypeVar("D")

End = Literal["ended", "waiting", "parked"]


@frozen(kw_only=True)
class Killed:
    """One run of a sweep, killed at one boundary and resumed by a second worker."""

    index: int
    """Which boundary, counted from 0 in the order of the undisturbed run."""
    boundary: str
    """Where it was killed, in words."""
    faults: tuple[str, ...]
    """What came out otherwise than in the undisturbed run."""
    in_doubt: str | None
    """What an operator has to resolve, where the thread was parked in doubt and is right to be."""

    def __str__(self) -> str:
        return f"{self.index:4}: killed {self.boundary}"


@frozen(kw_only=True)
class Sweep:
    """What a crash sweep found. ``check`` raises where anything is wrong."""

    machine: str
    status: End | Literal["stuck"]
    """How the undisturbed run came out: ``ended``, ``waiting`` for a signal not given, ``parked``, or
    ``stuck``: it went on for more than a year of simulated time, and nothing was killed."""
    state: str
    """Where it came out."""
    note: str
    """Why it is parked, where it is."""
    boundaries: tuple[str, ...]
    """Every boundary of the undisturbed run, in words."""
    runs: tuple[Killed, ...]
    """One for each boundary that was taken."""
    unsteady: tuple[str, ...]
    """What two undisturbed runs did not have in common. Where there is something, nothing was killed."""
    unsent: tuple[str, ...]
    """Signals that the thread never waited for."""
    seed: int

    @property
    def faults(self) -> tuple[Killed, ...]:
        """The runs in which something was lost, done twice, or came out otherwise."""
        return tuple(run for run in self.runs if run.faults)

    @property
    def in_doubt(self) -> tuple[Killed, ...]:
        """The runs that an operator must resolve: their effects' receivers know neither keys nor lookups."""
        return tuple(run for run in self.runs if run.in_doubt)

    def check(self, *, ends: End = "ended", parks_in_doubt: bool = False) -> None:
        """Raise ``AssertionError`` with a report, unless every run came out as the undisturbed one did.

        ``ends``: how that one comes out. ``parks_in_doubt``: kills may leave a thread in doubt, for a person
        to resolve, where its effect has neither ``idempotent=True`` nor a lookup.
        """
        __tracebackhide__ = True  # pytest then shows the test's own line
        wrong = [*self._undisturbed(ends), *self._wrong()]
        if self.in_doubt and not parks_in_doubt:
            wrong += ["", *self._needs_operator()]
        if wrong:
            raise AssertionError("\n".join([self._headline(), *wrong]))

    def __str__(self) -> str:
        lines = [self._headline(), *self._undisturbed(self.status), *self._wrong()]
        return "\n".join([*lines, *([""] if self.in_doubt else []), *self._needs_operator()])

    def _headline(self) -> str:
        sample = "" if len(self.runs) == len(self.boundaries) else f" of {len(self.boundaries)}"
        return (
            f"crash sweep of {self.machine}: killed at {len(self.runs)}{sample} boundaries "
            f"(seed {self.seed}), {len(self.faults)} with faults, {len(self.in_doubt)} left in doubt"
        )

    def _undisturbed(self, ends: str) -> list[str]:
        said = [f"  two runs without a kill differ: {each}" for each in self.unsteady]
        if self.unsteady:
            said.append("  take such a value from a read or from the step, or name it in may_differ=")
        if self.status != ends:
            why = f": {self.note}" if self.note else ""
            said.append(f"  without a kill the thread is {self.status} in {self.state}, not {ends}{why}")
        said += [f"  signal `{name}` was not sent: the thread never waited for it" for name in self.unsent]
        return said

    def _wrong(self) -> list[str]:
        said: list[str] = []
        for run in self.faults:
            said += ["", str(run), *(f"      {fault}" for fault in run.faults)]
            said.append(f"      alone: crash_sweep({self.machine}, ..., seed={self.seed}, only={run.index})")
        return said

    def _needs_operator(self) -> list[str]:
        if not self.in_doubt:
            return []
        said = [f"  {len(self.in_doubt)} need an operator (`perdure resolve`) after the kill:"]
        for note in dict.fromkeys(run.in_doubt for run in self.in_doubt):
            said += [*(str(run) for run in self.in_doubt if run.in_doubt == note), f"      {note}"]
        said.append(
            "  give the effect a lookup or idempotent=True where its receiver can; "
            "if a person is to decide, say so: check(parks_in_doubt=True)"
        )
        return said


async def crash_sweep(
    machine: Of[M, D],
    data: D,
    /,
    *,
    deps: Any | Callable[[], Any] = None,
    runtime: Runtime[Any] | None = None,
    signals: Sequence[Signal[M, None] | tuple[Signal[M, Any], Any]] = (),
    uploads: Sequence[bytes] = (),
    may_differ: Collection[str] = (),
    points: int = 200,
    seed: int = 0,
    only: int | None = None,
) -> Sweep:
    """Run a thread undisturbed, then kill it at every boundary it came to and resume it, in simulated time.

    A boundary is a place just before or after a write to the store, a request to a ``World``'s receiver, or
    an artifact's put. The killed process is dead there: none of its code runs on. A second worker takes over,
    and what comes of it is compared with the undisturbed run: state, path, data, memory, what the receivers
    were asked for and how often, journal.

    ``deps``: what the calls are given, or a function that makes it for each process. ``runtime``: one with
    the machine, whose machines and deps are taken (``deps`` stands instead of its own); its store is not
    touched. ``signals``: each is sent once the thread waits for it (or runs in an
    interruptible state that takes it, and needs time to pass), in order, one with a payload as
    ``(Expense.approve, Approval(by="ada"))``. ``uploads``: the bytes of artifacts that are there before the
    thread starts, for refs in its data. ``may_differ``: fields of the data that need not be equal,
    facts of the memory as ``namespace/key``, and receivers whose requests need not hold the same.
    ``points``: how many boundaries are taken at most, drawn with ``seed``; ``only``: one alone, by its index.

    ``ValueError`` where ``only`` or ``may_differ`` names nothing that is there; whatever makes the thread's
    start fail is raised as it is; ``RuntimeError`` where a handler or call polls without ever waiting.
    """
    asked_for: Any = machine
    plan = definition(asked_for)
    sent: list[Sent] = [(each, None) if isinstance(each, Signal) else each for each in signals]
    asked = Asked(
        plan=plan,
        machines=[asked_for] if runtime is None else _machines(runtime, asked_for),
        data=data,
        deps=runtime.deps if deps is None and runtime is not None else deps,
        signals=sent,
        uploads=uploads,
        seed=seed,
    )
    return await to_thread.run_sync(lambda: _sweep(asked, frozenset(may_differ), points, only))


def _machines(runtime: Runtime[Any], machine: type[Any]) -> list[type[Machine[Any, Any]]]:
    machines = [plan.machine for plan in runtime.definitions.values()]
    if machine not in machines:
        raise ValueError(f"the runtime has no machine {machine.__name__}: list it in machines=[...]")
    return machines


def _sweep(asked: Asked, may_differ: frozenset[str], points: int, only: int | None) -> Sweep:
    reference, again = _run(asked, None), _run(asked, None)
    count = len(reference.boundaries)
    if only is not None and only not in range(count):
        raise ValueError(f"only={only}: the run has {count} boundaries, counted from 0")
    _check_named(asked.plan, reference, may_differ)
    unsteady = differences(reference, again, may_differ)
    chosen: Sequence[int] = () if only is None else (only,)
    if only is None and not unsteady and not reference.stuck:
        chosen = _chosen(count, points, asked.seed)
    sweep = Sweep(
        machine=asked.plan.name,
        status=_status(reference),
        state=reference.standing.state,
        note=reference.standing.note or "",
        boundaries=tuple(reference.boundaries),
        runs=(),
        unsteady=tuple(unsteady),
        unsent=tuple(signal.name for signal in reference.unsent),
        seed=asked.seed,
    )
    runs = tuple(_killed(asked, reference, index, may_differ) for index in chosen)
    for world, log in reference.worlds.items():
        world.show(log)
    return evolve(sweep, runs=runs)


def _check_named(plan: Definition, reference: Outcome, may_differ: frozenset[str]) -> None:
    receivers = {each.name for log in reference.worlds.values() for each in log.arrivals}
    unknown = sorted(may_differ - receivers - set(plan.data.fields) - set(reference.facts))
    if unknown:
        raise ValueError(
            f"may_differ: {plan.name}'s data has no field {unknown[0]!r}, "
            "and the run no such receiver or fact (NAMESPACE/KEY)"
        )


def _chosen(count: int, points: int, seed: int) -> Sequence[int]:
    return range(count) if count <= points else sorted(Random(seed).sample(range(count), points))


def _status(outcome: Outcome) -> End | Literal["stuck"]:
    status = outcome.standing.status
    return "stuck" if outcome.stuck or status == "running" else status


def _run(asked: Asked, kill_at: int | None) -> Outcome:
    return simulate(lambda loop: Run(loop, asked, kill_at).go())


def _killed(asked: Asked, reference: Outcome, index: int, may_differ: frozenset[str]) -> Killed:
    outcome = _run(asked, index)
    killed = len(outcome.boundaries) > index
    faults = () if killed else ("it never came to this boundary: the machine runs otherwise each time",)
    words = outcome.boundaries[index] if killed else reference.boundaries[index]
    standing = outcome.standing
    doubt = standing.status == "parked" and standing.reason == "in doubt" != reference.standing.reason
    return Killed(
        index=index,
        boundary=words,
        faults=(*faults, *faults_of(asked.plan, reference, outcome, may_differ, in_doubt=doubt)),
        in_doubt=standing.note if doubt else None,
    )
