"""The records of one visit: what was read, issued and learned, as the journal has it.

``apply`` is the only way in, for entries read back after a kill and for those just made alike, so that a
resumed visit knows exactly what an undisturbed one knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from attrs import define, field

from perdure.stores import Micros

from ._journal import Entry, raw

Signature = tuple[str, str, bytes]
"""Lane, call name, canonical arguments."""
Outcome = Literal["in doubt", "done", "not done", "free"]
TOLD = frozenset(
    (
        "attempt",
        "budget",
        "cancel",
        "cancelled",
        "park",
        "resolution",
        "resumed",
        "reuse",
        "signal",
        "terminated",
        "timeout",
    )
)
"""Kinds of entries that tell people what happened and change nothing of what a visit knows."""


def signature_of(lane: str, call: str, arguments: bytes, explicit: str | None = None) -> Signature:
    """What equal calls share. An explicit key is a part of the call's name here."""
    return lane, call if explicit is None else f"{call}\x00{explicit}", arguments


def action_entry(
    id: int, signature: Signature, occurrence: int, wire: int, key: str, explicit: str | None
) -> Entry:
    """What an entry says of the action that it is about: a part of an intent, say."""
    lane, call, arguments = signature
    named: Entry = {
        "id": id,
        "lane": lane,
        "call": call.partition("\x00")[0],
        "args": raw(arguments),
        "occ": occurrence,
        "wire": wire,
        "key": key,
    }
    return named if explicit is None else {**named, "explicit": explicit}


def family(lane: str) -> str:
    """The handler that a lane belongs to: its strands are named below it."""
    return lane.partition("/")[0]


@define
class ReadRecord:
    """One recorded read."""

    id: int
    signature: Signature
    occurrence: int
    value: bytes | None
    at: Micros
    kept: bool


@define
class Issue:
    """One time that an effect was sent, or may have been."""

    not_after: Micros
    settle: Micros
    worker: str
    ended: Micros | None = None
    """When the call is known to have ended, where it is."""

    def settled(self, gone: Micros | None = None) -> Micros:
        """From when on it cannot land any more. ``gone``: when its process was known to have ended, if so."""
        end = gone if self.ended is None else self.ended
        return (self.not_after if end is None else min(end, self.not_after)) + self.settle


@define
class EffectRecord:
    """One logical effect: its key, every issue, and what came of it."""

    id: int
    signature: Signature
    occurrence: int
    wire: int
    key: str
    explicit: str | None
    first_issued: Micros
    outcome: Outcome = "in doubt"
    value: bytes | None = None
    error: str | None = None
    unsettled: list[Issue] = field(factory=list[Issue])
    """Issues that may still land, or may have landed unseen."""
    issues: int = 0
    adopted: bool = False
    set_aside: bool = False
    """An operator said that no call needs to match it."""

    @property
    def lane(self) -> str:
        return self.signature[0]

    @property
    def call(self) -> str:
        return self.signature[1].partition("\x00")[0]

    @property
    def arguments(self) -> bytes:
        return self.signature[2]

    @property
    def settled(self) -> Micros:
        """From when on none of its issues can land any more, as far as the record says."""
        return max((issue.settled() for issue in self.unsettled), default=0)

    def named(self) -> Entry:
        """The action, as entries name it."""
        return action_entry(self.id, self.signature, self.occurrence, self.wire, self.key, self.explicit)


@define
class LaneEnd:
    """A branch that has finished: what it fired, and everything that goes with it into the transition."""

    event: str
    updates: bytes
    memory: list[tuple[str, str, str, int]]
    """Namespace, key, encoded value, expected version."""
    artifacts: list[str]


