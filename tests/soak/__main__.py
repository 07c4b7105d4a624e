"""Four workers on one store, one of them hit every few seconds; at the end everything is counted.

    python -m soak [--seed 1] [--seconds 600] [--threads 2000] [--store sqlite] [--folder DIR]

The seed decides which thread starts when, which signal comes when, and who is hit when and how. A server that
the soak has started itself is killed once as well, in the middle, and started again. Prints a report; the
exit status is 1 where anything was lost, counted twice, or ended as it should not.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
from attrs import define, field
from servers.rooms import FILES, Restart, restartable, room

from perdure.runtime import Client
from perdure.runtime._look import rows_of
from perdure.stores import OutcomeUnknown, StoreUnavailable, Threads, open_store

from .crew import TESTS, Crew
from .desk import MACHINES, Mark, Order, Work, runtime_for
from .judge import Findings, Judge, read_ledger
from .plan import Hit, Plan, Planned, Send, plan

SETTLED = 120.0
"""Seconds within which every thread is at its end, once nobody is hit any more."""


@define
class Soak:
    """One run of a plan."""

    plan: Plan
    crew: Crew
    client: Client
    restart: Restart | None
    """Ends the server and starts it again; None: nothing does."""
    said: Counter[str] = field(factory=Counter[str])
    _began: float = field(factory=time.monotonic)

    async def run(self) -> bool:
        """Play the plan; False where threads are still on their way long after it."""
        in_time = False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.crew.watch)
            async with anyio.create_task_group() as playing:
                for planned in self.plan.threads:
                    playing.start_soon(self._thread, planned)
                for hit in self.plan.hits:
                    playing.start_soon(self._hit, hit)
                if self.restart is not None:
                    playing.start_soon(self._restart, self.restart)
            in_time = await self._settled()
            tasks.cancel_scope.cancel()
        return in_time

    async def _settled(self) -> bool:
        until = time.monotonic() + SETTLED
        while time.monotonic() < until:
            over = 0
            async for row in rows_of(self.client.store, Threads()):
                over += row.standing.status in ("ended", "parked")
            if over == len(self.plan.threads):
                return True
            await anyio.sleep(0.25)
        return False

    async def _at(self, moment: float) -> None:
        await anyio.sleep(max(0.0, self._began + moment - time.monotonic()))

    async def _hit(self, hit: Hit) -> None:
        await self._at(hit.at)
        await self.crew.hit(hit)

    async def _restart(self, restart: Restart) -> None:
        await self._at(self.plan.seconds / 2)
        with self.crew.without_server():
            await anyio.to_thread.run_sync(restart)

    async def _insist(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Until there is an answer: what is asked again counts once, by its id."""
        while True:
            try:
                await ask()
                return
            except (StoreUnavailable, OutcomeUnknown):
                self.said["asked again, for want of an answer"] += 1
                await anyio.sleep(0.2)

    async def _thread(self, planned: Planned) -> None:
        async with anyio.create_task_group() as tasks:
            for send in planned.sends:
                for _ in range(1 + send.twice):
                    tasks.start_soon(self._send, planned, send)
            await self._at(planned.at)
            kind = "Order" if planned.kind == "Cancelled" else planned.kind
            machine = next(each for each in MACHINES if each.__name__ == kind)
            data = Work(item=planned.name, marks_wanted=len(planned.marks))
            await self._insist(lambda: self.client.start(machine, data, thread_id=planned.name))
            self.said["starts"] += 1
            if planned.cancel is not None:
                await self._at(planned.cancel)
                await self._insist(lambda: self.client.cancel(thread_id=planned.name))

    async def _send(self, planned: Planned, send: Send) -> None:
        await self._at(send.at)
        thread = self.client.thread(Order, thread_id=planned.name)
        match send.event:
            case "close":
                await self._insist(lambda: thread.signal(Order.close, id=send.id))
            case event:
                signal = Order.mark if event == "mark" else Order.approve
                await self._insist(lambda: thread.signal(signal, Mark(by=send.id), id=send.id))
        self.said["signals"] += 1


@contextmanager
def ledger(file: Path) -> Iterator[int]:
    """The ledger's process; its port."""
    command = [sys.executable, "-m", "soak.ledger", str(file)]
    process = subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def soak(plan: Plan, folder: Path, url: str, restart: Restart | None) -> tuple[Findings, str]:
    """Run the plan in the store, with ledger and logs in the folder; what was found, and the report."""
    file = folder / "ledger.jsonl"
    began = time.monotonic()
    with ledger(file) as port:
        crew = Crew(folder, {"SOAK_STORE": url, "SOAK_LEDGER": str(port)})
        async with runtime_for(url, port).client() as client:
            crew.begin()
            running = Soak(plan, crew, client, restart)
            try:
                in_time = await running.run()
            finally:
                await crew.end()
    seconds = time.monotonic() - began
    async with open_store(url) as store:
        found = await Judge(plan, store, read_ledger(file), crew.stops).run()
    found.wrong.extend(crew.wrong)
    if not in_time:
        found.wrong.append(f"threads were on their way {SETTLED:.0f} s after the last hit")
    return found, report(plan, running, found, seconds)


def report(plan: Plan, ran: Soak, found: Findings, seconds: float) -> str:
    """All figures in plain text."""
    lines = [f"seed {plan.seed}: {len(plan.threads)} threads, {len(plan.hits)} hits, {seconds:.0f} s", ""]
    parts = {
        "workers": ran.crew.happened,
        "sent by the soak": ran.said,
        "threads": found.threads,
        "counted": found.figures,
    }
    for title, counted in parts.items():
        lines.append(title)
        lines += [f"  {count:>8,}  {what}" for what, count in sorted(counted.items())]
    lines += ["", f"{len(found.wrong)} violations", *(f"  {each}" for each in found.wrong)]
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=2000)
    parser.add_argument("--pause", type=float, nargs=2, default=(1.5, 4.0), metavar="SECONDS")
    parser.add_argument("--folder", type=Path, help="where ledger, logs and a store in a file are left")
    parser.add_argument("--store", default=FILES, help="a word or URL that servers/rooms.py knows")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the workers are not left behind
    decided = plan(asked.seed, asked.seconds, asked.threads, tuple(asked.pause))
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with restartable(asked.store) as (at, restart), room(at, folder.absolute()) as url:
            found, said = anyio.run(soak, decided, folder.absolute(), url, restart)
    print(said)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
