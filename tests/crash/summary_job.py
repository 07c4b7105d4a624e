"""The example in four steps as a job to be killed: one object, one arrival, one memory, whatever happens."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs

sys.path.append(str(Path(__file__).resolve().parents[2]))

from crash.killing import KillingStore, Points
from examples import _objects, summary
from examples._customers import Customer, load_customers
from perdure.runtime import Runtime
from perdure.stores import Artifacts, Memory, open_store

CUSTOMER = "cust_01"
QUICK = timedelta(milliseconds=30)
EVENTS = ["start", "loaded", "summarised", "put", "remembered"]


@contextmanager
def world(folder: Path) -> Iterator[int]:
    """An object storage in a forked process; its port."""
    server = _objects._Server(0, _objects._Shelf(folder / "objects"))
    pid = os.fork()
    if pid == 0:
        server.serve_forever()
        os._exit(0)
    port = server.server_port
    server.socket.close()
    try:
        yield port
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@attrs.frozen
class WatchedStorage(_objects.ObjectStorage):
    """The example's own client, with points around each request."""

    point: Points = attrs.field(kw_only=True)

    async def put(self, name: str, content: bytes, *, key: str) -> _objects.StoredObject:
        self.point("before put_object")
        stored = await super().put(name, content, key=key)
        self.point("after put_object")
        return stored

    async def find(self, key: str) -> _objects.StoredObject | None:
        self.point("before find_object")
        found = await super().find(key)
        self.point("after find_object")
        return found


class Watched(Mapping[str, Customer]):
    """The customers, with points around each look, and other answers each time where the world moves."""

    def __init__(self, point: Points, folder: Path, *, moving: bool) -> None:
        self._customers = load_customers()
        self._point = point
        self._looks = folder / "looks"
        self._moving = moving

    def __getitem__(self, key: str) -> Customer:
        self._point("before load_customer")
        customer = self._customers[key]
        if self._moving:
            looks = self._looks.stat().st_size if self._looks.exists() else 0
            self._looks.write_bytes(b"." * (looks + 1))
            customer = attrs.evolve(customer, messages=customer.messages[looks % 3 :])  # type: ignore[misc]
        self._point("after load_customer")
        return customer

    def __iter__(self) -> Iterator[str]:
        return iter(self._customers)

    def __len__(self) -> int:
        return len(self._customers)


async def run(
    folder: Path, url: str, port: int, name: str, points: Points, *, moving: bool
) -> dict[str, Any]:
    """Run the example to its end in this process, in the store that the URL names; say what became of it."""
    storage = WatchedStorage(port, point=points)
    summary.put_object.settle = QUICK
    store = KillingStore(open_store(url), points)
    runtime = Runtime(
        machines=[summary.Summary],
        deps=summary.Deps(customers=Watched(points, folder, moving=moving), storage=storage),
        store=store,
        artifacts=f"file://{folder}/artifacts",
        poll=timedelta(milliseconds=25),
    )
    async with runtime:
        brief = summary.Brief(customer_id=CUSTOMER)
        thread = await runtime.start(summary.Summary, brief, thread_id=CUSTOMER)
        ended = await thread.result()
        memory = await store.page(Memory(workspace="default"))
        artifacts = await store.page(Artifacts(workspace="default"))
        assert ended.data.summary is not None
        assert ended.data.stored is not None
        text = await runtime.artifacts.get(ended.data.summary)
        return {
            "state": ended.state,
            "data": {"summary": ended.data.summary.sha256, "stored": ended.data.stored.sha256},
            "text": text.decode(),
            "memory": [(row.key, row.version, (row.value or b"").decode()) for row in memory.rows],
            "artifacts": [row.sha256 for row in artifacts.rows],
            "history": [f"{step.seq} {step.event}" for step in await thread.history()],
        }


async def arrivals(port: int, name: str) -> list[dict[str, Any]]:
    """The storage's raw log."""
    return [attrs.asdict(arrival) for arrival in await _objects.ObjectStorage(port).arrivals()]


def faults(
    result: Mapping[str, Any], arrived: Sequence[Mapping[str, Any]], expected: Mapping[str, Any] | None
) -> list[str]:
    """What is wrong with a run; empty: nothing."""
    wrong: list[str] = []
    if len(arrived) != 1:
        wrong.append(f"{len(arrived)} objects arrived")
    sha256 = hashlib.sha256(result["text"].encode()).hexdigest()
    said = {result["data"]["stored"], result["data"]["summary"], *result["artifacts"]}
    if said != {sha256} or {a["sha256"] for a in arrived} != {sha256}:
        wrong.append(f"data, artifact and arrival disagree: {said}, {[a['sha256'] for a in arrived]}")
    if expected is not None and result["data"] != expected["data"]:
        wrong.append(f"data is {result['data']}, undisturbed it is {expected['data']}")
    (key, version, value), *others = result["memory"]
    if (key, version, others) != (CUSTOMER, 1, []) or '"summaries":1' not in value or sha256 not in value:
        wrong.append(f"memory is {result['memory']}")
    if result["state"] != "done" or [line.split()[1] for line in result["history"]] != EVENTS:
        wrong.append(f"history is {result['history']}")
    return wrong
