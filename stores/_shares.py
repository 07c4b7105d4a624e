"""The arithmetic of limits that hold over all workers, for every store the same."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from ._limits import check_name
from ._records import ClaimRequest, Micros
from ._workers import Share

MINUTE: Micros = 60_000_000


@frozen(kw_only=True)
class Paced:
    """How many starts are granted now, and what is kept of that."""

    starts: int
    full_at: Micros
    """When as many may be made at once again as ever; what a store keeps of a limit."""
    again: Micros | None


def pace(request: Share, full_at: Micros, now: Micros) -> Paced:
    """Grant starts: a tenth of a minute's at once, the others evenly spaced, never more in 60 seconds.

    With a burst of b and a gap of g, 60 seconds hold at most b + floor(60 s / g) starts, so that g is the
    least for which that is not more than ``per_minute`` (the generic cell rate algorithm of ITU-T I.371).
    """
    if request.per_minute is None:
        return Paced(starts=request.starts, full_at=full_at, again=None)
    burst = max(1, request.per_minute // 10)
    gap = MINUTE // (request.per_minute - burst + 1) + 1
    ahead = min(max(full_at - now, 0), burst * gap)  # a clock that was set back stops nobody for long
    starts = min(request.starts, burst - -(-ahead // gap))
    ahead += starts * gap
    again = None if starts == request.starts else now + ahead - (burst - 1) * gap
    return Paced(starts=starts, full_at=now + ahead, again=again)


def without_full(request: ClaimRequest, room: Mapping[str, int]) -> ClaimRequest:
    """The request for those machines of which more threads may be owned."""
    machines = {name: newest for name, newest in request.machines.items() if room.get(name, 1) > 0}
    return evolve(request, machines=machines)


def check_share(request: Share) -> None:
    """Refuse limits and wishes that mean nothing."""
    check_name("limit", request.limit)
    limits = {"at_once": request.at_once, "per_minute": request.per_minute}
    for what, limit in limits.items():
        if limit is not None and limit < 1:
            raise ValueError(f"limit {request.limit!r}: {what} is {limit}: it must be at least 1")
    for what, wish in {"held": request.held, "starts": request.starts}.items():
        if wish < 0:
            raise ValueError(f"limit {request.limit!r}: {what} is {wish}: it must be at least 0")
