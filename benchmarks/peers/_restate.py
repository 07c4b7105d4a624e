"""The workload on Restate: its server, a process that serves the handler, and a client in this one."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import restate

from ._workload import BODY, STEPS, arguments, body, checked, drive, finish, on_disk

WARM = 4
"""Threads before the measurement, which show that everything is up."""
WORKERS = 2
"""Processes of handlers: Python's part is most of the work."""
PATIENCE = 30.0
"""Seconds for a process to come up, to go down, or to answer a question."""
CONFIG = """# One partition: on few cores, more of them only add work.
cluster-name = "peers"
node-name = "peers"
bind-ip = "127.0.0.1"
bind-port = {node}
listen-mode = "tcp"
disable-telemetry = true
log-filter = "error"
default-num-partitions = 1
default-journal-retention = "1d"

[ingress]
bind-address = "127.0.0.1:{ingress}"

[admin]
bind-address = "127.0.0.1:{admin}"
disable-web-ui = true

[bifrost]
default-provider = "replicated"

[bifrost.local]
rocksdb-disable-wal = false
rocksdb-disable-wal-fsync = false

[log-server]
rocksdb-disable-wal-fsync = false
"""

pages = restate.Service("Pages", journal_retention=timedelta(days=1))


@pages.handler()
async def ten(context: restate.Context) -> int:
    number = 0
    for _ in range(STEPS):
        page = await context.run_typed("write", write, number=number)
        number = page["number"]
    return number


async def write(number: int) -> dict[str, Any]:
    return {"number": number + 1, "body": body(number)}


app = restate.app([pages], protocol="bidi")


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody has."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def running(*command: str, log: Path, ending: signal.Signals) -> Iterator[psutil.Popen]:
    """A process that is told to end on leaving, and after a while killed with all that it started."""
    with log.open("wb") as output:
        process = psutil.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            family = [*process.children(recursive=True), process]
            process.send_signal(ending)
            with suppress(psutil.TimeoutExpired):
                process.wait(PATIENCE)
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()


def ask(url: str, question: dict[str, Any]) -> Any:
    """Ask the server's administration, once it is up."""
    headers = {"content-type": "application/json", "accept": "application/json"}
    request = urllib.request.Request(url, json.dumps(question).encode(), headers)
    late = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{url}: {error}: {error.read()[:300]!r}") from error
        except OSError as error:
            if time.monotonic() > late:
                raise SystemExit(f"{url}: {error}") from error
            time.sleep(0.05)


class Client:
    """Keep-alive connections to the ingress, in as few lines as will do: its CPU counts as Restate's."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def one(self, number: int) -> None:
        reader, writer = self._idle.pop() if self._idle else await self._connect()
        writer.write(b"POST /Pages/ten HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"thread-{number}: {head!r}")
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        checked(number, int(await reader.readexactly(length)))
        self._idle.append((reader, writer))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        """The server does not end before its connections have."""
        for _, writer in self._idle:
            writer.transport.abort()


def recorded(admin: int) -> int:
    """Steps in the journals that the server keeps, each with what it returned."""
    query = f"""SELECT count(*) AS found FROM sys_journal
        WHERE entry_type = 'Notification: Run' AND raw_length > {BODY}"""
    [row] = ask(f"http://127.0.0.1:{admin}/query", {"query": query})["rows"]
    return int(row["found"])


async def measure(
    port: int, threads: int, concurrency: int, handlers: psutil.Process, server: psutil.Process
) -> dict[str, Any]:
    """Run the threads, once a few have shown that everything is up."""

    def cpu() -> float:
        processes = [handlers, *handlers.children(recursive=True), server]
        return time.process_time() + sum(sum(each.cpu_times()[:2]) for each in processes)

    client = Client(port)
    try:
        await drive(client.one, WARM, 4)
        return await drive(client.one, threads, concurrency, cpu)
    finally:
        client.close()


def synced(server: list[str]) -> str:
    """The settings in words, as the server itself gives them; a log that is not synced is refused."""
    dumped = subprocess.run([*server, "--dump-config"], capture_output=True, text=True, check=True)
    settings = tomllib.loads(dumped.stdout)
    bifrost, log_server = settings["bifrost"], settings["log-server"]
    if bifrost["default-provider"] != "replicated" or log_server["rocksdb-disable-wal-fsync"] is not False:
        raise SystemExit(f"Restate's log is not synced: {bifrost['default-provider']}, {log_server}")
    return "RocksDB, log-server.rocksdb-disable-wal-fsync=false, replication 1"


def main() -> None:
    folder, threads, concurrency = arguments()
    ingress, admin, node, served = free_ports(4)
    config, data = folder / "restate.toml", folder / "data"
    config.write_text(CONFIG.format(ingress=ingress, admin=admin, node=node))
    [binary] = Path(sys.prefix).glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
    server = [str(binary), "--no-logo", "--config-file", str(config), "--base-dir", str(data)]
    how = (
        f"1 partition, granian with {WORKERS} workers and uvloop, compressed (a body is one letter repeated)"
    )
    serve = f"granian --interface asginl --http 2 --loop uvloop --workers {WORKERS} --host 127.0.0.1".split()
    handlers = [sys.executable, "-m", *serve, "--port", str(served), "benchmarks.peers._restate:app"]
    # granian waits for ever for connections that the server keeps, and its processes hold nothing.
    with (
        running(*handlers, log=folder / "handlers.log", ending=signal.SIGKILL) as one,
        running(*server, log=folder / "server.log", ending=signal.SIGTERM) as two,
    ):
        ask(f"http://127.0.0.1:{admin}/deployments", {"uri": f"http://127.0.0.1:{served}"})
        result = asyncio.run(measure(ingress, threads, concurrency, one, two))
        steps = recorded(admin) - WARM * STEPS
    result["bytes"] = on_disk(data)
    finish(result, steps, f"{synced(server)}; {how}")


if __name__ == "__main__":
    main()
