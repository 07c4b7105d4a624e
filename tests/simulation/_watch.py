"""The invariants of docs/protocol.md, held against each commit as it lands, each arrival, and a run's end."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from _store import WatchedStore
from _story import Did
from _world import Arrival, Request, World
from attrs import define, field, frozen

from perdure.artifacts import MemoryArtifacts
from perdure.machines import Definition
from perdure.runtime._journal import Body, Entry, decode_body, holds
from perdure.runtime._look import look
from perdure.runtime._reserved import RESERVED
from perdure.stores import Address, Commit, ThreadRow

Visit = tuple[str, int]
"""A thread, and the checkpoint that the visit began with."""
NAMED = ("in doubt", "diverged", "failed", "conflict", "unreadable", "poison")
ENDED = ("cancelled", "terminated")
"""Entries of commits that end a thread where it stands."""
MEANT = ("Planned", "NotDone", "AttemptTimedOut", "ArtifactsUnavailable")
"""What an attempt of these machines may fail with."""


@frozen
class Broken:
    """An invariant that does not hold, and how it shows."""

    invariant: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what}"


@define(eq=False)
class Watch:
    """Looks at everything that happens, and keeps what should not have."""

    world: World
    store: WatchedStore
    definitions: Mapping[str, Definition]
    mixed: bool
    """Whether processes run different code."""
    lapses: bool
    """Whether leases may run out because the store is slow: a worker then counts as dead."""
    tell: Callable[[str], None]
    broken: list[Broken] = field(factory=list[Broken])
    visits: defaultdict[str, set[Visit]] = field(factory=lambda: defaultdict[str, "set[Visit]"](set))
    """Which visits intended a key."""
    epochs: dict[str, int] = field(factory=dict[str, int])
    """The claim under which a key was intended last."""
    explicit: set[str] = field(factory=set[str])
    parks: list[tuple[str, str, str]] = field(factory=list[tuple[str, str, str]])
    crashes: int = 0
    """How many processes were killed."""
    takeovers: int = 0
    """How many were killed, or stopped for longer than their lease may last."""
    _doubts: dict[str, dict[int, str]] = field(factory=dict[str, "dict[int, str]"])
    _taken: set[tuple[Address, int]] = field(factory=set["tuple[Address, int]"])
    _entries: dict[str, list[Entry]] = field(factory=dict[str, "list[Entry]"])
    """Of the current visit, by thread."""

    def breaks(self, invariant: str, what: str) -> None:
        self.broken.append(Broken(invariant, what))
        self.tell(f"BROKEN {invariant}: {what}")

    # --- commits ----------------------------------------------------------------------------------

    def landed(self, before: ThreadRow, commit: Commit) -> None:
        """One commit was written."""
        thread, log = before.address.thread_id, commit.log
        body = decode_body(log.payload or b"")
        kinds = " ".join(e["k"] for e in body.entries)
        self.tell(
            f"commit {thread} n={log.n} seq={log.seq} epoch={log.epoch} {log.kind} {body.event}: {kinds}"
        )
        self._position(before, commit)
        self._one_end(before, commit, body)
        for entry in body.entries:
            self._take_in(thread, before.standing.seq, log.epoch, entry)
        if log.kind == "park":
            self._parked(before, commit, body)
        if commit.standing.reason == "cancelled":
            self._settled(before, body)
        if log.kind == "transition":
            self._settled(before, body)
            self._in_order(before, commit, body)
            self._doubts.pop(thread, None)
            self._entries.pop(thread, None)

    def _position(self, before: ThreadRow, commit: Commit) -> None:
        log, thread = commit.log, before.address.thread_id
        if commit.epoch != before.epoch or before.owner is None or log.epoch != before.epoch:
            self.breaks("S1", f"{thread}: a commit at epoch {commit.epoch} landed at epoch {before.epoch}")
        if log.seq != before.standing.seq + (log.kind == "transition") or log.n != before.n:
            self.breaks("S1", f"{thread}: {log.kind} at seq {log.seq} landed on seq {before.standing.seq}")

    def _one_end(self, before: ThreadRow, commit: Commit, body: Body) -> None:
        """A thread ends once: by a transition to a final state, or as somebody asked from outside."""
        thread, standing = before.address.thread_id, commit.standing
        if before.standing.status == "ended":
            self.breaks("S11", f"{thread}: {commit.log.kind} landed after its end")
        asked = [e["k"] for e in body.entries if e["k"] in ENDED]
        final = (
            commit.log.kind == "transition" and self.definitions[before.machine].states[standing.state].final
        )
        if (standing.status == "ended") != (final or bool(asked)) or len(asked) + final > 1:
            self.breaks("S11", f"{thread}: {standing.status} in {standing.state}, and {asked} asked for it")
        if asked and ([standing.reason], standing.state) != (asked, before.standing.state):
            self.breaks("S11", f"{thread}: ended as {standing.reason} in {standing.state}, asked was {asked}")
        for row in [r for r in self.store.tables.inbox[before.address] if r.number in commit.consumed]:
            if asked and row.event != {"cancelled": ":cancel", "terminated": ":terminate"}[asked[0]]:
                self.breaks("S11", f"{thread}: {asked} took in {row.event}")

    def _take_in(self, thread: str, seq: int, epoch: int, entry: Entry) -> None:
        doubts = self._doubts.setdefault(thread, {})
        self._entries.setdefault(thread, []).append(entry)
        match entry["k"]:
            case "intent":
                self.epochs[entry["key"]] = epoch
                doubts[entry["id"]] = entry["key"]
                self.visits[entry["key"]].add((thread, seq))
                if "explicit" in entry:
                    self.explicit.add(entry["key"])
            case "served":
                self.visits[entry["key"]].add((thread, seq))
                self.explicit.add(entry["key"])
            case "done" | "not_done" | "unsent":
                doubts.pop(entry["id"], None)
            case "resolved" if entry["action"] == "not done":
                doubts.pop(entry["id"], None)
            case _:
                pass

    def _settled(self, before: ThreadRow, body: Body) -> None:
        thread = before.address.thread_id
        doubts = self._doubts.get(thread, {})
        if doubts:
            self.breaks("S5", f"{thread}: {body.event} committed with {sorted(doubts.values())} in doubt")
        mine = {e["key"] for e in self._entries.get(thread, ()) if e["k"] == "intent"}
        running = [key for key in mine for r in self.world.open.get(key, ()) if _runs(r, before)]
        if running:
            self.breaks("S5", f"{thread}: {body.event} committed with {running} unfinished")

    def _in_order(self, before: ThreadRow, commit: Commit, body: Body) -> None:
        """A signal is taken in once, and nothing that the state accepts came before what it takes."""
        thread, state = before.address.thread_id, before.standing.state
        inbox = self.store.tables.inbox[before.address]
        taken = [e["number"] for e in body.entries if e["k"] in ("signal", "cancel")]
        if tuple(taken) != commit.consumed:
            self.breaks("S9", f"{thread}: {body.event} takes in {commit.consumed}, its entries say {taken}")
        came = [inbox[number - 1].at for number in taken]
        came += [e["due"] for e in body.entries if e["k"] == "timeout"]
        for number in taken:
            if (before.address, number) in self._taken:
                self.breaks("S9", f"{thread}: signal {number} was taken in twice")
            self._taken.add((before.address, number))
        plan = self.definitions[before.machine].states[state]
        free = {e for e, rows in plan.rows.items() if any(row.guard is None for row in rows)} | {body.event}
        first = [row.id for row in inbox if row.consumed is None and row.event in free & {*plan.signals}]
        first = [i for i in first if any(r.id == i and r.at < at for r in inbox for at in came)]
        stopped = bool(plan.handlers) and any(e["k"] == "cancel" for e in body.entries)
        first += [
            e
            for e, due in self._due(before).items()
            if not stopped and e != body.event and any(due < at for at in came)
        ]
        if first:
            self.breaks("S9", f"{thread}: {state} took in {body.event}, and {first} came before it")

    def _due(self, before: ThreadRow) -> Mapping[str, int]:
        log = self.store.tables.log[before.address]
        checkpoint = next(
            r for r in log if r.seq == before.standing.seq and r.kind in ("start", "transition")
        )
        return decode_body(checkpoint.payload or b"").due

    # --- parking ----------------------------------------------------------------------------------

    def _parked(self, before: ThreadRow, commit: Commit, body: Body) -> None:
        thread, standing = before.address.thread_id, commit.standing
        reason, note = standing.reason or "", standing.note or ""
        self.parks.append((thread, reason, note))
        detail: Mapping[str, Any] = next((e.get("detail", {}) for e in body.entries if e["k"] == "park"), {})
        said = f"{thread}: parked {reason}: {note}"
        match reason:
            case "in doubt" if not self._may_doubt(note, detail):
                self.breaks("S8", said)
            case "failed" if not self._has_failed(thread, before, detail):
                self.breaks("S8", said)
            case "poison" if self.takeovers < 3 and not self.lapses:
                self.breaks("S8", said)
            case "diverged" if self.mixed and before.machine == "Changing":
                pass
            case "diverged" | "unreadable":
                self.breaks("S8", said)
            case "conflict" if "facts/one" not in note:
                self.breaks("S8", said)
            case _ if reason not in NAMED:
                self.breaks("S7", said)
            case _:
                pass

    def _may_doubt(self, note: str, detail: Mapping[str, Any]) -> bool:
        key, call = detail.get("key", ""), detail.get("call", "")
        if call == "post" or "is in doubt in thread" in note:
            return True
        return self.world.most_unknown.get(key, 0) >= 6 or self.world.issues.get(key, 0) >= 6

    def _has_failed(self, thread: str, before: ThreadRow, detail: Mapping[str, Any]) -> bool:
        entries = self._entries.get(thread, ())
        failed = [e for e in entries if e["k"] == "failed"]
        plan = self.definitions[before.machine].states[before.standing.state]
        if not failed or any(e["error"]["type"] not in MEANT for e in failed):
            return False
        return bool(max(e["attempt"] for e in failed) == plan.retry.attempts)

    # --- arrivals ---------------------------------------------------------------------------------

    def arrived(self, arrival: Arrival) -> None:
        """A receiver has acted."""
        if not self.visits[arrival.key]:
            self.breaks("intent", f"{arrival} arrived without an intent")
            return
        same = [a for a in self.world.arrivals if self._one_effect(a, arrival)]
        if arrival.kind == "P" or len(same) == 1:
            return
        invariant = {"K": "S2", "KL": "S2", "L": "S3", "N": "S4"}[arrival.kind]
        times = ", ".join(f"{a.value} with {a.key[:9]} at {a.at:.3f}" for a in same)
        self.breaks(invariant, f"{arrival.thread}/{arrival.slot} arrived {len(same)} times: {times}")

    def _one_effect(self, a: Arrival, b: Arrival) -> bool:
        if a.key in self.explicit or b.key in self.explicit:
            return a.key == b.key
        return (a.thread, a.slot) == (b.thread, b.slot) and bool(
            self.visits.get(a.key, set()) & self.visits[b.key]
        )

    # --- the end ----------------------------------------------------------------------------------

    async def at_the_end(self, artifacts: MemoryArtifacts, acknowledged: list[tuple[str, Any]]) -> None:
        """Everything is still: what the data says against what the world, the log and the inbox say."""
        data: dict[str, Any] = {}
        for row in list(self.store.tables.threads.values()):
            self._chain_holds(row)
            progress = await look(self.store, self.definitions[row.machine], row)
            data[row.address.thread_id] = progress.data
            self._data_agrees(row, progress.data)
        self._memory_agrees(data)
        self._still_there(acknowledged)
        await self._blobs_whole(artifacts)

    def _chain_holds(self, row: ThreadRow) -> None:
        head, seqs = row.incarnation, list[int]()
        for log in self.store.tables.log[row.address]:
            if not holds(head, log):
                self.breaks("chain", f"{row.address.thread_id}: row {log.n} does not follow its predecessor")
            head = log.head
            if log.kind in ("start", "transition"):
                seqs.append(log.seq)
        if seqs != list(range(row.standing.seq + 1)):
            self.breaks("S1", f"{row.address.thread_id}: checkpoints {seqs}")

    def _data_agrees(self, row: ThreadRow, data: Any) -> None:
        thread = row.address.thread_id
        moves = self._moves(row)
        if list(data.trail) != [source for source, event in moves if not self._from_outside(row, event)]:
            self.breaks("S6", f"{thread}: the data went {list(data.trail)}, the log {moves}")
        for did in data.did:
            self._happened(thread, did)
        told = {(did.visit, did.slot) for did in data.did if did.receipt}
        for arrival in self.world.arrivals:
            for visit in [v for t, v in self.visits[arrival.key] if t == thread and v < row.standing.seq]:
                fired = not self._from_outside(row, moves[visit][1])
                if fired and (visit, arrival.slot) not in told and arrival.key not in self.explicit:
                    self.breaks("S6", f"{thread}: {arrival} arrived, and the data of visit {visit} denies it")
        self._register_holds_the_last(row, data)
        self._talk_agrees(row, data)
        self._heard_once(row, data)

    def _moves(self, row: ThreadRow) -> list[tuple[str, str]]:
        bodies = [
            decode_body(log.payload) for log in self.store.tables.log[row.address] if log.kind == "transition"
        ]
        return [(body.source or "", body.event or "") for body in bodies]

    def _from_outside(self, row: ThreadRow, event: str) -> bool:
        return self.definitions[row.machine].events[event].kind not in ("fire", "choice")

    def _happened(self, thread: str, did: Did) -> None:
        arrivals = [
            a for a in self.world.arrivals if a.slot == did.slot and (thread, did.visit) in self.visits[a.key]
        ]
        if not did.receipt and arrivals:
            self.breaks("S6", f"{thread}: {did} was not done, says the data, and yet {arrivals[0]}")
        if did.receipt and (did.value, did.receipt) not in [(a.value, a.receipt) for a in arrivals]:
            self.breaks("S6", f"{thread}: {did} says the data, and the world has {arrivals}")

    def _register_holds_the_last(self, row: ThreadRow, data: Any) -> None:
        """The newest put that the data knows of is the one that the register holds."""
        thread = row.address.thread_id
        puts = [a for a in self.world.arrivals if a.kind == "P" and a.thread == thread]
        known = [d for d in data.did if d.slot == "register" and d.receipt]
        for did in known:
            later = max(d.visit for d in known)
            mine = [a for a in puts if (thread, did.visit) in self.visits[a.key]]
            newer = [a for a in puts if (thread, later) in self.visits[a.key]]
            if did.visit < later and newer and mine and mine[-1].at > newer[0].at:
                self.breaks("S6", f"{thread}: the put of visit {did.visit} landed over that of visit {later}")

    def _memory_agrees(self, data: Mapping[str, Any]) -> None:
        """Each committed update is in, once."""
        memory = self.store.tables.memory
        held = {namespace: rows[-1].value for (_, namespace, _), rows in memory.items() if rows}
        counts = [story.bumps for story in data.values() if set(story.trail) & {"counting"}]
        if held.get("tally", b"0") != str(sum(counts)).encode():
            self.breaks("memory", f"the tally is {held.get('tally')}, the threads counted {counts}")
        tagged = sorted(thread for thread, story in data.items() if "tagging" in story.trail)
        if sorted(msgspec.json.decode(held.get("tags", b"[]"))) != tagged:
            self.breaks("memory", f"the tags are {held.get('tags')}, the threads {tagged}")
        wrote = sum("writing" in story.trail for story in data.values())
        written = sum(len(rows) for (_, namespace, _), rows in memory.items() if namespace == "facts")
        if written != wrote:
            self.breaks("memory", f"{written} facts were written by {wrote} threads")

    def _talk_agrees(self, row: ThreadRow, data: Any) -> None:
        """A thread sees the session as it stood at its start, and what it said itself."""
        talk = self.store.tables.messages[row.address.workspace, row.session]
        seen = [m for m in talk if m.number <= row.session_since or m.incarnation == row.incarnation]
        said = [msgspec.json.decode(m.payload)["content"] for m in seen]
        thread = row.address.thread_id
        own = [f"{thread}/{n}" for n, _ in enumerate(data.trail)] if row.machine == "Scribe" else []
        if [m.content for m in data.talk] != said or [s for s in said if s.startswith(f"{thread}/")] != own:
            self.breaks("S6", f"{thread}: it said {own}, the session has {said}, and it sees {data.talk}")

    def _heard_once(self, row: ThreadRow, data: Any) -> None:
        inbox = self.store.tables.inbox[row.address]
        words = [r for r in inbox if r.consumed is not None and r.event not in RESERVED]
        taken = sorted(msgspec.json.decode(r.payload)["text"] for r in words)
        if sorted(data.heard) != taken:
            self.breaks("S9", f"{row.address.thread_id}: it heard {data.heard}, and {taken} were taken in")

    def _still_there(self, acknowledged: list[tuple[str, Any]]) -> None:
        tables = self.store.tables
        for what, write in acknowledged:
            if what == "commit":
                rows = tables.log[write.address]
                there = len(rows) > write.log.n and rows[write.log.n].head == write.log.head
            elif what == "signal":
                there = any(row.id == write.id for row in tables.inbox[write.address])
            else:
                there = write.address in tables.threads
            if not there:
                self.breaks("S10", f"{write.address.thread_id}: an acknowledged {what} is gone")

    async def _blobs_whole(self, artifacts: MemoryArtifacts) -> None:
        tables = self.store.tables
        seqs = {row.address.thread_id: row.standing.seq for row in tables.threads.values()}
        for row in list(tables.artifacts.values()):
            if row.seq is None or row.seq >= seqs[row.thread_id]:
                continue
            try:
                content = b"".join([chunk async for chunk in artifacts.open(row.workspace, row.sha256)])
            except Exception as error:
                self.breaks("artifact", f"{row.thread_id}: {row.id} of visit {row.seq}: {error}")
                continue
            if hashlib.sha256(content).hexdigest() != row.sha256:
                self.breaks("artifact", f"{row.thread_id}: {row.id} is not whole")


def _runs(request: Request, thread: ThreadRow) -> bool:
    """It is a call of this claim's, and not over."""
    mine = (request.process.worker, request.epoch) == (thread.owner, thread.epoch)
    return mine and request.client_end is None