class Book:
    """Everything recorded since the last checkpoint. ``names`` has today's name of each renamed call."""

    # Written out: one is made for each checkpoint, and attrs calls a factory for every field.
    def __init__(self, *, names: Mapping[str, str] | None = None) -> None:
        self.names: Mapping[str, str] = {} if names is None else names
        self.next_id = 0
        self.reads: dict[int, ReadRecord] = {}
        self.effects: dict[int, EffectRecord] = {}
        self.failed: dict[str, int] = {}
        self.retry_at: dict[str, Micros] = {}
        self.ended: dict[str, LaneEnd] = {}
        self.artifacts: set[str] = set()
        self.conflicts = 0
        self.given_away: dict[Signature, set[int]] = {}
        """Occurrence numbers whose keys went with effects that are other calls now: adopted, or upcast."""
        self._reads_by: dict[tuple[Signature, int], ReadRecord] = {}
        self._effects_by: dict[tuple[Signature, int], EffectRecord] = {}

    def read(self, signature: Signature, occurrence: int) -> ReadRecord | None:
        """The newest record of this read, if there is one."""
        return self._reads_by.get((signature, occurrence))

    def effect(self, signature: Signature, occurrence: int) -> EffectRecord | None:
        """The record of this effect, if there is one."""
        return self._effects_by.get((signature, occurrence))

    def pinned(self, read: ReadRecord) -> bool:
        """An effect of the same handler may have depended on this read."""
        lanes = family(read.signature[0])
        return any(e.id > read.id and family(e.lane) == lanes for e in self.effects.values())

    def doubts(self) -> Iterator[EffectRecord]:
        """Effects without an outcome."""
        return (e for e in self.effects.values() if e.outcome == "in doubt")

    def of(self, lanes: str) -> Iterator[EffectRecord]:
        """Effects of one handler and its strands."""
        return (e for e in self.effects.values() if family(e.lane) == lanes)

    def set_aside(self, calls: Iterable[str]) -> None:
        """No call of today's code matches effects of these names; what is in doubt stays so."""
        for record in self.effects.values():
            if record.call in calls and record.outcome != "in doubt":
                record.set_aside = True

    def allot(self) -> int:
        """The next record's id: ids follow the order of recording."""
        self.next_id += 1
        return self.next_id - 1

    def _signature(self, e: Entry) -> Signature:
        name = self.names.get(e["call"], e["call"])
        return signature_of(e["lane"], name, bytes(e["args"]), e.get("explicit"))

    def apply_all(self, entries: Iterable[Entry]) -> None:
        """Take in entries in the order of the journal."""
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: Entry) -> None:
        """Take in one entry; ``ValueError`` for an unknown kind: what it changes is not guessed."""
        kind = entry["k"]
        act = getattr(self, f"_on_{kind}", None)
        if act is not None:
            act(entry)
        elif kind not in TOLD:
            raise ValueError(f"an entry of the unknown kind {kind!r}: read it with the code that wrote it")

    def _on_read(self, e: Entry) -> None:
        record = ReadRecord(
            id=e["id"],
            signature=self._signature(e),
            occurrence=e["occ"],
            value=bytes(e["value"]) if "value" in e else None,
            at=e["at"],
            kept=e.get("kept", False),
        )
        self.next_id = max(self.next_id, record.id + 1)
        self.reads[record.id] = record
        self._reads_by[(record.signature, record.occurrence)] = record

    def _on_intent(self, e: Entry) -> None:
        record = self.effects.get(e["id"]) or self._new_effect(e)
        record.outcome = "in doubt"
        record.issues += 1
        record.unsettled.append(Issue(not_after=e["not_after"], settle=e["settle"], worker=e["worker"]))

    def _on_served(self, e: Entry) -> None:
        """An explicit key's outcome, recorded by another visit, is this call's."""
        record = self._new_effect(e)
        record.outcome, record.value, record.adopted = "done", bytes(e["value"]), True

    def _new_effect(self, e: Entry) -> EffectRecord:
        signature, occurrence = self._signature(e), e["occ"]
        if (
            "was" in e
        ):  # an upcaster changed its arguments, and its key goes with those that it was issued with
            self.given_away.setdefault((*signature[:2], bytes(e["was"])), set()).add(e["wire"])
            while (signature, occurrence) in self._effects_by:
                occurrence += 1
        record = EffectRecord(
            id=e["id"],
            signature=signature,
            occurrence=occurrence,
            wire=e["wire"],
            key=e["key"],
            explicit=e.get("explicit"),
            first_issued=e["at"],
        )
        self.next_id = max(self.next_id, record.id + 1)
        self.effects[record.id] = record
        self._effects_by[(record.signature, record.occurrence)] = record
        return record

    def _on_unsent(self, e: Entry) -> None:
        record = self.effects[e["id"]]
        record.unsettled.pop()
        if not record.unsettled:
            record.outcome = "free"

    def _on_done(self, e: Entry) -> None:
        record = self.effects[e["id"]]
        record.outcome, record.value = "done", bytes(e["value"])
        record.adopted = e.get("adopted", False)
        record.unsettled.clear()

    def _on_not_done(self, e: Entry) -> None:
        record = self.effects[e["id"]]
        record.outcome, record.error = "not done", e["error"]
        record.unsettled.clear()

    def _on_lookup(self, e: Entry) -> None:
        if e.get("believed"):
            self.effects[e["id"]].unsettled.clear()

    def _on_call_ended(self, e: Entry) -> None:
        for issue in self.effects[e["id"]].unsettled:
            if issue.ended is None and issue.worker == e["worker"]:
                issue.ended = e["at"]

    def _on_failed(self, e: Entry) -> None:
        lane = e["lane"]
        self.failed[lane] = e["attempt"]
        if e.get("retry_at") is not None:
            self.retry_at[lane] = e["retry_at"]
        self.ended.pop(lane, None)
        for gone in e.get("dropped", ()):
            record = self.effects.pop(gone)
            del self._effects_by[(record.signature, record.occurrence)]

    def _on_branch(self, e: Entry) -> None:
        self.ended[e["lane"]] = LaneEnd(
            event=e["event"],
            updates=bytes(e["updates"]),
            memory=[(ns, key, value, version) for ns, key, value, version in e["memory"]],
            artifacts=e["artifacts"],
        )

    def _on_branches_again(self, e: Entry) -> None:
        self.ended.clear()

    def _on_artifact(self, e: Entry) -> None:
        self.artifacts.add(e["id"])

    def _on_artifacts_dropped(self, e: Entry) -> None:
        self.artifacts.difference_update(e["ids"])

    def _on_conflict(self, e: Entry) -> None:
        self.conflicts += 1
        self.ended.clear()

    def _on_retry(self, e: Entry) -> None:
        self.failed.clear()
        self.retry_at.clear()
        self.conflicts = 0

    def _on_resolved(self, e: Entry) -> None:
        record = self.effects[e["id"]]
        match e["action"]:
            case "not done":
                record.outcome = "free"
                record.unsettled.clear()
            case "adopt":
                del self._effects_by[(record.signature, record.occurrence)]
                self.given_away.setdefault(record.signature, set()).add(record.wire)
                record.signature = self._signature(e)
                record.occurrence = e["occ"]
                self._effects_by[(record.signature, record.occurrence)] = record
            case _:
                record.set_aside = True
