"""Two kills between a side effect and its checkpoint, and what comes of them: ``make demo``.

Each act runs the machine of ``summary.py`` in a child process whose object storage client stops and says so,
just after the object is visible or just before it is sent, and kills that process with SIGKILL there. Then it
looks at what is left, resumes with ``perdure run`` in a new process, and counts.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE
from typing import Literal
from urllib.parse import quote

import anyio
import attrs
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # the examples are no part of the installed package

from examples._extractive import summarise  # noqa: E402
from examples._objects import ObjectStorage, ObjectStorageError, StoredObject, object_storage  # noqa: E402
from examples.summary import Brief, Deps, Summary, customers, runtime  # noqa: E402
from perdure import Runtime, present  # noqa: E402
from perdure.stores import Log, Memory  # noqa: E402

CUSTOMER = "cust_01"
EVENTS = {"A": "loaded", "B": "summarised", "C": "put", "D": "remembered"}
When = Literal["after", "before"]
ACTS: dict[When, str] = {
    "after": "killed after step 3's object is visible, before checkpoint C",
    "before": "killed before the object exists",
}
RECOVERY: dict[When, str] = {
    "after": "put_object: looked up, found, adopted",
    "before": "put_object: looked up, absent, issued with the same key",
}


class DemoFailed(Exception):
    """The demo could not be played."""


# --- the process that is killed -------------------------------------------------------------------


@attrs.frozen
class HeldStorage(ObjectStorage):
    """A client that never returns from a put: it says where it is, and waits to be killed."""

    when: When

    async def put(self, name: str, content: bytes, *, key: str) -> StoredObject:
        if self.when == "after":
            await super().put(name, content, key=key)
        sys.stdout.write("held\n")
        sys.stdout.flush()
        await anyio.sleep_forever()
        raise AssertionError


async def run_held(when: When, port: int) -> None:
    """What the child process does."""
    deps = Deps(customers=runtime.deps.customers, storage=HeldStorage(port, when))
    async with Runtime(machines=[Summary], deps=deps, artifacts="file:perdure-artifacts") as held:
        thread = await held.start(Summary, Brief(customer_id=CUSTOMER), thread_id=CUSTOMER)
        await thread.result()


# --- one act --------------------------------------------------------------------------------------


@attrs.frozen
class Act:
    """One kill and one resume, in a folder of its own."""

    when: When
    folder: Path
    storage: ObjectStorage
    out: Console

    async def play(self) -> bool:
        """Whether the counts are right."""
        await self._run_until_held()
        await self._show_what_is_left()
        resumed = await self._perdure("run", "examples.summary:runtime", "Summary", "--thread", CUSTOMER)
        told = await self._perdure("history", CUSTOMER)
        return await self._prove() and resumed == told == 0

    async def _run_until_held(self) -> None:
        command = [sys.executable, str(ROOT / "examples" / "demo.py"), self.when, str(self.storage.port)]
        async with await anyio.open_process(command, cwd=self.folder, stdout=PIPE, stderr=None) as child:
            assert child.stdout is not None
            said = b""
            try:
                while b"held\n" not in said:
                    said += await child.stdout.receive()
            except anyio.EndOfStream:
                raise DemoFailed("the process that was to be killed ended by itself; see above") from None
            arrived = len(await self.storage.arrivals())
            child.send_signal(signal.SIGKILL)
            status = await child.wait()
        self.out.print(
            f"process {child.pid} was in step 3 and got SIGKILL: {_count(arrived, 'arrival')} at the storage"
        )
        if status != -signal.SIGKILL or arrived != (1 if self.when == "after" else 0):
            raise DemoFailed("the process was not killed where it should have been")

    async def _perdure(self, *arguments: str) -> int:
        """The command line, as a process of its own, writing to where this one writes."""
        self.out.print(Text(f"\n$ perdure {' '.join(arguments)}", style="bold"))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]),
            "OBJECT_STORAGE_PORT": str(self.storage.port),
        }
        command = [sys.executable, "-m", "perdure.runtime._cli", *arguments]
        done = await anyio.run_process(
            command, cwd=self.folder, env=environment, stdin=None, stdout=None, stderr=None, check=False
        )
        return done.returncode

    # --- what is left -----------------------------------------------------------------------------

    async def _show_what_is_left(self) -> None:
        async with self._runtime().client() as client:
            thread = client.thread(Summary, thread_id=CUSTOMER)
            row, steps, data = await thread.row(), await thread.history(), await thread.data()
            journal = (await client.store.page(Log(address=row.address))).rows
            memory = (await client.store.page(Memory(workspace="default"))).rows
            summary = await client.artifacts.get(present(data.summary))
        call = steps[-1].calls[-1]
        left = (
            ("working state", "lost", "the memory of the process, and in it the call that was under way"),
            ("checkpoint", "survived", f"{_letter(row.standing.seq)}, in state {row.standing.state}"),
            (
                "journal",
                "survived",
                f"{len(journal)} rows; {call.name} is {call.outcome}, its key {call.key}",
            ),
            ("memory", "survived", f"{_count(len(memory), 'record')}; step 4 will write it"),
            ("artifacts", "survived", f"the summary, {len(summary)} bytes, verified as they were read"),
        )
        for layer, fate, what in left:
            style = "green" if fate == "survived" else "red"
            self.out.print(Text.assemble(f"  {layer:<14}", (f"{fate:<9}", style), f" {what}"))

    async def _prove(self) -> bool:
        """Count what happened in the world and in the record, and compare."""
        arrivals, objects = await self.storage.arrivals(), await self.storage.objects()
        async with self._runtime().client() as client:
            thread = client.thread(Summary, thread_id=CUSTOMER)
            steps, data = await thread.history(), await thread.data()
            memory = (await client.store.page(Memory(workspace="default", history=True))).rows
        text = summarise(runtime.deps.customers[CUSTOMER]).encode()
        facts = [customers.codec.decode(row.value or b"", "memory") for row in memory]
        step = next(step for step in steps if step.event == "put")
        [call] = step.calls
        decision = RECOVERY[self.when]
        counts = (
            ("one object, with the bytes of the summary", [_sha256(text)], [each.sha256 for each in objects]),
            ("one arrival, with the key of the intent", [call.key], [each.key for each in arrivals]),
            ("checkpoints A to D, each once", list(EVENTS.values()), [s.event for s in steps if s.state]),
            (f"recovery: {decision}", True, decision in step.decisions),
            ("intents under that key", 1 if self.when == "after" else 2, call.issues),
            ("remembered once", [(data.summary, 1)], [(f.last_summary, f.summaries) for f in facts]),
        )
        self.out.print()
        for what, wanted, found in counts:
            right = found == wanted
            mark = ("right ", "green") if right else ("WRONG ", "bold red")
            self.out.print(Text.assemble("  ", mark, what, "" if right else f": {found}, not {wanted}"))
        return all(found == wanted for _, wanted, found in counts)

    def _runtime(self) -> Runtime[Deps]:
        """For a client that only looks: nothing is run in this process."""
        return Runtime(
            machines=[Summary],
            deps=runtime.deps,
            store=f"sqlite:///{self.folder}/perdure.db",
            artifacts=f"file:{quote(str(self.folder))}/perdure-artifacts",
        )


def _letter(seq: int) -> str:
    return f"{' ABCD'[seq]} (seq {seq})"


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- the demo -------------------------------------------------------------------------------------


async def demo(out: Console) -> bool:
    """Both acts; whether all counts are right."""
    right: list[bool] = []
    for number, (when, title) in enumerate(ACTS.items(), start=1):
        out.print(Text(f"Act {number}: {title}", style="bold cyan"))
        with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
            async with object_storage(Path(folder) / "storage") as storage:
                right.append(await Act(when, Path(folder), storage, out).play())
        out.print()
    return all(right)


def main() -> int:
    """Exit status 0 only if every count is right."""
    match sys.argv[1:]:
        case ["after" | "before" as when, port]:
            anyio.run(run_held, when, int(port))
            return 1
        case []:
            out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        case _:
            sys.stderr.write("usage: python examples/demo.py\n")
            return 2
    try:
        right = anyio.run(demo, out)
    except (DemoFailed, ObjectStorageError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    out.print(Text("All counts are right." if right else "The counts are wrong.", style="bold"))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
