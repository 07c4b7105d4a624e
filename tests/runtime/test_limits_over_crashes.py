"""Limited calls killed everywhere; and real processes on one SQLite file before a server that counts."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field, frozen

from perdure.machines import Call, Fire, Limit, Machine, State, Step, effect, record
from perdure.runtime.testing import Receiver, World, assert_arrivals, crash_sweep

pytestmark = pytest.mark.anyio

bank_limit = Limit("bank", per_minute=600, at_once=1)
TAKES = 0.08


@frozen(kw_only=True)
class Deps:
    bank: Receiver


@record
class Payment:
    amount: int
    receipts: str = ""


@effect(limit=bank_limit, idempotent=True)
async def charge(call: Call[Deps], amount: int) -> str:
    return await call.deps.bank.send(call.key, amount)


class Paying(Machine[Payment, Deps], version=1, calls=[charge]):
    """Two charges side by side, and then a third, through one slot."""

    two = State(initial=True)
    third = State()
    done = State(final=True)

    charged = two.to(third)
    paid = third.to(done)

    @two.handler
    async def charge_two(self, data: Payment, step: Step[Deps]) -> Fire:
        first, second = await asyncio.gather(step.call(charge, 1), step.call(charge, 2))
        return self.charged(receipts=first + second)

    @third.handler
    async def charge_third(self, data: Payment, step: Step[Deps]) -> Fire:
        return self.paid(receipts=data.receipts + await step.call(charge, data.amount))


async def test_killed_everywhere_with_limited_calls(world: World) -> None:
    sweep = await crash_sweep(
        Paying, Payment(amount=3), deps=Deps(bank=world.receiver("bank", honours_keys=True))
    )
    sweep.check()
    assert_arrivals(world, "bank", 3)


# --- real processes -------------------------------------------------------------------------------

JOB = '''
import asyncio
import sys
from datetime import timedelta

from perdure.machines import Call, Fire, Limit, Machine, State, Step, read, record
from perdure.runtime import Runtime


@record
class Ask:
    port: int


@read(limit=Limit("server", at_once=3))
async def ask(call: Call[str], port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /{call.deps}/{call.thread_id} HTTP/1.1\\r\\n\\r\\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


class Asking(Machine[Ask, str], version=1, calls=[ask]):
    """One request, of which only so many are under way at once."""

    asking = State(initial=True)
    done = State(final=True)
    asked = asking.to(done)

    @asking.handler
    async def ask_it(self, data: Ask, step: Step[str]) -> Fire:
        await step.call(ask, data.port)
        return self.asked()


def runtime(folder: str, name: str) -> Runtime[str]:
    return Runtime(
        machines=[Asking],
        deps=name,
        store=f"sqlite:///{folder}/asking.db",
        artifacts=f"file:{folder}/artifacts",
        lease=timedelta(seconds=1),
        poll=timedelta(milliseconds=50),
        concurrency=6,
    )


async def main() -> None:
    async with runtime(*sys.argv[1:]):
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
'''


def load(folder: Path) -> Any:
    """The module that the workers run."""
    job = folder / "job.py"
    job.write_text(JOB)
    spec = importlib.util.spec_from_file_location("limited_job", job)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["limited_job"] = module  # types are looked up there
    spec.loader.exec_module(module)
    return module


@define
class Server:
    """A server that takes a while for each request, and counts those under way by their worker."""

    under_way: list[str] = field(factory=list[str])
    seen: list[str] = field(factory=list[str])
    most: list[int] = field(factory=list[int])
    arrived: asyncio.Event = field(factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = (await reader.readline()).decode().split()[1].split("/")[1]
        self.under_way.append(worker)
        self.seen.append(worker)
        self.most.append(len(self.under_way))
        self.arrived.set()
        self.arrived = asyncio.Event()
        await asyncio.sleep(TAKES)
        self.under_way.remove(worker)
        writer.write(b"ok")
        writer.close()

    async def until_seen(self, n: int) -> None:
        while len(self.seen) < n:
            await self.arrived.wait()


@asynccontextmanager
async def workers(folder: Path, names: str) -> AsyncGenerator[dict[str, asyncio.subprocess.Process]]:
    running = {
        name: await asyncio.create_subprocess_exec(sys.executable, str(folder / "job.py"), str(folder), name)
        for name in names
    }
    try:
        yield running
    finally:
        for process in running.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.mark.parametrize("names", ["ab", "abcd"])
async def test_never_more_at_once_over_processes_also_where_one_is_killed(tmp_path: Path, names: str) -> None:
    counted, job = Server(), load(tmp_path)
    serving = await asyncio.start_server(counted.serve, "127.0.0.1", 0)
    port = serving.sockets[0].getsockname()[1]
    async with (
        asyncio.timeout(60),
        workers(tmp_path, names) as running,
        job.runtime(str(tmp_path), "").client() as client,
    ):
        threads = [await client.start(job.Asking, job.Ask(port=port), thread_id=f"t{n}") for n in range(36)]
        await counted.until_seen(9)
        running[counted.under_way[-1]].kill()
        before = len(counted.seen)
        for thread in threads:
            await thread.result()
    serving.close()
    assert max(counted.most) == 3
    assert max(counted.most[before + 6 :]) == 3  # what the dead one held has come back
    assert len(set(counted.seen)) > 1
