"""The ways in which threads can be claimed, as conditions over the indexes of a SQL database."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from ._records import ClaimRequest, Micros


@frozen(kw_only=True)
class Source:
    """One way in which threads of a machine can be claimed, over an index that leads on from its ``scope`` by
    machine, workspace and priority to ``order``."""

    name: str
    index: str
    first: str
    """An index that finds some of a machine's threads, whichever they are, by one step."""
    scope: str
    values: tuple[object, ...]
    fits: str
    """What else holds of a thread that can be claimed, with ``bounds`` as its values."""
    order: str
    first_order: str = "workspace, priority, since"
    """Of the columns that ``first`` has behind ``scope`` and machine."""
    bounds: tuple[object, ...] = ()
    most: int | None = None
    """So many are of use in one claim."""

    def at_most(self, limit: int) -> int:
        return limit if self.most is None else min(limit, self.most)


Way = tuple[str, Source]
"""A machine, and how its threads can be claimed."""


def sources(dead: Sequence[str], request: ClaimRequest, now: Micros) -> list[Source]:
    """What the dead left behind, what runs and is nobody's, and what waits and is due, late ones apart."""
    left = [
        Source(
            name="left",
            index="standing_owned",
            first="standing_owned",
            scope="owner = ?",
            values=(owner,),
            fits="(status = 0 OR status = 1 AND wake <= ?)",
            bounds=(now,),
            order="since",
        )
        for owner in dead
    ]
    free = "owner IS NULL AND status ="
    runnable = Source(
        name="runnable",
        index="standing_runnable",
        first="standing_runnable",
        scope=f"{free} 0",
        values=(),
        fits="TRUE",
        order="since",
    )
    due = Source(
        name="due",
        index="standing_shared",
        first="standing_due",
        scope=f"{free} 1 AND wake IS NOT NULL",
        values=(),
        fits="wake <= ?",
        bounds=(now,),
        order="wake",
        first_order="wake",
    )
    if request.late_before is None:
        return [*left, runnable, due]
    before = request.late_before
    # One bound on each side: of two, SQLite would look at all that is within the wider one.
    late = min(before, now + 1)
    return [
        *left,
        runnable,
        evolve(due, fits="wake <= ? AND wake >= ?", bounds=(now, before)),
        evolve(due, name="late", fits="wake < ?", bounds=(late,), most=request.late_limit + 1),
    ]
