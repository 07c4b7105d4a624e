"""How the parking says it where code asks for other effects than its record holds."""

from __future__ import annotations

from collections.abc import Sequence

from ._book import EffectRecord
from ._context import Parking, Visit
from ._open_calls import OpenCall, OpenEffect


def divergence(visit: Visit, asked: Sequence[OpenCall], held: Sequence[EffectRecord]) -> Parking:
    """The parking that names what was asked for and what the record holds."""
    wants = ", ".join(f"{c.label}({_short(c.signature[2])})" for c in asked) or "no further effect"
    holds = ", ".join(f"{e.call}({_short(e.arguments)}) [{e.outcome}]" for e in held)
    note = (
        f"{visit.where}: the code asks for {wants}; the record of this visit holds {holds}. "
        f"`perdure resolve {visit.row.address.thread_id} --adopt | --run | --ignore --runtime MODULE:NAME` "
        "moves it on"
    )
    detail = {
        "asked": [
            {
                "lane": c.signature[0],
                "call": c.effect.name,
                "args": c.signature[2].decode(),
                "occ": c.occurrence,
                "explicit": c.explicit,
            }
            for c in asked
            if isinstance(c, OpenEffect)
        ],
        "held": [{"id": e.id, "call": e.call, "args": e.arguments.decode()} for e in held],
    }
    return Parking("diverged", note, detail)


def _short(arguments: bytes) -> str:
    text = arguments.decode()
    return text if len(text) <= 120 else text[:117] + "..."
