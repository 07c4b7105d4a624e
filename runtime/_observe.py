"""What the runtime tells about itself: one hook with frozen records, and structured log lines."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from attrs import field, frozen

from perdure.stores import LogKind, Standing, ThreadRow

from ._journal import Entry, said_of

logger = logging.getLogger("perdure")


@frozen(kw_only=True)
class Observation:
    """One commit that has landed, or one progress report (``kind`` "report"), of one thread."""

    kind: LogKind | Literal["report"]
    workspace: str
    thread_id: str
    machine: str
    seq: int
    state: str
    status: str
    event: str | None = None
    reason: str | None = None
    calls: tuple[str, ...] = ()
    """What happened to calls, as ``name: intent``, ``name: done`` and so on."""
    artifacts: tuple[str, ...] = ()
    attempt: int | None = None
    errors: tuple[str, ...] = ()
    """Why attempts failed, each as ``Type: message (app.py:12)``."""
    progress: Mapping[str, object] = field(factory=dict[str, object])


class Observer(Protocol):
    """Is told of every commit that has landed, and of progress. It must not block; its errors are logged."""

    def observe(self, seen: Observation, /) -> None:
        """Told of what has landed. It must not block; what it raises is logged and stops nothing."""
        ...


def observation_of(
    kind: LogKind,
    row: ThreadRow,
    standing: Standing,
    event: str | None,
    entries: Sequence[Entry],
    effects: Mapping[int, str],
) -> Observation:
    """What one commit says; ``effects`` has the names of the visit's effects by their ids."""
    names: dict[int, str] = {**effects, **{e["id"]: e["call"] for e in entries if e["k"] == "intent"}}
    calls = tuple(
        f"{e.get('call') or names.get(e['id'], 'effect ' + str(e['id']))}: {e['k'].replace('_', ' ')}"
        for e in entries
        if e["k"] in ("read", "intent", "done", "not_done", "lookup", "served")
    )
    attempts = [e["attempt"] for e in entries if e["k"] in ("failed", "attempt")]
    return Observation(
        kind=kind,
        workspace=row.address.workspace,
        thread_id=row.address.thread_id,
        machine=row.machine,
        seq=standing.seq,
        state=standing.state,
        status=standing.status,
        event=event,
        reason=standing.reason,
        calls=calls,
        artifacts=tuple(e["id"] for e in entries if e["k"] == "artifact"),
        attempt=attempts[-1] if attempts else None,
        errors=tuple(said_of(e["error"]) for e in entries if e["k"] == "failed"),
    )


class Observers:
    """Hands observations to the log and to the users' observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.given = tuple(observers)

    @property
    def wanted(self) -> bool:
        """Whether anybody looks: a commit need not be described to nobody."""
        return bool(self.given) or logger.isEnabledFor(logging.INFO)

    def tell(self, seen: Observation) -> None:
        """Log one line and call every observer."""
        if seen.kind != "report":
            level = logging.WARNING if seen.status == "parked" else logging.INFO
            logger.log(level, "%s", _line(seen), extra={"perdure": _fields(seen)})
        for observer in self.given:
            try:
                observer.observe(seen)
            except Exception:
                logger.exception("observer %r raised", observer)


def _fields(seen: Observation) -> dict[str, Any]:
    return {
        "thread": seen.thread_id,
        "workspace": seen.workspace,
        "machine": seen.machine,
        "seq": seen.seq,
        "state": seen.state,
        "status": seen.status,
        "kind": seen.kind,
        "event": seen.event,
        "reason": seen.reason,
        "attempt": seen.attempt,
        "calls": seen.calls,
        "artifacts": seen.artifacts,
    }


def _line(seen: Observation) -> str:
    lists = {"calls": ",".join(seen.calls), "artifacts": ",".join(seen.artifacts)}
    said = {**_fields(seen), **lists}
    return " ".join(f"{name}={value}" for name, value in said.items() if value not in (None, ""))
