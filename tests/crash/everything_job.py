"""The machine that uses everything as a job to be killed, and what must come of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from crash.everything import ROUNDS, Approval, Everything, Facts, Job, World
from crash.killing import KillingStore, Points
from crash.receiver import ask, start_receiver, stop_receiver
from perdure.runtime import Runtime
from perdure.stores import Artifacts, Memory, open_store

EACH_ROUND = {"ping", "set_flag", "send"}
AGAIN = {"ping", "set_flag"}
"""Effects that may arrive more than once under one key: their receivers are declared to bear it."""


@contextmanager
def world(folder: Path) -> Iterator[int]:
    """The receiver in a forked process; its port."""
    pid, port = start_receiver()
    try:
        yield port
    finally:
        stop_receiver(pid)


async def run(
    folder: Path, url: str, port: int, name: str, points: Points, *, moving: bool
) -> dict[str, Any]:
    """Run the job to its end in this process, in the store that the URL names; say what became of it."""
    deps = World(port=port, run=name, point=points, moving=moving)
    store = KillingStore(open_store(url), points)
    runtime = Runtime(
        machines=[Everything],
        deps=deps,
        store=store,
        artifacts=f"file://{folder}/artifacts",
        poll=timedelta(milliseconds=25),
    )
    async with runtime:
        before = runtime.thread(Everything, thread_id="job")
        for _ in range(2):
            await before.signal(Everything.approve, Approval(by="ada"), id="approval-1")
            await before.cancel(reason="enough", by="ada")
        thread = await runtime.start(Everything, Job(name="job"), thread_id="job")
        ended = await thread.result()
        memory = await store.page(Memory(workspace="default"))
        artifacts = await store.page(Artifacts(workspace="default"))
        contents = [
            [blob async for blob in runtime.artifacts.open(ended.data.picture)]
            for _ in [0]
            if ended.data.picture is not None
        ]
        return {
            "state": ended.state,
            "data": plain(ended.data),
            "memory": {row.key: (row.value or b"").decode() for row in memory.rows},
            "versions": {row.key: row.version for row in memory.rows},
            "artifacts": sorted(row.sha256 for row in artifacts.rows),
            "contents": [b"".join(chunks).decode() for chunks in contents],
            "history": [f"{step.seq} {step.event}" for step in await thread.history()],
            "pending": len(await thread.pending()),
        }


def plain(data: Job) -> dict[str, Any]:
    """The data as it can be compared: no id that is drawn anew each run."""
    return {
        "looked": data.looked,
        "thought": data.thought,
        "reused": data.reused,
        "posted": data.posted,
        "pinged": list(data.pinged),
        "flags": list(data.flags),
        "picture": None if data.picture is None else data.picture.sha256,
        "left": data.left,
        "counted": dict(data.counted),
        "notes": [note.text for note in data.notes],
        "talk": [message.content for message in data.talk],
        "fallen_back": data.fallen_back,
        "approved_by": data.approved_by,
        "charged": data.charged,
        "tokens": data.tokens,
        "chosen": data.chosen,
        "stopped_by": data.stopped_by,
        "transitions": data.transitions,
    }


async def arrivals(port: int, name: str) -> list[dict[str, Any]]:
    """The receiver's raw log of one run."""
    arrived: list[dict[str, Any]] = await ask(port, op="arrivals", run=name)
    return arrived


def faults(
    result: Mapping[str, Any], arrived: Sequence[Mapping[str, Any]], expected: Mapping[str, Any] | None
) -> list[str]:
    """What is wrong with a run; empty: nothing. ``expected``: the data of an undisturbed one, where the world
    stands still."""
    wrong = _repeated(arrived) + _disagreeing(result, arrived)
    if expected is not None and result["data"] != expected["data"]:
        wrong.append(f"data is {result['data']}, undisturbed it is {expected['data']}")
    if result["state"] != "done" or result["data"]["transitions"] != len(EVENTS) - 1:
        wrong.append(f"ended in {result['state']} after {result['data']['transitions']} transitions")
    if result["versions"] != {"job": 1, "last job": 1}:
        wrong.append(f"memory has versions {result['versions']}")
    if len(result["artifacts"]) != 1 or result["contents"] != ["picture of job"]:
        wrong.append(f"artifacts are {result['artifacts']}, {result['contents']}")
    if (data := result["data"])["tokens"] != 10 or data["stopped_by"] != "ada: enough":
        wrong.append(f"{data['tokens']} tokens were used, and it was stopped by {data['stopped_by']}")
    if result["pending"] or [line.split()[1] for line in result["history"]] != EVENTS:
        wrong.append(f"history is {result['history']}, {result['pending']} signals are pending")
    return wrong


def _repeated(arrivals: Sequence[Mapping[str, Any]]) -> list[str]:
    """Logical effects that arrived more often than they should, or whose key was not their own."""
    keys: dict[tuple[str, str], list[str]] = {}
    for a in arrivals:
        keys.setdefault((a["effect"], a["args"].get("subject", "")), []).append(a["key"])
    faults: list[str] = []
    for (name, subject), used in keys.items():
        expected = ROUNDS if name in EACH_ROUND else 1
        if len(set(used)) != expected:
            faults.append(f"{name} {subject} arrived under {len(set(used))} keys, not {expected}")
        if name not in AGAIN and len(used) != expected:
            faults.append(f"{name} {subject} arrived {len(used)} times, not {expected}")
    return faults


def _disagreeing(result: Mapping[str, Any], arrivals: Sequence[Mapping[str, Any]]) -> list[str]:
    data = result["data"]
    cleaned = next((a["args"]["body"] for a in arrivals if a["args"].get("subject") == "cleaned"), "never")
    said = {
        ("post", data["looked"]): {"subject": data["looked"], "body": f"{data['thought']} {data['reused']}"},
        ("post", "left"): {"subject": "left", "body": (data["left"] or "").removeprefix("posted ")},
        ("post", "cleaned"): {"subject": "cleaned", "body": cleaned},
        ("ping", None): {"what": data["pinged"][-1].removeprefix("pinged ")},
        ("set_flag", None): {"value": data["flags"][-1]},
        ("send", None): {"what": "the same each round"},
        ("offer", None): {"what": data["fallen_back"]},
        ("charge", None): {"whom": (data["charged"] or "").removeprefix("charged ")},
    }
    arrived = {(a["effect"], a["args"].get("subject")): a["args"] for a in arrivals}
    faults = [
        f"the data says {name}({args}), and {arrived.get((name, subject))} arrived"
        for (name, subject), args in said.items()
        if arrived.get((name, subject)) != args
    ]
    faults += [f"{key} arrived, and the data does not say so" for key in arrived if key not in said]
    remembered = {"job": Facts(seen=1), "last job": Facts(seen=1, last=data["charged"])}
    for key, expected in remembered.items():
        if f'"seen":{expected.seen}' not in result["memory"].get(key, ""):
            faults.append(f"memory {key} is {result['memory'].get(key)}")
    return faults


EVENTS = [
    "start",
    "looked",
    *["joined"] * ROUNDS,
    "branched",
    "recovered",
    "approve",
    "rested",
    "billed",
    "gave_up",
    "choose",
    "used_up",
    "stop",
    "cleaned",
]
