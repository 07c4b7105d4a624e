"""A machine whose every body lies outside of the store, as a job to be killed, with collection beside it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from crash.everything import SETTLE, SOON, World
from crash.everything_job import arrivals as arrivals
from crash.everything_job import world as world
from crash.killing import KillingStore, Points
from perdure.artifacts import ArtifactBackend, open_artifacts
from perdure.machines import (
    ABSENT,
    Absent,
    Accept,
    Append,
    Call,
    Conversation,
    Fire,
    Found,
    Machine,
    Message,
    Namespace,
    State,
    Step,
    Unknown,
    effect,
    read,
    record,
)
from perdure.runtime import Runtime
from perdure.runtime._collect import collect
from perdure.runtime._env import Env
from perdure.runtime._look import find_thread
from perdure.runtime._spill import SpillingStore, opened
from perdure.runtime._verify import verify
from perdure.stores import MAX_BODY, Address, Memory, open_store

EVENTS = ["start", "tell", "worked", "sent"]
WHERE = Address(workspace="default", thread_id="job")


def large(name: str) -> str:
    """More than a row holds."""
    return (name + " ") * (MAX_BODY // len(name))


@record
class Told:
    text: str


@record
class Heavy:
    """Data whose every part is large."""

    text: str = ""
    lines: Annotated[Sequence[str], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()
    sent: str = ""


facts = Namespace("heavy", Told)


@read(keep=True)
async def think(call: Call[World], text: str) -> str:
    return large(await call.deps.look("thought"))


@effect(deadline=SOON, settle=SETTLE)
async def send(call: Call[World], text: str) -> str:
    await call.deps.arrive("send", call.key, sha256=digest(text))
    return text


@send.lookup
async def find_sent(call: Call[World], text: str) -> Found[str] | Absent | Unknown:
    found = await call.deps.find(call.key)
    return ABSENT if found is None else Found(text)


class Spilling(Machine[Heavy, World], calls=[think, send]):
    """Is told something large, and makes everything of it that a step can write."""

    waiting = State(initial=True)
    working = State()
    sending = State()
    done = State(final=True)
    tell = waiting.to(working).on_signal(Told)
    worked = working.to(sending)
    sent = sending.to(done)

    @tell.received
    def told(self, data: Heavy, told: Told) -> Accept:
        return self.tell(text=told.text, talk=[Message(role="user", content=told.text)])

    @working.handler
    async def work(self, data: Heavy, step: Step[World]) -> Fire:
        thought = await step.call(think, data.text)
        await step.memory.update(
            facts, "k", lambda fact: Told(text=(fact.text if fact else "") + data.text + "m")
        )
        return self.worked(lines=[thought, data.text], talk=[Message(role="assistant", content=thought)])

    @sending.handler
    async def post(self, data: Heavy, step: Step[World]) -> Fire:
        return self.sent(sent=await step.call(send, data.lines[0]))


async def run(
    folder: Path, url: str, port: int, name: str, points: Points, *, moving: bool
) -> dict[str, Any]:
    """Run the job to its end in this process, in the store that the URL names; say what became of it."""
    deps = World(port=port, run=name, point=points, moving=moving)
    blobs = f"file://{folder}/artifacts"
    runtime = Runtime(
        machines=[Spilling],
        deps=deps,
        store=KillingStore(open_store(url), points),
        artifacts=blobs,
        poll=timedelta(milliseconds=25),
    )
    async with runtime, collecting(url, blobs) as whole:
        thread = await runtime.start(Spilling, Heavy(text=large("first")), thread_id="job", session="s")
        await thread.signal(Spilling.tell, Told(text=large("told")), id="1")
        ended = await thread.result()
        memory = await whole.page(Memory(workspace="default", history=True))
        verified = await verify(whole, await find_thread(whole, WHERE))
        return {
            "state": ended.state,
            "data": {
                "text": digest(ended.data.text),
                "lines": [digest(line) for line in ended.data.lines],
                "talk": [digest(message.content) for message in ended.data.talk],
                "sent": digest(ended.data.sent),
            },
            "memory": [digest((row.value or b"").decode()) for row in memory.rows],
            "broken": None if verified.broken is None else verified.broken.note,
            "history": [step.event for step in await thread.history()],
        }


@asynccontextmanager
async def collecting(url: str, artifacts: str) -> AsyncGenerator[SpillingStore]:
    """Another process's view of the store, through which what nothing holds is deleted again and again."""
    async with open_artifacts(artifacts) as blobs, open_store(url) as store:
        whole = SpillingStore(store, opened(blobs), Env().now)
        await collect(whole, blobs, Env().now, grace=timedelta(0))
        task = asyncio.create_task(_collect(whole, blobs))
        try:
            yield whole
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
        finally:
            task.cancel()


async def _collect(store: SpillingStore, blobs: ArtifactBackend) -> None:
    while True:
        await collect(store, blobs, Env().now, grace=timedelta(0))
        await asyncio.sleep(0)


def faults(
    result: Mapping[str, Any], arrived: Sequence[Mapping[str, Any]], expected: Mapping[str, Any] | None
) -> list[str]:
    """What is wrong with a run; empty: nothing."""
    wrong: list[str] = []
    data = result["data"]
    if [a["args"]["sha256"] for a in arrived] != [data["sent"]]:
        wrong.append(f"arrived: {arrived}, and the data says {data['sent']}")
    if data["lines"] != [data["sent"], data["text"]] or data["text"] != digest(large("told")):
        wrong.append(f"data is {data}")
    if data["talk"] != [data["text"], data["sent"]]:
        wrong.append(f"what was said is {data['talk']}")
    if expected is not None and data != expected["data"]:
        wrong.append(f"data is {data}, undisturbed it is {expected['data']}")
    if len(result["memory"]) != 1:
        wrong.append(f"memory has {len(result['memory'])} versions")
    if result["broken"] is not None:
        wrong.append(f"the record is not as it was written: {result['broken']}")
    if result["state"] != "done" or result["history"] != EVENTS:
        wrong.append(f"history is {result['history']}")
    return wrong


def digest(text: str) -> str:
    """What stands for a large text where results are compared."""
    return hashlib.sha256(text.encode()).hexdigest()
