"""A worker as a process: until it is told to stop, then drained, and ended by force where it stalls."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from datetime import timedelta
from typing import Any

from anyio import to_thread
from attrs import define

from perdure.stores import SQLiteStore, Store

from ._cli_text import counted
from ._health import Vitals
from ._notify import Notifier
from ._observe import Observation, logger
from ._probe import Probe
from ._runtime import Runtime
from ._spill import bare
from ._worker import Worker

STALLED = 70
"""The exit status of a process whose event loop has stalled."""
SIGNALS = ("SIGTERM", "SIGINT")


class Stop:
    """Ends a ``serve`` in good order; any thread may call it."""

    def __init__(self) -> None:
        self._told: str | None = None
        self._wake: Callable[[], None] | None = None
        self._lock = threading.RLock()  # a signal handler may interrupt whoever holds it

    def __call__(self, because: str = "it was told to stop") -> None:
        """Drain, as after SIGTERM. Once is enough; ``because`` is told."""
        with self._lock:
            if self._told is None:
                self._told = because
            wake = self._wake
        if wake is not None:
            wake()

    async def wait(self) -> str:
        """Wait until it is called."""
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._wake = lambda: _from_any_thread(loop, called.set)
            told = self._told
        if told is None:
            await called.wait()
        return self._told or ""


async def serve(
    runtime: Runtime[Any],
    *,
    store: str | Store | None = None,
    concurrency: int | None = None,
    grace: timedelta | None = None,
    stall_limit: timedelta | None = None,
    health_port: int | None = None,
    stop: Stop | None = None,
    tell: Callable[[str], None] = logger.info,
) -> int:
    """Run whatever the runtime's machines have in the store, until SIGTERM, SIGINT or ``stop``; returns 0.

    Then it drains: nothing new is claimed, running steps go on for up to ``grace``, and what is not done
    then is given up for others to go on with. A second signal leaves at once, as a kill does; nothing is
    lost. Outside of the main thread signals are left alone, and ``stop`` is what drains.

    ``store``, ``concurrency``, ``grace`` and ``stall_limit`` stand in for the runtime's own. A process whose
    event loop is blocked for longer than ``stall_limit`` writes the stacks of its threads to stderr and ends
    with status 70. ``health_port``: where ``/healthz`` and ``/readyz`` answer on the loopback interface, 0
    for a free port. ``tell`` is given a line at the start, when it drains, and at the end. ``StoreError``
    where the store cannot be opened.
    """
    stop, count, notify = stop or Stop(), Count(), Notifier()
    serving = runtime._changed(  # pyright: ignore[reportPrivateUsage]
        store=store, concurrency=concurrency, grace=grace, stall_limit=stall_limit, observers=[count]
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(_signals(stop, tell))
        probe = None if health_port is None else Probe(health_port)
        try:
            async with _working(serving) as worker:
                _begin(worker, probe, notify)
                tell(_start_line(serving, worker, probe))
                because = await stop.wait()
                notify.send("STOPPING=1", f"STATUS=draining: {because}")
                tell(f"draining ({because}): {_left_to_do(worker)}")
        finally:
            if probe is not None:
                await to_thread.run_sync(probe.close)
    tell(count.summary(worker.released))
    return 0


@contextlib.asynccontextmanager
async def _working(runtime: Runtime[Any]) -> AsyncGenerator[Worker]:
    worker = await runtime._begin(_end_stalled)  # pyright: ignore[reportPrivateUsage]
    try:
        yield worker
    finally:
        await runtime.__aexit__(None, None, None)


def _begin(worker: Worker, probe: Probe | None, notify: Notifier) -> None:
    vitals = Vitals(worker)
    worker.supervise("health", vitals.keep)
    if probe is not None:
        probe.answer_with(vitals.judge)
    if notify.watchdog:
        worker.supervise("watchdog", notify.keep)
    notify.send("READY=1", f"STATUS=worker {worker.worker} claims")


def _start_line(runtime: Runtime[Any], worker: Worker, probe: Probe | None) -> str:
    machines = ", ".join(f"{plan.name} version {plan.version}" for plan in runtime.definitions.values())
    store = bare(worker.store)
    place = store.path if isinstance(store, SQLiteStore) else getattr(store, "where", type(store).__name__)
    health = "" if probe is None else f", health at {probe.url}"
    return f"worker {worker.worker} runs {machines or 'no machine'} from {place}{health}"


def _left_to_do(worker: Worker) -> str:
    number, span = worker.running, worker.options.grace.total_seconds()
    return f"{counted(number, 'running thread')} may go on for {span:g} s" if number else "nothing runs"


@define
class Count:
    """Counts what this process has done; an observer."""

    transitions: int = 0
    ended: int = 0
    parked: int = 0
    began: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.began = time.monotonic()

    def observe(self, seen: Observation, /) -> None:
        """See ``Observer``."""
        self.transitions += seen.kind == "transition"
        self.ended += seen.status == "ended"
        self.parked += seen.status == "parked"

    def summary(self, released: int) -> str:
        """What is told at the end."""
        up = timedelta(seconds=round(time.monotonic() - self.began))
        done = f"{counted(self.transitions, 'transition')}, {counted(self.ended, 'thread')} ended"
        return f"left after {up}: {done}, {self.parked} parked, {released} given up to go on elsewhere"


# --- signals and stalls


@contextlib.contextmanager
def _signals(stop: Stop, tell: Callable[[str], None]) -> Generator[None]:
    """Stop at the first signal and leave at the second. Such a handler runs between two instructions: any
    loop has it, and a blocked one does not hold it up."""
    if threading.current_thread() is not threading.main_thread():
        tell("not the main thread: signals are left alone, and only stop() drains")
        yield
        return

    arrivals: list[int] = []

    def arrived(number: int, frame: object) -> None:
        name = signal.Signals(number).name
        arrivals.append(number)
        if len(arrivals) > 1:
            _say(f"{name} again: leaving at once; what ran goes on elsewhere, as after a kill")
            os._exit(128 + number)
        stop(name)

    old = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in SIGNALS}
    for number in old:
        signal.signal(number, arrived)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _end_stalled(said: str) -> None:
    """Nothing is cleaned up: the loop that would do it does not turn. Others see the process die."""
    _say(f"the event loop has stalled, blocked by {said}; this process ends, and its threads go on elsewhere")
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
    os._exit(STALLED)


def _say(line: str) -> None:
    """Past every buffer and lock that somebody may hold."""
    with contextlib.suppress(OSError):
        os.write(2, f"perdure: {line}\n".encode(errors="backslashreplace"))


def _from_any_thread(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended already
        loop.call_soon_threadsafe(call)
